//! A sandbox that dies is created again, under the same name.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::kill::assert_works_soon;
use crate::podman_common::{Client, Options, PATIENCE, Sandbox, wait_for};
use crate::run::send;
use crate::traces::{containers, processes};

/// A command that runs; the id of its request.
fn start_running(sandbox: &Sandbox, client: &mut Client) -> u64 {
    let flag: PathBuf = sandbox.workspace().join("running");
    drop(std::fs::remove_file(&flag));
    let request = client.start("touch running; sleep 86400");
    wait_for("the command to run", PATIENCE, || {
        flag.exists().then_some(())
    });
    request
}

fn restarts(status: &Value) -> u64 {
    status["restarts"].as_u64().expect("a number")
}

#[test]
fn dead_sandbox_is_told_of_at_once_and_comes_back_slower_each_time() {
    let Some(sandbox) = Sandbox::start(Options::default()) else {
        return;
    };
    let mut client = sandbox.client();
    let before = sandbox.status();
    let mut told = Vec::new();
    // The first time it is created again at once.
    for (death, pause) in [(1, 0), (2, 1), (3, 2)] {
        let running = start_running(&sandbox, &mut client);
        let init = sandbox.init_pid();
        let killed = Instant::now();
        send(init, Signal::KILL);
        let answer = client.answer(running).unwrap();
        told.push(killed.elapsed());
        assert_eq!(answer["ended"], "lost", "{answer}");
        // Waits until it is back.
        assert_eq!(client.output("echo again"), "again\n");
        assert!(killed.elapsed() >= Duration::from_secs(pause), "no pause");
        let status = sandbox.status();
        assert_eq!(restarts(&status), death, "{status}");
        assert_eq!(status["state"], "ready");
    }
    // The regular look comes every five seconds only. A busy machine may take its time once.
    told.sort();
    assert!(told[1] < Duration::from_secs(1), "told after {told:?}");
    let after = sandbox.status();
    assert_eq!(after["container"], before["container"]);
    assert_eq!(after["pid"], before["pid"]);
    assert_ne!(after["init_pid"], before["init_pid"]);
    assert_eq!(containers(&sandbox.place).len(), 1);
    sandbox.end_and_check();
}

#[test]
fn state_is_restarting_while_it_waits_and_a_stop_does_not() {
    let Some(sandbox) = Sandbox::start(Options::default()) else {
        return;
    };
    let mut client = sandbox.client();
    let mut status = Value::Null;
    for death in 1..=2 {
        client.output("true");
        send(sandbox.init_pid(), Signal::KILL);
        status = wait_for("the death to be seen", PATIENCE, || {
            let status = sandbox.status();
            (restarts(&status) == death).then_some(status)
        });
    }
    // In the pause before the second new one.
    assert_eq!(status["state"], "restarting", "{status}");
    let waiting = client.send("shell", json!({"command": "true"}));
    sandbox.end_and_check();
    assert_eq!(client.answer(waiting).unwrap_err()["kind"], "stopping");
}

#[test]
fn container_removed_by_hand_comes_back() {
    let Some(sandbox) = Sandbox::start(Options::default()) else {
        return;
    };
    let mut client = sandbox.client();
    let running = start_running(&sandbox, &mut client);
    // umwelt-run removes what has died as well: one of the two may come too late.
    let remove = ["rm", "--force", "--time=0", &sandbox.place.name()];
    drop(Command::new("podman").args(remove).output().unwrap());
    assert_eq!(client.answer(running).unwrap()["ended"], "lost");
    assert_eq!(client.output("echo again"), "again\n");
    assert_eq!(restarts(&sandbox.status()), 1);
    sandbox.end_and_check();
}

#[test]
fn sandbox_outlives_its_conmon_or_comes_back() {
    let Some(sandbox) = Sandbox::start(Options::default()) else {
        return;
    };
    let mut client = sandbox.client();
    let [conmon] = processes(&sandbox.place, "/usr/bin/conmon")[..] else {
        panic!("one conmon");
    };
    send(conmon, Signal::KILL);
    std::thread::sleep(Duration::from_secs(1));
    assert_works_soon(&mut client);
    sandbox.end_and_check();
}
