//! The host's resolv.conf(5) -> the resolvers that the gateway asks.

use std::net::IpAddr;
use std::path::Path;

/// As the resolver of the C library has it.
const MOST: usize = 3;

/// What is said where there are none.
pub(crate) const NONE: &str =
    "the host has no resolver that a container can reach: only names of [[hosts]] are known inside";

/// The host's resolvers. systemd-resolved listens on the loopback, which is
/// another one in a container, so the ones that it asks are taken.
pub(crate) fn of_host() -> Vec<IpAddr> {
    let read = |path: &str| std::fs::read_to_string(Path::new(path)).unwrap_or_default();
    select(
        &read("/etc/resolv.conf"),
        &read("/run/systemd/resolve/resolv.conf"),
    )
}

fn select(configured: &str, behind_the_stub: &str) -> Vec<IpAddr> {
    let reachable = |text: &str| -> Vec<IpAddr> {
        let addresses = text.lines().filter_map(nameserver);
        addresses
            .filter(|address| !is_local(*address))
            .take(MOST)
            .collect()
    };
    let found = reachable(configured);
    // One that runs on the host alone knows what it was set up with.
    let is_stub = configured.lines().filter_map(nameserver).any(is_local);
    match found.is_empty() && is_stub {
        true => reachable(behind_the_stub),
        false => found,
    }
}

fn nameserver(line: &str) -> Option<IpAddr> {
    let mut words = line.split_ascii_whitespace();
    (words.next() == Some("nameserver")).then_some(())?;
    // A zone (`%eth0`) means an interface of the host.
    words.next()?.parse().ok()
}

fn is_local(address: IpAddr) -> bool {
    address.is_loopback() || address.is_unspecified()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(configured: &str, behind: &str) -> Vec<String> {
        let found = select(configured, behind).into_iter();
        found.map(|address| address.to_string()).collect()
    }

    #[test]
    fn resolvers_of_the_host_are_taken_in_order() {
        let text = "# x\nsearch example.org\nnameserver 192.0.2.1\nnameserver 2001:db8::1\noptions ndots:2\n";
        assert_eq!(shown(text, ""), ["192.0.2.1", "2001:db8::1"]);
        let four = "nameserver 192.0.2.1\n".repeat(4);
        assert_eq!(shown(&four, "").len(), 3);
    }

    #[test]
    fn stub_is_followed_and_no_other_loopback_is_used() {
        let stub = "nameserver 127.0.0.53\noptions edns0 trust-ad\n";
        assert_eq!(shown(stub, "nameserver 192.0.2.9\n"), ["192.0.2.9"]);
        assert!(shown(stub, "nameserver 127.0.0.1\n").is_empty());
        assert!(shown(stub, "").is_empty());
        let both = "nameserver 127.0.0.1\nnameserver 192.0.2.1\n";
        assert_eq!(shown(both, "nameserver 192.0.2.9\n"), ["192.0.2.1"]);
    }

    #[test]
    fn what_is_no_address_is_passed_over() {
        let text =
            "nameserver\nnameserver fe80::1%eth0\nnameservers 192.0.2.1\n;nameserver 192.0.2.2\n";
        assert!(shown(text, "nameserver 192.0.2.9\n").is_empty());
    }
}
