//! The control plane's side of descriptor 3, for tests.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde_json::{Value, json};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_umwelt");
pub(crate) const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Longer than anything takes that works, on a busy machine too.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn seqpacket_pair() -> (OwnedFd, OwnedFd) {
    rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap()
}

/// A command that starts umwelt-init with `socket` as descriptor 3, after some
/// words of shell that set up what it inherits.
pub(crate) fn init_command(shell: &str, socket: OwnedFd) -> Command {
    wrapped_command(&["/bin/sh"], shell, socket)
}

/// The same with the words of another program before those of the shell.
pub(crate) fn wrapped_command(wrapper: &[&str], shell: &str, socket: OwnedFd) -> Command {
    let script = format!("{shell}\nexec \"$0\" umwelt-init 3<&0 0</dev/null");
    let mut command = Command::new(wrapper[0]);
    command
        .args(&wrapper[1..])
        .args(["-c", &script, BINARY])
        .stdin(socket);
    command
}

/// Tells why a test does nothing here; where every test must run, it fails.
pub(crate) fn skip(reason: &str) {
    assert!(
        std::env::var_os("UMWELT_TEST_NO_SKIP").is_none(),
        "{reason}"
    );
    eprintln!("skipped: {reason}");
}

/// A running umwelt-init and the socket to it.
pub(crate) struct Peer {
    socket: Option<OwnedFd>,
    pub(crate) child: Child,
    pub(crate) next_id: u64,
}

impl Peer {
    pub(crate) fn start() -> Peer {
        Peer::start_in_shell("")
    }

    pub(crate) fn start_in_shell(shell: &str) -> Peer {
        let (ours, theirs) = seqpacket_pair();
        Peer::start_command(init_command(shell, theirs), ours)
    }

    pub(crate) fn start_command(mut command: Command, ours: OwnedFd) -> Peer {
        let child = command.spawn().unwrap();
        // It holds the other end, whose loss must be seen here.
        drop(command);
        let peer = Peer {
            socket: Some(ours),
            child,
            next_id: 1,
        };
        // EINVAL: no seccomp profile of ours is on here.
        let hello = json!({"hello": {"version": 3, "setns_errno": 22}});
        assert_eq!(peer.receive().message, hello);
        peer
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().unwrap().as_fd()
    }

    pub(crate) fn send(&self, packet: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        rustix::net::sendmsg(
            self.socket(),
            &[IoSlice::new(packet)],
            &mut control,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        )
    }

    pub(crate) fn receive(&self) -> Received {
        self.receive_within(PATIENCE).expect("no report in time")
    }

