//! git in a workspace that is a worktree, and beside other worktrees.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::podman_common::{Client, Options, Sandbox, host, sandbox::CONFIG, sandbox::Place};
use crate::text;

fn git(dir: &Path, args: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args(args).current_dir(dir);
    for who in ["AUTHOR", "COMMITTER"] {
        command
            .env(format!("GIT_{who}_NAME"), "host")
            .env(format!("GIT_{who}_EMAIL"), "host@example.org");
    }
    let output = command.output().expect("git");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "git {args:?}: {stderr}");
    String::from_utf8(output.stdout)
        .unwrap()
        .trim_end()
        .to_owned()
}

/// A repository `repo` with the worktrees `project` and `other`, the latter
/// long untouched, with commits that only its HEAD holds.
fn place(workspace: &str, config: &str) -> Place {
    let place = Place::new(Options {
        workspace: workspace.into(),
        config: format!("{CONFIG}{config}"),
        ..Options::default()
    });
    let repo = place.path().join("repo");
    for dir in ["repo", "project"] {
        drop(std::fs::remove_dir(place.path().join(dir)));
    }
    std::fs::create_dir(&repo).unwrap();
    git(&repo, &["init", "-q", "-b", "main"]);
    git(&repo, &["commit", "-q", "--allow-empty", "-m", "first"]);
    git(
        &repo,
        &["worktree", "add", "-q", "../project", "-b", "topic"],
    );
    git(&repo, &["worktree", "add", "-q", "--detach", "../other"]);
    let other = place.path().join("other");
    git(
        &other,
        &["commit", "-q", "--allow-empty", "-m", "only here"],
    );
    if workspace == "project" {
        accept(&place);
    }
    let admin = repo.join(".git/worktrees/other");
    for entry in admin.read_dir().unwrap() {
        let file = std::fs::File::open(entry.unwrap().path()).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
    }
    place
}

/// A person says that the sandbox may share the repository.
fn accept(place: &Place) {
    let mut command = place.applet("umwelt-ctl");
    let accepted = command
        .args(["wt", "accept", "--yes"])
        .arg(&place.workspace);
    assert!(accepted.status().unwrap().success());
}

fn paths(place: &Place) -> (PathBuf, PathBuf) {
    (place.path().join("repo"), place.path().join("other"))
}

const IDENTITY: &str = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org";

fn listed(client: &mut Client, field: &str) -> Vec<Value> {
    let list = client.call("list", json!({})).unwrap();
    list[field].as_array().unwrap().clone()
}

fn assert_other_survives(client: &mut Client, other: &Path) {
    for command in [
        "git gc -q --prune=now",
        "git worktree prune",
        "git prune --expire=now",
    ] {
        client.shell(command);
    }
    assert_eq!(git(other, &["log", "-1", "--format=%s"]), "only here");
    git(other, &["fsck", "--connectivity-only"]);
}

#[test]
fn git_works_in_a_worktree_and_its_repository_is_kept() {
    if !host::qualifies() {
        return;
    }
    let sandbox = Sandbox::start_at(place("project", ""));
    let (repo, other) = paths(&sandbox.place);
    let mut client = sandbox.client();
    let log = client.output(&format!(
        "{IDENTITY}; echo x >f && git add f && git status --short && git commit -q -m inside 2>/dev/null && git log --format=%s"
    ));
    assert_eq!(log, "A  f\ninside\nfirst\n");
    assert_eq!(git(&repo, &["log", "-1", "--format=%s", "topic"]), "inside");

    let common = repo.join(".git");
    for file in [
        "config",
        "hooks/pre-commit",
        "commondir",
        "HEAD",
        "worktrees/other/HEAD",
        "worktrees/project/commondir",
        "worktrees/project/gitdir",
    ] {
        let path = common.join(file);
        let result = client.shell(&format!("echo x >>'{}'", path.display()));
        assert_eq!(result["code"], 1, "{file}: {result}");
        let output = text(&result["output"]);
        assert!(output.contains("Read-only file system"), "{output}");
    }
    let admin = common.join("worktrees/project");
    let moved = client.shell(&format!(
        "mv '{0}' '{0}2' || mv '{1}' '{1}2'",
        admin.display(),
        common.join("refs").display()
    ));
    assert_ne!(moved["code"], 0, "{moved}");
    assert_other_survives(&mut client, &other);
    let notices = listed(&mut client, "notices");
    assert!(
        text(&notices[0]).contains("this is a git worktree"),
        "{notices:?}"
    );
    sandbox.end_and_check();
}

#[test]
fn the_whole_repository_is_writable_where_a_person_wants_it() {
    if !host::qualifies() {
        return;
    }
    let sandbox = Sandbox::start_at(place("project", "[worktrees]\ncommon = \"rw\"\n"));
    let (repo, other) = paths(&sandbox.place);
    let mut client = sandbox.client();
    let log = client.output(&format!(
        "{IDENTITY}; git commit -q --allow-empty -m inside && git branch gone && git branch -q -d gone 2>/dev/null && git log -1 --format=%s"
    ));
    assert_eq!(log, "inside\n");
    for file in ["config", "hooks/pre-commit", "worktrees/other/HEAD"] {
        let path = repo.join(".git").join(file);
        let result = client.shell(&format!("echo x >>'{}'", path.display()));
        assert_eq!(result["code"], 1, "{file}: {result}");
        let output = text(&result["output"]);
        assert!(output.contains("Read-only file system"), "{output}");
    }
    assert_other_survives(&mut client, &other);
    let planted = client.shell(&format!("echo . >'{}/.git/commondir'", repo.display()));
    let told = crate::notices(&planted);
    assert!(
        told.contains("commondir\", which git on the host"),
        "{told}"
    );
    std::fs::remove_file(repo.join(".git/commondir")).unwrap();
    sandbox.end_and_check();
}

#[test]
fn a_git_file_alone_mounts_nothing() {
    if !host::qualifies() {
        return;
    }
    for number in 0..3 {
        let place = place("project", "");
        let (repo, other) = paths(&place);
        let pointer = match number {
            0 => format!("gitdir: {}/.git/worktrees/other\n", repo.display()),
            1 => format!("gitdir: {}\n", other.display()),
            _ => "gitdir: /etc\n".to_owned(),
        };
        std::fs::write(place.workspace.join(".git"), &pointer).unwrap();
        let sandbox = Sandbox::start_at(place);
        let mut client = sandbox.client();
        let mounts = listed(&mut client, "mounts");
        let is_for_git = |mount: &Value| mount["source"] == "worktree";
        assert!(!mounts.iter().any(is_for_git), "{pointer}: {mounts:?}");
        let notices = listed(&mut client, "notices");
        let notice = text(&notices[0]);
        assert!(notice.starts_with("git does not work here"), "{notice}");
        assert_ne!(client.shell("git status")["code"], 0);
        sandbox.end_and_check();
    }
}

#[test]
fn worktrees_elsewhere_survive_what_git_does_inside() {
    if !host::qualifies() {
        return;
    }
    let sandbox = Sandbox::start_at(place("repo", ""));
    let (_, other) = paths(&sandbox.place);
    let mut client = sandbox.client();
    assert_eq!(
        client.output("git gc -q --prune=now && git worktree prune -v 2>&1"),
        ""
    );
    assert_other_survives(&mut client, &other);
    // Of the other worktree nothing else is there.
    let found = client.output(&format!("ls -A '{}'", other.display()));
    assert_eq!(found, ".git\n");
    sandbox.end_and_check();
}
