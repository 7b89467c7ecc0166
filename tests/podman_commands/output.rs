//! What a command prints, and what of it is told.

use std::time::Duration;

use serde_json::{Value, json};

use crate::podman_common::{Client, Options, Sandbox, host, sandbox::CONFIG};
use crate::{assert_exited, assert_next_command_works, client, notices, shared, text};

/// What a result may hold; the line that says what is left out is extra.
const MAX_TEXT: usize = 40_000;
const MAX_LINES: usize = 1_500;
/// Most bytes of a saved output.
const MAX_SAVED: u64 = 16 << 20;

#[test]
fn stdout_and_stderr_are_interleaved_in_order() {
    let Some(mut client) = client() else { return };
    let command = "for n in 1 2 3 4 5; do echo out$n; echo err$n >&2; done; printf end";
    let wanted = "out1\nerr1\nout2\nerr2\nout3\nerr3\nout4\nerr4\nout5\nerr5\nend";
    let result = client.shell(command);
    assert_eq!(result["output"], wanted);
    assert_eq!(result["bytes"], wanted.len());
    assert_eq!(result["omitted_bytes"], 0);
    assert!(result.get("full_output").is_none(), "{result}");
}

#[test]
fn stdin_is_empty() {
    let Some(mut client) = client() else { return };
    assert_eq!(
        client.output("cat; readlink /proc/self/fd/0"),
        "/dev/null\n"
    );
    assert_exited(&client.shell("read -r line"), 1);
    let program = "import sys; print(repr(sys.stdin.read()))";
    assert_eq!(client.output(&format!("python3 -c '{program}'")), "''\n");
}

