//! A container in miniature, and the helper that works on it.

use std::fs;
use std::io::{BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::process::{Pid, PidfdFlags};
use serde_json::{Value, json};

/// Who runs it all where the test is root, for whom too much works.
const USER: u32 = 65534;

/// Long enough for any machine that runs tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// pid 1: a scratch place at `home`, a read-only bind at `base`, then it does
/// as it is told, line by line. `/proc` is still the host's, and so knows the
/// host's number of it.
const INSIDE: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=0755 scratch "$1/home"
mount --bind "$1/base" "$1/base"
mount -o remount,bind,ro "$1/base"
set +e
read -r pid rest </proc/self/stat
echo "$pid"
while read -r line; do
    eval "$line" 2>&1
    echo =END=
done
"#;

pub(crate) struct Stage {
    dir: tempfile::TempDir,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    pidfd: OwnedFd,
    pid: i32,
}

impl Stage {
    pub(crate) fn new() -> Stage {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        give(dir.path());
        // Not by this process: while it has a program open for writing, a child
        // that another thread starts has so too, and it cannot be run.
        let copied = Command::new("cp")
            .args([env!("CARGO_BIN_EXE_umwelt").as_ref(), dir.path()])
            .status();
        assert!(copied.unwrap().success());
        for name in ["home", "plain", "base/project"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        for name in ["home", "plain", "base", "base/project"] {
            give(&dir.path().join(name));
        }
        let mut command = as_user("unshare");
        command
            .args(["--user", "--map-root-user", "--mount"])
            .args(["unshare", "--user", "--map-root-user", "--mount"])
            .args(["--pid", "--fork", "--kill-child", "sh", "-c", INSIDE, "sh"])
            .arg(dir.path())
            .current_dir("/");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let pid = line
            .trim()
            .parse()
            .expect("no user namespaces here, see above");
        let pidfd =
            rustix::process::pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
        Stage {
            dir,
            child,
            stdin,
            stdout,
            pidfd,
            pid,
        }
    }

    /// The same outside and inside.
    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// A directory with a file in it.
    pub(crate) fn host_dir(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::create_dir_all(&path).unwrap();
        give(&path);
        fs::write(path.join("file"), format!("{name}\n")).unwrap();
        path
    }

    /// Has pid 1 run a line; what it says.
    pub(crate) fn inside(&mut self, line: &str) -> String {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
        let mut said = String::new();
        loop {
            let before = said.len();
            assert!(
                self.stdout.read_line(&mut said).unwrap() > 0,
                "{line}: {said}"
            );
            if &said[before..] == "=END=\n" {
                said.truncate(before);
                return said;
            }
        }
    }

    /// Of the last mount at `path` inside.
    pub(crate) fn mount_options(&self, path: &str) -> Option<String> {
        let table = fs::read_to_string(format!("/proc/{}/mountinfo", self.pid)).unwrap();
        let mut at_path = table
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>())
            .filter(|fields| fields[4] == path);
        at_path.next_back().map(|fields| fields[5].to_owned())
    }

    pub(crate) fn end(&mut self) {
        self.stdin = None;
        self.child.wait().unwrap();
    }

    pub(crate) fn helper<const N: usize>(&mut self, operations: [Value; N]) -> [Value; N] {
        let output = self.helper_raw(&json!({"operations": operations.to_vec()}).to_string());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        let reply: Value = serde_json::from_slice(&output.stdout).unwrap();
        let answers = reply["answers"].as_array().unwrap().clone();
        answers.try_into().unwrap()
    }

    pub(crate) fn helper_raw(&mut self, request: &str) -> Output {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [self.pidfd.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let bytes = [IoSlice::new(request.as_bytes())];
        rustix::net::sendmsg(&ours, &bytes, &mut control, SendFlags::empty()).unwrap();
        drop(ours);
        // The shell turns its stdin into descriptor 3.
        let mut command = as_user("sh");
        command
            .args(["-c", r#"exec "$0" run --mount-helper 3<&0 </dev/null"#])
            .arg(self.dir.path().join("umwelt"))
            .stdin(Stdio::from(theirs));
        command.output().unwrap()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits until a process is this program: a child of a shell becomes it some time later.
pub(crate) fn wait_for_process(program: &str) {
    let end = Instant::now() + PATIENCE;
    let is_it = |entry: fs::DirEntry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line.starts_with(format!("{program}\0").as_bytes())
    };
    while !fs::read_dir("/proc").unwrap().flatten().any(is_it) {
        assert!(Instant::now() < end, "no process is {program}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn as_user(program: &str) -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args([
        "--clear-groups",
        &format!("--reuid={USER}"),
        &format!("--regid={USER}"),
    ]);
    command.arg(program);
    command
}

fn give(path: &Path) {
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(path, Some(USER), Some(USER)).unwrap();
    }
}
