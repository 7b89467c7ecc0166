//! exec: bytes, exit codes, signals.

use std::io::{Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::home::{Home, eventually, finish, signal};

/// How long the first signal waits for the control plane.
const CANCEL_WAIT: Duration = Duration::from_secs(10);

/// Bytes without a pattern that a mistake could match.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(&mut next)
        .flatten()
        .take(len)
        .collect()
}

#[test]
fn bytes_pass_exactly_and_end_of_input_too() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    let bytes = noise((1 << 20) + 17);
    std::fs::write(home.path("in"), &bytes).unwrap();
    // From a file to a file, and through pipes.
    let mut ctl = home.ctl(&["exec", &home.workspace, "--", "cat"]);
    ctl.stdin(std::fs::File::open(home.path("in")).unwrap())
        .stdout(std::fs::File::create(home.path("out")).unwrap());
    assert_eq!(finish(ctl.spawn().unwrap()).code, Some(0));
    assert!(std::fs::read(home.path("out")).unwrap() == bytes);

    let mut ctl = home.ctl(&["exec", &home.workspace, "--", "cat"]);
    let mut child = ctl.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let sent = bytes.clone();
    std::thread::spawn(move || stdin.write_all(&sent));
    let ran = finish(child);
    assert!(ran.stdout == bytes);
    assert_eq!(ran.code, Some(0));
}

#[test]
fn exit_codes_and_signals_are_passed_on() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    for (script, code) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -9 $$", 137),
        ("kill -15 $$", 143),
    ] {
        let ran = home.run(&["exec", &home.workspace, "--", "sh", "-c", script]);
        assert_eq!(ran.code, Some(code), "{script}: {ran:?}");
        assert_eq!(ran.stderr, "");
    }
}

#[test]
fn output_and_errors_stay_apart() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    let script = "echo out; echo err >&2; printf '\\033[31m\\0\\377'";
    let ran = home.run(&["exec", &home.workspace, "--", "sh", "-c", script]);
    assert_eq!(ran.stdout, b"out\n\x1b[31m\0\xff");
    assert_eq!(ran.stderr, "err\n");
}

#[test]
fn words_and_directory_arrive_as_given() {
    let home = Home::new();
    let control_plane = home.control_plane();
    std::fs::create_dir(home.path("ws/sub")).unwrap();
    let words = ["printf", "[%s]", "a b", "", "--help", "--", "$HOME\n*"];
    let ran = home.run(&[&["exec", &home.workspace, "--"], &words[..]].concat());
    assert_eq!(ran.text(), "[a b][][--help][--][$HOME\n*]");
    let ran = home.run(&["exec", "--cwd", "sub", &home.workspace, "--", "pwd"]);
    assert_eq!(ran.text(), format!("{}/sub\n", home.workspace));
    let first = &control_plane.requests("exec")[0];
    assert_eq!(first["params"], json!({"argv": words}));
    assert_eq!(control_plane.requests("hello")[0]["params"]["holds"], true);
}

#[test]
fn our_own_descriptors_stay_outside() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    std::fs::write(home.path("secret"), "not for the sandbox").unwrap();
    let script = "for n in 0 1 2; do readlink /proc/self/fd/$n; done";
    let mut ctl = home.ctl(&["exec", &home.workspace, "--", "sh", "-c", script]);
    ctl.stdin(std::fs::File::open(home.path("secret")).unwrap())
        .stdout(std::fs::File::create(home.path("out")).unwrap())
        .stderr(std::fs::File::create(home.path("err")).unwrap());
    assert_eq!(finish(ctl.spawn().unwrap()).code, Some(0));
    // readlink's own stdout is the same pipe in all three lines.
    let links = std::fs::read_to_string(home.path("out")).unwrap();
    assert_eq!(
        links
            .lines()
            .filter(|link| link.starts_with("pipe:["))
            .count(),
        3
    );
}

#[test]
fn a_reader_that_leaves_ends_the_command_with_sigpipe() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    let mut child = home
        .ctl(&["exec", &home.workspace, "--", "yes"])
        .spawn()
        .unwrap();
    let mut line = [0; 2];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut line).unwrap();
    drop(stdout);
    let ran = finish(child);
    assert_eq!(ran.code, Some(141), "{ran:?}");
    assert_eq!(ran.stderr, "");
}

