//! The handshake and the messages.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::home::Home;
use crate::common::stand_in::ControlPlane;
use crate::driver::{Mcp, assert_within, echo};

#[test]
fn handshake_and_tools_are_answered_without_any_sandbox() {
    let home = Home::new();
    let mut mcp = Mcp::start(&home);
    let result = mcp.initialize("2025-06-18");
    assert_eq!(result["protocolVersion"], "2025-06-18");
    assert_eq!(result["serverInfo"]["name"], "umwelt");
    assert_eq!(result["serverInfo"]["version"], env!("CARGO_PKG_VERSION"));
    assert!(result["capabilities"]["tools"].is_object());
    let workspace = home.workspace();
    let instructions = result["instructions"].as_str().unwrap();
    assert!(instructions.contains(workspace.to_str().unwrap()));
    for tool in ["shell", "list", "grant", "egress"] {
        let named = format!("the {tool} tool");
        let is_named = instructions.to_lowercase().contains(&named);
        assert!(is_named, "{named}: {instructions}");
    }
    mcp.request(0, "tools/list", &json!({"cursor": "x"}));
    let answer = mcp.answer(0);
    let names: Vec<_> = answer["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].clone())
        .collect();
    assert_eq!(names, ["shell", "grant", "revoke", "egress", "list"]);
}

#[test]
fn handshake_and_tools_are_answered_at_once() {
    let home = Home::new();
    assert_within(Duration::from_secs(5), || {
        let start = Instant::now();
        let mut mcp = Mcp::initialized(&home);
        mcp.request(0, "tools/list", &json!({}));
        mcp.answer(0);
        start.elapsed()
    });
}

#[test]
fn every_version_is_accepted_and_an_unknown_one_gets_the_newest() {
    let home = Home::new();
    for (asked, wanted) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
    ] {
        let mut mcp = Mcp::start(&home);
        assert_eq!(mcp.initialize(asked)["protocolVersion"], wanted);
    }
}

#[test]
fn requests_before_the_handshake_are_answered() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, echo);
    let mut mcp = Mcp::start(&home);
    mcp.ping();
    mcp.request(1, "tools/list", &json!({}));
    mcp.answer(1);
    mcp.shell(2, "hi");
    mcp.result(2);
}

#[test]
fn unknown_methods_are_refused_at_once_and_notifications_never_answered() {
    let home = Home::new();
    let mut mcp = Mcp::start(&home);
    for method in [
        "server/discover",
        "resources/list",
        "prompts/list",
        "logging/setLevel",
        "shutdown",
        "notifications/initialized",
    ] {
        mcp.request(1, method, &json!({}));
        assert_eq!(mcp.error_code(1), -32601);
    }
    for method in [
        "initialize",
        "tools/call",
        "notifications/roots/list_changed",
        "x",
    ] {
        mcp.send(&json!({"jsonrpc": "2.0", "method": method, "params": {}}));
    }
    mcp.send(&json!({"jsonrpc": "2.0", "id": 7, "result": {}}));
    mcp.write(b"\n  \n");
    mcp.ping();
    mcp.is_silent();
}

#[test]
fn bad_lines_are_refused_and_survived() {
    let home = Home::new();
    let mut mcp = Mcp::start(&home);
    for (line, code) in [
        (&b"{"[..], -32700),
        (b"hello", -32700),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}",
            -32700,
        ),
        (b"\x00", -32700),
        (b"7", -32600),
        (b"[]", -32600),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}",
            -32600,
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"ping\"}",
            -32600,
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"ping\"}",
            -32600,
        ),
    ] {
        mcp.write(line);
        mcp.write(b"\n");
        assert_eq!(mcp.error_code(Value::Null), code, "{line:?}");
    }
    mcp.ping();
}

