//! `umwelt-ctl wt` with the real git, on repositories that mean no good.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::home::{Home, Ran, exists, let_go, write_program};

struct Place {
    home: Home,
    repo: PathBuf,
}

impl Place {
    /// A repository with one commit on `main`.
    fn new() -> Place {
        let home = Home::new();
        let place = Place {
            repo: home.path("repo"),
            home,
        };
        std::fs::create_dir(&place.repo).unwrap();
        place.git(&["init", "--quiet", "--initial-branch=main"]);
        std::fs::write(place.repo.join("file"), "one\n").unwrap();
        place.git(&["add", "."]);
        place.git(&["commit", "--quiet", "--message=one"]);
        place
    }

    fn git(&self, args: &[&str]) -> String {
        self.git_in(&self.repo, args)
    }

    fn git_in(&self, dir: &Path, args: &[&str]) -> String {
        let mut command = Command::new("git");
        command
            .args(args)
            .current_dir(dir)
            .env("HOME", self.home.path("home"))
            .env("GIT_CONFIG_NOSYSTEM", "1");
        for who in ["AUTHOR", "COMMITTER"] {
            command
                .env(format!("GIT_{who}_NAME"), "u")
                .env(format!("GIT_{who}_EMAIL"), "u@example.org");
        }
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "git {args:?}: {stderr}");
        String::from_utf8(output.stdout)
            .unwrap()
            .trim_end()
            .to_owned()
    }

    fn config(&self, text: &str) {
        let dir = self.home.path("config/umwelt");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("umwelt.toml"), text).unwrap();
    }

    fn wt(&self, args: &[&str]) -> Ran {
        self.home.run(&[&["wt"], args].concat())
    }

    fn add(&self, more: &[&str]) -> PathBuf {
        let repo = self.repo.to_str().unwrap();
        let ran = self.wt(&[&["add", repo], more].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert_eq!(ran.stderr, "");
        PathBuf::from(ran.text().trim_end())
    }

    fn rm(&self, path: &Path, more: &[&str]) -> Ran {
        self.wt(&[&["rm", path.to_str().unwrap()], more].concat())
    }

    fn assert_kept(&self, path: &Path, reason: &str) {
        let ran = self.rm(path, &[]);
        assert_eq!(ran.code, Some(1));
        assert!(ran.stderr.contains(reason), "{}", ran.stderr);
        assert!(path.join("file").exists());
    }
}

#[test]
fn a_worktree_is_made_listed_and_removed() {
    let place = Place::new();
    let path = place.add(&[]);
    assert_eq!(path, place.home.path("repo.worktrees/w1"));
    assert_eq!(std::fs::read_to_string(path.join("file")).unwrap(), "one\n");
    assert_eq!(place.git_in(&path, &["status", "--porcelain"]), "");
    assert_eq!(place.git_in(&path, &["branch", "--show-current"]), "w1");
    let second = place.add(&["topic", "--branch", "feature/x"]);
    assert_eq!(second, place.home.path("repo.worktrees/topic"));
    assert_eq!(place.add(&[]), place.home.path("repo.worktrees/w2"));

    let ran = place.wt(&["list", "--json", place.repo.to_str().unwrap()]);
    let rows: Value = serde_json::from_str(ran.text()).unwrap();
    let branches: Vec<&str> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["branch"].as_str().unwrap())
        .collect();
    assert_eq!(branches, ["main", "feature/x", "w1", "w2"]);
    assert!(
        rows.as_array()
            .unwrap()
            .iter()
            .all(|row| row["running"] == false)
    );

    let ran = place.rm(&path, &[]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert!(!exists(&path));
    assert_eq!(place.git(&["branch", "--list", "w1"]).trim(), "w1");
    // An existing branch is used as it is.
    assert_eq!(
        place.add(&["again", "--branch", "w1"]),
        place.home.path("repo.worktrees/again")
    );
    assert!(!exists(&place.home.path("runtime").join("umwelt-wt")));
    let left = std::fs::read_dir(place.home.path("runtime")).unwrap();
    assert_eq!(left.count(), 0);
}

