//! How a command is started: what it gets, and what it does not.

use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;

use rustix::io::Errno;
use serde_json::json;

use crate::peer::{PATH, Peer, Request, file_with, pipe, status_field};

fn failure(stage: &str, errno: Errno) -> (String, i64) {
    (stage.to_owned(), errno.raw_os_error().into())
}

#[test]
fn streams_are_the_given_pipes() {
    let mut peer = Peer::start();
    let mut running = peer.spawn_piped(&Request::shell("cat; echo error >&2"));
    running.stdin.write_all(b"through\n").unwrap();
    let (stdout, stderr) = running.read_to_end();
    assert_eq!((stdout.as_str(), stderr.as_str()), ("through\n", "error\n"));
}

#[test]
fn exit_codes_and_signals_are_told_apart() {
    let mut peer = Peer::start();
    for (script, status) in [
        ("exit 0", json!({"code": 0})),
        ("exit 3", json!({"code": 3})),
        ("exit 137", json!({"code": 137})),
        ("kill -KILL $$", json!({"signal": 9})),
        ("kill -TERM $$", json!({"signal": 15})),
        // Its default action, although umwelt-init itself ignores it.
        ("kill -PIPE $$", json!({"signal": 13})),
    ] {
        assert_eq!(peer.run(&Request::shell(script)).status, status, "{script}");
    }
}

#[test]
fn the_command_joins_its_cgroup_before_anything_else() {
    let mut peer = Peer::start();
    let running = peer.spawn_piped(&Request::shell("exit"));
    let mut cgroup = running.cgroup.try_clone().unwrap();
    running.read_to_end();
    let mut written = String::new();
    cgroup.rewind().unwrap();
    cgroup.read_to_string(&mut written).unwrap();
    assert_eq!(written, "0");
}

#[test]
fn a_command_that_cannot_join_its_cgroup_is_not_run() {
    let mut peer = Peer::start();
    let read_only = std::fs::File::open("/dev/null").unwrap();
    let (out, their_out) = pipe();
    let fds = [
        read_only.as_fd(),
        read_only.as_fd(),
        their_out.as_fd(),
        their_out.as_fd(),
    ];
    let id = peer.spawn(&Request::shell("echo ran"), &fds);
    drop(their_out);
    assert_eq!(peer.failed(id), failure("exec", Errno::BADF));
    assert_eq!(
        std::io::read_to_string(std::fs::File::from(out)).unwrap(),
        ""
    );
}

#[test]
fn programs_that_cannot_run_are_told_by_errno() {
    let mut peer = Peer::start();
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("plain");
    std::fs::write(&plain, "no program").unwrap();
    let too_long = "x".repeat(200);
    for (program, errno) in [
        ("/does/not/exist", Errno::NOENT),
        ("does-not-exist", Errno::NOENT),
        ("", Errno::NOENT),
        (plain.to_str().unwrap(), Errno::ACCESS),
        ("/", Errno::ACCESS),
        ("/bin/sh/x", Errno::NOTDIR),
        (&format!("/{}", too_long.repeat(2)), Errno::NAMETOOLONG),
    ] {
        let request = Request::new(&[program]);
        assert_eq!(peer.fail(&request), failure("exec", errno), "{program}");
    }
    peer.assert_serves();
}

#[test]
fn a_bad_working_directory_is_its_own_failure() {
    let mut peer = Peer::start();
    for (cwd, errno) in [
        ("/does/not/exist", Errno::NOENT),
        ("/bin/sh", Errno::NOTDIR),
        ("", Errno::NOENT),
    ] {
        let request = Request {
            cwd: cwd.to_owned(),
            ..Request::new(&["true"])
        };
        assert_eq!(peer.fail(&request), failure("cwd", errno), "{cwd}");
    }
}

#[test]
fn the_command_runs_in_its_working_directory() {
    let dir = tempfile::tempdir().unwrap();
    let cwd = dir
        .path()
        .canonicalize()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    let request = Request {
        cwd: cwd.clone(),
        ..Request::shell("pwd -P")
    };
    assert_eq!(Peer::start().run(&request).stdout, format!("{cwd}\n"));
}

#[test]
fn missing_and_surplus_descriptors_fail_the_message() {
    let mut peer = Peer::start();
    let null = std::fs::File::open("/dev/null").unwrap();
    let piped = Request::new(&["true"]);
    let terminal = Request::terminal("true");
    for (request, count, errno) in [
        (&piped, 0, Errno::BADMSG),
        (&piped, 3, Errno::BADMSG),
        (&piped, 5, Errno::INVAL),
        // More than it has room for: the kernel drops some.
        (&piped, 32, Errno::BADMSG),
        (&terminal, 0, Errno::BADMSG),
        (&terminal, 2, Errno::INVAL),
    ] {
        let id = peer.spawn(request, &vec![null.as_fd(); count]);
        assert_eq!(peer.failed(id), failure("message", errno), "{count}");
    }
    peer.assert_serves();
}