#[test]
fn bad_parameters_say_which_and_what_is_expected() {
    let home = Home::new();
    let mut mcp = Mcp::start(&home);
    let call = |name: Value, arguments: Value| json!({"name": name, "arguments": arguments});
    for (method, params, wanted) in [
        (
            "initialize",
            json!({}),
            "params.protocolVersion must be a string",
        ),
        ("ping", json!([1]), "params must be an object"),
        ("tools/call", json!({}), "params.name must be a string"),
        (
            "tools/call",
            call(json!(1), json!({})),
            "params.name must be a string",
        ),
        (
            "tools/call",
            call(json!("dance"), json!({})),
            "unknown tool \"dance\"",
        ),
        (
            "tools/call",
            call(json!("shell"), json!({})),
            "\"command\" is missing, it must be a string",
        ),
        (
            "tools/call",
            call(json!("shell"), json!([])),
            "params.arguments must be an object",
        ),
        (
            "tools/call",
            call(json!("shell"), json!({"command": "a", "timeout_s": "5"})),
            "\"timeout_s\" must be an integer of at least 1",
        ),
    ] {
        mcp.request(1, method, &params);
        let answer = mcp.answer(1);
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(wanted), "{message}");
    }
}

#[test]
fn ids_come_back_byte_by_byte() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, echo);
    let mut mcp = Mcp::start(&home);
    for id in [
        "0",
        "-7",
        "340282366920938463463374607431768211456",
        r#""\u0041\/é""#,
        r#""""#,
    ] {
        mcp.write(
            format!("{{\"jsonrpc\":\"2.0\", \"id\": {id} ,\"method\":\"ping\"}}\n").as_bytes(),
        );
        let wanted = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
        assert_eq!(mcp.next_line(), wanted);
        let call = r#""method":"tools/call","params":{"name":"shell","arguments":{"command":""}}"#;
        mcp.write(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},{call}}}\n").as_bytes());
        assert!(
            mcp.next_line()
                .starts_with(&format!(r#"{{"jsonrpc":"2.0","id":{id},"#))
        );
    }
}

#[test]
fn lines_end_at_lf_only() {
    let home = Home::new();
    let plane = ControlPlane::start(&home, echo);
    let mut mcp = Mcp::initialized(&home);
    let command = "a\u{2028}b\u{85}c\u{c}d\u{feff}";
    // JSON is not obliged to escape these, and serde_json does not.
    mcp.shell(1, command);
    mcp.result(1);
    assert_eq!(plane.wait_for("shell")["params"]["command"], command);
    mcp.write(b"\t{\"jsonrpc\":\"2.0\",\r\"id\":2,\"method\":\"ping\"}\r\n");
    mcp.answer(2);
}

#[test]
fn message_may_come_in_pieces_and_many_in_one() {
    let home = Home::new();
    let mut mcp = Mcp::start(&home);
    let ping = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n";
    for byte in ping {
        mcp.write(&[*byte]);
    }
    mcp.answer(1);
    mcp.write(&ping.repeat(500));
    for _ in 0..500 {
        mcp.answer(1);
    }
}

#[test]
fn long_line_is_refused_naming_the_limit_and_survived() {
    const LIMIT: usize = 8 << 20;
    let home = Home::new();
    let mut mcp = Mcp::start(&home);
    let line = |len: usize| {
        let start = r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":""#;
        let end = r#""}}"#;
        format!(
            "{start}{}{end}\n",
            "x".repeat(len - start.len() - end.len())
        )
        .into_bytes()
    };
    mcp.write(&line(LIMIT));
    mcp.answer(1);
    mcp.write(&line(LIMIT + 1));
    let answer = mcp.answer(Value::Null);
    assert_eq!(answer["error"]["code"], -32600);
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .contains("8388608")
    );
    mcp.write(&line(LIMIT * 3));
    assert_eq!(mcp.error_code(Value::Null), -32600);
    mcp.ping();
}

#[test]
fn batch_gets_an_array_where_the_version_has_batches() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, echo);
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    let params = json!({"name": "shell", "arguments": {"command": "x"}});
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params});
    let note = json!({"jsonrpc": "2.0", "method": "x"});
    let batch = json!([ping, note, call, 1]);
    let mut mcp = Mcp::start(&home);
    mcp.initialize("2025-03-26");
    mcp.send(&batch);
    let answers = mcp.next();
    let mut ids: Vec<_> = answers
        .as_array()
        .unwrap()
        .iter()
        .map(|a| a["id"].to_string())
        .collect();
    ids.sort();
    assert_eq!(ids, ["1", "2", "null"]);
    mcp.send(&json!([note]));
    mcp.is_silent();
    let mut mcp = Mcp::initialized(&home);
    mcp.send(&batch);
    assert_eq!(mcp.error_code(Value::Null), -32600);
    mcp.is_silent();
}
