//! Where one message ends and the next begins: what could be read in two ways
//! goes nowhere, in either direction.

use std::io::{Read, Write};

use crate::client::Client;
use crate::gateway::{Gateway, PATIENCE, Setup, https, policy};
use crate::server::{Server, read_head};

fn start_echo() -> (Gateway, Server, String) {
    let setup = Setup::new();
    let server = Server::echo(&setup.pki);
    let gateway = setup.start(&policy(&[https("a.example.org", server.port, &["*"])], &[]));
    let host = format!("a.example.org:{}", server.port);
    (gateway, server, host)
}

#[test]
fn ambiguous_requests_are_refused_and_nothing_after_them_is_read() {
    let (gateway, server, host) = start_echo();
    let smuggled = format!("GET /smuggled HTTP/1.1\r\nHost: {host}\r\n\r\n");
    for fields in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5, 6\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length : 5\r\n",
        "Content_Length: 5\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding\t: chunked\r\n",
        "X: a\r\n Transfer-Encoding: chunked\r\n",
        "X: a\nTransfer-Encoding: chunked\r\n",
        "X: a\rTransfer-Encoding: chunked\r\n",
        "X: \0\r\n",
        "Connection: Content-Length\r\nContent-Length: 5\r\n",
        "Expect: something\r\n",
    ] {
        let mut client = Client::open(&gateway, "a.example.org", server.port);
        client.send(&format!(
            "POST / HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n0\r\n\r\n{smuggled}"
        ));
        let answer = client.read_answer(false);
        assert!(
            (400..=501).contains(&answer.status),
            "{fields:?}: {}",
            answer.head
        );
        assert!(client.read_rest().is_empty(), "{fields:?}");
        assert_eq!(server.connections(), 0, "{fields:?}");
    }
}

#[test]
fn heads_that_are_too_large_are_refused() {
    let (gateway, server, host) = start_echo();
    let large = "x".repeat(70_000);
    let many = "X: 1\r\n".repeat(200);
    for (request, status) in [
        (
            format!("GET / HTTP/1.1\r\nHost: {host}\r\nX: {large}\r\n\r\n"),
            431,
        ),
        (format!("GET / HTTP/1.1\r\nHost: {host}\r\n{many}\r\n"), 431),
        (
            format!("GET /{} HTTP/1.1\r\nHost: {host}\r\n\r\n", &large[..20_000]),
            431,
        ),
    ] {
        let mut client = Client::open(&gateway, "a.example.org", server.port);
        assert_eq!(client.ask(&request).status, status);
    }
    assert_eq!(server.connections(), 0);
}

#[test]
fn pipelined_requests_are_served_in_order() {
    let (gateway, server, host) = start_echo();
    let mut client = Client::open(&gateway, "a.example.org", server.port);
    let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    client.send(&[request("/1"), request("/2"), request("/3")].concat());
    for path in ["/1", "/2", "/3"] {
        let answer = client.read_answer(false);
        assert!(
            answer.text().starts_with(&format!("GET {path} ")),
            "{}",
            answer.text()
        );
    }
}

/// A server may not read the body of a request that it expects to have none.
/// Then the body is the beginning of its next request: of one that no rule has
/// seen, if there were a next one on that connection.
#[test]
fn a_body_that_the_server_does_not_read_is_no_request() {
    let setup = Setup::new();
    let server = Server::start(&setup.pki, |mut tls, seen| {
        while let Some(head) = read_head(&mut tls) {
            let _ = seen.send(head.clone());
            let line = head.lines().next().unwrap();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{line}",
                line.len()
            );
            if tls.write_all(answer.as_bytes()).is_err() || head.contains("Connection: close") {
                return;
            }
        }
    });
    let gateway = setup.start(&policy(
        &[https("a.example.org", server.port, &["/ok/*"])],
        &[],
    ));
    let host = format!("a.example.org:{}", server.port);
    let inner = "GET /secret HTTP/1.1\r\nHost: other.example.org\r\n";
    for (method, body) in [
        ("GET", format!("{inner}X: ")),
        ("GET", format!("{inner}\r\n")),
        ("POST", format!("{inner}X: ")),
        ("DELETE", format!("{inner}X: ")),
    ] {
        let mut client = Client::open(&gateway, "a.example.org", server.port);
        let length = body.len();
        let answer = client.ask(&format!(
            "{method} /ok/1 HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n{body}"
        ));
        assert_eq!(answer.text(), format!("{method} /ok/1 HTTP/1.1"));
        // The client's own connection goes on.
        let answer = client.get(&host, "/ok/2");
        assert_eq!(answer.text(), "GET /ok/2 HTTP/1.1", "{method}");
        for path in ["/ok/1", "/ok/2"] {
            let head = server.next_seen();
            assert!(head.lines().next().unwrap().contains(path), "{head}");
        }
    }
    // One without a body leaves the connection to the next.
    let before = server.connections();
    let mut client = Client::open(&gateway, "a.example.org", server.port);
    for _ in 0..3 {
        assert_eq!(client.get(&host, "/ok/3").status, 200);
    }
    assert!(server.connections() <= before + 1);
}

