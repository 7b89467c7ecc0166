//! One connection to the server, through the proxy or not: events -> what it has come to.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

/// The body of uploads, piece by piece; as much as rustls buffers.
const PIECE: usize = 64 << 10;
static ZEROES: [u8; PIECE] = [0; PIECE];
/// Longer than any head of a response here.
const MAX_HEAD: usize = 16 << 10;

/// Where to, and how.
#[derive(Debug)]
pub struct Route {
    pub proxy: Option<SocketAddr>,
    pub server: SocketAddr,
    pub host: String,
    pub tls: Arc<ClientConfig>,
    /// To stop after CONNECT.
    pub is_raw: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Connecting,
    Connect,
    Handshake,
    Idle,
    Head,
    Body(u64),
}

pub struct Connection {
    stream: TcpStream,
    tls: Option<Box<ClientConnection>>,
    phase: Phase,
    head: Vec<u8>,
    /// Bytes of an upload that are not written yet.
    upload: u64,
}

impl Connection {
    pub fn open(route: &Route, registry: &Registry, token: Token) -> io::Result<Connection> {
        let mut stream = TcpStream::connect(route.proxy.unwrap_or(route.server))?;
        registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Connection {
            stream,
            tls: None,
            phase: Phase::Connecting,
            head: Vec::new(),
            upload: 0,
        })
    }

    /// Whether it has nothing more to do.
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// Sends a request with a body of so many bytes, once it is idle. Whatever
    /// comes back is a new event.
    pub fn ask(&mut self, head: &[u8], upload: u64) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            tls.writer().write_all(head)?;
        }
        self.upload = upload;
        self.phase = Phase::Head;
        self.flush()
    }

    /// Does what can be done now. An end that was not asked for is an error.
    pub fn drive(&mut self, route: &Route, room: &mut [u8]) -> io::Result<()> {
        if self.phase == Phase::Connecting && !self.connected(route)? {
            return Ok(());
        }
        if self.phase == Phase::Connect && !self.tunnelled(route)? {
            return Ok(());
        }
        match self.tls {
            Some(_) => self.drive_tls(room),
            None => Ok(()),
        }
    }

    fn connected(&mut self, route: &Route) -> io::Result<bool> {
        if let Some(error) = self.stream.take_error()? {
            return Err(error);
        }
        match self.stream.peer_addr() {
            Err(error) if error.kind() == ErrorKind::NotConnected => return Ok(false),
            other => other?,
        };
        self.stream.set_nodelay(true)?;
        if route.proxy.is_none() {
            self.begin_tls(route)?;
            return Ok(true);
        }
        let target = format!("{}:{}", route.host, route.server.port());
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
        self.stream.write_all(request.as_bytes())?;
        self.phase = Phase::Connect;
        Ok(true)
    }

    /// Nothing comes after the head before the client has said something.
    fn tunnelled(&mut self, route: &Route) -> io::Result<bool> {
        let mut room = [0; 4096];
        while !self.head.ends_with(b"\r\n\r\n") {
            match self.stream.read(&mut room) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.head.extend_from_slice(&room[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        if !self.head.starts_with(b"HTTP/1.1 200") && !self.head.starts_with(b"HTTP/1.0 200") {
            let head = String::from_utf8_lossy(&self.head).into_owned();
            return Err(io::Error::other(format!("CONNECT got {head:?}")));
        }
        self.head = Vec::new();
        if route.is_raw {
            self.phase = Phase::Idle;
        } else {
            self.begin_tls(route)?;
        }
        Ok(true)
    }

    fn begin_tls(&mut self, route: &Route) -> io::Result<()> {
        let name = ServerName::try_from(route.host.clone()).map_err(io::Error::other)?;
        let tls = ClientConnection::new(route.tls.clone(), name).map_err(io::Error::other)?;
        self.tls = Some(Box::new(tls));
        self.phase = Phase::Handshake;
        Ok(())
    }

    fn drive_tls(&mut self, room: &mut [u8]) -> io::Result<()> {
        loop {
            self.flush()?;
            if self.phase == Phase::Idle {
                return Ok(());
            }
            let half = room.len() / 2;
            let length = match self.stream.read(&mut room[..half]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let (bytes, plain) = room.split_at_mut(half);
            self.take(&bytes[..length], plain)?;
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else {
            return Ok(());
        };
        loop {
            while self.upload > 0 {
                let wanted = self.upload.min(PIECE as u64) as usize;
                let written = tls.writer().write(&ZEROES[..wanted])?;
                if written == 0 {
                    break;
                }
                self.upload -= written as u64;
            }
            if !tls.wants_write() {
                return Ok(());
            }
            match tls.write_tls(&mut self.stream) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn take(&mut self, mut bytes: &[u8], plain: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let Some(tls) = &mut self.tls else {
                return Ok(());
            };
            tls.read_tls(&mut bytes)?;
            let state = tls.process_new_packets().map_err(io::Error::other)?;
            let mut waiting = state.plaintext_bytes_to_read();
            if self.phase == Phase::Handshake && !tls.is_handshaking() {
                self.phase = Phase::Idle;
            }
            while waiting > 0 {
                let Some(tls) = &mut self.tls else {
                    return Ok(());
                };
                let length = tls.reader().read(plain)?;
                waiting -= length;
                self.take_plain(&plain[..length])?;
            }
        }
        Ok(())
    }

    fn take_plain(&mut self, data: &[u8]) -> io::Result<()> {
        let body = match self.phase {
            Phase::Head => {
                self.head.extend_from_slice(data);
                let Some(end) = find(&self.head, b"\r\n\r\n") else {
                    return match self.head.len() > MAX_HEAD {
                        true => Err(io::Error::other("the head of a response does not end")),
                        false => Ok(()),
                    };
                };
                let head = String::from_utf8_lossy(&self.head[..end]).into_owned();
                self.phase = Phase::Body(length_of(&head)?);
                let body = self.head.len() - end - 4;
                self.head.clear();
                body
            }
            Phase::Body(_) => data.len(),
            _ => return Err(io::Error::other("bytes that nobody has asked for")),
        };
        if let Phase::Body(rest) = self.phase {
            self.phase = match rest.checked_sub(body as u64) {
                Some(0) if self.upload == 0 => Phase::Idle,
                Some(0) => return Err(io::Error::other("an answer before the body has gone")),
                Some(rest) => Phase::Body(rest),
                None => return Err(io::Error::other("more bytes than the response has")),
            };
        }
        Ok(())
    }

    /// Whether the other side has not closed it.
    pub fn is_open(&self) -> bool {
        let mut byte = [0];
        matches!(self.stream.peek(&mut byte), Err(error) if error.kind() == ErrorKind::WouldBlock)
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// Of a successful response; each that is asked for here says its length.
fn length_of(head: &str) -> io::Result<u64> {
    let status = head.split(' ').nth(1).unwrap_or_default();
    if !status.starts_with('2') {
        return Err(io::Error::other(format!("the response is {head:?}")));
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_length = name.eq_ignore_ascii_case("content-length");
        is_length.then(|| value.trim().parse().ok())?
    });
    match (length, status) {
        (Some(length), _) => Ok(length),
        (None, "204") => Ok(0),
        (None, _) => Err(io::Error::other(format!("no length in {head:?}"))),
    }
}
