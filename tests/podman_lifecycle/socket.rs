//! The socket before strangers: who may speak, and in what order.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::podman_common::{Client, Options, Sandbox};

fn kind(answer: Result<serde_json::Value, serde_json::Value>) -> String {
    let error = answer.expect_err("refused");
    error["kind"].as_str().expect("a kind").to_owned()
}

#[test]
fn only_a_hello_of_this_version_opens_a_connection() {
    let Some(sandbox) = Sandbox::start(Options::default()) else {
        return;
    };
    let socket = sandbox.place.socket();
    let mode = socket.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{mode:o}");

    let mut early = Client::raw(&socket);
    for method in ["ping", "status", "list", "shutdown"] {
        assert_eq!(kind(early.call(method, json!({}))), "bad_request");
    }
    let shell = early.call("shell", json!({"command": "touch early"}));
    assert_eq!(kind(shell), "bad_request");
    assert!(!sandbox.workspace().join("early").exists());

    let mut old = Client::raw(&socket);
    let hello = old.call("hello", json!({"api": 0, "client": "old/0"}));
    let error = hello.expect_err("refused");
    assert_eq!(error["kind"], "version", "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("version 0") && error["hint"].is_string(),
        "{error}"
    );
    assert_eq!(kind(old.call("ping", json!({}))), "bad_request");

    let mut odd = Client::raw(&socket);
    odd.send_bytes(b"\x00\xff garbage\n[]\n{}\n");
    for _ in 0..3 {
        let message = odd.receive().expect("an answer");
        assert_eq!(message["id"], json!(null));
        assert_eq!(message["error"]["kind"], "bad_request", "{message}");
    }
    // The same connection may still do it right.
    let hello = json!({"api": 1, "client": "late/1"});
    assert_eq!(odd.call("hello", hello).unwrap()["state"], "ready");
    assert_eq!(odd.output("echo in"), "in\n");
    sandbox.end_and_check();
}
