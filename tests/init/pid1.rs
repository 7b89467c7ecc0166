//! Against commands that mean it harm: the same user, and pid 1 for real.

use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::peer::{
    BINARY, PATIENCE, Peer, Request, readable_within, seqpacket_pair, skip, wrapped_command,
};

const NOBODY: u32 = 65534;

/// An umwelt-init whose user is not root, whoever runs the tests.
fn start_unprivileged() -> (Peer, tempfile::TempDir) {
    // The tests' own target directory may be closed to that user. Copied by
    // another process: a fork of this one elsewhere in the tests could hold
    // the new file open for writing, which makes it "busy".
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let binary = dir.path().join("umwelt-init");
    let copied = Command::new("cp")
        .arg(BINARY)
        .arg(&binary)
        .status()
        .unwrap();
    assert!(copied.success());
    let (ours, theirs) = seqpacket_pair();
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "exec \"$0\" 3<&0 0</dev/null"])
        .arg(&binary)
        .current_dir("/")
        .stdin(theirs);
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    (Peer::start_command(command, ours), dir)
}

#[test]
fn a_command_of_the_same_user_can_neither_read_nor_trace_it() {
    let (mut peer, _dir) = start_unprivileged();
    // The same on the command itself works, so it is not the test that fails.
    let script = "cd /proc/$TARGET || exit 9
        for secret in environ maps auxv; do cat $secret >/dev/null 2>&1 && echo read $secret; done
        ls fd >/dev/null 2>&1 && echo listed fd
        ls fd/3 >/dev/null 2>&1 && echo reached fd/3
        (: >mem) 2>/dev/null && echo opened mem
        readlink exe >/dev/null 2>&1 && echo followed exe
        grep -c . status >/dev/null && echo looked at status";
    let on = |target: &str| Request::shell(&script.replace("$TARGET", target));
    assert_eq!(peer.run(&on("$PPID")).stdout, "looked at status\n");
    let itself = peer.run(&on("$$")).stdout;
    for line in ["read environ", "listed fd", "opened mem", "followed exe"] {
        assert!(itself.contains(line), "{itself}");
    }
}

#[test]
fn its_files_in_proc_are_not_its_own() {
    let (peer, _dir) = start_unprivileged();
    let proc = format!("/proc/{}", peer.pid());
    let user = std::fs::metadata(&proc).unwrap().uid();
    assert_ne!(user, 0, "it must not run as root for this test");
    assert_eq!(
        std::fs::metadata(format!("{proc}/status")).unwrap().uid(),
        0
    );
}

/// As pid 1 of a new pid namespace, if this host lets us make one.
fn start_as_pid1() -> Option<Peer> {
    let mut wrapper = vec!["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
    if !rustix::process::geteuid().is_root() {
        wrapper.extend(["--user", "--map-root-user"]);
    }
    let probe = Command::new(wrapper[0])
        .args(&wrapper[1..])
        .arg("true")
        .stderr(Stdio::null())
        .status();
    if !probe.is_ok_and(|status| status.success()) {
        skip("no pid namespace can be made here");
        return None;
    }
    wrapper.push("/bin/sh");
    let (ours, theirs) = seqpacket_pair();
    let command = wrapped_command(&wrapper, "", theirs);
    Some(Peer::start_command(command, ours))
}

#[test]
fn no_signal_from_inside_ends_or_stops_pid_1() {
    let Some(mut peer) = start_as_pid1() else {
        return;
    };
    let script = "for signal in HUP INT QUIT TERM USR1 USR2 PIPE ALRM SEGV BUS ABRT CHLD STOP KILL
        do kill -$signal 1 || exit 1; kill -$signal 1 || exit 1; done";
    assert_eq!(peer.run(&Request::shell(script)).status, json!({"code": 0}));
    peer.assert_serves();
}

#[test]
fn everything_in_the_sandbox_ends_with_pid_1() {
    let Some(mut peer) = start_as_pid1() else {
        return;
    };
    let script = "setsid sh -c 'trap \"\" HUP TERM; echo up; while :; do sleep 60; done' & wait";
    let mut running = peer.spawn_piped(&Request::shell(script));
    assert!(readable_within(&running.stdout, PATIENCE));
    running.stdout.read_exact(&mut [0; 3]).unwrap();
    peer.hang_up();
    // Nobody is left to hold the other end.
    assert!(readable_within(&running.stdout, PATIENCE));
    assert_eq!(running.stdout.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn pids_are_those_inside() {
    let Some(mut peer) = start_as_pid1() else {
        return;
    };
    let outcome = peer.run(&Request::shell("echo $$ $PPID"));
    assert_eq!(outcome.stdout, format!("{} 1\n", outcome.pid));
}
