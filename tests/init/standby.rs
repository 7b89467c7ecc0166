//! The process that waits for the next command.

use std::io::Read;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::json;

use crate::peer::{PATIENCE, Peer, Request, Running, status_field};

/// Has a process wait for the command that comes next; returns its pid.
fn prepare(peer: &mut Peer) -> u32 {
    let before = children_of(peer.pid());
    let packet = serde_json::to_vec(&json!({"prepare": {"id": peer.next_id}})).unwrap();
    let cgroup = tempfile::tempfile().unwrap();
    peer.send(&packet, &[cgroup.as_fd()]).unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut children = children_of(peer.pid());
        children.retain(|pid| !before.contains(pid));
        if let [pid] = children[..] {
            return pid;
        }
        assert!(Instant::now() < deadline, "no process on standby");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn children_of(parent: u32) -> Vec<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let text = std::fs::read_to_string(path).unwrap();
    text.split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect()
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

#[test]
fn the_waiting_process_becomes_the_command() {
    let mut peer = Peer::start();
    for _ in 0..3 {
        let waiting = prepare(&mut peer);
        let outcome = peer.run(&Request::shell("echo $$ in $PWD; exit 3"));
        assert_eq!(outcome.pid, i64::from(waiting));
        assert_eq!(outcome.stdout, format!("{waiting} in /\n"));
        assert_eq!(outcome.status, json!({"code": 3}));
    }
}

#[test]
fn it_joins_the_cgroup_before_the_command_is_known() {
    let mut peer = Peer::start();
    let mut cgroup = tempfile::tempfile().unwrap();
    let packet = serde_json::to_vec(&json!({"prepare": {"id": 1}})).unwrap();
    peer.send(&packet, &[cgroup.as_fd()]).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let mut written = String::new();
    while written.is_empty() {
        assert!(Instant::now() < deadline, "nothing written");
        std::io::Seek::rewind(&mut cgroup).unwrap();
        cgroup.read_to_string(&mut written).unwrap();
    }
    assert_eq!(written, "0");
    let mut running: Running = peer.spawn_piped(&Request::shell("true"));
    assert!(peer.receive().message["started"].is_object());
    let mut again = String::new();
    std::io::Seek::rewind(&mut running.cgroup).unwrap();
    running.cgroup.read_to_string(&mut again).unwrap();
    assert_eq!(again, "");
}

#[test]
fn terminals_and_long_scripts_reach_it() {
    let mut peer = Peer::start();
    prepare(&mut peer);
    let mut request = Request::new(&["sh", "/proc/self/fd/3"]);
    let mut script = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut script, b"echo from the script").unwrap();
    std::io::Seek::rewind(&mut script).unwrap();
    request.script = Some(script);
    assert_eq!(peer.run(&request).stdout, "from the script\n");

    prepare(&mut peer);
    let cgroup = tempfile::tempfile().unwrap();
    peer.spawn(&Request::terminal("tty; stty size"), &[cgroup.as_fd()]);
    let mut started = peer.receive();
    assert!(started.message["started"].is_object());
    let mut master = std::fs::File::from(started.fds.remove(0));
    let mut output = Vec::new();
    // EIO when the last process with the terminal has ended.
    drop(master.read_to_end(&mut output));
    let output = String::from_utf8(output).unwrap();
    assert!(
        output.contains("/dev/pts/") && output.contains("30 100"),
        "{output}"
    );
}

#[test]
fn a_command_finds_only_its_own_descriptors() {
    let mut peer = Peer::start();
    let other = peer.spawn_piped(&Request::terminal("true"));
    drop(other);
    drop(peer.receive());
    prepare(&mut peer);
    let outcome = peer.run(&Request::shell("ls /proc/self/fd; cat /proc/self/status"));
    // The last one is that of the directory that is listed.
    assert!(
        outcome.stdout.starts_with("0\n1\n2\n3\n"),
        "{}",
        outcome.stdout
    );
    assert!(!outcome.stdout.contains("4\nName"), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("SigIgn:\t0000000000000000"));
}

#[test]
fn a_failure_to_start_is_told_as_ever() {
    let mut peer = Peer::start();
    prepare(&mut peer);
    let failed = peer.fail(&Request::new(&["/nonexistent"]));
    assert_eq!(failed, ("exec".to_owned(), 2));
    prepare(&mut peer);
    let mut request = Request::shell("true");
    request.cwd = "/nonexistent".to_owned();
    assert_eq!(peer.fail(&request), ("cwd".to_owned(), 2));
    peer.assert_serves();
}

#[test]
fn a_killed_one_is_done_without() {
    let mut peer = Peer::start();
    for n in 0..50 {
        let waiting = prepare(&mut peer);
        // At each moment of its short life.
        std::thread::sleep(Duration::from_micros(n * 20));
        signal(waiting, Signal::KILL);
        let outcome = peer.run(&Request::shell("echo here"));
        assert_eq!(outcome.stdout, "here\n");
        assert_ne!(outcome.pid, i64::from(waiting));
    }
}

#[test]
fn a_stopped_one_goes_on() {
    let mut peer = Peer::start();
    let waiting = prepare(&mut peer);
    signal(waiting, Signal::STOP);
    assert_eq!(peer.run(&Request::shell("echo here")).stdout, "here\n");
}

#[test]
fn a_cgroup_that_cannot_be_joined_is_the_spawns_affair() {
    let mut peer = Peer::start();
    let packet = serde_json::to_vec(&json!({"prepare": {"id": 1}})).unwrap();
    let unwritable = std::fs::File::open("/dev/null").unwrap();
    peer.send(&packet, &[unwritable.as_fd()]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    peer.assert_serves();
}

#[test]
fn only_one_waits_and_wrong_packets_are_survived() {
    let mut peer = Peer::start();
    for id in [7, 8, 9] {
        let packet = serde_json::to_vec(&json!({"prepare": {"id": id}})).unwrap();
        let cgroup = tempfile::tempfile().unwrap();
        peer.send(&packet, &[cgroup.as_fd(), cgroup.as_fd()])
            .unwrap();
        peer.send(&packet, &[]).unwrap();
        peer.send(&packet, &[cgroup.as_fd()]).unwrap();
    }
    peer.assert_serves();
    let deadline = Instant::now() + PATIENCE;
    while children_of(peer.pid()).len() != 1 {
        assert!(Instant::now() < deadline, "{:?}", children_of(peer.pid()));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn it_ends_with_its_parent() {
    let mut peer = Peer::start();
    let waiting = prepare(&mut peer);
    peer.hang_up();
    let deadline = Instant::now() + PATIENCE;
    let is_alive = || {
        let status = std::fs::read_to_string(format!("/proc/{waiting}/status"));
        status.is_ok_and(|status| !status_field(&status, "State").starts_with('Z'))
    };
    while is_alive() {
        assert!(Instant::now() < deadline, "it lives on");
        std::thread::sleep(Duration::from_millis(5));
    }
}