#[test]
fn a_command_that_does_not_read_ends_nothing() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    let mut ctl = home.ctl(&[
        "exec",
        &home.workspace,
        "--",
        "sh",
        "-c",
        "exec <&-; echo ok",
    ]);
    ctl.stdin(std::fs::File::open("/dev/zero").unwrap());
    let ran = finish(ctl.spawn().unwrap());
    assert_eq!((ran.code, ran.text()), (Some(0), "ok\n"));
}

#[test]
fn a_full_disk_is_an_error() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    let mut ctl = home.ctl(&["exec", &home.workspace, "--", "echo", "x"]);
    ctl.stdout(
        std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap(),
    );
    let ran = finish(ctl.spawn().unwrap());
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("cannot write to standard output"),
        "{ran:?}"
    );
}

#[test]
fn a_child_in_the_background_does_not_hold_us() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    // As long as nobody waits for a test.
    for script in [
        "echo hi; sleep 150 &",
        "echo hi; yes & sleep 0.1; kill -9 $$",
    ] {
        let ran = home.run(&["exec", &home.workspace, "--", "sh", "-c", script]);
        assert!(ran.stdout.starts_with(b"hi\n"));
    }
}

#[test]
fn an_end_without_children_is_not_waited_for() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    // The best of some, because the machine may be busy.
    let least = |script: &str| {
        let took = (0..5).map(|_| {
            let begin = Instant::now();
            home.run(&["exec", &home.workspace, "--", "sh", "-c", script]);
            begin.elapsed()
        });
        took.min().unwrap()
    };
    // Where there is one, it is waited for 200 ms.
    let (without, with) = (least("true"), least("sleep 2 & true"));
    assert!(without + Duration::from_millis(100) < with);
}

#[test]
fn a_slow_reader_gets_everything_after_the_command_has_ended() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    let script = "head -c 900000 /dev/zero";
    let args = ["exec", &home.workspace, "--", "sh", "-c", script];
    let mut child = home.ctl(&args).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let mut bytes = Vec::new();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len(), 900_000);
    assert_eq!(finish(child).code, Some(0));
}

#[test]
fn a_reader_that_does_not_read_stalls_neither_errors_nor_signals() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    let script = "yes & head -c 500000 /dev/zero >&2; echo >&2; sleep 60";
    let args = ["exec", &home.workspace, "--", "sh", "-c", script];
    let mut child = home.ctl(&args).spawn().unwrap();
    let mut errors = vec![0; 500_001];
    let mut stderr = child.stderr.take().unwrap();
    stderr.read_exact(&mut errors).unwrap();
    signal(&child, Signal::INT);
    // Nobody reads stdout: not even that may keep it from ending.
    std::thread::sleep(Duration::from_millis(500));
    signal(&child, Signal::INT);
    let begin = Instant::now();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(begin.elapsed() < CANCEL_WAIT);
}

/// Until the command has said so.
fn runs(home: &Home) {
    let mark = std::path::Path::new(&home.workspace).join("running");
    eventually("the command runs", || mark.exists());
}

#[test]
fn signals_cancel_the_command() {
    for (number, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let home = Home::new();
        let control_plane = home.control_plane();
        let script = "trap 'echo bye; exit 3' TERM; echo $$; : >\"$0/running\"; sleep 60 & wait";
        let folder = &home.workspace;
        let args = ["exec", folder, "--", "sh", "-c", script, folder];
        let child = home.ctl(&args).spawn().unwrap();
        runs(&home);
        signal(&child, number);
        let ran = finish(child);
        assert_eq!(ran.code, Some(code), "{ran:?}");
        let cancel = &control_plane.requests("cancel")[0]["params"];
        assert_eq!(cancel["request"], control_plane.requests("exec")[0]["id"]);
        let (pid, rest) = ran.text().split_once('\n').unwrap();
        assert_eq!(rest, "bye\n");
        let gone = || !std::path::Path::new(&format!("/proc/{pid}")).exists();
        eventually("the command is gone", gone);
    }
}

#[test]
fn a_second_signal_does_not_wait_for_the_control_plane() {
    let home = Home::new();
    let control_plane = home.control_plane_with(|_, request| {
        request["method"] == "exec" || request["method"] == "cancel"
    });
    let args = ["exec", &home.workspace, "--", "true"];
    let child = home.ctl(&args).spawn().unwrap();
    eventually("exec is asked for", || {
        !control_plane.requests("exec").is_empty()
    });
    signal(&child, Signal::INT);
    eventually("cancel is asked for", || {
        !control_plane.requests("cancel").is_empty()
    });
    let begin = Instant::now();
    signal(&child, Signal::INT);
    assert_eq!(finish(child).code, Some(130));
    assert!(begin.elapsed() < CANCEL_WAIT);
}

