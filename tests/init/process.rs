//! What umwelt-init withstands, and what it costs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use proptest::prelude::any;
use proptest::strategy::{Strategy, ValueTree};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use serde_json::json;

use crate::peer::{PATIENCE, Peer, Request, Running, pipe, read_all, skip, status_field};

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The `stat` lines of a process's children, zombies included.
fn children_of(parent: u32) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        let (_, rest) = stat.rsplit_once(')').unwrap();
        if rest.split_whitespace().nth(1) == Some(&parent.to_string()) {
            found.push(stat);
        }
    }
    found
}

fn is_zombie(stat: &str) -> bool {
    stat.contains(") Z ")
}

fn assert_childless(parent: u32) {
    wait_until(|| children_of(parent).is_empty());
}

#[track_caller]
fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

#[test]
fn two_hundred_commands_at_once_have_each_their_own_status() {
    let mut peer = Peer::start();
    let mut wanted = BTreeMap::new();
    let mut running = Vec::new();
    for n in 0..200 {
        let code = n % 100;
        let request = Request::shell(&format!("read line; echo {n}; exit {code}"));
        let Running {
            id, stdin, stdout, ..
        } = peer.spawn_piped(&request);
        wanted.insert(id, (n, json!({"code": code})));
        // No more than these two ends: others have descriptors here as well.
        running.push((id, stdin, stdout));
    }
    let mut started = BTreeSet::new();
    while started.len() < wanted.len() {
        let id = peer.receive().message["started"]["id"].as_u64().unwrap();
        assert!(started.insert(id));
    }
    // All end while it cannot look, so that many are there to reap at once.
    signal(peer.pid(), Signal::STOP);
    for (_, stdin, _) in &mut running {
        stdin.write_all(b"\n").unwrap();
    }
    wait_until(|| children_of(peer.pid()).iter().all(|stat| is_zombie(stat)));
    signal(peer.pid(), Signal::CONT);
    for (id, _stdin, stdout) in running {
        let (n, _) = &wanted[&id];
        assert_eq!(read_all(stdout), format!("{n}\n"));
    }
    while !wanted.is_empty() {
        let exited = &peer.receive().message["exited"];
        let (_, status) = wanted.remove(&exited["id"].as_u64().unwrap()).unwrap();
        assert_eq!(exited["status"], status);
    }
    assert_childless(peer.pid());
}

#[test]
fn short_commands_are_reported_started_before_exited() {
    let mut peer = Peer::start();
    let null = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/null")
        .unwrap();
    // Many at once, so that some end between two looks at their status pipes.
    let (total, window) = (2000, 100);
    let (mut sent, mut ended) = (0, 0);
    let mut started = BTreeSet::new();
    while ended < total {
        while sent < total && sent - ended < window {
            peer.spawn(&Request::new(&["true"]), &[null.as_fd(); 4]);
            sent += 1;
        }
        let message = peer.receive().message;
        if let Some(id) = message["started"]["id"].as_u64() {
            assert!(started.insert(id), "{message}");
        } else {
            let id = message["exited"]["id"].as_u64().unwrap();
            assert!(started.contains(&id), "{message}");
            ended += 1;
        }
    }
    assert_eq!(started.len(), total);
}

#[test]
fn orphans_are_reaped_and_not_reported() {
    let mut peer = Peer::start();
    // They live until the test lets go of their stdin.
    let orphaning = "exec 3<&0; for i in 1 2 3 4 5; do (read line <&3; exit $i) & done; \
                     setsid sh -c 'read line <&3' & exit 9";
    let mut held = Vec::new();
    for _ in 0..10 {
        let Running { id, stdin, .. } = peer.spawn_piped(&Request::shell(orphaning));
        held.push(stdin);
        assert_eq!(peer.receive().message["started"]["id"], id);
        let exited = json!({"exited": {"id": id, "status": {"code": 9}}});
        assert_eq!(peer.receive().message, exited);
    }
    assert_eq!(children_of(peer.pid()).len(), 60, "not all were orphaned");
    drop(held);
    assert_childless(peer.pid());
    assert!(peer.receive_within(Duration::from_millis(100)).is_none());
}

#[test]
fn a_child_that_hangs_before_exec_delays_nobody() {
    let mut peer = Peer::start();
    // Stands for a child that was stopped by another process: it blocks on
    // joining its cgroup.
    let (mut drain, full, size) = full_pipe();
    let null = File::open("/dev/null").unwrap();
    let fds = [full.as_fd(), null.as_fd(), null.as_fd(), null.as_fd()];
    let stuck = peer.spawn(&Request::shell("exit 4"), &fds);
    peer.assert_serves();
    drain.read_exact(&mut vec![0; size]).unwrap();
    assert_eq!(peer.receive().message["started"]["id"], stuck);
    let exited = json!({"exited": {"id": stuck, "status": {"code": 4}}});
    assert_eq!(peer.receive().message, exited);
}

