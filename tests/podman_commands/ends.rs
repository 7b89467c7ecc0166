//! The ways in which a command ends.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::podman_common::{Client, Options, PATIENCE, Sandbox, host, sandbox::CONFIG, wait_for};
use crate::{assert_exited, assert_next_command_works, client, marker, shared, text};

#[test]
fn exit_codes_are_told_as_they_are() {
    let Some(mut client) = client() else { return };
    for code in [0, 1, 2, 3, 124, 126, 127, 130, 137, 255] {
        let result = client.shell(&format!("exit {code}"));
        assert_exited(&result, code);
        assert!(result.get("signal").is_none(), "{result}");
    }
    assert_exited(&client.shell(""), 0);
    let result = client.shell("no-such-program-at-all");
    assert_exited(&result, 127);
    assert!(text(&result["output"]).contains("not found"), "{result}");
}

#[test]
fn signals_are_told_apart_from_exit_codes() {
    let Some(mut client) = client() else { return };
    for signal in [1, 2, 6, 9, 11, 15, 31, 34, 64] {
        let result = client.shell(&format!("kill -{signal} $$; sleep 5"));
        assert_eq!(result["ended"], "signaled", "{result}");
        assert_eq!(result["signal"], signal, "{result}");
        assert!(result.get("code").is_none(), "{result}");
    }
    // A child's signal is the shell's exit code.
    assert_exited(&client.shell("sh -c 'kill -9 $$'; exit $?"), 137);
    // Ended by SIGPIPE: pid 1, which ignores it, does not hand that on.
    assert_eq!(
        client.output("yes | head -n 1 >/dev/null; echo ${PIPESTATUS[0]}"),
        "141\n"
    );
    assert_next_command_works(&mut client);
}

#[test]
fn timeout_is_neither_exit_code_nor_signal() {
    let Some(mut client) = client() else { return };
    let result = client.shell_with(json!({"command": "echo before; sleep 60", "timeout_s": 4}));
    assert_eq!(result["ended"], "timed_out", "{result}");
    assert_eq!(result["after_s"], 4, "{result}");
    assert_eq!(result["output"], "before\n");
    assert!(result.get("code").is_none() && result.get("signal").is_none());
    assert!(result["duration_ms"].as_u64().unwrap() >= 4000, "{result}");
    assert_next_command_works(&mut client);
}

#[test]
fn timeouts_outside_the_limits_are_refused() {
    let Some(mut client) = client() else { return };
    for (timeout, named) in [
        (0, "at least 1"),
        (301, "the most is 300"),
        (u64::MAX, "300"),
    ] {
        let error = client
            .call(
                "shell",
                json!({"command": "echo ran", "timeout_s": timeout}),
            )
            .unwrap_err();
        assert_eq!(error["kind"], "bad_request");
        assert!(text(&error["message"]).contains(named), "{error}");
    }
    let result = client.shell_with(json!({"command": "echo ran", "timeout_s": 300}));
    assert_exited(&result, 0);
}

#[test]
fn cancelled_command_is_answered_as_such() {
    let Some(mut client) = client() else { return };
    let id = client.start_and_hear("echo begun; sleep 300");
    let cancelled = client.call("cancel", json!({"request": id})).unwrap();
    assert_eq!(cancelled, json!({"was_running": true}));
    let result = client.answer(id).unwrap();
    assert_eq!(result["ended"], "cancelled", "{result}");
    assert_eq!(result["output"], "begun\n");
    let again = client.call("cancel", json!({"request": id})).unwrap();
    assert_eq!(again, json!({"was_running": false}));
    assert_next_command_works(&mut client);
}

#[test]
fn only_the_own_commands_can_be_cancelled() {
    let Some(mut client) = client() else { return };
    let Some(mut other) = self::client() else {
        return;
    };
    let id = client.start("sleep 2; echo whole");
    for request in [id, id + 1, 0, u64::MAX] {
        let answer = other.call("cancel", json!({"request": request})).unwrap();
        assert_eq!(answer, json!({"was_running": false}));
    }
    assert_eq!(client.answer(id).unwrap()["output"], "whole\n");
}

#[test]
fn command_is_asked_to_end_before_it_is_killed() {
    let Some(mut client) = client() else { return };
    let command = "trap 'echo tidied; exit 0' TERM; echo begun; while :; do :; done";
    let id = client.start_and_hear(command);
    client.call("cancel", json!({"request": id})).unwrap();
    let result = client.answer(id).unwrap();
    assert_eq!(result["ended"], "cancelled", "{result}");
    assert_eq!(result["output"], "begun\ntidied\n");
}

