//! umwelt-mcp, driven by bytes on its stdin, before a stand-in control plane.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test program: what goes wrong here shall stop it"
)]

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use common::home::Home;
use common::stand_in::{Answer, ControlPlane, exited, hello, host_shell, list, reply, wait_until};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(20);
/// How long nothing must come for a test to believe that nothing will.
const SILENCE: Duration = Duration::from_millis(200);

/// A running umwelt-mcp.
struct Mcp {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Vec<u8>>,
}

impl Mcp {
    fn start(home: &Home) -> Mcp {
        Mcp::spawn(&mut home.command("umwelt-mcp"))
    }

    fn spawn(command: &mut Command) -> Mcp {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).split(b'\n') {
                drop(sender.send(line.unwrap()));
            }
        });
        let stdin = child.stdin.take();
        Mcp {
            child,
            stdin,
            lines,
        }
    }

    /// One that has shaken hands under the newest version.
    fn initialized(home: &Home) -> Mcp {
        let mut mcp = Mcp::start(home);
        mcp.initialize("2025-11-25");
        mcp
    }

    fn initialize(&mut self, version: &str) -> Value {
        let params = json!({
            "protocolVersion": version,
            "capabilities": {"roots": {}},
            "clientInfo": {"name": "test", "version": "1"},
        });
        self.request("init", "initialize", &params);
        let answer = self.answer("init");
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        answer["result"].clone()
    }

    fn write(&mut self, bytes: &[u8]) {
        self.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    fn send(&mut self, message: &Value) {
        self.write(format!("{message}\n").as_bytes());
    }

    fn request(&mut self, id: impl Into<Value>, method: &str, params: &Value) {
        let id = id.into();
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }

    fn call(&mut self, id: impl Into<Value>, tool: &str, arguments: &Value) {
        let params = json!({"name": tool, "arguments": arguments});
        self.request(id, "tools/call", &params);
    }

    fn shell(&mut self, id: impl Into<Value>, command: &str) {
        self.call(id, "shell", &json!({"command": command}));
    }

    /// A shell call that asks for progress, with its id as the token.
    fn shell_with_progress(&mut self, id: u64, command: &str) {
        let params = json!({
            "name": "shell",
            "arguments": {"command": command},
            "_meta": {"progressToken": id},
        });
        self.request(id, "tools/call", &params);
    }

    fn cancel(&mut self, id: impl Into<Value>) {
        let params = json!({"requestId": id.into(), "reason": "AbortError"});
        self.send(&json!({
            "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params,
        }));
    }

    fn next_line(&self) -> String {
        let line = self.lines.recv_timeout(PATIENCE).expect("a line");
        String::from_utf8(line).expect("UTF-8")
    }

    fn next(&self) -> Value {
        serde_json::from_str(&self.next_line()).expect("JSON")
    }

    /// The next answer, which must have this id.
    fn answer(&self, id: impl Into<Value>) -> Value {
        let answer = self.next();
        assert_eq!(answer["id"], id.into(), "{answer}");
        assert_eq!(answer["jsonrpc"], "2.0");
        answer
    }

    /// The result of a tool call.
    fn result(&self, id: impl Into<Value>) -> Value {
        let answer = self.answer(id);
        assert!(answer.get("error").is_none(), "{answer}");
        answer["result"].clone()
    }

    /// The text of a tool call that could not be carried out.
    fn refusal(&self, id: impl Into<Value>) -> String {
        let result = self.result(id);
        assert_eq!(result["isError"], true, "{result}");
        text(&result).to_owned()
    }

    fn error_code(&self, id: impl Into<Value>) -> i64 {
        let answer = self.answer(id);
        answer["error"]["code"].as_i64().expect("an error")
    }

    fn is_silent(&self) {
        match self.lines.recv_timeout(SILENCE) {
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => panic!("it has ended"),
            Ok(line) => panic!("{}", String::from_utf8_lossy(&line)),
        }
    }

    fn ping(&mut self) {
        self.request("ping", "ping", &json!({}));
        assert_eq!(self.answer("ping")["result"], json!({}));
    }

    /// Closes stdin; the status and the time until the end.
    fn close(&mut self) -> (ExitStatus, Duration) {
        drop(self.stdin.take());
        wait(&mut self.child)
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// A line of /proc/PID/status.
    fn status(&self, name: &str) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        let number = line.split_whitespace().nth(1).unwrap();
        number.parse().unwrap()
    }
}

