//! What happens at the limits; each test has a sandbox of its own.

use std::time::Duration;

use serde_json::json;

use crate::podman_common::{Client, Options, PATIENCE, Sandbox, host, sandbox::CONFIG, wait_for};
use crate::{assert_exited, assert_next_command_works, client, notices, text};

/// Longest accepted command text.
const MAX_COMMAND: usize = 2 << 20;

fn start_with(changes: &[(&str, &str)]) -> Option<Sandbox> {
    let mut config = CONFIG.to_owned();
    for (from, to) in changes {
        assert!(config.contains(from), "{from}");
        config = config.replace(from, to);
    }
    Sandbox::start(Options {
        config,
        ..Options::default()
    })
}

/// A limit was reached, but nothing was created anew.
fn end(sandbox: Sandbox) {
    assert_eq!(sandbox.status()["restarts"], 0);
    sandbox.end_and_check();
}

#[test]
fn fork_bomb_is_bounded_and_the_next_command_works() {
    let Some(sandbox) = start_with(&[("pids_limit = 300", "pids_limit = 64")]) else {
        return;
    };
    let mut client = sandbox.client();
    let bomb = r"bomb() { bomb | bomb & }; bomb; sleep 5";
    let result = client.shell_with(json!({"command": bomb, "timeout_s": 30}));
    let mut seen = notices(&result);
    let alive = sandbox.processes().len();
    assert!(alive <= 64, "{alive} processes");
    for _ in 0..3 {
        let result = client.shell("echo next");
        assert_exited(&result, 0);
        assert_eq!(result["output"], "next\n", "{result}");
        seen.push_str(&notices(&result));
    }
    assert!(seen.contains("the process limit"), "{seen}");
    assert!(seen.contains("64"), "{seen}");
    // One that would go on for ever ends with its command.
    let bomb = r"bomb() { while :; do bomb & done; }; bomb 2>/dev/null";
    let result = client.shell_with(json!({"command": bomb, "timeout_s": 5}));
    assert_eq!(result["ended"], "timed_out");
    assert!(
        notices(&result).contains("process limit of the sandbox (64)"),
        "{result}"
    );
    assert_next_command_works(&mut client);
    end(sandbox);
}

#[test]
fn filled_process_table_is_named_and_the_next_command_works() {
    let Some(sandbox) = start_with(&[("pids_limit = 300", "pids_limit = 64")]) else {
        return;
    };
    let mut client = sandbox.client();
    // One child takes each place that becomes free, its parent's too.
    let fill = r#"python3 - <<'END'
import os, time
def fill():
    while True:
        try:
            if os.fork() == 0:
                time.sleep(300)
        except OSError:
            time.sleep(0.01)
def is_full():
    try:
        child = os.fork()
    except OSError:
        return True
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
if os.fork() == 0:
    fill()
while not is_full():
    time.sleep(0.1)
time.sleep(0)
END"#;
    let result = client.shell(fill);
    std::thread::sleep(Duration::from_secs(1));
    assert!(
        notices(&result).contains("process limit of the sandbox (64) was reached"),
        "{result}"
    );
    assert_eq!(result["background"].as_array().unwrap().len(), 20);
    // Room for one, where the first process was: enough for a command.
    let result = client.shell("echo next");
    assert_eq!(result["output"], "next\n", "{result}");
    client.shell("kill -9 -1");
    wait_for("an empty table", PATIENCE, || {
        (sandbox.processes().len() < 8).then_some(())
    });

    // While a command that is under way holds them all, others are told.
    let hold = fill.replace("time.sleep(0)\n", "time.sleep(300)\n");
    let id = client.start(&hold);
    wait_for("a full table", PATIENCE, || {
        (sandbox.processes().len() >= 62).then_some(())
    });
    let error = client
        .call("shell", json!({"command": "echo next"}))
        .unwrap_err();
    assert_eq!(error["kind"], "cannot_run", "{error}");
    assert!(
        text(&error["message"]).contains("process limit of the sandbox (64)"),
        "{error}"
    );
    client.call("cancel", json!({"request": id})).unwrap();
    client.answer(id).unwrap();
    assert_next_command_works(&mut client);
    end(sandbox);
}

