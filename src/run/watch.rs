//! Files of the workspace that programs on the host execute or obey -> what
//! stat(2) says of them. Nothing is opened but directories, nothing is read,
//! no link is followed, and there is a bound to all of it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RawMode, ResolveFlags, Stat};

/// The file that says what the project asks of umwelt.
pub(crate) use crate::trust::FILE as WORKSPACE_FILE;

const AGENTS: &str = "agents";

/// Single files, with who obeys them. A `Makefile` or a `package.json` is not
/// among them: those run when a person runs them, and change all the time.
/// `.gitattributes` names filters, but only configuration defines them.
const FILES: [(&str, &str); 17] = [
    (WORKSPACE_FILE, "umwelt"),
    (".envrc", "direnv"),
    ("mise.toml", "mise"),
    (".mise.toml", "mise"),
    (".mcp.json", AGENTS),
    ("opencode.json", "opencode"),
    ("opencode.jsonc", "opencode"),
    ("AGENTS.md", AGENTS),
    ("CLAUDE.md", AGENTS),
    ("CLAUDE.local.md", AGENTS),
    ("GEMINI.md", AGENTS),
    (".cursorrules", AGENTS),
    (".devcontainer.json", "editors"),
    (".pre-commit-config.yaml", "pre-commit"),
    ("lefthook.yml", "lefthook"),
    (".nvim.lua", "editors"),
    (".dir-locals.el", "editors"),
];

/// Single files in directories that hold other things too.
const FILES_BELOW: [(&str, &str, &[&str]); 3] = [
    (
        ".vscode",
        "editors",
        &["tasks.json", "settings.json", "launch.json", "mcp.json"],
    ),
    (".zed", "editors", &["tasks.json", "settings.json"]),
    (".github", AGENTS, &["copilot-instructions.md"]),
];

/// Whole directories, down to so many levels of files.
const TREES: [(&str, &str, u32); 8] = [
    (".claude", "Claude Code", 3),
    (".opencode", "opencode", 3),
    (".cursor", "Cursor", 3),
    (".codex", "Codex", 3),
    (".gemini", "Gemini", 3),
    (".devcontainer", "editors", 2),
    (".husky", "git", 2),
    (".githooks", "git", 2),
];

/// Directories in these trees with whole projects below them.
const SKIPPED: [&str; 2] = ["node_modules", "worktrees"];

/// Files of a git directory by which git finds programs to run. A `commondir`
/// has it read its configuration elsewhere.
const GIT_FILES: [&str; 3] = ["config", "config.worktree", "commondir"];

const GIT: &str = "git";
/// Most names that are read of one directory, and most that are looked at in
/// one tree, so that none uses up what another one needs. Where there are more,
/// that is told.
const MAX_NAMES: usize = 256;
const MAX_STAMPS: usize = 2048;
const MAX_DIRECTORIES: usize = 256;
/// Git directories of submodules lie below each other.
const MODULES_DEPTH: u32 = 4;

/// What stat(2) says. Of these only the time of the last status change cannot
/// be set from inside; the others make its granularity matter less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    mode: RawMode,
    device: u64,
    inode: u64,
    size: i64,
    modified: (i64, i64),
    /// Seconds and nanoseconds since the epoch.
    changed: (i64, i64),
    /// Only what it is counts, not when it changed: its entries are looked at.
    is_listed: bool,
}

impl Stamp {
    fn new(stat: &Stat) -> Stamp {
        Stamp {
            mode: stat.st_mode,
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size,
            modified: (stat.st_mtime, nanoseconds(stat.st_mtime_nsec)),
            changed: (stat.st_ctime, nanoseconds(stat.st_ctime_nsec)),
            is_listed: false,
        }
    }

    fn listed(stat: &Stat) -> Stamp {
        Stamp {
            size: 0,
            modified: (0, 0),
            changed: (0, 0),
            is_listed: true,
            ..Stamp::new(stat)
        }
    }

    pub(crate) fn is_listed_directory(&self) -> bool {
        self.is_listed
    }