impl Drop for Mcp {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn wait(child: &mut Child) -> (ExitStatus, Duration) {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return (status, start.elapsed());
        }
        assert!(start.elapsed() < PATIENCE, "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn text(result: &Value) -> &str {
    assert_eq!(result["content"][0]["type"], "text");
    result["content"][0]["text"].as_str().unwrap()
}

/// Echoes the command.
fn echo(request: Value, answer: Answer) {
    let command = request["params"]["command"].as_str().unwrap_or_default();
    answer.result(&exited(0, command));
}

/// Answers when it is cancelled.
fn endless(_: Value, answer: Answer) {
    answer.wait_cancelled();
    answer.result(&reply(&json!({"ended": "cancelled"}), ""));
}

// Handshake and messages.

#[test]
fn handshake_and_tools_are_answered_without_any_sandbox() {
    let home = Home::new();
    let start = Instant::now();
    let mut mcp = Mcp::start(&home);
    let result = mcp.initialize("2025-06-18");
    assert_eq!(result["protocolVersion"], "2025-06-18");
    assert_eq!(result["serverInfo"]["name"], "umwelt");
    assert_eq!(result["serverInfo"]["version"], env!("CARGO_PKG_VERSION"));
    assert!(result["capabilities"]["tools"].is_object());
    let workspace = home.workspace();
    let instructions = result["instructions"].as_str().unwrap();
    assert!(instructions.contains(workspace.to_str().unwrap()));
    mcp.request(0, "tools/list", &json!({"cursor": "x"}));
    let answer = mcp.answer(0);
    let names: Vec<_> = answer["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].clone())
        .collect();
    assert_eq!(names, ["shell", "list"]);
    assert!(start.elapsed() < Duration::from_secs(5));
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
            "\"command\" must be a string",
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

// Tools.

#[test]
fn command_goes_in_and_its_output_and_exit_code_come_back() {
    let home = Home::new();
    let plane = ControlPlane::start(&home, |_, answer| answer.result(&exited(3, "out\n")));
    let mut mcp = Mcp::initialized(&home);
    mcp.call(
        0,
        "shell",
        &json!({"command": "x", "timeout_s": 9, "cwd": "sub"}),
    );
    let result = mcp.result(0);
    assert_eq!(text(&result), "out\n[exit code 3, after 0.005 s]");
    assert_eq!(result["isError"], false);
    let structured = &result["structuredContent"];
    assert_eq!(structured["ended"], "exited");
    assert_eq!(structured["exit_code"], 3);
    assert_eq!(structured["output"], "out\n");
    assert_eq!(
        plane.wait_for("shell")["params"],
        json!({"command": "x", "timeout_s": 9, "cwd": "sub", "stream": false})
    );
    let hello = plane.wait_for("hello");
    assert_eq!(hello["params"]["holds"], true);
    let name = concat!("umwelt-mcp/", env!("CARGO_PKG_VERSION"), " (test 1)");
    assert_eq!(hello["params"]["client"], name);
}

#[test]
fn ends_of_a_command_are_told_apart() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, |request, answer| {
        let outcome = serde_json::from_str(request["params"]["command"].as_str().unwrap());
        answer.result(&reply(&outcome.unwrap(), ""));
    });
    let mut mcp = Mcp::initialized(&home);
    for (outcome, wanted, is_error) in [
        (
            json!({"ended": "exited", "code": 0}),
            "[exit code 0,",
            false,
        ),
        (
            json!({"ended": "signaled", "signal": 11}),
            "[killed by signal 11 (SIGSEGV)",
            false,
        ),
        (
            json!({"ended": "timed_out", "after_s": 7}),
            "[timed out after 7 s",
            false,
        ),
        (json!({"ended": "cancelled"}), "[cancelled", false),
        (
            json!({"ended": "lost", "reason": "it died"}),
            "[lost: ",
            true,
        ),
    ] {
        mcp.shell(1, &outcome.to_string());
        let result = mcp.result(1);
        assert!(text(&result).contains(wanted), "{result}");
        assert_eq!(result["structuredContent"]["ended"], outcome["ended"]);
        assert_eq!(result["isError"], is_error);
    }
}

#[test]
fn every_result_matches_the_output_schema() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, |request, answer| match request["method"].as_str() {
        Some("list") => answer.result(&list()),
        _ => {
            let mut full = exited(0, "x");
            full["omitted_bytes"] = json!(7);
            full["full_output"] = json!("/tmp/x");
            full["background"] = json!([{"pid": 1, "command": "sleep 1"}]);
            full["notices"] = json!(["n"]);
            answer.result(&full);
        }
    });
    let mut mcp = Mcp::initialized(&home);
    mcp.request(0, "tools/list", &json!({}));
    let tools = mcp.result(0)["tools"].clone();
    mcp.shell(1, "x");
    conforms(
        &mcp.result(1)["structuredContent"],
        &tools[0]["outputSchema"],
    );
    mcp.call(2, "list", &json!({}));
    let result = mcp.result(2);
    conforms(&result["structuredContent"], &tools[1]["outputSchema"]);
    assert!(
        text(&result).contains("\nrw         -  workspace  /w\n"),
        "{}",
        text(&result)
    );
}

