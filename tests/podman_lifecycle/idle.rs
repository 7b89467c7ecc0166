//! A sandbox that nobody uses costs nothing.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::podman_common::{Options, Sandbox, host};
use crate::run::output;

const WATCHED: Duration = Duration::from_secs(12);
/// Looks of the backstop within that time: it comes every five seconds.
const LOOKS: usize = 3;
/// Waiting, and the one look at pid 1.
const CALLS_A_LOOK: usize = 4;

fn switches(pid: u32) -> u64 {
    ["voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"]
        .map(|name| host::status_field(pid, name).unwrap())
        .iter()
        .map(|count| count.parse::<u64>().unwrap())
        .sum()
}

#[test]
fn idle_sandbox_makes_no_calls_but_the_regular_look() {
    let Some(sandbox) = Sandbox::start(Options::default()) else {
        return;
    };
    let mut client = sandbox.client();
    client.output("true");
    let init = sandbox.init_pid();
    // What the last command and the start leave to be done.
    std::thread::sleep(Duration::from_secs(2));
    let (init_before, run_before) = (switches(init), switches(sandbox.pid));
    std::thread::sleep(WATCHED);
    assert_eq!(switches(init) - init_before, 0, "wake-ups of pid 1");
    let wakeups = switches(sandbox.pid) - run_before;
    assert!(
        wakeups <= LOOKS as u64 + 1,
        "{wakeups} wake-ups of umwelt-run"
    );

    let Some(trace) = trace(sandbox.pid) else {
        return;
    };
    let calls = trace.lines().filter(|line| line.contains('(')).count();
    assert!(calls <= LOOKS * CALLS_A_LOOK, "{calls} calls:\n{trace}");
    assert_eq!(client.output("echo there"), "there\n");
}

/// The system calls of a process while it is watched; `None` where strace is
/// missing or may not.
fn trace(pid: u32) -> Option<String> {
    let seconds = WATCHED.as_secs().to_string();
    let watched = output(
        Command::new("timeout")
            .args([
                "-s",
                "INT",
                &seconds,
                "strace",
                "-f",
                "-p",
                &pid.to_string(),
            ])
            .stdin(Stdio::null()),
    );
    let text = String::from_utf8_lossy(&watched.stderr).into_owned();
    if text.contains("attached") {
        return Some(text);
    }
    eprintln!("system calls are not counted: {text}");
    None
}
