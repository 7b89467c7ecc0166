//! The end, and the manners of a process that shares descriptors.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;

use crate::common::home::Home;
use crate::common::stand_in::{ControlPlane, exited, host_shell, wait_until};
use crate::driver::{Mcp, SILENCE, assert_within, echo, endless, text, wait, when_told};

#[test]
fn end_of_input_ends_it_at_once_when_nothing_runs() {
    assert_within(Duration::from_millis(1500), || {
        let (status, time) = Mcp::initialized(&Home::new()).close();
        assert!(status.success());
        time
    });
}

#[test]
fn call_that_ends_soon_after_the_input_is_answered() {
    assert_within(Duration::from_secs(2), || {
        let home = Home::new();
        let (go, handler) = when_told();
        let plane = ControlPlane::start(&home, handler);
        let mut mcp = Mcp::initialized(&home);
        mcp.shell(1, "x");
        plane.wait_for("shell");
        mcp.end_input();
        go.send(()).unwrap();
        let (status, time) = wait(&mut mcp.child);
        assert!(status.success());
        assert!(text(&mcp.result(1)).starts_with("done"));
        time
    });
}

#[test]
fn call_that_runs_on_after_the_input_is_cancelled() {
    assert_within(Duration::from_secs(4), || {
        let home = Home::new();
        let plane = ControlPlane::start(&home, endless);
        let mut mcp = Mcp::initialized(&home);
        mcp.shell(1, "x");
        plane.wait_for("shell");
        let (status, time) = mcp.close();
        assert!(status.success());
        assert!(mcp.refusal(1).contains("cancelled"));
        plane.wait_for("cancel");
        time
    });
}

#[test]
fn end_does_not_wait_for_a_client_that_does_not_read() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, |_, answer| {
        answer.result(&exited(0, &"x".repeat(1 << 20)));
    });
    assert_within(Duration::from_secs(5), || {
        let (input, mut writer) = std::io::pipe().unwrap();
        let (mut reader, output) = std::io::pipe().unwrap();
        let mut child = home
            .command("umwelt-mcp")
            .stdin(input)
            .stdout(output)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let params = json!({"name": "shell", "arguments": {"command": "x"}});
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        writeln!(writer, "{call}").unwrap();
        // It reads a little and stops: the pipe takes some bytes, but not many.
        reader.read_exact(&mut [0; 5000]).unwrap();
        drop(writer);
        let (status, time) = wait(&mut child);
        assert!(status.success());
        drop(reader);
        time
    });
}

#[test]
fn it_ends_when_nobody_reads_its_output_any_more() {
    let home = Home::new();
    let (input, mut writer) = std::io::pipe().unwrap();
    let (reader, output) = std::io::pipe().unwrap();
    let mut child = home
        .command("umwelt-mcp")
        .stdin(input)
        .stdout(output)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    writeln!(writer, r#"{{"jsonrpc":"2.0","id":1,"method":"ping"}}"#).unwrap();
    let mut answer = String::new();
    BufReader::new(reader).read_line(&mut answer).unwrap();
    // The reader is gone, stdin is open, nothing is to be written.
    let (status, _) = wait(&mut child);
    assert_eq!(status.signal(), None);
}

#[test]
fn sigterm_is_as_the_end_of_input() {
    assert_within(Duration::from_secs(2), || {
        let home = Home::new();
        let (go, handler) = when_told();
        let plane = ControlPlane::start(&home, handler);
        let mut mcp = Mcp::initialized(&home);
        mcp.shell(1, "x");
        plane.wait_for("shell");
        mcp.signal(rustix::process::Signal::TERM);
        // Until it is not pending any more.
        wait_until(|| mcp.status("ShdPnd") == 0);
        go.send(()).unwrap();
        let (status, time) = wait(&mut mcp.child);
        assert_eq!(status.code(), Some(0));
        assert!(text(&mcp.result(1)).starts_with("done"));
        time
    });
}

#[test]
fn input_may_be_a_file_or_nothing() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, echo);
    let path = home.path("input");
    let params = json!({"name": "shell", "arguments": {"command": "hi"}});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    // The last line has no LF: it is not a message.
    std::fs::write(&path, format!("{call}\n{call}")).unwrap();
    for (input, lines) in [(File::open(&path), 1), (File::open("/dev/null"), 0)] {
        let output = home
            .command("umwelt-mcp")
            .stdin(input.unwrap())
            .output()
            .unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.lines().count(), lines, "{text}");
        assert!(output.stderr.is_empty());
    }
}