#[test]
fn texts_with_a_nul_byte_fail_the_message() {
    let mut peer = Peer::start();
    let request = Request::new(&["echo", "a\0b"]);
    assert_eq!(peer.fail(&request), failure("message", Errno::INVAL));
    assert_eq!(
        peer.fail(&Request::new(&[])),
        failure("message", Errno::INVAL)
    );
}

#[test]
fn a_long_text_comes_by_descriptor() {
    let mut peer = Peer::start();
    let padding = ": filler\n".repeat(150_000);
    let request = Request {
        script: Some(file_with(&format!("{padding}echo last; exit 5\n"))),
        ..Request::new(&["sh", "/proc/self/fd/3"])
    };
    let outcome = peer.run(&request);
    assert_eq!(outcome.stdout, "last\n");
    assert_eq!(outcome.status, json!({"code": 5}));
}

#[test]
fn the_environment_is_exactly_the_given_one() {
    let mut peer = Peer::start_in_shell("export LEAKED=1");
    let request = Request {
        env: json!([["B", "2"], ["A", "one two"], ["EMPTY", ""]]),
        ..Request::new(&["/usr/bin/env"])
    };
    let outcome = peer.run(&request);
    let mut lines: Vec<_> = outcome.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["A=one two", "B=2", "EMPTY="]);
    let bare = Request {
        env: json!([]),
        ..Request::new(&["/usr/bin/env"])
    };
    assert_eq!(peer.run(&bare).stdout, "");
}

#[test]
fn the_program_is_looked_up_in_the_given_path() {
    let mut peer = Peer::start();
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/bin/sh", dir.path().join("my-shell")).unwrap();
    let path = format!("/does/not/exist:{}:{PATH}", dir.path().display());
    let request = Request {
        env: json!([["PATH", path]]),
        ..Request::new(&["my-shell", "-c", "echo found"])
    };
    assert_eq!(peer.run(&request).stdout, "found\n");
}

#[test]
fn no_descriptor_but_its_own_reaches_a_command() {
    let mut peer = Peer::start_in_shell("exec 7</dev/null 9</dev/null");
    let cgroup = tempfile::tempfile().unwrap();
    let waiting = peer.spawn_piped(&Request::shell("read line"));
    peer.spawn(&Request::terminal("exec sleep 60"), &[cgroup.as_fd()]);
    let (first, second) = (peer.receive(), peer.receive());
    let listing = Request::shell("ls /proc/$$/fd");
    assert_eq!(peer.run(&listing).stdout, "0\n1\n2\n");
    let with_script = Request {
        script: Some(file_with("")),
        ..Request::shell("ls /proc/$$/fd")
    };
    assert_eq!(peer.run(&with_script).stdout, "0\n1\n2\n3\n");
    drop((first, second, waiting));
}

#[test]
fn a_command_leads_a_session_without_a_terminal() {
    let mut peer = Peer::start();
    let outcome = peer.run(&Request::shell("cat /proc/$$/stat; : </dev/tty"));
    // pid (comm) state ppid pgrp session tty_nr …
    let (_, rest) = outcome.stdout.rsplit_once(')').unwrap();
    let fields: Vec<i64> = rest
        .split_whitespace()
        .skip(1)
        .map(|field| field.parse().unwrap_or(0))
        .collect();
    assert_eq!(fields[0], i64::from(peer.pid()), "parent");
    assert_eq!(fields[1..3], [outcome.pid; 2], "process group and session");
    assert_eq!(fields[3], 0, "terminal");
    assert!(outcome.stderr.contains("/dev/tty"), "{}", outcome.stderr);
}

#[test]
fn signals_are_at_their_defaults_whatever_was_inherited() {
    let mut peer = Peer::start_in_shell("trap '' HUP INT QUIT PIPE USR1 CHLD 34");
    let outcome = peer.run(&Request::new(&["cat", "/proc/self/status"]));
    for field in ["SigBlk", "SigIgn", "SigCgt"] {
        let set = status_field(&outcome.stdout, field);
        assert_eq!(u64::from_str_radix(&set, 16), Ok(0), "{field}");
    }
    assert_eq!(outcome.status, json!({"code": 0}));
}

#[test]
fn the_umask_is_fixed() {
    let mut peer = Peer::start_in_shell("umask 077");
    assert_eq!(peer.run(&Request::shell("umask")).stdout, "0022\n");
}
