//! A running gateway with its files in a directory of its own.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use serde_json::{Value, json};

use crate::authority::Pki;

/// Long enough for a busy machine; never waited for in full when all is well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Gateway {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) pki: Pki,
    child: Child,
    stdout: BufReader<ChildStdout>,
    pub(crate) proxy: SocketAddr,
    pub(crate) socks: SocketAddr,
    pub(crate) dns: SocketAddr,
    audit: PathBuf,
}

pub(crate) fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_umwelt"));
    command.arg0("umwelt-gateway");
    command
}

/// An https rule for a server of these tests.
pub(crate) fn https(host: &str, port: u16, paths: &[&str]) -> Value {
    json!({"host": host, "port": port, "paths": paths, "methods": null,
        "inspect": true, "private": true, "origin": "base"})
}

pub(crate) fn tcp(host: &str, port: u16) -> Value {
    json!({"host": host, "port": port, "private": true, "origin": "workspace"})
}

/// All names of the tests lead to the loopback interface.
pub(crate) fn policy(https: &[Value], tcp: &[Value]) -> Value {
    let hosts = ["a.example.org", "b.example.org", "x.wild.example.org"]
        .map(|name| json!({"name": name, "address": "127.0.0.1", "origin": "base"}));
    json!({"version": 1, "workspace": "0123abcd", "https": https, "tcp": tcp, "hosts": hosts})
}

/// Replaces the file in one step, as umwelt-run does.
pub(crate) fn write_policy(dir: &Path, text: &str) {
    std::fs::write(dir.join("policy.new"), text).unwrap();
    std::fs::rename(dir.join("policy.new"), dir.join("policy.json")).unwrap();
}

pub(crate) struct Setup {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) pki: Pki,
    pub(crate) audit: PathBuf,
    pub(crate) more: Vec<String>,
}

impl Setup {
    pub(crate) fn new() -> Setup {
        let dir = tempfile::tempdir().unwrap();
        Setup {
            pki: Pki::create(dir.path()),
            audit: dir.path().join("audit.jsonl"),
            dir,
            more: Vec::new(),
        }
    }

    pub(crate) fn command(&self) -> Command {
        let path = |name: &str| self.dir.path().join(name);
        let mut command = binary();
        command
            .arg("--policy")
            .arg(path("policy.json"))
            .arg("--ca-cert")
            .arg(path("ca.pem"))
            .arg("--ca-key")
            .arg(path("ca.key"))
            .arg("--roots")
            .arg(path("roots.pem"))
            .arg("--audit")
            .arg(&self.audit)
            .args([
                "--listen",
                "127.0.0.1",
                "--proxy-port",
                "0",
                "--socks-port",
                "0",
            ])
            // Workers give connections to each other all the time.
            .args(["--dns-port", "0", "--threads", "2", "--share-at", "0"])
            .args(&self.more)
            .env("UMWELT_LOG", "error")
            .stdout(Stdio::piped());
        command
    }

    pub(crate) fn start(self, policy: &Value) -> Gateway {
        write_policy(self.dir.path(), &policy.to_string());
        let mut child = self.command().spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let ready = read_line(&mut stdout);
        assert_eq!(ready["event"], "ready");
        let address = |key: &str| ready[key].as_str().unwrap().parse().unwrap();
        Gateway {
            dir: self.dir,
            pki: self.pki,
            child,
            stdout,
            proxy: address("proxy"),
            socks: address("socks"),
            dns: address("dns"),
            audit: self.audit,
        }
    }
}

fn read_line(stdout: &mut BufReader<ChildStdout>) -> Value {
    if stdout.buffer().is_empty() {
        let mut fds = [PollFd::new(stdout.get_ref(), PollFlags::IN)];
        let patience = Timespec::try_from(PATIENCE).unwrap();
        let ready = retry_on_intr(|| poll(&mut fds, Some(&patience)));
        assert_eq!(ready, Ok(1), "the gateway has said nothing");
    }
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
}

impl Gateway {
    pub(crate) fn start(policy: &Value) -> Gateway {
        Setup::new().start(policy)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.proxy).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Changes the policy and waits until it is said to hold (or not to).
    pub(crate) fn change_policy(&mut self, text: &str) -> Value {
        write_policy(self.dir.path(), text);
        read_line(&mut self.stdout)
    }

    /// What it says next to whoever has started it.
    pub(crate) fn told(&mut self) -> Value {
        read_line(&mut self.stdout)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub(crate) fn audit_lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.audit).unwrap_or_default();
        text.split_inclusive('\n')
            .filter(|line| line.ends_with('\n'))
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Waits for an audit line of which `is_it` is true.
    pub(crate) fn audited(&self, is_it: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(line) = self.audit_lines().into_iter().find(&is_it) {
                return line;
            }
            assert!(
                Instant::now() < until,
                "not in the audit: {:#?}",
                self.audit_lines()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The line of what was closed, since its rule is gone.
    pub(crate) fn ended_by_policy(&self, is_it: impl Fn(&Value) -> bool) -> Value {
        let line = self.audited(is_it);
        let why = line["why"].as_str().unwrap_or_default();
        assert!(why.contains("does not allow it any more"), "{line}");
        line
    }

    /// Resident memory in KiB, without the program's code: that is let go
    /// after the start, and comes back as it is needed.
    pub(crate) fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("RssAnon:"))
            .unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
