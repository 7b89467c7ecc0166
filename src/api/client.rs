//! A blocking client of the socket API: calls in, replies and errors out. It
//! never starts a control plane; `launch` does.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt::Timeout;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use serde::de::DeserializeOwned;

use crate::api::line::{Line, LineBuffer};
use crate::api::{
    API_VERSION, ApiError, Body, Call, ErrorKind, Event, Hello, HelloReply, MAX_LINE, Message,
    Request,
};
use crate::sys::fdpass;

/// How long a control plane may take to answer the handshake.
const HELLO_WAIT: Duration = Duration::from_secs(10);
const READ_SIZE: usize = 16 << 10;

/// A connection to one control plane, after the handshake.
#[derive(Debug)]
pub(crate) struct Client {
    socket: UnixStream,
    lines: LineBuffer,
    /// Descriptors that have come before the line they belong to.
    fds: VecDeque<OwnedFd>,
    next_id: u64,
}

/// What is left of a client for a loop that does its own reading and writing.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) socket: UnixStream,
    /// May hold lines that were read already.
    pub(crate) lines: LineBuffer,
    /// The first id that no request has used.
    pub(crate) next_id: u64,
}

impl Client {
    /// Connects and shakes hands. `name` is the client's name and version, as
    /// in `umwelt-ctl/0.1.0`. `Unreachable`: nobody answers.
    pub(crate) fn connect(
        socket: &Path,
        name: &str,
        holds: bool,
    ) -> Result<(Client, HelloReply), ApiError> {
        Client::connect_by(socket, name, holds, Instant::now() + HELLO_WAIT)
    }

    /// As `connect`, with an end to all waiting that may come earlier.
    pub(crate) fn connect_by(
        path: &Path,
        name: &str,
        holds: bool,
        deadline: Instant,
    ) -> Result<(Client, HelloReply), ApiError> {
        let deadline = deadline.min(Instant::now() + HELLO_WAIT);
        let socket = connect_socket(path, deadline)?;
        let mut client = Client {
            socket,
            lines: LineBuffer::new(MAX_LINE),
            fds: VecDeque::new(),
            next_id: 1,
        };
        let id = client.send(
            Call::Hello(Hello {
                api: API_VERSION,
                client: name.to_owned(),
                holds,
            }),
            &[],
        )?;
        let value = client.hello_value(id, deadline)?;
        let reply = decode_hello(value)?;
        client
            .socket
            .set_write_timeout(None)
            .map_err(|error| broken("set up the connection", &error))?;
        Ok((client, reply))
    }

