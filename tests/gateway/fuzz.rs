//! Changed bytes against the running gateway: it stays up, and whatever a
//! server gets to see is what the policy allows. The seeds are fixed, so that
//! a failure comes again.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use crate::client::{Client, config, connect};
use crate::gateway::{Gateway, PATIENCE, Setup, https, policy, tcp};
use crate::server::Server;

/// xorshift, for changes that are the same each time.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below.max(1) as u64) as usize
    }

    /// A few changes of the kinds that parsers disagree about.
    fn change(&mut self, bytes: &[u8], words: &[&[u8]]) -> Vec<u8> {
        let mut out = bytes.to_vec();
        for _ in 0..=self.next(3) {
            let at = self.next(out.len());
            match self.next(6) {
                0 if !out.is_empty() => out[at] ^= 1 << self.next(8),
                1 if !out.is_empty() => drop(out.remove(at)),
                2 => out.insert(at, self.next(256) as u8),
                3 => out.truncate(at),
                4 => {
                    let again = out[at..].to_vec();
                    out.extend_from_slice(&again);
                }
                _ => {
                    let word = words[self.next(words.len())];
                    out.splice(at..at, word.iter().copied());
                }
            }
        }
        out
    }
}

/// The files of a corpus, with the target filled in.
fn corpus(name: &str, host: &str) -> Vec<Vec<u8>> {
    let directory = format!("{}/tests/gateway/corpus/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut paths: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths
        .into_iter()
        .map(|path| {
            let text = std::fs::read(path).unwrap();
            match String::from_utf8(text) {
                Ok(text) => text.replace("@HOST@", host).into_bytes(),
                Err(error) => error.into_bytes(),
            }
        })
        .collect()
}

const WORDS: [&[u8]; 22] = [
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\t",
    b"\0",
    b":",
    b"/../",
    b"%2e%2e/",
    b"%2f",
    b"//",
    b";",
    b"\\",
    b"?",
    b"#",
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Host: b.example.org\r\n",
    b"0\r\n\r\n",
    b"GET /secret HTTP/1.1\r\n",
    b"Connection: close\r\n",
    b"HTTP/1.1",
];

/// Sends all of it, says that this is all, and reads what comes.
fn send(mut stream: TcpStream, bytes: &[u8]) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let end = stream.take(1 << 20).read_to_end(&mut answer);
    // It may be a reset; silence is none.
    let silent = |error: &std::io::Error| error.kind() == ErrorKind::WouldBlock;
    assert!(!end.is_err_and(|error| silent(&error)), "{bytes:?}");
    answer
}

fn start() -> (Gateway, Server, String) {
    let setup = Setup::new();
    let server = Server::echo(&setup.pki);
    let rules = [https("a.example.org", server.port, &["/ok/*"])];
    let gateway = setup.start(&policy(&rules, &[tcp("b.example.org", 9)]));
    let host = format!("a.example.org:{}", server.port);
    (gateway, server, host)
}

#[test]
fn servers_see_only_requests_that_are_allowed() {
    let (gateway, server, host) = start();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let seeds = corpus("request", &host);
    for round in 0..300 {
        let bytes = random.change(&seeds[round % seeds.len()], &WORDS);
        let mut client = Client::open(&gateway, "a.example.org", server.port);
        let _ = client.tls.write_all(&bytes);
        client.tls.conn.send_close_notify();
        let _ = client.tls.flush();
        let answer = client.read_rest();
        assert!(
            answer.is_empty() || answer.starts_with(b"HTTP/1.1 "),
            "{bytes:?}"
        );
        for head in server.seen.try_iter() {
            let line = head.lines().next().unwrap();
            let target = line.split(' ').nth(1).unwrap();
            let path = target.split('?').next().unwrap();
            assert!(
                target.starts_with("/ok/"),
                "{head:?} of {:?}",
                String::from_utf8_lossy(&bytes)
            );
            assert!(
                !path.contains("/..") && !path.contains("//") && !path.contains('\\'),
                "{head:?}"
            );
            assert_eq!(
                head.matches(&format!("\r\nHost: {host}\r\n")).count(),
                1,
                "{head:?}"
            );
            let framings = head.to_ascii_lowercase();
            let framings = framings.matches("\r\ncontent-length:").count()
                + framings.matches("\r\ntransfer-encoding:").count();
            assert!(framings <= 1, "{head:?}");
        }
    }
    assert_eq!(
        crate::client::get(&gateway, "a.example.org", server.port, "/ok/1").status,
        200
    );
}

#[test]
fn nothing_but_an_allowed_connect_opens_a_way() {
    let (gateway, server, host) = start();
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let seeds = corpus("connect", &host);
    for round in 0..800 {
        let bytes = random.change(&seeds[round % seeds.len()], &WORDS);
        let answer = send(gateway.connect(), &bytes);
        assert!(
            answer.is_empty() || answer.starts_with(b"HTTP/1.1 "),
            "{bytes:?}"
        );
    }
    assert_eq!(server.connections(), 0);
    assert_eq!(
        crate::client::get(&gateway, "a.example.org", server.port, "/ok/1").status,
        200
    );
}

#[test]
fn changed_client_hellos_do_no_harm() {
    let (gateway, server, host) = start();
    let mut random = Random(0xd6e8_feb8_6659_fd93);
    let name = "a.example.org".try_into().unwrap();
    let mut tls =
        rustls::ClientConnection::new(config(&gateway.pki.gateway, &[b"http/1.1"]), name).unwrap();
    let mut hello = Vec::new();
    tls.write_tls(&mut hello).unwrap();
    for _ in 0..300 {
        let bytes = random.change(
            &hello,
            &[&[0x16, 3, 1], &[0, 0], &[0xff, 0xff], b"b.example.org"],
        );
        let (stream, _) = connect(&gateway, &host);
        send(stream, &bytes);
    }
    assert_eq!(server.connections(), 0);
    assert_eq!(
        crate::client::get(&gateway, "a.example.org", server.port, "/ok/1").status,
        200
    );
}