/// Takes one request with its whole body, in the chunks as they come.
fn upload_server(setup: &Setup) -> Server {
    Server::start(&setup.pki, |mut tls, seen| {
        let head = read_head(&mut tls).unwrap();
        let _ = seen.send(head);
        let mut body = Vec::new();
        let mut byte = [0];
        while !body.ends_with(b"0\r\n\r\n") {
            tls.read_exact(&mut byte).unwrap();
            body.push(byte[0]);
        }
        let _ = seen.send(String::from_utf8(body).unwrap());
        let _ = tls.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
    })
}

#[test]
fn a_chunked_upload_goes_through_without_its_trailer() {
    let setup = Setup::new();
    let server = upload_server(&setup);
    let gateway = setup.start(&policy(&[https("a.example.org", server.port, &["*"])], &[]));
    let mut client = Client::open(&gateway, "a.example.org", server.port);
    let host = format!("a.example.org:{}", server.port);
    client.send(&format!(
        "PUT /x HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
    ));
    // The head is on its way before the body is whole.
    assert!(
        server
            .next_seen()
            .contains("Transfer-Encoding: chunked\r\n")
    );
    client.send("2\r\nde\r\n0\r\nHost: b.example.org\r\n\r\n");
    assert_eq!(server.next_seen(), "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
    assert_eq!(client.read_answer(false).status, 204);
    let line = gateway.audited(|line| line["path"] == "/x");
    assert_eq!(
        (line["method"].as_str(), line["up"].as_u64()),
        (Some("PUT"), Some(20))
    );
}

#[test]
fn a_broken_chunk_ends_the_request() {
    let (gateway, server, host) = start_echo();
    for chunk in [
        "x\r\n",
        "3;a=b\r\nabc\r\n",
        "3\r\nabcd\r\n",
        "ffffffffffffffffff\r\n",
        "3\nabc\n",
    ] {
        let mut client = Client::open(&gateway, "a.example.org", server.port);
        client.send(&format!(
            "PUT /x HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}"
        ));
        assert_eq!(client.read_answer(false).status, 400, "{chunk:?}");
        assert!(client.read_rest().is_empty(), "{chunk:?}");
    }
    gateway.audited(|line| {
        line["why"]
            .as_str()
            .is_some_and(|why| why.contains("chunk"))
    });
}

/// Answers each request with fixed bytes, then closes.
fn fixed(setup: &Setup, bytes: &'static [u8]) -> Server {
    Server::start(&setup.pki, move |mut tls, _| {
        while read_head(&mut tls).is_some() {
            let _ = tls.write_all(bytes);
            tls.conn.send_close_notify();
            let _ = tls.flush();
        }
    })
}

#[test]
fn ambiguous_responses_are_replaced_by_502() {
    for bytes in [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"[..],
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 000 X\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 099 X\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"ICY 200 OK\r\n\r\n",
        b"garbage",
        b"",
    ] {
        let setup = Setup::new();
        let server = fixed(&setup, bytes);
        let gateway = setup.start(&policy(&[https("a.example.org", server.port, &["*"])], &[]));
        let answer = crate::client::get(&gateway, "a.example.org", server.port, "/");
        assert_eq!(answer.status, 502, "{:?}", String::from_utf8_lossy(bytes));
        assert_eq!(answer.json()["error"], "upstream_failed");
    }
}

#[test]
fn server_that_talks_without_saying_anything_is_left() {
    let mut setup = Setup::new();
    // Where the connection waits, and who waits for it, is known then.
    setup.more = ["--threads", "1"].map(str::to_owned).to_vec();
    let server = Server::start(&setup.pki, |mut tls, seen| {
        read_head(&mut tls).unwrap();
        let _ = tls.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        // As many as TLS itself allows.
        for _ in 0..25 {
            let _ = tls.conn.refresh_traffic_keys();
            let _ = tls.flush();
            std::thread::sleep(std::time::Duration::from_millis(40));
        }
        let wait = std::time::Duration::from_secs(20);
        tls.sock.set_read_timeout(Some(wait)).unwrap();
        let is_kept = matches!(tls.sock.read_to_end(&mut Vec::new()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock);
        let _ = seen.send(if is_kept { "kept" } else { "left" }.to_owned());
    });
    let other = Server::echo(&setup.pki);
    let rules = [server.port, other.port].map(|port| https("a.example.org", port, &["*"]));
    let gateway = setup.start(&policy(&rules, &[]));
    let answer = crate::client::get(&gateway, "a.example.org", server.port, "/");
    assert_eq!(answer.text(), "ok");
    assert_eq!(server.next_seen(), "left");
    let answer = crate::client::get(&gateway, "a.example.org", other.port, "/");
    assert_eq!(answer.status, 200);
}

#[test]
fn what_follows_a_response_is_nobodys() {
    let setup = Setup::new();
    let server = Server::start(&setup.pki, |mut tls, seen| {
        while let Some(head) = read_head(&mut tls) {
            let _ = seen.send(head);
            let _ = tls.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil");
        }
    });
    let gateway = setup.start(&policy(&[https("a.example.org", server.port, &["*"])], &[]));
    let mut client = Client::open(&gateway, "a.example.org", server.port);
    for _ in 0..3 {
        assert_eq!(
            client
                .get(&format!("a.example.org:{}", server.port), "/")
                .text(),
            "ok"
        );
    }
    assert_eq!(server.connections(), 3);
}

#[test]
fn responses_without_body_leave_the_connection_usable() {
    let setup = Setup::new();
    let server = Server::start(&setup.pki, |mut tls, _| {
        while let Some(head) = read_head(&mut tls) {
            let answer: &[u8] = match head.split(' ').nth(1).unwrap() {
                "/304" => b"HTTP/1.1 304 Not Modified\r\nContent-Length: 100\r\n\r\n",
                "/204" => b"HTTP/1.1 204 No Content\r\n\r\n",
                "/103" => b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n3",
                "/0" => b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
                "/chunks" => b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
                _ => b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n",
            };
            tls.write_all(answer).unwrap();
        }
    });
    let gateway = setup.start(&policy(&[https("a.example.org", server.port, &["*"])], &[]));
    let host = format!("a.example.org:{}", server.port);
    let mut client = Client::open(&gateway, "a.example.org", server.port);
    assert_eq!(client.get(&host, "/304").status, 304);
    assert_eq!(client.get(&host, "/204").status, 204);
    let head = client.ask(&format!("HEAD /x HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    assert!(head.status == 200 && head.head.contains("Content-Length: 100"));
    assert_eq!(client.get(&host, "/103").status, 103);
    assert_eq!(client.read_answer(false).text(), "3");
    assert_eq!(client.get(&host, "/0").text(), "");
    assert_eq!(client.get(&host, "/chunks").text(), "ab");
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_response_that_is_cut_is_seen_as_cut() {
    for bytes in [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart"[..],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n",
    ] {
        let setup = Setup::new();
        let server = fixed(&setup, bytes);
        let gateway = setup.start(&policy(&[https("a.example.org", server.port, &["*"])], &[]));
        let mut client = Client::open(&gateway, "a.example.org", server.port);
        client.send(&format!(
            "GET / HTTP/1.1\r\nHost: a.example.org:{}\r\n\r\n",
            server.port
        ));
        let mut rest = Vec::new();
        let error = client.tls.read_to_end(&mut rest).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
        assert!(rest.ends_with(b"part") || rest.ends_with(b"part\r\n"));
    }
}

#[test]
fn a_response_up_to_the_end_of_the_connection_is_whole_when_the_server_says_so() {
    let setup = Setup::new();
    let server = fixed(&setup, b"HTTP/1.1 200 OK\r\n\r\nall of it");
    let gateway = setup.start(&policy(&[https("a.example.org", server.port, &["*"])], &[]));
    let answer = crate::client::get(&gateway, "a.example.org", server.port, "/");
    assert_eq!(answer.text(), "all of it");
    assert!(answer.head.contains("Connection: close"));
}

#[test]
fn what_a_server_says_before_it_is_asked_is_no_answer() {
    let setup = Setup::new();
    let (go, steps) = std::sync::mpsc::channel::<()>();
    let steps = std::sync::Mutex::new(steps);
    let server = Server::start(&setup.pki, move |mut tls, seen| {
        let _ = seen.send("connected".to_owned());
        while read_head(&mut tls).is_some() {
            let _ = tls.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            // Once the connection is kept: an answer to a request to come.
            steps.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            let _ = tls.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil");
            let _ = seen.send("said".to_owned());
        }
    });
    let gateway = setup.start(&policy(&[https("a.example.org", server.port, &["*"])], &[]));
    let host = format!("a.example.org:{}", server.port);
    let mut client = Client::open(&gateway, "a.example.org", server.port);
    for _ in 0..3 {
        assert_eq!(client.get(&host, "/").text(), "ok");
        go.send(()).unwrap();
        assert_eq!(server.next_seen(), "connected");
        assert_eq!(server.next_seen(), "said");
    }
}
