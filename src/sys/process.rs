//! What `/proc` tells of a process in the sandbox, seen from the host.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

/// Longest command line that is shown, in bytes.
const MAX_COMMAND: usize = 120;

/// A pidfd becomes readable when its process ends (pidfd_open(2)).
pub(crate) fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut poll = [PollFd::new(pidfd, PollFlags::IN)];
    // Not being able to tell counts as ended: nothing unchecked may run.
    !matches!(
        rustix::event::poll(&mut poll, Some(&Timespec::default())),
        Ok(0)
    )
}

/// The number of a process inside its own pid namespace, and its command
/// line; `None` when it is gone. The command line is under its control.
pub(crate) fn describe(pid: Pid) -> Option<(u32, String)> {
    let pid = pid.as_raw_nonzero();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .map(str::trim)
    };
    let inside = field("NSpid:")?
        .split_ascii_whitespace()
        .next_back()?
        .parse()
        .ok()?;
    let mut line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    line.truncate(MAX_COMMAND);
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    let command = match line.trim() {
        // A zombie, or a process between fork and exec.
        "" => format!("[{}]", field("Name:")?),
        line => line.to_owned(),
    };
    Some((inside, command))
}

/// What podman starts for a container on the host.
const RUNTIMES: [&str; 3] = ["conmon", "crun", "runc"];

/// Kills the conmon and the OCI runtime of a container that is removed. They
/// are gone by then, unless podman was killed while it started the container:
/// then they wait for a start that never comes. Their command lines hold the
/// whole id of the container.
pub(crate) fn kill_runtime_of(container: &str) {
    /// A conmon that is seen may start a runtime before it is killed. One that
    /// hangs in the kernel is seen again and again, and ends when it can.
    const ROUNDS: usize = 5;
    let mut rounds = 0..ROUNDS;
    while rounds.next().is_some() && kill_all(|line| is_runtime_of(line, container)) {}
}

fn is_runtime_of(line: &[u8], container: &str) -> bool {
    let mut words = line.split(|byte| *byte == 0);
    let program = words
        .next()
        .and_then(|path| path.rsplit(|byte| *byte == b'/').next());
    let is_runtime = RUNTIMES.iter().any(|name| program == Some(name.as_bytes()));
    is_runtime && words.any(|word| word == container.as_bytes())
}

/// Sends SIGKILL to all processes with such a command line; false when there
/// is none that could be killed.
fn kill_all(is_wanted: impl Fn(&[u8]) -> bool) -> bool {
    let matches = |pid: Pid| {
        let line = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
        line.is_ok_and(|line| is_wanted(&line))
    };
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    let mut killed = false;
    for pid in pids.filter(|pid| matches(*pid)) {
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty());
        // Looked at again, now that the number cannot come to mean another.
        if let Ok(pidfd) = pidfd
            && matches(pid)
        {
            killed |= rustix::process::pidfd_send_signal(pidfd, Signal::KILL).is_ok();
        }
    }
    killed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_can_be_described() {
        let (pid, command) = describe(rustix::process::getpid()).unwrap();
        assert!(pid > 0 && !command.is_empty());
    }

    #[test]
    fn only_a_runtime_with_the_whole_id_as_a_word_is_meant() {
        for line in ["/usr/bin/conmon\0-c\0abc\0-u\0abc", "crun\0create\0abc"] {
            assert!(is_runtime_of(line.as_bytes(), "abc"), "{line:?}");
        }
        for line in [
            "podman\0rm\0abc",
            "crun\0create\0abcd",
            "sh\0-c\0conmon abc",
            "",
        ] {
            assert!(!is_runtime_of(line.as_bytes(), "abc"), "{line:?}");
        }
    }
}
