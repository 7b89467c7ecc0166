//! An orderly end, whoever asks for it, leaves nothing.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::podman_common::sandbox::Place;
use crate::podman_common::{Client, Options, PATIENCE, host, wait_for};
use crate::run::Run;
use crate::traces::assert_gone;

/// For what a pause of the machine can spoil.
const TRIES: usize = 3;

/// A sandbox with a saved output, a background process and a running command.
struct Busy {
    client: Client,
    /// The request of the running command.
    request: u64,
}

impl Busy {
    fn start(run: &Run<'_>) -> Busy {
        Busy::with_command(run, "touch running; sleep 86400")
    }

    /// The command says by a file `running` that it does what the test is about: a signal may come
    /// right after that.
    fn with_command(run: &Run<'_>, command: &str) -> Busy {
        let mut client = run.client();
        client.output("seq 100000; setsid sleep 86400 >/dev/null 2>&1 &");
        let request = client.start(command);
        wait_for("the command to run", PATIENCE, || {
            run.place.workspace.join("running").exists().then_some(())
        });
        Busy { client, request }
    }

    /// How the running command ended.
    fn answer(&mut self) -> Value {
        self.client.answer(self.request).expect("a result")
    }
}

fn place() -> Option<Place> {
    host::qualifies().then(|| Place::new(Options::default()))
}

/// The cgroup of the container.
fn scope(run: &Run<'_>) -> std::path::PathBuf {
    let status = run.client().call("status", json!({})).unwrap();
    let own = std::fs::read_to_string(format!("/proc/{}/cgroup", status["init_pid"])).unwrap();
    let own = std::path::Path::new("/sys/fs/cgroup").join(&own.trim()[4..]);
    own.parent().unwrap().to_owned()
}

fn assert_signal_ends_all(signal: Signal) {
    let Some(place) = place() else { return };
    let mut run = Run::ready(&place);
    let scope = scope(&run);
    assert!(scope.exists(), "{scope:?}");
    let mut busy = Busy::start(&run);
    assert!(place.state().join("output").exists());
    run.signal(signal);
    assert_eq!(busy.answer()["ended"], "lost");
    assert_eq!(run.wait_ended(PATIENCE).code(), Some(0), "{}", run.log());
    assert_gone(&place);
    // It is systemd that removes it.
    wait_for("the end of the scope", PATIENCE, || {
        (!scope.exists()).then_some(())
    });
}

#[test]
fn sigterm_ends_commands_and_leaves_nothing() {
    assert_signal_ends_all(Signal::TERM);
}

#[test]
fn sigint_ends_commands_and_leaves_nothing() {
    assert_signal_ends_all(Signal::INT);
}

#[test]
fn shutdown_is_answered_when_the_sandbox_is_gone() {
    let Some(place) = place() else { return };
    let mut run = Run::ready(&place);
    let mut busy = Busy::start(&run);
    let mut client = run.client();
    // Both at once: it might be gone before the second one otherwise.
    let shutdown = client.send("shutdown", json!({}));
    let refused = client.send("shell", json!({"command": "true"}));
    assert_eq!(busy.answer()["ended"], "lost");
    let refused = client.answer(refused).unwrap_err();
    assert_eq!(refused["kind"], "stopping", "{refused}");
    assert_eq!(client.answer(shutdown), Ok(json!({})));
    assert_eq!(run.wait_ended(PATIENCE).code(), Some(0), "{}", run.log());
    assert_gone(&place);
}

/// The first one alone gives a command two seconds. A busy machine may take
/// longer than that for anything, now and then.
#[test]
fn second_sigterm_does_not_wait_for_the_command() {
    let Some(place) = place() else { return };
    let mut waits = Vec::new();
    let is_hurried = (0..TRIES).any(|_| {
        waits.push(time_of_two_sigterms(&place));
        waits.last() < Some(&Duration::from_millis(1900))
    });
    assert!(is_hurried, "{waits:?}");
}

fn time_of_two_sigterms(place: &Place) -> Duration {
    let mut run = Run::ready(place);
    let stubborn = "trap '' TERM; touch running; while :; do sleep 0.05; done";
    let mut busy = Busy::with_command(&run, stubborn);
    let mut asking = run.client();
    let asked = Instant::now();
    run.signal(Signal::TERM);
    // The next one would be the same one if this one was not taken yet.
    wait_for("the first signal to be seen", PATIENCE, || {
        let status = asking.call("status", json!({})).unwrap();
        (status["state"] == "stopping").then_some(())
    });
    run.signal(Signal::TERM);
    assert_eq!(busy.answer()["ended"], "lost");
    let waited = asked.elapsed();
    assert_eq!(run.wait_ended(PATIENCE).code(), Some(0), "{}", run.log());
    assert_gone(place);
    drop(std::fs::remove_file(place.workspace.join("running")));
    waited
}

/// Two seconds of it, which a machine may stand still for.
#[test]
fn first_sigterm_gives_a_command_time_to_end() {
    let Some(place) = place() else { return };
    assert!((0..TRIES).any(|_| has_time_to_save(&place)));
}

fn has_time_to_save(place: &Place) -> bool {
    let mut run = Run::ready(place);
    let orderly =
        "trap 'sleep 0.1; touch saved; exit' TERM; touch running; while :; do sleep 0.05; done";
    let mut busy = Busy::with_command(&run, orderly);
    run.stop();
    assert_eq!(busy.answer()["ended"], "lost");
    drop(std::fs::remove_file(place.workspace.join("running")));
    place.workspace.join("saved").exists()
}

#[test]
fn sigterm_in_the_middle_of_a_start_leaves_nothing() {
    let Some(place) = place() else { return };
    for delay in [20, 200, 500, 900, 1400] {
        let mut run = Run::begin(&place);
        std::thread::sleep(Duration::from_millis(delay));
        run.signal(Signal::TERM);
        let status = run.wait_ended(PATIENCE);
        // Before it watches for signals it is simply ended by one.
        let by_signal = std::os::unix::process::ExitStatusExt::signal(&status) == Some(15);
        assert!(
            status.success() || by_signal,
            "{delay}: {status}\n{}",
            run.log()
        );
    }
    assert_gone(&place);
    Run::ready(&place).stop();
}
