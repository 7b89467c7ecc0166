//! The control socket: bound with its final mode, never opened up for a moment.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::api::{ApiError, ErrorKind};
use crate::error::Error;

/// Connections that wait to be accepted: fifty agents may start at once.
const BACKLOG: i32 = 128;

/// Binds and listens. The caller holds the lock, so a file that is in the way
/// belongs to nobody any more.
pub(crate) fn bind(path: &Path) -> Result<OwnedFd, Error> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::io(format!("remove the old socket {path:?}"), error));
        }
        _ => {}
    }
    let address = SocketAddrUnix::new(path).map_err(|_| too_long(path))?;
    let failed = |error| Error::io(format!("listen on {path:?}"), std::io::Error::from(error));
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(failed)?;
    // The mode is set by the umask during bind: a chmod afterwards would
    // leave a moment in which others could connect.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = rustix::net::bind(&socket, &address);
    rustix::process::umask(before);
    bound.map_err(failed)?;
    rustix::net::listen(&socket, BACKLOG).map_err(failed)?;
    Ok(socket)
}

/// sun_path of unix(7) holds 108 bytes.
fn too_long(path: &Path) -> Error {
    let message =
        format!("the socket path {path:?} is longer than the 107 bytes that the kernel allows");
    Error::Api(ApiError::new(ErrorKind::BadConfig, message).with_hint(
        "set XDG_RUNTIME_DIR to a shorter path, or shorten session_prefix in the base config",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn socket_is_private_and_replaces_a_stale_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        std::fs::write(&path, "stale").unwrap();
        let _socket = bind(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        std::os::unix::net::UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn path_that_is_too_long_is_named() {
        let error = bind(Path::new(&format!("/tmp/{}", "x".repeat(110)))).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("107"));
    }
}
