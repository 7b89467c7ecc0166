//! A process that waits for the next command, in the cgroup of that command.
//!
//! Moving into a cgroup waits for an RCU grace period of the kernel, which is
//! ten times as long as all else that starts a command; here it is over before
//! the command is known. The process has the user id of the commands, which
//! can end it: then the command starts in the ordinary way.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use mio::Token;
use mio::unix::pipe::{Receiver, Sender};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, Signal};

use super::attachments::Attachments;
use super::child;
use super::wire::Spawn;
use crate::sys::{self, fdpass};

#[derive(Debug)]
pub(super) struct Standby {
    /// Of the command that it is for.
    pub(super) id: u64,
    pub(super) pid: Pid,
    pub(super) token: Token,
    /// As that of any new process: its end before an order is a failure.
    pub(super) status: Receiver,
    /// Takes the command to it. The end of this ends it.
    orders: OwnedFd,
}

impl Standby {
    /// Starts one; `pipe` is its watched status pipe.
    pub(super) fn start(
        id: u64,
        cgroup: &OwnedFd,
        token: Token,
        (sender, status): (Sender, Receiver),
    ) -> io::Result<Standby> {
        let (orders, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        // Pid 1 must not be held up by whatever has become of the other side.
        rustix::io::ioctl_fionbio(&orders, true)?;
        let pid = sys::spawn::fork(|| child::stand_by(cgroup, &theirs, &sender))?;
        Ok(Standby {
            id,
            pid,
            token,
            status,
            orders,
        })
    }

    /// Has it become the command, as far as can be told now.
    pub(super) fn order(&self, spawn: &Spawn, attachments: &Attachments) -> io::Result<()> {
        // A command may have stopped it.
        rustix::process::kill_process(self.pid, Signal::CONT)?;
        let packet = serde_json::to_vec(spawn)?;
        let sent = fdpass::send(
            self.orders.as_fd(),
            &packet,
            &attachments.streams_and_script(),
        )?;
        match sent == packet.len() {
            true => Ok(()),
            false => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Ends it. It is reaped like an orphan.
    pub(super) fn dismiss(self) {
        let _ = rustix::process::kill_process(self.pid, Signal::KILL);
    }
}
