//! A client of the socket API that knows nothing but its lines.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde_json::{Value, json};

use super::PATIENCE;

/// Lines in both directions; every wait has an end, at which it panics.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) socket: UnixStream,
    bytes: Vec<u8>,
    /// Descriptors that came and were not taken yet.
    pub(crate) fds: VecDeque<OwnedFd>,
    /// Messages that were read while another one was waited for.
    kept: VecDeque<Value>,
    last_id: u64,
    pub(crate) patience: Duration,
}

impl Client {
    /// Connects and says hello.
    pub(crate) fn connect(path: &Path) -> Client {
        let mut client = Client::raw(path);
        let hello = json!({"api": 1, "client": "test/1"});
        client.call("hello", hello).expect("hello");
        client
    }

    /// Connects as one that keeps a launched control plane alive.
    pub(crate) fn connect_holding(path: &Path) -> Client {
        Client::raw(path).hold()
    }

    /// Says hello as one that keeps a launched control plane alive.
    pub(crate) fn hold(mut self) -> Client {
        let hello = json!({"api": 1, "client": "test/1", "holds": true});
        self.call("hello", hello).expect("hello");
        self
    }

    /// Connects and says hello; `None` where nobody answers, or with a refusal.
    pub(crate) fn try_connect(path: &Path) -> Option<Client> {
        let mut client = Client::try_raw(path).ok()?;
        let line = client.request("hello", json!({"api": 1, "client": "test/1"}));
        client.socket.write_all(line.as_bytes()).ok()?;
        let answer = client.receive()?;
        answer.get("result").is_some().then_some(client)
    }

    /// Connects and says nothing.
    pub(crate) fn raw(path: &Path) -> Client {
        Client::try_raw(path).unwrap_or_else(|error| panic!("connect to {path:?}: {error}"))
    }

    pub(crate) fn try_raw(path: &Path) -> std::io::Result<Client> {
        Ok(Client {
            socket: UnixStream::connect(path)?,
            bytes: Vec::new(),
            fds: VecDeque::new(),
            kept: VecDeque::new(),
            last_id: 0,
            patience: PATIENCE,
        })
    }

    /// Sends a request; returns its id.
    pub(crate) fn send(&mut self, method: &str, params: Value) -> u64 {
        let line = self.request(method, params);
        self.socket.write_all(line.as_bytes()).expect("send");
        self.last_id
    }

    /// The same with descriptors.
    pub(crate) fn send_with_fds(
        &mut self,
        method: &str,
        params: Value,
        fds: &[BorrowedFd<'_>],
    ) -> u64 {
        let line = self.request(method, params);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        let bytes = [IoSlice::new(line.as_bytes())];
        let sent =
            rustix::net::sendmsg(&self.socket, &bytes, &mut control, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(sent, line.len());
        self.last_id
    }

    fn request(&mut self, method: &str, params: Value) -> String {
        self.last_id += 1;
        let request = json!({"id": self.last_id, "method": method, "params": params});
        format!("{request}\n")
    }

    /// Sends these very bytes.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("send");
    }

    /// The next message; `None` when the control plane has closed.
    pub(crate) fn receive(&mut self) -> Option<Value> {
        match self.kept.pop_front() {
            Some(message) => Some(message),
            None => self.read_message(Instant::now() + self.patience),
        }
    }

    /// The next message that `wanted` accepts; others are kept for later.
    pub(crate) fn receive_where(
        &mut self,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Option<Value> {
        if let Some(at) = self.kept.iter().position(&wanted) {
            return self.kept.remove(at);
        }
        let end = Instant::now() + self.patience;
        loop {
            assert!(Instant::now() < end, "waited for {what}");
            let message = self.read_message(end)?;
            if wanted(&message) {
                return Some(message);
            }
            self.kept.push_back(message);
        }
    }

    /// The answer to request `id`: its result, or its error.
    pub(crate) fn answer(&mut self, id: u64) -> Result<Value, Value> {
        let is_answer = |message: &Value| message["id"] == id && message.get("event").is_none();
        let mut message = self
            .receive_where(&format!("the answer to request {id}"), is_answer)
            .unwrap_or_else(|| panic!("the control plane closed before it answered {id}"));
        match message.get("error") {
            Some(error) => Err(error.clone()),
            None => Ok(message["result"].take()),
        }
    }

    pub(crate) fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.send(method, params);
        self.answer(id)
    }

    /// Runs a command; it must at least be started.
    pub(crate) fn shell(&mut self, command: &str) -> Value {
        self.shell_with(json!({"command": command}))
    }

    pub(crate) fn shell_with(&mut self, params: Value) -> Value {
        let shown: String = params.to_string().chars().take(200).collect();
        self.call("shell", params)
            .unwrap_or_else(|error| panic!("{shown} was refused: {error}"))
    }

    /// Starts a command and returns the id of its request.
    pub(crate) fn start(&mut self, command: &str) -> u64 {
        self.send("shell", json!({"command": command}))
    }

    /// Starts a command and waits until it has printed something.
    pub(crate) fn start_and_hear(&mut self, command: &str) -> u64 {
        let id = self.send("shell", json!({"command": command, "stream": true}));
        let event = self
            .receive_where("its first output", |message| message["id"] == id)
            .expect("an event");
        assert!(event.get("event").is_some(), "{command}: {event}");
        id
    }

    /// Runs a command that must succeed; what it printed.
    pub(crate) fn output(&mut self, command: &str) -> String {
        let result = self.shell(command);
        let exit = (&result["ended"], &result["code"]);
        assert_eq!(exit, (&json!("exited"), &json!(0)), "{command}: {result}");
        result["output"].as_str().expect("text").to_owned()
    }

    fn read_message(&mut self, end: Instant) -> Option<Value> {
        loop {
            if let Some(at) = self.bytes.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.bytes.drain(..=at).collect();
                let text = String::from_utf8_lossy(&line);
                return Some(
                    serde_json::from_slice(&line)
                        .unwrap_or_else(|error| panic!("{error} in {text:?}")),
                );
            }
            if !self.fill(end) {
                return None;
            }
        }
    }

    /// Reads once; false at the end of the stream.
    fn fill(&mut self, end: Instant) -> bool {
        let left = end.saturating_duration_since(Instant::now());
        self.socket
            .set_read_timeout(Some(left.max(Duration::from_millis(1))))
            .unwrap();
        let mut buffer = vec![0; 64 << 10];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recvmsg(
                self.socket.as_fd(),
                &mut [IoSliceMut::new(&mut buffer)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            )
        });
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = part {
                self.fds.extend(fds);
            }
        }
        match received.map_err(std::io::Error::from) {
            Ok(message) => {
                self.bytes.extend_from_slice(&buffer[..message.bytes]);
                message.bytes > 0
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => panic!(
                "no message within {:?}: {error}; got {:?}",
                self.patience,
                String::from_utf8_lossy(&self.bytes)
            ),
        }
    }
}
