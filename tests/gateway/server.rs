//! A TLS server on the loopback interface that does what a test says, and
//! counts who comes.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::authority::Pki;
use crate::gateway::PATIENCE;

pub(crate) type Tls = StreamOwned<ServerConnection, TcpStream>;

pub(crate) struct Server {
    pub(crate) port: u16,
    connections: Arc<AtomicUsize>,
    /// What a handler has sent to the test.
    pub(crate) seen: Receiver<String>,
}

impl Server {
    /// Runs `handle` for each connection, in a thread of its own.
    pub(crate) fn start(
        pki: &Pki,
        handle: impl Fn(Tls, &Sender<String>) + Send + Sync + 'static,
    ) -> Server {
        Server::start_at("127.0.0.1", rustls::ALL_VERSIONS, pki, handle)
    }

    pub(crate) fn start_at(
        address: &str,
        versions: &[&'static rustls::SupportedProtocolVersion],
        pki: &Pki,
        handle: impl Fn(Tls, &Sender<String>) + Send + Sync + 'static,
    ) -> Server {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![pki.server.clone()], pki.key())
            .unwrap();
        let config = Arc::new(config);
        Server::start_raw(address, move |stream, seen| {
            stream.set_nodelay(true).unwrap();
            let connection = ServerConnection::new(config.clone()).unwrap();
            handle(StreamOwned::new(connection, stream), seen);
        })
    }

    pub(crate) fn start_raw(
        address: &str,
        handle: impl Fn(TcpStream, &Sender<String>) + Send + Sync + 'static,
    ) -> Server {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::new(AtomicUsize::new(0));
        let (send, seen) = channel();
        let (count, handle) = (connections.clone(), Arc::new(handle));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                let (send, handle) = (send.clone(), handle.clone());
                std::thread::spawn(move || handle(stream, &send));
            }
        });
        Server {
            port,
            connections,
            seen,
        }
    }

    /// Answers each request, when it is whole, with its head as the body, and
    /// tells the test.
    pub(crate) fn echo(pki: &Pki) -> Server {
        Server::start(pki, answer_with_head)
    }

    pub(crate) fn echo_at(
        address: &str,
        versions: &[&'static rustls::SupportedProtocolVersion],
        pki: &Pki,
    ) -> Server {
        Server::start_at(address, versions, pki, answer_with_head)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn next_seen(&self) -> String {
        self.seen.recv_timeout(PATIENCE).unwrap()
    }
}

fn answer_with_head(mut tls: Tls, seen: &Sender<String>) {
    while let Some(head) = read_head(&mut tls) {
        let _ = seen.send(head.clone());
        if skip_body(&mut tls, &head).is_none() {
            return;
        }
        let body = if head.starts_with("HEAD ") { "" } else { &head };
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
            head.len()
        );
        if tls.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// A port of the loopback interface on which nobody listens for as long as the
/// socket is there: one that is let go could be given to another test.
pub(crate) fn closed_port() -> (OwnedFd, u16) {
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = rustix::net::getsockname(&socket).unwrap();
    (socket, SocketAddr::try_from(address).unwrap().port())
}

/// Reads up to the empty line; None at the end.
pub(crate) fn read_head(stream: &mut impl Read) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return None,
        }
    }
    Some(String::from_utf8(head).unwrap())
}

/// Reads as much as the head says; None if it does not come.
fn skip_body(stream: &mut impl Read, head: &str) -> Option<()> {
    let field = |name: &str| {
        head.lines().find_map(|line| {
            Some(
                line.to_ascii_lowercase()
                    .strip_prefix(name)?
                    .trim()
                    .to_owned(),
            )
        })
    };
    if let Some(length) = field("content-length:") {
        let length: u64 = length.parse().unwrap();
        let read = std::io::copy(&mut stream.take(length), &mut std::io::sink()).ok()?;
        return (read == length).then_some(());
    }
    let mut body = Vec::new();
    while field("transfer-encoding:").is_some() && !body.ends_with(b"0\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        body.push(byte[0]);
    }
    Some(())
}
