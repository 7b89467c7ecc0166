//! A running umwelt-mcp, and answers of the stand-in that many tests use.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::home::Home;
use crate::common::stand_in::{Answer, exited, reply};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How long nothing must come for a test to believe that nothing will.
pub(crate) const SILENCE: Duration = Duration::from_millis(200);

/// A running umwelt-mcp.
pub(crate) struct Mcp {
    pub(crate) child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Vec<u8>>,
}

impl Mcp {
    pub(crate) fn start(home: &Home) -> Mcp {
        Mcp::spawn(&mut home.command("umwelt-mcp"))
    }

    pub(crate) fn spawn(command: &mut Command) -> Mcp {
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
    pub(crate) fn initialized(home: &Home) -> Mcp {
        let mut mcp = Mcp::start(home);
        mcp.initialize("2025-11-25");
        mcp
    }

    pub(crate) fn initialize(&mut self, version: &str) -> Value {
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

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    pub(crate) fn send(&mut self, message: &Value) {
        self.write(format!("{message}\n").as_bytes());
    }

    pub(crate) fn request(&mut self, id: impl Into<Value>, method: &str, params: &Value) {
        let id = id.into();
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }

    pub(crate) fn call(&mut self, id: impl Into<Value>, tool: &str, arguments: &Value) {
        let params = json!({"name": tool, "arguments": arguments});
        self.request(id, "tools/call", &params);
    }

    pub(crate) fn shell(&mut self, id: impl Into<Value>, command: &str) {
        self.call(id, "shell", &json!({"command": command}));
    }

    /// A shell call that asks for progress, with its id as the token.
    pub(crate) fn shell_with_progress(&mut self, id: u64, command: &str) {
        let params = json!({
            "name": "shell",
            "arguments": {"command": command},
            "_meta": {"progressToken": id},
        });
        self.request(id, "tools/call", &params);
    }

    pub(crate) fn cancel(&mut self, id: impl Into<Value>) {
        let params = json!({"requestId": id.into(), "reason": "AbortError"});
        self.send(&json!({
            "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params,
        }));
    }

    pub(crate) fn next_line(&self) -> String {
        let line = self.lines.recv_timeout(PATIENCE).expect("a line");
        String::from_utf8(line).expect("UTF-8")
    }

    pub(crate) fn next(&self) -> Value {
        serde_json::from_str(&self.next_line()).expect("JSON")
    }

    /// The next answer, which must have this id.
    pub(crate) fn answer(&self, id: impl Into<Value>) -> Value {
        let answer = self.next();
        assert_eq!(answer["id"], id.into(), "{answer}");
        assert_eq!(answer["jsonrpc"], "2.0");
        answer
    }

    /// The result of a tool call.
    pub(crate) fn result(&self, id: impl Into<Value>) -> Value {
        let answer = self.answer(id);
        assert!(answer.get("error").is_none(), "{answer}");
        answer["result"].clone()
    }

    /// The text of a tool call that could not be carried out.
    pub(crate) fn refusal(&self, id: impl Into<Value>) -> String {
        let result = self.result(id);
        assert_eq!(result["isError"], true, "{result}");
        text(&result).to_owned()
    }

    pub(crate) fn error_code(&self, id: impl Into<Value>) -> i64 {
        let answer = self.answer(id);
        answer["error"]["code"].as_i64().expect("an error")
    }

    pub(crate) fn is_silent(&self) {
        match self.lines.recv_timeout(SILENCE) {
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => panic!("it has ended"),
            Ok(line) => panic!("{}", String::from_utf8_lossy(&line)),
        }
    }

    pub(crate) fn ping(&mut self) {
        self.request("ping", "ping", &json!({}));
        assert_eq!(self.answer("ping")["result"], json!({}));
    }

    /// Closes stdin; the status and the time until the end.
    pub(crate) fn close(&mut self) -> (ExitStatus, Duration) {
        self.end_input();
        wait(&mut self.child)
    }

    pub(crate) fn end_input(&mut self) {
        drop(self.stdin.take());
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// A line of /proc/PID/status.
    pub(crate) fn status(&self, name: &str) -> u64 {
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

pub(crate) fn wait(child: &mut Child) -> (ExitStatus, Duration) {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return (status, start.elapsed());
        }
        assert!(start.elapsed() < PATIENCE, "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Each attempt tells how long something took. One of a few must be quick enough:
/// a busy machine can delay any of them.
pub(crate) fn assert_within(limit: Duration, attempt: impl Fn() -> Duration) {
    let mut took = Vec::new();
    while took.len() < 4 {
        took.push(attempt());
        if took.last() < Some(&limit) {
            return;
        }
    }
    panic!("not within {limit:?}: {took:?}");
}

/// A handler that answers with "done" when the test says so.
pub(crate) fn when_told() -> (Sender<()>, impl Fn(Value, Answer) + Send + Sync) {
    let (go, step) = channel();
    let step = Mutex::new(step);
    let handler = move |_, answer: Answer| {
        step.lock().unwrap().recv().unwrap();
        answer.result(&exited(0, "done"));
    };
    (go, handler)
}

pub(crate) fn text(result: &Value) -> &str {
    assert_eq!(result["content"][0]["type"], "text");
    result["content"][0]["text"].as_str().unwrap()
}

/// Echoes the command.
pub(crate) fn echo(request: Value, answer: Answer) {
    let command = request["params"]["command"].as_str().unwrap_or_default();
    answer.result(&exited(0, command));
}

/// Answers when it is cancelled.
pub(crate) fn endless(_: Value, answer: Answer) {
    answer.wait_cancelled();
    answer.result(&reply(&json!({"ended": "cancelled"}), ""));
}
