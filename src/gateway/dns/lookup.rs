//! One question on its way through the resolvers: over UDP, over TCP where the
//! answer is cut, to the next resolver where one fails.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use mio::net::{TcpStream, UdpSocket};
use mio::{Interest, Registry, Token};

use crate::gateway::dns::Outcome;
use crate::gateway::dns::message::{self, Response};

const UDP_LIMIT: Duration = Duration::from_secs(2);
const TCP_LIMIT: Duration = Duration::from_secs(4);
/// Over all resolvers.
const ATTEMPTS: usize = 4;

#[derive(Debug)]
pub(crate) struct Lookup {
    name: String,
    kind: u16,
    id: u16,
    attempt: usize,
    transport: Transport,
    pub(crate) deadline: Instant,
    /// Some resolver has answered, be it that it failed.
    pub(crate) is_heard: bool,
}

#[derive(Debug)]
enum Transport {
    Udp(UdpSocket),
    Tcp {
        stream: TcpStream,
        out: Vec<u8>,
        incoming: Vec<u8>,
    },
    None,
}

/// What a look at a lookup has brought.
#[derive(Debug)]
pub(crate) enum Step {
    Wait,
    Done(Outcome),
}

/// Where to ask, and how to be told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way<'a> {
    pub(crate) resolvers: &'a [SocketAddr],
    pub(crate) registry: &'a Registry,
    pub(crate) token: Token,
    pub(crate) now: Instant,
    /// Not to be guessed.
    pub(crate) random: u16,
}

impl Lookup {
    pub(crate) fn start(name: &str, kind: u16, way: Way<'_>) -> (Lookup, Step) {
        let mut lookup = Lookup {
            name: name.to_owned(),
            kind,
            id: way.random,
            attempt: 0,
            transport: Transport::None,
            deadline: way.now,
            is_heard: false,
        };
        let step = lookup.ask(way);
        (lookup, step)
    }

    fn resolver(&self, way: Way<'_>) -> Option<SocketAddr> {
        let index = self.attempt.checked_rem(way.resolvers.len())?;
        way.resolvers.get(index).copied()
    }

    /// Asks over UDP, from a socket of its own: its port is one more thing
    /// that a forger would have to guess.
    fn ask(&mut self, way: Way<'_>) -> Step {
        while self.attempt < ATTEMPTS {
            let Some(resolver) = self.resolver(way) else {
                break;
            };
            self.id = way.random;
            // Old resolvers know no EDNS; they are asked again without.
            let edns = self.attempt < way.resolvers.len();
            let sent = message::question(self.id, &self.name, self.kind, edns)
                .ok_or_else(|| io::ErrorKind::InvalidInput.into())
                .and_then(|question| send_udp(resolver, &question, way));
            match sent {
                Ok(socket) => {
                    self.transport = Transport::Udp(socket);
                    self.deadline = way.now + UDP_LIMIT;
                    return Step::Wait;
                }
                Err(error) => {
                    log::debug!("cannot ask {resolver}: {error}");
                    self.attempt += 1;
                }
            }
        }
        Step::Done(Outcome::Failed)
    }

    fn next(&mut self, way: Way<'_>) -> Step {
        self.transport = Transport::None;
        self.attempt += 1;
        self.ask(way)
    }

    pub(crate) fn expire(&mut self, way: Way<'_>) -> Step {
        self.next(way)
    }

    pub(crate) fn on_event(&mut self, way: Way<'_>) -> Step {
        match &mut self.transport {
            Transport::Udp(_) => self.read_udp(way),
            Transport::Tcp { .. } => match self.exchange_tcp() {
                Ok(None) => Step::Wait,
                Ok(Some(response)) => self.conclude(response, way),
                Err(_) => self.next(way),
            },
            Transport::None => Step::Wait,
        }
    }

    fn read_udp(&mut self, way: Way<'_>) -> Step {
        let mut buffer = [0; 4096];
        loop {
            let Transport::Udp(socket) = &self.transport else {
                return Step::Wait;
            };
            match socket.recv(&mut buffer) {
                Ok(length) => {
                    let bytes = buffer.get(..length).unwrap_or_default();
                    // Whatever is not the answer may be a forgery: wait on.
                    if let Some(response) =
                        message::parse_response(bytes, self.id, &self.name, self.kind)
                    {
                        return self.conclude(response, way);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Step::Wait,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Nobody listens there.
                Err(_) => return self.next(way),
            }
        }
    }

    fn conclude(&mut self, response: Response, way: Way<'_>) -> Step {
        self.is_heard = true;
        match response {
            Response {
                truncated: true, ..
            } if matches!(self.transport, Transport::Udp(_)) => self.ask_over_tcp(way),
            Response {
                truncated: true, ..
            } => self.next(way),
            Response {
                code: 0,
                addresses,
                ttl,
                ..
            } => Step::Done(Outcome::Addresses { addresses, ttl }),
            Response { code: 3, .. } => Step::Done(Outcome::NoSuchName),
            _ => self.next(way),
        }
    }

    fn ask_over_tcp(&mut self, way: Way<'_>) -> Step {
        let opened = self.resolver(way).and_then(|resolver| {
            let mut stream = TcpStream::connect(resolver).ok()?;
            let interest = Interest::READABLE | Interest::WRITABLE;
            way.registry
                .register(&mut stream, way.token, interest)
                .ok()?;
            Some(stream)
        });
        let question = message::question(self.id, &self.name, self.kind, false);
        let (Some(stream), Some(question)) = (opened, question) else {
            return self.next(way);
        };
        self.transport = Transport::Tcp {
            stream,
            out: framed(&question),
            incoming: Vec::new(),
        };
        self.deadline = way.now + TCP_LIMIT;
        Step::Wait
    }

    fn exchange_tcp(&mut self) -> io::Result<Option<Response>> {
        let Transport::Tcp {
            stream,
            out,
            incoming,
        } = &mut self.transport
        else {
            return Ok(None);
        };
        while !out.is_empty() {
            match stream.write(out) {
                Ok(length) => drop(out.drain(..length)),
                Err(error) if is_pending(&error) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let mut buffer = [0; 4096];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => incoming.extend_from_slice(buffer.get(..length).unwrap_or_default()),
                Err(error) if is_pending(&error) => return Ok(None),
                Err(error) => return Err(error),
            }
            if let Some(bytes) = unframed(incoming) {
                return message::parse_response(bytes, self.id, &self.name, self.kind)
                    .map(Some)
                    .ok_or_else(|| io::ErrorKind::InvalidData.into());
            }
        }
    }
}

fn is_pending(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected | io::ErrorKind::Interrupted
    )
}

fn send_udp(resolver: SocketAddr, question: &[u8], way: Way<'_>) -> io::Result<UdpSocket> {
    let local: SocketAddr = match resolver {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let mut socket = UdpSocket::bind(local)?;
    // Packets from anybody else do not get through.
    socket.connect(resolver)?;
    way.registry
        .register(&mut socket, way.token, Interest::READABLE)?;
    socket.send(question)?;
    Ok(socket)
}

/// A message with its length in front, as over TCP.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(message.len()).unwrap_or_default();
    let mut out = length.to_be_bytes().to_vec();
    out.extend_from_slice(message);
    out
}

/// The first message, once all of it is there.
pub(crate) fn unframed(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    rest.get(..usize::from(u16::from_be_bytes(*length)))
}
