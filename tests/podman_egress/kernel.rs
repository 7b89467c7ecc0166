//! What the rules have counted, on record.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::podman_common::{PATIENCE, Sandbox, host, sandbox::Place, wait_for};
use crate::world::Internet;

const RULE: &str = "[[egress.tcp]]\nhost = \"a.example.org\"\nport = 80\nprivate = true\n";

/// Sums by verdict, protocol, host and port.
type Sums = BTreeMap<(String, String, String, u64), u64>;

fn entries(place: &Place) -> Vec<Value> {
    let dir = format!("data/umwelt/egress/audit-{}", place.name());
    let path = place.path().join(dir);
    let file = path.join(format!("kernel-{}.jsonl", place.sid()));
    let text = std::fs::read_to_string(file).unwrap_or_default();
    // It may be written right now.
    let lines = text.split_inclusive('\n');
    lines
        .filter(|line| line.ends_with('\n'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn sums(place: &Place) -> Sums {
    let mut sums = Sums::new();
    for entry in entries(place) {
        assert_eq!(entry["kind"], "kernel", "{entry}");
        assert_eq!(entry["type"], "umwelt-egress", "{entry}");
        assert_eq!(entry["workspace"], place.sid(), "{entry}");
        assert!(entry["bytes"].as_u64() > Some(0), "{entry}");
        let text = |key: &str| entry[key].as_str().unwrap().to_owned();
        let key = (
            text("verdict"),
            text("protocol"),
            text("host"),
            entry["port"].as_u64().unwrap(),
        );
        *sums.entry(key).or_default() += entry["count"].as_u64().unwrap();
    }
    sums
}

fn key(verdict: &str, protocol: &str, host: &str, port: u64) -> (String, String, String, u64) {
    (
        verdict.to_owned(),
        protocol.to_owned(),
        host.to_owned(),
        port,
    )
}

#[test]
fn attempts_and_direct_connections_are_counted_on_record() {
    if !host::qualifies() {
        return;
    }
    let internet = Internet::shared();
    let sandbox = Sandbox::start_at(internet.place(RULE));
    let address = internet.address.clone();
    let mut client = sandbox.client();
    let refused = "for i in 1 2 3; do (exec 3<>/dev/tcp/198.51.100.7/4444) 2>/dev/null; done";
    client.shell(refused);
    let datagram = format!(
        "python3 -c 'import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect((\"{address}\", 53)); s.send(b\"x\")'"
    );
    client.shell(&datagram);
    let fetch = format!("curl -sS --noproxy \"*\" http://{address}/x");
    for _ in 0..2 {
        assert_eq!(client.output(&fetch), "asked for /x\n");
    }
    // Whoever looks has what there is read.
    let expected = Sums::from([
        (key("deny", "tcp", "198.51.100.7", 4444), 3),
        (key("deny", "udp", &address, 53), 1),
        (key("allow", "tcp", &address, 80), 2),
    ]);
    let place = sandbox.place.clone();
    let total = |sums: &Sums| sums.values().sum::<u64>();
    let found = wait_for("the record", PATIENCE, || {
        sandbox.status();
        let sums = sums(&place);
        (total(&sums) >= total(&expected)).then_some(sums)
    });
    // Nothing of what umwelt has tried itself at the start.
    assert_eq!(found, expected);

    // What comes last is read before the sandbox goes.
    client.shell("(exec 3<>/dev/tcp/198.51.100.7/4444) 2>/dev/null; (exec 3<>/dev/tcp/198.51.100.8/1) 2>/dev/null");
    let place = sandbox.end_and_keep();
    let mut last = expected;
    last.insert(key("deny", "tcp", "198.51.100.7", 4444), 4);
    last.insert(key("deny", "tcp", "198.51.100.8", 1), 1);
    assert_eq!(sums(&place), last);
    place.assert_nothing_left();
}
