//! Files and directories of an installation: made with the mode that is meant,
//! whatever the umask, and replaced as a whole.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::install::InstallError;
use crate::sys::lock;

/// Everything that is read whole is smaller, the program itself included.
const LIMIT: u64 = 1 << 30;
/// Another `umwelt-install` is done, or builds an image.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// The content of a regular file, or `None` where there is nothing.
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>, InstallError> {
    let failed = |source| InstallError::file("read", path, source);
    // Without O_NONBLOCK the open of a FIFO would wait for a writer.
    let flags = i32::try_from((OFlags::NONBLOCK | OFlags::NOCTTY).bits()).unwrap_or_default();
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(failed)?,
    };
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("it is no regular file")));
    }
    let mut bytes = Vec::new();
    file.take(LIMIT).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Some(bytes))
}

/// Puts a file in place, whole or not at all.
pub(super) fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<(), InstallError> {
    let failed = |source| InstallError::file("write", path, source);
    let temporary = temporary(path);
    // One that an earlier run has left, killed half way; the lock is held.
    remove_if_there(&temporary)?;
    let written = write_new(&temporary, bytes, mode)
        .and_then(|()| std::fs::rename(&temporary, path))
        .and_then(|()| sync_parent(path));
    written.map_err(|error| {
        // What went wrong is told already.
        let _gone = std::fs::remove_file(&temporary);
        failed(error)
    })
}

/// Where a file is written before it takes its name.
pub(super) fn temporary(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    path.with_file_name(name)
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let flags = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(flags)
        .open(path)?;
    file.write_all(bytes)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// The permission bits, where the path exists.
pub(super) fn mode_of(path: &Path) -> Option<u32> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    Some(metadata.permissions().mode() & 0o7777)
}

pub(super) fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Makes a directory and its missing parents, with `mode` at most, and tells
/// which ones were made, the outermost first.
pub(super) fn make_dir(path: &Path, mode: u32) -> Result<Vec<PathBuf>, InstallError> {
    let missing = path.ancestors().take_while(|above| !above.exists());
    let mut missing: Vec<PathBuf> = missing.map(Path::to_owned).collect();
    missing.reverse();
    for dir in &missing {
        match std::fs::DirBuilder::new().mode(mode).create(dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => {}
            made => made.map_err(|error| InstallError::file("create directory", dir, error))?,
        }
    }
    if !path.is_dir() {
        let error = io::Error::from(Errno::NOTDIR);
        return Err(InstallError::file("create directory", path, error));
    }
    Ok(missing)
}

/// Whether there was something to remove.
pub(super) fn remove_if_there(path: &Path) -> Result<bool, InstallError> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(InstallError::file("remove", path, error)),
    }
}

/// Removes a directory if nothing is in it.
pub(super) fn remove_dir_if_empty(path: &Path) -> bool {
    std::fs::remove_dir(path).is_ok()
}

/// Held while an installation is changed; its file goes with it.
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    pub(super) fn take(path: &Path) -> Result<Lock, InstallError> {
        let taken = lock::take(path, LOCK_WAIT)
            .map_err(|source| InstallError::file("lock", path, source))?;
        let path = path.to_owned();
        match taken {
            Some(file) => Ok(Lock { path, _file: file }),
            None => Err(InstallError::Busy(path)),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is locked: nobody who waits for it takes a removed one.
        let _gone = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_with_its_mode_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(temporary(&path), "half").unwrap();
        replace(&path, b"one", 0o600).unwrap();
        replace(&path, b"two", 0o644).unwrap();
        assert_eq!(read(&path).unwrap().unwrap(), b"two");
        assert_eq!(mode_of(&path), Some(0o644));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        std::fs::create_dir(&path).unwrap();
        assert!(replace(&path, b"x", 0o644).is_err());
        assert!(path.is_dir());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn made_directories_are_told_outermost_first() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b");
        let made = make_dir(&deep, 0o700).unwrap();
        assert_eq!(made, [dir.path().join("a"), deep.clone()]);
        assert_eq!(mode_of(&deep), Some(0o700));
        assert!(make_dir(&deep, 0o700).unwrap().is_empty());
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(make_dir(&dir.path().join("file"), 0o700).is_err());
        assert!(make_dir(&dir.path().join("file/x"), 0o700).is_err());
    }

    #[test]
    fn a_lock_is_held_once_and_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let lock = Lock::take(&path).unwrap();
        let second = OpenOptions::new().write(true).open(&path).unwrap();
        let taken = rustix::fs::flock(
            &second,
            rustix::fs::FlockOperation::NonBlockingLockExclusive,
        );
        assert_eq!(taken, Err(Errno::WOULDBLOCK));
        drop(lock);
        assert!(!path.exists());
        drop(Lock::take(&path).unwrap());
    }
}
