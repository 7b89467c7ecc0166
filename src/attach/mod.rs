//! `umwelt-run --mount-helper`: attaches bind mounts to a running container
//! and detaches them, without ending anything in it.
//!
//! A short-lived process of one thread, because only such a one may join a
//! user namespace. One request on descriptor 3 -> one answer on stdout. What
//! it cannot do for sure it undoes and leaves to a recreate.

mod bind;
mod detach;
mod holders;
mod namespaces;
mod place;
mod restrict;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use crate::attach::namespaces::Container;
use crate::cli;
use crate::error::Error;
use crate::sys::{fdpass, spawn};

/// Where the request comes from: one packet, with the pidfd of pid 1.
const REQUEST_FD: i32 = 3;
/// Longest request; well below the default send buffer of a Unix socket.
pub(crate) const MAX_REQUEST: usize = 64 << 10;

/// What is to be done, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    pub(crate) operations: Vec<Operation>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Operation {
    Attach(Attach),
    Detach(Detach),
    Restrict(Restrict),
}

/// The caller has made sure that nothing lies below the source that must stay
/// hidden (masks, sockets): no cover comes along.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Attach {
    /// Where it is to be seen inside, by a path without links.
    pub(crate) path: String,
    /// The real path on the host.
    pub(crate) source: String,
    /// What the source was when it was granted.
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// One file, not a directory.
    pub(crate) is_file: bool,
    pub(crate) read_only: bool,
}

/// Takes the topmost mount at `path` away, if it shows what is named here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Detach {
    pub(crate) path: String,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// As the attach has answered; false for a mount that podman made.
    pub(crate) made_mount_point: bool,
}

/// Makes the mount that is seen at `path` nosuid, nodev and private.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Restrict {
    pub(crate) path: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reply {
    /// One for each operation.
    pub(crate) answers: Vec<Answer>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Answer {
    /// `made_mount_point`: an empty directory or file was made for it in a
    /// scratch place, and is to be removed with it.
    Done { made_mount_point: bool },
    /// It takes a recreate.
    NotLive { reason: String },
    /// The source is not what it was when it was granted.
    Changed { reason: String },
}

/// Why an operation cannot be done.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Obstacle {
    NotLive(String),
    Changed(String),
}

impl Obstacle {
    /// A system call that failed, with what it was for.
    fn failed(what: impl fmt::Display, error: impl fmt::Display) -> Obstacle {
        Obstacle::NotLive(format!("{what}: {error}"))
    }
}

fn not_live<T>(reason: impl Into<String>) -> Result<T, Obstacle> {
    Err(Obstacle::NotLive(reason.into()))
}

impl From<Result<bool, Obstacle>> for Answer {
    fn from(outcome: Result<bool, Obstacle>) -> Answer {
        match outcome {
            Ok(made_mount_point) => Answer::Done { made_mount_point },
            Err(Obstacle::NotLive(reason)) => Answer::NotLive { reason },
            Err(Obstacle::Changed(reason)) => Answer::Changed { reason },
        }
    }
}

/// Before anything else is opened in this process.
pub(crate) fn main() -> Result<ExitCode, Error> {
    let (request, pidfd) =
        receive().map_err(|error| Error::io("read the request of umwelt-run", error))?;
    cli::start_log("umwelt-run");
    let reply = Reply {
        answers: serve(&request, pidfd),
    };
    let text = serde_json::to_string(&reply).map_err(|error| Error::io("answer", error))?;
    Ok(cli::print(&text))
}

fn receive() -> io::Result<(Request, OwnedFd)> {
    let socket = spawn::take_inherited(REQUEST_FD)?;
    let mut buffer = vec![0; MAX_REQUEST];
    let received = fdpass::receive(socket.as_fd(), &mut buffer)?;
    buffer.truncate(received.len);
    let mut descriptors = received.fds.into_iter();
    match (descriptors.next(), descriptors.next(), received.truncated) {
        (Some(pidfd), None, false) => Ok((serde_json::from_slice(&buffer)?, pidfd)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn serve(request: &Request, pidfd: OwnedFd) -> Vec<Answer> {
    let container = Container::join(pidfd);
    let perform = |operation| match &container {
        Ok(container) => perform(container, operation),
        Err(obstacle) => Err(obstacle.clone()),
    };
    let operations = request.operations.iter();
    operations.map(perform).map(Answer::from).collect()
}

fn perform(container: &Container, operation: &Operation) -> Result<bool, Obstacle> {
    match operation {
        Operation::Attach(wanted) => bind::attach(container, wanted),
        // Nothing is left that would have to be removed later.
        Operation::Detach(wanted) => detach::detach(container, wanted).map(|()| false),
        Operation::Restrict(wanted) => restrict::restrict(container, wanted).map(|()| false),
    }
}
