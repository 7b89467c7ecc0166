//! `exec` on pipes, and `terminal`.

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::Receiver;

use rustix::event::{PollFd, PollFlags, Timespec};
use serde_json::{Value, json};

use crate::podman_common::{Client, PATIENCE, host, wait_for};
use crate::{assert_exited, assert_next_command_works, client, marker, shared, text};

/// Our ends of a command's pipes.
struct Ends {
    stdin: PipeWriter,
    stdout: PipeReader,
    stderr: PipeReader,
}

pub(crate) struct Run {
    pub(crate) result: Value,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

fn start_exec(client: &mut Client, params: Value) -> (u64, Ends) {
    let (theirs_in, stdin) = std::io::pipe().unwrap();
    let (stdout, theirs_out) = std::io::pipe().unwrap();
    let (stderr, theirs_err) = std::io::pipe().unwrap();
    let fds = [theirs_in.as_fd(), theirs_out.as_fd(), theirs_err.as_fd()];
    let id = client.send_with_fds("exec", params, &fds);
    let ends = Ends {
        stdin,
        stdout,
        stderr,
    };
    (id, ends)
}

impl Ends {
    /// Writes all of `input` and reads all of the rest, within a limit.
    fn talk(self, input: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let Ends {
            mut stdin,
            stdout,
            stderr,
        } = self;
        let (stdout, stderr) = (read_all(stdout), read_all(stderr));
        let input = input.to_owned();
        // A program may end without reading it all.
        std::thread::spawn(move || drop(stdin.write_all(&input)));
        let stdout = stdout.recv_timeout(PATIENCE).expect("the end of stdout");
        let stderr = stderr.recv_timeout(PATIENCE).expect("the end of stderr");
        (stdout, stderr)
    }
}

fn read_all(mut pipe: PipeReader) -> Receiver<Vec<u8>> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        drop(sender.send(bytes));
    });
    receiver
}

/// Runs a program on pipes to its end.
pub(crate) fn exec(client: &mut Client, argv: &[&str], input: &[u8]) -> Run {
    let (id, ends) = start_exec(client, json!({"argv": argv}));
    let (stdout, stderr) = ends.talk(input);
    let result = client.answer(id).unwrap();
    Run {
        result,
        stdout,
        stderr,
    }
}

#[test]
fn exec_is_binary_exact_in_both_directions() {
    let Some(mut client) = client() else { return };
    let mut bytes = vec![0; 1 << 20];
    File::open("/dev/urandom")
        .unwrap()
        .read_exact(&mut bytes)
        .unwrap();
    let run = exec(&mut client, &["cat"], &bytes);
    assert_exited(&run.result, 0);
    assert!(run.stdout == bytes && run.stderr.is_empty());
    let run = exec(&mut client, &["sh", "-c", "cat >&2; exit 7"], &bytes);
    assert_exited(&run.result, 7);
    assert!(run.stderr == bytes && run.stdout.is_empty());
    assert!(run.result["duration_ms"].is_u64());
    let run = exec(&mut client, &["sh", "-c", "kill -9 $$"], b"");
    assert_eq!(run.result["ended"], "signaled");
}

#[test]
fn exec_takes_words_as_they_are_and_a_directory() {
    let Some(mut client) = client() else { return };
    let words = ["printf", "[%s]", "a b", "", "$HOME", "'\"\\", "-x", "ü\n*"];
    let run = exec(&mut client, &words, b"");
    assert_eq!(
        String::from_utf8(run.stdout).unwrap(),
        "[a b][][$HOME]['\"\\][-x][ü\n*]"
    );
    let (id, ends) = start_exec(&mut client, json!({"argv": ["pwd"], "cwd": "/tmp"}));
    assert_eq!(ends.talk(b"").0, b"/tmp\n");
    client.answer(id).unwrap();
    // A program of the workspace is found by its path only.
    client.output("printf '#!/bin/sh\\necho mine\\n' >mine && chmod +x mine");
    assert_eq!(exec(&mut client, &["./mine"], b"").stdout, b"mine\n");
    let (id, ends) = start_exec(&mut client, json!({"argv": ["mine"]}));
    ends.talk(b"");
    assert_eq!(client.answer(id).unwrap_err()["kind"], "cannot_run");
}

