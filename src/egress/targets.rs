//! TCP rules -> the addresses that the kernel lets through, and the hosts file
//! that names them. Pure: who asks for the addresses of names is `run`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};

use crate::egress::EgressError;
use crate::policy::address::AddressClass;
use crate::policy::egress::{EgressPolicy, HostPattern, TcpRule};

/// What is direct in a sandbox: fixed from its create on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Targets {
    /// Host and port of each rule, as the policy had them.
    pub(crate) rules: BTreeSet<(String, u16)>,
    pub(crate) addresses: BTreeSet<(Ipv4Addr, u16)>,
    /// Names with the addresses that the kernel lets through.
    pinned: BTreeMap<String, BTreeSet<Ipv4Addr>>,
}

/// The names of tcp rules to which nobody has given an address yet.
pub(crate) fn names(policy: &EgressPolicy) -> BTreeSet<String> {
    let names = policy.tcp.iter().filter_map(|rule| match &rule.host {
        HostPattern::Name(name) => Some(name),
        _ => None,
    });
    let is_given = |name: &str| policy.hosts.iter().any(|entry| entry.name == name);
    names.filter(|name| !is_given(name)).cloned().collect()
}

/// Reads what `getent ahostsv4 NAME` prints.
pub(crate) fn parse_getent(output: &str) -> BTreeSet<Ipv4Addr> {
    let first = output
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().next());
    first.filter_map(|word| word.parse().ok()).collect()
}

impl Targets {
    /// `resolved` has the addresses of the [`names`]. What cannot be direct is
    /// returned too; the gateway may still relay it.
    pub(crate) fn new(
        policy: &EgressPolicy,
        resolved: &BTreeMap<String, BTreeSet<Ipv4Addr>>,
    ) -> (Targets, Vec<EgressError>) {
        let (mut targets, mut unfit) = (Targets::default(), Vec::new());
        for rule in &policy.tcp {
            let addresses = match addresses(rule, policy, resolved) {
                Ok(addresses) => addresses,
                Err(error) => {
                    unfit.push(error);
                    continue;
                }
            };
            if let HostPattern::Name(name) = &rule.host {
                let pinned = targets.pinned.entry(name.clone()).or_default();
                pinned.extend(addresses.iter().copied());
            }
            targets.rules.insert((rule.host.to_string(), rule.port));
            let with_port = addresses.into_iter().map(|address| (address, rule.port));
            targets.addresses.extend(with_port);
        }
        (targets, unfit)
    }

    /// What is mounted at /etc/hosts: the names of the policy's `[[hosts]]`,
    /// and those of the targets.
    pub(crate) fn render_hosts(&self, policy: &EgressPolicy) -> String {
        let mut text = String::from(LOOPBACK);
        for entry in &policy.hosts {
            let _ = writeln!(text, "{} {}", entry.address, entry.name);
        }
        let given = |name: &str| policy.hosts.iter().any(|entry| entry.name == name);
        for (name, addresses) in self.pinned.iter().filter(|(name, _)| !given(name)) {
            for address in addresses {
                let _ = writeln!(text, "{address} {name}");
            }
        }
        text
    }
}

/// The hosts file of a sandbox without a network.
pub(crate) const LOOPBACK: &str =
    "127.0.0.1 localhost umwelt\n::1 localhost ip6-localhost ip6-loopback\n";