    pub(crate) fn receive_within(&self, limit: Duration) -> Option<Received> {
        if !readable_within(self.socket(), limit) {
            return None;
        }
        let mut buffer = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let len = rustix::net::recvmsg(
            self.socket(),
            &mut [IoSliceMut::new(&mut buffer)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
        .unwrap()
        .bytes;
        let fds = control
            .drain()
            .filter_map(|part| match part {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten()
            .collect();
        let message = serde_json::from_slice(&buffer[..len]).expect("umwelt-init has ended");
        Some(Received { message, fds })
    }

    /// Sends a spawn with these descriptors and returns its id.
    pub(crate) fn spawn(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&request.packet(id), fds).unwrap();
        id
    }

    /// Sends a spawn with new pipes and an own stand-in for `cgroup.procs`.
    pub(crate) fn spawn_piped(&mut self, request: &Request) -> Running {
        let cgroup = tempfile::tempfile().unwrap();
        let (stdin, ours_in) = pipe();
        let (ours_out, stdout) = pipe();
        let (ours_err, stderr) = pipe();
        let mut fds = vec![
            cgroup.as_fd(),
            stdin.as_fd(),
            stdout.as_fd(),
            stderr.as_fd(),
        ];
        fds.extend(request.script.as_ref().map(AsFd::as_fd));
        let id = self.spawn(request, &fds);
        Running {
            id,
            cgroup,
            stdin: ours_in.into(),
            stdout: ours_out.into(),
            stderr: ours_err.into(),
        }
    }

    /// Runs a command that is alone, to its end.
    pub(crate) fn run(&mut self, request: &Request) -> Outcome {
        let running = self.spawn_piped(request);
        let id = running.id;
        let (stdout, stderr) = running.read_to_end();
        let started = self.receive().message;
        let pid = started["started"]["pid"].as_i64().unwrap();
        assert_eq!(started, json!({"started": {"id": id, "pid": pid}}));
        let exited = self.receive().message;
        assert_eq!(exited["exited"]["id"], id);
        Outcome {
            pid,
            stdout,
            stderr,
            status: exited["exited"]["status"].clone(),
        }
    }

    /// Runs a command that must fail to start; returns stage and errno.
    pub(crate) fn fail(&mut self, request: &Request) -> (String, i64) {
        let running = self.spawn_piped(request);
        self.failed(running.id)
    }

    /// The next report, which must be a failure of this command.
    pub(crate) fn failed(&self, id: u64) -> (String, i64) {
        let failed = &self.receive().message["failed"];
        assert_eq!(failed["id"], id);
        let stage = failed["stage"].as_str().unwrap().to_owned();
        (stage, failed["errno"].as_i64().unwrap())
    }

    /// That it still lives and serves.
    pub(crate) fn assert_serves(&mut self) {
        let outcome = self.run(&Request::shell("echo alive"));
        assert_eq!(outcome.stdout, "alive\n");
        assert_eq!(outcome.status, json!({"code": 0}));
    }

    /// Hangs up and waits for umwelt-init to end.
    pub(crate) fn hang_up(&mut self) -> ExitStatus {
        self.hang_up_within(PATIENCE).expect("it does not end")
    }

    fn hang_up_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        self.socket = None;
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status);
            }
            if Instant::now() > deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if self.hang_up_within(Duration::from_secs(2)).is_none() {
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}

pub(crate) struct Received {
    pub(crate) message: Value,
    pub(crate) fds: Vec<OwnedFd>,
}

/// What to ask for; the defaults are those of an ordinary command.
pub(crate) struct Request {
    pub(crate) argv: Vec<String>,
    pub(crate) env: Value,
    pub(crate) cwd: String,
    pub(crate) stdio: Value,
    pub(crate) script: Option<File>,
}

impl Request {
    pub(crate) fn new(argv: &[&str]) -> Request {
        Request {
            argv: argv.iter().map(|&word| word.to_owned()).collect(),
            env: json!([["PATH", PATH]]),
            cwd: "/".to_owned(),
            stdio: json!("pipes"),
            script: None,
        }
    }

    pub(crate) fn shell(script: &str) -> Request {
        Request::new(&["sh", "-c", script])
    }

    pub(crate) fn terminal(script: &str) -> Request {
        Request {
            stdio: json!({"terminal": {"rows": 30, "cols": 100}}),
            env: json!([["PATH", PATH], ["TERM", "xterm-256color"]]),
            ..Request::shell(script)
        }
    }

    pub(crate) fn packet(&self, id: u64) -> Vec<u8> {
        let spawn = json!({
            "id": id,
            "argv": self.argv,
            "env": self.env,
            "cwd": self.cwd,
            "stdio": self.stdio,
            "script": self.script.is_some(),
        });
        serde_json::to_vec(&json!({ "spawn": spawn })).unwrap()
    }
}

/// A command that was asked for: the other ends of its streams.
pub(crate) struct Running {
    pub(crate) id: u64,
    pub(crate) cgroup: File,
    pub(crate) stdin: File,
    pub(crate) stdout: File,
    pub(crate) stderr: File,
}

impl Running {
    /// Closes stdin and reads what comes out.
    pub(crate) fn read_to_end(self) -> (String, String) {
        drop(self.stdin);
        (read_all(self.stdout), read_all(self.stderr))
    }
}

pub(crate) struct Outcome {
    pub(crate) pid: i64,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) status: Value,
}

/// Reading and writing end.
pub(crate) fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap()
}

pub(crate) fn read_all(mut file: File) -> String {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        assert!(readable_within(&file, PATIENCE), "no end of output in time");
        match file.read(&mut chunk).unwrap() {
            0 => return String::from_utf8(bytes).unwrap(),
            len => bytes.extend_from_slice(&chunk[..len]),
        }
    }
}

pub(crate) fn readable_within(fd: impl AsFd, limit: Duration) -> bool {
    let mut polled = [PollFd::new(&fd, PollFlags::IN)];
    let limit = limit.try_into().unwrap();
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&limit))).unwrap() > 0
}

/// A file with this text, at its beginning.
pub(crate) fn file_with(text: &str) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    file
}

/// The lines `Name: value` of a process's status.
pub(crate) fn status_field(status: &str, name: &str) -> String {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .unwrap_or_else(|| panic!("no {name}"))
        .trim()
        .to_owned()
}
