//! What is passed on without a look inside: tunnels of rules that say so, and
//! SOCKS5 for tcp rules.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::client::{Client, config, connect};
use crate::gateway::{Gateway, PATIENCE, Setup, https, policy, tcp};
use crate::server::{Server, closed_port};

pub(crate) fn tunnel(host: &str, port: u16) -> Value {
    let mut rule = https(host, port, &["*"]);
    rule["inspect"] = json!(false);
    rule
}

#[test]
fn a_tunnel_is_end_to_end_and_recorded_as_such() {
    let setup = Setup::new();
    let server = Server::echo(&setup.pki);
    let gateway = setup.start(&policy(&[tunnel("a.example.org", server.port)], &[]));
    let (stream, _) = connect(&gateway, &format!("a.example.org:{}", server.port));
    // The server's own certificate, not one of the gateway's.
    let mut client = Client::over(stream, "a.example.org", config(&gateway.pki.root, &[])).unwrap();
    assert_eq!(client.get("anything.example", "/any/../thing").status, 200);
    assert!(server.next_seen().starts_with("GET /any/../thing "));
    drop(client);
    let line = gateway.audited(|line| line["event"] == "end");
    assert_eq!(
        (line["kind"].as_str(), line["verdict"].as_str()),
        (Some("tunnel"), Some("allow"))
    );
    assert!(line["up"].as_u64().unwrap() > 100 && line["down"].as_u64().unwrap() > 100);
    assert_eq!(line.get("path"), None);
}

#[test]
fn a_tunnel_takes_only_the_name_of_its_rule() {
    let setup = Setup::new();
    let server = Server::echo(&setup.pki);
    let gateway = setup.start(&policy(&[tunnel("a.example.org", server.port)], &[]));
    let target = format!("a.example.org:{}", server.port);
    let (stream, _) = connect(&gateway, &target);
    let error = Client::over(stream, "b.example.org", config(&gateway.pki.root, &[]))
        .err()
        .unwrap();
    assert!(error.contains("UnrecognisedName"), "{error}");
    let (mut stream, _) = connect(&gateway, &target);
    stream.write_all(b"\0raw bytes").unwrap();
    assert!(matches!(stream.read(&mut [0; 10]), Ok(0)));
    assert_eq!(server.connections(), 0);
}

/// Sends the bytes and returns what comes back, up to `length`.
pub(crate) fn socks(gateway: &Gateway, bytes: &[u8], length: usize) -> (TcpStream, Vec<u8>) {
    let mut stream = TcpStream::connect(gateway.socks).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = vec![0; length];
    let mut read = 0;
    while read < length {
        match stream.read(&mut answer[read..]) {
            Ok(0) | Err(_) => break,
            Ok(more) => read += more,
        }
    }
    answer.truncate(read);
    (stream, answer)
}

/// A connection by SOCKS that was allowed.
pub(crate) fn open_socks(gateway: &Gateway, name: &str, port: u16) -> TcpStream {
    let (stream, answer) = socks(gateway, &by_name(name, port), 12);
    assert_eq!(answer.get(..4), Some(&[5, 0, 5, 0][..]), "{answer:?}");
    stream
}

pub(crate) fn by_name(name: &str, port: u16) -> Vec<u8> {
    let mut bytes = vec![5, 1, 0, 5, 1, 0, 3, name.len() as u8];
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(&port.to_be_bytes());
    bytes
}

fn by_address(octets: [u8; 4], port: u16) -> Vec<u8> {
    let mut bytes = vec![5, 1, 0, 5, 1, 0, 1];
    bytes.extend_from_slice(&octets);
    bytes.extend_from_slice(&port.to_be_bytes());
    bytes
}

/// Sends back what comes, and ends when the client does.
pub(crate) fn plain_echo() -> Server {
    Server::start_raw("127.0.0.1", |mut stream, seen| {
        stream.set_read_timeout(None).unwrap();
        let mut bytes = Vec::new();
        let mut piece = [0; 1024];
        while let Ok(length @ 1..) = stream.read(&mut piece) {
            bytes.extend_from_slice(&piece[..length]);
            stream.write_all(&piece[..length]).unwrap();
        }
        stream.write_all(b"bye").unwrap();
        let _ = seen.send(String::from_utf8_lossy(&bytes).into_owned());
    })
}

#[test]
fn socks_reaches_what_a_tcp_rule_names() {
    let server = plain_echo();
    let rules = [
        tcp("a.example.org", server.port),
        tcp("127.0.0.1", server.port),
    ];
    let gateway = Gateway::start(&policy(&[], &rules));
    for mut request in [
        by_name("A.example.org.", server.port),
        by_address([127, 0, 0, 1], server.port),
        by_name("127.0.0.1", server.port),
    ] {
        // Some clients do not wait for the answer.
        request.extend_from_slice(b"early ");
        let (mut stream, answer) = socks(&gateway, &request, 12);
        assert_eq!(answer, [5, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        stream.write_all(b"late").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert_eq!(text, "early latebye");
        assert_eq!(server.next_seen(), "early late");
    }
    let line = gateway.audited(|line| line["kind"] == "tcp" && line["event"] == "end");
    assert_eq!(
        (line["up"].as_u64(), line["down"].as_u64()),
        (Some(10), Some(13))
    );
    assert_eq!(
        (line["rule"].as_str(), line["port"].as_u64()),
        (Some("workspace"), Some(u64::from(server.port)))
    );
}

#[test]
fn socks_refuses_what_no_tcp_rule_names_with_the_right_code() {
    let server = plain_echo();
    let (_held, closed) = closed_port();
    let gateway = Gateway::start(&policy(
        &[https("b.example.org", server.port, &["*"])],
        &[
            tcp("a.example.org", server.port),
            tcp("a.example.org", closed),
            tcp("nowhere.example.org", 22),
        ],
    ));
    let code = |bytes: &[u8]| socks(&gateway, bytes, 12).1.get(3).copied();
    assert_eq!(code(&by_name("a.example.org", server.port + 1)), Some(2));
    assert_eq!(code(&by_name("b.example.org", server.port)), Some(2));
    assert_eq!(code(&by_name("c.example.org", server.port)), Some(2));
    // The address of an allowed name is not the name.
    assert_eq!(code(&by_address([127, 0, 0, 1], server.port)), Some(2));
    assert_eq!(code(&by_name("a.example.org", closed)), Some(5));
    assert_eq!(code(&by_name("nowhere.example.org", 22)), Some(4));
    let mut bind = by_name("a.example.org", server.port);
    bind[4] = 2;
    assert_eq!(code(&bind), Some(7));
    let mut udp = by_name("a.example.org", server.port);
    udp[4] = 3;
    assert_eq!(code(&udp), Some(7));
    assert_eq!(code(&[5, 1, 0, 5, 1, 0, 9, 0, 0]), Some(8));
    assert_eq!(socks(&gateway, &[5, 1, 2], 12).1, [5, 0xff]);
    let (_, nothing) = socks(&gateway, b"GET / HTTP/1.1\r\n\r\n", 12);
    assert!(nothing.is_empty());
    assert_eq!(server.connections(), 0);
    let line = gateway.audited(|line| line["host"] == "c.example.org");
    assert_eq!(
        (line["kind"].as_str(), line["verdict"].as_str()),
        (Some("tcp"), Some("deny"))
    );
}