    pub(crate) fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    /// When it was changed last; not known of a directory that is listed.
    pub(crate) fn changed_at(&self) -> Option<SystemTime> {
        let seconds = Duration::from_secs(u64::try_from(self.changed.0).ok()?);
        let rest = Duration::from_nanos(u64::try_from(self.changed.1).ok()?);
        (!self.is_listed).then(|| UNIX_EPOCH + seconds + rest)
    }
}

/// Signed on some targets, unsigned on others.
fn nanoseconds(value: impl TryInto<i64>) -> i64 {
    value.try_into().unwrap_or_default()
}

/// Something watched that is there: its stamp, and who obeys it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) stamp: Stamp,
    pub(crate) reader: &'static str,
    /// There is more in it than is looked at.
    pub(crate) is_full: bool,
}

/// By path: relative to the workspace, or absolute for what lies elsewhere.
pub(crate) type Snapshot = BTreeMap<PathBuf, Seen>;

/// Where to look.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The workspace itself, whatever is put in its place later.
    workspace: Option<OwnedFd>,
    /// Git directories beside `.git`, of a workspace that is a worktree.
    git_dirs: Vec<PathBuf>,
}

impl Watch {
    pub(crate) fn new(workspace: &Path, git_dirs: Vec<PathBuf>) -> Watch {
        let opened = open_directory(rustix::fs::CWD, workspace.as_os_str());
        if opened.is_none() {
            log::warn!("changes to files in {workspace:?} that the host obeys are not reported");
        }
        Watch {
            workspace: opened,
            git_dirs,
        }
    }

    /// When the directory of a path of the workspace was changed last: names in
    /// it have come and gone until then. Not known where a link lies on the way.
    pub(crate) fn directory_changed_at(&self, path: &Path) -> Option<SystemTime> {
        let parent = path.parent().filter(|_| path.is_relative())?;
        let parent = match parent.as_os_str().is_empty() {
            true => Path::new("."),
            false => parent,
        };
        let opened = rustix::fs::openat2(
            self.workspace.as_ref()?,
            parent,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH,
        );
        let stat = rustix::fs::fstat(opened.ok()?).ok()?;
        Stamp::new(&stat).changed_at()
    }

    pub(crate) fn look(&self) -> Snapshot {
        let mut looking = Looking::default();
        let Some(root) = self.workspace.as_ref().map(AsFd::as_fd) else {
            return looking.found;
        };
        let top = Path::new("");
        looking.begin(Path::new(".git"));
        looking.git_dir(root, top, OsStr::new(".git"), MODULES_DEPTH);
        for path in &self.git_dirs {
            if let (Some(parent), Some(name)) = (path.parent(), path.file_name())
                && let Some(dir) = open_without_links(parent)
            {
                looking.begin(path);
                looking.git_dir(dir.as_fd(), parent, name, MODULES_DEPTH);
            }
        }
        looking.begin(top);
        for (name, reader) in FILES {
            looking.file(root, top, OsStr::new(name), reader);
        }
        for (name, reader, files) in FILES_BELOW {
            let Some(dir) = looking.directory(root, top, OsStr::new(name), reader) else {
                continue;
            };
            for file in files {
                looking.file(dir.as_fd(), Path::new(name), OsStr::new(file), reader);
            }
        }
        for (name, reader, depth) in TREES {
            looking.begin(Path::new(name));
            looking.tree(root, top, OsStr::new(name), (reader, depth));
        }
        looking.found
    }
}

#[derive(Debug, Default)]
struct Looking {
    found: Snapshot,
    /// The tree that is looked at, and what was found in it so far.
    tree: PathBuf,
    stamps: usize,
    directories: usize,
}

impl Looking {
    fn begin(&mut self, tree: &Path) {
        self.tree = tree.to_owned();
        (self.stamps, self.directories) = (0, 0);
    }

    /// Not all of what is in `path` is looked at.
    fn set_full(&mut self, path: &Path) {
        if let Some(seen) = self.found.get_mut(path) {
            seen.is_full = true;
        }
    }

