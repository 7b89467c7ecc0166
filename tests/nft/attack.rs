//! Every way out that a sandbox may try, with a gateway and a capture on the far
//! side of the cable: no packet leaves but what the rules are for.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::authority::Pki;
use crate::world::{GATEWAY, GATEWAY6, Holder, TARGET, World};

const ATTACK: &str = include_str!("../podman_egress/attack.py");
const CAPTURE: &str = include_str!("../vm/capture.py");

/// A program in a network, until this is dropped.
struct Running(Child);

impl Running {
    /// Waits for its first line, on stdout or on stderr.
    fn start(side: &Holder, words: &[&str], speaks_on_stderr: bool) -> (Running, String) {
        let mut command = Command::new("nsenter");
        command.args(["--target", &side.pid(), "--net", "--"]);
        command.args(words).stdin(Stdio::null());
        match speaks_on_stderr {
            true => command.stderr(Stdio::piped()),
            false => command.stdout(Stdio::piped()),
        };
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        match (child.stdout.take(), child.stderr.take()) {
            (Some(stdout), _) => BufReader::new(stdout).read_line(&mut line),
            (None, Some(stderr)) => BufReader::new(stderr).read_line(&mut line),
            (None, None) => panic!("it has no pipe"),
        }
        .unwrap();
        (Running(child), line)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn start_gateway(world: &World) -> Running {
    let path = |name: &str| world.path(name).to_str().unwrap().to_owned();
    Pki::create(world.path("").as_path());
    let policy = json!({"version": 1, "workspace": "0123abcd", "https": [], "hosts": [],
        "tcp": [{"host": TARGET, "port": 22, "private": true, "origin": "base"}]});
    std::fs::write(path("policy.json"), policy.to_string()).unwrap();
    let option = |name: &str, file: &str| format!("--{name}={}", path(file));
    let options = [
        option("policy", "policy.json"),
        option("ca-cert", "ca.pem"),
        option("ca-key", "ca.key"),
        option("roots", "roots.pem"),
        option("audit", "audit.jsonl"),
        format!("--listen={GATEWAY}"),
    ];
    let mut words = vec![env!("CARGO_BIN_EXE_umwelt"), "gateway"];
    words.extend(options.iter().map(String::as_str));
    let (gateway, said) = Running::start(&world.outside, &words, false);
    assert!(said.contains("ready"), "{said}");
    gateway
}

/// Runs the attack in the sandbox's network, without any privilege; what became
/// of each try, and what arrived: protocol, target, port.
fn attack(world: &World, limit: u32) -> (Vec<Value>, Vec<(String, String, String)>) {
    let path = |name: &str| world.path(name).to_str().unwrap().to_owned();
    for (name, text) in [
        ("attack.py", ATTACK),
        ("capture.py", CAPTURE),
        ("wanted", ""),
    ] {
        std::fs::write(path(name), text).unwrap();
    }
    let script = format!(
        "exec python3 {} {} >{}",
        path("capture.py"),
        path("wanted"),
        path("packets")
    );
    let (mut capture, said) = Running::start(&world.outside, &["sh", "-c", &script], true);
    assert_eq!(said, "ready\n");
    let targets = json!({
        "limit": limit, "gateway": GATEWAY, "outside": TARGET, "outside6": GATEWAY6,
        "resolver": "203.0.113.53", "others": ["198.51.100.9", "10.0.2.15"], "direct": [[TARGET, 22]],
    });
    let targets = targets.to_string();
    let bare = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    let mut words = bare.to_vec();
    words.extend(["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]);
    let script = path("attack.py");
    words.extend(["/usr/bin/python3", &script, &targets]);
    let output = world.sandbox.run(&words);
    assert!(output.status.success(), "{output:?}");
    let tries = String::from_utf8(output.stdout).unwrap();
    // It reads to the end of what is there, and ends.
    std::fs::remove_file(path("wanted")).unwrap();
    assert!(capture.0.wait().unwrap().success());
    let hardware = world.sandbox.run(&["ip", "-o", "link", "show", "eth0"]);
    let hardware = String::from_utf8(hardware.stdout).unwrap();
    let packets = std::fs::read_to_string(path("packets")).unwrap();
    let words = packets
        .lines()
        .map(|line| line.split(' ').collect::<Vec<&str>>());
    let sent = words.filter(|words| hardware.contains(words[0]));
    (
        tries
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
        sent.map(|words| (words[1].into(), words[3].into(), words[4].into()))
            .collect(),
    )
}

#[test]
fn no_packet_leaves_but_what_the_rules_are_for() {
    let Some(world) = World::new() else { return };
    world.open_folder();
    let _gateway = start_gateway(&world);
    // Without the table it is seen, so the attack and the capture are good for something.
    let (_, seen) = attack(&world, 2);
    for (protocol, target, port) in [
        ("6", TARGET, "443"),
        ("17", TARGET, "123"),
        ("17", GATEWAY, "4500"),
    ] {
        let wanted = (protocol.to_owned(), target.to_owned(), port.to_owned());
        assert!(seen.contains(&wanted), "no {wanted:?} in {seen:?}");
    }

    world.install();
    let (tries, sent) = attack(&world, 60);
    assert!(tries.len() > 100, "{tries:?}");
    let other: Vec<&Value> = tries
        .iter()
        .filter(|one| one.get("refused").is_none())
        .collect();
    assert!(other.is_empty(), "{other:?}");
    assert!(sent.iter().any(|(_, _, port)| port == "3128"), "{sent:?}");
    let is_allowed = |(protocol, target, port): &&(String, String, String)| {
        let dns = ["17", "6"].contains(&&**protocol) && port == "53";
        target == GATEWAY && (dns || protocol == "6" && ["1080", "3128"].contains(&&**port))
    };
    let leaks: Vec<_> = sent.iter().filter(|packet| !is_allowed(packet)).collect();
    assert!(leaks.is_empty(), "{leaks:?}");
    is_recorded(&world);
}

/// Every try that came to the gateway.
fn is_recorded(world: &World) {
    let text = std::fs::read_to_string(world.path("audit.jsonl")).unwrap();
    for (kind, host) in [
        ("https", TARGET),
        ("https", "169.254.169.254"),
        ("https", "localhost"),
        ("https", "host.containers.internal"),
        ("tcp", "127.0.0.1"),
        ("tcp", "10.0.2.15"),
        ("dns", "stolen.example.org"),
        ("dns", "c3rvbgvu.x.example.org"),
    ] {
        let (kind, host) = (
            format!("\"kind\":\"{kind}\""),
            format!("\"host\":\"{host}\""),
        );
        let is_it = |line: &str| {
            line.contains(&kind) && line.contains(&host) && line.contains("\"verdict\":\"deny\"")
        };
        assert!(text.lines().any(is_it), "no {kind} {host} in {text}");
    }
}