/// As much of JSON Schema as the tools use.
fn conforms(value: &Value, schema: &Value) {
    let fits = match schema["type"].as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        other => panic!("{other}"),
    };
    assert!(fits, "{value} is no {schema}");
    if let Some(allowed) = schema["enum"].as_array() {
        assert!(allowed.contains(value), "{value}");
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        assert!(
            value.get(name.as_str().unwrap()).is_some(),
            "{name} is missing"
        );
    }
    for (name, member) in value.as_object().into_iter().flatten() {
        let member_schema = &schema["properties"][name];
        assert!(member_schema.is_object(), "{name} is not in the schema");
        conforms(member, member_schema);
    }
    for item in value.as_array().into_iter().flatten() {
        conforms(item, &schema["items"]);
    }
}

#[test]
fn refusal_of_the_control_plane_is_a_result_with_its_hint() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, |_, answer| {
        answer.error("no_delegation", "no caps here", "run: systemctl");
    });
    let mut mcp = Mcp::initialized(&home);
    mcp.shell(1, "x");
    assert_eq!(mcp.refusal(1), "umwelt: no caps here\nhint: run: systemctl");
}

#[test]
fn slow_call_delays_nobody() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, |request, answer| {
        if request["params"]["command"] == "slow" {
            answer.wait_cancelled();
        }
        answer.result(&exited(0, request["params"]["command"].as_str().unwrap()));
    });
    let mut mcp = Mcp::initialized(&home);
    mcp.shell("slow", "slow");
    for id in 0..50 {
        mcp.shell(id, "quick");
    }
    let mut ids: Vec<_> = (0..50)
        .map(|_| mcp.next()["id"].as_u64().unwrap())
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..50).collect::<Vec<_>>());
    mcp.ping();
}

#[test]
fn id_in_use_is_refused() {
    let home = Home::new();
    let plane = ControlPlane::start(&home, endless);
    let mut mcp = Mcp::initialized(&home);
    mcp.shell(1, "x");
    mcp.shell(1, "y");
    assert_eq!(mcp.error_code(1), -32600);
    plane.wait_for("shell");
    assert_eq!(plane.requests("shell").len(), 1);
}