#[test]
fn nohup_is_respected() {
    let home = Home::new();
    let control_plane = home.control_plane();
    let script = "trap '' HUP; exec -a umwelt-ctl \"$0\" \"$@\"";
    let mut command = std::process::Command::new("bash");
    let args = ["exec", &home.workspace, "--", "sleep", "1"];
    command
        .args(["-c", script, env!("CARGO_BIN_EXE_umwelt")])
        .args(args);
    for (name, value) in home.ctl(&[]).get_envs() {
        command.env(name, value.unwrap());
    }
    let child = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("exec is asked for", || {
        !control_plane.requests("exec").is_empty()
    });
    signal(&child, Signal::HUP);
    assert_eq!(finish(child).code, Some(0));
}

#[test]
fn the_death_of_the_control_plane_is_told() {
    let home = Home::new();
    let control_plane = home.control_plane();
    let args = [
        "exec",
        &home.workspace,
        "--",
        "sh",
        "-c",
        "echo before; : >\"$0/running\"; sleep 60",
        &home.workspace,
    ];
    let child = home.ctl(&args).spawn().unwrap();
    runs(&home);
    control_plane.break_connections();
    let ran = finish(child);
    assert_eq!((ran.code, ran.text()), (Some(1), "before\n"));
    assert!(ran.stderr.contains("closed the connection"), "{ran:?}");
}

#[test]
fn answers_that_are_none_end_in_an_error() {
    let long = [vec![b'x'; 5 << 20], b"\n".to_vec()].concat();
    for (bytes, problem) in [
        (&b"\x1b[2Jgarbage\n"[..], "cannot read an answer"),
        (b"{\"id\":2,\"result\":{}}\n", "cannot read an answer"),
        (b"{\"id\":2,\"result\":{\"ended\":\"exited\"}}\n", "cannot read an answer"),
        (&long, "a line of more than"),
        (
            b"{\"id\":null,\"error\":{\"kind\":\"bad_request\",\"message\":\"no\\u001b[2J\"}}\n",
            "no\\x1b[2J",
        ),
        (
            b"{\"id\":2,\"error\":{\"kind\":\"cannot_run\",\"message\":\"x\",\"hint\":\"a\\nb\"}}\n",
            "x\nhint: a\nhint: b\n",
        ),
        (
            b"{\"id\":2,\"result\":{\"ended\":\"lost\",\"reason\":\"r\\n\",\"duration_ms\":1}}\n",
            "the command was lost: r\\n",
        ),
    ] {
        let home = Home::new();
        let bytes = bytes.to_vec();
        let _control_plane = home.control_plane_with(move |connection, request| {
            let is_exec = request["method"] == "exec";
            if is_exec {
                connection.raw(&bytes, &[]);
            }
            is_exec
        });
        let ran = home.run(&["exec", &home.workspace, "--", "true"]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains(problem), "{problem}: {}", ran.stderr);
        assert!(!ran.stderr.contains('\x1b'), "{}", ran.stderr);
    }
}

#[test]
fn a_program_that_is_not_there_is_an_error() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    let ran = home.run(&["exec", &home.workspace, "--", "no-such-program"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("no-such-program"), "{ran:?}");
}

#[test]
fn a_session_id_finds_what_runs_and_starts_nothing() {
    let home = Home::new();
    let ran = home.run(&["exec", &home.sid, "--", "echo", "hi"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("no sandbox is running for"), "{ran:?}");
    let _control_plane = home.control_plane();
    let ran = home.run(&["exec", &home.sid, "--", "echo", "hi"]);
    assert_eq!((ran.code, ran.text()), (Some(0), "hi\n"));
}

#[test]
fn the_current_directory_is_the_workspace_where_none_is_given() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    std::os::unix::fs::symlink(&home.workspace, home.path("link")).unwrap();
    let mut ctl = home.ctl(&["exec", "--", "echo", "hi"]);
    let ran = finish(ctl.current_dir(home.path("link")).spawn().unwrap());
    assert_eq!((ran.code, ran.text()), (Some(0), "hi\n"));
}
