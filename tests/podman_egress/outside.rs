//! The way out as seen from outside. `tests/vm/egress.sh` sets the stage, which
//! only root can: a network namespace that stands for the rest of the world,
//! captures of all packets there and on the sandbox's own network, a resolver
//! that can go away, and a disk that can be full.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::podman_common::{Client, PATIENCE, Sandbox, host, wait_for};
use crate::world::{Internet, NAME, audit, networks};

const RULES: &str = "[[egress.https]]\nhost = \"a.example.org\"\nprivate = true\n[[egress.https]]\nhost = \"*.sub.example.org\"\nprivate = true\n[[egress.tcp]]\nhost = \"direct.example.org\"\nport = 80\nprivate = true\n";
const OUTSIDE: &str = "203.0.113.10";
const RESOLVER: &str = "203.0.113.53";
const OUTSIDE6: &str = "2001:db8:7::10";
const MARK: u16 = 9;

/// None where neither the stage is set nor a sandbox is required.
fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("UMWELT_TEST_OUTSIDE").map(PathBuf::from);
    if folder.is_none() {
        let required = std::env::var_os("UMWELT_REQUIRE_PODMAN").is_some();
        assert!(!required, "no stage is set; see tests/vm/egress.sh");
        eprintln!("skipped: UMWELT_TEST_OUTSIDE names no folder; see tests/vm/egress.sh");
    }
    folder
}

/// A container on podman's own network, which everything outside is open to.
struct Neighbour {
    name: String,
    address: String,
}

impl Neighbour {
    fn start() -> Neighbour {
        let name = format!("tb-egress-{}-neighbour", std::process::id());
        let command = ["umwelt:latest", "python3", "-m", "http.server", "80"];
        let named = format!("--name={name}");
        let mut args = vec![
            "run",
            "--detach",
            "--rm",
            "--pull=never",
            "--network=podman",
            &named,
        ];
        args.extend(command);
        host::podman(&args);
        // Removed whatever comes.
        let mut neighbour = Neighbour {
            name,
            address: String::new(),
        };
        neighbour.address = address(&neighbour.name);
        neighbour
    }

    /// The same attack where no rule stands in its way.
    fn attack(&self, targets: &Value) {
        let script = format!("python3 - '{targets}' <<'END'\n{ATTACK}\nEND\n");
        host::podman(&["exec", &self.name, "sh", "-c", &script]);
    }

    /// One packet more, which nothing else sends.
    fn mark(&self) {
        let script = format!(
            "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('{OUTSIDE}', {MARK}))"
        );
        host::podman(&["exec", &self.name, "python3", "-c", &script]);
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let mut command = std::process::Command::new("podman");
        drop(
            command
                .args(["rm", "--force", "--time=0", &self.name])
                .output(),
        );
    }
}

const ATTACK: &str = include_str!("attack.py");

fn address(container: &str) -> String {
    let format = "{{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}";
    let addresses = host::podman(&["inspect", "--format", format, container]);
    addresses.split_whitespace().next().unwrap().to_owned()
}

/// A line of a capture.
#[derive(Debug)]
struct Packet {
    hardware: String,
    protocol: String,
    source: String,
    target: String,
    port: u16,
}

/// What was captured after the first `skip` packets.
fn packets(file: &Path, skip: usize) -> Vec<Packet> {
    let text = std::fs::read_to_string(file).unwrap();
    let lines = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    let parse = |line: &str| {
        let mut words = line.split_whitespace().map(str::to_owned);
        let mut next = || words.next().unwrap();
        Packet {
            hardware: next(),
            protocol: next(),
            source: next(),
            target: next(),
            port: next().parse().unwrap(),
        }
    };
    lines.skip(skip).map(parse).collect()
}

#[test]
fn nothing_leaves_a_sandbox_but_what_a_rule_allows() {
    let Some(folder) = folder() else { return };
    assert!(host::qualifies());
    let internet = Internet::outside(&folder);
    let sandbox = Sandbox::start_at(internet.place(RULES));
    let mut client = sandbox.client();
    // One command makes all the tries.
    client.patience = PATIENCE * 4;
    attack(&folder, &sandbox, &mut client);
    resolver_gone(&folder, &mut client);
    disk_full(&folder, &sandbox, &mut client);
    sandbox.end_and_check();
}

