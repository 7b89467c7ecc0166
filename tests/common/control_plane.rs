//! A stand-in control plane: speaks the socket API, and runs programs natively
//! in place of a sandbox. Tests can take over single requests.

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use rustix::process::{Pid, Signal};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use serde_json::{Value, json};

/// Looks at each request first; `true` means that it has dealt with it.
pub(crate) type Hook = dyn Fn(&Connection, &Value) -> bool + Send + Sync;

/// Serves a socket from threads of this process, until it is dropped.
pub(crate) struct ControlPlane {
    shared: Arc<Shared>,
}

struct Shared {
    workspace: String,
    sid: String,
    hook: Box<Hook>,
    requests: Mutex<Vec<Value>>,
    streams: Mutex<Vec<UnixStream>>,
}

/// One client. Cheap to copy into the thread that waits for a program.
#[derive(Clone)]
pub(crate) struct Connection {
    stream: Arc<UnixStream>,
    shared: Arc<Shared>,
    /// Process groups of running requests, by request id.
    running: Arc<Mutex<HashMap<u64, Pid>>>,
}

impl ControlPlane {
    pub(crate) fn start(
        socket: &Path,
        workspace: &str,
        sid: &str,
        hook: Box<Hook>,
    ) -> ControlPlane {
        let listener = UnixListener::bind(socket).unwrap();
        let shared = Arc::new(Shared {
            workspace: workspace.to_owned(),
            sid: sid.to_owned(),
            hook,
            requests: Mutex::default(),
            streams: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accept(&listener, &accepting));
        ControlPlane { shared }
    }

    /// All requests so far with this method.
    pub(crate) fn requests(&self, method: &str) -> Vec<Value> {
        let requests = self.shared.requests.lock().unwrap();
        let wanted = requests
            .iter()
            .filter(|request| request["method"] == method);
        wanted.cloned().collect()
    }

    /// Breaks all connections, as the death of the process would.
    pub(crate) fn break_connections(&self) {
        for stream in self.shared.streams.lock().unwrap().iter() {
            drop(stream.shutdown(std::net::Shutdown::Both));
        }
    }
}

/// Serves forever; for a process of its own.
pub(crate) fn serve(socket: &Path, workspace: &str, sid: &str, hook: Box<Hook>) {
    let _control_plane = ControlPlane::start(socket, workspace, sid, hook);
    loop {
        std::thread::park();
    }
}

fn accept(listener: &UnixListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        let stream = stream.unwrap();
        shared
            .streams
            .lock()
            .unwrap()
            .push(stream.try_clone().unwrap());
        let connection = Connection {
            stream: Arc::new(stream),
            shared: Arc::clone(shared),
            running: Arc::default(),
        };
        std::thread::spawn(move || connection.serve());
    }
}

impl Connection {
    fn serve(&self) {
        let mut pending = Vec::new();
        let mut fds = Vec::new();
        while let Some(bytes) = receive(self.stream.as_fd(), &mut fds) {
            pending.extend(bytes);
            while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = pending.drain(..=end).collect();
                let request: Value = serde_json::from_slice(&line).unwrap();
                self.shared.requests.lock().unwrap().push(request.clone());
                if !(self.shared.hook)(self, &request) {
                    self.answer(&request, std::mem::take(&mut fds));
                }
            }
        }
        for group in self.running.lock().unwrap().values() {
            let _gone = rustix::process::kill_process_group(*group, Signal::KILL);
        }
    }

    fn answer(&self, request: &Value, fds: Vec<OwnedFd>) {
        let id = request["id"].as_u64().unwrap();
        let shared = &self.shared;
        match request["method"].as_str().unwrap() {
            "hello" => self.result(
                id,
                json!({"api": 1, "version": "0.1.0", "sid": shared.sid,
                       "workspace": shared.workspace, "state": "ready"}),
            ),
            "ping" => self.result(id, json!({})),
            "status" => self.result(id, status(&shared.workspace, &shared.sid)),
            "list" => self.result(id, list(&shared.workspace)),
            "grant" | "revoke" => self.result(id, changed(&request["params"])),
            "exec" => self.exec(id, &request["params"], fds),
            "terminal" => self.terminal(id, &request["params"]),
            "cancel" => self.cancel(id, request["params"]["request"].as_u64().unwrap()),
            "shutdown" => self.result(id, json!({})),
            method => panic!("unexpected method {method}"),
        }
    }

    pub(crate) fn result(&self, id: u64, result: Value) {
        self.line(&json!({"id": id, "result": result}), &[]);
    }

    pub(crate) fn error(&self, id: u64, kind: &str, message: &str) {
        let error = json!({"kind": kind, "message": message});
        self.line(&json!({"id": id, "error": error}), &[]);
    }

    pub(crate) fn line(&self, line: &Value, fds: &[BorrowedFd<'_>]) {
        let mut bytes = serde_json::to_vec(line).unwrap();
        bytes.push(b'\n');
        self.raw(&bytes, fds);
    }

    /// Whatever a hostile one would send. The client may be gone already.
    pub(crate) fn raw(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let flags = SendFlags::NOSIGNAL;
        let first = [IoSlice::new(bytes)];
        let Ok(mut sent) = rustix::net::sendmsg(&self.stream, &first, &mut control, flags) else {
            return;
        };
        while sent < bytes.len() {
            match rustix::net::send(&self.stream, &bytes[sent..], flags) {
                Ok(more) => sent += more,
                Err(_) => return,
            }
        }
    }

    pub(crate) fn close(&self) {
        drop(self.stream.shutdown(std::net::Shutdown::Both));
    }

    fn exec(&self, id: u64, params: &Value, fds: Vec<OwnedFd>) {
        let Ok([stdin, stdout, stderr]) = <[OwnedFd; 3]>::try_from(fds) else {
            return self.error(id, "bad_request", "exec needs three descriptors");
        };
        let argv = words(&params["argv"]);
        let mut command = Command::new(&argv[0]);
        command
            .args(&argv[1..])
            .stdin(stdin)
            .stdout(stdout)
            .stderr(stderr)
            .process_group(0);
        if let Some(cwd) = params["cwd"].as_str() {
            command.current_dir(Path::new(&self.shared.workspace).join(cwd));
        }
        match command.spawn() {
            Ok(child) => self.wait(id, child),
            Err(error) => self.error(id, "cannot_run", &format!("{:?}: {error}", argv[0])),
        }
    }

    fn terminal(&self, id: u64, params: &Value) {
        let number = |name: &str| u16::try_from(params[name].as_u64().unwrap()).unwrap();
        let (master, slave) = open_pty(number("rows"), number("cols"));
        let argv = words(&params["argv"]);
        let argv = if argv.is_empty() {
            vec!["sh".to_owned()]
        } else {
            argv
        };
        let child = Command::new("setsid")
            .arg("--ctty")
            .args(argv)
            .env("TERM", params["term"].as_str().unwrap())
            .env("PS1", "$ ")
            .stdin(slave.try_clone().unwrap())
            .stdout(slave.try_clone().unwrap())
            .stderr(slave)
            .spawn()
            .unwrap();
        self.line(&json!({"id": id, "event": "terminal"}), &[master.as_fd()]);
        self.wait(id, child);
    }

    fn wait(&self, id: u64, mut child: Child) {
        let group = Pid::from_child(&child);
        self.running.lock().unwrap().insert(id, group);
        let connection = self.clone();
        std::thread::spawn(move || {
            let status = child.wait().unwrap();
            connection.running.lock().unwrap().remove(&id);
            connection.result(id, ended(status));
        });
    }

    fn cancel(&self, id: u64, request: u64) {
        let group = self.running.lock().unwrap().get(&request).copied();
        if let Some(group) = group {
            let _gone = rustix::process::kill_process_group(group, Signal::TERM);
        }
        self.result(id, json!({"was_running": group.is_some()}));
    }
}

