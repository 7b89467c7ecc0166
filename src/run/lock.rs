//! One control plane a workspace: whoever holds the lock file.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use crate::api::client::Client;
use crate::api::{ApiError, ErrorKind, State};
use crate::error::Error;
use crate::sys::lock;
use crate::workspace::{Names, SessionId, Workspace};

/// How long the holder may take to leave, or to answer.
const WAIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
/// As the kernel has it, PATH_MAX.
const MAX_PATH: u64 = 4096;

/// The lock, held until this is dropped; the file itself stays, since taking
/// it away would let two holders lock two files of the same name.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

/// What came of trying to be the control plane.
#[derive(Debug)]
pub(crate) enum Acquired {
    Lock(Lock),
    /// Another one holds the workspace, and answers.
    Attached,
}

/// Takes the lock, or finds the one that has it. A holder that is on its way
/// out is waited for. The file then tells whose it is, also when the control
/// plane was killed.
pub(crate) fn acquire(names: &Names, workspace: &str) -> Result<Acquired, Error> {
    let file = lock::open(&names.lock)
        .map_err(|error| Error::io(format!("open the lock file {:?}", names.lock), error))?;
    let deadline = Instant::now() + WAIT;
    loop {
        let locked = lock::try_exclusive(&file)
            .map_err(|error| Error::io(format!("lock {:?}", names.lock), error))?;
        if locked {
            if let Err(error) = write(&file, workspace) {
                log::warn!("cannot write to {:?}: {error}", names.lock);
            }
            return Ok(Acquired::Lock(Lock { _file: file }));
        }
        match Client::connect(&names.socket, &client_name(), false) {
            // One on its way out is waited for.
            Ok((_, reply)) if reply.state == State::Stopping => {}
            Ok(_) => return Ok(Acquired::Attached),
            Err(error) if error.kind == ErrorKind::Version => return Err(Error::Api(error)),
            Err(_) => {}
        }
        if Instant::now() > deadline {
            return Err(Error::Api(
                ApiError::new(
                    ErrorKind::Unreachable,
                    format!(
                        "another process holds {:?} but does not answer on {:?}",
                        names.lock, names.socket
                    ),
                )
                .with_hint(
                    "find it with: fuser -v on the lock file, or run: umwelt-ctl stop --hard",
                ),
            ));
        }
        std::thread::sleep(PAUSE);
    }
}

fn write(file: &File, workspace: &str) -> std::io::Result<()> {
    file.set_len(0)?;
    file.write_all_at(workspace.as_bytes(), 0)
}

/// The workspace that the last holder of a lock file has written into it, if it
/// is one with this session id.
pub(crate) fn workspace_of(lock: &Path, sid: &SessionId) -> Option<PathBuf> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(lock)
        .ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut path = String::new();
    file.take(MAX_PATH).read_to_string(&mut path).ok()?;
    let path = PathBuf::from(path);
    (Workspace::sid_of_path(&path).as_ref() == Some(sid)).then_some(path)
}

fn client_name() -> String {
    format!("umwelt-run/{}", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_tells_whose_it_is_and_nothing_that_is_not_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let sid = Workspace::sid_of_path(Path::new("/w/p")).unwrap();
        assert_eq!(workspace_of(&path, &sid), None);
        let file = File::create(&path).unwrap();
        assert_eq!(workspace_of(&path, &sid), None);
        for workspace in ["/w/longer", "/w/p"] {
            write(&file, workspace).unwrap();
        }
        assert_eq!(workspace_of(&path, &sid), Some("/w/p".into()));
        let other = Workspace::sid_of_path(Path::new("/w/q")).unwrap();
        assert_eq!(workspace_of(&path, &other), None);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(workspace_of(&link, &sid), None);
        assert_eq!(workspace_of(dir.path(), &sid), None);
    }
}
