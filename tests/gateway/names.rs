//! Names: answered where the policy names them, and addresses that a name may
//! not lead to.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use crate::gateway::{Gateway, PATIENCE, Setup, https, policy, tcp};
use crate::relays::{by_name, socks};
use crate::server::Server;

const A: u16 = 1;
const AAAA: u16 = 28;

fn question(name: &str, kind: u16) -> Vec<u8> {
    let mut out = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        out.push(label.len() as u8);
        out.extend_from_slice(label.as_bytes());
    }
    out.push(0);
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&[0, 1]);
    out
}

fn name_of(message: &[u8]) -> (String, u16) {
    let mut labels = Vec::new();
    let mut at = 12;
    while message[at] != 0 {
        let length = usize::from(message[at]);
        labels.push(String::from_utf8_lossy(&message[at + 1..=at + length]).into_owned());
        at += length + 1;
    }
    (
        labels.join("."),
        u16::from_be_bytes([message[at + 1], message[at + 2]]),
    )
}

/// An answer to a question: a code, or addresses of its kind.
fn answer(message: &[u8], code: u8, addresses: &[IpAddr]) -> Vec<u8> {
    let (name, kind) = name_of(message);
    let mut out = question(&name, kind);
    out[..2].copy_from_slice(&message[..2]);
    out[2] = 0x81;
    out[3] = 0x80 | code;
    let fitting = addresses
        .iter()
        .filter(|address| address.is_ipv4() == (kind == A));
    for address in fitting {
        out[7] += 1;
        out.extend_from_slice(&[0xc0, 12]);
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&[0, 1, 0, 0, 0, 30]);
        match address {
            IpAddr::V4(address) => {
                out.extend_from_slice(&[&[0, 4][..], &address.octets()].concat())
            }
            IpAddr::V6(address) => {
                out.extend_from_slice(&[&[0, 16][..], &address.octets()].concat())
            }
        }
    }
    out
}

/// A resolver that answers as told and tells what it was asked.
struct Resolver {
    address: SocketAddr,
    asked: Receiver<String>,
}

impl Resolver {
    fn start(answers: impl Fn(&str) -> Option<Vec<IpAddr>> + Send + Sync + 'static) -> Resolver {
        Resolver::start_at("127.0.0.1:0".parse().unwrap(), answers)
    }

    fn start_at(
        address: SocketAddr,
        answers: impl Fn(&str) -> Option<Vec<IpAddr>> + Send + Sync + 'static,
    ) -> Resolver {
        // A port of the kernel's choice for TCP is not always free for UDP.
        let bound = (0..20).find_map(|_| {
            let tcp = TcpListener::bind(address).unwrap();
            let udp = UdpSocket::bind(tcp.local_addr().unwrap()).ok()?;
            Some((tcp, udp))
        });
        let (tcp, udp) = bound.unwrap();
        let address = tcp.local_addr().unwrap();
        let answers = std::sync::Arc::new(answers);
        let (tell, asked) = channel();
        let over_udp = (answers.clone(), tell.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((length, from)) = udp.recv_from(&mut buffer) {
                let message = &buffer[..length];
                let (name, _) = name_of(message);
                let _ = over_udp.1.send(format!("udp {name}"));
                let reply = match (over_udp.0)(&name) {
                    Some(addresses) => answer(message, 0, &addresses),
                    None => answer(message, 3, &[]),
                };
                // A forged answer first: another id. It must not be believed.
                let mut forged = answer(message, 0, &["192.0.2.66".parse().unwrap()]);
                forged[0] ^= 0xff;
                udp.send_to(&forged, from).unwrap();
                let mut reply = reply;
                if name.starts_with("big") {
                    reply.truncate(question(&name, A).len());
                    reply[2] |= 2;
                    reply[7] = 0;
                }
                udp.send_to(&reply, from).unwrap();
            }
        });
        std::thread::spawn(move || {
            for stream in tcp.incoming() {
                let mut stream = stream.unwrap();
                let message = read_framed(&mut stream);
                let (name, _) = name_of(&message);
                let _ = tell.send(format!("tcp {name}"));
                let reply = answer(&message, 0, &answers(&name).unwrap());
                write_framed(&mut stream, &reply);
            }
        });
        Resolver { address, asked }
    }
}