pub(crate) fn ended(status: ExitStatus) -> Value {
    match status.code() {
        Some(code) => json!({"ended": "exited", "code": code, "duration_ms": 1}),
        None => json!({"ended": "signaled", "signal": status.signal(), "duration_ms": 1}),
    }
}

pub(crate) fn status(workspace: &str, sid: &str) -> Value {
    json!({
        "version": "0.1.0", "sid": sid, "workspace": workspace, "state": "ready",
        "pid": std::process::id(), "container": format!("umwelt-{sid}"),
        "image": "umwelt:latest", "init_pid": null, "uptime_s": 61, "restarts": 0,
        "clients": 1, "commands_running": 2, "commands_total": 34, "network": "none",
        "launched": false,
    })
}

pub(crate) fn list(workspace: &str) -> Value {
    json!({
        "workspace": workspace, "network": "none",
        "mounts": [
            {"path": workspace, "mode": "rw", "source": "workspace"},
            {"path": "/tmp", "mode": "tmpfs", "source": "umwelt", "size": 1u64 << 30},
            {"path": "/srv/a", "mode": "rw", "source": "session"},
            {"path": "/srv/b", "mode": "ro", "source": "persisted"},
        ],
        "resources": {"memory": 4u64 << 30, "cpus": 2.0, "pids_limit": 1024},
        "timeout_default_s": 120, "timeout_max_s": 3600, "notices": ["take care"],
    })
}

/// The answer to a grant (it has a mode) or a revoke, as if nothing were easier.
fn changed(params: &Value) -> Value {
    let path = &params["path"];
    let mount = json!({"path": path, "mode": params["mode"], "source": "session"});
    json!({
        "path": path, "mode": params["mode"], "applied": "live",
        "persisted": params["persist"] == true, "lost": [], "notices": [],
        "mounts": if params["mode"].is_null() { json!([]) } else { json!([mount]) },
    })
}

/// A new terminal: its master, and its other side.
pub(crate) fn open_pty(rows: u16, cols: u16) -> (OwnedFd, OwnedFd) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags).unwrap();
    rustix::pty::unlockpt(&master).unwrap();
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags).unwrap();
    let size = Winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(&master, size).unwrap();
    (master, slave)
}

fn words(argv: &Value) -> Vec<String> {
    let argv = argv.as_array().unwrap().iter();
    argv.map(|word| word.as_str().unwrap().to_owned()).collect()
}

fn receive(stream: BorrowedFd<'_>, fds: &mut Vec<OwnedFd>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 64 << 10];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let message = rustix::net::recvmsg(stream, &mut into, &mut control, flags).ok()?;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            fds.extend(received);
        }
    }
    let len = message.bytes;
    bytes.truncate(len);
    (len > 0).then_some(bytes)
}