#[test]
fn bytes_that_could_break_json_or_a_terminal_are_shown() {
    let Some(mut client) = client() else { return };
    let shown = |client: &mut Client, printf: &str| {
        let result = client.shell(&format!("printf '{printf}'"));
        (
            text(&result["output"]).to_owned(),
            result["invalid_bytes"].as_u64().unwrap(),
        )
    };
    let mut check = |printf: &str, wanted: &str, invalid: u64| {
        assert_eq!(
            shown(&mut client, printf),
            (wanted.to_owned(), invalid),
            "{printf}"
        );
    };
    check(r"a\0b", r"a\x00b", 0);
    check(
        r"\033[31mred\033[0m\a\b\177",
        r"\x1b[31mred\x1b[0m\x07\x08\x7f",
        0,
    );
    check(r"50\r\n60\r70\n", "50\n60\\r70\n", 0);
    check(r"\302\233c", r"\x9bc", 0);
    check(r"\342\200\256evil", r"\u{202e}evil", 0);
    check(r"\377\376ok\303\n", "\u{fffd}\u{fffd}ok\u{fffd}\n", 3);
    check(r#"\042\134\t\303\251"#, "\"\\\té", 0);
    check(r"\355\240\200", "\u{fffd}\u{fffd}\u{fffd}", 3);
    assert_next_command_works(&mut client);
}

#[test]
fn random_bytes_are_told_safely_and_saved_exactly() {
    let Some(mut client) = client() else { return };
    let result = client.shell("head -c 300000 /dev/urandom | tee random");
    assert_exited(&result, 0);
    assert_eq!(result["bytes"], 300_000);
    assert!(result["invalid_bytes"].as_u64().unwrap() > 0, "{result}");
    assert_within_limits(&result);
    assert!(!text(&result["output"]).contains(|c: char| c.is_control() && c != '\n' && c != '\t'));
    let saved = text(&result["full_output"]);
    client.output(&format!("cmp random {saved}"));
}

#[test]
fn many_lines_keep_head_and_tail() {
    let Some(mut client) = client() else { return };
    let result = client.shell("seq 100000");
    let output = text(&result["output"]);
    assert!(output.starts_with("1\n2\n3\n"), "{result}");
    assert!(output.ends_with("\n99999\n100000\n"), "{result}");
    assert_eq!(result["bytes"], 588_895);
    assert_within_limits(&result);
    assert_adds_up(&result);
    let saved = text(&result["full_output"]);
    client.output(&format!("seq 100000 | cmp - {saved}"));

    // Below both limits nothing is left out.
    let result = client.shell("seq 1400");
    assert_eq!(result["omitted_bytes"], 0, "{result}");
    // Few bytes, but too many lines.
    let result = client.shell("yes | head -n 3000");
    assert_within_limits(&result);
    assert_adds_up(&result);
}

#[test]
fn a_line_of_a_megabyte_keeps_both_ends() {
    let Some(mut client) = client() else { return };
    let result = client.shell("printf START; head -c 1000000 /dev/zero | tr '\\0' a; printf END");
    let output = text(&result["output"]);
    assert!(
        output.starts_with("STARTaaa") && output.ends_with("aaaEND"),
        "{result}"
    );
    assert_eq!(result["bytes"], 1_000_008);
    assert_within_limits(&result);
    assert_adds_up(&result);
    assert!(output.len() > MAX_TEXT / 2);
    assert_next_command_works(&mut client);
}

fn assert_within_limits(result: &Value) {
    let output = text(&result["output"]);
    assert!(output.len() <= MAX_TEXT + 100, "{} bytes", output.len());
    assert!(
        output.lines().count() <= MAX_LINES + 2,
        "{} lines",
        output.lines().count()
    );
    assert!(result["omitted_bytes"].as_u64().unwrap() > 0, "{result}");
}

/// What is shown and what is left out are the whole; for plain text only.
fn assert_adds_up(result: &Value) {
    let omitted = result["omitted_bytes"].as_u64().unwrap();
    let output = text(&result["output"]);
    let marker = format!("[… {omitted} bytes left out …]\n");
    assert_eq!(output.matches(&marker).count(), 1, "{result}");
    let shown = output.replacen(&marker, "", 1).len() as u64;
    let total = result["bytes"].as_u64().unwrap();
    // The line that stands for the gap may begin with a newline of its own.
    assert!(
        shown + omitted == total || shown + omitted == total + 1,
        "{shown} + {omitted} of {total}"
    );
}

#[test]
fn saved_output_is_read_only_inside() {
    let Some(mut client) = client() else { return };
    let result = client.shell("seq 20000");
    let saved = text(&result["full_output"]).to_owned();
    assert!(saved.starts_with("/run/umwelt/output/"), "{saved}");
    for attempt in [
        "echo x >FILE",
        "echo x >>FILE",
        "rm -f FILE",
        "mv FILE /tmp/x",
        "chmod 777 FILE",
        "truncate -s 0 FILE",
        "ln FILE /run/umwelt/output/y",
        "touch /run/umwelt/output/x",
        "mkdir /run/umwelt/output/x",
        "python3 -c 'open(\"FILE\", \"r+\")'",
    ] {
        let result = client.shell(&attempt.replace("FILE", &saved));
        assert_ne!(result["code"], 0, "{attempt}: {result}");
        let output = text(&result["output"]);
        assert!(
            output.contains("Read-only file system"),
            "{attempt}: {result}"
        );
    }
    client.output(&format!("seq 20000 | cmp - {saved}"));
}

/// A streamed command, and what its events have told: text, and bytes skipped.
struct Streamed {
    client: Client,
    id: u64,
    seen: String,
    skipped: u64,
}

impl Streamed {
    fn start(mut client: Client, command: &str) -> Streamed {
        let id = client.send("shell", json!({"command": command, "stream": true}));
        Streamed {
            client,
            id,
            seen: String::new(),
            skipped: 0,
        }
    }

    /// Takes in events until so many bytes were told or skipped. What the command
    /// prints last is told in its result only.
    fn read(&mut self, bytes: u64) {
        while self.seen.len() as u64 + self.skipped < bytes {
            let message = self.client.receive().unwrap();
            assert_eq!(message["id"], self.id);
            let event = &message["event"]["output"];
            assert!(event.is_object(), "{bytes} bytes are not told: {message}");
            self.seen.push_str(text(&event["text"]));
            self.skipped += event["skipped"].as_u64().unwrap();
        }
    }

    fn result(mut self) -> Value {
        self.client.answer(self.id).unwrap()
    }
}

#[test]
fn output_is_told_while_the_command_runs() {
    let Some(sandbox) = shared() else { return };
    let wait = |name: &str| format!("until [ -e {name} ]; do sleep 0.1; done");
    let command = format!(
        "echo first; {}; echo second; {}",
        wait("told-first"),
        wait("told-second")
    );
    let mut streamed = Streamed::start(sandbox.client(), &command);
    let mut wanted = String::new();
    for word in ["first", "second"] {
        wanted.push_str(&format!("{word}\n"));
        streamed.read(wanted.len() as u64);
        assert_eq!((streamed.seen.as_str(), streamed.skipped), (&*wanted, 0));
        std::fs::write(sandbox.workspace().join(format!("told-{word}")), "").unwrap();
    }
    assert_eq!(streamed.result()["output"], "first\nsecond\n");
}

#[test]
fn streamed_pieces_and_what_was_skipped_are_the_whole() {
    const TOTAL: u64 = 1_288_895;
    let Some(sandbox) = shared() else { return };
    let command = "seq 200000; until [ -e told-all ]; do sleep 0.1; done";
    let mut streamed = Streamed::start(sandbox.client(), command);
    streamed.read(TOTAL);
    assert_eq!(streamed.seen.len() as u64 + streamed.skipped, TOTAL);
    assert!(streamed.skipped > 0 && streamed.seen.starts_with("1\n2\n"));
    std::fs::write(sandbox.workspace().join("told-all"), "").unwrap();
    assert_eq!(streamed.result()["bytes"], TOTAL);
}

#[test]
fn two_gigabytes_are_printed_in_bounded_memory() {
    const TOTAL: u64 = 2 << 30;
    const LIMIT_S: u64 = 900;
    let long = format!("\nmax_timeout_s = {LIMIT_S}");
    let Some(mut sandbox) = Sandbox::start(Options {
        config: CONFIG.replace("\nmax_timeout_s = 300", &long),
        ..Options::default()
    }) else {
        return;
    };
    let mut client = sandbox.client();
    client.patience = Duration::from_secs(LIMIT_S);
    client.output("echo warm");
    let before = host::resident_kib(sandbox.pid);
    let command = format!("echo HEAD; head -c {TOTAL} /dev/zero; echo; echo TAIL");
    let result = client.shell_with(json!({"command": command, "timeout_s": LIMIT_S}));
    assert_exited(&result, 0);
    assert_eq!(result["bytes"], TOTAL + 11);
    let output = text(&result["output"]);
    assert!(output.starts_with("HEAD\n") && output.ends_with("\nTAIL\n"));
    assert_within_limits(&result);
    let peak = host::peak_kib(sandbox.pid);
    assert!(
        peak < before + (8 << 10),
        "{before} KiB before, at most {peak}"
    );

    let saved = text(&result["full_output"]);
    assert!(
        notices(&result).contains(&format!("only the first {MAX_SAVED} bytes")),
        "{result}"
    );
    assert_eq!(
        client.output(&format!("stat -c %s {saved}")),
        format!("{MAX_SAVED}\n")
    );
    let zeros = MAX_SAVED - 5;
    client.output(&format!(
        "(echo HEAD; head -c {zeros} /dev/zero) | cmp - {saved}"
    ));
    let name = saved.rsplit('/').next().unwrap();
    let outside = sandbox.place.state().join("output").join(name);
    assert_eq!(outside.metadata().unwrap().len(), MAX_SAVED);
    assert!(sandbox.end());
    assert!(!outside.exists());
    sandbox.place.assert_nothing_left();
}