#[test]
fn changed_records_after_the_handshake_do_no_harm() {
    let (gateway, server, host) = start();
    let mut random = Random(0xa076_1d64_78bd_642f);
    for _ in 0..150 {
        let mut client = Client::open(&gateway, "a.example.org", server.port);
        client
            .tls
            .conn
            .writer()
            .write_all(format!("GET /ok/ HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())
            .unwrap();
        let mut records = Vec::new();
        client.tls.conn.write_tls(&mut records).unwrap();
        let bytes = random.change(
            &records,
            &[
                &[0x17, 3, 3, 0, 1, 0],
                &[0x16, 3, 3, 0, 4, 24, 0, 0, 1],
                &[0x15, 3, 3, 0, 2, 2, 0],
            ],
        );
        send(client.tls.sock, &bytes);
    }
    assert_eq!(
        crate::client::get(&gateway, "a.example.org", server.port, "/ok/1").status,
        200
    );
}

#[test]
fn changed_socks_requests_reach_nobody() {
    let (gateway, server, host) = start();
    let mut random = Random(0xe703_7ed1_a0b4_28db);
    let seeds = corpus("socks", &host);
    for round in 0..800 {
        let bytes = random.change(
            &seeds[round % seeds.len()],
            &[&[5, 1, 0], &[3], &[0xff], b"a.example.org"],
        );
        let stream = TcpStream::connect(gateway.socks).unwrap();
        let answer = send(stream, &bytes);
        assert!(answer.get(3).is_none_or(|code| *code != 0), "{bytes:?}");
    }
    assert_eq!(server.connections(), 0);
}

#[test]
fn changed_questions_do_no_harm() {
    let (gateway, _server, host) = start();
    let mut random = Random(0x8ebc_6af0_9c88_c6e3);
    let seeds = corpus("dns", &host);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(gateway.dns).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    for round in 0..3000 {
        let bytes = random.change(
            &seeds[round % seeds.len()],
            &[&[0xc0, 12], &[0xc0, 0xff], &[63], &[0, 1], &[1, b'a', 0]],
        );
        let _ = socket.send(&bytes);
        let mut framed = (bytes.len() as u16).to_be_bytes().to_vec();
        framed.extend_from_slice(&bytes);
        if round % 10 == 0 {
            send(TcpStream::connect(gateway.dns).unwrap(), &framed);
        }
    }
    // Whatever was answered meanwhile, the good question still is.
    let mut good = seeds[0].clone();
    good[..2].copy_from_slice(&[0xab, 0xcd]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(gateway.dns).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.send(&good).unwrap();
    let mut buffer = [0; 2048];
    let length = socket.recv(&mut buffer).unwrap();
    assert_eq!(buffer[..2], [0xab, 0xcd]);
    assert_eq!(buffer[length - 4..length], [127, 0, 0, 1]);
}

#[test]
fn changed_policies_are_whole_or_refused() {
    let mut gateway = Gateway::start(&policy(&[https("a.example.org", 443, &["/ok/*"])], &[]));
    let mut random = Random(0x5899_65cc_7537_4cc3);
    for seed in corpus("policy", "a.example.org") {
        for _ in 0..60 {
            let bytes = random.change(
                &seed,
                &[b"\"", b"{", b"}", b",", b"null", b"\0", b"*", b".."],
            );
            if bytes != seed {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let said = gateway.change_policy(&text);
                assert!(matches!(said["state"].as_str(), Some("loaded" | "broken")));
            }
        }
    }
}

#[test]
fn changed_responses_do_no_harm() {
    let setup = Setup::new();
    let seeds = corpus("response", "a.example.org");
    let count = std::sync::atomic::AtomicUsize::new(0);
    let server = Server::start(&setup.pki, move |mut tls, _| {
        // Each connection has its own changes; all in a fixed order.
        let round = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let mut random = Random(0x1d8e_4e27_c47d_124f ^ ((round as u64 + 1) << 20));
        if crate::server::read_head(&mut tls).is_some() {
            let bytes = random.change(&seeds[round % seeds.len()], &WORDS);
            let _ = tls.write_all(&bytes);
            tls.conn.send_close_notify();
            let _ = tls.flush();
        }
    });
    let good = Server::echo(&setup.pki);
    let rules = [server.port, good.port].map(|port| https("a.example.org", port, &["*"]));
    let gateway = setup.start(&policy(&rules, &[]));
    for round in 0..300 {
        let mut client = Client::open(&gateway, "a.example.org", server.port);
        let method = ["GET", "HEAD", "PUT"][round % 3];
        client.send(&format!(
            "{method} / HTTP/1.1\r\nHost: a.example.org:{}\r\nConnection: close\r\n\r\n",
            server.port
        ));
        let answer = client.read_rest();
        assert!(
            answer.is_empty() || answer.starts_with(b"HTTP/1.1 "),
            "{answer:?}"
        );
        let text = String::from_utf8_lossy(&answer).into_owned();
        let head = text.split("\r\n\r\n").next().unwrap().to_ascii_lowercase();
        let framings = head.matches("\r\ncontent-length:").count()
            + head.matches("\r\ntransfer-encoding:").count();
        assert!(framings <= 1, "{text}");
    }
    assert_eq!(
        crate::client::get(&gateway, "a.example.org", good.port, "/").status,
        200
    );
}
