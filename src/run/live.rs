//! Changes of the mounts of a running container: operations -> the command
//! that makes them, and what it printed -> their answers. No I/O but the
//! socket on which the request waits.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::attach::{Answer, MAX_REQUEST, Operation, Reply, Request};
use crate::run::task::Finished;
use crate::sys::{fdpass, inherit};

/// The helper for `operations` in the container whose pid 1 `pidfd` means; a
/// [`crate::run::task::Task`] for the loop. An error means that nothing was
/// done, and that it takes a recreate.
pub(crate) fn command(
    exe: &Path,
    pidfd: &OwnedFd,
    operations: Vec<Operation>,
) -> io::Result<Command> {
    let request = serde_json::to_vec(&Request { operations })?;
    if request.len() > MAX_REQUEST {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "too many mounts change at once",
        ));
    }
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    fdpass::send(ours.as_fd(), &request, &[pidfd.as_fd()])?;
    let mut command = Command::new(exe);
    command.arg0("umwelt-run").arg("--mount-helper");
    command.env_clear();
    inherit::hand_over_as_fd3(&mut command, theirs);
    Ok(command)
}

/// One answer for each of `count` operations. A helper that failed may have
/// done anything, so that only a recreate tells what is mounted.
pub(crate) fn parse(finished: &Finished, count: usize) -> Vec<Answer> {
    let reply = serde_json::from_str::<Reply>(&finished.stdout);
    match reply {
        Ok(reply) if finished.status.success() && reply.answers.len() == count => reply.answers,
        _ => {
            let words = finished.last_words();
            let reason = format!("the mount helper failed ({}): {words}", finished.status);
            vec![Answer::NotLive { reason }; count]
        }
    }
}
