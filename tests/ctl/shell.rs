//! shell, on terminals made for it.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::process::Signal;
use rustix::termios::{LocalModes, Winsize};
use serde_json::json;

use crate::control_plane::open_pty;
use crate::home::{Home, eventually, signal};
use crate::terminal::Session;

#[test]
fn a_session_runs_on_a_raw_terminal_and_passes_its_exit_code_on() {
    let home = Home::new();
    let control_plane = home.control_plane();
    let mut session = Session::start(&home, &["shell", &home.workspace]);
    session.wait_for("$ ");
    assert!(session.is_raw());
    session.type_keys("tty; echo a$((40 + 2))\r");
    session.wait_for("a42\r\n");
    assert!(session.shown().contains("/dev/pts/"));
    session.type_keys("exit 7\r");
    let ran = session.finish();
    assert_eq!(ran.code, Some(7), "{ran:?}");
    let asked = &control_plane.requests("terminal")[0]["params"];
    assert_eq!(
        *asked,
        json!({"argv": [], "rows": 24, "cols": 80, "term": "xterm-256color"})
    );
}

#[test]
fn a_command_can_take_the_place_of_the_shell() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    let args = ["shell", &home.workspace, "--", "sh", "-c", "echo x; exit 3"];
    let session = Session::start(&home, &args);
    session.wait_for("x\r\n");
    assert_eq!(session.finish().code, Some(3));
}

#[test]
fn exec_with_a_terminal_is_the_same() {
    let home = Home::new();
    let control_plane = home.control_plane();
    let command = ["--", "sh", "-c", "tty; exit 3"];
    for options in [&["-it"][..], &["-t"], &["--interactive", "--tty"]] {
        let args = [&["exec"], options, &[&home.workspace], &command].concat();
        let session = Session::start(&home, &args);
        session.wait_for("/dev/pts/");
        assert_eq!(session.finish().code, Some(3), "{options:?}");
    }
    assert_eq!(control_plane.requests("terminal").len(), 3);
    // Without one here there is none inside; -i alone asks for nothing.
    let ran = home.run(&["exec", "-it", &home.workspace, "--", "tty"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stderr.contains("standard input is not a terminal"),
        "{ran:?}"
    );
    let ran = home.run(&["exec", "-i", &home.workspace, "--", "echo", "x"]);
    assert_eq!((ran.code, ran.text()), (Some(0), "x\n"), "{ran:?}");
    assert_eq!(control_plane.requests("exec").len(), 1);
}

#[test]
fn an_end_right_after_the_start_is_noticed() {
    let home = Home::new();
    let _control_plane = home.control_plane_with(|connection, request| {
        let is_terminal = request["method"] == "terminal";
        if is_terminal {
            let (master, _slave) = open_pty(24, 80);
            let id = &request["id"];
            let ended = json!({"ended": "exited", "code": 5, "duration_ms": 0});
            let lines = format!(
                "{}\n{}\n",
                json!({"id": id, "event": "terminal"}),
                json!({"id": id, "result": ended})
            );
            connection.raw(lines.as_bytes(), &[master.as_fd()]);
        }
        is_terminal
    });
    let session = Session::start(&home, &["shell", &home.workspace]);
    assert_eq!(session.finish().code, Some(5));
}

#[test]
fn output_before_the_end_is_shown_whole() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    let script = "head -c 50000 /dev/zero | tr '\\0' x; echo end";
    let session = Session::start(&home, &["shell", &home.workspace, "--", "sh", "-c", script]);
    session.wait_for("end\r\n");
    assert_eq!(session.shown().matches('x').count(), 50_000);
    assert_eq!(session.finish().code, Some(0));
}

#[test]
fn the_interrupt_key_goes_to_the_program_inside() {
    let home = Home::new();
    let control_plane = home.control_plane();
    let mut session = Session::start(&home, &["shell", &home.workspace]);
    session.wait_for("$ ");
    session.type_keys("echo on; sleep 60\r");
    session.wait_for("on\r\n");
    std::thread::sleep(Duration::from_millis(300));
    session.type_keys("\x03");
    session.type_keys("echo c$((1 + 1))\r");
    session.wait_for("c2\r\n");
    assert!(control_plane.requests("cancel").is_empty());
    session.type_keys("exit\r");
    session.finish();
}

#[test]
fn a_new_size_arrives_inside() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    let script = "trap 'stty size' WINCH; stty size; while :; do sleep 0.1; done";
    let args = ["shell", &home.workspace, "--", "sh", "-c", script];
    let session = Session::start(&home, &args);
    session.wait_for("24 80\r\n");
    let size = Winsize {
        ws_row: 33,
        ws_col: 111,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(&session.master, size).unwrap();
    session.wait_for("33 111\r\n");
    signal(&session.child, Signal::TERM);
    assert_eq!(session.finish().code, Some(143));
}