fn attack(folder: &Path, sandbox: &Sandbox, client: &mut Client) {
    let neighbour = Neighbour::start();
    let gateway = client.output("sed -n 's/nameserver //p' /etc/resolv.conf");
    let gateway = gateway.trim();
    let bridge = host::podman(&[
        "network",
        "inspect",
        "--format",
        "{{range .Subnets}}{{.Gateway}}{{end}}",
        &networks(&sandbox.place)[0],
    ]);
    let mut targets = json!({
        "limit": 3,
        "gateway": gateway,
        "outside": OUTSIDE,
        "outside6": OUTSIDE6,
        "resolver": RESOLVER,
        "others": [neighbour.address, "10.88.0.1", bridge.trim(), "10.0.2.15"],
        "direct": [[OUTSIDE, 80]],
    });
    // Without rules it is seen, so the capture and the attack are good for something.
    let (out, inner) = (
        folder.join("outside.packets"),
        folder.join("inside.packets"),
    );
    neighbour.attack(&targets);
    neighbour.mark();
    // With it all of that is in the capture, which a slow machine may be behind with.
    let seen = wait_for("the mark", PATIENCE, || {
        let seen = packets(&out, 0);
        let is_mark = |packet: &Packet| (&*packet.target, packet.port) == (OUTSIDE, MARK);
        seen.iter().any(is_mark).then_some(seen)
    });
    for (protocol, port) in [("6", 443), ("6", 22), ("17", 123), ("17", 53)] {
        let is_it = |packet: &Packet| packet.protocol == protocol && packet.port == port;
        assert!(seen.iter().any(is_it), "no {protocol} {port} in {seen:?}");
    }

    let skip = (packets(&out, 0).len(), packets(&inner, 0).len());
    let asked = std::fs::read_to_string(folder.join("names")).unwrap().len();
    let hardware = client.output("cat /sys/class/net/eth0/address");
    std::fs::write(sandbox.workspace().join("attack.py"), ATTACK).unwrap();
    assert_eq!(
        client.output(&format!("curl -sS -m 30 https://{NAME}/before")),
        "asked for /before\n"
    );
    targets["limit"] = 40.into();
    let tries = client.output(&format!("python3 attack.py '{targets}'"));
    let fetch = "timeout 30 curl -sS --noproxy '*' http://direct.example.org/after";
    assert_eq!(client.output(fetch), "asked for /after\n");

    let tries: Vec<Value> = tries
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(tries.len() > 100, "{tries:?}");
    let (refused, other): (Vec<&Value>, Vec<&Value>) =
        tries.iter().partition(|one| one.get("refused").is_some());
    eprintln!("{} refused, others: {other:?}", refused.len());
    assert!(other.is_empty(), "{other:?}");

    // On its own network: the gateway's ports and the direct target.
    let allowed = [
        (gateway, 53),
        (gateway, 1080),
        (gateway, 3128),
        (OUTSIDE, 80),
    ];
    let sent: Vec<Packet> = wait_for("the last packet", PATIENCE, || {
        let mut sent = packets(&inner, skip.1);
        sent.retain(|packet| packet.hardware == hardware.trim());
        let last = |packet: &Packet| (&*packet.target, packet.port) == (OUTSIDE, 80);
        sent.iter().any(last).then_some(sent)
    });
    assert!(sent.iter().any(|packet| packet.port == 3128), "{sent:?}");
    let is_allowed = |packet: &&Packet| {
        let protocols = if packet.port == 53 { "17 6" } else { "6" };
        allowed.contains(&(&*packet.target, packet.port))
            && protocols
                .split(' ')
                .any(|protocol| protocol == packet.protocol)
    };
    let leaks: Vec<&Packet> = sent.iter().filter(|packet| !is_allowed(packet)).collect();
    assert!(leaks.is_empty(), "{leaks:?}");

    // In the rest of the world: what the gateway does for it.
    let allowed = [(OUTSIDE, 443), (OUTSIDE, 80), (RESOLVER, 53)];
    let arrived = wait_for("the last packet outside", PATIENCE, || {
        let arrived = packets(&out, skip.0);
        let last = |packet: &Packet| (&*packet.target, packet.port) == (OUTSIDE, 80);
        arrived.iter().any(last).then_some(arrived)
    });
    let is_leak = |packet: &&Packet| {
        let ends = [&*packet.source, &*packet.target];
        // Neighbours on the link that talk about themselves.
        let is_local = ends
            .iter()
            .any(|end| end.starts_with("fe80:") || end.starts_with("ff02:"));
        let is_answer = [OUTSIDE, RESOLVER].contains(&ends[0])
            // Of the host, to an answer that came too late.
            || (packet.protocol == "1" && ends[1] == RESOLVER);
        !is_local && !is_answer && !allowed.contains(&(ends[1], packet.port))
    };
    let leaks: Vec<&Packet> = arrived.iter().filter(is_leak).collect();
    assert!(leaks.is_empty(), "{leaks:?}");
    let names = std::fs::read_to_string(folder.join("names")).unwrap();
    let names: Vec<&str> = names[asked..].lines().collect();
    assert!(names.contains(&NAME), "{names:?}");
    assert!(
        names
            .iter()
            .all(|name| [NAME, "direct.example.org"].contains(name)),
        "{names:?}"
    );
    is_recorded(sandbox);
}

