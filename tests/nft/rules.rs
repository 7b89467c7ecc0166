//! What the rules let through, what they refuse, and what they count.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::process::Command;

use rustix::net::{AddressFamily, SendFlags, SocketType};
use serde_json::{Value, json};

use crate::network::{Services, at, connect, connect_briefly, exchange_tcp, exchange_udp, send};
use crate::world::{
    GATEWAY, GATEWAY6, Holder, NFT, SANDBOX, TARGET, World, golden, read_back, stderr,
};

/// A service of which nothing may reach the sandbox, and the other way round.
const CLOSED: u16 = 8443;

fn allowed() -> [SocketAddr; 4] {
    [
        at(TARGET, 22),
        at(GATEWAY, 53),
        at(GATEWAY, 3128),
        at(GATEWAY, 1080),
    ]
}

fn denied() -> [SocketAddr; 5] {
    [
        at(TARGET, 23),
        at(TARGET, 3128),
        at(GATEWAY, 22),
        at(GATEWAY, CLOSED),
        at(GATEWAY6, 443),
    ]
}

fn denied_udp() -> [SocketAddr; 4] {
    [
        at(TARGET, 53),
        at(TARGET, 22),
        at(GATEWAY, 3128),
        at(GATEWAY6, 53),
    ]
}

fn services(world: &World) -> Services {
    let tcp = [&allowed()[..], &denied()].concat();
    let udp = [&[at(GATEWAY, 53)][..], &denied_udp()].concat();
    Services::start(&world.outside, &tcp, &udp)
}

#[test]
fn every_rendered_ruleset_is_valid_for_nft() {
    let Some(world) = World::new() else { return };
    for name in ["gateway-only.json", "one-target.json", "targets.json"] {
        let path = golden(name);
        let check = [NFT, "-c", "-j", "-f", path.to_str().unwrap()];
        let output = world.sandbox.run(&check);
        assert!(output.status.success(), "{name}: {output:?}");
    }
}

#[test]
fn without_rules_everything_is_reachable() {
    let Some(world) = World::new() else { return };
    let _services = services(&world);
    for to in allowed().into_iter().chain(denied()) {
        assert_eq!(connect(&world.sandbox, to), Ok(()), "{to}");
    }
    for to in denied_udp() {
        assert_eq!(send(&world.sandbox, to), Ok(()), "{to}");
    }
    let inside = at(SANDBOX, CLOSED);
    let _inside = Services::start(&world.sandbox, &[inside], &[]);
    assert_eq!(connect(&world.outside, inside), Ok(()));
}

#[test]
fn what_is_listed_works_and_all_else_is_refused_at_once() {
    let Some(world) = World::new() else { return };
    let services = services(&world);
    world.install();
    for to in allowed() {
        assert_eq!(connect(&world.sandbox, to), Ok(()), "{to}");
    }
    for to in denied() {
        let refused = Err(ErrorKind::ConnectionRefused);
        assert_eq!(connect(&world.sandbox, to), refused, "{to}");
    }
    for to in denied_udp() {
        let refused = Err(ErrorKind::PermissionDenied);
        assert_eq!(send(&world.sandbox, to), refused, "{to}");
    }
    std::thread::scope(|scope| {
        scope.spawn(|| services.answer_one());
        exchange_udp(&world.sandbox, at(GATEWAY, 53));
    });
}

#[test]
fn no_packet_leaves_that_is_not_allowed() {
    let Some(world) = World::new() else { return };
    let _services = services(&world);
    world.install();
    let capture = "add table inet seen; add chain inet seen c { type filter hook prerouting priority -300; }; add rule inet seen c iifname eth0 counter";
    let output = world.outside.run(&[NFT, capture]);
    assert!(output.status.success(), "{output:?}");
    for to in denied() {
        connect(&world.sandbox, to).unwrap_err();
    }
    let broadcast = at("192.0.2.255", 67);
    let others = [at("224.0.0.251", 5353), at("198.51.100.1", 123)];
    for to in denied_udp().into_iter().chain(others) {
        assert_eq!(
            send(&world.sandbox, to),
            Err(ErrorKind::PermissionDenied),
            "{to}"
        );
    }
    // Not even asked for by this socket.
    send(&world.sandbox, broadcast).unwrap_err();
    ping(&world.sandbox);
    assert_eq!(seen(&world), 0);
    connect(&world.sandbox, at(TARGET, 22)).unwrap();
    assert!(seen(&world) > 0);
}