#[test]
fn memory_limit_ends_the_command_and_is_named() {
    let Some(sandbox) = start_with(&[("memory = \"512m\"", "memory = \"128m\"")]) else {
        return;
    };
    let mut client = sandbox.client();
    let result = client.shell("python3 -c 'x = bytearray(400 << 20)'");
    assert_eq!(
        (&result["ended"], &result["signal"]),
        (&json!("signaled"), &json!(9)),
        "{result}"
    );
    let wanted = "the memory limit of the sandbox (128 MiB) was reached";
    assert!(notices(&result).contains(wanted), "{result}");
    let result = client.shell("echo next");
    assert_eq!(
        (&result["output"], &result["notices"]),
        (&json!("next\n"), &json!([]))
    );
    // As a child of the shell it is the shell that tells.
    let result = client.shell("python3 -c 'x = bytearray(400 << 20)'; echo after");
    assert!(text(&result["output"]).contains("after"), "{result}");
    assert!(notices(&result).contains(wanted), "{result}");
    assert_next_command_works(&mut client);
    let peak = std::fs::read_to_string(sandbox.cgroup().join("memory.peak")).unwrap();
    // The kernel goes over it by some pages, where it must not fail.
    assert!(peak.trim().parse::<u64>().unwrap() <= 132 << 20, "{peak}");
    end(sandbox);
}

#[test]
fn scratch_larger_than_the_memory_limit_does_not_take_the_sandbox_away() {
    let Some(sandbox) = start_with(&[
        ("memory = \"512m\"", "memory = \"96m\""),
        ("tmp = \"32m\"", "tmp = \"512m\""),
    ]) else {
        return;
    };
    let mut client = sandbox.client();
    let result = client.shell("head -c 300M /dev/zero >/tmp/fill");
    // Which process the kernel ends is its choice: pid 1 may be the last one.
    let told = notices(&result);
    let is_named = ["memory limit", "the sandbox ended"]
        .iter()
        .any(|why| told.contains(why));
    assert!(is_named || result["ended"] == "lost", "{result}");
    // What fills the memory are files that nobody but the agent can remove.
    let mut tries = 0;
    wait_for("a command that works", PATIENCE, || {
        tries += 1;
        let result = client.call("shell", json!({"command": "rm -f /tmp/fill; echo next"}));
        result
            .is_ok_and(|result| result["output"] == "next\n")
            .then_some(())
    });
    assert!(tries < 20, "{tries} tries");
    sandbox.end_and_check();
}

#[test]
fn full_scratch_is_named_for_each_place() {
    let Some(sandbox) = start_with(&[]) else {
        return;
    };
    let mut client = sandbox.client();
    let home = host::home().to_string_lossy().into_owned();
    for (place, size) in [(home.as_str(), 24), ("/tmp", 32), ("/dev/shm", 16)] {
        let result = client.shell(&format!(
            "cat /dev/zero >{place}/fill; stat -c %s {place}/fill"
        ));
        let output = text(&result["output"]);
        assert!(output.contains("No space left on device"), "{result}");
        let written: u64 = output.lines().last().unwrap().parse().unwrap();
        assert!(
            written <= size << 20 && written > (size - 2) << 20,
            "{place}: {written}"
        );
        assert_eq!(
            notices(&result),
            format!("the scratch space {place} is full")
        );
        // Still so for the next command, which works nevertheless.
        let result = client.shell("echo next");
        assert_eq!(result["output"], "next\n");
        assert!(notices(&result).contains(place), "{result}");
        let result = client.shell(&format!("rm {place}/fill"));
        assert_eq!(result["notices"], json!([]));
    }
    end(sandbox);
}