    /// Sends a request and returns its id. The descriptors go along.
    pub(crate) fn send(&mut self, call: Call, fds: &[BorrowedFd<'_>]) -> Result<u64, ApiError> {
        let id = self.next_id;
        let line = request_line(id, call)?;
        self.next_id += 1;
        let mut rest = line.as_slice();
        let mut fds = fds;
        while !rest.is_empty() {
            let sent = fdpass::send(self.socket.as_fd(), rest, fds)
                .map_err(|error| broken("send to the control plane", &error))?;
            fds = &[];
            rest = rest.get(sent..).unwrap_or_default();
        }
        Ok(id)
    }

    /// The next message, with its descriptors, if one is there; never waits. For a caller of poll(2),
    /// who repeats this until it says `None` before polling again.
    pub(crate) fn try_receive(&mut self) -> Result<Option<(Message, Vec<OwnedFd>)>, ApiError> {
        loop {
            if let Some(received) = self.next_buffered()? {
                return Ok(Some(received));
            }
            if !readable(self.socket.as_fd(), Some(Duration::ZERO))? {
                return Ok(None);
            }
            self.fill()?;
        }
    }

    pub(crate) fn into_parts(self) -> Parts {
        Parts {
            socket: self.socket,
            lines: self.lines,
            next_id: self.next_id,
        }
    }

    fn next_buffered(&mut self) -> Result<Option<(Message, Vec<OwnedFd>)>, ApiError> {
        let Some(line) = self.lines.next_line() else {
            return Ok(None);
        };
        let message = parse_message(&line)?;
        // Only this event carries a descriptor, and exactly one.
        let fds = match message.body {
            Body::Event(Event::Terminal) => self.fds.pop_front().into_iter().collect(),
            _ => Vec::new(),
        };
        Ok(Some((message, fds)))
    }

    fn fill(&mut self) -> Result<(), ApiError> {
        let mut buffer = vec![0; READ_SIZE];
        let received = fdpass::receive(self.socket.as_fd(), &mut buffer)
            .map_err(|error| broken("read from the control plane", &error))?;
        if received.len == 0 {
            return Err(closed());
        }
        self.fds.extend(received.fds);
        self.lines
            .push(buffer.get(..received.len).unwrap_or_default());
        Ok(())
    }

    fn hello_value(&mut self, id: u64, deadline: Instant) -> Result<serde_json::Value, ApiError> {
        loop {
            match self.next_buffered()? {
                Some((message, _)) => match message.body {
                    Body::Error(error) => return Err(error),
                    Body::Result(value) if message.id == Some(id) => return Ok(value),
                    _ => {}
                },
                None => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if !readable(self.socket.as_fd(), Some(left))? {
                        return Err(ApiError::new(
                            ErrorKind::Unreachable,
                            "the control plane does not answer",
                        ));
                    }
                    self.fill()?;
                }
            }
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// One request as a line with its LF, refused here if it would be refused there.
pub(crate) fn request_line(id: u64, call: Call) -> Result<Vec<u8>, ApiError> {
    let mut line = serde_json::to_vec(&Request { id, call })
        .map_err(|error| ApiError::bad_request(format!("cannot write the request: {error}")))?;
    if line.len() > MAX_LINE {
        return Err(ApiError::new(
            ErrorKind::Limit,
            format!(
                "the request takes {} bytes as JSON, the limit is {MAX_LINE}",
                line.len()
            ),
        ));
    }
    line.push(b'\n');
    Ok(line)
}

pub(crate) fn parse_message(line: &Line) -> Result<Message, ApiError> {
    match line {
        Line::Complete(line) => serde_json::from_slice(line).map_err(|error| unreadable(&error)),
        Line::TooLong => Err(ApiError::new(
            ErrorKind::Unreachable,
            format!("the control plane sent a line of more than {MAX_LINE} bytes"),
        )),
    }
}

pub(crate) fn decode<T: DeserializeOwned>(value: serde_json::Value) -> Result<T, ApiError> {
    serde_json::from_value(value).map_err(|error| unreadable(&error))
}

/// The end of the stream, as an error.
pub(crate) fn closed() -> ApiError {
    ApiError::new(
        ErrorKind::Unreachable,
        "the control plane has closed the connection",
    )
}

pub(crate) fn broken(what: &str, error: &io::Error) -> ApiError {
    ApiError::new(ErrorKind::Unreachable, format!("cannot {what}: {error}"))
}

fn unreadable(error: &serde_json::Error) -> ApiError {
    ApiError::new(
        ErrorKind::Unreachable,
        format!("cannot read an answer of the control plane: {error}"),
    )
}

/// The version is looked at first: a reply of another one may be of any form.
fn decode_hello(value: serde_json::Value) -> Result<HelloReply, ApiError> {
    let api = value.get("api").and_then(serde_json::Value::as_u64);
    if api != Some(API_VERSION.into()) {
        let api = api.map_or_else(|| "none".to_owned(), |api| api.to_string());
        return Err(ApiError::new(
            ErrorKind::Version,
            format!(
                "the running control plane speaks API version {api}, this program {API_VERSION}"
            ),
        )
        .with_hint("stop the sandbox with the umwelt-ctl that started it, then try again"));
    }
    decode(value)
}

/// connect(2) itself waits when the backlog is full, so the limit is set first.
fn connect_socket(path: &Path, deadline: Instant) -> Result<UnixStream, ApiError> {
    let address = SocketAddrUnix::new(path).map_err(|_| {
        ApiError::new(
            ErrorKind::StartFailed,
            format!("the socket path {path:?} is longer than the system allows"),
        )
        .with_hint("set XDG_RUNTIME_DIR to a shorter path")
    })?;
    let left = deadline
        .saturating_duration_since(Instant::now())
        .max(Duration::from_millis(1));
    let connect = || {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(left))?;
        rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address))?;
        Ok::<_, rustix::io::Errno>(socket)
    };
    let socket =
        connect().map_err(|error| broken(&format!("connect to {path:?}"), &error.into()))?;
    Ok(UnixStream::from(socket))
}

