//! A non-blocking TCP connection with what waits to be sent on it.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown};
use std::os::fd::AsFd;

use mio::event::Event;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use rustix::net::sockopt;

/// Of a socket between two event loops.
const NO_SLOT: usize = usize::MAX;

/// What came of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    Nothing,
    Data(usize),
    End,
}

/// Events are edge-triggered: each is noted here and stays true until the
/// kernel says otherwise.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    slot: usize,
    readable: bool,
    writable: bool,
    /// The peer has said that it sends no more, or is gone.
    hung_up: bool,
    ended: bool,
    /// What waits to be sent, from `sent` on.
    pub(crate) out: Vec<u8>,
    sent: usize,
}

/// What each connection has, and inherits from a listening socket: no small
/// write is held back for 40 ms, and a peer that is gone is found out.
pub(crate) fn set_options(socket: &impl AsFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}

fn register(stream: &mut TcpStream, slot: usize, registry: &Registry) -> io::Result<()> {
    let both = Interest::READABLE | Interest::WRITABLE;
    registry.register(stream, Token(slot), both)
}

impl Socket {
    /// `stream` has the options of `set_options`.
    pub(crate) fn new(
        mut stream: TcpStream,
        slot: usize,
        registry: &Registry,
    ) -> io::Result<Socket> {
        register(&mut stream, slot, registry)?;
        Ok(Socket {
            stream,
            slot,
            // Bytes may have come before the registration.
            readable: true,
            writable: true,
            hung_up: false,
            ended: false,
            out: Vec::new(),
            sent: 0,
        })
    }

    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// Takes it out of one event loop. It has no slot then.
    pub(crate) fn leave(&mut self, registry: &Registry) -> io::Result<()> {
        self.slot = NO_SLOT;
        registry.deregister(&mut self.stream)
    }

    /// Puts it into another one, which tells anew what can be done.
    pub(crate) fn enter(&mut self, slot: usize, registry: &Registry) -> io::Result<()> {
        self.slot = slot;
        self.readable = true;
        self.writable = true;
        register(&mut self.stream, slot, registry)
    }

    pub(crate) fn note(&mut self, event: &Event) {
        self.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        self.writable |= event.is_writable() || event.is_write_closed() || event.is_error();
        self.hung_up |= event.is_read_closed() || event.is_error();
    }

    /// Whether the peer sends no more; there may be something left to read.
    pub(crate) fn has_hung_up(&self) -> bool {
        self.hung_up
    }

    pub(crate) fn may_read(&self) -> bool {
        self.readable
    }

    /// Whether nothing waits to be sent.
    pub(crate) fn is_flushed(&self) -> bool {
        self.out.len() == self.sent
    }

    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Received> {
        if self.ended {
            return Ok(Received::End);
        }
        if !self.readable {
            return Ok(Received::Nothing);
        }
        loop {
            match self.stream.read(buffer) {
                Ok(0) => {
                    self.ended = true;
                    return Ok(Received::End);
                }
                Ok(length) => {
                    // A short read means that nothing is left; what comes
                    // later is a new event. An end may be there already.
                    self.readable = length == buffer.len() || self.hung_up;
                    return Ok(Received::Data(length));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.readable = false;
                    return Ok(Received::Nothing);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends `bytes`; what the kernel does not take waits.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while self.writable && self.is_flushed() && !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(length) => rest = rest.get(length..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(error) => return Err(error),
            }
        }
        self.out.extend_from_slice(rest);
        Ok(())
    }

    /// Sends what waits. Returns whether anything was sent.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        let mut progress = false;
        while self.writable && !self.is_flushed() {
            match self
                .stream
                .write(self.out.get(self.sent..).unwrap_or_default())
            {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(length) => {
                    self.sent += length;
                    progress = true;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(error) => return Err(error),
            }
        }
        if self.is_flushed() {
            self.out.clear();
            self.sent = 0;
        }
        Ok(progress)
    }

    /// Gives up what waits: the peer does not take it any more.
    pub(crate) fn discard(&mut self) {
        self.out.clear();
        self.sent = 0;
    }

    /// Who is at the other end.
    pub(crate) fn peer(&self) -> Option<IpAddr> {
        self.stream.peer_addr().ok().map(|address| address.ip())
    }

    /// Whether a connection that is being opened has come about.
    pub(crate) fn connected(&self) -> io::Result<bool> {
        if let Some(error) = self.stream.take_error()? {
            return Err(error);
        }
        match self.stream.peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Says that nothing more will be sent.
    pub(crate) fn end_sending(&self) {
        // A peer that is gone needs not be told.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Whether an idle connection is still good for a request: open, silent.
    pub(crate) fn is_quiet(&self) -> bool {
        let mut byte = [0];
        matches!(
            self.stream.peek(&mut byte),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock
        )
    }
}
