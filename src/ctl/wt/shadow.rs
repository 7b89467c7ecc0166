//! A repository of our own, in front of another one: its configuration is
//! ours, its objects and refs lead to the other's. git works in it and cannot
//! come across what the other configures, also not when that is changed at
//! the right moment.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use rustix::fs::{Dir, OFlags};
use rustix::io::Errno;

use super::git::{self, Repository, args};
use super::temporary::Temporary;
use super::tree::DIRECTORY;
use super::{Site, WorktreeError};
use crate::gitdir::Directory;
use crate::subprocess::memory_file;
use crate::sys::open;

/// What git finds in the other repository: these directories, and copies of
/// these files. All else, `info/attributes` among it, stays out of sight.
const BORROWED: [&str; 2] = ["objects", "refs"];
const COPIED: [&str; 2] = ["packed-refs", "shallow"];

const PREFIX: &str = "umwelt-wt-";
const MAX_CONFIG: u64 = 1 << 20;
/// An index of some million files. The copy takes memory.
const MAX_COPY: u64 = 256 << 20;

/// It is gone when this is dropped.
pub(super) struct Shadow {
    /// In the runtime directory.
    _own: Temporary,
    dir: PathBuf,
    /// What its links lead to. By their paths git could be led elsewhere while
    /// it works.
    _held: Vec<Directory>,
}

impl Shadow {
    pub(super) fn create(site: &Site, repository: &Repository) -> Result<Shadow, WorktreeError> {
        let refused = |reason: String| WorktreeError::NotARepository {
            path: repository.top.clone(),
            reason,
        };
        let common = &repository.common;
        let held = BORROWED.map(|name| common.dir(name));
        let held: Result<Vec<Directory>, String> = held.into_iter().collect();
        let held = held.map_err(refused)?;
        let config = config_for(repository)?;
        let runtime = &site.place.dirs.runtime;
        let failed = |reason: String| WorktreeError::Place {
            path: runtime.clone(),
            reason,
        };
        let own = Temporary::create(runtime, PREFIX).map_err(failed)?;
        let shadow = Shadow {
            dir: own.dir().path().to_owned(),
            _own: own,
            _held: held,
        };
        let filled = shadow.fill(&config);
        filled.map_err(|error| failed(error.to_string()))?;
        for name in COPIED {
            shadow.copy(common, name).map_err(refused)?;
        }
        Ok(shadow)
    }

    fn fill(&self, config: &str) -> io::Result<()> {
        for (name, held) in BORROWED.iter().zip(&self._held) {
            // Of this process: git has other descriptors.
            let fd = held.as_fd().as_raw_fd();
            let target = format!("/proc/{}/fd/{fd}", std::process::id());
            symlink(target, self.dir.join(name))?;
        }
        std::fs::write(self.dir.join("config"), config)?;
        self.set_head(None)
    }

    fn copy(&self, common: &Directory, name: &str) -> Result<(), String> {
        if !common.has(name)? {
            return Ok(());
        }
        let from = common.file(name)?;
        File::create_new(self.dir.join(name))
            .and_then(|to| copy_with_time(&from, &to, MAX_COPY))
            .map_err(|error| format!("{:?}: {error}", common.path().join(name)))
    }

    fn set_head(&self, commit: Option<&str>) -> io::Result<()> {
        let head = commit.unwrap_or("ref: refs/heads/umwelt/none");
        std::fs::write(self.dir.join("HEAD"), format!("{head}\n"))
    }

    pub(super) fn call(&self, args: &[&OsStr]) -> Result<String, WorktreeError> {
        let mut command = git::command(args);
        command.env("GIT_DIR", &self.dir);
        git::finish(command)
    }

    /// The files in `top`, as if `commit` were checked out there. git keeps
    /// its index here: by its path in the repository it could be led anywhere.
    pub(super) fn files<'a>(
        &'a self,
        top: BorrowedFd<'a>,
        commit: Option<&str>,
    ) -> Result<Files<'a>, WorktreeError> {
        self.set_head(commit)
            .map_err(|error| WorktreeError::Place {
                path: self.dir.clone(),
                reason: error.to_string(),
            })?;
        Ok(Files { shadow: self, top })
    }

    fn index(&self) -> PathBuf {
        self.dir.join("index")
    }

    /// Takes over the index of a worktree, if it has one.
    pub(super) fn load_index(&self, admin: &Directory) -> Result<(), String> {
        self.copy(admin, "index")
    }

    /// Gives it to a worktree that has none.
    pub(super) fn save_index(&self, admin: &Directory) -> io::Result<()> {
        let to = admin.create("index")?;
        copy_with_time(&File::open(self.index())?, &to, u64::MAX)
    }
}

