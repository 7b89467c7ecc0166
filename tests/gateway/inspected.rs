//! Requests through the gateway: what is allowed reaches the server as it was
//! matched, what is denied reaches nobody.

use serde_json::json;

use crate::client::{Client, get, refused};
use crate::gateway::{Gateway, Setup, https, policy, write_policy};
use crate::server::Server;

/// A gateway in front of an echo server, with rules made from its port.
fn echo(rules: impl Fn(u16) -> Vec<serde_json::Value>) -> (Gateway, Server) {
    let setup = Setup::new();
    let server = Server::echo(&setup.pki);
    let gateway = setup.start(&policy(&rules(server.port), &[]));
    (gateway, server)
}

#[test]
fn an_allowed_request_reaches_the_server_as_it_was_matched() {
    let (gateway, server) = echo(|port| vec![https("a.example.org", port, &["/u/*"])]);
    let host = format!("a.example.org:{}", server.port);
    let mut client = Client::open(&gateway, "a.example.org", server.port);
    let answer = client.ask(&format!(
        "GET /x/../u/%7eme//repo?q=%2e%2e HTTP/1.1\r\nhost: {host}\r\nX-One: 1\r\nConnection: x-hop\r\nX-Hop: 2\r\n\r\n"
    ));
    assert_eq!(answer.status, 200);
    let expected = format!("GET /u/~me/repo?q=%2e%2e HTTP/1.1\r\nHost: {host}\r\nX-One: 1\r\n\r\n");
    assert_eq!(answer.text(), expected);
    assert_eq!(server.next_seen(), expected);
    let line = gateway.audited(|line| line["kind"] == "https");
    assert_eq!(line["path"], "/u/~me/repo");
    assert_eq!(
        (line["verdict"].as_str(), line["status"].as_u64()),
        (Some("allow"), Some(200))
    );
    assert_eq!(
        (line["host"].as_str(), line["rule"].as_str()),
        (Some("a.example.org"), Some("base"))
    );
    assert_eq!(line["down"], expected.len());
}

#[test]
fn a_denied_request_is_answered_and_reaches_nobody() {
    let (gateway, server) = echo(|port| vec![https("a.example.org", port, &["/u/*"])]);
    let host = format!("a.example.org:{}", server.port);
    let mut client = Client::open(&gateway, "a.example.org", server.port);
    for target in [
        "/",
        "/u",
        "/user2",
        "/u/../secret",
        "/u/%2e%2e/secret",
        "/U/x",
    ] {
        let answer = client.get(&host, target);
        assert_eq!(answer.status, 403, "{target}");
        let body = answer.json();
        assert_eq!(body["error"], "egress_denied");
        assert_eq!(body["ask"]["arguments"]["host"], "a.example.org");
        assert_eq!(body["ask"]["arguments"]["port"], server.port);
        assert_eq!(body["rules"][0]["paths"], json!(["/u/*"]));
    }
    // The same connection goes on.
    assert_eq!(server.connections(), 0);
    assert_eq!(client.get(&host, "/u/x").status, 200);
    let line = gateway.audited(|line| line["path"] == "/secret");
    assert_eq!(
        (line["verdict"].as_str(), line["status"].as_u64()),
        (Some("deny"), Some(403))
    );
}

#[test]
fn connect_to_what_no_rule_names_is_refused_at_once() {
    let (gateway, server) = echo(|port| vec![https("a.example.org", port, &["*"])]);
    for (target, reason) in [
        ("c.example.org:443".to_owned(), "no rule names this host"),
        (
            "a.example.org:443".to_owned(),
            "no rule names this port of the host",
        ),
        (
            format!("127.0.0.1:{}", server.port),
            "no rule names this host",
        ),
        (
            format!("sub.a.example.org:{}", server.port),
            "no rule names this host",
        ),
    ] {
        let (head, body) = refused(&gateway, &target);
        assert!(head.starts_with("HTTP/1.1 403 "), "{target}: {head}");
        assert_eq!(body["error"], "egress_denied", "{target}");
        assert_eq!(body["reason"], reason, "{target}");
        assert_eq!(body["ask"]["tool"], "egress");
    }
    assert_eq!(server.connections(), 0);
}

#[test]
fn connections_to_the_server_are_used_again() {
    let mut setup = Setup::new();
    // A connection that moves takes the one to the server along.
    setup.more = ["--share-at", "101"].map(str::to_owned).to_vec();
    let server = Server::echo(&setup.pki);
    let gateway = setup.start(&policy(&[https("a.example.org", server.port, &["*"])], &[]));
    for _ in 0..20 {
        assert_eq!(get(&gateway, "a.example.org", server.port, "/").status, 200);
    }
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_policy_that_is_missing_or_broken_refuses_the_start() {
    for text in [None, Some(""), Some("{\"version\":1}"), Some("[]")] {
        let setup = Setup::new();
        if let Some(text) = text {
            write_policy(setup.dir.path(), text);
        }
        let output = setup
            .command()
            .stderr(std::process::Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{text:?}");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(
            message.contains("policy.json") && message.contains("hint:"),
            "{message}"
        );
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(told["event"], "failed");
    }
}

#[test]
fn many_clients_at_once_get_their_own_answers() {
    let (gateway, server) = echo(|port| vec![https("a.example.org", port, &["/ok/*"])]);
    let host = format!("a.example.org:{}", server.port);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (gateway, host, port) = (&gateway, &host, server.port);
            scope.spawn(move || {
                let mut client = Client::open(gateway, "a.example.org", port);
                for round in 0..60 {
                    if round % 20 == 19 {
                        client = Client::open(gateway, "a.example.org", port);
                    }
                    let target = format!("/ok/{number}/{round}/{}", "x".repeat(round * 50));
                    let answer = client.get(host, &target);
                    assert!(answer.text().starts_with(&format!("GET {target} HTTP")));
                    assert_eq!(client.get(host, &format!("/no/{number}")).status, 403);
                }
            });
        }
    });
}
