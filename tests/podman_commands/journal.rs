//! The record of all commands, on the host's side.

use std::os::unix::fs::MetadataExt;

use serde_json::{Value, json};

use crate::podman_common::{Options, Sandbox, host};
use crate::{assert_exited, descriptors};

#[test]
fn every_command_is_in_the_journal() {
    let Some(sandbox) = Sandbox::start(Options::default()) else {
        return;
    };
    let mut client = sandbox.client();
    client.shell("echo one\necho two; exit 3");
    client.shell("kill -9 $$");
    client.shell_with(json!({"command": "sleep 60", "timeout_s": 1, "cwd": "/tmp"}));
    let id = client.start("sleep 61");
    client.call("cancel", json!({"request": id})).unwrap();
    client.answer(id).unwrap();
    descriptors::exec(&mut client, &["printf", "a b"], b"");
    let id = client.send(
        "terminal",
        json!({"argv": ["true"], "rows": 1, "cols": 1, "term": "dumb"}),
    );
    client.answer(id).unwrap();
    client.shell(&format!(": {}", "é".repeat(50_000)));
    client.shell("seq 100000");

    let journal = sandbox.journal();
    let workspace = sandbox.workspace().to_str().unwrap();
    let wanted = [
        (
            "shell",
            "echo one\necho two; exit 3",
            workspace,
            json!({"ended": "exited", "code": 3}),
        ),
        (
            "shell",
            "kill -9 $$",
            workspace,
            json!({"ended": "signaled", "signal": 9}),
        ),
        (
            "shell",
            "sleep 60",
            "/tmp",
            json!({"ended": "timed_out", "after_s": 1}),
        ),
        (
            "shell",
            "sleep 61",
            workspace,
            json!({"ended": "cancelled"}),
        ),
        (
            "exec",
            "printf a b",
            workspace,
            json!({"ended": "exited", "code": 0}),
        ),
        (
            "terminal",
            "true",
            workspace,
            json!({"ended": "exited", "code": 0}),
        ),
    ];
    assert_eq!(journal.len(), wanted.len() + 2, "{journal:?}");
    let mut last = 0.0;
    for (entry, (kind, command, cwd, outcome)) in journal.iter().zip(&wanted) {
        assert_eq!(entry["kind"], *kind, "{entry}");
        assert_eq!(entry["command"], *command, "{entry}");
        assert_eq!(entry["cwd"], *cwd, "{entry}");
        assert_eq!(entry["client"], "test/1", "{entry}");
        for (key, value) in outcome.as_object().unwrap() {
            assert_eq!(entry[key], *value, "{entry}");
        }
        let at = entry["ts"].as_f64().unwrap();
        assert!(at >= last, "{entry}");
        last = at;
        assert!(entry["duration_ms"].is_u64(), "{entry}");
        assert_eq!(entry.get("bytes").is_some(), *kind == "shell", "{entry}");
    }
    assert_eq!(journal[0]["bytes"], 8);
    assert_eq!(journal[7]["bytes"], 588_895);
    let long = journal[6]["command"].as_str().unwrap();
    assert!(long.starts_with(": éé") && long.len() <= 16 << 10);

    assert_it_is_private(&sandbox);
    sandbox.end_and_check();
}

fn assert_it_is_private(sandbox: &Sandbox) {
    let path = sandbox.place.journal();
    let metadata = path.metadata().unwrap();
    assert_eq!(metadata.mode() & 0o777, 0o600);
    assert_eq!(metadata.uid(), host::uid());
    let mut client = sandbox.client();
    assert_exited(&client.shell(&format!("test -e {}", path.display())), 1);
    let name = path.file_name().unwrap().to_string_lossy();
    let found = client.output(&format!("find / -name '{name}' 2>/dev/null; true"));
    assert_eq!(found, "");
}

#[test]
fn a_client_cannot_forge_a_line() {
    let Some(sandbox) = Sandbox::start(Options::default()) else {
        return;
    };
    let mut client = crate::Client::raw(&sandbox.place.socket());
    let name = "x\n{\"forged\": 1}\u{202e}\x1b[0m";
    client
        .call("hello", json!({"api": 1, "client": name}))
        .unwrap();
    client.shell("true\n{\"forged\": 2}\n");
    let journal = sandbox.journal();
    assert_eq!(journal.len(), 1);
    assert_eq!(journal[0]["client"], r#"x\n{"forged": 1}\u{202e}\x1b[0m"#);
    assert_eq!(
        journal[0]["command"],
        Value::from("true\n{\"forged\": 2}\n")
    );
    sandbox.end_and_check();
}
