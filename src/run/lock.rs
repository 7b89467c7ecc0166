//! One control plane a workspace: whoever holds the lock file.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags};

use crate::api::client::Client;
use crate::api::{ApiError, ErrorKind, State};
use crate::error::Error;
use crate::workspace::Names;

/// How long the holder may take to leave, or to answer.
const WAIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);

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
/// out is waited for.
pub(crate) fn acquire(names: &Names) -> Result<Acquired, Error> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::CLOEXEC).bits()).unwrap_or_default();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(flags)
        .open(&names.lock)
        .map_err(|error| Error::io(format!("open the lock file {:?}", names.lock), error))?;
    let deadline = Instant::now() + WAIT;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Acquired::Lock(Lock { _file: file })),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::io(format!("lock {:?}", names.lock), error)),
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

fn client_name() -> String {
    format!("umwelt-run/{}", env!("CARGO_PKG_VERSION"))
}