#[test]
fn cancelled_call_is_ended_and_not_answered() {
    let home = Home::new();
    let plane = ControlPlane::start(&home, endless);
    let mut mcp = Mcp::initialized(&home);
    mcp.shell(0, "x");
    let request = plane.wait_for("shell");
    mcp.cancel(0);
    assert_eq!(plane.wait_for("cancel")["params"]["request"], request["id"]);
    mcp.is_silent();
    mcp.cancel(0);
    mcp.cancel("never");
    mcp.ping();
    assert_eq!(plane.requests("cancel").len(), 1);
}

// Progress.

#[test]
fn progress_shows_the_output_as_it_grows_and_stops_with_the_answer() {
    let home = Home::new();
    let plane = ControlPlane::start(&home, |_, answer| {
        for piece in ["one\n", "two\x1b[1m\n", "three\n\n", &"x".repeat(1000)] {
            answer.output(piece);
            std::thread::sleep(Duration::from_millis(300));
        }
        answer.result(&exited(0, ""));
        answer.output("late\n");
    });
    let mut mcp = Mcp::initialized(&home);
    mcp.shell_with_progress(0, "x");
    let mut messages = Vec::new();
    let mut last = -1.0;
    let answer = loop {
        let message = mcp.next();
        if message["method"] != "notifications/progress" {
            break message;
        }
        let params = &message["params"];
        assert_eq!(params["progressToken"], 0);
        let progress = params["progress"].as_f64().unwrap();
        assert!(progress > last);
        last = progress;
        messages.push(params["message"].as_str().unwrap().to_owned());
    };
    assert_eq!(answer["id"], 0);
    assert_eq!(messages[..3], ["one", "two\\x1b[1m", "three"]);
    assert_eq!(messages[3].chars().count(), 200);
    assert_eq!(plane.wait_for("shell")["params"]["stream"], true);
    mcp.is_silent();
}

#[test]
fn silent_command_and_starting_sandbox_still_progress() {
    let home = Home::new();
    let _plane = ControlPlane::start_for(&home, &home.workspace(), hello("starting"), endless);
    let mut mcp = Mcp::initialized(&home);
    let start = Instant::now();
    mcp.shell_with_progress(5, "x");
    let message = mcp.next();
    assert_eq!(message["method"], "notifications/progress");
    assert_eq!(message["params"]["progressToken"], 5);
    let said = message["params"]["message"].as_str().unwrap();
    assert!(said.starts_with("waiting for the sandbox"), "{said}");
    assert!(start.elapsed() < Duration::from_secs(10));
}

// Starting, losing and refusing the sandbox.

#[test]
fn failed_start_is_a_result_and_the_next_call_tries_again() {
    let home = Home::new();
    let mut mcp = Mcp::initialized(&home);
    mcp.shell(1, "x");
    // No podman on the PATH: the real umwelt-run cannot succeed.
    let refusal = mcp.refusal(1);
    assert!(refusal.starts_with("umwelt: "), "{refusal}");
    let _plane = ControlPlane::start(&home, echo);
    mcp.shell(2, "hi");
    assert_eq!(text(&mcp.result(2)), "hi\n[exit code 0, after 0.005 s]");
}

#[test]
fn death_of_the_control_plane_is_told_and_the_next_call_attaches_anew() {
    let home = Home::new();
    let plane = ControlPlane::start(&home, endless);
    let mut mcp = Mcp::initialized(&home);
    mcp.shell(1, "x");
    mcp.shell(2, "y");
    wait_until(|| plane.requests("shell").len() == 2);
    plane.hang_up();
    for id in [1, 2] {
        let refusal = mcp.refusal(id);
        assert!(
            refusal.contains("lost the sandbox while this call ran"),
            "{refusal}"
        );
        assert!(refusal.contains("hint: "), "{refusal}");
    }
    let _plane = ControlPlane::start(&home, echo);
    mcp.shell(3, "again");
    assert!(text(&mcp.result(3)).starts_with("again\n"));
}

