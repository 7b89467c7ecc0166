//! How a tcp rule reaches the sandbox that runs now. Pure.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::policy::egress::EgressPolicy;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Delivery {
    /// The kernel lets it through.
    Direct,
    /// Added since the create: by the gateway's SOCKS5 relay.
    Relayed,
    /// Removed since the create; the kernel lets it through until the next.
    PendingRemoval,
}

/// The rules of the policy, and those that only the kernel still has.
pub(crate) fn deliveries(
    policy: &EgressPolicy,
    running: &BTreeSet<(String, u16)>,
) -> Vec<(String, u16, Delivery)> {
    let key = |host: &str, port| (host.to_owned(), port);
    let mut known = BTreeSet::new();
    let mut all = Vec::new();
    for rule in &policy.tcp {
        let rule = key(&rule.host.to_string(), rule.port);
        if known.insert(rule.clone()) {
            let delivery = match running.contains(&rule) {
                true => Delivery::Direct,
                false => Delivery::Relayed,
            };
            all.push((rule.0, rule.1, delivery));
        }
    }
    let gone = running.iter().filter(|rule| !known.contains(*rule));
    all.extend(gone.map(|(host, port)| (host.clone(), *port, Delivery::PendingRemoval)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::egress::EgressConfig;
    use crate::config::egress::testing::read_workspace;
    use crate::policy::egress_rules::merge;

    #[test]
    fn rules_are_told_apart_by_what_the_kernel_has() {
        let text = "[[egress.tcp]]\nhost='a.example.org'\nport=22\n[[egress.tcp]]\nhost='b.example.org'\nport=22\n";
        let own = read_workspace(text).unwrap();
        let policy = merge("x", &EgressConfig::default(), &own, Vec::new()).unwrap();
        let running = [("a.example.org", 22), ("a.example.org", 23)]
            .map(|(host, port)| (host.to_owned(), port));
        let found = deliveries(&policy, &running.into());
        let expected = [
            ("a.example.org", 22, Delivery::Direct),
            ("b.example.org", 22, Delivery::Relayed),
            ("a.example.org", 23, Delivery::PendingRemoval),
        ];
        let expected = expected.map(|(host, port, delivery)| (host.to_owned(), port, delivery));
        assert_eq!(found, expected);
    }
}