    fn stat(&self, dir: BorrowedFd<'_>, name: &OsStr) -> Option<Stat> {
        // What cannot be looked at is, for the host's programs, not there.
        rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    fn insert(&mut self, path: PathBuf, stamp: Stamp, reader: &'static str) {
        self.stamps += 1;
        if self.stamps > MAX_STAMPS {
            return self.set_full(&self.tree.clone());
        }
        let is_full = false;
        let seen = Seen {
            stamp,
            reader,
            is_full,
        };
        self.found.insert(path, seen);
    }

    fn open(&mut self, dir: BorrowedFd<'_>, name: &OsStr) -> Option<OwnedFd> {
        self.directories += 1;
        if self.directories > MAX_DIRECTORIES {
            self.set_full(&self.tree.clone());
            return None;
        }
        open_directory(dir, name)
    }

    /// A directory with too many names: they come and go unseen, but change
    /// the directory itself.
    fn flood(&mut self, dir: BorrowedFd<'_>, parent: &Path, name: &OsStr, reader: &'static str) {
        self.file(dir, parent, name, reader);
        self.set_full(&parent.join(name));
    }

    fn file(&mut self, dir: BorrowedFd<'_>, parent: &Path, name: &OsStr, reader: &'static str) {
        if let Some(stat) = self.stat(dir, name) {
            self.insert(parent.join(name), Stamp::new(&stat), reader);
        }
    }

    /// Opens a directory to look into. Anything else in its place is looked at
    /// as a file is: a link, for one, would lead elsewhere.
    fn directory(
        &mut self,
        dir: BorrowedFd<'_>,
        parent: &Path,
        name: &OsStr,
        reader: &'static str,
    ) -> Option<OwnedFd> {
        let stat = self.stat(dir, name)?;
        let path = parent.join(name);
        let opened = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => self.open(dir, name),
            _ => None,
        };
        let stamp = match opened {
            Some(_) => Stamp::listed(&stat),
            None => Stamp::new(&stat),
        };
        self.insert(path, stamp, reader);
        opened
    }

    fn tree(
        &mut self,
        dir: BorrowedFd<'_>,
        parent: &Path,
        name: &OsStr,
        (reader, depth): (&'static str, u32),
    ) {
        if depth == 0 || SKIPPED.iter().any(|skipped| name == *skipped) {
            return self.file(dir, parent, name, reader);
        }
        let Some(opened) = self.directory(dir, parent, name, reader) else {
            return;
        };
        let path = parent.join(name);
        match names_in(&opened) {
            Some(names) => {
                for name in names {
                    self.tree(opened.as_fd(), &path, &name, (reader, depth - 1));
                }
            }
            None => self.flood(dir, parent, name, reader),
        }
    }

    /// A git directory, and those of the submodules in it.
    fn git_dir(&mut self, dir: BorrowedFd<'_>, parent: &Path, name: &OsStr, depth: u32) {
        let Some(opened) = self.directory(dir, parent, name, GIT) else {
            return;
        };
        let path = parent.join(name);
        for file in GIT_FILES {
            self.file(opened.as_fd(), &path, OsStr::new(file), GIT);
        }
        self.hooks(opened.as_fd(), &path);
        for (name, is_worktrees) in [("worktrees", true), ("modules", false)] {
            let name = OsStr::new(name);
            let Some(below) = self.directory(opened.as_fd(), &path, name, GIT) else {
                continue;
            };
            let place = path.join(name);
            match names_in(&below) {
                None => self.flood(opened.as_fd(), &path, name, GIT),
                Some(names) if is_worktrees => {
                    for name in names {
                        self.worktree(below.as_fd(), &place, &name);
                    }
                }
                Some(names) => {
                    for name in names {
                        self.module(below.as_fd(), &place, &name, depth);
                    }
                }
            }
        }
    }

    /// Hooks, without the samples that git does not run.
    fn hooks(&mut self, git_dir: BorrowedFd<'_>, path: &Path) {
        let name = OsStr::new("hooks");
        let Some(hooks) = self.directory(git_dir, path, name, GIT) else {
            return;
        };
        let place = path.join(name);
        let Some(names) = names_in(&hooks) else {
            return self.flood(git_dir, path, name, GIT);
        };
        for name in names {
            if !name.as_bytes().ends_with(b".sample") {
                self.file(hooks.as_fd(), &place, &name, GIT);
            }
        }
    }

    fn worktree(&mut self, dir: BorrowedFd<'_>, parent: &Path, name: &OsStr) {
        if let Some(opened) = self.directory(dir, parent, name, GIT) {
            let path = parent.join(name);
            for file in ["config.worktree", "commondir", "gitdir"] {
                self.file(opened.as_fd(), &path, OsStr::new(file), GIT);
            }
        }
    }

    /// The git directory of a submodule, or a directory above some: the name
    /// of a submodule may have slashes.
    fn module(&mut self, dir: BorrowedFd<'_>, parent: &Path, name: &OsStr, depth: u32) {
        if depth == 0 {
            return self.file(dir, parent, name, GIT);
        }
        let Some(opened) = self.open(dir, name) else {
            return self.file(dir, parent, name, GIT);
        };
        if self.stat(opened.as_fd(), OsStr::new("HEAD")).is_some() {
            return self.git_dir(dir, parent, name, depth - 1);
        }
        let path = parent.join(name);
        match names_in(&opened) {
            None => self.flood(dir, parent, name, GIT),
            Some(names) => {
                for name in names {
                    self.module(opened.as_fd(), &path, &name, depth - 1);
                }
            }
        }
    }
}

/// An absolute path, on which the agent may have put links.
fn open_without_links(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), resolve).ok()
}

