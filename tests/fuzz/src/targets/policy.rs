//! The gateway's policy file, and the texts that hosts, paths and URLs are
//! written in.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use crate::gateway::http::authority::Authority;
use crate::policy::decide::{Host, Rules};
use crate::policy::egress::{EgressPolicy, HostPattern, PathPattern};
use crate::policy::url::Url;

/// A name that no pattern but itself covers: suffixes have two labels.
const OUTSIDE: &str = "outside.invalid";

pub(super) fn policy(input: &[u8]) {
    let Ok(rules) = Rules::from_json(input) else {
        return;
    };
    let policy = rules.policy();
    let text = policy.render_json();
    let again = Rules::from_json(text.as_bytes()).expect("what is written is readable");
    assert_eq!(again.policy(), policy);
    assert_eq!(again.policy().digest(), policy.digest());
    rules_allow_what_they_say(&rules);
    nothing_else_is_allowed(&rules, policy);
}

fn host_of(pattern: &HostPattern) -> Host {
    match pattern {
        HostPattern::Name(name) => Host::Name(name.clone()),
        HostPattern::Suffix(suffix) => Host::Name(format!("a.{suffix}")),
        HostPattern::Address(address) => Host::Address(*address),
    }
}

fn rules_allow_what_they_say(rules: &Rules) {
    for rule in &rules.policy().https {
        let host = host_of(&rule.host);
        assert!(rules.connect(&host, rule.port).is_ok());
        let method = match &rule.methods {
            None => "GET",
            Some(methods) => match methods.first() {
                Some(method) => method,
                None => continue,
            },
        };
        for path in &rule.paths {
            let (PathPattern::Prefix(path) | PathPattern::Tree(path)) = path;
            assert!(
                rules.request(&host, rule.port, method, path).is_ok(),
                "{rule:?}"
            );
        }
    }
    for rule in &rules.policy().tcp {
        assert!(rules.tcp(&host_of(&rule.host), rule.port).is_ok());
    }
}

fn nothing_else_is_allowed(rules: &Rules, policy: &EgressPolicy) {
    let patterns = policy.https.iter().map(|rule| &rule.host);
    let patterns = patterns.chain(policy.tcp.iter().map(|rule| &rule.host));
    let outside = Host::Name(OUTSIDE.to_owned());
    if patterns
        .into_iter()
        .all(|pattern| *pattern != HostPattern::Name(OUTSIDE.to_owned()))
    {
        assert!(rules.connect(&outside, 443).is_err() && rules.tcp(&outside, 22).is_err());
        assert!(rules.request(&outside, 443, "GET", "/").is_err());
    }
    for rule in &policy.https {
        if let HostPattern::Suffix(suffix) = &rule.host {
            let beside = Host::Name(format!("not{suffix}"));
            let is_own = |other: &HostPattern| covers(other, &beside);
            if !policy.https.iter().any(|rule| is_own(&rule.host)) {
                assert!(rules.connect(&beside, rule.port).is_err(), "{suffix:?}");
            }
        }
    }
}

fn covers(pattern: &HostPattern, host: &Host) -> bool {
    match (pattern, host) {
        (HostPattern::Name(name), Host::Name(host)) => name == host,
        (HostPattern::Suffix(suffix), Host::Name(host)) => host.ends_with(&format!(".{suffix}")),
        (HostPattern::Address(address), Host::Address(host)) => address == host,
        _ => false,
    }
}

pub(super) fn authority(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    reads_back::<HostPattern>(text);
    reads_back::<PathPattern>(text);
    if let Ok(url) = text.parse::<Url>() {
        let again: Url = url.to_string().parse().expect("a URL reads back");
        assert_eq!(again.to_string(), url.to_string());
        assert_eq!(
            (&again.host, &again.scheme, again.port),
            (&url.host, &url.scheme, url.port)
        );
        assert!(!again.has_credentials && !again.has_query);
    }
    if let Ok(target) = Authority::from_connect(text) {
        assert_eq!(
            Authority::from_connect(&target.to_string()).as_ref(),
            Ok(&target)
        );
        assert_ne!(target.port, 0);
    }
    if let Ok(target) = Authority::from_host_field(text, 443) {
        assert_eq!(
            Authority::from_host_field(&target.host_field(), 443).as_ref(),
            Ok(&target)
        );
    }
}

fn reads_back<T: FromStr<Err: Debug> + Display + PartialEq + Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(
            value.to_string().parse::<T>().expect("it reads back"),
            value
        );
    }
}
