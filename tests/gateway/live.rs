//! The policy file changes, the disk fills up, the gateway is told to end.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};

use crate::client::{Client, connect, refused};
use crate::gateway::{Gateway, PATIENCE, Setup, https, policy, tcp, write_policy};
use crate::relays::{by_name, open_socks, socks};
use crate::server::Server;

#[test]
fn a_new_policy_holds_for_the_next_request() {
    let setup = Setup::new();
    let server = Server::echo(&setup.pki);
    let narrow = policy(&[https("a.example.org", server.port, &["/old"])], &[]);
    let mut gateway = setup.start(&narrow);
    let host = format!("a.example.org:{}", server.port);
    let mut client = Client::open(&gateway, "a.example.org", server.port);
    assert_eq!(client.get(&host, "/old").status, 200);
    assert_eq!(client.get(&host, "/new").status, 403);
    let wide = policy(&[https("a.example.org", server.port, &["/new"])], &[]);
    assert_eq!(gateway.change_policy(&wide.to_string())["state"], "loaded");
    assert_eq!(client.get(&host, "/old").status, 403);
    assert_eq!(client.get(&host, "/new").status, 200);
    gateway.change_policy(&policy(&[], &[]).to_string());
    assert_eq!(client.get(&host, "/new").status, 403);
    assert!(refused(&gateway, &host).0.starts_with("HTTP/1.1 403"));
    gateway.audited(|line| line["kind"] == "policy" && line["event"] == "loaded");
}

#[test]
fn a_broken_policy_changes_nothing_and_is_said() {
    let setup = Setup::new();
    let server = Server::echo(&setup.pki);
    let good = policy(&[https("a.example.org", server.port, &["/ok"])], &[]).to_string();
    let mut gateway = setup.start(&serde_json::from_str(&good).unwrap());
    let host = format!("a.example.org:{}", server.port);
    let mut client = Client::open(&gateway, "a.example.org", server.port);
    for broken in [
        "",
        "{",
        &good[..good.len() / 2],
        &good.replace("\"version\":1", "\"version\":9"),
    ] {
        let said = gateway.change_policy(broken);
        assert_eq!(
            (said["event"].as_str(), said["state"].as_str()),
            (Some("policy"), Some("broken")),
            "{broken}"
        );
        assert_eq!(client.get(&host, "/ok").status, 200, "{broken}");
        assert_eq!(client.get(&host, "/no").status, 403, "{broken}");
    }
    gateway.audited(|line| line["kind"] == "policy" && line["event"] == "broken");
    assert_eq!(gateway.change_policy(&good)["state"], "loaded");
    assert_eq!(client.get(&host, "/ok").status, 200);
}

#[test]
fn a_policy_written_in_place_is_read_too() {
    let setup = Setup::new();
    let server = Server::echo(&setup.pki);
    let mut gateway = setup.start(&policy(&[], &[]));
    let new = policy(&[https("a.example.org", server.port, &["*"])], &[]).to_string();
    std::fs::write(gateway.dir.path().join("policy.json"), &new).unwrap();
    let host = format!("a.example.org:{}", server.port);
    let until = Instant::now() + PATIENCE;
    while !connect(&gateway, &host).1.starts_with("HTTP/1.1 200") {
        assert!(Instant::now() < until);
    }
    // Removed: that is said, and the last good one stays.
    std::fs::remove_file(gateway.dir.path().join("policy.json")).unwrap();
    while gateway.told()["state"] != "broken" {}
    assert!(connect(&gateway, &host).1.starts_with("HTTP/1.1 200"));
    assert!(gateway.child().try_wait().unwrap().is_none());
}

#[test]
fn what_is_open_and_no_longer_allowed_is_closed() {
    let setup = Setup::new();
    let server = Server::start_raw("127.0.0.1", |mut stream, _| {
        let mut piece = [0; 64];
        while let Ok(length @ 1..) = stream.read(&mut piece) {
            stream.write_all(&piece[..length]).unwrap();
        }
    });
    let both = [
        tcp("a.example.org", server.port),
        tcp("b.example.org", server.port),
    ];
    let mut gateway = setup.start(&policy(&[], &both));
    let open = |name: &str| open_socks(&gateway, name, server.port);
    let (mut first, mut second) = (open("a.example.org"), open("b.example.org"));
    gateway.change_policy(&policy(&[], &both[1..]).to_string());
    assert!(matches!(first.read(&mut [0; 1]), Ok(0) | Err(_)));
    second.write_all(b"x").unwrap();
    second.read_exact(&mut [0; 1]).unwrap();
    let line = gateway.ended_by_policy(|line| line["event"] == "end");
    assert_eq!(line["host"], "a.example.org");
}

