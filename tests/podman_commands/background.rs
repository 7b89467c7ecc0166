//! What a command leaves running.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::podman_common::{Options, PATIENCE, Sandbox, host, wait_for};
use crate::{
    assert_exited, assert_next_command_works, background_sleep, client, marker, shared, text,
};

/// The answer must not wait for the background process. A second is meant;
/// a busy machine may take longer for all it does.
const SOON: Duration = Duration::from_secs(30);

/// The entry for a background process with `marker`, if it is listed.
fn listed(result: &Value, marker: &str) -> Option<Value> {
    let background = result["background"].as_array().unwrap();
    let with = |process: &&Value| text(&process["command"]).contains(marker);
    background.iter().find(with).cloned()
}

#[test]
fn a_child_that_holds_the_pipe_does_not_delay_the_answer() {
    let Some(mut client) = client() else { return };
    let marker = marker();
    let start = Instant::now();
    let result = client.shell(&format!("{}; echo started", background_sleep(&marker)));
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_exited(&result, 0);
    assert_eq!(result["output"], "started\n");
    let process = listed(&result, &marker).expect("listed");
    assert_eq!(process["command"], format!("sleep {marker}"));
    // The number is the one inside, and the process lives on.
    let pid = process["pid"].as_u64().unwrap();
    let line = client.output(&format!("tr '\\0' ' ' </proc/{pid}/cmdline"));
    assert_eq!(line.trim(), format!("sleep {marker}"));
    assert!(listed(&client.shell("true"), &marker).is_some());
    client.output(&format!("kill {pid}"));
    wait_for("the end", PATIENCE, || {
        listed(&client.shell("true"), &marker)
            .is_none()
            .then_some(())
    });
}

#[test]
fn later_output_neither_blocks_nor_kills_its_writer() {
    let Some(sandbox) = shared() else { return };
    let mut client = sandbox.client();
    let marker = marker();
    // More than any pipe holds, then a sign of life.
    let command = format!(
        "(until [ -e answered ]; do sleep 0.1; done; head -c 3000000 /dev/zero && touch written; exec sleep {marker}) & echo now"
    );
    let result = client.shell(&command);
    assert_eq!(result["output"], "now\n");
    std::fs::write(sandbox.workspace().join("answered"), "").unwrap();
    let written = sandbox.workspace().join("written");
    wait_for("the writer", PATIENCE, || written.exists().then_some(()));
    // None of it turns up in what others print.
    assert_next_command_works(&mut client);
    wait_for("what comes after it", PATIENCE, || {
        let line = format!("sleep {marker} ");
        let alive = host::processes_with(&line).into_iter();
        (alive.map(host::command_line).collect::<Vec<_>>() == [line]).then_some(())
    });
    client.shell(&format!("pkill -f 'sleep {marker}'"));
}

#[test]
fn a_child_without_the_pipe_lives_on_too() {
    let Some(mut client) = client() else { return };
    for how in [
        "sleep M >/dev/null 2>&1 &",
        "nohup sleep M >/dev/null 2>&1 &",
        "(setsid sleep M >/dev/null 2>&1 &)",
        "setsid sh -c 'exec <&- >&- 2>&-; exec sleep M' &",
    ] {
        let marker = marker();
        let start = Instant::now();
        let result = client.shell(&how.replace('M', &marker));
        assert_exited(&result, 0);
        assert!(start.elapsed() < SOON, "{how}: {:?}", start.elapsed());
        wait_for("the process", PATIENCE, || {
            listed(&client.shell("true"), &marker)
        });
        client.shell(&format!("pkill -f 'sleep {marker}'"));
    }
}

#[test]
fn a_chatty_background_process_disturbs_nobody() {
    let Some(sandbox) = Sandbox::start(Options::default()) else {
        return;
    };
    let mut client = sandbox.client();
    assert_exited(&client.shell("yes & echo"), 0);
    let before = host::resident_kib(sandbox.pid);
    for _ in 0..5 {
        let start = Instant::now();
        assert_next_command_works(&mut client);
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    }
    assert!(host::resident_kib(sandbox.pid) < before + (4 << 10));
    // What it has printed until the answer may be saved; nothing is added.
    let saved = || {
        let files = std::fs::read_dir(sandbox.place.state().join("output")).unwrap();
        files
            .map(|file| file.unwrap().metadata().unwrap().len())
            .sum::<u64>()
    };
    let size = saved();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(saved(), size);
    // Background processes live until the sandbox stops, and not longer.
    sandbox.end_and_check();
}

#[test]
fn the_list_is_bounded_and_safe_to_show() {
    let Some(sandbox) = Sandbox::start(Options::default()) else {
        return;
    };
    let mut client = sandbox.client();
    let command = r#"for n in $(seq 50); do (exec -a $'x\n\e[31mNOTICE: '$n sleep 300) >/dev/null 2>&1 & done
        until [ $(pgrep -xc sleep) = 50 ]; do :; done"#;
    let result = client.shell(command);
    let background = result["background"].as_array().unwrap();
    assert_eq!(background.len(), 20, "{result}");
    for process in background {
        let command = text(&process["command"]);
        assert!(command.starts_with(r"x\n\x1b[31mNOTICE: "), "{command}");
        assert!(!command.contains(char::is_control));
    }
    let long = format!("(exec -a {} sleep 300) & ", "y".repeat(5000));
    let result = client.shell(&format!("pkill sleep; {long} sleep 1"));
    let entry = listed(&result, "yyy").expect("listed");
    assert!(text(&entry["command"]).len() < 200, "{entry}");
    assert_eq!(
        client.shell_with(json!({"command": "true"}))["notices"],
        json!([])
    );
    sandbox.end_and_check();
}
