//! A stand-in for the control plane: it speaks the socket API, and a test says
//! what it answers. `host_shell` runs the commands for real, unprotected.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::home::Home;

/// Long enough for any machine that runs tests.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct ControlPlane {
    shared: Arc<Shared>,
}

struct Shared {
    handler: Box<dyn Fn(Value, Answer) + Send + Sync>,
    hello: Value,
    /// Every request as it came, hello too.
    requests: Mutex<Vec<Value>>,
    streams: Mutex<Vec<Arc<UnixStream>>>,
    socket: std::path::PathBuf,
}

/// The way back for one request.
#[derive(Clone)]
pub(crate) struct Answer {
    id: Value,
    stream: Arc<UnixStream>,
    cancelled: Arc<AtomicBool>,
}

impl Answer {
    pub(crate) fn output(&self, text: &str) {
        self.send(&json!({"id": self.id, "event": {"output": {"text": text, "skipped": 0}}}));
    }

    pub(crate) fn result(&self, result: &Value) {
        self.send(&json!({"id": self.id, "result": result}));
    }

    pub(crate) fn error(&self, kind: &str, message: &str, hint: &str) {
        let error = json!({"kind": kind, "message": message, "hint": hint});
        self.send(&json!({"id": self.id, "error": error}));
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// Waits for a cancellation of this request.
    pub(crate) fn wait_cancelled(&self) {
        wait_until(|| self.is_cancelled());
    }

    fn send(&self, message: &Value) {
        // The client may be gone; one write, so that answers do not mix.
        drop((&*self.stream).write_all(format!("{message}\n").as_bytes()));
    }
}

impl ControlPlane {
    /// One that answers each request but hello, ping and cancel with
    /// `handler`, on a thread of its own.
    pub(crate) fn start(
        home: &Home,
        handler: impl Fn(Value, Answer) + Send + Sync + 'static,
    ) -> ControlPlane {
        ControlPlane::start_for(home, &home.workspace(), hello("ready"), handler)
    }

    pub(crate) fn start_for(
        home: &Home,
        workspace: &Path,
        hello: Value,
        handler: impl Fn(Value, Answer) + Send + Sync + 'static,
    ) -> ControlPlane {
        let socket = home.socket(workspace);
        drop(std::fs::remove_file(&socket));
        let listener = UnixListener::bind(&socket).unwrap();
        let shared = Arc::new(Shared {
            handler: Box::new(handler),
            hello,
            requests: Mutex::default(),
            streams: Mutex::default(),
            socket,
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let stream = Arc::new(stream);
                accepting.streams.lock().unwrap().push(Arc::clone(&stream));
                let serving = Arc::clone(&accepting);
                std::thread::spawn(move || serving.serve(&stream));
            }
        });
        ControlPlane { shared }
    }

    /// The requests of this method so far.
    pub(crate) fn requests(&self, method: &str) -> Vec<Value> {
        let requests = self.shared.requests.lock().unwrap();
        let of_method = requests
            .iter()
            .filter(|request| request["method"] == method);
        of_method.cloned().collect()
    }

    /// Waits until a request of this method has come.
    pub(crate) fn wait_for(&self, method: &str) -> Value {
        wait_until(|| !self.requests(method).is_empty());
        self.requests(method).remove(0)
    }

    /// Dies, from the outside seen.
    pub(crate) fn hang_up(&self) {
        drop(std::fs::remove_file(&self.shared.socket));
        for stream in self.shared.streams.lock().unwrap().drain(..) {
            drop(stream.shutdown(std::net::Shutdown::Both));
        }
    }
}