#[test]
fn descriptors_that_the_client_shares_stay_blocking() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, echo);
    let (input, mut writer) = std::io::pipe().unwrap();
    let (mut reader, output) = std::io::pipe().unwrap();
    let ours: [OwnedFd; 2] = [
        input.try_clone().unwrap().into(),
        output.try_clone().unwrap().into(),
    ];
    let mut child = home
        .command("umwelt-mcp")
        .stdin(input)
        .stdout(output)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    writeln!(writer, r#"{{"jsonrpc":"2.0","id":1,"method":"ping"}}"#).unwrap();
    let mut byte = [0];
    reader.read_exact(&mut byte).unwrap();
    for fd in &ours {
        let flags = rustix::fs::fcntl_getfl(fd.as_fd()).unwrap();
        assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK));
    }
    drop(writer);
    wait(&mut child);
}

#[test]
fn idle_it_does_nothing_and_is_small() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, echo);
    let mut mcp = Mcp::initialized(&home);
    mcp.shell(1, "x");
    mcp.result(1);
    // What follows on an answer may come late on a busy machine.
    let is_idle = |_| {
        let switches = mcp.status("voluntary_ctxt_switches");
        std::thread::sleep(Duration::from_millis(500));
        mcp.status("voluntary_ctxt_switches") == switches
    };
    assert!((0..20).any(is_idle));
    // The text of a build without optimisation counts too.
    let limit = if cfg!(debug_assertions) {
        16 << 10
    } else {
        4 << 10
    };
    let rss = mcp.status("VmRSS");
    assert!(rss <= limit, "{rss} KiB");
}

#[test]
fn client_that_only_writes_is_not_buffered_without_end() {
    const COUNT: usize = 11_000;
    let home = Home::new();
    let (input, writer) = std::io::pipe().unwrap();
    let (reader, output) = std::io::pipe().unwrap();
    let mut child = home
        .command("umwelt-mcp")
        .stdin(input)
        .stdout(output)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let writing = std::thread::spawn(move || {
        let mut writer = std::io::BufWriter::new(writer);
        for id in 0..COUNT {
            writeln!(
                writer,
                r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/list"}}"#
            )
            .unwrap();
        }
    });
    // It stops reading long before the writer is done.
    let rss = || {
        let status = std::fs::read_to_string(format!("/proc/{}/statm", child.id())).unwrap();
        let pages: usize = status.split(' ').nth(1).unwrap().parse().unwrap();
        pages * 4096
    };
    wait_until(|| {
        let before = rss();
        std::thread::sleep(SILENCE);
        before > 32 << 20 && rss() == before
    });
    assert!(rss() < 64 << 20, "{}", rss());
    assert!(!writing.is_finished());
    let mut count = 0;
    for (line, id) in BufReader::new(reader).lines().zip(0..COUNT) {
        let start = format!(r#"{{"jsonrpc":"2.0","id":{id},"#);
        assert!(line.unwrap().starts_with(&start));
        count += 1;
    }
    writing.join().unwrap();
    assert_eq!(count, COUNT);
    assert!(wait(&mut child).0.success());
}

#[test]
fn real_commands_run_through_it_all() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, host_shell);
    let mut command = home.command("umwelt-mcp");
    let mut mcp = Mcp::spawn(&mut command);
    mcp.initialize("2025-11-25");
    mcp.shell(1, "echo out; echo err >&2; exit 7");
    let result = mcp.result(1);
    assert!(
        text(&result).starts_with("out\nerr\n[exit code 7,"),
        "{result}"
    );
    mcp.call(2, "shell", &json!({"command": "sleep 60", "timeout_s": 1}));
    assert!(text(&mcp.result(2)).contains("[timed out after 1 s"));
}

#[test]
fn help_and_version_go_to_stdout_and_mistakes_to_stderr() {
    let home = Home::new();
    for (arg, wanted) in [("--help", "--workspace DIR"), ("--version", "umwelt-mcp 0")] {
        let output = home.command("umwelt-mcp").arg(arg).output().unwrap();
        assert!(output.status.success());
        assert!(String::from_utf8_lossy(&output.stdout).contains(wanted));
    }
    let output = home.command("umwelt-mcp").arg("--dance").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("--dance"));
}