#[test]
fn control_plane_of_another_version_is_refused_with_both_numbers() {
    let home = Home::new();
    let hello = json!({"api": 99});
    let _plane = ControlPlane::start_for(&home, &home.workspace(), hello, echo);
    let mut mcp = Mcp::initialized(&home);
    mcp.shell(1, "x");
    let refusal = mcp.refusal(1);
    assert!(refusal.contains("version 99, this program 1"), "{refusal}");
}

#[test]
fn refused_workspace_is_told_in_every_call_not_by_dying() {
    let home = Home::new();
    let mut command = home.command("umwelt-mcp");
    command.current_dir(home.path("home"));
    let mut mcp = Mcp::spawn(&mut command);
    let instructions = mcp.initialize("2025-11-25")["instructions"].clone();
    assert!(
        instructions.as_str().unwrap().contains("home directory"),
        "{instructions}"
    );
    mcp.request(0, "tools/list", &json!({}));
    mcp.result(0);
    for id in [1, 2] {
        mcp.shell(id, "x");
        let refusal = mcp.refusal(id);
        assert!(
            refusal.contains("home directory") && refusal.contains("hint: "),
            "{refusal}"
        );
    }
}

#[test]
fn bad_config_is_told_and_a_repaired_one_counts() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, echo);
    home.write_config("imag = 1\n");
    let mut mcp = Mcp::initialized(&home);
    mcp.shell(1, "x");
    let refusal = mcp.refusal(1);
    assert!(
        refusal.contains("umwelt.toml") && refusal.contains("line 1"),
        "{refusal}"
    );
    home.write_config("");
    mcp.shell(2, "x");
    mcp.result(2);
}

#[test]
fn open_runtime_directory_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    let _plane = ControlPlane::start(&home, echo);
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(home.path("run"), open).unwrap();
    let mut mcp = Mcp::initialized(&home);
    mcp.shell(1, "x");
    let refusal = mcp.refusal(1);
    assert!(refusal.contains("has mode 755"), "{refusal}");
}

#[test]
fn fallback_workspace_is_used_and_told_once() {
    let home = Home::new();
    let project = home.workspace();
    home.write_config(&format!("fallback_workspace = {project:?}\n"));
    let _plane = ControlPlane::start(&home, echo);
    let mut command = home.command("umwelt-mcp");
    command.current_dir(home.path("home"));
    let mut mcp = Mcp::spawn(&mut command);
    mcp.initialize("2025-11-25");
    mcp.shell(1, "x");
    let result = mcp.result(1);
    let notice = result["structuredContent"]["notices"][0].as_str().unwrap();
    assert!(notice.contains("using the fallback workspace"), "{notice}");
    assert!(text(&result).contains("\n[notice: "));
    mcp.shell(2, "x");
    assert_eq!(mcp.result(2)["structuredContent"]["notices"], json!([]));
}

#[test]
fn workspace_option_names_another_directory() {
    let home = Home::new();
    let other = home.path("other");
    std::fs::create_dir(&other).unwrap();
    let plane = ControlPlane::start_for(&home, &other, hello("ready"), echo);
    let mut command = home.command("umwelt-mcp");
    command.arg("--workspace").arg(&other);
    let mut mcp = Mcp::spawn(&mut command);
    mcp.initialize("2025-11-25");
    mcp.shell(1, "x");
    mcp.result(1);
    plane.wait_for("shell");
}

// The end.

#[test]
fn end_of_input_ends_it_at_once_when_nothing_runs() {
    let home = Home::new();
    let mut mcp = Mcp::initialized(&home);
    let (status, time) = mcp.close();
    assert!(status.success());
    assert!(time < Duration::from_secs(1), "{time:?}");
}

