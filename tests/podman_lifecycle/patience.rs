//! Waits that have an end. They take a minute, and so go on at the same time.

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

use crate::podman_common::sandbox::Place;
use crate::podman_common::{Client, Options, PATIENCE, host, wait_for};
use crate::run::Run;
use crate::traces::assert_gone;

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn unused_launch_and_unanswered_lock_end_after_a_minute() {
    if !host::qualifies() {
        return;
    }
    std::thread::scope(|scope| {
        scope.spawn(launched_without_a_client);
        scope.spawn(lock_of_a_process_that_does_not_answer);
    });
}

fn launched_without_a_client() {
    let place = Place::new(Options {
        launched: true,
        ..Options::default()
    });
    let begin = Instant::now();
    place.spawn().wait().unwrap();
    // Somebody who only asks does not count.
    let mut asking = wait_for("the socket", MINUTE, || {
        Client::try_connect(&place.socket())
    });
    let status = asking.call("status", serde_json::json!({})).unwrap();
    let pid = u32::try_from(status["pid"].as_u64().unwrap()).unwrap();
    wait_for("the end", MINUTE + PATIENCE, || {
        (!host::is_alive(pid)).then_some(())
    });
    let lived = begin.elapsed();
    assert!(lived >= MINUTE - Duration::from_secs(1), "{lived:?}");
    assert_gone(&place);
}

fn lock_of_a_process_that_does_not_answer() {
    let place = Place::new(Options::default());
    let path = host::runtime_dir().join(format!("{}.lock", place.name()));
    let lock = File::create(&path).unwrap();
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    // One that hangs: it takes connections and says nothing.
    let _listener = std::os::unix::net::UnixListener::bind(place.socket()).unwrap();
    let begin = Instant::now();
    let mut run = Run::begin(&place);
    let status = run.wait_ended(MINUTE + PATIENCE);
    let waited = begin.elapsed();
    std::fs::remove_file(place.socket()).unwrap();
    assert_eq!(status.code(), Some(1), "{}", run.log());
    assert!(waited >= MINUTE - Duration::from_secs(1), "{waited:?}");
    let log = run.log();
    assert!(log.contains(path.to_str().unwrap()), "{log}");
    assert!(log.contains("hint: "), "{log}");
}

/// A holder on its way out is waited for, and then the start goes on.
#[test]
fn start_waits_for_a_holder_that_leaves() {
    if !host::qualifies() {
        return;
    }
    let place = Place::new(Options::default());
    let path = host::runtime_dir().join(format!("{}.lock", place.name()));
    let mut holder = Command::new("flock")
        .arg(&path)
        .args(["sleep", "2"])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the lock", MINUTE, || {
        let file = File::open(&path).ok()?;
        let free = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        (!free).then_some(())
    });
    let mut run = Run::ready(&place);
    holder.wait().unwrap();
    // A second one by hand finds the first, and says so.
    let mut second = Run::begin(&place);
    let status = second.wait_ended(MINUTE);
    assert_eq!(status.code(), Some(0));
    let log = second.log();
    assert!(log.contains("serves") && log.contains("already"), "{log}");
    assert_eq!(run.client().output("echo there"), "there\n");
    run.stop();
}