#[test]
fn exec_that_cannot_start_says_why_and_closes_its_pipes() {
    let Some(mut client) = client() else { return };
    let many: Vec<String> = vec!["word".to_owned(); 5000];
    for (params, kind, named) in [
        (json!({"argv": ["/no/such"]}), "cannot_run", "/no/such"),
        (json!({"argv": ["/etc/passwd"]}), "cannot_run", "denied"),
        (
            json!({"argv": ["pwd"], "cwd": "/nowhere"}),
            "cannot_run",
            "/nowhere",
        ),
        (json!({"argv": []}), "bad_request", "no program"),
        (json!({"argv": [""]}), "bad_request", "no program"),
        (json!({"argv": ["a\0b"]}), "bad_request", "NUL"),
        (json!({"argv": many}), "bad_request", "longer"),
    ] {
        let (id, ends) = start_exec(&mut client, params);
        let error = client.answer(id).unwrap_err();
        assert_eq!(error["kind"], kind, "{error}");
        assert!(text(&error["message"]).contains(named), "{error}");
        assert_eq!(ends.talk(b""), (vec![], vec![]));
    }
    assert_eq!(exec(&mut client, &["echo", "next"], b"").stdout, b"next\n");
}

#[test]
fn descriptors_that_are_not_pipes_are_refused() {
    let Some(mut client) = client() else { return };
    let file = tempfile::tempfile().unwrap();
    let null = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .unwrap();
    let directory = File::open("/").unwrap();
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let good: [BorrowedFd<'_>; 3] = [reader.as_fd(), writer.as_fd(), writer.as_fd()];
    let bad = [
        file.as_fd(),
        null.as_fd(),
        directory.as_fd(),
        socket.as_fd(),
    ];
    for fd in bad {
        for position in 0..3 {
            let mut fds = good;
            fds[position] = fd;
            let id = client.send_with_fds("exec", json!({"argv": ["true"]}), &fds);
            let error = client.answer(id).unwrap_err();
            assert_eq!(error["kind"], "bad_request");
            assert!(text(&error["message"]).contains("must be pipes"), "{error}");
        }
    }
    let error = client.call("exec", json!({"argv": ["true"]})).unwrap_err();
    assert!(text(&error["message"]).contains("three pipes"), "{error}");
    assert_next_command_works(&mut client);
}

#[test]
fn descriptors_of_a_refused_exec_are_not_given_to_the_next() {
    let Some(mut client) = client() else { return };
    let (reader, writer) = std::io::pipe().unwrap();
    for fds in [&[reader.as_fd()][..], &[reader.as_fd(), writer.as_fd()]] {
        let id = client.send_with_fds("exec", json!({"argv": ["true"]}), fds);
        assert_eq!(client.answer(id).unwrap_err()["kind"], "bad_request");
        let run = exec(&mut client, &["cat"], b"mine");
        assert_eq!(run.stdout, b"mine");
    }
    // Nor are those of a request that has no use for them.
    let id = client.send_with_fds("ping", json!({}), &[reader.as_fd(), writer.as_fd()]);
    client.answer(id).unwrap();
    assert_eq!(exec(&mut client, &["cat"], b"mine").stdout, b"mine");
    let id = client.send_with_fds("status", json!({}), &[reader.as_fd()]);
    assert!(client.answer(id).is_ok());
    assert_eq!(exec(&mut client, &["cat"], b"mine").stdout, b"mine");
}

#[test]
fn many_execs_can_be_sent_at_once() {
    let Some(mut client) = client() else { return };
    let started: Vec<(u64, Ends)> = (0..10)
        .map(|_| start_exec(&mut client, json!({"argv": ["cat"]})))
        .collect();
    for (number, (id, ends)) in started.into_iter().enumerate() {
        let input = format!("for {number}");
        assert_eq!(ends.talk(input.as_bytes()).0, input.as_bytes());
        assert_exited(&client.answer(id).unwrap(), 0);
    }
}

#[test]
fn exec_ends_with_its_client_and_can_be_cancelled() {
    let Some(sandbox) = shared() else { return };
    let marker = marker();
    let running = || !host::processes_with(&format!("sleep {marker}")).is_empty();
    let mut client = sandbox.client();
    let params = json!({"argv": ["sh", "-c", format!("sleep {marker}; true")]});
    let (id, _ends) = start_exec(&mut client, params.clone());
    wait_for("the command", PATIENCE, || running().then_some(()));
    client.call("cancel", json!({"request": id})).unwrap();
    assert_eq!(client.answer(id).unwrap()["ended"], "cancelled");
    assert!(!running());
    let (_, _ends) = start_exec(&mut client, params);
    wait_for("the command", PATIENCE, || running().then_some(()));
    drop(client);
    wait_for("its end", PATIENCE, || (!running()).then_some(()));
}

/// A terminal inside, seen from its master.
struct Terminal {
    master: File,
    seen: String,
}

impl Terminal {
    fn open(client: &mut Client, params: Value) -> (u64, Terminal) {
        let id = client.send("terminal", params);
        let event = client
            .receive_where("the terminal", |message| message["id"] == id)
            .unwrap();
        assert_eq!(event, json!({"id": id, "event": "terminal"}));
        let master: OwnedFd = client.fds.pop_front().expect("a descriptor");
        let terminal = Terminal {
            master: master.into(),
            seen: String::new(),
        };
        (id, terminal)
    }

    fn write(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).unwrap();
    }

    /// Reads until `wanted` is to be seen.
    fn expect(&mut self, wanted: &str) {
        wait_for(wanted, PATIENCE, || {
            self.read_some();
            self.seen.contains(wanted).then_some(())
        });
    }

    fn read_some(&mut self) {
        let mut poll = [PollFd::new(&self.master, PollFlags::IN)];
        let wait = Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        if rustix::event::poll(&mut poll, Some(&wait)).unwrap() == 0 {
            return;
        }
        let mut buffer = [0; 4096];
        // EIO once the last process has closed the other side.
        if let Ok(count) = self.master.read(&mut buffer) {
            self.seen
                .push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    }
}

fn terminal(argv: &[&str]) -> Value {
    json!({"argv": argv, "rows": 33, "cols": 99, "term": "xterm-256color"})
}

#[test]
fn terminal_has_a_name_a_size_and_a_type() {
    let Some(mut client) = client() else { return };
    let program = "tty; stty size; echo TERM=$TERM; pwd; env | grep -c canary; exit 4";
    let (id, mut terminal) = Terminal::open(&mut client, terminal(&["bash", "-c", program]));
    terminal.expect("TERM=xterm-256color");
    assert_exited(&client.answer(id).unwrap(), 4);
    terminal.read_some();
    assert!(
        terminal.seen.starts_with("/dev/pts/"),
        "{:?}",
        terminal.seen
    );
    assert!(terminal.seen.contains("33 99"), "{:?}", terminal.seen);
}

#[test]
fn interrupt_key_ends_what_runs_in_the_foreground() {
    let Some(mut client) = client() else { return };
    let marker = marker();
    let program = format!("echo ready; exec sleep {marker}");
    let (id, mut open) = Terminal::open(&mut client, terminal(&["bash", "-c", &program]));
    open.expect("ready");
    open.write("\x03");
    let result = client.answer(id).unwrap();
    assert_eq!(
        (&result["ended"], &result["signal"]),
        (&json!("signaled"), &json!(2)),
        "{result}"
    );
    assert!(host::processes_with(&format!("sleep {marker}")).is_empty());
}

#[test]
fn interactive_shell_has_job_control_and_survives_the_interrupt_key() {
    let Some(mut client) = client() else { return };
    let marker = marker();
    let (id, mut open) = Terminal::open(&mut client, terminal(&[]));
    open.write("echo is-$((40 + 2))\n");
    open.expect("is-42");
    assert!(!open.seen.contains("no job control"), "{:?}", open.seen);
    open.write(&format!("sleep {marker}\n"));
    let running = || !host::processes_with(&format!("sleep {marker}")).is_empty();
    wait_for("the command", PATIENCE, || running().then_some(()));
    open.write("\x03");
    open.write("echo then-$((50 + 1))\n");
    open.expect("then-51");
    assert!(!running());
    rustix::termios::tcsetwinsize(
        &open.master,
        rustix::termios::Winsize {
            ws_row: 10,
            ws_col: 20,
            ws_xpixel: 0,
            ws_ypixel: 0,
        },
    )
    .unwrap();
    open.write("stty size\n");
    open.expect("10 20");
    open.write("exit 5\n");
    assert_exited(&client.answer(id).unwrap(), 5);
}

#[test]
fn terminal_that_makes_no_sense_is_refused() {
    let Some(mut client) = client() else { return };
    for (key, value) in [
        ("term", json!("")),
        ("term", json!("a b")),
        ("term", json!("x\n")),
        ("term", json!("x".repeat(65))),
        ("rows", json!(-1)),
        ("cols", json!(70_000)),
        ("argv", json!([""])),
    ] {
        let mut params = terminal(&["true"]);
        params[key] = value;
        let error = client.call("terminal", params).unwrap_err();
        assert_eq!(error["kind"], "bad_request", "{error}");
    }
    let mut params = terminal(&["stty", "size"]);
    (params["rows"], params["cols"]) = (json!(0), json!(65535));
    let (id, mut open) = Terminal::open(&mut client, params);
    open.expect("1 1000");
    assert_exited(&client.answer(id).unwrap(), 0);
}

#[test]
fn terminal_hangs_up_when_its_client_leaves() {
    let Some(sandbox) = shared() else { return };
    let marker = marker();
    let program = format!("trap '' HUP TERM; sleep {marker}; true");
    let mut client = sandbox.client();
    let (_, terminal) = Terminal::open(&mut client, terminal(&["bash", "-c", &program]));
    let running = || !host::processes_with(&format!("sleep {marker}")).is_empty();
    wait_for("the command", PATIENCE, || running().then_some(()));
    drop(client);
    drop(terminal);
    wait_for("its end", PATIENCE, || (!running()).then_some(()));
}