#[test]
fn call_that_ends_soon_after_the_input_is_answered() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, |_, answer| {
        std::thread::sleep(Duration::from_millis(700));
        answer.result(&exited(0, "done"));
    });
    let mut mcp = Mcp::initialized(&home);
    mcp.shell(1, "x");
    let (status, time) = mcp.close();
    assert!(status.success());
    assert!(text(&mcp.result(1)).starts_with("done"));
    assert!(time < Duration::from_secs(2), "{time:?}");
}

#[test]
fn call_that_runs_on_after_the_input_is_cancelled() {
    let home = Home::new();
    let plane = ControlPlane::start(&home, endless);
    let mut mcp = Mcp::initialized(&home);
    mcp.shell(1, "x");
    plane.wait_for("shell");
    let (status, time) = mcp.close();
    assert!(status.success());
    assert!(time < Duration::from_secs(4), "{time:?}");
    assert!(mcp.refusal(1).contains("cancelled"));
    plane.wait_for("cancel");
}

#[test]
fn end_does_not_wait_for_a_client_that_does_not_read() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, |_, answer| {
        answer.result(&exited(0, &"x".repeat(1 << 20)));
    });
    let (input, mut writer) = std::io::pipe().unwrap();
    let (reader, output) = std::io::pipe().unwrap();
    let mut child = home
        .command("umwelt-mcp")
        .stdin(input)
        .stdout(output)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let params = json!({"name": "shell", "arguments": {"command": "x"}});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    writeln!(writer, "{call}").unwrap();
    drop(writer);
    let (status, time) = wait(&mut child);
    assert!(status.success());
    assert!(time < Duration::from_secs(5), "{time:?}");
    drop(reader);
}

#[test]
fn it_ends_when_nobody_reads_its_output_any_more() {
    let home = Home::new();
    let (input, mut writer) = std::io::pipe().unwrap();
    let (reader, output) = std::io::pipe().unwrap();
    let mut child = home
        .command("umwelt-mcp")
        .stdin(input)
        .stdout(output)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    writeln!(writer, r#"{{"jsonrpc":"2.0","id":1,"method":"ping"}}"#).unwrap();
    let mut answer = String::new();
    BufReader::new(reader).read_line(&mut answer).unwrap();
    // The reader is gone, stdin is open, nothing is to be written.
    let (status, _) = wait(&mut child);
    assert_eq!(status.signal(), None);
}

#[test]
fn sigterm_is_as_the_end_of_input() {
    let home = Home::new();
    let plane = ControlPlane::start(&home, |_, answer| {
        std::thread::sleep(Duration::from_millis(500));
        answer.result(&exited(0, "done"));
    });
    let mut mcp = Mcp::initialized(&home);
    mcp.shell(1, "x");
    plane.wait_for("shell");
    mcp.signal(rustix::process::Signal::TERM);
    let (status, time) = wait(&mut mcp.child);
    assert_eq!(status.code(), Some(0));
    assert!(time < Duration::from_secs(2), "{time:?}");
    assert!(text(&mcp.result(1)).starts_with("done"));
}

#[test]
fn input_may_be_a_file_or_nothing() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, echo);
    let path = home.path("input");
    let params = json!({"name": "shell", "arguments": {"command": "hi"}});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    // The last line has no LF: it is not a message.
    std::fs::write(&path, format!("{call}\n{call}")).unwrap();
    for (input, lines) in [(File::open(&path), 1), (File::open("/dev/null"), 0)] {
        let output = home
            .command("umwelt-mcp")
            .stdin(input.unwrap())
            .output()
            .unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.lines().count(), lines, "{text}");
        assert!(output.stderr.is_empty());
    }
}

// Manners.