#[test]
fn signals_end_the_program_and_put_the_terminal_back() {
    for (number, code) in [
        (Signal::TERM, 143),
        (Signal::HUP, 129),
        (Signal::INT, 130),
        (Signal::QUIT, 131),
    ] {
        let home = Home::new();
        let control_plane = home.control_plane();
        let args = [
            "shell",
            &home.workspace,
            "--",
            "sh",
            "-c",
            "echo on; sleep 60",
        ];
        let session = Session::start(&home, &args);
        session.wait_for("on\r\n");
        assert!(session.is_raw());
        signal(&session.child, number);
        assert_eq!(session.finish().code, Some(code));
        assert_eq!(control_plane.requests("cancel").len(), 1);
    }
}

#[test]
fn after_a_stop_the_terminal_is_raw_again() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    let mut session = Session::start(&home, &["shell", &home.workspace]);
    session.wait_for("$ ");
    signal(&session.child, Signal::STOP);
    let mut modes = rustix::termios::tcgetattr(&session.terminal).unwrap();
    modes.local_modes |= LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
    let now = rustix::termios::OptionalActions::Now;
    rustix::termios::tcsetattr(&session.terminal, now, &modes).unwrap();
    signal(&session.child, Signal::CONT);
    eventually("the terminal is raw again", || session.is_raw());
    session.type_keys("exit\r");
    assert_eq!(session.finish().code, Some(0));
}

#[test]
fn the_death_of_the_control_plane_is_told_on_a_usable_terminal() {
    let home = Home::new();
    let control_plane = home.control_plane();
    let session = Session::start(&home, &["shell", &home.workspace]);
    session.wait_for("$ ");
    control_plane.break_connections();
    let ran = session.finish();
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("closed the connection"), "{ran:?}");
}

#[test]
fn only_a_terminal_is_taken_for_one() {
    let open = |path: &str| OwnedFd::from(File::open(path).unwrap());
    let cases: Vec<(Vec<OwnedFd>, &str)> = vec![
        (vec![], "sent nothing in place of a terminal"),
        (vec![open("/dev/null")], "another device"),
        (vec![open("/etc/passwd")], "not a device"),
    ];
    for (fds, problem) in cases {
        let home = Home::new();
        let _control_plane = home.control_plane_with(move |connection, request| {
            if request["method"] == "terminal" {
                let fds: Vec<_> = fds.iter().map(OwnedFd::as_fd).collect();
                connection.line(&json!({"id": request["id"], "event": "terminal"}), &fds);
                return true;
            }
            false
        });
        let ran = Session::start(&home, &["shell", &home.workspace]).finish();
        assert_eq!(ran.code, Some(1));
        assert!(ran.stderr.contains(problem), "{problem}: {ran:?}");
    }
}

#[test]
fn an_error_instead_of_a_terminal_is_told() {
    let home = Home::new();
    let _control_plane = home.control_plane_with(|connection, request| {
        let is_terminal = request["method"] == "terminal";
        if is_terminal {
            let id = request["id"].as_u64().unwrap();
            connection.error(id, "cannot_run", "no bash\u{1b}[2J");
        }
        is_terminal
    });
    let ran = Session::start(&home, &["shell", &home.workspace]).finish();
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("no bash\\x1b[2J"), "{ran:?}");
}

#[test]
fn the_interrupt_key_works_while_the_sandbox_starts() {
    let home = Home::new();
    let control_plane = home.control_plane_with(|connection, request| {
        if request["method"] == "cancel" {
            let result = json!({"ended": "cancelled", "duration_ms": 1});
            connection.result(request["params"]["request"].as_u64().unwrap(), result);
        }
        request["method"] == "terminal"
    });
    let mut session = Session::start(&home, &["shell", &home.workspace]);
    let asked = || !control_plane.requests("terminal").is_empty();
    eventually("a terminal is asked for", asked);
    session.type_keys("\x03");
    assert_eq!(session.finish().code, Some(130));
}

#[test]
fn a_strange_name_of_the_terminal_stays_outside() {
    let home = Home::new();
    let control_plane = home.control_plane();
    let args = ["shell", &home.workspace, "--", "true"];
    let session = Session::start_as(&home, &args, "x;rm -rf\u{1b}");
    assert_eq!(session.finish().code, Some(0));
    assert_eq!(
        control_plane.requests("terminal")[0]["params"]["term"],
        "dumb"
    );
}

#[test]
fn without_a_terminal_exec_is_named() {
    let home = Home::new();
    let control_plane = home.control_plane();
    let ran = home.run(&["shell", &home.workspace]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("standard input is not a terminal"),
        "{ran:?}"
    );
    assert!(ran.stderr.contains("umwelt-ctl exec"), "{ran:?}");
    assert!(control_plane.requests("hello").is_empty());
}