fn read_framed(stream: &mut TcpStream) -> Vec<u8> {
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut message = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut message).unwrap();
    message
}

fn write_framed(stream: &mut TcpStream, message: &[u8]) {
    stream
        .write_all(&(message.len() as u16).to_be_bytes())
        .unwrap();
    stream.write_all(message).unwrap();
}

fn with_resolver(resolver: &Resolver, policy: &Value) -> Gateway {
    let mut setup = Setup::new();
    setup.more = vec!["--resolver".to_owned(), resolver.address.to_string()];
    setup.start(policy)
}

fn ask(gateway: &Gateway, name: &str, kind: u16) -> Vec<u8> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(gateway.dns).unwrap();
    socket.send(&question(name, kind)).unwrap();
    let mut buffer = [0; 2048];
    let length = socket.recv(&mut buffer).unwrap();
    buffer[..length].to_vec()
}

/// Code, number of answers, last bytes.
fn shown(answer: &[u8]) -> (u8, u8, Vec<u8>) {
    (
        answer[3] & 0xf,
        answer[7],
        answer[answer.len() - 4..].to_vec(),
    )
}

fn rule(host: &str, private: bool) -> Value {
    let mut rule = https(host, 443, &["*"]);
    rule["private"] = json!(private);
    rule
}

#[test]
fn only_names_of_the_policy_are_answered() {
    let resolver = Resolver::start(|name| match name {
        "no.wild.example.com" => None,
        _ => Some(vec![
            "192.0.2.7".parse().unwrap(),
            "2001:db8::7".parse().unwrap(),
        ]),
    });
    let rules = [
        rule("named.example.com", false),
        rule("*.wild.example.com", false),
    ];
    let gateway = with_resolver(&resolver, &policy(&rules, &[tcp("git.example.com", 22)]));
    for name in [
        "named.example.com",
        "NAMED.Example.COM",
        "x.wild.example.com",
        "git.example.com",
    ] {
        let (code, count, end) = shown(&ask(&gateway, name, A));
        assert_eq!((code, count, end), (0, 1, vec![192, 0, 2, 7]), "{name}");
        let (code, count, end) = shown(&ask(&gateway, name, AAAA));
        assert_eq!((code, count, end), (0, 1, vec![0, 0, 0, 7]), "{name}");
        // Other kinds are never asked for.
        assert_eq!(shown(&ask(&gateway, name, 16)).1, 0, "{name}");
    }
    assert_eq!(shown(&ask(&gateway, "no.wild.example.com", A)).0, 3);
    while let Ok(asked) = resolver.asked.try_recv() {
        assert!(asked.ends_with(".com"), "{asked}");
    }
    for name in [
        "data.attacker.example",
        "wild.example.com",
        "example.com",
        "sub.named.example.com",
    ] {
        assert_eq!(shown(&ask(&gateway, name, A)).0, 3, "{name}");
        gateway.audited(|line| {
            line["kind"] == "dns" && line["host"] == name && line["verdict"] == "deny"
        });
    }
    assert!(
        resolver.asked.try_recv().is_err(),
        "a denied name was asked for"
    );
    gateway.audited(|line| {
        line["kind"] == "dns" && line["host"] == "x.wild.example.com" && line["verdict"] == "allow"
    });
    // A hosts entry needs no resolver.
    assert_eq!(
        shown(&ask(&gateway, "a.example.org", A)),
        (0, 1, vec![127, 0, 0, 1])
    );
    assert_eq!(shown(&ask(&gateway, "a.example.org", AAAA)).1, 0);
}