fn addresses(
    rule: &TcpRule,
    policy: &EgressPolicy,
    resolved: &BTreeMap<String, BTreeSet<Ipv4Addr>>,
) -> Result<BTreeSet<Ipv4Addr>, EgressError> {
    let unfit = |why: &str| EgressError::Target {
        host: rule.host.to_string(),
        why: why.to_owned(),
    };
    let (found, is_named): (BTreeSet<Ipv4Addr>, bool) = match &rule.host {
        HostPattern::Address(IpAddr::V4(address)) => (BTreeSet::from([*address]), true),
        HostPattern::Address(IpAddr::V6(_)) | HostPattern::Suffix(_) => (BTreeSet::new(), true),
        HostPattern::Name(name) => {
            let entries = policy.hosts.iter().filter(|entry| entry.name == *name);
            let given: Vec<IpAddr> = entries.map(|entry| entry.address).collect();
            let four = given.iter().filter_map(|address| match address {
                IpAddr::V4(address) => Some(*address),
                IpAddr::V6(_) => None,
            });
            match given.is_empty() {
                true => (resolved.get(name).cloned().unwrap_or_default(), false),
                false => (four.collect(), false),
            }
        }
    };
    if found.is_empty() {
        return Err(unfit("it has no IPv4 address"));
    }
    for address in &found {
        match AddressClass::of(IpAddr::V4(*address)) {
            AddressClass::Public => {}
            // What a name means is for others to say.
            AddressClass::Private(_) if is_named || rule.private => {}
            AddressClass::Private(what) => {
                let why = format!("{address} is {what}, which takes private = true in the rule");
                return Err(unfit(&why));
            }
            AddressClass::Unusable(what) => {
                return Err(unfit(&format!("{address} is {what}")));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::egress::EgressConfig;
    use crate::config::egress::testing::read_workspace;
    use crate::policy::egress_rules::merge;

    fn policy(text: &str) -> EgressPolicy {
        let own = read_workspace(text).unwrap();
        merge("0123abcd", &EgressConfig::default(), &own, Vec::new()).unwrap()
    }

    fn tcp(host: &str, more: &str) -> String {
        format!("[[egress.tcp]]\nhost = '{host}'\nport = 22\n{more}")
    }

    fn resolved(name: &str, addresses: &[&str]) -> BTreeMap<String, BTreeSet<Ipv4Addr>> {
        let addresses = addresses.iter().map(|address| address.parse().unwrap());
        BTreeMap::from([(name.to_owned(), addresses.collect())])
    }

    fn targets(text: &str, addresses: &[&str]) -> Result<Targets, String> {
        let resolved = resolved("a.example.org", addresses);
        let (targets, unfit) = Targets::new(&policy(text), &resolved);
        match unfit.first() {
            None => Ok(targets),
            Some(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn names_are_resolved_and_pinned() {
        let text = tcp("a.example.org", "") + &tcp("9.9.9.9", "");
        assert!(names(&policy(&text)).into_iter().eq(["a.example.org"]));
        let targets = targets(&text, &["8.8.8.8", "8.8.4.4"]).unwrap();
        let shown: Vec<String> = targets
            .addresses
            .iter()
            .map(|(a, _)| a.to_string())
            .collect();
        assert_eq!(shown, ["8.8.4.4", "8.8.8.8", "9.9.9.9"]);
        let hosts = targets.render_hosts(&policy(&text));
        assert_eq!(
            hosts,
            format!("{LOOPBACK}8.8.4.4 a.example.org\n8.8.8.8 a.example.org\n")
        );
        assert_eq!(targets.rules.len(), 2);
    }

    #[test]
    fn hosts_entry_goes_before_the_resolver() {
        let text = tcp("a.example.org", "private = true\n")
            + "[[hosts]]\nname = 'a.example.org'\naddress = '10.0.0.7'\n";
        assert!(names(&policy(&text)).is_empty());
        let targets = targets(&text, &["8.8.8.8"]).unwrap();
        let only = (Ipv4Addr::new(10, 0, 0, 7), 22);
        assert_eq!(targets.addresses, BTreeSet::from([only]));
        assert_eq!(
            targets.render_hosts(&policy(&text)),
            format!("{LOOPBACK}10.0.0.7 a.example.org\n")
        );
    }

    #[test]
    fn target_without_ipv4_address_is_refused() {
        let none =
            "the tcp target \"a.example.org\" cannot be reached directly: it has no IPv4 address";
        assert_eq!(targets(&tcp("a.example.org", ""), &[]).unwrap_err(), none);
        let text = tcp("a.example.org", "")
            + "[[hosts]]\nname = 'a.example.org'\naddress = '2001:db8::1'\n";
        assert_eq!(targets(&text, &["8.8.8.8"]).unwrap_err(), none);
        assert!(targets(&tcp("2001:db8::1", ""), &[]).is_err());
    }

    #[test]
    fn name_leads_to_a_private_address_only_where_the_rule_says_so() {
        for address in ["10.0.0.1", "127.0.0.1", "169.254.169.254"] {
            let refused = targets(&tcp("a.example.org", ""), &["8.8.8.8", address]);
            assert!(refused.unwrap_err().contains("private = true"), "{address}");
            let allowed = targets(&tcp("a.example.org", "private = true\n"), &[address]);
            assert!(allowed.is_ok(), "{address}");
        }
        // Whoever writes the address knows what it is.
        for address in ["10.0.0.1", "169.254.169.254"] {
            assert!(targets(&tcp(address, ""), &[]).is_ok(), "{address}");
        }
        let never = targets(&tcp("a.example.org", "private = true\n"), &["224.0.0.1"]);
        assert!(never.unwrap_err().contains("multicast"));
    }

    #[test]
    fn getent_is_read_line_by_line() {
        let text = "8.8.8.8         STREAM a.example.org\n8.8.8.8         DGRAM  \n8.8.8.8  RAW\n9.9.9.9 STREAM\nx\n";
        assert_eq!(parse_getent(text).len(), 2);
        assert!(parse_getent("").is_empty());
    }
}
