//! Several workers: connections do move while they carry data, and each has its
//! end in the audit, wherever it is.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::client::Client;
use crate::gateway::{Gateway, PATIENCE, Setup, https, policy, tcp};
use crate::relays::open_socks;
use crate::server::{Server, read_head};

/// Which event loop each descriptor of the gateway is in.
fn loops(gateway: &Gateway) -> HashMap<u32, u32> {
    let proc = format!("/proc/{}", gateway.pid());
    let mut found = HashMap::new();
    for entry in std::fs::read_dir(format!("{proc}/fd")).unwrap().flatten() {
        let number: u32 = entry.file_name().to_str().unwrap().parse().unwrap();
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        if target.to_str() != Some("anon_inode:[eventpoll]") {
            continue;
        }
        let info = std::fs::read_to_string(format!("{proc}/fdinfo/{number}")).unwrap_or_default();
        for line in info.lines().filter_map(|line| line.strip_prefix("tfd:")) {
            let fd = line.split_whitespace().next().unwrap().parse().unwrap();
            // A loop has several descriptors.
            let first = found.entry(fd).or_insert(number);
            *first = number.min(*first);
        }
    }
    found
}

/// Of either end of a connection, as far as they are seen.
fn wait_for_moves(gateway: &Gateway, wanted: usize) {
    let mut moves = 0;
    let mut before = loops(gateway);
    let until = Instant::now() + PATIENCE;
    while moves < wanted {
        assert!(Instant::now() < until, "{moves}");
        std::thread::sleep(Duration::from_millis(10));
        let now = loops(gateway);
        let moved = |fd, place| before.get(fd).is_some_and(|before| before != place);
        moves += now.iter().filter(|(fd, place)| moved(*fd, *place)).count();
        before = now;
    }
}

/// Sends numbered bytes, a few at a time: nobody is busy.
fn trickle() -> Server {
    Server::start_raw("127.0.0.1", |mut stream, _| {
        let mut next = 0_u8;
        loop {
            let piece: Vec<u8> = (0..97_u8).map(|index| next.wrapping_add(index)).collect();
            next = next.wrapping_add(97);
            if stream.write_all(&piece).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    })
}

/// Reads until the end; every byte follows the one before.
fn read_numbers(mut stream: TcpStream) -> u64 {
    let (mut next, mut total) = (0_u8, 0);
    let mut piece = vec![0; 1 << 16];
    while let Ok(length @ 1..) = stream.read(&mut piece) {
        for byte in &piece[..length] {
            assert_eq!(*byte, next, "after {total} bytes");
            next = next.wrapping_add(1);
        }
        total += length as u64;
    }
    total
}

fn ends(gateway: &Gateway) -> usize {
    let lines = gateway.audit_lines();
    let ends = lines
        .iter()
        .filter(|line| line["event"] == "end" && line["kind"] != "gateway");
    ends.count()
}

#[test]
fn connections_move_all_the_time_and_each_byte_follows_the_one_before() {
    let setup = Setup::new();
    let server = trickle();
    let mut gateway = setup.start(&policy(&[], &[tcp("a.example.org", server.port)]));
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let stream = open_socks(&gateway, "a.example.org", server.port);
            std::thread::spawn(move || read_numbers(stream))
        })
        .collect();
    wait_for_moves(&gateway, 40);
    // A policy that does not allow them reaches all, wherever they are.
    gateway.change_policy(&policy(&[], &[]).to_string());
    for client in clients {
        assert!(client.join().unwrap() > 0);
    }
    // Its line comes after the end.
    let until = Instant::now() + PATIENCE;
    while ends(&gateway) < 8 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(ends(&gateway), 8);
}

#[test]
fn the_end_of_each_busy_connection_is_recorded_when_the_gateway_ends() {
    let mut missing = Vec::new();
    for round in 0..20_u64 {
        let setup = Setup::new();
        let server = Server::start_raw("127.0.0.1", |mut stream, _| {
            let piece = vec![7; 1 << 16];
            while stream.write_all(&piece).is_ok() {}
        });
        let mut gateway = setup.start(&policy(&[], &[tcp("a.example.org", server.port)]));
        let clients: Vec<_> = (0..12)
            .map(|_| {
                let mut stream = open_socks(&gateway, "a.example.org", server.port);
                std::thread::spawn(move || {
                    let mut piece = vec![0; 1 << 16];
                    while let Ok(1..) = stream.read(&mut piece) {}
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(200 + round));
        let pid = Pid::from_raw(gateway.pid() as i32).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        let status = gateway.child().wait().unwrap();
        assert_eq!((status.code(), status.signal()), (Some(0), None));
        for client in clients {
            client.join().unwrap();
        }
        match ends(&gateway) {
            12 => {}
            ends => missing.push((round, 12 - ends)),
        }
    }
    assert!(
        missing.is_empty(),
        "round and lines that are missing: {missing:?}"
    );
}

/// Bytes that each have their answer, inspected, both ways at once.
#[test]
fn websockets_move_all_the_time_and_each_byte_has_its_answer() {
    let setup = Setup::new();
    let server = Server::start(&setup.pki, |mut tls, _| {
        while let Some(head) = read_head(&mut tls) {
            if !head.starts_with("GET /ws ") {
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                tls.write_all(answer).unwrap();
                continue;
            }
            tls.write_all(
                b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
            )
            .unwrap();
            let mut piece = vec![0; 5000];
            while let Ok(length @ 1..) = tls.read(&mut piece) {
                if tls.write_all(&piece[..length]).is_err() {
                    return;
                }
            }
            return;
        }
    });
    let port = server.port;
    let mut gateway = setup.start(&policy(&[https("a.example.org", port, &["*"])], &[]));
    let host = format!("a.example.org:{port}");
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let mut client = Client::open(&gateway, "a.example.org", port);
            for _ in 0..3 {
                assert_eq!(client.get(&host, "/").text(), "ok");
            }
            client.send(&format!(
                "GET /ws HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            ));
            assert!(read_head(&mut client.tls).unwrap().starts_with("HTTP/1.1 101"));
            std::thread::spawn(move || {
                let mut round = 0_u8;
                let mut rounds = 0;
                loop {
                    round = round.wrapping_add(1);
                    let piece = vec![round; 40 * usize::from(round) + 1];
                    let mut back = vec![0; piece.len()];
                    let sent = client.tls.write_all(&piece).and_then(|()| client.tls.flush());
                    if sent.and_then(|()| client.tls.read_exact(&mut back)).is_err() {
                        return rounds;
                    }
                    assert_eq!(back, piece);
                    rounds += 1;
                    std::thread::sleep(Duration::from_millis(2));
                }
            })
        })
        .collect();
    wait_for_moves(&gateway, 80);
    gateway.change_policy(&policy(&[], &[]).to_string());
    for client in clients {
        assert!(client.join().unwrap() > 0);
    }
    let until = Instant::now() + PATIENCE;
    while ends(&gateway) < 8 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(ends(&gateway), 8);
}
