//! The network parts of two workspace files -> what the second allows more or
//! less, in words for a person who decides. Pure.

use std::fmt::Write;

use crate::config::egress::{EgressConfig, Registry};
use crate::config::expect::{Expectation, Verdict};
use crate::config::rule::HTTPS_PORT;
use crate::egress::rules::RuleChange;
use crate::policy::egress::{HostEntry, HostPattern, HttpsRule, PathPattern, TcpRule};
use crate::policy::egress_change::{NewRule, OldRule, RuleKind};
use crate::policy::egress_rules::{https_identity, tcp_identity};
use crate::trust::meaning::{Change, change};

pub(super) fn changes(old: &EgressConfig, new: &EgressConfig) -> Vec<Change> {
    let mut changes = Vec::new();
    match (old.enabled, new.enabled) {
        (false, true) => changes.push(change(true, "turns the network on".to_owned())),
        (true, false) => changes.push(change(false, "turns the network off".to_owned())),
        _ => {}
    }
    changes.extend(difference(&old.https, &new.https, https_identity, |rule| {
        format!("egress to {}", https(rule))
    }));
    changes.extend(difference(&old.tcp, &new.tcp, tcp_identity, |rule| {
        format!("egress to {}", tcp(rule))
    }));
    let identity = |entry: &HostEntry| format!("{} {}", entry.name, entry.address);
    changes.extend(difference(&old.hosts, &new.hosts, identity, host));
    let named = |config: &EgressConfig| config.registries.clone().unwrap_or_default();
    let name = |tool: &Registry| tool.name().to_owned();
    let registries = difference(&named(old), &named(new), name, registry);
    changes.extend(registries.into_iter().map(|change| Change {
        is_unnamed: change.widens,
        ..change
    }));
    let identity = |check: &Expectation| format!("{} {}", check.target, check.verdict.as_str());
    changes.extend(difference(&old.expect, &new.expect, identity, check));
    match (is_checked(old), is_checked(new)) {
        (false, true) => changes.push(change(true, "checks the network at each start".to_owned())),
        (true, false) => changes.push(change(
            false,
            "checks the network at a start no more".to_owned(),
        )),
        _ => {}
    }
    changes
}

/// What is in one list and not in the other.
fn difference<T>(
    old: &[T],
    new: &[T],
    identity: impl Fn(&T) -> String,
    words: impl Fn(&T) -> String,
) -> Vec<Change> {
    let known = |list: &[T]| list.iter().map(&identity).collect::<Vec<String>>();
    let (before, after) = (known(old), known(new));
    let added = new
        .iter()
        .filter(|entry| !before.contains(&identity(entry)));
    let added = added.map(|entry| change(true, format!("adds {}", words(entry))));
    let removed = old.iter().filter(|entry| !after.contains(&identity(entry)));
    let removed = removed.map(|entry| change(false, format!("removes {}", words(entry))));
    added.chain(removed).collect()
}

/// One rule in words.
pub(crate) fn https(rule: &HttpsRule) -> String {
    let mut text = https_below(&rule.host, rule.port, &rule.paths);
    if let Some(methods) = &rule.methods {
        let _ = write!(text, " with {}", methods.join(", "));
    }
    if !rule.inspect {
        text.push_str(" without inspection");
    }
    text + private(rule.private)
}

fn https_below(host: &HostPattern, port: u16, paths: &[PathPattern]) -> String {
    let mut text = format!("https://{}", host.before_port());
    if port != HTTPS_PORT {
        let _ = write!(text, ":{port}");
    }
    match paths {
        [] => {}
        [path] => text.push_str(&path.to_string()),
        paths => {
            let paths: Vec<String> = paths.iter().map(PathPattern::to_string).collect();
            let _ = write!(text, " below {}", paths.join(", "));
        }
    }
    text
}

pub(crate) fn tcp(rule: &TcpRule) -> String {
    let private = private(rule.private);
    format!("{}{private}", tcp_to(&rule.host, rule.port))
}

fn tcp_to(host: &HostPattern, port: u16) -> String {
    format!("tcp://{}:{port}", host.before_port())
}

/// The rule that somebody asks to add or to remove.
pub(crate) fn changed(change: &RuleChange) -> String {
    match change {
        RuleChange::Add(NewRule::Https(rule)) => https(rule),
        RuleChange::Add(NewRule::Tcp(rule)) => tcp(rule),
        RuleChange::Remove(OldRule {
            kind,
            host,
            port,
            paths,
        }) => match kind {
            RuleKind::Https => https_below(host, *port, paths.as_deref().unwrap_or_default()),
            RuleKind::Tcp => tcp_to(host, *port),
        },
    }
}

fn private(is_private: bool) -> &'static str {
    match is_private {
        true => ", also at a private address",
        false => "",
    }
}

fn host(entry: &HostEntry) -> String {
    format!("the address {} for the name {}", entry.address, entry.name)
}