impl Shared {
    fn serve(&self, stream: &Arc<UnixStream>) {
        let mut running: HashMap<u64, Arc<AtomicBool>> = HashMap::new();
        let reader = BufReader::new(stream.try_clone().unwrap());
        std::thread::scope(|scope| {
            for line in reader.split(b'\n') {
                let Ok(line) = line else { break };
                let request: Value = serde_json::from_slice(&line).unwrap();
                self.requests.lock().unwrap().push(request.clone());
                let answer = Answer {
                    id: request["id"].clone(),
                    stream: Arc::clone(stream),
                    cancelled: Arc::default(),
                };
                match request["method"].as_str().unwrap() {
                    "hello" => answer.result(&self.hello),
                    "ping" => answer.result(&json!({})),
                    "cancel" => {
                        let found = running.get(&request["params"]["request"].as_u64().unwrap());
                        if let Some(cancelled) = found {
                            cancelled.store(true, Ordering::SeqCst);
                        }
                        answer.result(&json!({"was_running": found.is_some()}));
                    }
                    _ => {
                        let id = request["id"].as_u64().unwrap();
                        running.insert(id, Arc::clone(&answer.cancelled));
                        scope.spawn(move || (self.handler)(request, answer));
                    }
                }
            }
            // A control plane ends the commands of a client that has gone.
            for cancelled in running.values() {
                cancelled.store(true, Ordering::SeqCst);
            }
        });
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.hang_up();
    }
}

pub(crate) fn hello(state: &str) -> Value {
    json!({"api": 1, "version": "0.0.0", "sid": "00000000", "workspace": "/w", "state": state})
}

/// The reply to a command that has exited.
pub(crate) fn exited(code: i32, output: &str) -> Value {
    reply(&json!({"ended": "exited", "code": code}), output)
}

pub(crate) fn reply(outcome: &Value, output: &str) -> Value {
    let mut reply = json!({
        "output": output,
        "bytes": output.len(),
        "omitted_bytes": 0,
        "invalid_bytes": 0,
        "duration_ms": 5,
        "background": [],
        "notices": [],
    });
    let fields = reply.as_object_mut().unwrap();
    fields.extend(outcome.as_object().unwrap().clone());
    reply
}

pub(crate) fn list() -> Value {
    json!({
        "workspace": "/w",
        "mounts": [
            {"path": "/w", "mode": "rw", "source": "workspace"},
            {"path": "/tmp", "mode": "tmpfs", "source": "umwelt", "size": 1 << 30},
        ],
        "resources": {"memory": 4u64 << 30, "cpus": 2.0, "pids_limit": 1024},
        "network": "none",
        "timeout_default_s": 120,
        "timeout_max_s": 3600,
        "notices": [],
    })
}

/// A handler that answers `list` and runs `shell` with the host's sh.
pub(crate) fn host_shell(request: Value, answer: Answer) {
    if request["method"] == "list" {
        answer.result(&list());
        return;
    }
    let start = Instant::now();
    let params = &request["params"];
    let limit = Duration::from_secs(params["timeout_s"].as_u64().unwrap_or(60));
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut child = Command::new("sh")
        .args(["-c", params["command"].as_str().unwrap()])
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(writer.try_clone().unwrap())
        .stderr(writer)
        .spawn()
        .unwrap();
    let stream = (params["stream"] == true).then(|| answer.clone());
    let output = std::thread::spawn(move || {
        let mut all = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(len @ 1..) = reader.read(&mut buffer) {
            all.extend_from_slice(&buffer[..len]);
            if let Some(stream) = &stream {
                stream.output(&String::from_utf8_lossy(&buffer[..len]));
            }
        }
        String::from_utf8_lossy(&all).into_owned()
    });
    let mut killed = None;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if killed.is_none() {
            killed = if answer.is_cancelled() {
                Some(json!({"ended": "cancelled"}))
            } else if start.elapsed() > limit {
                Some(json!({"ended": "timed_out", "after_s": limit.as_secs()}))
            } else {
                None
            };
            if killed.is_some() {
                let group = rustix::process::Pid::from_child(&child);
                let kill = rustix::process::Signal::KILL;
                rustix::process::kill_process_group(group, kill).unwrap();
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let outcome = killed.unwrap_or_else(|| match status.signal() {
        Some(signal) => json!({"ended": "signaled", "signal": signal}),
        None => json!({"ended": "exited", "code": status.code()}),
    });
    answer.result(&reply(&outcome, &output.join().unwrap()));
}

pub(crate) fn wait_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited in vain");
        std::thread::sleep(Duration::from_millis(2));
    }
}