#[test]
fn long_commands_run_up_to_the_limit() {
    let Some(mut client) = client() else { return };
    let command = |length: usize| {
        let frame = "x=''; echo ${#x}".len();
        format!("x='{}'; echo ${{#x}}", "é".repeat((length - frame) / 2))
    };
    for length in [
        20_000,
        24 << 10,
        30_000,
        131_072,
        200_000,
        1_900_000,
        MAX_COMMAND,
    ] {
        let command = command(length);
        let wanted = command.chars().count() - "x=''; echo ${#x}".len();
        assert_eq!(
            client.output(&command),
            format!("{wanted}\n"),
            "{length} bytes"
        );
    }
    let params = json!({"command": command(MAX_COMMAND + 2)});
    let error = client.call("shell", params).unwrap_err();
    assert_eq!(error["kind"], "limit", "{error}");
    assert!(
        text(&error["message"]).contains(&MAX_COMMAND.to_string()),
        "{error}"
    );
    assert_next_command_works(&mut client);
}

#[test]
fn commands_of_any_text_but_nul_arrive_as_they_are() {
    let Some(mut client) = client() else { return };
    // In JSON each takes six bytes; the length on the way must not matter.
    for count in [10, 10_000, 20_000, 23_000, 300_000] {
        let command = format!("x='{}'; echo ${{#x}}", "\u{1}".repeat(count));
        assert_eq!(client.output(&command), format!("{count}\n"));
    }
    let odd = "\u{1b}\u{7f}\u{85}\u{2028}\u{feff}'\"\\\t\r漢🎉";
    let result = client.shell(&format!(
        "cat <<'END' | od -An -tx1 | tr -d ' \\n'\n{odd}\nEND"
    ));
    let wanted: String = format!("{odd}\n")
        .bytes()
        .map(|b| format!("{b:02x}"))
        .collect();
    assert_eq!(result["output"], wanted);
    for command in ["\0", "echo a\0b", "echo ran #\0"] {
        let error = client
            .call("shell", json!({"command": command}))
            .unwrap_err();
        assert_eq!(error["kind"], "bad_request");
        assert!(text(&error["message"]).contains("NUL"), "{error}");
    }
    assert_next_command_works(&mut client);
}

#[test]
fn long_and_short_commands_behave_alike() {
    let Some(mut client) = client() else { return };
    let padding = format!("\n#{}", "x".repeat(100_000));
    for command in [
        "cat; echo end",
        "exit 3",
        "echo \"[$#] [$*]\"",
        "kill -15 $$",
        "false\ntrue | false",
        "echo $SHLVL",
        "ls /proc/self/fd | wc -l",
        "f() { return 4; }; f",
        "echo )",
    ] {
        let short = client.shell(command);
        let long = client.shell(&format!("{command}{padding}"));
        for key in ["ended", "code", "signal"] {
            assert_eq!(short[key], long[key], "{command}: {long}");
        }
        // An error message may name where the text came from.
        if command != "echo )" {
            assert_eq!(short["output"], long["output"], "{command}");
        }
    }
    assert_next_command_works(&mut client);
}

#[test]
fn exec_words_are_bounded() {
    let Some(mut client) = client() else { return };
    let word = "x".repeat(20_000);
    let run = crate::descriptors::exec(&mut client, &["printf", "%s", &word], b"");
    assert_eq!(run.stdout.len(), 20_000);
}

/// Its own processes, all of them, and then life goes on.
#[test]
fn killing_everything_inside_ends_only_the_commands() {
    let Some(sandbox) = start_with(&[]) else {
        return;
    };
    let mut client = sandbox.client();
    let init = sandbox.init_pid();
    let other = client.start_and_hear("echo here; exec sleep 300");
    let wait = |client: &mut Client| client.output("sleep 1");
    wait(&mut client);
    let result = client.shell("kill -9 -1; echo survived");
    assert_eq!(result["output"], "survived\n", "{result}");
    assert_eq!(client.answer(other).unwrap()["signal"], 9);
    client.shell("for n in $(seq 64); do kill -$n 1; kill -$n 1; done");
    wait(&mut client);
    assert_eq!(sandbox.init_pid(), init);
    assert!(host::is_alive(init));
    end(sandbox);
}
