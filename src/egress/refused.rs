//! The rules of a policy -> those that lead to an address where the gateway
//! refuses them, and what they lack. Pure; only fixed addresses are known here.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::policy::address::AddressClass;
use crate::policy::decide::parents;
use crate::policy::egress::{EgressPolicy, HostPattern, HttpsRule, TcpRule};
use crate::policy::egress_change::of;
use crate::trust::network_meaning;

/// Most rules that are told of one by one.
const MAX_TOLD: usize = 20;

/// A rule that allows what is refused nevertheless.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RefusedRule {
    /// Whether nothing else is left of it.
    pub(crate) is_whole: bool,
    /// Why, in one line.
    pub(crate) why: String,
}

#[derive(Debug)]
pub(crate) struct Refusals<'a> {
    policy: &'a EgressPolicy,
    /// The addresses of each name in `[[hosts]]`.
    fixed: HashMap<&'a str, Vec<IpAddr>>,
    /// By a suffix, and whether its rule has `private`: a name below it that is
    /// refused.
    below: HashMap<(&'a str, bool), &'a str>,
}

impl<'a> Refusals<'a> {
    pub(crate) fn of(policy: &'a EgressPolicy) -> Refusals<'a> {
        let mut fixed: HashMap<&str, Vec<IpAddr>> = HashMap::new();
        for entry in &policy.hosts {
            fixed.entry(&entry.name).or_default().push(entry.address);
        }
        let mut below = HashMap::new();
        for (name, addresses) in &fixed {
            for private in [false, true] {
                if obstacle(addresses, private).is_none() {
                    continue;
                }
                for suffix in parents(name) {
                    let first = below.entry((suffix, private)).or_insert(*name);
                    *first = (*first).min(*name);
                }
            }
        }
        Refusals {
            policy,
            fixed,
            below,
        }
    }

    /// One line for each rule.
    pub(crate) fn notices(&self) -> Vec<String> {
        let https = self.policy.https.iter().filter_map(|rule| self.https(rule));
        let tcp = self.policy.tcp.iter().filter_map(|rule| self.tcp(rule));
        let mut lines: Vec<String> = https.chain(tcp).map(|refused| refused.why).collect();
        let more = lines.len().saturating_sub(MAX_TOLD);
        lines.truncate(MAX_TOLD);
        if more > 0 {
            lines.push(format!("{more} more rules are refused at their addresses"));
        }
        lines
    }

    /// The gateway looks at all addresses of a name.
    pub(crate) fn https(&self, rule: &HttpsRule) -> Option<RefusedRule> {
        let (name, obstacle) = match &rule.host {
            // A rule that names an address needs no permission for it.
            HostPattern::Address(address) => (address.to_string(), obstacle(&[*address], true)?),
            HostPattern::Name(name) => {
                let addresses = self.fixed.get(name.as_str())?;
                (name.clone(), obstacle(addresses, rule.private)?)
            }
            HostPattern::Suffix(suffix) => {
                let name = self.below.get(&(suffix.as_str(), rule.private))?;
                let addresses = self.fixed.get(name)?;
                ((*name).to_owned(), obstacle(addresses, rule.private)?)
            }
        };
        if !rule.private && self.is_served_by_another(rule, &name) {
            return None;
        }
        let is_whole = !matches!(rule.host, HostPattern::Suffix(_));
        let words = network_meaning::https(rule);
        let what = match is_whole {
            true => words,
            false => format!("a part of {words}"),
        };
        Some(RefusedRule {
            is_whole,
            why: format!(
                "{what} is refused: {name} has {obstacle}; it is a rule of {}",
                of(&rule.origin)
            ),
        })
    }

    /// The kernel lets IPv4 through, and a start is refused for what does not fit.
    pub(crate) fn tcp(&self, rule: &TcpRule) -> Option<RefusedRule> {
        let (addresses, private) = match &rule.host {
            HostPattern::Address(address) => (vec![*address], true),
            HostPattern::Name(name) => (self.fixed.get(name.as_str())?.clone(), rule.private),
            HostPattern::Suffix(_) => return None,
        };
        let four = addresses.iter().filter(|address| address.is_ipv4());
        let four: Vec<IpAddr> = four.copied().collect();
        let looked_at = if four.is_empty() { addresses } else { four };
        let obstacle = obstacle(&looked_at, private)?;
        let words = network_meaning::tcp(rule);
        Some(RefusedRule {
            is_whole: true,
            why: format!(
                "{words} is refused, and no sandbox starts with it: {} has {obstacle}; it is a rule of {}",
                rule.host,
                of(&rule.origin)
            ),
        })
    }

    /// Of all rules that allow a request, one with `private` decides.
    fn is_served_by_another(&self, rule: &HttpsRule, name: &str) -> bool {
        let name = HostPattern::Name(name.to_owned());
        let mut others = self.policy.https.iter();
        others.any(|other| {
            other.private && other.port == rule.port && other.host.contains(&name) && {
                !other.inspect || (rule.inspect && allows_all_of(other, rule))
            }
        })
    }
}

fn allows_all_of(wide: &HttpsRule, narrow: &HttpsRule) -> bool {
    let mut paths = narrow.paths.iter();
    let methods = match (&wide.methods, &narrow.methods) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(wide), Some(narrow)) => narrow.iter().all(|method| wide.contains(method)),
    };
    methods && paths.all(|path| wide.paths.iter().any(|wide| wide.contains(path)))
}

