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
use rustix::process::{Pid, WaitOptions, WaitStatus};

use super::attachments::Attachments;
use super::channel::Channel;
use super::child::{self, Failure};
use super::standby::Standby;
use super::wire::{ExitStatus, FromInit, Spawn, Stage};
use crate::sys;

#[derive(Debug)]
pub(super) struct Commands {
    registry: Registry,
    /// The token of the next status pipe.
    next: Token,
    /// By pid.
    running: BTreeMap<i32, Command>,
    standby: Option<Standby>,
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
        /// What was given to a process on standby, until it has taken it.
        order: Option<Box<Order>>,
    },
    Started,
    /// Not reported until the process is gone, so that nothing of it is left.
    Failed(Failure),
}

#[derive(Debug)]
struct Order {
    spawn: Spawn,
    attachments: Attachments,
}

/// A process that is to become a command.
struct Beginning {
    pid: Pid,
    token: Token,
    status: Receiver,
}

impl Commands {
    /// Status pipes are watched under `first` and the tokens above it.
    pub(super) fn new(registry: &Registry, first: Token) -> io::Result<Commands> {
        Ok(Commands {
            registry: registry.try_clone()?,
            next: first,
            running: BTreeMap::new(),
            standby: None,
        })
    }

    /// Has a process wait for the command `id`. Without success, as when there
    /// is no room for it, the command is started when it comes.
    pub(super) fn prepare(&mut self, id: u64, fds: Vec<OwnedFd>) {
        self.dismiss_standby();
        if let [cgroup] = fds.as_slice() {
            let token = self.next;
            let pipe = self.watched_pipe();
            self.standby = pipe
                .and_then(|pipe| Standby::start(id, cgroup, token, pipe))
                .ok();
        }
    }

    fn dismiss_standby(&mut self) {
        if let Some(standby) = self.standby.take() {
            standby.dismiss();
        }
    }

    /// Starts a command. Success is reported when its program runs.
    pub(super) fn spawn(&mut self, spawn: Spawn, fds: Vec<OwnedFd>, channel: &mut Channel) {
        let id = spawn.id;
        if let Err(failure) = self.try_spawn(spawn, fds) {
            channel.report(&failure.message(id), None);
        }
    }

    fn try_spawn(&mut self, spawn: Spawn, fds: Vec<OwnedFd>) -> Result<(), Failure> {
        check(&spawn)?;
        let (attachments, master) = Attachments::from_packet(&spawn, fds)?;
        let order = Order { spawn, attachments };
        match self.hand_over(&order) {
            Some(beginning) => self.begin(order.spawn.id, beginning, master, Some(order)),
            None => self.fork(&order, master)?,
        }
        Ok(())
    }

    /// Gives the command to the process that waits for it, if one does.
    fn hand_over(&mut self, order: &Order) -> Option<Beginning> {
        let is_for_it = |standby: &mut Standby| standby.id == order.spawn.id;
        let standby = self.standby.take_if(is_for_it)?;
        if standby.order(&order.spawn, &order.attachments).is_err() {
            standby.dismiss();
            return None;
        }
        Some(Beginning {
            pid: standby.pid,
            token: standby.token,
            status: standby.status,
        })
    }

    fn fork(&mut self, order: &Order, master: Option<OwnedFd>) -> Result<(), Failure> {
        let Order { spawn, attachments } = order;
        let token = self.next;
        let (sender, status) = self.watched_pipe().map_err(Failure::at(Stage::Exec))?;
        let pid = sys::spawn::fork(|| child::run(spawn, attachments, &sender))
            .map_err(Failure::at(Stage::Exec))?;
        let beginning = Beginning { pid, token, status };
        self.begin(spawn.id, beginning, master, None);
        Ok(())
    }

    fn begin(
        &mut self,
        id: u64,
        beginning: Beginning,
        master: Option<OwnedFd>,
        order: Option<Order>,
    ) {
        let phase = Phase::Starting {
            token: beginning.token,
            status: beginning.status,
            master,
            order: order.map(Box::new),
        };
        let pid = beginning.pid.as_raw_pid();
        self.running.insert(pid, Command { id, phase });
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
        // It has ended, or is about to: no order has come that could end this.
        let is_standby = |standby: &mut Standby| standby.token == wanted;
        if let Some(standby) = self.standby.take_if(is_standby) {
            return standby.dismiss();
        }
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
            self.standby.take_if(|standby| standby.pid == pid);
            if let Some(command) = self.running.remove(&pid.as_raw_pid()) {
                self.ended(command, pid, status, channel);
            }
        }
        true
    }

    fn ended(&mut self, mut command: Command, pid: Pid, status: WaitStatus, channel: &mut Channel) {
        // The end of the child may be seen before that of its status pipe.
        command.settle(pid.as_raw_pid(), channel);
        if let Phase::Starting { order, master, .. } = &mut command.phase
            && let Some(order) = order.take()
        {
            // It was ended on standby; of the command nothing has happened.
            if let Err(failure) = self.fork(&order, master.take()) {
                channel.report(&failure.message(command.id), None);
            }
            return;
        }
        command.ended(pid.as_raw_pid(), status, channel);
    }
}

impl Command {
    fn starts_under(&self, wanted: Token) -> bool {
        matches!(self.phase, Phase::Starting { token, .. } if token == wanted)
    }

    /// Finds out how the start went, if that is still open and decided by now.
    fn settle(&mut self, pid: i32, channel: &mut Channel) {
        let Phase::Starting { status, order, .. } = &mut self.phase else {
            return;
        };
        let mut buffer = [0; child::MAX_REPORT];
        let Ok(len) = status.read(&mut buffer) else {
            return;
        };
        let mut report = buffer.get(..len).unwrap_or_default();
        if let Some(rest) = report.strip_prefix(&[child::TAKEN])
            && order.take().is_some()
        {
            if rest.is_empty() {
                return self.settle(pid, channel);
            }
            report = rest;
        }
        if order.is_some() {
            // It ends without having taken its order.
        } else if report.is_empty() {
            self.started(pid, channel);
        } else {
            self.phase = Phase::Failed(Failure::from_report(report));
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
        // No exit is ever reported without a start.
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
