//! What a new process does between fork and exec: it joins its cgroup, takes
//! its streams, and becomes the command. Runs in the child alone.

use std::convert::Infallible;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::Mode;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::attachments::{Attachments, Handed, Streams};
use super::wire::{FromInit, MAX_PACKET, Spawn, Stage};
use crate::sys::{fdpass, spawn};

/// The child's number of the descriptor with the command text.
const SCRIPT: i32 = 3;
const UMASK: Mode = Mode::WGRP.union(Mode::WOTH);

/// Longest report in the status pipe: `TAKEN` and a `Failure`.
pub(super) const MAX_REPORT: usize = 64;
/// Tells that a process on standby has its command. It does not begin JSON.
pub(super) const TAKEN: u8 = b'+';

/// Why a command did not start. The child writes it to its status pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Failure {
    pub(super) stage: Stage,
    pub(super) errno: i32,
}

impl Failure {
    pub(super) fn new(stage: Stage, errno: Errno) -> Failure {
        Failure {
            stage,
            errno: errno.raw_os_error(),
        }
    }

    /// For `map_err`: an OS error at this stage.
    pub(super) fn at<E: Into<io::Error>>(stage: Stage) -> impl Fn(E) -> Failure {
        move |error| Failure {
            stage,
            errno: error
                .into()
                .raw_os_error()
                .unwrap_or(Errno::INVAL.raw_os_error()),
        }
    }

    /// Reads what the child has written to its status pipe.
    pub(super) fn from_report(report: &[u8]) -> Failure {
        serde_json::from_slice(report).unwrap_or_else(|_| Failure::new(Stage::Exec, Errno::IO))
    }

    /// The message for the control plane.
    pub(super) fn message(self, id: u64) -> FromInit {
        let Failure { stage, errno } = self;
        FromInit::Failed { id, stage, errno }
    }
}

/// Becomes the command, or tells `status` why not.
pub(super) fn run(
    spawn: &Spawn,
    attachments: &Attachments,
    status: impl Write,
) -> Result<Infallible, ()> {
    // First of all: from here on the control plane can kill this process.
    let Err(failure) = join_cgroup(&attachments.cgroup)
        .map_err(Failure::at(Stage::Exec))
        .and_then(|()| become_command(spawn, &attachments.streams, attachments.script.as_ref()));
    report(failure, status)
}

/// Joins the cgroup, waits for the command on `orders`, and becomes it.
pub(super) fn stand_by(
    cgroup: &OwnedFd,
    orders: &OwnedFd,
    mut status: impl Write + AsFd,
) -> Result<Infallible, ()> {
    let Err(failure) = leave_parent(cgroup, orders, &status).and_then(|()| {
        let (spawn, handed) = take_order(orders)?;
        status
            .write_all(&[TAKEN])
            .map_err(Failure::at(Stage::Exec))?;
        become_command(&spawn, &handed.streams, handed.script.as_ref())
    });
    report(failure, status)
}

/// A process that may live long must keep nothing of init open: a command
/// would wait for the end of a pipe or a terminal in vain.
fn leave_parent(cgroup: &OwnedFd, orders: &OwnedFd, status: &impl AsFd) -> Result<(), Failure> {
    let failed = Failure::at(Stage::Exec);
    spawn::reset_signals().map_err(&failed)?;
    spawn::close_all_but(SCRIPT, &[cgroup.as_fd(), orders.as_fd(), status.as_fd()])
        .map_err(&failed)?;
    // So that no descriptor of the order gets this number; see `connect`.
    spawn::place(rustix::stdio::stdin(), SCRIPT).map_err(failed)?;
    join_cgroup(cgroup).map_err(Failure::at(Stage::Exec))
}

fn take_order(orders: &OwnedFd) -> Result<(Spawn, Handed), Failure> {
    let mut packet = vec![0; MAX_PACKET];
    let received =
        fdpass::receive(orders.as_fd(), &mut packet).map_err(Failure::at(Stage::Exec))?;
    let unreadable = Failure::new(Stage::Message, Errno::BADMSG);
    if received.truncated {
        return Err(unreadable);
    }
    let spawn: Spawn = serde_json::from_slice(packet.get(..received.len).unwrap_or_default())
        .map_err(|_| unreadable)?;
    let handed = Handed::from_order(&spawn, received.fds)?;
    Ok((spawn, handed))
}

fn report(failure: Failure, mut status: impl Write) -> Result<Infallible, ()> {
    // Should this fail too, init sees a child that exits with code 127.
    if let Ok(report) = serde_json::to_vec(&failure) {
        drop(status.write_all(&report));
    }
    Err(())
}

fn become_command(
    spawn: &Spawn,
    streams: &Streams,
    script: Option<&OwnedFd>,
) -> Result<Infallible, Failure> {
    rustix::process::setsid().map_err(Failure::at(Stage::Exec))?;
    rustix::process::chdir(spawn.cwd.as_str()).map_err(Failure::at(Stage::Cwd))?;
    connect(streams)?;
    place_script(script).map_err(Failure::at(Stage::Exec))?;
    rustix::process::umask(UMASK);
    Err(Failure::at(Stage::Exec)(exec(spawn)))
}

fn join_cgroup(procs: &OwnedFd) -> Result<(), Errno> {
    rustix::io::retry_on_intr(|| rustix::io::write(procs, b"0"))?;
    Ok(())
}

/// Init holds 0 to 3 itself, so no descriptor from a packet has one of these
/// numbers, and none is overwritten before its turn.
fn connect(streams: &Streams) -> Result<(), Failure> {
    let [stdin, stdout, stderr] = match streams {
        Streams::Pipes(pipes) => pipes.each_ref(),
        Streams::Terminal(slave) => {
            rustix::process::ioctl_tiocsctty(slave).map_err(Failure::at(Stage::Terminal))?;
            [slave; 3]
        }
    };
    rustix::stdio::dup2_stdin(stdin)
        .and_then(|()| rustix::stdio::dup2_stdout(stdout))
        .and_then(|()| rustix::stdio::dup2_stderr(stderr))
        .map_err(Failure::at(Stage::Exec))
}

/// Also makes sure that nothing else gets through exec.
fn place_script(script: Option<&OwnedFd>) -> io::Result<()> {
    let Some(script) = script else {
        return spawn::close_on_exec_from(SCRIPT);
    };
    spawn::place(script, SCRIPT)?;
    spawn::close_on_exec_from(SCRIPT + 1)
}

/// Returns only on failure. The standard library gives the program an empty
/// signal mask and back its SIGPIPE; the rest was reset when init started.
fn exec(spawn: &Spawn) -> io::Error {
    let Some((program, args)) = spawn.argv.split_first() else {
        return io::ErrorKind::InvalidInput.into();
    };
    Command::new(program)
        .args(args)
        .env_clear()
        .envs(spawn.env.iter().map(|(name, value)| (name, value)))
        .exec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_fits_the_status_pipe_and_reads_back() {
        for stage in [Stage::Cwd, Stage::Terminal, Stage::Exec, Stage::Message] {
            let failure = Failure {
                stage,
                errno: i32::MIN,
            };
            let report = serde_json::to_vec(&failure).unwrap();
            assert!(report.len() < MAX_REPORT && report[0] != TAKEN);
            assert_eq!(Failure::from_report(&report), failure);
        }
    }
}