/// The IP packets that have arrived on the outside.
fn seen(world: &World) -> u64 {
    let output = world
        .outside
        .run(&[NFT, "-j", "list", "chain", "inet", "seen", "c"]);
    let listing: Value = serde_json::from_slice(&output.stdout).unwrap();
    let objects = listing["nftables"].as_array().unwrap().iter();
    let packets =
        objects.filter_map(|object| object["rule"]["expr"][1]["counter"]["packets"].as_u64());
    packets.sum()
}

#[test]
fn data_flows_both_ways_over_an_allowed_connection() {
    let Some(world) = World::new() else { return };
    let services = Services::start(&world.outside, &[at(TARGET, 22)], &[]);
    world.install();
    std::thread::scope(|scope| {
        scope.spawn(|| services.serve_one());
        exchange_tcp(&world.sandbox, at(TARGET, 22));
    });
}

#[test]
fn the_sandbox_reaches_itself_and_nobody_else_reaches_it() {
    let Some(world) = World::new() else { return };
    world.install();
    let inside = [
        at("127.0.0.1", CLOSED),
        at("::1", CLOSED),
        at(SANDBOX, CLOSED),
    ];
    let _services = Services::start(&world.sandbox, &inside, &[]);
    for to in inside {
        assert_eq!(connect(&world.sandbox, to), Ok(()), "{to}");
    }
    let from_outside = connect_briefly(&world.outside, at(SANDBOX, CLOSED));
    assert_eq!(from_outside, Err(ErrorKind::TimedOut));
}

#[test]
fn refusals_and_direct_connections_are_counted() {
    let Some(world) = World::new() else { return };
    let _services = services(&world);
    world.install();
    for to in [at(TARGET, 22), at(TARGET, 22), at(GATEWAY, 3128)] {
        connect(&world.sandbox, to).unwrap();
    }
    for to in [at(TARGET, 23), at(TARGET, 23), at(GATEWAY6, 443)] {
        connect(&world.sandbox, to).unwrap_err();
    }
    send(&world.sandbox, at(TARGET, 53)).unwrap_err();
    ping(&world.sandbox);
    let mut counts = counted(&world)["counts"].take();
    for set in ["allowed", "denied"] {
        for count in counts[set].as_array_mut().unwrap() {
            // A header of IPv4 without options has 20 bytes.
            let bytes = count.as_object_mut().unwrap().remove("bytes").unwrap();
            assert!(
                bytes.as_u64() >= Some(20 * count["packets"].as_u64().unwrap()),
                "{bytes}"
            );
        }
    }
    let count = |address: &str, protocol: u8, port: u16, packets: u64| json!({"address": address, "protocol": protocol, "port": port, "packets": packets});
    // The gateway keeps its own record.
    assert_eq!(counts["allowed"], json!([count(TARGET, 6, 22, 2)]));
    assert_eq!(
        counts["denied"],
        json!([
            // Type 8, code 0.
            count(TARGET, 1, 0x0800, 1),
            count(TARGET, 6, 23, 2),
            count(TARGET, 17, 53, 1),
            count(GATEWAY6, 6, 443, 1),
        ])
    );
    assert!(counts["refused"].as_u64().unwrap() >= 5, "{counts}");
}

/// An echo request, which needs no privileges where the group is in a range.
fn ping(side: &Holder) {
    let open = "echo 0 0 >/proc/sys/net/ipv4/ping_group_range";
    let output = side.run(&["sh", "-c", open]);
    assert!(output.status.success(), "{output:?}");
    let sent = side.enter(|| {
        let icmp = Some(rustix::net::ipproto::ICMP);
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, icmp).unwrap();
        let request = [8, 0, 0, 0, 0, 1, 0, 1];
        rustix::net::sendto(&socket, &request, SendFlags::empty(), &at(TARGET, 0))
    });
    assert_eq!(sent, Err(rustix::io::Errno::PERM));
}