/// git takes a file that is no younger than the index for one that may have
/// changed since, and reads it. A younger index would hide such a change.
fn copy_with_time(from: &File, mut to: &File, most: u64) -> io::Result<()> {
    let copied = io::copy(&mut from.take(most), &mut to)?;
    // It may grow while it is copied.
    if copied == most {
        let reason = format!("it is {most} bytes long or longer");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    to.set_modified(from.metadata()?.modified()?)
}

/// The hash that names objects is all that has to be known of the other's.
fn config_for(repository: &Repository) -> Result<String, WorktreeError> {
    let refused = |reason: String| WorktreeError::NotARepository {
        path: repository.top.clone(),
        reason,
    };
    // From a copy, which includes no other file.
    let text = repository.common.read("config", MAX_CONFIG);
    let text = text.map_err(refused)?;
    let value = |key: &str| -> Option<String> {
        let args = args!["config", "--file", "-", "--no-includes", "--get", key];
        let mut command = git::command(args);
        command.stdin(memory_file(&text).ok()?);
        git::finish(command).ok()
    };
    if value("extensions.refstorage").is_some_and(|storage| storage != "files") {
        return Err(refused("its refs are not stored in files".to_owned()));
    }
    let settings = "[core]\n\trepositoryformatversion = 1\n\tbare = false\n\tlogAllRefUpdates = false\n[extensions]\n";
    match value("extensions.objectformat").as_deref() {
        None | Some("sha1") => Ok(settings.to_owned()),
        Some("sha256") => Ok(format!("{settings}\tobjectFormat = sha256\n")),
        Some(other) => Err(refused(format!("its object format is {other:?}"))),
    }
}

/// The files of a worktree.
pub(super) struct Files<'a> {
    shadow: &'a Shadow,
    top: BorrowedFd<'a>,
}

impl Files<'_> {
    /// Writes all files of the commit. Not where an agent can move directories:
    /// git would write through a link that it puts in the place of one.
    pub(super) fn check_out(&self) -> Result<(), WorktreeError> {
        let reset = args!["reset", "--hard", "--quiet", "--no-recurse-submodules"];
        self.call(reset).map(drop)
    }

    /// What is not in the commit, as `git status` has it.
    pub(super) fn changes(&self) -> Result<Vec<String>, WorktreeError> {
        let status = self.call(args![
            "status",
            "--porcelain=v1",
            "-z",
            "--no-renames",
            "--untracked-files=all",
            // In a submodule its own configuration would be obeyed.
            "--ignore-submodules=all",
        ])?;
        let entries = status.split('\0').filter(|entry| !entry.is_empty());
        let mut changes: Vec<String> = entries.map(str::to_owned).collect();
        changes.extend(self.hidden()?);
        Ok(changes)
    }

    /// Files that the index has git not look at (`--assume-unchanged`,
    /// `--skip-worktree`), which may be changed. The index is the agent's, too.
    fn hidden(&self) -> Result<Vec<String>, WorktreeError> {
        let files = self.call(args!["ls-files", "-v", "-z"])?;
        let is_there = |path: &str| match open::beneath(self.top, path, OFlags::PATH) {
            Ok(_) => true,
            Err(error) => error != Errno::NOENT,
        };
        let is_hidden =
            |entry: &&str| entry.starts_with(|tag: char| tag == 'S' || tag.is_ascii_lowercase());
        Ok(files
            .split('\0')
            .filter(is_hidden)
            .filter(|entry| {
                entry
                    .split_once(' ')
                    .is_some_and(|(_, path)| is_there(path))
            })
            .map(str::to_owned)
            .collect())
    }

    /// Submodules with something in their directory.
    pub(super) fn submodules(&self) -> Result<Vec<String>, WorktreeError> {
        let files = self.call(args!["ls-files", "--stage", "-z"])?;
        let links = files
            .split('\0')
            .filter(|entry| entry.starts_with("160000 "))
            .filter_map(|entry| entry.split_once('\t'));
        let is_full = |path: &str| match open::beneath(self.top, path, DIRECTORY) {
            Ok(dir) => is_full(&dir),
            Err(error) => error != Errno::NOENT,
        };
        Ok(links
            .map(|(_, path)| path.to_owned())
            .filter(|path| is_full(path))
            .collect())
    }

    fn call(&self, args: &[&OsStr]) -> Result<String, WorktreeError> {
        let mut command = git::command(args);
        command
            .current_dir(super::place_of(self.top))
            .env("GIT_DIR", &self.shadow.dir)
            .env("GIT_WORK_TREE", ".")
            .env("GIT_INDEX_FILE", self.shadow.index());
        git::finish(command)
    }
}

