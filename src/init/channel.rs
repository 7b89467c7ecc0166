//! Descriptor 3: packets of the control plane in, reports out in order.
//!
//! Never blocks. While reports wait for room no packet is taken, so what waits
//! is bounded by the commands that run.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};

use super::wire::{self, FromInit, ToInit, Unreadable};
use crate::sys::fdpass::{self, Received};

#[derive(Debug)]
pub(super) struct Channel {
    socket: OwnedFd,
    token: Token,
    registry: Registry,
    waiting: VecDeque<Report>,
    /// The last send found no room, and writability is being watched.
    full: bool,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Report {
    packet: Vec<u8>,
    master: Option<OwnedFd>,
}

/// What the control plane has sent.
#[derive(Debug)]
pub(super) enum Incoming {
    Message(ToInit, Vec<OwnedFd>),
    /// About the command `id`, where at least that can be read.
    Unreadable {
        id: Option<u64>,
    },
    Nothing,
    /// It has closed its end.
    End,
}

impl Channel {
    /// Checks that `socket` keeps packets and descriptors together, and has
    /// the loop watch it.
    pub(super) fn new(socket: OwnedFd, registry: &Registry, token: Token) -> io::Result<Channel> {
        let kind = (
            sockopt::socket_domain(&socket)?,
            sockopt::socket_type(&socket)?,
        );
        if kind != (AddressFamily::UNIX, SocketType::SEQPACKET) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a Unix socket of type SOCK_SEQPACKET",
            ));
        }
        rustix::io::ioctl_fionbio(&socket, true)?;
        registry.register(
            &mut SourceFd(&socket.as_raw_fd()),
            token,
            Interest::READABLE,
        )?;
        Ok(Channel {
            socket,
            token,
            registry: registry.try_clone()?,
            waiting: VecDeque::new(),
            full: false,
            buffer: vec![0; wire::MAX_PACKET],
        })
    }

    /// Queues a report, with the master of a terminal where there is one.
    pub(super) fn report(&mut self, message: &FromInit, master: Option<OwnedFd>) {
        // Numbers and names only: there is nothing that JSON could not hold.
        if let Ok(packet) = serde_json::to_vec(message) {
            self.waiting.push_back(Report { packet, master });
        }
    }

    /// Sends what there is room for. An error means that the channel is dead.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while let Some(report) = self.waiting.front_mut() {
            let masters: Vec<_> = report.master.iter().map(AsFd::as_fd).collect();
            match fdpass::send(self.socket.as_fd(), &report.packet, &masters) {
                Ok(_) => drop(self.waiting.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return self.watch_for_room(true);
                }
                // Any process of this user can fill the kernel's count of
                // descriptors in flight. Without a master the terminal hangs
                // up and its command ends, which is the agent's own loss.
                Err(error) if is(&error, Errno::TOOMANYREFS) => report.master = None,
                Err(error) => return Err(error),
            }
        }
        self.watch_for_room(false)
    }

    /// Whether nothing waits to be sent.
    pub(super) fn is_drained(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes the next packet, if there is one.
    pub(super) fn receive(&mut self) -> io::Result<Incoming> {
        match fdpass::receive(self.socket.as_fd(), &mut self.buffer) {
            Ok(received) if received.len == 0 => Ok(Incoming::End),
            Ok(received) => Ok(self.read(received)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Incoming::Nothing),
            Err(error) => Err(error),
        }
    }

    fn read(&self, received: Received) -> Incoming {
        let packet = self.buffer.get(..received.len).unwrap_or_default();
        match wire::parse(packet) {
            // Whole, but descriptors were lost on the way: this process may
            // have as many open as it is allowed to.
            Ok(ToInit::Spawn(spawn)) if received.truncated => {
                Incoming::Unreadable { id: Some(spawn.id) }
            }
            Ok(message) => Incoming::Message(message, received.fds),
            Err(Unreadable { id }) => Incoming::Unreadable { id },
        }
    }

    /// Writability is watched only when it matters: each packet that the
    /// control plane reads would wake this process otherwise.
    fn watch_for_room(&mut self, full: bool) -> io::Result<()> {
        if self.full == full {
            return Ok(());
        }
        self.full = full;
        let interest = if full {
            Interest::READABLE | Interest::WRITABLE
        } else {
            Interest::READABLE
        };
        self.registry.reregister(
            &mut SourceFd(&self.socket.as_raw_fd()),
            self.token,
            interest,
        )
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}
