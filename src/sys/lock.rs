//! Lock files: flock(2), which goes with the process that holds it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

const PAUSE: Duration = Duration::from_millis(20);

/// The file, made where there is none. A link in its place is refused.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
}

/// Whether the lock could be had at once.
pub(crate) fn try_exclusive(file: impl AsFd) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The locked file, held until it is dropped, or `None` where another process
/// has held it all the time.
pub(crate) fn take(path: &Path, wait: Duration) -> io::Result<Option<File>> {
    let deadline = Instant::now() + wait;
    loop {
        let file = open(path)?;
        // The one who held it before may have removed the file.
        if try_exclusive(&file)? && has_name(&file, path) {
            return Ok(Some(file));
        }
        if Instant::now() > deadline {
            return Ok(None);
        }
        std::thread::sleep(PAUSE);
    }
}

fn has_name(file: &File, path: &Path) -> bool {
    match (file.metadata(), path.symlink_metadata()) {
        (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_one_holds_a_lock_and_the_next_gets_it() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("lock");
        let held = take(&path, Duration::ZERO).unwrap().unwrap();
        assert!(take(&path, Duration::ZERO).unwrap().is_none());
        drop(held);
        // A child that another test forks has it too, for a moment.
        assert!(take(&path, Duration::from_secs(60)).unwrap().is_some());
    }

    #[test]
    fn a_file_that_has_lost_its_name_is_no_lock() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("lock");
        let file = open(&path).unwrap();
        assert!(has_name(&file, &path));
        std::fs::remove_file(&path).unwrap();
        assert!(!has_name(&file, &path));
        let other = open(&path).unwrap();
        assert!(!has_name(&file, &path) && has_name(&other, &path));
    }

    #[test]
    fn a_link_is_not_followed() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("lock");
        symlink(temp.path().join("elsewhere"), &path).unwrap();
        assert!(open(&path).is_err());
        assert!(!temp.path().join("elsewhere").exists());
    }
}
