//! Files of a new worktree: written by git where no agent can swap a
//! directory, then put where they belong in one step.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, RenameFlags};
use rustix::io::Errno;
use rustix::process::Pid;

use super::copy;
use super::tree::Tree;
use crate::gitdir::Directory;
use crate::sys::lock;

const PREFIX: &str = "worktree-";
/// Below a directory of mode 0700, to have its own mode from the beginning.
const FILES: &str = "files";
const MAX_NUMBER: u32 = 9999;

/// It is gone when this is dropped, except for what was put in its place.
#[derive(Debug)]
pub(super) struct Staging {
    dir: Directory,
    tree: Tree,
    files: Directory,
}

impl Staging {
    /// In umwelt's own data directory, which no sandbox sees.
    pub(super) fn create(data: &Path) -> Result<Staging, String> {
        let real = std::fs::canonicalize(data).map_err(|error| format!("{data:?}: {error}"))?;
        let data = Directory::open(&real)?;
        sweep(&data);
        let failed = |error: io::Error| format!("{real:?}: {error}");
        let name = create_own(&data).map_err(failed)?;
        let dir = data.dir(&name)?;
        let tree = Tree::of(&data, name.as_ref(), &dir).map_err(failed)?;
        let made = lock::try_exclusive(&dir)
            .and_then(|_| dir.create_dir(FILES))
            .map_err(failed)
            .and_then(|()| dir.dir(FILES));
        match made {
            Ok(files) => Ok(Staging { dir, tree, files }),
            Err(reason) => {
                drop(tree.remove());
                Err(reason)
            }
        }
    }

    /// Where they are written.
    pub(super) fn files(&self) -> &Directory {
        &self.files
    }

    /// What is there already is not replaced, and no link is followed. What is
    /// returned is what was put there, whatever has its name by then.
    pub(super) fn put(&self, above: &Directory, name: &OsStr) -> io::Result<OwnedFd> {
        let flags = RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(&self.dir, FILES, above, name, flags) {
            Ok(()) => self.files.as_fd().try_clone_to_owned(),
            // Another file system, or one that knows no such renaming.
            Err(Errno::XDEV | Errno::INVAL) => copy::tree(&self.files, above, name),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Err(error) = self.tree.remove() {
            log::warn!("cannot remove {:?}: {error}", self.dir.path());
        }
    }
}

fn create_own(data: &Directory) -> io::Result<String> {
    let pid = std::process::id();
    for number in 0..MAX_NUMBER {
        let name = format!("{PREFIX}{pid}-{number}");
        match rustix::fs::mkdirat(data, &name, Mode::RWXU) {
            Ok(()) => return Ok(name),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Removes what killed calls have left.
fn sweep(data: &Directory) {
    for name in data.names().into_iter().flatten() {
        if !name.to_str().is_some_and(is_left) {
            continue;
        }
        let Ok(dir) = data.dir(&name) else { continue };
        // A process in another container may have the number that is free here.
        if !lock::try_exclusive(&dir).unwrap_or(false) {
            continue;
        }
        let removed = Tree::of(data, &name, &dir).and_then(|tree| tree.remove());
        if let Err(error) = removed {
            log::warn!("cannot remove {:?}: {error}", dir.path());
        }
    }
}

fn is_left(name: &str) -> bool {
    let numbers = name
        .strip_prefix(PREFIX)
        .and_then(|rest| rest.split_once('-'));
    let pid = numbers
        .filter(|(_, number)| number.parse::<u32>().is_ok())
        .and_then(|(pid, _)| Pid::from_raw(pid.parse().ok().filter(|pid| *pid > 0)?));
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;
    use std::process::Command;

    fn place() -> (tempfile::TempDir, PathBuf, Directory) {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        std::fs::create_dir(base.join("data")).unwrap();
        std::fs::create_dir(base.join("above")).unwrap();
        let above = Directory::open(&base.join("above")).unwrap();
        (temp, base, above)
    }

    fn count(dir: PathBuf) -> usize {
        dir.read_dir().unwrap().count()
    }

    #[test]
    fn files_are_put_in_their_place_and_nothing_is_left() {
        let (_temp, base, above) = place();
        let staging = Staging::create(&base.join("data")).unwrap();
        let other = Staging::create(&base.join("data")).unwrap();
        for entry in base.join("data").read_dir().unwrap() {
            let mode = entry.unwrap().metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
        }
        std::fs::write(staging.files().path().join("file"), "x").unwrap();
        let held = staging.put(&above, "w1".as_ref()).unwrap();
        std::fs::rename(base.join("above/w1"), base.join("above/aside")).unwrap();
        assert!(rustix::fs::statat(&held, "file", rustix::fs::AtFlags::empty()).is_ok());
        assert_eq!(count(base.join("data")), 2);
        drop((staging, other));
        assert_eq!(count(base.join("data")), 0);
        assert!(base.join("above/aside/file").exists());
    }

    #[test]
    fn what_is_in_the_place_is_neither_replaced_nor_followed() {
        let (_temp, base, above) = place();
        std::fs::create_dir(base.join("victim")).unwrap();
        std::fs::create_dir(base.join("above/dir")).unwrap();
        std::fs::write(base.join("above/file"), "kept").unwrap();
        symlink(base.join("victim"), base.join("above/link")).unwrap();
        symlink(base.join("none"), base.join("above/dangling")).unwrap();
        let staging = Staging::create(&base.join("data")).unwrap();
        std::fs::write(staging.files().path().join("file"), "x").unwrap();
        for name in ["dir", "file", "link", "dangling"] {
            let error = staging.put(&above, name.as_ref()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{name}");
        }
        assert_eq!(std::fs::read(base.join("above/file")).unwrap(), b"kept");
        assert_eq!(
            count(base.join("victim")) + count(base.join("above/dir")),
            0
        );
        assert!(!base.join("none").exists());
    }

    #[test]
    fn only_what_killed_calls_have_left_is_swept() {
        let (_temp, base, _above) = place();
        let data = base.join("data");
        let mut child = Command::new("true").spawn().unwrap();
        let ended = child.id();
        child.wait().unwrap();
        let left = format!("worktree-{ended}-0");
        let held = format!("worktree-{ended}-1");
        let alive = format!("worktree-{}-7", std::process::id());
        let kept = [
            held.as_str(),
            &alive,
            "worktree-0-1",
            "worktree-x-1",
            "journal",
        ];
        for name in kept.iter().chain([&left.as_str()]) {
            std::fs::create_dir_all(data.join(name).join("files/a")).unwrap();
        }
        let of_another = Directory::open(&data.join(&held)).unwrap();
        assert!(lock::try_exclusive(&of_another).unwrap());
        drop(Staging::create(&data).unwrap());
        assert!(!data.join(left).exists());
        for name in kept {
            assert!(data.join(name).join("files/a").exists(), "{name}");
        }
    }
}
