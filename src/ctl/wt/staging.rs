//! Files of a new worktree: written by git where no agent can swap a
//! directory, then put where they belong in one step.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::copy;
use super::temporary::Temporary;
use crate::gitdir::Directory;

const PREFIX: &str = "worktree-";
/// Below a directory of mode 0700, to have its own mode from the beginning.
const FILES: &str = "files";

/// It is gone when this is dropped, except for what was put in its place.
#[derive(Debug)]
pub(super) struct Staging {
    own: Temporary,
    files: Directory,
}

impl Staging {
    /// In umwelt's own data directory, which no sandbox sees.
    pub(super) fn create(data: &Path) -> Result<Staging, String> {
        let own = Temporary::create(data, PREFIX)?;
        let made = own.dir().create_dir(FILES);
        made.map_err(|error| format!("{:?}: {error}", own.dir().path()))?;
        let files = own.dir().dir(FILES)?;
        Ok(Staging { own, files })
    }

    /// Where they are written.
    pub(super) fn files(&self) -> &Directory {
        &self.files
    }

    /// What is there already is not replaced, and no link is followed. What is
    /// returned is what was put there, whatever has its name by then.
    pub(super) fn put(&self, above: &Directory, name: &OsStr) -> io::Result<OwnedFd> {
        let flags = RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(self.own.dir(), FILES, above, name, flags) {
            Ok(()) => self.files.as_fd().try_clone_to_owned(),
            // Another file system, or one that knows no such renaming.
            Err(Errno::XDEV | Errno::INVAL) => copy::tree(&self.files, above, name),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

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
}