#[test]
fn what_is_open_to_a_private_address_ends_with_that_permission() {
    let server = crate::relays::plain_echo();
    let mut rule = tcp("a.example.org", server.port);
    let mut gateway = Gateway::start(&policy(&[], &[rule.clone()]));
    let mut stream = open_socks(&gateway, "a.example.org", server.port);
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0; 1]).unwrap();
    rule["private"] = false.into();
    gateway.change_policy(&policy(&[], &[rule]).to_string());
    assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)));
    gateway.ended_by_policy(|line| line["event"] == "end");
}

#[test]
fn nothing_new_is_allowed_while_the_audit_cannot_be_written() {
    let mut setup = Setup::new();
    let server = Server::echo(&setup.pki);
    setup.audit = "/dev/full".into();
    let gateway = setup.start(&policy(
        &[https("a.example.org", server.port, &["*"])],
        &[tcp("a.example.org", server.port)],
    ));
    let (head, body) = refused(&gateway, &format!("a.example.org:{}", server.port));
    assert!(head.starts_with("HTTP/1.1 503 Egress audit"), "{head}");
    assert_eq!(body["error"], "audit_unavailable");
    let (_, reply) = socks(&gateway, &by_name("a.example.org", server.port), 12);
    assert_eq!(reply[3], 1);
    assert_eq!(server.connections(), 0);
}

/// Files of the gateway can be as long as this, and no longer.
fn limit_files(gateway: &Gateway, length: Option<u64>) {
    let pid = Pid::from_raw(gateway.pid() as i32);
    let limit = Rlimit {
        current: length,
        maximum: None,
    };
    prlimit(pid, Resource::Fsize, limit).unwrap();
}

#[test]
fn an_open_connection_is_refused_when_the_disk_is_full_and_goes_on_after() {
    let setup = Setup::new();
    let server = Server::echo(&setup.pki);
    let mut gateway = setup.start(&policy(&[https("a.example.org", server.port, &["*"])], &[]));
    let host = format!("a.example.org:{}", server.port);
    let mut client = Client::open(&gateway, "a.example.org", server.port);
    assert_eq!(client.get(&host, "/before").status, 200);
    gateway.audited(|line| line["path"] == "/before");
    limit_files(&gateway, Some(0));
    // The first one finds out, all others are refused.
    let first = client.get(&host, "/first").status;
    assert!(matches!(first, 200 | 503));
    assert_eq!(client.get(&host, "/during").status, 503);
    assert_eq!(client.get(&host, "/during").status, 503);
    let told = gateway.told();
    assert_eq!(
        (&told["event"], &told["state"]),
        (&"audit".into(), &"failing".into())
    );
    limit_files(&gateway, None);
    let until = Instant::now() + PATIENCE;
    while client.get(&host, "/after").status != 200 {
        assert!(Instant::now() < until);
    }
    // Nothing was lost.
    for path in ["/first", "/during", "/after"] {
        gateway.audited(|line| line["path"] == path);
    }
    assert_eq!(gateway.told()["state"], "well");
}

