//! A sandbox that nobody uses costs nothing.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::podman_common::{Options, Sandbox, host};
use crate::run::output;

const WATCHED: Duration = Duration::from_secs(12);
/// Between two looks of the backstop.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Waiting, the one look at pid 1, and the one at its cap on swap.
const CALLS_A_LOOK: usize = 5;
/// What a start and a command leave to be done may take its time.
const TRIES: usize = 5;

/// The most looks since then: a busy machine may have watched for longer.
fn looks_since(begin: Instant) -> usize {
    let looks = begin.elapsed().as_secs() / LOOK_EVERY.as_secs() + 1;
    usize::try_from(looks).unwrap()
}

/// How often a process has gone to sleep.
fn sleeps(pid: u32) -> usize {
    let count = host::status_field(pid, "voluntary_ctxt_switches").expect("a process");
    count.parse().expect("a number")
}

#[test]
fn idle_sandbox_makes_no_calls_but_the_regular_look() {
    let Some(sandbox) = Sandbox::start(Options::default()) else {
        return;
    };
    let mut client = sandbox.client();
    client.output("true");
    let pids = [sandbox.init_pid(), sandbox.pid];
    let mut seen = Vec::new();
    let is_idle = (0..TRIES).any(|_| {
        let begin = Instant::now();
        let before = pids.map(sleeps);
        std::thread::sleep(WATCHED);
        let after = pids.map(sleeps);
        seen.push([after[0] - before[0], after[1] - before[1]]);
        matches!(seen.last(), Some([0, looks]) if *looks <= looks_since(begin))
    });
    assert!(is_idle, "wake-ups of pid 1 and of umwelt-run: {seen:?}");

    let begin = Instant::now();
    if let Some(trace) = trace(sandbox.pid) {
        let calls = trace.lines().filter(|line| line.contains('(')).count();
        let most = looks_since(begin) * CALLS_A_LOOK;
        assert!(calls <= most, "{calls} calls, not {most}:\n{trace}");
    }
    assert_eq!(client.output("echo there"), "there\n");
}

/// The system calls of a process while it is watched; `None` where strace is
/// missing or may not.
fn trace(pid: u32) -> Option<String> {
    let seconds = WATCHED.as_secs().to_string();
    let pid = pid.to_string();
    let command = ["-s", "INT", &seconds, "strace", "-f", "-p", &pid];
    let watched = output(Command::new("timeout").args(command));
    let text = String::from_utf8_lossy(&watched.stderr).into_owned();
    if text.contains("attached") {
        return Some(text);
    }
    eprintln!("system calls are not counted: {text}");
    None
}
