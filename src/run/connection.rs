//! One client of the socket API: bounded buffers both ways, so that a slow or
//! hostile client harms only itself.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

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

#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    lines: LineBuffer,
    /// Lines that wait to be served.
    arrived: VecDeque<Arrived>,
    /// What came while the line began that is not complete yet.
    fds: Descriptors,
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

/// A line, and the descriptors that it may take.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) line: Line,
    pub(crate) fds: Descriptors,
}

/// Descriptors of one message. More than one line may begin in the bytes that
/// they come with, and only who understands the lines knows whose they are. They
/// are closed with the last of these lines, so no later request gets them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Descriptors(Rc<RefCell<Vec<OwnedFd>>>);

impl Descriptors {
    fn new(fds: Vec<OwnedFd>) -> Descriptors {
        Descriptors(Rc::new(RefCell::new(fds)))
    }

    pub(crate) fn take(&self) -> Vec<OwnedFd> {
        self.0.take()
    }
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
            arrived: VecDeque::new(),
            fds: Descriptors::default(),
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

    /// Reads one turn; [`Connection::next_line`] then gives what it brought.
    /// To be called when that has given all it had.
    pub(crate) fn read(&mut self) -> ReadState {
        if self.is_slow() {
            // Taken up again when the queue has been written.
            return ReadState::Drained;
        }
        let mut buffer = vec![0; 16 << 10];
        let mut total = 0;
        while total < TURN {
            match fdpass::receive(self.socket.as_fd(), &mut buffer) {
                Ok(received) if received.len == 0 || received.truncated => {
                    return ReadState::Closed;
                }
                Ok(received) => {
                    total += received.len;
                    let bytes = buffer.get(..received.len).unwrap_or_default();
                    let has_fds = !received.fds.is_empty();
                    self.take_in(bytes, received.fds);
                    // So a turn cannot gather any number of them.
                    if has_fds {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return ReadState::Drained;
                }
                Err(_) => return ReadState::Closed,
            }
        }
        ReadState::MoreToRead
    }

    /// The next request to serve. There is none while the client does not
    /// read: the answers to a few bytes of requests could take megabytes.
    pub(crate) fn next_line(&mut self) -> Option<Arrived> {
        if self.is_slow() {
            return None;
        }
        self.arrived.pop_front()
    }

    /// Descriptors come with the first byte of their request, and the kernel
    /// ends a read after the message that carries some (unix(7)): theirs is one
    /// of the lines that begin in these bytes.
    fn take_in(&mut self, bytes: &[u8], fds: Vec<OwnedFd>) {
        let came = Descriptors::new(fds);
        let mut current = if self.lines.is_mid_line() {
            std::mem::take(&mut self.fds)
        } else {
            came.clone()
        };
        self.lines.push(bytes);
        while let Some(line) = self.lines.next_line() {
            let fds = std::mem::replace(&mut current, came.clone());
            self.arrived.push_back(Arrived { line, fds });
        }
        if self.lines.is_mid_line() {
            self.fds = current;
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
                // Any process of the user can bring this about. The one
                // terminal is lost, not the connection.
                Err(error) if is_too_many_refs(&error) && !fds.is_empty() => self.drop_front_fds(),
                Err(error) => return Err(error),
            }
        }
        if self.waiting > LIMIT {
            return Err(io::Error::other("the client does not read its answers"));
        }
        Ok(())
    }

    fn drop_front_fds(&mut self) {
        if let Some((_, fds)) = self.queue.front_mut() {
            fds.clear();
        }
    }

    pub(crate) fn is_flushed(&self) -> bool {
        self.queue.is_empty()
    }
}