#[test]
fn a_child_killed_before_exec_is_a_command_that_was_killed() {
    let mut peer = Peer::start();
    let (_drain, full, _) = full_pipe();
    let null = File::open("/dev/null").unwrap();
    let fds = [full.as_fd(), null.as_fd(), null.as_fd(), null.as_fd()];
    let stuck = peer.spawn(&Request::shell("exit 4"), &fds);
    peer.assert_serves();
    let stat = children_of(peer.pid()).pop().unwrap();
    let pid: u32 = stat.split_whitespace().next().unwrap().parse().unwrap();
    signal(pid, Signal::KILL);
    let started = json!({"started": {"id": stuck, "pid": pid}});
    assert_eq!(peer.receive().message, started);
    let exited = json!({"exited": {"id": stuck, "status": {"signal": 9}}});
    assert_eq!(peer.receive().message, exited);
}

/// A pipe whose next writer blocks, and how much is in it.
fn full_pipe() -> (File, OwnedFd, usize) {
    let (drain, full) = pipe();
    let size = rustix::pipe::fcntl_getpipe_size(&full).unwrap();
    rustix::io::write(&full, &vec![0; size]).unwrap();
    (drain.into(), full, size)
}

#[test]
fn unreadable_packets_are_answered_where_they_name_a_command() {
    let mut peer = Peer::start();
    for packet in [
        &b"{"[..],
        b"null",
        b"\xff\xfe\x00",
        br#"{"hello":{"version":1}}"#,
        br#"{"spawn":{"id":-3}}"#,
        br#"{"spawn":{"id":1.5}}"#,
        &[b'x'; 80_000],
        &[b'['; 60_000],
    ] {
        peer.send(packet, &[]).unwrap();
    }
    assert!(peer.receive_within(Duration::from_millis(100)).is_none());
    peer.send(br#"{"spawn":{"id":77,"argv":"no list"}}"#, &[])
        .unwrap();
    assert_eq!(peer.failed(77), ("message".to_owned(), bad_message()));
    peer.assert_serves();
}

fn bad_message() -> i64 {
    Errno::BADMSG.raw_os_error().into()
}

#[test]
fn random_packets_are_survived() {
    let mut peer = Peer::start();
    let null = File::open("/dev/null").unwrap();
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let packets = proptest::collection::vec(any::<u8>(), 1..200);
    for round in 0..2000 {
        let packet = packets.new_tree(&mut runner).unwrap().current();
        while peer.send(&packet, &vec![null.as_fd(); round % 9]) == Err(Errno::AGAIN) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    peer.assert_serves();
}

#[test]
fn reports_that_find_no_room_are_kept_in_order() {
    let mut peer = Peer::start();
    let packet = |id| format!(r#"{{"spawn":{{"id":{id}}}}}"#).into_bytes();
    // Until both directions are full: it takes no more while it cannot answer.
    let mut sent = 0_u64;
    let mut refused = 0;
    while refused < 20 {
        match peer.send(&packet(sent), &[]) {
            Ok(_) if sent > 5000 => panic!("it takes whatever comes"),
            Ok(_) => (sent, refused) = (sent + 1, 0),
            Err(Errno::AGAIN) => {
                refused += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!((100..2000).contains(&sent), "{sent}");
    for id in 0..sent {
        assert_eq!(peer.failed(id), ("message".to_owned(), bad_message()));
    }
    peer.assert_serves();
}

#[test]
fn it_ends_with_the_control_plane_while_reports_find_no_room() {
    let mut peer = Peer::start();
    let mut refused = 0;
    while refused < 20 {
        if peer.send(br#"{"spawn":{"id":1}}"#, &[]) == Err(Errno::AGAIN) {
            refused += 1;
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    peer.hang_up();
}

#[test]
fn lost_descriptors_fail_the_command_and_nothing_else() {
    // Enough for itself, and for nothing that arrives.
    let mut peer = Peer::start_in_shell("ulimit -n 12");
    let request = Request::new(&["true"]);
    for _ in 0..20 {
        assert_eq!(peer.fail(&request), ("message".to_owned(), bad_message()));
    }
    assert!(peer.receive_within(Duration::from_millis(50)).is_none());
}

/// What the process holds open. Its own user may not look: it is not dumpable.
fn open_descriptors(peer: &Peer) -> Option<BTreeMap<String, String>> {
    let entries = match std::fs::read_dir(format!("/proc/{}/fd", peer.pid())) {
        Ok(entries) => entries,
        Err(error) => {
            skip(&format!("only root sees its descriptors: {error}"));
            return None;
        }
    };
    // One that is closed meanwhile is not open.
    let link = |entry: std::fs::DirEntry| {
        let target = std::fs::read_link(entry.path()).ok()?;
        Some((entry.file_name(), target))
    };
    let entries = entries.flatten().filter_map(link);
    Some(
        entries
            .map(|(number, target)| (number.into_string().unwrap(), target.display().to_string()))
            .collect(),
    )
}

/// A report is read here before its descriptor is closed there.
fn assert_open_descriptors(peer: &Peer, wanted: &BTreeMap<String, String>) {
    let deadline = Instant::now() + PATIENCE;
    while open_descriptors(peer).as_ref() != Some(wanted) {
        assert!(Instant::now() < deadline, "{:?}", open_descriptors(peer));
    }
}

#[test]
fn nothing_that_it_inherits_but_its_socket_stays_open() {
    let peer = Peer::start_in_shell("exec 4</etc/passwd 9</etc/passwd");
    let open = open_descriptors(&peer).unwrap_or_default();
    assert!(
        !open.values().any(|target| target == "/etc/passwd"),
        "{open:?}"
    );
    for number in ["0", "1", "2"] {
        assert_eq!(
            open.get(number).map_or("/dev/null", String::as_str),
            "/dev/null"
        );
    }
}

#[test]
fn nothing_of_a_command_stays_open() {
    let mut peer = Peer::start();
    let Some(before) = open_descriptors(&peer) else {
        return;
    };
    let cgroup = tempfile::tempfile().unwrap();
    peer.spawn(&Request::terminal("exec sleep 60"), &[cgroup.as_fd()]);
    let waiting = peer.spawn_piped(&Request::shell("read line"));
    let reports = [peer.receive(), peer.receive()];
    assert_open_descriptors(&peer, &before);
    for stdio in [json!("pipes"), json!({"terminal": {"rows": 1, "cols": 1}})] {
        for (program, cwd) in [("/does/not/exist", "/"), ("true", "/none"), ("a\0b", "/")] {
            // For the terminal these are too many, which is one more failure.
            let request = Request {
                cwd: cwd.to_owned(),
                stdio: stdio.clone(),
                ..Request::new(&[program])
            };
            peer.fail(&request);
        }
    }
    assert_open_descriptors(&peer, &before);
    drop((waiting, reports));
}

fn status_of(pid: u32) -> String {
    read(&format!("/proc/{pid}/status"))
}

/// Everything that counts up when a process runs at all.
fn activity(pid: u32) -> Vec<String> {
    let status = status_of(pid);
    let stat = read(&format!("/proc/{pid}/stat"));
    let fields: Vec<&str> = stat.split_whitespace().collect();
    vec![
        status_field(&status, "voluntary_ctxt_switches"),
        status_field(&status, "nonvoluntary_ctxt_switches"),
        fields[13].to_owned(),
        fields[14].to_owned(),
    ]
}

#[test]
fn it_does_nothing_while_nothing_happens() {
    let mut peer = Peer::start();
    peer.assert_serves();
    let waiting = peer.spawn_piped(&Request::shell("read line"));
    peer.receive();
    // At first it makes itself small, once; a busy machine may be late with that.
    let is_quiet = |_| {
        let before = activity(peer.pid());
        std::thread::sleep(Duration::from_secs(4));
        activity(peer.pid()) == before
    };
    assert!((0..5).any(is_quiet), "{:?}", activity(peer.pid()));
    drop(waiting);
}

#[test]
fn it_is_one_small_thread() {
    let mut peer = Peer::start();
    let commands: Vec<_> = (0..50)
        .map(|_| peer.spawn_piped(&Request::shell("read line")))
        .collect();
    for _ in &commands {
        peer.receive();
    }
    let status = status_of(peer.pid());
    assert_eq!(status_field(&status, "Threads"), "1");
    let kib = || -> u64 {
        let resident = status_field(&status_of(peer.pid()), "VmRSS");
        resident.trim_end_matches(" kB").parse().unwrap()
    };
    // Code that is not optimized fills more pages; how many depends on where the linker puts it.
    let limit = if cfg!(debug_assertions) {
        4 << 10
    } else {
        2 << 10
    };
    wait_until(|| kib() <= limit);
}

#[test]
fn a_stream_of_commands_does_not_grow_it() {
    let mut peer = Peer::start();
    let data = |peer: &Peer| -> u64 {
        let field = status_field(&status_of(peer.pid()), "RssAnon");
        field.trim_end_matches(" kB").parse().unwrap()
    };
    for _ in 0..50 {
        peer.run(&Request::new(&["true"]));
    }
    let before = data(&peer);
    // The kernel counts for each processor first, and adds what is more than 128 KiB.
    for _ in 0..900 {
        peer.run(&Request::new(&["true"]));
    }
    assert!(data(&peer) <= before + 192, "{before} -> {}", data(&peer));
}
