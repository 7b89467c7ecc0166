//! One client of the socket API: bounded buffers both ways, so that a slow or
//! hostile client harms only itself.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::api::line::{Line, LineBuffer};
use crate::api::{ApiError, Body, Event, MAX_LINE, Message};
use crate::sys::fdpass;

/// Most bytes read before other work gets its turn.
const TURN: usize = 256 << 10;
/// Waiting bytes above which no more of the client's requests are read, and
/// output events are left out.
const HIGH_WATER: usize = 1 << 20;
/// Waiting bytes at which the client is given up.
const LIMIT: usize = 16 << 20;
/// Most descriptors that may wait for their request.
const MAX_WAITING_FDS: usize = 8;

#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    lines: LineBuffer,
    fds: VecDeque<OwnedFd>,
    is_closed: bool,
    queue: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    /// Bytes of the first queued message that are sent already.
    sent: usize,
    /// Bytes in the queue.
    waiting: usize,
    /// Set by the handshake.
    pub(crate) client: Option<Client>,
    /// Requests that are not answered yet.
    pub(crate) in_flight: usize,
}

/// Who a connection belongs to.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub(crate) name: String,
    pub(crate) holds: bool,
}

/// What one turn of reading gave.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReadState {
    Drained,
    MoreToRead,
    /// The client is gone, or broke a rule that leaves nothing to answer.
    Closed,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd) -> Connection {
        Connection {
            socket,
            lines: LineBuffer::new(MAX_LINE),
            fds: VecDeque::new(),
            is_closed: false,
            queue: VecDeque::new(),
            sent: 0,
            waiting: 0,
            client: None,
            in_flight: 0,
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether so much waits for this client that it gets nothing optional.
    pub(crate) fn is_slow(&self) -> bool {
        self.waiting > HIGH_WATER
    }

    /// Reads one turn; [`Connection::next_line`] gives what it was. Once it
    /// has said that the client is gone it says so again.
    pub(crate) fn read(&mut self) -> ReadState {
        if self.is_closed {
            return ReadState::Closed;
        }
        if self.is_slow() {
            // Taken up again when the queue has been written.
            return ReadState::Drained;
        }
        let state = self.read_turn();
        self.is_closed = state == ReadState::Closed;
        state
    }

    fn read_turn(&mut self) -> ReadState {
        let mut buffer = vec![0; 16 << 10];
        let mut total = 0;
        while total < TURN {
            let received = match fdpass::receive(self.socket.as_fd(), &mut buffer) {
                Ok(received) if received.len > 0 && !received.truncated => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return ReadState::Drained;
                }
                _ => return ReadState::Closed,
            };
            total += received.len;
            self.lines
                .push(buffer.get(..received.len).unwrap_or_default());
            if !received.fds.is_empty() {
                // The request that they came with must take them before those
                // of the next one are here.
                self.fds.extend(received.fds);
                break;
            }
        }
        if self.fds.len() > MAX_WAITING_FDS {
            return ReadState::Closed;
        }
        ReadState::MoreToRead
    }

    /// The next request to serve. There is none for a client that does not
    /// read its answers: they would pile up here.
    pub(crate) fn next_line(&mut self) -> Option<Line> {
        if self.is_slow() {
            return None;
        }
        self.lines.next_line()
    }

    /// The descriptors that came with the current request. Where they are too
    /// few they are closed, or the next request would be given them.
    pub(crate) fn take_fds<const N: usize>(&mut self) -> Option<[OwnedFd; N]> {
        let count = self.fds.len().min(N);
        let taken: Vec<OwnedFd> = self.fds.drain(..count).collect();
        taken.try_into().ok()
    }

    /// To be called when the lines of a turn were served: descriptors that no
    /// request has taken belong to one that is still to be completed, if any.
    pub(crate) fn close_unclaimed_fds(&mut self) {
        if self.lines.is_at_start() {
            self.fds.clear();
        }
    }

    pub(crate) fn result(&mut self, id: u64, reply: &impl serde::Serialize) {
        match serde_json::to_value(reply) {
            Ok(value) => self.answer(id, Body::Result(value)),
            Err(error) => log::error!("cannot serialise an answer: {error}"),
        }
    }

    pub(crate) fn error(&mut self, id: Option<u64>, error: ApiError) {
        self.in_flight = self.in_flight.saturating_sub(usize::from(id.is_some()));
        self.push(
            &Message {
                id,
                body: Body::Error(error),
            },
            Vec::new(),
        );
    }

    pub(crate) fn event(&mut self, id: u64, event: Event, fds: Vec<OwnedFd>) {
        self.push(
            &Message {
                id: Some(id),
                body: Body::Event(event),
            },
            fds,
        );
    }

    fn answer(&mut self, id: u64, body: Body) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.push(&Message { id: Some(id), body }, Vec::new());
    }

    fn push(&mut self, message: &Message, fds: Vec<OwnedFd>) {
        let mut line = match serde_json::to_vec(message) {
            Ok(line) => line,
            Err(error) => return log::error!("cannot serialise a message: {error}"),
        };
        line.push(b'\n');
        self.waiting += line.len();
        self.queue.push_back((line, fds));
    }

    /// Writes what fits. An error means that the client is gone or given up.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while let Some((line, fds)) = self.queue.front() {
            let rest = line.get(self.sent..).unwrap_or_default();
            let borrowed: Vec<BorrowedFd<'_>> = if self.sent == 0 {
                fds.iter().map(AsFd::as_fd).collect()
            } else {
                Vec::new()
            };
            match fdpass::send(self.socket.as_fd(), rest, &borrowed) {
                Ok(sent) => {
                    self.sent += sent;
                    self.waiting = self.waiting.saturating_sub(sent);
                    if self.sent == line.len() {
                        self.queue.pop_front();
                        self.sent = 0;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if self.waiting > LIMIT {
            return Err(io::Error::other("the client does not read its answers"));
        }
        Ok(())
    }

    pub(crate) fn is_flushed(&self) -> bool {
        self.queue.is_empty()
    }
}