#[test]
fn descriptors_that_the_client_shares_stay_blocking() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, echo);
    let (input, mut writer) = std::io::pipe().unwrap();
    let (mut reader, output) = std::io::pipe().unwrap();
    let ours: [OwnedFd; 2] = [
        input.try_clone().unwrap().into(),
        output.try_clone().unwrap().into(),
    ];
    let mut child = home
        .command("umwelt-mcp")
        .stdin(input)
        .stdout(output)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    writeln!(writer, r#"{{"jsonrpc":"2.0","id":1,"method":"ping"}}"#).unwrap();
    let mut byte = [0];
    reader.read_exact(&mut byte).unwrap();
    for fd in &ours {
        let flags = rustix::fs::fcntl_getfl(fd.as_fd()).unwrap();
        assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK));
    }
    drop(writer);
    wait(&mut child);
}

#[test]
fn idle_it_does_nothing_and_is_small() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, echo);
    let mut mcp = Mcp::initialized(&home);
    mcp.shell(1, "x");
    mcp.result(1);
    std::thread::sleep(Duration::from_millis(100));
    let switches = mcp.status("voluntary_ctxt_switches");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(mcp.status("voluntary_ctxt_switches"), switches);
    // The text of a build without optimisation counts too.
    let limit = if cfg!(debug_assertions) {
        6 << 10
    } else {
        4 << 10
    };
    let rss = mcp.status("VmRSS");
    assert!(rss <= limit, "{rss} KiB");
}

#[test]
fn client_that_only_writes_is_not_buffered_without_end() {
    const COUNT: usize = 11_000;
    let home = Home::new();
    let (input, writer) = std::io::pipe().unwrap();
    let (reader, output) = std::io::pipe().unwrap();
    let mut child = home
        .command("umwelt-mcp")
        .stdin(input)
        .stdout(output)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let writing = std::thread::spawn(move || {
        let mut writer = std::io::BufWriter::new(writer);
        for id in 0..COUNT {
            writeln!(
                writer,
                r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/list"}}"#
            )
            .unwrap();
        }
    });
    // It stops reading long before the writer is done.
    let rss = || {
        let status = std::fs::read_to_string(format!("/proc/{}/statm", child.id())).unwrap();
        let pages: usize = status.split(' ').nth(1).unwrap().parse().unwrap();
        pages * 4096
    };
    wait_until(|| rss() > 32 << 20);
    std::thread::sleep(SILENCE);
    assert!(rss() < 128 << 20, "{}", rss());
    assert!(!writing.is_finished());
    let mut count = 0;
    for (line, id) in BufReader::new(reader).lines().zip(0..COUNT) {
        let start = format!(r#"{{"jsonrpc":"2.0","id":{id},"#);
        assert!(line.unwrap().starts_with(&start));
        count += 1;
    }
    writing.join().unwrap();
    assert_eq!(count, COUNT);
    assert!(wait(&mut child).0.success());
}

#[test]
fn real_commands_run_through_it_all() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, host_shell);
    let mut command = home.command("umwelt-mcp");
    let mut mcp = Mcp::spawn(&mut command);
    mcp.initialize("2025-11-25");
    mcp.shell(1, "echo out; echo err >&2; exit 7");
    let result = mcp.result(1);
    assert!(
        text(&result).starts_with("out\nerr\n[exit code 7,"),
        "{result}"
    );
    mcp.call(2, "shell", &json!({"command": "sleep 60", "timeout_s": 1}));
    assert!(text(&mcp.result(2)).contains("[timed out after 1 s"));
}

#[test]
fn help_and_version_go_to_stdout_and_mistakes_to_stderr() {
    let home = Home::new();
    for (arg, wanted) in [("--help", "--workspace DIR"), ("--version", "umwelt-mcp 0")] {
        let output = home.command("umwelt-mcp").arg(arg).output().unwrap();
        assert!(output.status.success());
        assert!(String::from_utf8_lossy(&output.stdout).contains(wanted));
    }
    let output = home.command("umwelt-mcp").arg("--dance").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("--dance"));
}