/// What keeps a connection from being made, though a rule allows it.
fn obstacle(addresses: &[IpAddr], private: bool) -> Option<String> {
    addresses
        .iter()
        .find_map(|address| match AddressClass::of(*address) {
            AddressClass::Private(what) if !private => Some(format!(
                "the address {address} ({what}), which takes private = true in the rule"
            )),
            AddressClass::Unusable(what) => Some(format!(
                "the address {address} ({what}), to which no rule leads"
            )),
            _ => None,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::egress::EgressConfig;
    use crate::config::egress::testing::read_workspace;
    use crate::policy::decide::{Host, Rules};
    use crate::policy::egress_rules::merge;

    const HOSTS: &str = "[[hosts]]\nname='git.example.org'\naddress='10.0.0.5'\n\
        [[hosts]]\nname='two.example.org'\naddress='9.9.9.9'\n\
        [[hosts]]\nname='two.example.org'\naddress='fd00::1'\n\
        [[hosts]]\nname='open.example.org'\naddress='9.9.9.9'\n";

    fn notices(rules: &str) -> Vec<String> {
        let own = read_workspace(&format!("{rules}{HOSTS}")).unwrap();
        let policy = merge("x", &EgressConfig::default(), &own, Vec::new()).unwrap();
        Refusals::of(&policy).notices()
    }

    fn https(host: &str, more: &str) -> String {
        format!("[[egress.https]]\nhost='{host}'\n{more}\n")
    }

    fn tcp(host: &str, more: &str) -> String {
        format!("[[egress.tcp]]\nhost='{host}'\nport=22\n{more}\n")
    }

    #[test]
    fn rule_that_leads_to_a_private_address_tells_what_it_lacks() {
        let lacks = "takes private = true in the rule; it is a rule of the workspace file";
        assert_eq!(
            notices(&https("git.example.org", "")),
            [format!(
                "https://git.example.org/* is refused: git.example.org has the address 10.0.0.5 (private), which {lacks}"
            )]
        );
        assert_eq!(
            notices(&tcp("git.example.org", "")),
            [format!(
                "tcp://git.example.org:22 is refused, and no sandbox starts with it: git.example.org has the address 10.0.0.5 (private), which {lacks}"
            )]
        );
        let suffix = notices(&https("*.example.org", ""));
        let told = "a part of https://*.example.org/* is refused: git.example.org has";
        assert!(suffix[0].starts_with(told), "{suffix:?}");
        for rule in [
            https("git.example.org", "inspect=false"),
            https("*.example.org", "port=1"),
            https("two.example.org", ""),
        ] {
            assert_eq!(notices(&rule).len(), 1, "{rule}");
        }
    }

    #[test]
    fn what_is_served_is_not_told() {
        for rules in [
            https("git.example.org", "private=true"),
            https("*.example.org", "private=true"),
            https("git.example.org", "inspect=false\nprivate=true"),
            tcp("git.example.org", "private=true"),
            https("open.example.org", "") + &tcp("open.example.org", ""),
            https("elsewhere.example.org", "") + &tcp("elsewhere.example.org", ""),
            https("10.0.0.5", "") + &tcp("10.0.0.5", ""),
            // The kernel has only the IPv4 address.
            tcp("two.example.org", ""),
        ] {
            assert_eq!(notices(&rules), [""; 0], "{rules}");
        }
    }

    #[test]
    fn another_rule_that_allows_as_much_with_private_serves_it() {
        let narrow = https("git.example.org", "paths=['/a/b']\nmethods=['GET']");
        for (other, is_told) in [
            (https("*.example.org", "private=true"), false),
            (
                https("git.example.org", "private=true\npaths=['/a']"),
                false,
            ),
            (https("git.example.org", "private=true\npaths=['/c']"), true),
            (
                https("git.example.org", "private=true\nmethods=['PUT']"),
                true,
            ),
            (https("git.example.org", "private=true\nport=8443"), true),
        ] {
            let told = notices(&format!("{narrow}{other}"));
            assert_eq!(!told.is_empty(), is_told, "{other}: {told:?}");
        }
    }

    /// The rule that the gateway goes by is without `private` just where the
    /// notice says so.
    #[test]
    fn told_is_what_the_gateway_decides() {
        let name = Host::parse("git.example.org", false).unwrap();
        for rules in [
            https("git.example.org", ""),
            https("git.example.org", "private=true"),
            https("git.example.org", "") + &https("*.example.org", "private=true"),
            https("git.example.org", "") + &https("git.example.org", "private=true\npaths=['/a']"),
        ] {
            let own = read_workspace(&format!("{rules}{HOSTS}")).unwrap();
            let policy = merge("x", &EgressConfig::default(), &own, Vec::new()).unwrap();
            let is_told = !Refusals::of(&policy).notices().is_empty();
            let gateway = Rules::try_from(policy).unwrap();
            let rule = gateway.request(&name, 443, "GET", "/b").unwrap();
            assert_eq!(is_told, !rule.private, "{rules}");
        }
    }

    #[test]
    fn many_are_counted() {
        let rules: String = (1..MAX_TOLD + 3)
            .map(|port| https("git.example.org", &format!("port={port}")))
            .collect();
        let told = notices(&rules);
        assert_eq!(told.len(), MAX_TOLD + 1);
        assert_eq!(
            told[MAX_TOLD],
            "2 more rules are refused at their addresses"
        );
    }
}
