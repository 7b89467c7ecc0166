//! Several workers: connections go from one to another while they carry data, and nothing is lost.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::client::{Client, config, connect};
use crate::gateway::{Gateway, PATIENCE, Setup, https, policy};
use crate::relays::tunnel;
use crate::server::{Server, Tls, read_head};

const STREAMS: usize = 4;
/// No divisor of the sizes of buffers.
const PIECE: usize = 60_013;
/// Time on a processor that shows that a worker has served, in nanoseconds.
const SERVED: u64 = 50_000_000;

fn piece() -> Vec<u8> {
    (0..PIECE).map(|index| (index % 251) as u8).collect()
}

/// Sends pieces until the test has seen enough, and then answers other requests.
fn server(setup: &Setup, stop: &Arc<AtomicBool>) -> Server {
    let stop = stop.clone();
    Server::start(&setup.pki, move |mut tls, _| {
        while let Some(head) = read_head(&mut tls) {
            match head.starts_with("GET /stream ") {
                true => send_pieces(&mut tls, &stop),
                false => tls
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nafter")
                    .unwrap(),
            }
        }
    })
}

fn send_pieces(tls: &mut Tls, stop: &AtomicBool) {
    tls.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        .unwrap();
    let mut chunk = format!("{PIECE:x}\r\n").into_bytes();
    chunk.extend(piece());
    chunk.extend(b"\r\n");
    while !stop.load(Ordering::Relaxed) {
        tls.write_all(&chunk).unwrap();
    }
    tls.write_all(b"0\r\n\r\n").unwrap();
}

/// Reads all pieces; each is as it was sent.
fn read_pieces(client: &mut Client) -> u64 {
    let head = read_head(&mut client.tls).unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    // From any place on there is a whole piece in it.
    let wanted = piece().repeat(2);
    let mut total = 0;
    loop {
        let chunk = client.read_chunk();
        if chunk.is_empty() {
            return total;
        }
        let place = (total % PIECE as u64) as usize;
        let is_as_sent = chunk == wanted[place..][..chunk.len()];
        assert!(is_as_sent, "{} bytes after {total}", chunk.len());
        total += chunk.len() as u64;
    }
}

/// How long each worker was on a processor.
fn served(gateway: &Gateway) -> Vec<u64> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", gateway.pid())).unwrap();
    let tasks = tasks.map(|task| task.unwrap().path());
    let workers =
        tasks.filter(|task| std::fs::read_to_string(task.join("comm")).unwrap() == "worker\n");
    workers
        .map(|task| {
            let times = std::fs::read_to_string(task.join("schedstat")).unwrap();
            times.split(' ').next().unwrap().parse().unwrap()
        })
        .collect()
}

/// An error is how long each has served instead.
fn wait_for_both_to_serve(gateway: &Gateway) -> Result<(), Vec<u64>> {
    let until = Instant::now() + PATIENCE * 6;
    loop {
        let served = served(gateway);
        if served.len() == 2 && served.iter().all(|time| *time > SERVED) {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(served);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn streams_that_go_from_worker_to_worker_arrive_whole_and_their_connections_live_on() {
    let setup = Setup::new();
    let stop = Arc::new(AtomicBool::new(false));
    let server = server(&setup, &stop);
    let port = server.port;
    let gateway = setup.start(&policy(&[https("a.example.org", port, &["*"])], &[]));
    let host = format!("a.example.org:{port}");
    std::thread::scope(|scope| {
        for _ in 0..STREAMS {
            scope.spawn(|| {
                let mut client = Client::open(&gateway, "a.example.org", port);
                client.send(&format!("GET /stream HTTP/1.1\r\nHost: {host}\r\n\r\n"));
                assert!(read_pieces(&mut client) > 0);
                assert_eq!(client.get(&host, "/after").text(), "after");
            });
        }
        let both = wait_for_both_to_serve(&gateway);
        stop.store(true, Ordering::Relaxed);
        both.unwrap();
    });
    // The last answer comes before its line.
    let until = Instant::now() + PATIENCE;
    for path in ["/stream", "/after"] {
        while whole(&gateway, path) < STREAMS && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let lines = gateway.audit_lines();
        assert_eq!(whole(&gateway, path), STREAMS, "{lines:#?}");
    }
}

fn whole(gateway: &Gateway, path: &str) -> usize {
    let lines = gateway.audit_lines();
    let whole = lines
        .iter()
        .filter(|line| line["path"] == path && line["status"] == 200 && line.get("why").is_none());
    whole.count()
}

#[test]
fn tunnels_that_go_from_worker_to_worker_stay_whole() {
    let setup = Setup::new();
    let stop = Arc::new(AtomicBool::new(false));
    let server = server(&setup, &stop);
    let port = server.port;
    let gateway = setup.start(&policy(&[tunnel("a.example.org", port)], &[]));
    let host = format!("a.example.org:{port}");
    std::thread::scope(|scope| {
        for _ in 0..STREAMS {
            scope.spawn(|| {
                let (stream, _): (TcpStream, _) = connect(&gateway, &host);
                let config = config(&gateway.pki.root, &[]);
                let mut client = Client::over(stream, "a.example.org", config).unwrap();
                client.send("GET /stream HTTP/1.1\r\n\r\n");
                assert!(read_pieces(&mut client) > 0);
                assert_eq!(client.get(&host, "/after").text(), "after");
            });
        }
        let both = wait_for_both_to_serve(&gateway);
        stop.store(true, Ordering::Relaxed);
        both.unwrap();
    });
}