fn counted(world: &World) -> Value {
    let output = world.read_back();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// With a source route a packet has the gateway's address in its header, and
/// another one as its last stop.
#[test]
fn a_source_route_past_the_gateway_is_refused() {
    let Some(world) = World::new() else { return };
    let _services = services(&world);
    world.install();
    let connect = "
import errno, socket, sys
s = socket.socket()
s.settimeout(int(sys.argv[3]))
if sys.argv[1] == 'routed':
    gateway = socket.inet_aton('192.0.2.1')
    s.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, bytes([131, 7, 4]) + gateway + bytes(1))
try:
    s.connect((sys.argv[2], 3128))
    print('ok')
except TimeoutError:
    print('silent')
except OSError as error:
    print(errno.errorcode[error.errno])
";
    // A refusal in the name of the gateway is not understood by a client that
    // waits for another answer.
    for (how, to, limit, expected) in [
        ("plain", GATEWAY, "60", "ok\n"),
        ("routed", GATEWAY, "60", "ECONNREFUSED\n"),
        ("routed", "198.51.100.1", "1", "silent\n"),
    ] {
        let before = refused(&world);
        let words = ["python3", "-c", connect, how, to, limit];
        let output = world.sandbox.run(&words);
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{how}");
        assert_eq!(refused(&world) > before, how == "routed", "{how} {to}");
    }
}

/// The refused packets to the gateway's proxy port.
fn refused(world: &World) -> u64 {
    let counts = counted(world);
    let denied = counts["counts"]["denied"].as_array().unwrap().iter();
    let proxy = denied.filter(|count| count["address"] == GATEWAY && count["port"] == 3128);
    proxy.map(|count| count["packets"].as_u64().unwrap()).sum()
}

#[test]
fn more_destinations_than_a_set_holds_are_refused_all_the_same() {
    let Some(world) = World::new() else { return };
    let _services = services(&world);
    world.install();
    for port in 10_000..14_200 {
        send(&world.sandbox, at(TARGET, port)).unwrap_err();
    }
    let refused = Err(ErrorKind::ConnectionRefused);
    assert_eq!(connect(&world.sandbox, at(TARGET, 23)), refused);
    assert_eq!(connect(&world.sandbox, at(TARGET, 22)), Ok(()));
    let counts = &counted(&world)["counts"];
    assert_eq!(counts["denied"].as_array().unwrap().len(), 4096);
    assert!(counts["refused"].as_u64().unwrap() > 4200);
}

#[test]
fn as_many_targets_as_there_may_be_are_one_lookup() {
    let Some(world) = World::new() else { return };
    let text = std::fs::read_to_string(golden("one-target.json")).unwrap();
    let element = |port| format!(r#"{{"concat":["{TARGET}",{port}]}}"#);
    let elements: Vec<String> = (20_000..21_024).map(element).collect();
    let one = element(22);
    assert!(text.contains(&one));
    let path = world.path("many.json");
    std::fs::write(&path, text.replace(&one, &elements.join(","))).unwrap();
    let _services = Services::start(&world.outside, &[at(TARGET, 21_023), at(TARGET, 22)], &[]);
    let mut hook = world.hook();
    hook.digest = crate::world::digest(&path);
    hook.ruleset = path;
    let output = hook.run();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(connect(&world.sandbox, at(TARGET, 21_023)), Ok(()));
    assert!(connect(&world.sandbox, at(TARGET, 22)).is_err());
}

#[test]
fn an_ordinary_user_reads_back_what_is_in_a_sandbox_of_theirs() {
    let Some(world) = World::new() else { return };
    // As with keep-id: the same id inside, which is not root there.
    const USER: [&str; 4] = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"];
    let unshare = [
        "unshare",
        "--user",
        "--map-user=1000",
        "--map-group=1000",
        "--net",
    ];
    let sandbox = Holder::start(&[&USER[..], &unshare].concat());
    let ruleset = golden("one-target.json");
    sandbox.must(&format!("{NFT} -j -f {}", ruleset.to_str().unwrap()));
    let (exe, ruleset) = (world.path("umwelt"), world.path("ruleset.json"));
    std::fs::copy(golden("one-target.json"), &ruleset).unwrap();
    let copy = Command::new("install")
        .args(["-m", "0755", env!("CARGO_BIN_EXE_umwelt")])
        .arg(&exe)
        .status();
    assert!(copy.unwrap().success());
    world.open_folder();
    let output = read_back(exe.to_str().unwrap(), &USER, &sandbox, &ruleset);
    assert!(output.status.success(), "{}", stderr(&output));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["counts"]["denied"], json!([]));
    assert_eq!(found["digest"].as_str().unwrap().len(), 64);
}
