//! Bodies and streams: passed on as they come, in both directions, in bounded
//! memory.

use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::client::Client;
use crate::gateway::{Gateway, PATIENCE, Setup, https, policy};
use crate::server::{Server, Tls, closed_port, read_head};

const MIB: usize = 1 << 20;

fn start(setup: Setup, server: &Server) -> Gateway {
    setup.start(&policy(&[https("a.example.org", server.port, &["*"])], &[]))
}

fn open(gateway: &Gateway, server: &Server) -> (Client, String) {
    let client = Client::open(gateway, "a.example.org", server.port);
    (client, format!("a.example.org:{}", server.port))
}

/// A server whose handler is told by the test when to go on.
fn stepped(
    setup: &Setup,
    handle: impl Fn(&mut Tls, &Receiver<()>) + Send + Sync + 'static,
) -> (Server, Sender<()>) {
    let (go, steps) = channel();
    let steps = std::sync::Mutex::new(steps);
    let server = Server::start(&setup.pki, move |mut tls, _| {
        handle(&mut tls, &steps.lock().unwrap())
    });
    (server, go)
}

#[test]
fn events_are_passed_on_as_they_come() {
    let setup = Setup::new();
    let (server, go) = stepped(&setup, |tls, steps| {
        read_head(tls).unwrap();
        tls.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            .unwrap();
        for number in 0..5 {
            steps.recv_timeout(PATIENCE).unwrap();
            tls.write_all(format!("data: {number}\n\n").as_bytes())
                .unwrap();
        }
        tls.conn.send_close_notify();
        tls.flush().unwrap();
    });
    let gateway = start(setup, &server);
    let (mut client, host) = open(&gateway, &server);
    client.send(&format!("GET /events HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    assert!(
        read_head(&mut client.tls)
            .unwrap()
            .starts_with("HTTP/1.1 200")
    );
    for number in 0..5 {
        // The next event is sent only after this one has arrived.
        go.send(()).unwrap();
        let mut event = [0; 9];
        client.tls.read_exact(&mut event).unwrap();
        assert_eq!(event, format!("data: {number}\n\n").as_bytes());
    }
    assert!(client.read_rest().is_empty());
}

#[test]
fn an_expectation_is_answered_by_the_server() {
    let setup = Setup::new();
    let server = Server::start(&setup.pki, |mut tls, seen| {
        while let Some(head) = read_head(&mut tls) {
            let _ = seen.send(head.clone());
            if head.starts_with("PUT /no") {
                tls.write_all(b"HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n")
                    .unwrap();
                continue;
            }
            tls.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
            let mut body = [0; 4];
            tls.read_exact(&mut body).unwrap();
            let _ = seen.send(String::from_utf8_lossy(&body).into_owned());
            tls.write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
                .unwrap();
        }
    });
    let gateway = start(setup, &server);
    let (mut client, host) = open(&gateway, &server);
    let head = |path: &str| {
        format!(
            "PUT {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
        )
    };
    assert_eq!(client.ask(&head("/x")).status, 100);
    assert!(server.next_seen().contains("Expect: 100-continue\r\n"));
    client.send("body");
    assert_eq!(server.next_seen(), "body");
    assert_eq!(client.read_answer(false).status, 201);
    // Refused by the server: the body is not sent, so the connection ends.
    let answer = client.ask(&head("/no"));
    assert_eq!(answer.status, 417);
    assert!(answer.head.contains("Connection: close"));
    assert!(client.read_rest().is_empty());
}

#[test]
fn a_denied_upload_reaches_nobody_and_is_answered_at_once() {
    let setup = Setup::new();
    let server = Server::echo(&setup.pki);
    let gateway = setup.start(&policy(
        &[https("a.example.org", server.port, &["/ok/*"])],
        &[],
    ));
    for framing in ["Content-Length: 4194304", "Transfer-Encoding: chunked"] {
        let (mut client, host) = open(&gateway, &server);
        let answer = client.ask(&format!(
            "PUT /no HTTP/1.1\r\nHost: {host}\r\n{framing}\r\n\r\n"
        ));
        assert_eq!(answer.status, 403);
        assert!(answer.head.contains("Connection: close"));
        // A client that sends on anyway is not reset before it has read.
        let (mut client, _) = open(&gateway, &server);
        let chunk = format!("100000\r\n{}\r\n", "x".repeat(MIB));
        client.send(&format!(
            "PUT /no HTTP/1.1\r\nHost: {host}\r\n{framing}\r\n\r\n{chunk}"
        ));
        assert_eq!(client.read_answer(false).status, 403);
    }
    assert_eq!(server.connections(), 0);
}

/// 1 GiB each way.
const LARGE: usize = 1024;

fn serve_large(mut tls: Tls, seen: &Sender<String>) {
    let (piece, mut body) = (vec![7; MIB], vec![0; MIB]);
    while let Some(head) = read_head(&mut tls) {
        let is_get = head.starts_with("GET");
        let length = if is_get { LARGE * MIB } else { 0 };
        if !is_get {
            let whole = (0..LARGE).filter(|_| {
                tls.read_exact(&mut body).unwrap();
                body == piece
            });
            let _ = seen.send(whole.count().to_string());
        }
        tls.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").as_bytes())
            .unwrap();
        for _ in 0..length / MIB {
            tls.write_all(&piece).unwrap();
        }
    }
}

#[test]
fn large_bodies_pass_in_bounded_memory() {
    let setup = Setup::new();
    let server = Server::start(&setup.pki, serve_large);
    let gateway = start(setup, &server);
    let (mut client, host) = open(&gateway, &server);
    let before = gateway.memory();
    client.send(&format!("GET /down HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    read_head(&mut client.tls).unwrap();
    let (piece, mut body) = (vec![7; MIB], vec![0; MIB]);
    let mut most = 0;
    for _ in 0..LARGE {
        client.tls.read_exact(&mut body).unwrap();
        assert!(body == piece);
        most = most.max(gateway.memory());
    }
    client.send(&format!(
        "PUT /up HTTP/1.1\r\nHost: {host}\r\nContent-Length: {}\r\n\r\n",
        LARGE * MIB
    ));
    for _ in 0..LARGE {
        client.tls.write_all(&piece).unwrap();
        most = most.max(gateway.memory());
    }
    assert_eq!(client.read_answer(false).status, 200);
    assert_eq!(server.next_seen(), LARGE.to_string());
    let grown = most.saturating_sub(before);
    assert!(grown < 8 << 10, "memory has grown by {grown} KiB");
    let line = gateway.audited(|line| line["path"] == "/up");
    assert_eq!(line["up"], LARGE * MIB);
}

#[test]
fn a_client_that_does_not_read_slows_the_server_down() {
    let setup = Setup::new();
    let server = Server::start(&setup.pki, |mut tls, _| {
        read_head(&mut tls).unwrap();
        tls.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        while tls.write_all(&[0; 65536]).is_ok() {}
    });
    let gateway = start(setup, &server);
    let before = gateway.memory();
    let clients: Vec<Client> = (0..20)
        .map(|_| {
            let (mut client, host) = open(&gateway, &server);
            client.send(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            read_head(&mut client.tls).unwrap();
            client
        })
        .collect();
    // Another request, served after as much as the buffers of the kernel take.
    let (mut client, host) = open(&gateway, &server);
    client.send(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    let mut piece = vec![0; 8 * MIB];
    client.tls.read_exact(&mut piece).unwrap();
    let grown = gateway.memory().saturating_sub(before);
    assert!(
        grown < 10 << 10,
        "memory has grown by {grown} KiB for {} clients",
        clients.len()
    );
}

pub(crate) const UPGRADE: &str = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n";

pub(crate) fn websocket_server(setup: &Setup) -> Server {
    Server::start(&setup.pki, |mut tls, seen| {
        tls.sock.set_read_timeout(None).unwrap();
        let head = read_head(&mut tls).unwrap();
        let _ = seen.send(head);
        tls.write_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: y\r\n\r\nhello").unwrap();
        let mut bytes = [0; 64];
        while let Ok(length) = tls.read(&mut bytes) {
            if length == 0 {
                break;
            }
            if tls.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
        let _ = seen.send("closed".to_owned());
    })
}

#[test]
fn a_websocket_is_passed_on_after_the_upgrade() {
    let setup = Setup::new();
    let server = websocket_server(&setup);
    let gateway = start(setup, &server);
    let (mut client, host) = open(&gateway, &server);
    let answer = client.ask(&format!(
        "GET /ws HTTP/1.1\r\nHost: {host}\r\n{UPGRADE}\r\n"
    ));
    assert_eq!(answer.status, 101);
    assert!(
        answer.head.contains("Upgrade: websocket")
            && answer.head.contains("Sec-WebSocket-Accept: y")
    );
    assert!(
        server
            .next_seen()
            .contains("Connection: Upgrade\r\nUpgrade: websocket\r\n")
    );
    let mut bytes = [0; 5];
    client.tls.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"hello");
    for text in ["one..", "GET /", "\r\n\r\n\0"] {
        client.send(text);
        client.tls.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, text.as_bytes());
    }
    gateway.audited(|line| line["kind"] == "websocket" && line["event"] == "open");
    drop(client);
    assert_eq!(server.next_seen(), "closed");
    let line = gateway.audited(|line| line["kind"] == "websocket" && line["event"] == "end");
    assert_eq!(
        (line["up"].as_u64(), line["down"].as_u64()),
        (Some(15), Some(20))
    );
}

#[test]
fn a_websocket_that_is_not_open_yet_ends_with_its_rule() {
    let setup = Setup::new();
    let (server, go) = stepped(&setup, |tls, steps| {
        read_head(tls).unwrap();
        steps.recv_timeout(PATIENCE).unwrap();
        let _ = tls.write_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n");
        let _ = tls.read(&mut [0]);
    });
    let mut gateway = start(setup, &server);
    let (mut client, host) = open(&gateway, &server);
    client.send(&format!(
        "GET /ws HTTP/1.1\r\nHost: {host}\r\n{UPGRADE}\r\n"
    ));
    while server.connections() == 0 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    gateway.change_policy(&policy(&[], &[]).to_string());
    gateway.ended_by_policy(|line| line["path"] == "/ws");
    go.send(()).unwrap();
    assert!(client.read_rest().is_empty());
}

#[test]
fn half_a_head_is_not_put_before_another_answer() {
    let mut setup = Setup::new();
    // The second request has the connection of the first.
    setup.more = ["--share-at", "101"].map(str::to_owned).to_vec();
    let server = Server::start(&setup.pki, |mut tls, _| {
        read_head(&mut tls).unwrap();
        tls.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            .unwrap();
        if read_head(&mut tls).is_some() {
            tls.write_all(b"HTTP/1.1 200 OK\r\nA: b").unwrap();
            tls.conn.send_close_notify();
            tls.flush().unwrap();
        }
    });
    let gateway = start(setup, &server);
    let (mut client, host) = open(&gateway, &server);
    assert_eq!(client.get(&host, "/first").status, 200);
    let answer = client.get(&host, "/second");
    assert_eq!(answer.status, 502, "{}", answer.head);
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_websocket_on_a_denied_path_is_refused() {
    let setup = Setup::new();
    let server = websocket_server(&setup);
    let gateway = setup.start(&policy(
        &[https("a.example.org", server.port, &["/ok"])],
        &[],
    ));
    let (mut client, host) = open(&gateway, &server);
    let answer = client.ask(&format!(
        "GET /ws HTTP/1.1\r\nHost: {host}\r\n{UPGRADE}\r\n"
    ));
    assert_eq!(answer.status, 403);
    assert_eq!(server.connections(), 0);
}

#[test]
fn a_kept_connection_that_the_server_closes_is_replaced() {
    let setup = Setup::new();
    let server = Server::start(&setup.pki, |mut tls, _| {
        // One answer each, without a word that it is the last.
        if read_head(&mut tls).is_some() {
            tls.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                .unwrap();
            let _ = read_head(&mut tls);
        }
    });
    let gateway = start(setup, &server);
    let (mut client, host) = open(&gateway, &server);
    for _ in 0..5 {
        assert_eq!(client.get(&host, "/").text(), "ok");
    }
}

#[test]
fn a_server_that_cannot_be_verified_or_reached_is_502() {
    let setup = Setup::new();
    // Another authority than the one that the gateway knows.
    let strangers = Setup::new();
    let stranger = Server::echo(&strangers.pki);
    let plain = Server::start_raw("127.0.0.1", |mut stream, _| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
    });
    let (_held, closed) = closed_port();
    let ports = [stranger.port, plain.port, closed];
    let rules = ports.map(|port| https("a.example.org", port, &["*"]));
    let gateway = setup.start(&policy(&rules, &[]));
    for (port, word) in ports.into_iter().zip(["TLS", "TLS", "connect"]) {
        let answer = crate::client::get(&gateway, "a.example.org", port, "/");
        assert_eq!(answer.status, 502, "{word}");
        let body = answer.json();
        assert_eq!(body["error"], "upstream_failed");
        assert!(body["reason"].as_str().unwrap().contains(word), "{body}");
    }
    assert!(stranger.seen.try_recv().is_err());
}

#[test]
fn a_certificate_for_another_name_is_refused() {
    let setup = Setup::new();
    let server = Server::echo(&setup.pki);
    let mut policy = policy(&[https("c.example.org", server.port, &["*"])], &[]);
    policy["hosts"] =
        serde_json::json!([{"name": "c.example.org", "address": "127.0.0.1", "origin": "base"}]);
    let gateway = setup.start(&policy);
    let answer = crate::client::get(&gateway, "c.example.org", server.port, "/");
    assert_eq!(answer.status, 502);
    assert!(answer.text().contains("certificate"), "{}", answer.text());
    assert!(server.seen.try_recv().is_err());
}

#[test]
fn a_client_that_says_goodbye_still_gets_what_it_asked_for() {
    let setup = Setup::new();
    let server = Server::echo(&setup.pki);
    let rules = [https("a.example.org", server.port, &["/last"])];
    let gateway = setup.start(&policy(&rules, &[]));
    let (mut client, host) = open(&gateway, &server);
    client.send(&format!("GET /last HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    client.tls.conn.send_close_notify();
    client.tls.flush().unwrap();
    assert!(client.read_answer(false).text().starts_with("GET /last "));
    assert!(client.read_rest().is_empty());
    // So is what is refused.
    let (mut client, _) = open(&gateway, &server);
    client.send(&format!("GET /no HTTP/1.1\r\nHost: {host}\r\n\r\n").repeat(3));
    client.tls.conn.send_close_notify();
    client.tls.flush().unwrap();
    for _ in 0..3 {
        assert_eq!(client.read_answer(false).status, 403);
    }
    assert!(client.read_rest().is_empty());
    // Half a request is no request.
    let (mut client, _) = open(&gateway, &server);
    client.send("GET /half HTTP/1.1\r\nHo");
    client.tls.conn.send_close_notify();
    client.tls.flush().unwrap();
    assert!(client.read_rest().is_empty());
}

#[test]
fn tls_1_2_is_spoken_on_both_sides() {
    let setup = Setup::new();
    let server = Server::echo_at("127.0.0.1", &[&rustls::version::TLS12], &setup.pki);
    let gateway = start(setup, &server);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(gateway.pki.gateway.clone()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let host = format!("a.example.org:{}", server.port);
    let config = std::sync::Arc::new(config);
    // The second one resumes the session of the first.
    for _ in 0..2 {
        let (stream, _) = crate::client::connect(&gateway, &host);
        let mut client = Client::over(stream, "a.example.org", config.clone()).unwrap();
        assert_eq!(client.get(&host, "/").status, 200);
        assert_eq!(client.get(&host, "/").status, 200);
    }
}
