//! The commands that run: started on request, reported, reaped.
//!
//! A pid stands for a command from its fork until it is reaped here, and only
//! here; every other process that ends is an orphan and is reaped unreported.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use mio::unix::pipe::{self, Receiver, Sender};
use mio::{Interest, Registry, Token};
use rustix::io::Errno;
use rustix::process::{WaitOptions, WaitStatus};

use super::attachments::Attachments;
use super::channel::Channel;
use super::child::{self, Failure};
use super::wire::{ExitStatus, FromInit, Spawn, Stage};
use crate::sys;

#[derive(Debug)]
pub(super) struct Commands {
    registry: Registry,
    /// The token of the next status pipe.
    next: Token,
    /// By pid.
    running: BTreeMap<i32, Command>,
}

#[derive(Debug)]
struct Command {
    id: u64,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// Between fork and exec. The pipe ends at exec, or brings a `Failure`.
    ///
    /// It is watched and not waited for: another process of the same user may
    /// stop the child right here, and pid 1 must not hang on that.
    Starting {
        token: Token,
        status: Receiver,
        master: Option<OwnedFd>,
    },
    Started,
    /// Not reported until the process is gone, so that nothing of it is left.
    Failed(Failure),
}

impl Commands {
    /// Status pipes are watched under `first` and the tokens above it.
    pub(super) fn new(registry: &Registry, first: Token) -> io::Result<Commands> {
        Ok(Commands {
            registry: registry.try_clone()?,
            next: first,
            running: BTreeMap::new(),
        })
    }

    /// Starts a command. Success is reported when its program runs.
    pub(super) fn spawn(&mut self, spawn: &Spawn, fds: Vec<OwnedFd>, channel: &mut Channel) {
        if let Err(failure) = self.try_spawn(spawn, fds) {
            channel.report(&failure.message(spawn.id), None);
        }
    }

    fn try_spawn(&mut self, spawn: &Spawn, fds: Vec<OwnedFd>) -> Result<(), Failure> {
        check(spawn)?;
        let (attachments, master) = Attachments::from_packet(spawn, fds)?;
        let token = self.next;
        let (sender, status) = self.watched_pipe().map_err(Failure::at(Stage::Exec))?;
        let pid = sys::spawn::fork(|| child::run(spawn, &attachments, &sender))
            .map_err(Failure::at(Stage::Exec))?;
        let phase = Phase::Starting {
            token,
            status,
            master,
        };
        let id = spawn.id;
        self.running.insert(pid.as_raw_pid(), Command { id, phase });
        Ok(())
    }

    /// A pipe whose reader the loop watches. It is never deregistered: an
    /// event that comes after its end finds no command, and is ignored.
    fn watched_pipe(&mut self) -> io::Result<(Sender, Receiver)> {
        let (sender, mut receiver) = pipe::new()?;
        self.registry
            .register(&mut receiver, self.next, Interest::READABLE)?;
        self.next.0 += 1;
        Ok((sender, receiver))
    }

    /// Something has happened on the status pipe with this token.
    pub(super) fn on_status(&mut self, wanted: Token, channel: &mut Channel) {
        let mut commands = self.running.iter_mut();
        if let Some((pid, command)) = commands.find(|(_, command)| command.starts_under(wanted)) {
            command.settle(*pid, channel);
        }
    }

    /// Reaps up to `limit` ended processes; returns whether there may be more.
    pub(super) fn reap(&mut self, limit: usize, channel: &mut Channel) -> bool {
        for _ in 0..limit {
            // The errors are "no child" and "interrupted by SIGCHLD", which is
            // in the signal pipe then.
            let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) else {
                return false;
            };
            let pid = pid.as_raw_pid();
            if let Some(command) = self.running.remove(&pid) {
                command.ended(pid, status, channel);
            }
        }
        true
    }
}

impl Command {
    fn starts_under(&self, wanted: Token) -> bool {
        matches!(self.phase, Phase::Starting { token, .. } if token == wanted)
    }

    /// Finds out how the start went, if that is still open and decided by now.
    fn settle(&mut self, pid: i32, channel: &mut Channel) {
        let Phase::Starting { status, .. } = &mut self.phase else {
            return;
        };
        let mut report = [0; child::MAX_REPORT];
        match status.read(&mut report) {
            Ok(0) => self.started(pid, channel),
            Ok(len) => {
                self.phase =
                    Phase::Failed(Failure::from_report(report.get(..len).unwrap_or_default()))
            }
            Err(_) => {}
        }
    }

    fn started(&mut self, pid: i32, channel: &mut Channel) {
        if let Phase::Starting { master, .. } = &mut self.phase {
            channel.report(&FromInit::Started { id: self.id, pid }, master.take());
            self.phase = Phase::Started;
        }
    }

    /// Reports what is still to be said about a command that was just reaped.
    fn ended(mut self, pid: i32, status: WaitStatus, channel: &mut Channel) {
        // The end of the child may be seen before that of its status pipe;
        // and no exit is ever reported without a start.
        self.settle(pid, channel);
        self.started(pid, channel);
        let id = self.id;
        let last = match self.phase {
            Phase::Failed(failure) => failure.message(id),
            Phase::Starting { .. } | Phase::Started => FromInit::Exited {
                id,
                status: exit_status(status),
            },
        };
        channel.report(&last, None);
    }
}

/// Refuses what no program could be started with.
fn check(spawn: &Spawn) -> Result<(), Failure> {
    let names = spawn.env.iter().map(|(name, _)| name);
    let texts = spawn.env.iter().flat_map(|(name, value)| [name, value]);
    let good = !spawn.argv.is_empty()
        && names
            .clone()
            .all(|name| !name.is_empty() && !name.contains('='))
        && texts
            .chain(&spawn.argv)
            .chain([&spawn.cwd])
            .all(|text| !text.contains('\0'));
    if good {
        Ok(())
    } else {
        Err(Failure::new(Stage::Message, Errno::INVAL))
    }
}

fn exit_status(status: WaitStatus) -> ExitStatus {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => ExitStatus::Code(code),
        (None, signal) => ExitStatus::Signal(signal.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spawn(argv: &[&str], env: &[(&str, &str)], cwd: &str) -> Spawn {
        Spawn {
            id: 1,
            argv: argv.iter().map(|&word| word.to_owned()).collect(),
            env: env
                .iter()
                .map(|&(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            cwd: cwd.to_owned(),
            stdio: super::super::wire::Stdio::Pipes,
            script: false,
        }
    }

    #[test]
    fn ordinary_and_empty_texts_pass() {
        let spawn = spawn(&["sh", ""], &[("A", ""), ("B", "x=y")], "");
        assert_eq!(check(&spawn), Ok(()));
    }

    #[test]
    fn what_the_kernel_cannot_be_given_is_refused() {
        for bad in [
            spawn(&[], &[], "/"),
            spawn(&["a\0b"], &[], "/"),
            spawn(&["a"], &[("A", "\0")], "/"),
            spawn(&["a"], &[("\0", "A")], "/"),
            spawn(&["a"], &[("", "A")], "/"),
            spawn(&["a"], &[("A=B", "C")], "/"),
            spawn(&["a"], &[], "/\0"),
        ] {
            let refused = Failure::new(Stage::Message, Errno::INVAL);
            assert_eq!(check(&bad), Err(refused));
        }
    }
}