fn registry(tool: &Registry) -> String {
    format!("egress to the registries that {tool} uses on this host")
}

/// It allows nothing, but is a request that is made.
fn check(check: &Expectation) -> String {
    let verdict = match check.verdict {
        Verdict::Allow => "is reached",
        Verdict::Deny => "is not reached",
    };
    format!("the check that {} {verdict}", check.target)
}

fn is_checked(config: &EgressConfig) -> bool {
    config.verify_at_start == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::egress::testing::read_workspace;

    fn words(old: &str, new: &str) -> Vec<(bool, String)> {
        let [old, new] = [old, new].map(|text| read_workspace(text).unwrap());
        let changes = changes(&old, &new).into_iter();
        changes.map(|change| (change.widens, change.text)).collect()
    }

    const TEXT: &str = "[egress]\nenabled = true\nregistries = ['pip']\n\
        [[egress.https]]\nhost = 'a.example.org'\n\
        [[egress.https]]\nhost = '*.b.example.org'\nport = 8443\npaths = ['/x/*', '/y']\nmethods = ['GET']\nprivate = true\n\
        [[egress.https]]\nhost = 'c.example.org'\ninspect = false\n\
        [[egress.tcp]]\nhost = 'd.example.org'\nport = 22\n\
        [[hosts]]\nname = 'd.example.org'\naddress = '192.0.2.1'\n";

    #[test]
    fn all_that_a_file_opens_is_told() {
        let told = words("", TEXT);
        let expected = [
            "turns the network on",
            "adds egress to https://a.example.org/*",
            "adds egress to https://*.b.example.org:8443 below /x/*, /y with GET, also at a private address",
            "adds egress to https://c.example.org/* without inspection",
            "adds egress to tcp://d.example.org:22",
            "adds the address 192.0.2.1 for the name d.example.org",
            "adds egress to the registries that pip uses on this host",
        ];
        assert_eq!(told, expected.map(|text| (true, text.to_owned())));
        let [old, new] = ["", TEXT].map(|text| read_workspace(text).unwrap());
        for (from, to, count) in [(&old, &new, 1), (&new, &old, 0)] {
            let changes = changes(from, to);
            let unnamed: Vec<_> = changes.iter().filter(|change| change.is_unnamed).collect();
            assert_eq!(unnamed.len(), count, "{unnamed:?}");
            assert!(
                unnamed
                    .iter()
                    .all(|change| change.text.contains("registries"))
            );
        }
        assert_eq!(words(TEXT, TEXT), []);
    }

    #[test]
    fn addresses_of_ipv6_stand_in_brackets_before_a_port() {
        let text = "[[egress.https]]\nhost = '2001:db8::1'\nport = 8443\n\
            [[egress.https]]\nhost = '2001:db8::1'\n\
            [[egress.tcp]]\nhost = '2001:db8::2'\nport = 22\n";
        let expected = [
            "adds egress to https://[2001:db8::1]:8443/*",
            "adds egress to https://[2001:db8::1]/*",
            "adds egress to tcp://[2001:db8::2]:22",
        ];
        let expected = expected.map(|text| (true, text.to_owned()));
        assert_eq!(words("", text), expected);
    }

    #[test]
    fn checks_are_told_one_by_one() {
        let text = "[egress]\nverify_at_start = true\n\
            [[egress.expect]]\nurl = 'https://a.example.org/x'\nverdict = 'deny'\n\
            [[egress.expect]]\nurl = 'tcp://a.example.org:22'\nverdict = 'allow'\n";
        let told = [
            "the check that https://a.example.org/x is not reached",
            "the check that tcp://a.example.org:22 is reached",
        ];
        let added = told.map(|what| (true, format!("adds {what}")));
        let start = (true, "checks the network at each start".to_owned());
        assert_eq!(words("", text), [&added[..], &[start]].concat());
        let removed = told.map(|what| (false, format!("removes {what}")));
        let start = (false, "checks the network at a start no more".to_owned());
        assert_eq!(words(text, ""), [&removed[..], &[start]].concat());
        assert_eq!(words(text, text), []);
    }

    #[test]
    fn what_is_taken_away_widens_nothing() {
        let told = words(TEXT, "");
        assert_eq!(told.len(), 7);
        assert!(told.iter().all(|(widens, _)| !widens), "{told:?}");
        assert_eq!(told[0].1, "turns the network off");
        assert_eq!(told[1].1, "removes egress to https://a.example.org/*");
    }

    #[test]
    fn rule_that_changes_is_one_less_and_one_more() {
        let narrow = TEXT.replace(
            "host = 'a.example.org'\n",
            "host = 'a.example.org'\npaths = ['/p']\n",
        );
        let wide = (true, "adds egress to https://a.example.org/*".to_owned());
        let less = (
            false,
            "removes egress to https://a.example.org/p".to_owned(),
        );
        assert_eq!(words(&narrow, TEXT), [wide, less]);
    }
}
