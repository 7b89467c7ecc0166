//! A user of his own for each test: home, XDG places, a podman that only
//! writes down what it is asked.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::control_plane::{Connection, ControlPlane};

/// Longer than anything takes that works, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Home {
    root: PathBuf,
    pub(crate) workspace: String,
    pub(crate) sid: String,
    _temp: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Home {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap();
        for dir in [
            "home/.local/bin",
            "runtime",
            "config",
            "data",
            "state",
            "ws",
        ] {
            std::fs::create_dir_all(root.join(dir)).unwrap();
        }
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(root.join("runtime"), private).unwrap();
        let workspace = root.join("ws").to_str().unwrap().to_owned();
        let home = Home {
            sid: sid_of(&workspace),
            workspace,
            root,
            _temp: temp,
        };
        home.networks("[]");
        home.podman("[]");
        home
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Where `podman` stands: umwelt-ctl runs none from any other directory of
    /// the user's.
    pub(crate) fn bin(&self) -> PathBuf {
        self.path("home/.local/bin")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path(&format!("runtime/umwelt-{}.sock", self.sid))
    }

    /// Makes podman print this when it is asked for containers. It forgets a
    /// container that it is told to remove.
    pub(crate) fn podman(&self, containers: &str) {
        std::fs::write(self.path("containers"), containers).unwrap();
        let script = format!(
            "#!/bin/sh\nroot='{}'\necho \"$*\" >> \"$root/podman.log\"\n\
             case $1 in\nps) cat \"$root/containers\" ;;\n\
             rm) echo '[]' > \"$root/containers\" ;;\n\
             network) case $2 in\nls) cat \"$root/networks\" ;;\n\
             rm) echo '[]' > \"$root/networks\" ;;\nesac ;;\n*) exit 125 ;;\nesac\n",
            self.root.display()
        );
        let path = self.bin().join("podman");
        if !path.exists() {
            write_program(&path, &script);
        }
    }

    /// The same for networks.
    pub(crate) fn networks(&self, networks: &str) {
        std::fs::write(self.path("networks"), networks).unwrap();
    }

    pub(crate) fn no_podman(&self) {
        std::fs::remove_file(self.bin().join("podman")).unwrap();
    }

    pub(crate) fn podman_log(&self) -> String {
        std::fs::read_to_string(self.path("podman.log")).unwrap_or_default()
    }

    pub(crate) fn control_plane(&self) -> ControlPlane {
        self.control_plane_with(|_, _| false)
    }

    pub(crate) fn control_plane_with(
        &self,
        hook: impl Fn(&Connection, &Value) -> bool + Send + Sync + 'static,
    ) -> ControlPlane {
        ControlPlane::start(&self.socket(), &self.workspace, &self.sid, Box::new(hook))
    }

    pub(crate) fn ctl(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_umwelt"));
        command.arg0("umwelt-ctl").args(args);
        self.prepare(&mut command);
        command
    }

    /// As `ctl`, in a session of its own on the terminal that is its stdin.
    pub(crate) fn ctl_on_terminal(&self, args: &[&str]) -> Command {
        let link = self.path("umwelt-ctl");
        drop(std::os::unix::fs::symlink(
            env!("CARGO_BIN_EXE_umwelt"),
            &link,
        ));
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(link).args(args);
        self.prepare(&mut command);
        command
    }

    fn prepare(&self, command: &mut Command) {
        let system = "/usr/local/bin:/usr/bin:/bin";
        command
            .env_clear()
            .env("PATH", format!("{}:{system}", self.bin().display()))
            .env("HOME", self.path("home"))
            .env("XDG_RUNTIME_DIR", self.path("runtime"))
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("XDG_DATA_HOME", self.path("data"))
            .env("XDG_STATE_HOME", self.path("state"))
            .env("TERM", "xterm-256color")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
    }

    /// Runs it to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        finish(self.ctl(args).spawn().unwrap())
    }
}

/// How a run has ended, in the form that tests look at.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Ran {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }
}

/// Waits for its end.
pub(crate) fn finish(child: Child) -> Ran {
    let pid = Pid::from_child(&child);
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    let Ok(output) = receiver.recv_timeout(PATIENCE) else {
        let _gone = rustix::process::kill_process(pid, Signal::KILL);
        panic!("has not ended within {PATIENCE:?}");
    };
    let Output {
        status,
        stdout,
        stderr,
    } = output.unwrap();
    Ran {
        code: status.code(),
        stdout,
        stderr: String::from_utf8(stderr).unwrap(),
    }
}

pub(crate) fn sid_of(path: &str) -> String {
    let digest = Sha256::digest(path.as_bytes());
    digest
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Waits until it is so.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Written by a shell: while this process has it open for writing, a child that
/// is forked by another test would keep it busy (ETXTBSY).
pub(crate) fn write_program(path: &Path, text: &str) {
    let write = "printf %s \"$1\" > \"$2\"; chmod 755 \"$2\"";
    let mut shell = Command::new("sh");
    let status = shell.args(["-c", write, "sh", text]).arg(path).status();
    assert!(status.unwrap().success());
}

/// Until nobody listens there. A child that is forked by another test has a
/// listener of this process too, for a moment.
pub(crate) fn let_go(listener: UnixListener, path: &Path) {
    drop(listener);
    let is_dead = || UnixStream::connect(path).is_err();
    eventually("nobody listens", is_dead);
}

/// A socket that somebody has left.
pub(crate) fn dead_socket(path: &Path) {
    let_go(UnixListener::bind(path).unwrap(), path);
}

pub(crate) fn signal(child: &Child, signal: Signal) {
    rustix::process::kill_process(Pid::from_child(child), signal).unwrap();
}

pub(crate) fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}