#[test]
fn a_signal_ends_it_at_once_and_what_was_open_is_recorded() {
    for signal in [Signal::TERM, Signal::INT] {
        let setup = Setup::new();
        let server = Server::start(&setup.pki, |mut tls, seen| {
            let _ = crate::server::read_head(&mut tls);
            let _ = seen.send("asked".to_owned());
            let _ = crate::server::read_head(&mut tls);
        });
        let mut gateway = setup.start(&policy(&[https("a.example.org", server.port, &["*"])], &[]));
        let mut client = Client::open(&gateway, "a.example.org", server.port);
        client.send(&format!(
            "GET /open HTTP/1.1\r\nHost: a.example.org:{}\r\n\r\n",
            server.port
        ));
        server.next_seen();
        let pid = Pid::from_raw(gateway.pid() as i32).unwrap();
        kill_process(pid, signal).unwrap();
        let until = Instant::now() + PATIENCE;
        let status = loop {
            match gateway.child().try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(Instant::now() < until),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!((status.code(), status.signal()), (Some(0), None));
        gateway.audited(|line| line["path"] == "/open" && line["why"] == "the gateway has ended");
        gateway.audited(|line| line["kind"] == "gateway" && line["event"] == "end");
    }
}

#[test]
fn a_client_that_never_finishes_its_head_is_let_go() {
    let setup = Setup::new();
    let server = Server::echo(&setup.pki);
    let gateway = setup.start(&policy(&[https("a.example.org", server.port, &["*"])], &[]));
    let target = format!("a.example.org:{}", server.port);
    let silent = gateway.connect();
    let mut half_connect = gateway.connect();
    half_connect.write_all(b"CONNECT a.example").unwrap();
    // Byte after byte makes it no longer.
    let mut drip = half_connect.try_clone().unwrap();
    std::thread::spawn(move || {
        while drip.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    let (mut half_hello, _) = connect(&gateway, &target);
    half_hello.write_all(&[0x16, 3, 1, 2]).unwrap();
    let mut half_head = Client::open(&gateway, "a.example.org", server.port);
    half_head.send("GET / HTTP/1.1\r\nHost: ");
    let mut half_socks = TcpStream::connect(gateway.socks).unwrap();
    half_socks.set_read_timeout(Some(PATIENCE)).unwrap();
    half_socks.write_all(&[5]).unwrap();
    let rest = |mut stream: TcpStream| {
        let mut rest = Vec::new();
        let end = stream.read_to_end(&mut rest);
        (end.map_err(|error| error.kind()), rest)
    };
    for stream in [silent, half_hello, half_socks] {
        assert_eq!(rest(stream), (Ok(0), Vec::new()));
    }
    // A byte that comes in the last moment makes the end a reset.
    let (end, rest) = rest(half_connect);
    assert!(matches!(end, Ok(0) | Err(ErrorKind::ConnectionReset)));
    assert!(rest.is_empty());
    assert_eq!(half_head.read_answer(false).status, 408);
    assert_eq!(server.connections(), 0);
}

#[test]
fn the_wrong_authority_and_missing_files_refuse_the_start() {
    for (file, text) in [
        ("ca.key", None),
        ("roots.pem", Some("")),
        ("ca.pem", Some("nonsense")),
    ] {
        let setup = Setup::new();
        write_policy(setup.dir.path(), &policy(&[], &[]).to_string());
        match text {
            None => std::fs::remove_file(setup.dir.path().join(file)).unwrap(),
            Some(text) => std::fs::write(setup.dir.path().join(file), text).unwrap(),
        }
        let output = setup
            .command()
            .stderr(std::process::Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{file}");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            message.contains(file) && message.contains("umwelt-install install"),
            "{message}"
        );
    }
    let (setup, other) = (Setup::new(), Setup::new());
    write_policy(setup.dir.path(), &policy(&[], &[]).to_string());
    std::fs::copy(
        other.dir.path().join("ca.pem"),
        setup.dir.path().join("ca.pem"),
    )
    .unwrap();
    let output = setup
        .command()
        .stderr(std::process::Stdio::piped())
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not that of the authority's key"));
}

#[test]
fn a_rule_that_goes_between_connect_and_tls_does_not_count_any_more() {
    for inspect in [true, false] {
        let setup = Setup::new();
        let server = Server::echo(&setup.pki);
        let mut rule = https("a.example.org", server.port, &["*"]);
        rule["inspect"] = serde_json::json!(inspect);
        let mut gateway = setup.start(&policy(&[rule], &[]));
        let (stream, _) = connect(&gateway, &format!("a.example.org:{}", server.port));
        gateway.change_policy(&policy(&[], &[]).to_string());
        let trust = crate::client::config(&gateway.pki.gateway, &[]);
        let error = Client::over(stream, "a.example.org", trust).err().unwrap();
        assert!(error.contains("AccessDenied"), "{error}");
        assert_eq!(server.connections(), 0);
    }
}

#[test]
fn a_full_audit_file_is_moved_aside() {
    let mut setup = Setup::new();
    let server = Server::echo(&setup.pki);
    setup.more = ["--audit-size", "2000", "--audit-keep", "2"]
        .map(str::to_owned)
        .to_vec();
    let gateway = setup.start(&policy(&[https("a.example.org", server.port, &["*"])], &[]));
    let host = format!("a.example.org:{}", server.port);
    let mut client = Client::open(&gateway, "a.example.org", server.port);
    for _ in 0..60 {
        assert_eq!(client.get(&host, "/").status, 200);
    }
    let audits = || {
        let names = std::fs::read_dir(gateway.dir.path()).unwrap();
        let names = names.map(|name| name.unwrap().file_name());
        names
            .filter(|name| name.to_string_lossy().starts_with("audit"))
            .count()
    };
    // The last answer comes before its line, which may be the first of a file.
    let until = Instant::now() + PATIENCE;
    while audits() != 3 {
        assert!(Instant::now() < until, "{}", audits());
    }
}