fn is_too_many_refs(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::TOOMANYREFS.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn pair() -> (Connection, OwnedFd) {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (Connection::new(ours.into()), theirs.into())
    }

    fn send(socket: &OwnedFd, text: &str, fds: &[BorrowedFd<'_>]) {
        let sent = fdpass::send(socket.as_fd(), text.as_bytes(), fds).unwrap();
        assert_eq!(sent, text.len());
    }

    /// All lines that are there, each with the number of its descriptors,
    /// taken by who is asked for.
    fn read(connection: &mut Connection, takes: &str) -> Vec<(String, usize)> {
        let mut seen = Vec::new();
        loop {
            let state = connection.read();
            while let Some(Arrived { line, fds }) = connection.next_line() {
                let Line::Complete(bytes) = line else {
                    seen.push((String::new(), 0));
                    continue;
                };
                let text = String::from_utf8(bytes).unwrap();
                let count = if text.starts_with(takes) {
                    fds.take().len()
                } else {
                    0
                };
                seen.push((text, count));
            }
            if state != ReadState::MoreToRead {
                return seen;
            }
        }
    }

    fn seen(lines: &[(&str, usize)]) -> Vec<(String, usize)> {
        let lines = lines.iter();
        lines
            .map(|(line, count)| ((*line).to_owned(), *count))
            .collect()
    }

    #[test]
    fn descriptors_reach_the_request_that_they_came_with() {
        let (mut connection, peer) = pair();
        let (reader, writer) = io::pipe().unwrap();
        let (one, two) = ([reader.as_fd()], [reader.as_fd(), writer.as_fd()]);
        send(&peer, "ping\n", &[]);
        send(&peer, "exec 1\nping\n", &one);
        send(&peer, "exec 2\nexec 3\n", &two);
        send(&peer, "exe", &one);
        assert_eq!(
            read(&mut connection, "exec"),
            seen(&[
                ("ping", 0),
                ("exec 1", 1),
                ("ping", 0),
                ("exec 2", 2),
                ("exec 3", 0)
            ])
        );
        // The rest of a line that has begun, and one more with its own.
        send(&peer, "c 4\nexec 5\n", &two);
        assert_eq!(
            read(&mut connection, "exec"),
            seen(&[("exec 4", 1), ("exec 5", 2)])
        );
    }

    #[test]
    fn descriptors_that_nobody_takes_are_closed() {
        let (mut connection, peer) = pair();
        let (mut reader, writer) = io::pipe().unwrap();
        let two = [writer.as_fd(), writer.as_fd()];
        for text in ["ping\n", "not JSON\n", "exec refused\n"] {
            send(&peer, text, &two);
            send(&peer, "exec\n", &[]);
            assert_eq!(
                read(&mut connection, "exec\n"),
                seen(&[(text.trim_end(), 0), ("exec", 0)])
            );
            send(&peer, "exec\n", &two[..1]);
            assert_eq!(read(&mut connection, "exec"), seen(&[("exec", 1)]));
        }
        // A line that is too long.
        send(&peer, "x", &two);
        for _ in 0..=MAX_LINE >> 16 {
            send(&peer, &"x".repeat(1 << 16), &[]);
            read(&mut connection, "");
        }
        send(&peer, "\nexec\n", &[]);
        assert_eq!(read(&mut connection, "exec"), seen(&[("", 0), ("exec", 0)]));
        drop(writer);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn client_that_does_not_read_is_not_served() {
        let (mut connection, peer) = pair();
        send(&peer, "one\ntwo\n", &[]);
        connection.read();
        assert!(connection.next_line().is_some());
        connection.result(1, &"x".repeat(HIGH_WATER));
        assert!(connection.next_line().is_none());
        while !connection.is_flushed() {
            connection.flush().unwrap();
            rustix::io::read(&peer, &mut [0; 1 << 16]).unwrap();
        }
        assert!(connection.next_line().is_some());
    }

    #[test]
    fn a_turn_gathers_the_descriptors_of_one_message_only() {
        let (mut connection, peer) = pair();
        let (reader, _writer) = io::pipe().unwrap();
        for _ in 0..100 {
            send(&peer, "x", &[reader.as_fd(); fdpass::MAX_FDS]);
        }
        for _ in 0..100 {
            assert_eq!(connection.read(), ReadState::MoreToRead);
            // Only those of the line that has begun are kept.
            assert_eq!(connection.fds.0.borrow().len(), fdpass::MAX_FDS);
        }
    }
}