/// What cannot be read counts too.
fn is_full(dir: impl AsFd) -> bool {
    let Ok(mut entries) = Dir::read_from(dir) else {
        return true;
    };
    entries.any(|entry| !entry.is_ok_and(|entry| [c".", c".."].contains(&entry.file_name())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FileType, Mode};
    use std::time::{Duration, UNIX_EPOCH};

    fn place() -> (tempfile::TempDir, Shadow, PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        let admin = base.join("worktrees/w1");
        std::fs::create_dir_all(&admin).unwrap();
        let own = Temporary::create(&base, PREFIX).unwrap();
        let shadow = Shadow {
            dir: own.dir().path().to_owned(),
            _own: own,
            _held: Vec::new(),
        };
        (temp, shadow, admin)
    }

    #[test]
    fn a_copy_of_the_index_is_as_old_as_the_index() {
        let (_temp, shadow, admin) = place();
        std::fs::write(admin.join("index"), "x").unwrap();
        let time = UNIX_EPOCH + Duration::new(1_000_000, 123_000_000);
        let file = File::options()
            .write(true)
            .open(admin.join("index"))
            .unwrap();
        file.set_modified(time).unwrap();
        let held = Directory::open(&admin).unwrap();
        shadow.load_index(&held).unwrap();
        let modified = |path: PathBuf| path.metadata().unwrap().modified().unwrap();
        assert_eq!(modified(shadow.index()), time);
        std::fs::remove_file(admin.join("index")).unwrap();
        shadow.save_index(&held).unwrap();
        assert_eq!(modified(admin.join("index")), time);
        assert_eq!(std::fs::read(admin.join("index")).unwrap(), b"x");
    }

    #[test]
    fn an_index_that_is_no_plain_file_or_too_long_is_not_copied() {
        let (_temp, shadow, admin) = place();
        let held = Directory::open(&admin).unwrap();
        shadow.load_index(&held).unwrap();
        assert!(!shadow.index().exists(), "there is none to copy");
        let index = admin.join("index");
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &index, FileType::Fifo, mode, 0).unwrap();
        let error = shadow.load_index(&held).unwrap_err();
        assert!(error.contains("not a regular file"), "{error}");
        std::fs::remove_file(&index).unwrap();
        symlink("/dev/zero", &index).unwrap();
        assert!(shadow.load_index(&held).is_err());
        assert!(!shadow.index().exists());
        std::fs::write(admin.join("long"), "12345").unwrap();
        let (long, copy) = (held.file("long").unwrap(), held.create("copy").unwrap());
        let error = copy_with_time(&long, &copy, 5).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(copy.metadata().unwrap().len(), 5);
    }

    #[test]
    fn the_index_of_what_takes_the_name_is_neither_read_nor_replaced() {
        let (temp, shadow, admin) = place();
        std::fs::write(admin.join("index"), "own").unwrap();
        let held = Directory::open(&admin).unwrap();
        let (aside, other) = (temp.path().join("aside"), temp.path().join("other"));
        std::fs::rename(&admin, &aside).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join("index"), "of another").unwrap();
        symlink(&other, &admin).unwrap();
        shadow.load_index(&held).unwrap();
        assert_eq!(std::fs::read(shadow.index()).unwrap(), b"own");
        assert!(shadow.save_index(&held).is_err(), "it has one");
        std::fs::remove_file(aside.join("index")).unwrap();
        shadow.save_index(&held).unwrap();
        assert_eq!(std::fs::read(aside.join("index")).unwrap(), b"own");
        assert_eq!(std::fs::read(other.join("index")).unwrap(), b"of another");
        // A link that waits in its place.
        std::fs::remove_file(aside.join("index")).unwrap();
        symlink(other.join("index"), aside.join("index")).unwrap();
        assert!(shadow.save_index(&held).is_err());
        assert_eq!(std::fs::read(other.join("index")).unwrap(), b"of another");
    }
}