#[test]
fn names_are_answered_over_tcp_too() {
    let resolver = Resolver::start(|_| Some(vec!["192.0.2.7".parse().unwrap()]));
    let gateway = with_resolver(&resolver, &policy(&[rule("named.example.com", false)], &[]));
    let mut stream = TcpStream::connect(gateway.dns).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for (name, code) in [
        ("named.example.com", 0),
        ("other.example.com", 3),
        ("named.example.com", 0),
    ] {
        write_framed(&mut stream, &question(name, A));
        assert_eq!(shown(&read_framed(&mut stream)).0, code);
    }
}

#[test]
fn a_client_that_has_asked_all_still_gets_the_answer() {
    let resolver = Resolver::start(|_| Some(vec!["192.0.2.7".parse().unwrap()]));
    let gateway = with_resolver(&resolver, &policy(&[rule("named.example.com", false)], &[]));
    let mut stream = TcpStream::connect(gateway.dns).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write_framed(&mut stream, &question("named.example.com", A));
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(shown(&read_framed(&mut stream)).2, [192, 0, 2, 7]);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn answers_are_kept_and_cut_ones_asked_for_over_tcp() {
    let resolver = Resolver::start(|_| Some(vec!["192.0.2.7".parse().unwrap()]));
    let gateway = with_resolver(&resolver, &policy(&[rule("*.example.com", false)], &[]));
    for _ in 0..3 {
        assert_eq!(shown(&ask(&gateway, "a.example.com", A)).2, [192, 0, 2, 7]);
    }
    assert_eq!(
        resolver.asked.try_iter().collect::<Vec<_>>(),
        ["udp a.example.com"]
    );
    assert_eq!(
        shown(&ask(&gateway, "big.example.com", A)).2,
        [192, 0, 2, 7]
    );
    assert_eq!(
        resolver.asked.try_iter().collect::<Vec<_>>(),
        ["udp big.example.com", "tcp big.example.com"]
    );
}

#[test]
fn a_resolver_that_is_gone_is_said_so_at_once() {
    let mut setup = Setup::new();
    // An address of this test's own, as the port must be free later, for TCP too.
    let nobody = UdpSocket::bind("127.0.0.53:0")
        .unwrap()
        .local_addr()
        .unwrap();
    setup.more = vec!["--resolver".to_owned(), nobody.to_string()];
    let rules = [
        rule("named.example.com", false),
        rule("other.example.com", false),
    ];
    let mut gateway = setup.start(&policy(&rules, &[]));
    assert_eq!(shown(&ask(&gateway, "named.example.com", A)).0, 2);
    let state = |told: Value| (told["event"].clone(), told["state"].clone());
    let is = |word: &str| (Value::from("resolver"), Value::from(word));
    assert_eq!(state(gateway.told()), is("silent"));
    let answer = crate::client::get(&gateway, "named.example.com", 443, "/");
    assert_eq!(answer.status, 502);
    assert!(
        answer.text().contains("no resolver could tell"),
        "{}",
        answer.text()
    );
    // An answer is a sign of life, also that there is no such name.
    let _back = Resolver::start_at(nobody, |_| None);
    assert_eq!(shown(&ask(&gateway, "other.example.com", A)).0, 3);
    assert_eq!(state(gateway.told()), is("well"));
}

#[test]
fn a_name_that_leads_to_a_private_address_is_not_dialled() {
    let setup = Setup::new();
    let server = Server::echo(&setup.pki);
    let port = server.port;
    let resolver = Resolver::start(|name| {
        let addresses: &[&str] = match name.split('.').next().unwrap() {
            "loop" => &["127.0.0.1"],
            "mapped" => &["::ffff:127.0.0.1"],
            "six" => &["::1"],
            "meta" => &["169.254.169.254"],
            "lan" => &["10.1.2.3"],
            // One good address does not make up for a bad one.
            "mixed" => &["198.41.0.4", "127.0.0.1"],
            "none" => &["0.0.0.0"],
            _ => &[],
        };
        Some(
            addresses
                .iter()
                .map(|address| address.parse().unwrap())
                .collect(),
        )
    });
    let mut strict = https("*.example.com", port, &["*"]);
    strict["private"] = json!(false);
    let mut fixed = https("b.example.org", port, &["*"]);
    fixed["private"] = json!(false);
    let mut only_literal = https("127.0.0.1", port, &["*"]);
    only_literal["private"] = json!(false);
    let zero = https("none.example.com", port, &["*"]);
    let rules = [
        strict,
        fixed,
        only_literal,
        zero,
        https("a.example.org", port, &["*"]),
    ];
    let mut strict_tcp = tcp("loop.example.com", port);
    strict_tcp["private"] = json!(false);
    let gateway = with_resolver(&resolver, &policy(&rules, &[strict_tcp]));
    for name in ["loop", "mapped", "six", "meta", "lan", "mixed", "none"] {
        let answer = crate::client::get(&gateway, &format!("{name}.example.com"), port, "/");
        assert_eq!(answer.status, 403, "{name}: {}", answer.text());
        assert!(
            answer.json()["hint"]
                .as_str()
                .unwrap()
                .contains("private = true"),
            "{name}"
        );
    }
    // A hosts entry sets the address of its name, and allows nothing.
    assert_eq!(
        crate::client::get(&gateway, "b.example.org", port, "/").status,
        403
    );
    assert_eq!(server.connections(), 0);
    let line =
        gateway.audited(|line| line["host"] == "meta.example.com" && line["kind"] == "https");
    assert_eq!(line["verdict"], "deny");
    let (_, reply) = socks(&gateway, &by_name("loop.example.com", port), 12);
    assert_eq!(reply[3], 2);
    assert_eq!(server.connections(), 0);
    drop(setup);
}

#[test]
fn a_rule_for_the_address_or_with_private_reaches_it() {
    let setup = Setup::new();
    let server = Server::echo(&setup.pki);
    let mut literal = https("127.0.0.1", server.port, &["*"]);
    literal["private"] = json!(false);
    let gateway = setup.start(&policy(
        &[literal, https("a.example.org", server.port, &["*"])],
        &[],
    ));
    for host in ["127.0.0.1", "a.example.org"] {
        assert_eq!(
            crate::client::get(&gateway, host, server.port, "/").status,
            200,
            "{host}"
        );
    }
}

#[test]
fn odd_packets_are_answered_or_ignored_and_do_no_harm() {
    let gateway = Gateway::start(&policy(&[rule("*.example.com", false)], &[]));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(gateway.dns).unwrap();
    let good = question("a.example.org", A);
    for cut in 0..good.len() {
        socket.send(&good[..cut]).unwrap();
        let mut changed = good.clone();
        changed[cut] ^= 0xff;
        socket.send(&changed).unwrap();
    }
    assert_eq!(
        shown(&ask(&gateway, "a.example.org", A)),
        (0, 1, vec![127, 0, 0, 1])
    );
}

#[test]
fn a_kept_connection_to_a_private_address_serves_no_rule_that_forbids_it() {
    let setup = Setup::new();
    let server = Server::echo(&setup.pki);
    let mut public = https("a.example.org", server.port, &["/out"]);
    public["private"] = json!(false);
    let private = https("a.example.org", server.port, &["/in"]);
    let gateway = setup.start(&policy(&[public, private], &[]));
    let host = format!("a.example.org:{}", server.port);
    let mut client = crate::client::Client::open(&gateway, "a.example.org", server.port);
    assert_eq!(client.get(&host, "/in").status, 200);
    assert_eq!(client.get(&host, "/out").status, 403);
    assert_eq!(client.get(&host, "/in").status, 200);
    assert_eq!(server.connections(), 1);
}
