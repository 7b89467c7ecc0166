//! Connections on which nobody says anything for long are kept: a server that
//! thinks, a WebSocket, a tunnel, a connection by SOCKS.
//!
//! How long is said by `UMWELT_QUIET_SECONDS`; scripts/test says more than ten
//! minutes, while other tests run. Then what waits for a next request is gone,
//! as docs/egress.md says.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use crate::client::{Client, config, connect};
use crate::gateway::{Gateway, Setup, https, policy, tcp};
use crate::relays::{by_name, plain_echo, socks, tunnel};
use crate::server::{Server, read_head};
use crate::streams::{UPGRADE, websocket_server};

/// What "idle between two requests" is in docs/egress.md.
const REQUEST_LIMIT: Duration = Duration::from_secs(600);

fn quiet() -> Duration {
    let seconds = std::env::var("UMWELT_QUIET_SECONDS");
    Duration::from_secs(seconds.map_or(2, |text| text.parse().unwrap()))
}

#[test]
fn what_is_silent_for_long_is_kept() {
    let setup = Setup::new();
    let (sockets, tunnelled) = (websocket_server(&setup), websocket_server(&setup));
    let (slow, answer_now) = slow_server(&setup);
    let (kept, raw) = (Server::echo(&setup.pki), plain_echo());
    let open = [&sockets, &slow, &kept].map(|server| https("a.example.org", server.port, &["*"]));
    let mut rules = open.to_vec();
    rules.push(tunnel("a.example.org", tunnelled.port));
    let gateway = setup.start(&policy(&rules, &[tcp("a.example.org", raw.port)]));

    let mut websocket = Client::open(&gateway, "a.example.org", sockets.port);
    upgrade(&mut websocket, &sockets);
    let mut through = tunnel_to(&gateway, &tunnelled);
    upgrade(&mut through, &tunnelled);
    let (mut relayed, granted) = socks(&gateway, &by_name("a.example.org", raw.port), 12);
    assert_eq!(granted.get(..4), Some(&[5, 0, 5, 0][..]));
    let mut waiting = Client::open(&gateway, "a.example.org", slow.port);
    let host = format!("a.example.org:{}", slow.port);
    waiting.send(&format!("GET /slow HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    assert_eq!(slow.next_seen(), "asked");
    let mut idle = Client::open(&gateway, "a.example.org", kept.port);
    let host = format!("a.example.org:{}", kept.port);
    assert_eq!(idle.get(&host, "/before").status, 200);

    std::thread::sleep(quiet());

    answer_now.send(()).unwrap();
    assert_eq!(waiting.read_answer(false).text(), "at last");
    for client in [&mut websocket, &mut through] {
        assert_eq!(echoed(&mut client.tls), *b"still here");
    }
    assert_eq!(echoed(&mut relayed), *b"still here");
    if quiet() < REQUEST_LIMIT {
        assert_eq!(idle.get(&host, "/after").status, 200);
    } else {
        assert_eq!(idle.read_rest(), b"");
    }
}

/// Answers when the test says so.
fn slow_server(setup: &Setup) -> (Server, Sender<()>) {
    let (go, step) = channel();
    let step = Mutex::new(step);
    let server = Server::start(&setup.pki, move |mut tls, seen| {
        read_head(&mut tls).unwrap();
        seen.send("asked".to_owned()).unwrap();
        step.lock().unwrap().recv().unwrap();
        tls.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nat last")
            .unwrap();
    });
    (server, go)
}

fn tunnel_to(gateway: &Gateway, server: &Server) -> Client {
    let (stream, _): (TcpStream, _) = connect(gateway, &format!("a.example.org:{}", server.port));
    Client::over(stream, "a.example.org", config(&gateway.pki.root, &[])).unwrap()
}

fn upgrade(client: &mut Client, server: &Server) {
    let port = server.port;
    let answer = client.ask(&format!(
        "GET /ws HTTP/1.1\r\nHost: a.example.org:{port}\r\n{UPGRADE}\r\n"
    ));
    assert_eq!(answer.status, 101);
    let mut greeting = [0; 5];
    client.tls.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"hello");
}

fn echoed(stream: &mut (impl Read + Write)) -> [u8; 10] {
    let mut bytes = [0; 10];
    stream.write_all(b"still here").unwrap();
    stream.read_exact(&mut bytes).unwrap();
    bytes
}