/// Waits until `fd` can be read (or is closed); false when the time is over.
pub(super) fn readable(fd: BorrowedFd<'_>, wait: Option<Duration>) -> Result<bool, ApiError> {
    let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let ready = rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, wait.as_ref()))
        .map_err(|error| broken("wait for the control plane", &error.into()))?;
    Ok(ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Empty;
    use serde_json::json;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use tempfile::TempDir;

    /// Serves one connection with `serve` on a thread of its own.
    fn plane(serve: impl FnOnce(UnixStream) + Send + 'static) -> (TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || serve(listener.accept().unwrap().0));
        (dir, path)
    }

    fn next_line(stream: &UnixStream) -> serde_json::Value {
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn greet(mut stream: &UnixStream, api: u32) {
        let hello = next_line(stream);
        assert_eq!(hello["method"], "hello");
        let result =
            json!({"api": api, "version": "0", "sid": "s", "workspace": "/w", "state": "ready"});
        writeln!(stream, "{}", json!({"id": hello["id"], "result": result})).unwrap();
    }

    fn connect(path: &Path) -> Result<(Client, HelloReply), ApiError> {
        Client::connect(path, "test/0", false)
    }

    #[test]
    fn nobody_there_is_unreachable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        assert_eq!(connect(&path).unwrap_err().kind, ErrorKind::Unreachable);
        drop(UnixListener::bind(&path).unwrap());
        assert_eq!(connect(&path).unwrap_err().kind, ErrorKind::Unreachable);
    }

    #[test]
    fn end_of_stream_in_the_handshake_is_unreachable() {
        let (_dir, path) = plane(drop);
        assert_eq!(connect(&path).unwrap_err().kind, ErrorKind::Unreachable);
    }

    #[test]
    fn silence_in_the_handshake_ends_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _listener = UnixListener::bind(&path).unwrap();
        let start = Instant::now();
        let deadline = start + Duration::from_millis(50);
        let error = Client::connect_by(&path, "test/0", false, deadline).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unreachable);
        assert!(start.elapsed() < HELLO_WAIT);
    }

    #[test]
    fn another_version_is_named_whatever_else_it_says() {
        let (_dir, path) = plane(|mut stream| {
            let id = next_line(&stream)["id"].clone();
            writeln!(stream, "{}", json!({"id": id, "result": {"api": 2}})).unwrap();
        });
        let error = connect(&path).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Version);
        assert!(error.message.contains("version 2"), "{}", error.message);
    }

    #[test]
    fn descriptor_stays_with_its_event() {
        let (sent, both) = std::sync::mpsc::channel();
        let (_dir, path) = plane(move |stream| {
            greet(&stream, 1);
            let (reader, writer) = io::pipe().unwrap();
            drop(writer);
            let first = b"{\"id\":7,\"event\":{\"output\":{\"text\":\"\",\"skipped\":0}}}\n";
            fdpass::send(stream.as_fd(), first, &[]).unwrap();
            let second = b"{\"id\":8,\"event\":\"terminal\"}\n";
            fdpass::send(stream.as_fd(), second, &[reader.as_fd()]).unwrap();
            sent.send(()).unwrap();
        });
        let (mut client, _) = connect(&path).unwrap();
        // Both are in the socket before the first is read.
        both.recv().unwrap();
        assert_eq!(client.try_receive().unwrap().unwrap().1.len(), 0);
        let (message, fds) = client.try_receive().unwrap().unwrap();
        assert_eq!(message.id, Some(8));
        assert_eq!(fds.len(), 1);
    }

    #[test]
    fn try_receive_does_not_wait() {
        let (_dir, path) = plane(|mut stream| {
            greet(&stream, 1);
            next_line(&stream);
            stream.write_all(b"{\"id\":2,\"result\":{}}\n{\"i").unwrap();
            next_line(&stream);
        });
        let (mut client, _) = connect(&path).unwrap();
        assert!(client.try_receive().unwrap().is_none());
        client.send(Call::Ping(Empty {}), &[]).unwrap();
        assert!(readable(client.as_fd(), Some(Duration::from_secs(60))).unwrap());
        assert_eq!(client.try_receive().unwrap().unwrap().0.id, Some(2));
        assert!(client.try_receive().unwrap().is_none());
        drop(client);
    }

    #[test]
    fn too_long_a_request_is_refused_before_it_is_sent() {
        let command = "\u{1}".repeat(MAX_LINE / 6 + 1);
        let call = Call::Shell(crate::api::Shell {
            command,
            ..Default::default()
        });
        assert_eq!(request_line(1, call).unwrap_err().kind, ErrorKind::Limit);
    }

    #[test]
    fn too_long_a_socket_path_is_no_reason_to_launch() {
        let error = connect(Path::new(&format!("/{}", "x".repeat(120)))).unwrap_err();
        assert_eq!(error.kind, ErrorKind::StartFailed);
        assert!(error.hint.is_some());
    }
}