#[test]
fn a_repository_without_a_commit_says_so_and_stays_as_it_is() {
    let place = Place::new();
    place.git(&["checkout", "--quiet", "--orphan", "empty"]);
    let repo = place.repo.to_str().unwrap();
    let ran = place.wt(&["add", repo]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let wanted = format!("{repo:?} has no commit yet on its branch \"empty\"\n");
    assert!(ran.stderr.contains(&wanted), "{ran:?}");
    assert!(ran.stderr.contains("hint: make one first"), "{ran:?}");
    assert!(!exists(&place.home.path("repo.worktrees")));
    assert_eq!(place.git(&["branch", "--list", "w1"]), "");
    // A branch with a commit will do.
    place.add(&["topic", "--branch", "main"]);
}

#[test]
fn what_is_not_saved_is_not_removed_without_force() {
    let place = Place::new();
    let path = place.add(&[]);
    std::fs::write(path.join("file"), "two\n").unwrap();
    place.assert_kept(&path, "files are changed or unknown to git: \" M file\"");
    place.git_in(&path, &["add", "."]);
    place.assert_kept(&path, "files are changed");
    place.git_in(&path, &["commit", "--quiet", "--message=two"]);
    std::fs::write(path.join("new\x1b"), "").unwrap();
    place.assert_kept(&path, "?? new");
    std::fs::remove_file(path.join("new\x1b")).unwrap();

    place.git_in(&path, &["checkout", "--quiet", "--detach"]);
    let ran = place.rm(&path, &[]);
    assert_eq!(ran.code, Some(0), "held by w1: {}", ran.stderr);
    let path = place.add(&[]);
    place.git_in(&path, &["checkout", "--quiet", "--detach"]);
    place.git_in(
        &path,
        &["commit", "--quiet", "--allow-empty", "--message=lost"],
    );
    place.assert_kept(&path, "no branch holds its commit");
    std::fs::write(path.join("file"), "three\n").unwrap();
    let ran = place.rm(&path, &["--force"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(!exists(&path));
}

#[test]
fn a_worktree_with_a_sandbox_is_not_removed() {
    let place = Place::new();
    let path = place.add(&[]);
    let sid = crate::home::sid_of(path.to_str().unwrap());
    let socket = place.home.path(&format!("runtime/umwelt-{sid}.sock"));
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let ran = place.rm(&path, &["--force"]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("a sandbox runs there"),
        "{}",
        ran.stderr
    );
    let_go(listener, &socket);
    assert_eq!(place.rm(&path, &[]).code, Some(0));
}

/// A repository in which everything that git could run leaves a mark.
fn booby_trapped() -> (Place, PathBuf) {
    let place = Place::new();
    let mark = place.home.path("mark");
    let trap = place.home.path("trap");
    let text = format!("#!/bin/sh\necho \"$0 $*\" >> '{}'\ncat\n", mark.display());
    write_program(&trap, &text);
    let trap = trap.to_str().unwrap();

    std::fs::write(place.repo.join(".gitattributes"), "* filter=in\n").unwrap();
    place.git(&["add", "."]);
    place.git(&["commit", "--quiet", "--message=attributes"]);
    let git = place.repo.join(".git");
    std::fs::write(git.join("info/attributes"), "* filter=info\n").unwrap();
    for hook in [
        "post-checkout",
        "reference-transaction",
        "pre-commit",
        "post-index-change",
    ] {
        symlink(trap, git.join("hooks").join(hook)).unwrap();
    }
    let included = place.home.path("included");
    let filter = |name: &str| {
        format!("[filter \"{name}\"]\n\tclean = {trap}\n\tsmudge = {trap}\n\trequired = true\n")
    };
    std::fs::write(&included, filter("in")).unwrap();
    let config = format!(
        "\n[include]\n\tpath = {}\n{}[core]\n\tfsmonitor = {trap}\n\thooksPath = {}\n\tsshCommand = {trap}\n\
         \teditor = {trap}\n\tpager = {trap}\n[alias]\n\tworktree = !{trap}\n\tstatus = !{trap}\n\
         [diff]\n\texternal = {trap}\n[credential]\n\thelper = {trap}\n\
         [hook \"x\"]\n\tcommand = {trap}\n\tevent = post-checkout\n\tevent = reference-transaction\n",
        included.display(),
        filter("info"),
        git.join("hooks").display(),
    );
    let path = git.join("config");
    let before = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, before + &config).unwrap();
    (place, mark)
}

#[test]
fn nothing_that_a_repository_configures_is_run() {
    let (place, mark) = booby_trapped();
    let path = place.add(&[]);
    assert_eq!(std::fs::read_to_string(path.join("file")).unwrap(), "one\n");
    // Of another time than the index says: it has to be read.
    let file = std::fs::File::options()
        .append(true)
        .open(path.join("file"))
        .unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH)
        .unwrap();
    let ran = place.wt(&["list", place.repo.to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    std::fs::write(path.join("new"), "").unwrap();
    place.assert_kept(&path, "?? new");
    std::fs::remove_file(path.join("new")).unwrap();
    let ran = place.rm(&path, &[]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(
        !exists(&mark),
        "{}",
        std::fs::read_to_string(&mark).unwrap()
    );

    // The traps were armed: git without our care springs them.
    let plain = place.home.path("plain");
    place.git(&["worktree", "add", "--quiet", plain.to_str().unwrap()]);
    let sprung = std::fs::read_to_string(&mark).unwrap();
    for name in ["post-checkout", "reference-transaction", "trap"] {
        assert!(sprung.contains(name), "{name} in {sprung}");
    }
}

#[test]
fn a_planted_commondir_leads_nowhere() {
    let (place, mark) = booby_trapped();
    let trapped = place.repo.join(".git");
    let clean = Place::new();
    let planted = clean.repo.join(".git/commondir");
    std::fs::write(&planted, trapped.to_str().unwrap()).unwrap();
    let ran = clean.wt(&["add", clean.repo.to_str().unwrap()]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("leads git elsewhere"), "{}", ran.stderr);
    assert!(!exists(&mark));
    std::fs::remove_file(planted).unwrap();
    assert!(exists(&clean.add(&[])));
}

#[test]
fn a_branch_is_made_in_the_repository_alone() {
    let place = Place::new();
    let heads = place.repo.join(".git/refs/heads");
    let elsewhere = place.home.path("elsewhere");
    std::fs::rename(&heads, &elsewhere).unwrap();
    symlink(&elsewhere, &heads).unwrap();
    let ran = place.wt(&["add", place.repo.to_str().unwrap(), "w1"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let reason = "cannot make the branch \"w1\"";
    assert!(ran.stderr.contains(reason), "{}", ran.stderr);
    assert_eq!(elsewhere.read_dir().unwrap().count(), 1);
    std::fs::remove_file(&heads).unwrap();
    std::fs::rename(&elsewhere, &heads).unwrap();

    place.add(&["w1", "--branch", "a/b"]);
    place.git(&["pack-refs", "--all"]);
    for branch in ["a", "a/b/c", "main/x"] {
        let ran = place.wt(&[
            "add",
            place.repo.to_str().unwrap(),
            "w2",
            "--branch",
            branch,
        ]);
        assert_eq!(ran.code, Some(1), "{branch}");
        assert!(
            ran.stderr.contains("there is \"refs/heads/"),
            "{}",
            ran.stderr
        );
    }
    place.add(&["w2", "--branch", "a/c"]);
    place.git(&["fsck", "--strict"]);
}

/// Shell: a link to `to` in the place of `from`, which is moved aside.
fn swap(from: &Path, to: &Path) -> String {
    let (from, to) = (from.display(), to.display());
    format!("mv {from} {from}.aside; ln -s {to} {from}")
}

#[test]
fn nothing_of_another_project_is_removed_when_paths_are_swapped_meanwhile() {
    let (place, other) = (Place::new(), Place::new());
    let unsaved = other.add(&[]).join("unsaved");
    std::fs::write(&unsaved, "work").unwrap();
    let theirs = other.home.path("repo.worktrees");
    for name in ["repo/.git/worktrees", "repo.worktrees"] {
        let path = place.add(&["w1", "--branch", name.rsplit('/').next().unwrap()]);
        let swapped = place.home.path(name);
        let script = swap(&swapped, &theirs);
        place.config(&format!(
            "[worktrees]\npre_rm = [\"sh\", \"-c\", \"{script}\"]\n"
        ));
        let ran = place.rm(&path, &["--force"]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert!(exists(&unsaved) && exists(&unsaved.with_file_name("file")));
        // What was meant is gone, wherever it is.
        let aside = PathBuf::from(format!("{}.aside", swapped.display()));
        assert!(exists(&aside) && !exists(&aside.join("w1")));
        std::fs::remove_file(&swapped).unwrap();
        std::fs::rename(&aside, &swapped).unwrap();
    }
    let path = place.add(&["w1", "--branch", "last"]);
    for name in ["repo/.git/worktrees/w1", "repo.worktrees/w1"] {
        let swapped = place.home.path(name);
        let script = swap(&swapped, &theirs.join("w1"));
        place.config(&format!(
            "[worktrees]\npre_rm = [\"sh\", \"-c\", \"{script}\"]\n"
        ));
        let ran = place.rm(&path, &["--force"]);
        assert_eq!(ran.code, Some(1));
        let reason = format!("{swapped:?} was moved or replaced meanwhile");
        assert!(ran.stderr.contains(&reason), "{}", ran.stderr);
        assert!(exists(&unsaved));
        let aside = PathBuf::from(format!("{}.aside", swapped.display()));
        std::fs::remove_file(&swapped).unwrap();
        std::fs::rename(&aside, &swapped).unwrap();
        assert!(exists(&path.join("file")), "nothing is removed");
    }
    place.config("");
    assert_eq!(place.rm(&path, &[]).code, Some(0));
}

#[test]
fn no_file_of_another_project_is_written_when_paths_are_swapped_meanwhile() {
    let (place, other) = (Place::new(), Place::new());
    std::fs::write(other.repo.join("staged"), "").unwrap();
    other.git(&["add", "staged"]);
    let victim = place.home.path("victim");
    std::fs::write(&victim, "kept").unwrap();
    let admin = place.repo.join(".git/worktrees/w1");
    let theirs = other.repo.join(".git");
    let index = std::fs::read(theirs.join("index")).unwrap();
    let trap = place.home.path("trap");
    std::fs::create_dir(&trap).unwrap();
    symlink(&theirs, trap.join("w1")).unwrap();
    let link = |to: &Path, from: &Path| format!("ln -s {} {}", to.display(), from.display());
    for (script, is_made) in [
        (swap(&admin, &theirs), true),
        (swap(&place.repo.join(".git/worktrees"), &trap), true),
        (link(&victim, &admin.join("index")), false),
    ] {
        // The files are written, and the index is next.
        wrap_git(&place, "reset", &script, "");
        let ran = place.wt(&["add", place.repo.to_str().unwrap(), "w1"]);
        assert_eq!(ran.code, Some(i32::from(!is_made)), "{}", ran.stderr);
        std::fs::remove_file(place.home.bin().join("git")).unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"kept", "{script}");
        let now = std::fs::read(theirs.join("index")).unwrap();
        assert!(now == index, "{script}");
        let top = place.home.path("repo.worktrees/w1");
        assert_eq!(exists(&top), is_made);
        for dir in [top, place.repo.join(".git/worktrees")] {
            drop(std::fs::remove_file(&dir));
            drop(std::fs::remove_dir_all(&dir));
        }
        drop(std::fs::remove_dir_all(
            place.repo.join(".git/worktrees.aside"),
        ));
        place.git(&["branch", "--quiet", "-D", "w1"]);
    }
    // The very same without a swap.
    assert!(exists(&place.add(&["w1"])));
    assert!(exists(&admin.join("index")));
}

/// A `git` that runs a script before or after a subcommand of the real one.
fn wrap_git(place: &Place, subcommand: &str, before: &str, after: &str) {
    let text = format!(
        "#!/bin/sh\nreal() {{ PATH=/usr/local/bin:/usr/bin:/bin git \"$@\"; }}\n\
         [ \"$1\" = {subcommand} ] || {{ real \"$@\"; exit $?; }}\n\
         {before}\nreal \"$@\"; status=$?\n{after}\nexit $status\n"
    );
    write_program(&place.home.bin().join("git"), &text);
}

#[test]
fn files_are_checked_out_where_no_agent_can_swap_a_directory() {
    let place = Place::new();
    let victim = place.home.path("victim");
    for dir in [place.repo.join("sub"), victim.join("sub")] {
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("deep"), "kept").unwrap();
    }
    std::fs::write(place.repo.join("sub/deep"), "of the agent").unwrap();
    std::fs::write(victim.join("file"), "kept").unwrap();
    place.git(&["add", "."]);
    place.git(&["commit", "--quiet", "--message=sub"]);
    let above = place.home.path("repo.worktrees");
    let (top, log) = (above.join("w1"), place.home.path("log"));
    let [shown, to, seen] = [&top, &victim, &log].map(|path| path.display().to_string());
    // What is there by now is moved out of the way.
    let link = |at: &str, to: &str| {
        format!("[ ! -e {at} ] || mv {at} {at}.aside; ln -s {to} {at} 2>/dev/null")
    };
    let note = format!(
        "pwd -P > {seen}; stat -c %a .. >> {seen}; find {} -mindepth 1 >> {seen}",
        above.display()
    );
    for (before, after, made_at) in [
        (link(&shown, &to), String::new(), None),
        (String::new(), link(&shown, &to), None),
        (
            String::new(),
            link(above.to_str().unwrap(), &to),
            Some("repo.worktrees.aside/w1"),
        ),
        (
            link(&format!("{shown}/sub"), &format!("{to}/sub")),
            String::new(),
            Some("repo.worktrees/w1"),
        ),
    ] {
        wrap_git(&place, "reset", &format!("{note}\n{before}"), &after);
        let ran = place.wt(&["add", place.repo.to_str().unwrap(), "w1"]);
        for (name, dir) in [("file", &victim), ("deep", &victim.join("sub"))] {
            let found = std::fs::read_to_string(dir.join(name)).unwrap();
            assert_eq!(found, "kept", "{before}; {after}");
        }
        assert_eq!(victim.read_dir().unwrap().count(), 2, "{before}; {after}");
        assert_eq!(ran.code, Some(i32::from(made_at.is_none())), "{ran:?}");
        match made_at {
            Some(made) => {
                let deep = place.home.path(made).join("sub/deep");
                assert_eq!(std::fs::read_to_string(deep).unwrap(), "of the agent");
            }
            None => assert!(ran.stderr.contains("it exists already"), "{ran:?}"),
        }
        // git was at work in a place of ours, and nothing was in the other yet.
        let noted = std::fs::read_to_string(&log).unwrap();
        let staging = place.home.path("data/umwelt/worktree-");
        assert!(noted.starts_with(staging.to_str().unwrap()), "{noted}");
        assert_eq!(noted.lines().skip(1).collect::<Vec<_>>(), ["700"]);
        let left = place.home.path("data/umwelt").read_dir().unwrap();
        assert_eq!(left.count(), 0);
        std::fs::remove_file(place.home.bin().join("git")).unwrap();
        let admin = place.repo.join(".git/worktrees/w1");
        assert_eq!(exists(&admin), made_at.is_some());
        for path in [&above, &place.home.path("repo.worktrees.aside"), &admin] {
            drop(std::fs::remove_file(path));
            drop(std::fs::remove_dir_all(path));
        }
        place.git(&["branch", "--quiet", "-D", "w1"]);
    }
    // The very same without a swap.
    assert!(exists(&place.add(&["w1"]).join("sub/deep")));
    assert_eq!(place.git_in(&top, &["status", "--porcelain"]), "");
}

#[test]
fn changes_are_looked_for_in_the_directory_that_would_be_removed() {
    let place = Place::new();
    let (clean, path) = (place.add(&["clean"]), place.add(&["w1"]));
    std::fs::write(path.join("file"), "work").unwrap();
    let (clean, shown) = (clean.display(), path.display());
    wrap_git(
        &place,
        "status",
        &format!("mv {shown} {shown}.aside; ln -s {clean} {shown}"),
        &format!("rm {shown}; mv {shown}.aside {shown}"),
    );
    // Moved away and back, which is refused whatever was found.
    place.assert_kept(&path, "was moved or replaced meanwhile");
    std::fs::remove_file(place.home.bin().join("git")).unwrap();
    place.assert_kept(&path, "files are changed or unknown to git: \" M file\"");
    std::fs::write(path.join("file"), "one\n").unwrap();
    let ran = place.rm(&path, &[]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!exists(&path) && exists(&place.home.path("repo.worktrees/clean/file")));
}

#[test]
fn a_file_that_git_is_told_not_to_look_at_counts_as_changed() {
    let place = Place::new();
    for (name, flag) in [("w1", "--assume-unchanged"), ("w2", "--skip-worktree")] {
        let path = place.add(&[name]);
        let top = path.to_str().unwrap();
        place.git(&["-C", top, "update-index", flag, "file"]);
        std::fs::write(path.join("file"), "local").unwrap();
        place.assert_kept(&path, "files are changed or unknown to git");
        std::fs::remove_file(path.join("file")).unwrap();
        let ran = place.rm(&path, &[]);
        assert_eq!(ran.code, Some(0), "{flag}: {ran:?}");
    }
}

#[test]
fn a_git_file_leads_to_no_repository_that_was_not_named() {
    let place = Place::new();
    let (repo, git) = (place.repo.to_str().unwrap(), place.repo.join(".git"));
    let evil = place.home.path("evil");
    std::fs::create_dir(&evil).unwrap();
    let pointer = format!("gitdir: {}\n", git.display());
    std::fs::write(evil.join(".git"), pointer).unwrap();
    let refused = |dir: &Path, subcommand: &str| {
        let ran = place.wt(&[subcommand, dir.to_str().unwrap()]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let reason = format!("of {dir:?} leads to another repository, {git:?}");
        assert!(ran.stderr.contains(&reason), "{ran:?}");
        let way_out = format!("name it itself, as in: umwelt-ctl wt add {repo}\n");
        assert!(ran.stderr.ends_with(&way_out), "{ran:?}");
        assert!(!exists(&place.home.path("repo.worktrees")));
        assert_eq!(place.git(&["branch", "--list", "w1"]), "");
        let trust = place.home.path("state/umwelt/trust");
        assert_eq!(trust.read_dir().into_iter().flatten().count(), 0);
    };
    refused(&evil, "add");
    refused(&evil, "list");
    // One that the repository names too, but nobody has accepted.
    let plain = place.home.path("plain");
    place.git(&["worktree", "add", "--quiet", plain.to_str().unwrap()]);
    refused(&plain, "add");
    let plain = plain.to_str().unwrap();
    assert_eq!(place.wt(&["list", plain]).code, Some(0));
    assert_eq!(place.wt(&["accept", "--yes", plain]).code, Some(0));
    let ran = place.wt(&["add", plain]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(exists(&place.home.path("repo.worktrees/w1/file")));
}

#[test]
fn submodules_are_not_looked_into() {
    let place = Place::new();
    let path = place.add(&[]);
    let sub = path.join("sub");
    std::fs::create_dir(&sub).unwrap();
    place.git_in(&sub, &["init", "--quiet"]);
    place.git_in(&sub, &["commit", "--quiet", "--allow-empty", "--message=x"]);
    place.git_in(&path, &["add", "sub"]);
    place.git_in(&path, &["commit", "--quiet", "--message=sub"]);
    let mark = place.home.path("mark");
    let trap = format!("touch {}; false", mark.display());
    place.git_in(&sub, &["config", "core.fsmonitor", &trap]);
    place.assert_kept(
        &path,
        "it has submodules, which are not looked into: \"sub\"",
    );
    assert!(!exists(&mark));
}

#[test]
fn hooks_of_the_trusted_configuration_run_in_the_worktree() {
    let place = Place::new();
    let log = place.home.path("log");
    let script = |status: u32| {
        format!(
            "'echo out; printf \"%s|\" \"$PWD\" \"$UMWELT_WORKTREE\" \"$UMWELT_REPOSITORY\" \"$UMWELT_BRANCH\" \
             \"${{GIT_DIR-none}}\" \"$1\" >> {}; exit {status}'",
            log.display()
        )
    };
    let config = |add: u32, rm: u32| {
        place.config(&format!(
            "[worktrees]\npost_add = [\"sh\", \"-c\", ''{}'', \"sh\", \"a b\"]\npre_rm = [\"sh\", \"-c\", ''{}'', \"sh\", \"rm\"]\n",
            script(add),
            script(rm)
        ));
    };
    config(0, 3);
    let repo = place.repo.to_str().unwrap();
    let mut command = place.home.ctl(&["wt", "add", repo]);
    let ran = crate::home::finish(command.env("GIT_DIR", "/x").spawn().unwrap());
    let path = place.home.path("repo.worktrees/w1");
    let shown = path.to_str().unwrap();
    assert_eq!(ran.text(), format!("{shown}\n"));
    assert_eq!(ran.stderr, "out\n");
    let told = format!("{shown}|{shown}|{repo}/.git|w1|none|a b|");
    assert_eq!(std::fs::read_to_string(&log).unwrap(), told);

    place.assert_kept(&path, "of worktrees.pre_rm failed: exit status: 3");
    let ran = place.rm(&path, &["--force"]);
    assert_eq!(ran.code, Some(1), "force is for what would be lost");
    config(4, 0);
    assert_eq!(place.rm(&path, &[]).code, Some(0));
    assert!(!exists(&path));
    let ran = place.wt(&["add", repo]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("the worktree is there"),
        "{}",
        ran.stderr
    );
    assert!(exists(&place.home.path("repo.worktrees/w2")));
}

#[test]
fn worktrees_are_made_where_the_configuration_says() {
    let place = Place::new();
    place.config(&format!(
        "[worktrees]\ndir = \"{}\"\n",
        place.home.path("all").display()
    ));
    let path = place.add(&["x"]);
    let sid = crate::home::sid_of(place.repo.to_str().unwrap());
    assert_eq!(path, place.home.path(&format!("all/repo-{sid}/x")));
    assert_eq!(place.rm(&path, &[]).code, Some(0));
}

#[test]
fn a_bare_repository_and_sha256_will_do() {
    let mut place = Place::new();
    let bare = place.home.path("bare.git");
    let source = place.repo.clone();
    place.git(&[
        "clone",
        "--quiet",
        "--bare",
        source.to_str().unwrap(),
        bare.to_str().unwrap(),
    ]);
    place.repo = bare.clone();
    let path = place.add(&[]);
    assert_eq!(path, place.home.path("bare.git.worktrees/w1"));
    assert_eq!(place.git_in(&path, &["status", "--porcelain"]), "");
    // A link in the place of a log would be followed: none is written.
    assert!(!exists(&bare.join("logs/refs/heads/w1")));
    // From one worktree: what is checked out there.
    place.git_in(
        &path,
        &["commit", "--quiet", "--allow-empty", "--message=two"],
    );
    let commit = place.git_in(&path, &["rev-parse", "HEAD"]);
    place.repo = path;
    let second = place.add(&[]);
    assert_eq!(second, place.home.path("bare.git.worktrees/w2"));
    assert_eq!(place.git_in(&second, &["rev-parse", "HEAD"]), commit);

    let other = place.home.path("other");
    std::fs::create_dir(&other).unwrap();
    place.repo = other;
    place.git(&["init", "--quiet", "--object-format=sha256"]);
    place.git(&["commit", "--quiet", "--allow-empty", "--message=one"]);
    let path = place.add(&[]);
    assert_eq!(place.git_in(&path, &["rev-parse", "HEAD"]).len(), 64);
    assert_eq!(place.rm(&path, &[]).code, Some(0));
}

#[test]
fn what_is_no_repository_or_place_is_refused() {
    let place = Place::new();
    let repo = place.repo.to_str().unwrap();
    let refused = |args: &[&str], reason: &str| {
        let ran = place.wt(args);
        assert_eq!(ran.code, Some(1), "{args:?}");
        assert!(ran.stderr.contains(reason), "{args:?}: {}", ran.stderr);
    };
    refused(&["add", &place.home.workspace], "is not a git repository");
    refused(&["add", repo, "../x"], "cannot be used as a name");
    refused(
        &["add", repo, "x", "--branch", "-x"],
        "cannot be used as a name",
    );
    refused(
        &["add", repo, "x", "--branch", "@{-1}"],
        "cannot be used as a name",
    );
    refused(
        &["add", repo, "x", "--branch", "main"],
        "is checked out already",
    );
    assert!(!exists(&place.home.path("repo.worktrees/x")));
    std::fs::create_dir(place.home.path("repo.worktrees")).unwrap();
    std::fs::write(place.home.path("repo.worktrees/taken"), "").unwrap();
    refused(&["add", repo, "taken"], "it exists already");
    refused(&["rm", repo], "is not a git worktree");
    std::fs::remove_dir_all(place.home.path("repo.worktrees")).unwrap();
    std::fs::create_dir(place.home.path("elsewhere")).unwrap();
    symlink("elsewhere", place.home.path("repo.worktrees")).unwrap();
    refused(&["add", repo], "leads to");

    let other = place.home.path("other");
    std::fs::create_dir(&other).unwrap();
    let other = other.to_str().unwrap();
    let dot_git = Path::new(other).join(".git");
    std::fs::write(&dot_git, "gitdir: /etc\n").unwrap();
    refused(&["add", other], "is not a git repository");
    std::fs::write(&dot_git, format!("gitdir: {repo}/.git/worktrees/no\n")).unwrap();
    refused(&["rm", other], "is not a git worktree");
    std::fs::remove_file(&dot_git).unwrap();
    symlink(Path::new(repo).join(".git"), &dot_git).unwrap();
    refused(&["list", other], "is not a git repository");
    std::fs::remove_file(&dot_git).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &dot_git, kind, mode, 0).unwrap();
    refused(&["add", other], "neither a directory nor a file");
}

#[test]
fn inside_a_repository_names_and_directories_below_will_do() {
    let place = Place::new();
    let below = place.repo.join("sub/deep");
    std::fs::create_dir_all(&below).unwrap();
    let there = |dir: &Path, args: &[&str]| {
        let mut command = place.home.ctl(&[&["wt"], args].concat());
        crate::home::finish(command.current_dir(dir).spawn().unwrap())
    };
    let ran = there(&below, &["add"]);
    let first = place.home.path("repo.worktrees/w1");
    assert_eq!(ran.text(), format!("{}\n", first.display()), "{ran:?}");
    let ran = there(&below, &["add", "..", "topic", "-b", "x/y"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    // Of the repository that a worktree belongs to, too.
    for dir in [&below, &first] {
        let ran = there(dir, &["list"]);
        let rows: Vec<Vec<&str>> = ran
            .text()
            .lines()
            .map(|line| line.split_whitespace().take(2).collect())
            .collect();
        let expected = [
            ["NAME", "BRANCH"],
            ["-", "main"],
            ["topic", "x/y"],
            ["w1", "w1"],
        ];
        assert_eq!(rows, expected, "{ran:?}");
    }
    // A directory that is called so is written with a slash.
    std::fs::create_dir(below.join("w1")).unwrap();
    let ran = there(&below, &["rm", "./w1"]);
    assert!(ran.stderr.contains("is not a git worktree"), "{ran:?}");
    // Nor is another one meant, whatever an agent has written there.
    let pointer = place.repo.join(".git/worktrees/w1/gitdir");
    let right = std::fs::read(&pointer).unwrap();
    let other = place.home.path("repo.worktrees/topic/.git");
    std::fs::write(&pointer, format!("{}\n", other.display())).unwrap();
    let ran = there(&below, &["rm", "--force", "w1"]);
    assert!(ran.stderr.contains("does not belong to that"), "{ran:?}");
    assert!(exists(&other) && exists(&first));
    std::fs::write(&pointer, right).unwrap();
    for name in ["w1", "topic"] {
        let ran = there(&below, &["rm", name]);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{name}");
    }
    assert!(!exists(&first) && exists(&below.join("w1")));
    for name in ["w1", "none"] {
        let ran = there(&below, &["rm", name]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
    }
    let ran = there(&place.home.path("ws"), &["list"]);
    assert!(ran.stderr.contains("nor in a directory above"), "{ran:?}");
}

#[test]
fn what_a_planted_link_leads_to_is_neither_shared_nor_removed() {
    let (place, other) = (Place::new(), Place::new());
    let theirs = other.add(&[]);
    for (name, target) in [("lib", &other.repo), ("w9", &theirs)] {
        symlink(target, place.repo.join(name)).unwrap();
    }
    symlink(&other.repo, place.home.path("home/mine")).unwrap();
    let link = |name: &str| place.repo.join(name).to_str().unwrap().to_owned();
    for args in [
        ["add", &link("lib")],
        ["list", &link("lib")],
        ["rm", &link("w9")],
        ["accept", &link("w9")],
    ] {
        let ran = place.wt(&args);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let reason = format!("leads through the link {:?}", args[1]);
        assert!(ran.stderr.contains(&reason), "{ran:?}");
    }
    assert!(exists(&theirs.join("file")));
    // The very same through a link that no sandbox can have made.
    let ran = place.wt(&["list", "~/mine"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn a_repository_that_is_swapped_meanwhile_is_not_believed() {
    let place = Place::new();
    let path = place.add(&[]);
    place.git_in(&path, &["checkout", "--quiet", "--detach"]);
    let lost = ["commit", "--quiet", "--allow-empty", "--message=lost"];
    place.git_in(&path, &lost);
    let commit = place.git_in(&path, &["rev-parse", "HEAD"]);
    let (git, copy) = (place.repo.join(".git"), place.home.path("copy"));
    let [from, to] = [&git, &copy].map(|path| path.display().to_string());
    // In the copy a branch holds what nothing holds in the repository.
    let copied = Command::new("cp").args(["-r", &from, &to]).status();
    assert!(copied.unwrap().success());
    std::fs::write(copy.join("refs/heads/held"), format!("{commit}\n")).unwrap();
    let before = format!("[ -L {from} ] || {{ {}; }}", swap(&git, &copy));
    for command in ["rev-parse", "for-each-ref"] {
        wrap_git(&place, command, &before, "");
        place.assert_kept(&path, &format!("no branch holds its commit {commit}"));
        assert!(git.is_symlink(), "swapped at {command}");
        std::fs::remove_file(&git).unwrap();
        std::fs::rename(format!("{from}.aside"), &git).unwrap();
    }
    // Believed where it is the repository itself.
    std::fs::remove_file(place.home.bin().join("git")).unwrap();
    place.git(&["branch", "held", &commit]);
    assert_eq!(place.rm(&path, &[]).code, Some(0));
}

#[test]
fn a_wrong_use_is_told() {
    let place = Place::new();
    for (args, reason) in [
        (&[][..], "\"wt\" needs one of: add, rm, list, accept"),
        (&["rm"], "\"wt rm\" needs one path or name"),
        (
            &["lisst", "x"],
            "unknown word \"lisst\" of umwelt-ctl wt; valid are: add, rm, list, accept\nhint: did you mean \"list\"?",
        ),
        (
            &["rm", "x", "--branch", "y"],
            "the option \"--branch\" belongs to \"wt add\", not to \"wt rm\"",
        ),
        (&["add", "x", "-f"], "\"--force\" belongs to \"wt rm\""),
        (&["rm", "x", "--json"], "\"--json\" belongs to \"wt list\""),
        (&["rm", "x", "y"], "\"y\" is one word too many"),
    ] {
        let ran = place.wt(args);
        assert_eq!(ran.code, Some(2), "{args:?}");
        assert!(ran.stderr.contains(reason), "{args:?}: {}", ran.stderr);
        let hint = "hint: see: umwelt-ctl wt --help\n";
        assert!(ran.stderr.ends_with(hint), "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn fifos_and_links_in_the_place_of_what_git_reads_are_refused() {
    let mut place = Place::new();
    let secret = place.home.path("secret");
    std::fs::write(&secret, "deadbeef of-a-secret\n").unwrap();
    let packed = place.repo.join(".git/packed-refs");
    symlink(&secret, &packed).unwrap();
    let repo = place.repo.to_str().unwrap().to_owned();
    let refused = |place: &mut Place| {
        let ran = place.home.run(&["wt", "list", &repo]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains("packed-refs"), "{ran:?}");
        assert!(!ran.stderr.contains("of-a-secret"), "{ran:?}");
    };
    refused(&mut place);
    std::fs::remove_file(&packed).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &packed, kind, mode, 0).unwrap();
    refused(&mut place);
}

#[test]
fn repository_is_shared_after_a_yes_only() {
    let place = Place::new();
    let path = place.add(&[]);
    let record = |place: &Place| {
        let trust = place.home.path("state/umwelt/trust");
        let entries = trust.read_dir().into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| name.ends_with("-git.json")).count()
    };
    // What add makes is accepted with it.
    assert_eq!(record(&place), 1);
    std::fs::remove_dir_all(place.home.path("state/umwelt/trust")).unwrap();
    let path = path.to_str().unwrap();
    let ran = place.home.run(&["wt", "accept", path]);
    assert_eq!((ran.code, record(&place)), (Some(1), 0), "{ran:?}");
    assert_eq!(ran.text(), "");
    let way_out = format!("without a question with: umwelt-ctl wt accept --yes {path}\n");
    assert!(ran.stderr.ends_with(&way_out), "{ran:?}");
    let ran = place.home.run(&["wt", "accept", "--yes", path]);
    assert_eq!((ran.code, record(&place)), (Some(0), 1), "{ran:?}");
    assert!(ran.text().ends_with("refs to it.\naccepted\n"), "{ran:?}");
    let ran = place.home.run(&["wt", "rm", path]);
    assert_eq!((ran.code, record(&place)), (Some(0), 0), "{ran:?}");
}
