//! The process behind a socket: whether somebody is there, what it answers
//! within a limit, and its end.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, UCred, sockopt};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::de::DeserializeOwned;

use crate::api::client::{self, Client};
use crate::api::{ApiError, Body, Call, Empty, ErrorKind, StatusReply};
use crate::applet::{self, Applet};
use crate::ctl::{CLIENT, CtlError};
use crate::error::Error;

/// How long a control plane may take to say how it is.
pub(super) const ANSWER_WAIT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) enum Presence {
    /// There is no socket.
    Absent,
    /// There is a socket on which nobody listens.
    Dead,
    /// Somebody listens; who, where the kernel says so.
    Listening(Option<Peer>),
}

/// The process that listens on a socket, held by a descriptor so that it
/// cannot become another one under the same number.
#[derive(Debug)]
pub(super) struct Peer {
    credentials: UCred,
    pidfd: OwnedFd,
}

pub(super) fn presence(path: &Path) -> Result<Presence, Error> {
    let Ok(address) = SocketAddrUnix::new(path) else {
        // Too long a path: nobody can have bound it either.
        return Ok(Presence::Absent);
    };
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(|error| Error::io("open a socket", error))?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => Ok(Presence::Listening(Peer::of(socket.as_fd()))),
        // More clients are waiting than the socket takes: it is not served.
        Err(Errno::AGAIN) => Ok(Presence::Listening(None)),
        Err(Errno::NOENT) => Ok(Presence::Absent),
        Err(Errno::CONNREFUSED) if is_socket(path) => Ok(Presence::Dead),
        Err(Errno::CONNREFUSED) => Ok(Presence::Absent),
        Err(error) => Err(Error::io(format!("connect to {path:?}"), error)),
    }
}

/// Whether it is a socket itself, not a link to one.
pub(super) fn is_socket(path: &Path) -> bool {
    path.symlink_metadata()
        .is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// Asks for the status, as a client that does not hold the sandbox.
pub(super) fn status(socket: &Path) -> Result<StatusReply, ApiError> {
    let deadline = Instant::now() + ANSWER_WAIT;
    let (mut client, _) = Client::connect_by(socket, CLIENT, false, deadline)?;
    ask(&mut client, Call::Status(Empty {}), deadline)
}

/// Sends a request and waits for its result until the deadline.
pub(super) fn ask<T: DeserializeOwned>(
    client: &mut Client,
    call: Call,
    deadline: Instant,
) -> Result<T, ApiError> {
    let asked = client.send(call, &[])?;
    loop {
        while let Some((message, _)) = client.try_receive()? {
            match message.body {
                Body::Error(error) if message.id.is_none_or(|id| id == asked) => return Err(error),
                Body::Result(value) if message.id == Some(asked) => return client::decode(value),
                _ => {}
            }
        }
        if !readable(client.as_fd(), deadline) {
            return Err(ApiError::new(
                ErrorKind::Unreachable,
                "the control plane does not answer",
            ));
        }
    }
}

impl Peer {
    /// The kernel notes who called listen(2); nobody can claim to be another.
    fn of(connection: BorrowedFd<'_>) -> Option<Peer> {
        let credentials = sockopt::socket_peercred(connection).ok()?;
        let pidfd = rustix::process::pidfd_open(credentials.pid, PidfdFlags::empty()).ok()?;
        Some(Peer { credentials, pidfd })
    }

    pub(super) fn pid(&self) -> Pid {
        self.credentials.pid
    }

    /// Waits for the end of the process; false when the time is over.
    pub(super) fn ended_by(&self, deadline: Instant) -> bool {
        readable(self.pidfd.as_fd(), deadline)
    }

    /// Sends a signal, if this is a control plane of this user.
    pub(super) fn signal(&self, signal: Signal) -> Result<(), Error> {
        self.check()?;
        match rustix::process::pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(Error::io(
                format!("end process {}", self.pid().as_raw_pid()),
                error,
            )),
        }
    }

    fn check(&self) -> Result<(), CtlError> {
        let pid = self.pid().as_raw_pid();
        let refused = |reason: &str| CtlError::NotOurs {
            pid,
            reason: reason.to_owned(),
        };
        if self.credentials.uid != rustix::process::geteuid() {
            return Err(refused("it belongs to another user"));
        }
        let command = std::fs::read(format!("/proc/{pid}/cmdline"))
            .map_err(|error| refused(&format!("cannot read its command line: {error}")))?;
        if !is_control_plane(&command) {
            return Err(refused("it is not umwelt-run"));
        }
        // What was just read was this process, if it is still there.
        if self.ended_by(Instant::now()) {
            return Err(refused("it has ended by itself"));
        }
        Ok(())
    }
}

/// Whether a command line (arguments, each ended by NUL) is that of umwelt-run.
fn is_control_plane(command: &[u8]) -> bool {
    let words = command.strip_suffix(b"\0").unwrap_or(command);
    let words = words
        .split(|byte| *byte == 0)
        .map(|word| OsString::from_vec(word.to_vec()));
    matches!(applet::select(words), Ok((Applet::Run, _)))
}

/// Waits until `fd` can be read or is closed; false when the time is over.
fn readable(fd: BorrowedFd<'_>, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).ok();
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, left.as_ref()))
        .is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_socket_is_absent_dead_or_listened_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        assert!(matches!(presence(&path), Ok(Presence::Absent)));
        let listener = UnixListener::bind(&path).unwrap();
        let Ok(Presence::Listening(Some(peer))) = presence(&path) else {
            panic!("nobody listens");
        };
        assert_eq!(peer.pid(), rustix::process::getpid());
        drop(listener);
        // A child that another test forks has it too, for a moment.
        while let Ok(Presence::Listening(_)) = presence(&path) {}
        assert!(matches!(presence(&path), Ok(Presence::Dead)));
    }

    #[test]
    fn a_file_in_place_of_a_socket_is_not_a_dead_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        std::fs::write(&path, "").unwrap();
        assert!(matches!(presence(&path), Ok(Presence::Absent)));
    }

    #[test]
    fn a_process_that_is_not_a_control_plane_is_not_ended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _listener = UnixListener::bind(&path).unwrap();
        let Ok(Presence::Listening(Some(peer))) = presence(&path) else {
            panic!("nobody listens");
        };
        let error = peer.signal(Signal::KILL).unwrap_err();
        assert!(error.to_string().contains("not umwelt-run"), "{error}");
    }

    #[test]
    fn control_planes_are_known_by_their_command_line() {
        for yes in [
            &b"umwelt-run\0--detach\0"[..],
            b"/x/umwelt-run\0",
            b"/x/umwelt\0run\0",
        ] {
            assert!(is_control_plane(yes));
        }
        for no in [&b""[..], b"\0", b"umwelt-mcp\0", b"bash\0-c\0umwelt-run\0"] {
            assert!(!is_control_plane(no));
        }
    }
}
