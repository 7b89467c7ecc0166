//! Many clients, and bad ones.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::podman_common::{Client, Options, PATIENCE, Sandbox, host, wait_for};
use crate::{assert_exited, assert_next_command_works, client, marker, shared, text};

/// Longest line and longest command that are accepted.
const MAX_LINE: usize = 4 << 20;

#[test]
fn a_hundred_commands_of_one_client_run_at_once() {
    let Some(mut client) = client() else { return };
    let ids: Vec<u64> = (0..100)
        .map(|n| client.start(&format!("echo number {n}; exec sleep 5")))
        .collect();
    let first = client.answer(ids[0]).unwrap();
    // One after the other they would take more than eight minutes.
    let start = Instant::now();
    assert_eq!(first["output"], "number 0\n");
    for (n, id) in ids.into_iter().enumerate().skip(1) {
        let result = client.answer(id).unwrap();
        assert_exited(&result, 0);
        assert_eq!(result["output"], format!("number {n}\n"));
    }
    assert!(
        start.elapsed() < Duration::from_secs(90),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn a_hundred_commands_of_ten_clients_keep_to_themselves() {
    let Some(sandbox) = shared() else { return };
    let clients: Vec<_> = (0..10)
        .map(|c| {
            let mut client = sandbox.client();
            std::thread::spawn(move || {
                let ids: Vec<u64> = (0..10)
                    .map(|n| client.start(&format!("seq {}", c * 1000 + n)))
                    .collect();
                for (n, id) in ids.into_iter().enumerate() {
                    let result = client.answer(id).unwrap();
                    let wanted = (1..=c * 1000 + n)
                        .map(|n| format!("{n}\n"))
                        .collect::<String>();
                    if wanted.lines().count() < 1400 {
                        assert_eq!(result["output"], wanted);
                    }
                    assert_eq!(result["bytes"], wanted.len());
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
}

#[test]
fn lines_that_are_no_requests_are_answered_and_survived() {
    let Some(mut client) = client() else { return };
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    for line in [
        &b"hello"[..],
        b"\x00\xff\xfe\x80",
        b"",
        b"[]",
        b"{}",
        b"null",
        br#"{"method":"ping"}"#,
        br#"{"id":-1,"method":"ping"}"#,
        br#"{"id":"1","method":"ping"}"#,
        br#"{"id":1.5,"method":"ping"}"#,
        b"{\"id\":1,\"method\":\"shell\",\"params\":{\"command\":\"\xff\"}}",
        br#"{"id":1,"method":"shell","params":{"command":"\ud800"}}"#,
        deep.as_bytes(),
    ] {
        client.send_bytes(line);
        client.send_bytes(b"\n");
        let answer = client.receive().unwrap();
        let shown = String::from_utf8_lossy(&line[..line.len().min(60)]);
        assert_eq!(answer["id"], Value::Null, "{shown}: {answer}");
        assert_eq!(answer["error"]["kind"], "bad_request", "{shown}: {answer}");
    }
    for (method, params) in [
        ("dance", json!({})),
        ("ping", json!({"x": 1})),
        ("shell", json!({})),
        ("shell", json!({"command": 1})),
        ("shell", json!({"command": "true", "env": {}})),
        ("shell", json!({"command": "true", "timeout_s": -1})),
        ("shell", json!({"command": "true", "timeout_s": 1.5})),
        ("shell", json!(["true"])),
    ] {
        let error = client.call(method, params.clone()).unwrap_err();
        assert_eq!(error["kind"], "bad_request", "{method} {params}: {error}");
    }
    assert_next_command_works(&mut client);
}

#[test]
fn oversized_line_is_refused_and_survived() {
    let Some(mut client) = client() else { return };
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..(MAX_LINE >> 20) + 2 {
        client.send_bytes(&piece);
    }
    client.send_bytes(b"\n");
    let answer = client.receive().unwrap();
    assert_eq!(answer["id"], Value::Null, "{answer}");
    assert_eq!(answer["error"]["kind"], "limit", "{answer}");
    assert_next_command_works(&mut client);
}

#[test]
fn half_a_line_waits_for_its_other_half() {
    let Some(mut client) = client() else { return };
    let Some(mut other) = self::client() else {
        return;
    };
    client.send_bytes(br#"{"id": 7, "method": "shell", "#);
    assert_next_command_works(&mut other);
    for byte in br#""params": {"command": "echo whole"}}"# {
        client.send_bytes(&[*byte]);
    }
    client.send_bytes(b"\r\n");
    assert_eq!(client.answer(7).unwrap()["output"], "whole\n");
    // One that leaves in the middle of a line harms nobody.
    client.send_bytes(br#"{"id": 8, "method": "shell", "params": {"command": "touch half"}}"#);
    drop(client);
    assert_next_command_works(&mut other);
    assert_exited(&other.shell("test -e half"), 1);
}

#[test]
fn several_requests_in_one_piece_are_all_answered() {
    let Some(mut client) = client() else { return };
    let requests: String = (100..150)
        .map(|id| format!("{{\"id\":{id},\"method\":\"ping\"}}\n"))
        .collect();
    client.send_bytes(requests.as_bytes());
    for id in 100..150 {
        assert_eq!(client.answer(id).unwrap(), json!({}));
    }
}

#[test]
fn nothing_is_served_before_the_handshake() {
    let Some(sandbox) = shared() else { return };
    let socket = sandbox.place.socket();
    let mut client = Client::raw(&socket);
    for method in ["ping", "status", "list", "shutdown"] {
        let error = client.call(method, json!({})).unwrap_err();
        assert_eq!(error["kind"], "bad_request");
        assert!(text(&error["message"]).contains("hello"), "{error}");
    }
    let error = client
        .call("shell", json!({"command": "touch unasked"}))
        .unwrap_err();
    assert_eq!(error["kind"], "bad_request");
    let error = client
        .call("hello", json!({"api": 99, "client": "x"}))
        .unwrap_err();
    assert_eq!(error["kind"], "version");
    assert!(text(&error["message"]).contains("99"), "{error}");
    let reply = client
        .call("hello", json!({"api": 1, "client": "x"}))
        .unwrap();
    assert_eq!(reply["workspace"], sandbox.workspace().to_str().unwrap());
    assert_eq!(reply["sid"], sandbox.place.sid());
    assert_exited(&client.shell("test -e unasked"), 1);
}

#[test]
fn silent_client_is_shown_the_door() {
    let Some(sandbox) = shared() else { return };
    let start = Instant::now();
    let mut client = Client::raw(&sandbox.place.socket());
    assert!(client.receive().is_none());
    // No longer than for anything else, or the wait would have panicked.
    let waited = start.elapsed();
    assert!(waited > Duration::from_secs(5), "{waited:?}");
}

#[test]
fn client_that_does_not_read_harms_only_itself() {
    let Some(sandbox) = Sandbox::start(Options::default()) else {
        return;
    };
    let mut good = sandbox.client();
    assert_next_command_works(&mut good);
    let before = host::resident_kib(sandbox.pid);
    // One that asks for more and more answers.
    let mut greedy = sandbox.client();
    greedy
        .socket
        .set_write_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    let requests = "{\"id\":1,\"method\":\"list\"}\n".repeat(1000);
    let mut sent = 0;
    while greedy.socket.write_all(requests.as_bytes()).is_ok() {
        sent += requests.len();
        assert!(sent < 64 << 20, "requests are read without end");
    }
    // One that leaves long outputs unread.
    let mut lazy = sandbox.client();
    for _ in 0..60 {
        lazy.send("shell", json!({"command": "seq 10000", "stream": true}));
    }
    let marker = marker();
    let patient = json!({"command": format!("sleep {marker}"), "timeout_s": 300});
    lazy.send("shell", patient);
    let running = |client: &mut Client| {
        let status = client.call("status", json!({})).unwrap();
        status["commands_running"].as_u64().unwrap()
    };
    wait_for("the sixty commands", PATIENCE, || {
        (running(&mut good) == 1).then_some(())
    });
    for _ in 0..5 {
        let start = Instant::now();
        assert_next_command_works(&mut good);
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "{:?}",
            start.elapsed()
        );
    }
    let after = host::resident_kib(sandbox.pid);
    assert!(
        after < before + (48 << 10),
        "{before} KiB before, {after} after"
    );
    drop((greedy, lazy));
    wait_for("the end of their commands", PATIENCE, || {
        (running(&mut good) == 0).then_some(())
    });
    assert!(host::processes_with(&marker).is_empty());
    assert_next_command_works(&mut good);
    sandbox.end_and_check();
}

#[test]
fn more_clients_than_the_limit_are_told_so() {
    let Some(sandbox) = Sandbox::start(Options::default()) else {
        return;
    };
    let mut good = sandbox.client();
    let socket = sandbox.place.socket();
    let mut others: Vec<Client> = (0..300).map(|_| Client::raw(&socket)).collect();
    let mut last = others.pop().unwrap();
    let answer = last.receive().unwrap();
    assert_eq!(answer["error"]["kind"], "limit", "{answer}");
    assert!(last.receive().is_none());
    assert_next_command_works(&mut good);
    drop(others);
    wait_for("a place", PATIENCE, || Client::try_connect(&socket));
    sandbox.end_and_check();
}
