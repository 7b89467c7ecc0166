//! What a new process does between fork and exec: it joins its cgroup, takes
//! its streams, and becomes the command. Runs in the child alone.

use std::convert::Infallible;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::Mode;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::attachments::{Attachments, Streams};
use super::wire::{FromInit, Spawn, Stage};
use crate::sys::spawn;

/// The child's number of the descriptor with the command text.
const SCRIPT: i32 = 3;
const UMASK: Mode = Mode::WGRP.union(Mode::WOTH);

/// Longest form of a `Failure` in the status pipe.
pub(super) const MAX_REPORT: usize = 64;

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
    mut status: impl Write,
) -> Result<Infallible, ()> {
    let Err(failure) = become_command(spawn, attachments);
    // Should this fail too, init sees a child that exits with code 127.
    if let Ok(report) = serde_json::to_vec(&failure) {
        drop(status.write_all(&report));
    }
    Err(())
}

fn become_command(spawn: &Spawn, attachments: &Attachments) -> Result<Infallible, Failure> {
    // First of all: from here on the control plane can kill this process.
    join_cgroup(&attachments.cgroup).map_err(Failure::at(Stage::Exec))?;
    rustix::process::setsid().map_err(Failure::at(Stage::Exec))?;
    rustix::process::chdir(spawn.cwd.as_str()).map_err(Failure::at(Stage::Cwd))?;
    connect(&attachments.streams)?;
    place_script(attachments.script.as_ref()).map_err(Failure::at(Stage::Exec))?;
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
            assert!(report.len() <= MAX_REPORT);
            assert_eq!(Failure::from_report(&report), failure);
        }
    }
}