fn open_directory(dir: BorrowedFd<'_>, name: &OsStr) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty()).ok()
}

/// What is in a directory; nothing where there is too much of it.
fn names_in(dir: &OwnedFd) -> Option<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir).ok()? {
        let entry = entry.ok()?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        if names.len() == MAX_NAMES {
            return None;
        }
        names.push(name.to_owned());
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn place(files: &[&str]) -> (tempfile::TempDir, Watch) {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), files);
        let watch = Watch::new(dir.path(), Vec::new());
        (dir, watch)
    }

    fn write(dir: &Path, files: &[&str]) {
        for file in files {
            let path = dir.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, file).unwrap();
        }
    }

    fn names(snapshot: &Snapshot) -> Vec<&str> {
        let files = snapshot.iter().filter(|(_, seen)| !seen.stamp.is_listed);
        files.map(|(path, _)| path.to_str().unwrap()).collect()
    }

    #[test]
    fn what_the_host_obeys_is_seen_and_nothing_else() {
        let seen = [
            ".claude/hooks/x.sh",
            ".claude/settings.json",
            ".envrc",
            ".git/config",
            ".git/hooks/pre-commit",
            ".git/modules/a/b/config",
            ".git/modules/a/b/hooks/post-checkout",
            ".git/worktrees/w/config.worktree",
            ".umwelt.toml",
            ".vscode/tasks.json",
        ];
        let (dir, watch) = place(&seen);
        write(
            dir.path(),
            &[
                "src/main.rs",
                "Makefile",
                ".git/HEAD",
                ".git/index",
                ".git/hooks/pre-commit.sample",
                ".git/modules/a/b/HEAD",
                ".git/worktrees/w/HEAD",
                ".vscode/extensions.json",
                "sub/.envrc",
            ],
        );
        assert_eq!(names(&watch.look()), seen);
    }

    #[test]
    fn links_are_looked_at_and_not_followed() {
        let (dir, watch) = place(&["elsewhere/tasks.json", "elsewhere/config"]);
        symlink("elsewhere", dir.path().join(".vscode")).unwrap();
        symlink("elsewhere", dir.path().join(".git")).unwrap();
        symlink("elsewhere/config", dir.path().join(".envrc")).unwrap();
        let found = watch.look();
        assert_eq!(names(&found), [".envrc", ".git", ".vscode"]);
        let is_link = |seen: &Seen| seen.stamp.file_type() == FileType::Symlink;
        assert!(found.values().all(is_link));
    }

    #[test]
    fn fifos_are_not_opened() {
        let (dir, watch) = place(&[]);
        for name in [".git", ".envrc", ".claude"] {
            let mode = Mode::from_raw_mode(0o600);
            rustix::fs::mknodat(
                rustix::fs::CWD,
                dir.path().join(name),
                FileType::Fifo,
                mode,
                0,
            )
            .unwrap();
        }
        assert_eq!(names(&watch.look()), [".claude", ".envrc", ".git"]);
    }

    #[test]
    fn a_flood_of_names_is_one_entry_that_changes_with_each_of_them() {
        let (dir, watch) = place(&[".claude/a"]);
        for number in 0..MAX_NAMES {
            std::fs::write(dir.path().join(format!(".claude/{number}")), "").unwrap();
        }
        let before = watch.look();
        assert_eq!(names(&before), [".claude"]);
        assert!(before[Path::new(".claude")].is_full);
        // Another name in place of one: as many as before. The clock of files
        // goes in steps, so it may take a few of them.
        let (a, hook) = (
            dir.path().join(".claude/a"),
            dir.path().join(".claude/hook"),
        );
        let changed = (0..1000).any(|_| {
            std::fs::rename(&a, &hook).unwrap();
            std::fs::rename(&hook, &a).unwrap();
            std::thread::sleep(Duration::from_millis(1));
            watch.look() != before
        });
        assert!(changed);
    }

    #[test]
    fn the_number_of_stamps_and_directories_is_bounded() {
        let (dir, watch) = place(&[]);
        for number in 0..MAX_DIRECTORIES + 10 {
            let (a, b) = (number / 200, number % 200);
            write(dir.path(), &[&format!(".git/modules/m{a}/m{b}/HEAD")]);
        }
        write(dir.path(), &[".git/config", ".git/hooks/pre-commit"]);
        let found = watch.look();
        let listed = found.values().filter(|seen| seen.stamp.is_listed);
        // Each of a submodule is opened twice.
        let count = listed.count();
        assert!((100..=MAX_DIRECTORIES).contains(&count), "{count}");
        assert!(found[Path::new(".git")].is_full);
        for name in [".git/config", ".git/hooks/pre-commit"] {
            assert!(found.contains_key(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn full_tree_takes_nothing_from_another() {
        let (dir, watch) = place(&[".git/hooks/pre-commit", ".vscode/tasks.json"]);
        for number in 0..MAX_DIRECTORIES {
            write(dir.path(), &[&format!(".claude/{number}/a")]);
        }
        let found = watch.look();
        for name in [".git/hooks/pre-commit", ".vscode/tasks.json"] {
            assert!(found.contains_key(Path::new(name)), "{name}");
        }
        let full: Vec<_> = found.iter().filter(|(_, seen)| seen.is_full).collect();
        assert_eq!(full.len(), 1, "{full:?}");
        assert_eq!(full[0].0, Path::new(".claude"));
    }

    #[test]
    fn git_directories_elsewhere_are_seen_by_their_whole_path() {
        let dir = tempfile::tempdir().unwrap();
        let files = ["repo/config.worktree", "repo/modules/config", "w/.git"];
        write(dir.path(), &files);
        let repo = dir.path().canonicalize().unwrap().join("repo");
        let found = Watch::new(&dir.path().join("w"), vec![repo.clone()]).look();
        assert!(found.contains_key(&repo.join("config.worktree")));
        assert!(found.contains_key(Path::new(".git")));
        symlink("repo", dir.path().join("link")).unwrap();
        let behind = dir.path().join("link/modules");
        let found = Watch::new(&dir.path().join("w"), vec![behind]).look();
        assert_eq!(names(&found), [".git"]);
    }
}