/// `M` is the marker; each leaves processes with it that do not want to end.
const STUBBORN: [(&str, &str); 6] = [
    ("plain", "sleep M"),
    ("ignores TERM", "trap '' TERM; (sleep M; sleep M); sleep M"),
    (
        "double fork with setsid",
        "setsid sh -c 'setsid sleep M & setsid sleep M &' & sleep M",
    ),
    (
        "daemon that closes everything",
        "(setsid sh -c 'trap \"\" TERM HUP; exec <&- >&- 2>&-; cd /; sleep M' &); sleep M",
    ),
    ("stopped", "sleep M & kill -STOP $!; wait"),
    (
        "forks on and on",
        "trap '' TERM; while :; do (trap '' TERM; sleep M) & sleep 0.05; done",
    ),
];

#[test]
fn nothing_of_the_tree_survives_timeout_or_cancel() {
    let config = CONFIG.replace("\ntimeout_s = 60", "\ntimeout_s = 2");
    let Some(sandbox) = Sandbox::start(Options {
        config,
        ..Options::default()
    }) else {
        return;
    };
    let mut client = sandbox.client();
    for (name, command) in STUBBORN {
        let marker = marker();
        let id = client.start(&command.replace('M', &marker));
        let result = client.answer(id).unwrap();
        assert_eq!(result["ended"], "timed_out", "{name}: {result}");
        assert_eq!(result["after_s"], 2, "{name}: {result}");
        assert_tree_is_gone(&sandbox, name, &marker);

        // Not by its time as well.
        let patient = json!({"command": command.replace('M', &marker), "timeout_s": 300});
        let id = client.send("shell", patient);
        wait_for("the command", PATIENCE, || {
            (!host::processes_with(&format!("sleep {marker}")).is_empty()).then_some(())
        });
        assert!(!sandbox.processes().is_empty());
        client.call("cancel", json!({"request": id})).unwrap();
        let result = client.answer(id).unwrap();
        assert_eq!(result["ended"], "cancelled", "{name}: {result}");
        assert_tree_is_gone(&sandbox, name, &marker);
        assert_eq!(result["background"], json!([]), "{name}");
        assert_next_command_works(&mut client);
    }
    assert_eq!(sandbox.status()["restarts"], 0);
    sandbox.end_and_check();
}

fn assert_tree_is_gone(sandbox: &Sandbox, name: &str, marker: &str) {
    let left = host::processes_with(marker);
    let left: Vec<String> = left.into_iter().map(host::command_line).collect();
    assert!(left.is_empty(), "{name}: {left:?}");
    assert_eq!(sandbox.processes(), Vec::<u32>::new(), "{name}");
    let cgroups = std::fs::read_dir(sandbox.cgroup()).unwrap();
    let commands = cgroups.filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().starts_with("command-")
    });
    // That of the next command may be there already.
    assert!(commands.count() <= 1, "{name}: cgroups");
}

#[test]
fn commands_end_with_the_client_that_asked_for_them() {
    let Some(sandbox) = shared() else { return };
    let marker = marker();
    let mut client = sandbox.client();
    // Not by its time as well.
    let patient = json!({"command": format!("sleep {marker}"), "timeout_s": 300});
    client.send("shell", patient);
    let running = || !host::processes_with(&format!("sleep {marker}")).is_empty();
    wait_for("the command", PATIENCE, || running().then_some(()));
    let background = marker.replace('.', ".9");
    client.shell(&format!("sleep {background} >/dev/null 2>&1 &"));
    drop(client);
    wait_for("its end", PATIENCE, || (!running()).then_some(()));
    // What was left in the background on purpose lives on.
    let left = host::processes_with(&format!("sleep {background}"));
    assert_eq!(left.len(), 1);
    let mut client = sandbox.client();
    client.shell(&format!("pkill -f 'sleep {background}'"));
}

/// pid 1 takes commands one by one: many of these are over before their turn.
#[test]
fn commands_cancelled_before_they_start_never_start() {
    let Some(sandbox) = shared() else { return };
    let mut client = sandbox.client();
    let marker = marker();
    let command = format!("trap '' TERM; touch started-{marker}; exec sleep {marker}");
    let ids: Vec<u64> = (0..100).map(|_| client.start(&command)).collect();
    let cancels: Vec<u64> = ids
        .iter()
        .map(|id| client.send("cancel", json!({"request": id})))
        .collect();
    for (id, cancel) in ids.into_iter().zip(cancels) {
        assert_eq!(client.answer(cancel).unwrap()["was_running"], true);
        assert_eq!(client.answer(id).unwrap()["ended"], "cancelled");
    }
    // Its turn comes after all of theirs.
    assert_next_command_works(&mut client);
    assert_eq!(host::processes_with(&marker), Vec::<u32>::new());
}

#[test]
fn many_commands_that_time_out_together_all_end() {
    let Some(mut client) = client() else { return };
    let start = Instant::now();
    let ids: Vec<u64> = (0..20).map(|_| timed(&mut client)).collect();
    for id in ids {
        assert_eq!(client.answer(id).unwrap()["ended"], "timed_out");
    }
    assert!(start.elapsed() < Duration::from_secs(40));
}

fn timed(client: &mut Client) -> u64 {
    let command = "trap '' TERM; exec sleep 300";
    client.send("shell", json!({"command": command, "timeout_s": 1}))
}