/// Every try that came to the gateway.
fn is_recorded(sandbox: &Sandbox) {
    let entries = audit(&sandbox.place);
    for (kind, host) in [
        ("https", OUTSIDE),
        ("https", "169.254.169.254"),
        ("https", "localhost"),
        ("https", "stolen.example.org"),
        ("tcp", "169.254.169.254"),
        ("tcp", "10.0.2.15"),
        ("dns", "stolen.example.org"),
        ("dns", "c3rvbgvu.x.example.org"),
    ] {
        let is_it = |entry: &&Value| {
            entry["kind"] == kind && entry["host"] == host && entry["verdict"] == "deny"
        };
        assert!(
            entries.iter().any(|entry| is_it(&entry)),
            "no {kind} {host} in {entries:?}"
        );
    }
}

/// Names that were not asked for before: refused and said while the resolver is
/// gone, and well again after.
fn resolver_gone(folder: &Path, client: &mut Client) {
    let fetch = |name: &str| format!("curl -sS -m 30 https://{name}.sub.example.org/x");
    assert_eq!(client.output(&fetch("one")), "asked for /x\n");
    std::fs::write(folder.join("gone"), "").unwrap();
    // Each time another name: the last answer may come after the first question.
    let mut names = (0..).map(|number| format!("gone{number}"));
    let said = wait_for("the resolver's end", PATIENCE, || {
        let result = client.shell(&fetch(&names.next()?));
        let said = result["output"].as_str().unwrap().to_owned();
        said.contains("upstream_failed").then_some(said)
    });
    assert!(
        said.contains("resolver") || said.contains("address"),
        "{said}"
    );
    std::fs::remove_file(folder.join("gone")).unwrap();
    wait_for("the resolver", PATIENCE, || {
        let result = client.shell(&fetch("three"));
        (result["output"] == "asked for /x\n").then_some(())
    });
}

/// The disk of the audit has no room: nothing new is allowed, and that is said.
fn disk_full(folder: &Path, sandbox: &Sandbox, client: &mut Client) {
    let fetch = format!("curl -sS -m 30 https://{NAME}/full");
    // Which shows what the proxy says to a CONNECT.
    let verbose = format!("curl -v -m 30 https://{NAME}/full");
    let filler = folder.join("data/filler");
    // As much as there is room for.
    let is_full = std::fs::write(&filler, vec![0; 16 << 20]).is_err();
    assert!(is_full);
    wait_for("a refusal", PATIENCE, || {
        let result = client.shell(&verbose);
        let said = result["output"].as_str().unwrap();
        said.contains("503 Egress audit cannot be written")
            .then_some(())
    });
    let problem = || sandbox.status()["egress"]["audit_problem"].clone();
    wait_for("the word of it", PATIENCE, || {
        problem().is_string().then_some(())
    });
    std::fs::remove_file(filler).unwrap();
    wait_for("room", PATIENCE, || {
        let result = client.shell(&fetch);
        (result["output"] == "asked for /full\n").then_some(())
    });
    wait_for("the end of it", PATIENCE, || {
        problem().is_null().then_some(())
    });
    assert_eq!(sandbox.status()["egress"]["gateway"], "ready");
}
