//! A client that comes through the gateway, byte by byte under control.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

use crate::gateway::Gateway;
use crate::server::read_head;

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}{}", self.head, self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

pub(crate) fn config(root: &CertificateDer<'static>, alpn: &[&[u8]]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Arc::new(config)
}

/// Sends CONNECT; returns the stream and the answer's head.
pub(crate) fn connect(gateway: &Gateway, target: &str) -> (TcpStream, String) {
    let mut stream = gateway.connect();
    write!(
        stream,
        "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"
    )
    .unwrap();
    let head = read_head(&mut stream).expect("an answer to CONNECT");
    (stream, head)
}

/// The body of a refused CONNECT.
pub(crate) fn refused(gateway: &Gateway, target: &str) -> (String, Value) {
    let (mut stream, head) = connect(gateway, target);
    let mut body = String::new();
    stream.read_to_string(&mut body).unwrap();
    (head, serde_json::from_str(&body).unwrap())
}

/// TLS through the gateway.
pub(crate) struct Client {
    pub(crate) tls: StreamOwned<ClientConnection, TcpStream>,
}

impl Client {
    pub(crate) fn open(gateway: &Gateway, host: &str, port: u16) -> Client {
        Client::open_as(gateway, host, port, host).expect("TLS with the gateway")
    }

    /// With another name in the ClientHello.
    pub(crate) fn open_as(
        gateway: &Gateway,
        host: &str,
        port: u16,
        sni: &str,
    ) -> Result<Client, String> {
        let (stream, head) = connect(gateway, &format!("{host}:{port}"));
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        Client::over(
            stream,
            sni,
            config(&gateway.pki.gateway, &[b"h2", b"http/1.1"]),
        )
    }

    pub(crate) fn over(
        mut stream: TcpStream,
        sni: &str,
        config: Arc<ClientConfig>,
    ) -> Result<Client, String> {
        let name = ServerName::try_from(sni.trim_matches(['[', ']']).to_owned()).unwrap();
        let mut connection = ClientConnection::new(config, name).unwrap();
        while connection.is_handshaking() {
            connection
                .complete_io(&mut stream)
                .map_err(|error| error.to_string())?;
        }
        Ok(Client {
            tls: StreamOwned::new(connection, stream),
        })
    }

    pub(crate) fn send(&mut self, text: &str) {
        self.tls.write_all(text.as_bytes()).unwrap();
        self.tls.flush().unwrap();
    }

    pub(crate) fn read_answer(&mut self, is_head: bool) -> Answer {
        let head = read_head(&mut self.tls).expect("an answer");
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let field = |name: &str| {
            head.lines().find_map(|line| {
                line.to_ascii_lowercase()
                    .strip_prefix(name)
                    .map(|value| value.trim().to_owned())
            })
        };
        let mut body = Vec::new();
        if is_head || status == 204 || status == 304 || status < 200 {
        } else if let Some(length) = field("content-length:") {
            body.resize(length.parse().unwrap(), 0);
            self.tls.read_exact(&mut body).unwrap();
        } else if field("transfer-encoding:").is_some() {
            body = self.read_chunks();
        } else {
            self.tls.read_to_end(&mut body).unwrap();
        }
        Answer { status, head, body }
    }

    /// The next chunk of a body; the last one is empty.
    pub(crate) fn read_chunk(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\r\n") {
            self.tls.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        let size = usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim(), 16).unwrap();
        let mut chunk = vec![0; size + 2];
        self.tls.read_exact(&mut chunk).unwrap();
        assert!(chunk.ends_with(b"\r\n"));
        chunk.truncate(size);
        chunk
    }

    fn read_chunks(&mut self) -> Vec<u8> {
        let chunks = std::iter::repeat_with(|| self.read_chunk());
        chunks
            .take_while(|chunk| !chunk.is_empty())
            .flatten()
            .collect()
    }

    pub(crate) fn ask(&mut self, request: &str) -> Answer {
        self.send(request);
        self.read_answer(request.starts_with("HEAD "))
    }

    /// A GET with nothing special.
    pub(crate) fn get(&mut self, host: &str, target: &str) -> Answer {
        self.ask(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
    }

    /// What is left until the end of the connection.
    pub(crate) fn read_rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let _ = self.tls.read_to_end(&mut rest);
        rest
    }
}

/// One GET over a connection of its own.
pub(crate) fn get(gateway: &Gateway, host: &str, port: u16, target: &str) -> Answer {
    let field = match port {
        443 => host.to_owned(),
        port => format!("{host}:{port}"),
    };
    Client::open(gateway, host, port).get(&field, target)
}
