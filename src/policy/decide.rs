//! Egress policy + what is asked for -> whether it is allowed, and by which
//! rule. Pure.
//!
//! Rules are found by their host, so that the number of rules does not count.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

use crate::policy::egress::{
    EgressPolicy, HostPattern, HttpsRule, POLICY_VERSION, PathPattern, RuleOrigin, TcpRule,
    parse_name,
};

/// A host that is asked for: one name, or one address.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Host {
    /// Lower case, without a trailing dot.
    Name(String),
    Address(IpAddr),
}

impl Host {
    /// From a name or an address literal; IPv6 in brackets where `bracketed`,
    /// as in an authority.
    pub(crate) fn parse(text: &str, bracketed: bool) -> Result<Host, String> {
        if let Some(inner) = text.strip_prefix('[') {
            let address = inner.strip_suffix(']').and_then(|inner| inner.parse().ok());
            return match address {
                Some(address) if bracketed => Ok(Host::Address(IpAddr::V6(address))),
                _ => Err(format!("{text:?} is not an address")),
            };
        }
        match text.parse::<IpAddr>() {
            Ok(IpAddr::V6(_)) if bracketed => Err(format!("{text:?} must be written in brackets")),
            Ok(address) => Ok(Host::Address(address)),
            Err(_) => parse_name(text).map(Host::Name),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => f.write_str(name),
            Host::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Host::Address(address) => write!(f, "{address}"),
        }
    }
}

/// Why something is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    Host,
    Port,
    Path,
    Method,
}

impl Refusal {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Refusal::Host => "no rule names this host",
            Refusal::Port => "no rule names this port of the host",
            Refusal::Path => "no rule for this host allows the path",
            Refusal::Method => "no rule for this path allows the method",
        }
    }
}

/// What a connection to a host and port may be used for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ConnectVerdict<'a> {
    /// Each request is looked at.
    Inspect,
    /// The bytes are passed on as they are, by this rule.
    Tunnel(&'a HttpsRule),
}

/// Positions of the rules for one host, by kind of pattern.
#[derive(Debug, Default)]
struct Index {
    names: HashMap<String, Vec<usize>>,
    suffixes: HashMap<String, Vec<usize>>,
    addresses: HashMap<IpAddr, Vec<usize>>,
}

impl Index {
    fn from_patterns<'a>(patterns: impl Iterator<Item = &'a HostPattern>) -> Index {
        let mut index = Index::default();
        for (position, pattern) in patterns.enumerate() {
            let positions = match pattern {
                HostPattern::Name(name) => index.names.entry(name.clone()).or_default(),
                HostPattern::Suffix(name) => index.suffixes.entry(name.clone()).or_default(),
                HostPattern::Address(address) => index.addresses.entry(*address).or_default(),
            };
            positions.push(position);
        }
        index
    }

    /// Exact rules first, then from the longest suffix to the shortest.
    fn find<'a>(&'a self, host: &'a Host) -> impl Iterator<Item = usize> + 'a {
        let (exact, name) = match host {
            Host::Name(name) => (self.names.get(name), name.as_str()),
            Host::Address(address) => (self.addresses.get(address), ""),
        };
        let suffixes = parents(name).filter_map(|parent| self.suffixes.get(parent));
        exact.into_iter().chain(suffixes).flatten().copied()
    }
}

/// The names above `name`: `b.c`, `c` for `a.b.c`.
pub(crate) fn parents(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(name), |name| {
        name.split_once('.').map(|(_, rest)| rest)
    })
    .skip(1)
}

/// A policy, ready to be asked.
#[derive(Debug)]
pub(crate) struct Rules {
    policy: EgressPolicy,
    https: Index,
    tcp: Index,
    hosts: HashMap<String, Vec<IpAddr>>,
}

impl Rules {
    /// Reads the gateway's file. Whatever could be misread is an error.
    pub(crate) fn from_json(text: &[u8]) -> Result<Rules, String> {
        let policy: EgressPolicy =
            serde_json::from_slice(text).map_err(|error| error.to_string())?;
        Rules::try_from(policy)
    }

    pub(crate) fn policy(&self) -> &EgressPolicy {
        &self.policy
    }

    /// The https rules for a host and port.
    pub(crate) fn https<'a>(
        &'a self,
        host: &'a Host,
        port: u16,
    ) -> impl Iterator<Item = &'a HttpsRule> + 'a {
        self.https
            .find(host)
            .filter_map(|position| self.policy.https.get(position))
            .filter(move |rule| rule.port == port)
    }

    /// Whether a connection may be opened at all. A rule without inspection
    /// allows everything on its host and port, so it decides.
    pub(crate) fn connect(&self, host: &Host, port: u16) -> Result<ConnectVerdict<'_>, Refusal> {
        let mut verdict = None;
        let mut is_known = false;
        for position in self.https.find(host) {
            is_known = true;
            match self.policy.https.get(position) {
                Some(rule) if rule.port == port && !rule.inspect => {
                    return Ok(ConnectVerdict::Tunnel(
                        self.private_tunnel(host, port, rule),
                    ));
                }
                Some(rule) if rule.port == port => verdict = Some(ConnectVerdict::Inspect),
                _ => {}
            }
        }
        verdict.ok_or(if is_known {
            Refusal::Port
        } else {
            Refusal::Host
        })
    }

    /// Of several rules for one tunnel, one that allows private addresses.
    fn private_tunnel<'a>(&'a self, host: &Host, port: u16, first: &'a HttpsRule) -> &'a HttpsRule {
        self.https
            .find(host)
            .filter_map(|position| self.policy.https.get(position))
            .find(|rule| rule.port == port && !rule.inspect && rule.private)
            .unwrap_or(first)
    }

    /// Whether a request may be passed on. `path` is in its canonical form.
    pub(crate) fn request(
        &self,
        host: &Host,
        port: u16,
        method: &str,
        path: &str,
    ) -> Result<&HttpsRule, Refusal> {
        let mut refusal = Refusal::Host;
        let mut allowing: Option<&HttpsRule> = None;
        for position in self.https.find(host) {
            let Some(rule) = self.policy.https.get(position) else {
                continue;
            };
            match refuse(rule, port, method, path) {
                Some(Refusal::Method) => refusal = Refusal::Method,
                Some(Refusal::Path) if refusal != Refusal::Method => refusal = Refusal::Path,
                Some(Refusal::Port) if refusal == Refusal::Host => refusal = Refusal::Port,
                Some(_) => {}
                None if rule.private => return Ok(rule),
                None => allowing = allowing.or(Some(rule)),
            }
        }
        allowing.ok_or(refusal)
    }

    pub(crate) fn tcp(&self, host: &Host, port: u16) -> Result<&TcpRule, Refusal> {
        let mut allowing: Option<&TcpRule> = None;
        let mut refusal = Refusal::Host;
        for rule in self.tcp.find(host).filter_map(|at| self.policy.tcp.get(at)) {
            match rule.port == port {
                false => refusal = Refusal::Port,
                true if rule.private => return Ok(rule),
                true => allowing = allowing.or(Some(rule)),
            }
        }
        allowing.ok_or(refusal)
    }

    /// The fixed addresses of a name.
    pub(crate) fn fixed(&self, name: &str) -> Option<&[IpAddr]> {
        self.hosts.get(name).map(Vec::as_slice)
    }

    /// Whether anything here is about this name, so that it may be resolved.
    pub(crate) fn names(&self, name: &str) -> bool {
        let host = Host::Name(name.to_owned());
        self.hosts.contains_key(name)
            || self.https.find(&host).next().is_some()
            || self.tcp.find(&host).next().is_some()
    }

    /// For a person: `3 https, 1 tcp, 0 hosts`.
    pub(crate) fn summary(&self) -> String {
        format!(
            "{} https, {} tcp, {} hosts",
            self.policy.https.len(),
            self.policy.tcp.len(),
            self.policy.hosts.len()
        )
    }
}

/// What of a rule for the right host does not fit.
fn refuse(rule: &HttpsRule, port: u16, method: &str, path: &str) -> Option<Refusal> {
    if rule.port != port {
        return Some(Refusal::Port);
    }
    if !rule.paths.iter().any(|pattern| pattern.matches(path)) {
        return Some(Refusal::Path);
    }
    let allows = |methods: &Vec<String>| methods.iter().any(|allowed| allowed == method);
    (!rule.methods.as_ref().is_none_or(allows)).then_some(Refusal::Method)
}

impl PathPattern {
    /// Whether a canonical path is covered.
    pub(crate) fn matches(&self, path: &str) -> bool {
        match self {
            PathPattern::Prefix(prefix) => path.starts_with(prefix.as_str()),
            PathPattern::Tree(tree) => path.strip_prefix(tree.as_str()).is_some_and(|rest| {
                rest.is_empty() || rest.starts_with('/') || tree.ends_with('/')
            }),
        }
    }
}

impl fmt::Display for RuleOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuleOrigin::Base => f.write_str("base"),
            RuleOrigin::Workspace => f.write_str("workspace"),
            RuleOrigin::Registry(tool) => write!(f, "registry {tool}"),
        }
    }
}

impl TryFrom<EgressPolicy> for Rules {
    type Error = String;

    fn try_from(policy: EgressPolicy) -> Result<Rules, String> {
        check(&policy)?;
        let mut hosts: HashMap<String, Vec<IpAddr>> = HashMap::new();
        for entry in &policy.hosts {
            hosts
                .entry(parse_name(&entry.name)?)
                .or_default()
                .push(entry.address);
        }
        Ok(Rules {
            https: Index::from_patterns(policy.https.iter().map(|rule| &rule.host)),
            tcp: Index::from_patterns(policy.tcp.iter().map(|rule| &rule.host)),
            hosts,
            policy,
        })
    }
}

/// What the types alone do not rule out.
fn check(policy: &EgressPolicy) -> Result<(), String> {
    if policy.version != POLICY_VERSION {
        return Err(format!(
            "version {} is not {POLICY_VERSION}, the one that is understood",
            policy.version
        ));
    }
    let is_method = |method: &String| {
        !method.is_empty()
            && method
                .bytes()
                .all(|byte| byte.is_ascii_uppercase() || byte == b'-')
    };
    for rule in &policy.https {
        if rule.port == 0 || rule.paths.is_empty() {
            return Err(format!(
                "the https rule for {:?} lacks a port or a path",
                rule.host.to_string()
            ));
        }
        if !rule.methods.iter().flatten().all(is_method) {
            return Err(format!(
                "the https rule for {:?} has a method that is not in upper case",
                rule.host.to_string()
            ));
        }
    }
    for rule in &policy.tcp {
        if rule.port == 0 || matches!(rule.host, HostPattern::Suffix(_)) {
            return Err(format!(
                "the tcp rule for {:?} needs one host and a port",
                rule.host.to_string()
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(json: &str) -> Rules {
        Rules::from_json(json.as_bytes()).unwrap()
    }

    fn https(host: &str, paths: &[&str], more: &str) -> String {
        let paths = serde_json::to_string(paths).unwrap();
        format!(
            r#"{{"host":"{host}","port":443,"paths":{paths},"methods":null,"inspect":true,"private":false,"origin":"base"{more}}}"#
        )
    }

    fn policy(https: &[String]) -> String {
        format!(
            r#"{{"version":1,"workspace":"0123abcd","https":[{}],"tcp":[{{"host":"git.example.org","port":22,"private":false,"origin":"workspace"}}],"hosts":[{{"name":"Fixed.example.org.","address":"192.0.2.7","origin":"base"}}]}}"#,
            https.join(",")
        )
    }

    fn name(text: &str) -> Host {
        Host::Name(text.to_owned())
    }

    #[test]
    fn hosts_are_matched_whole() {
        let rules = rules(&policy(&[
            https("a.example.org", &["*"], ""),
            https("*.b.example.org", &["*"], ""),
            https("192.0.2.1", &["*"], ""),
        ]));
        for host in ["a.example.org", "x.b.example.org", "x.y.b.example.org"] {
            assert_eq!(
                rules.connect(&name(host), 443),
                Ok(ConnectVerdict::Inspect),
                "{host}"
            );
        }
        for host in [
            "b.example.org",
            "xb.example.org",
            "a.example.org.evil.example",
            "xa.example.org",
            "sub.a.example.org",
            "example.org",
            "org",
        ] {
            assert_eq!(
                rules.connect(&name(host), 443),
                Err(Refusal::Host),
                "{host}"
            );
        }
        assert!(
            rules
                .connect(&Host::Address("192.0.2.1".parse().unwrap()), 443)
                .is_ok()
        );
        let mapped = Host::Address("::ffff:192.0.2.1".parse().unwrap());
        assert_eq!(rules.connect(&mapped, 443), Err(Refusal::Host));
        assert_eq!(
            rules.connect(&name("a.example.org"), 8443),
            Err(Refusal::Port)
        );
    }

    #[test]
    fn paths_end_at_a_slash_or_are_prefixes() {
        let rules = rules(&policy(&[https(
            "a.example.org",
            &["/user", "/pre*", "/dir/"],
            "",
        )]));
        let ask = |path: &str| {
            rules
                .request(&name("a.example.org"), 443, "GET", path)
                .is_ok()
        };
        for path in [
            "/user",
            "/user/",
            "/user/x",
            "/pre",
            "/prefix/x",
            "/dir/",
            "/dir/x",
        ] {
            assert!(ask(path), "{path}");
        }
        for path in [
            "/",
            "/user2",
            "/User",
            "/use",
            "/dir",
            "/pr",
            "/x/user",
            "/user%2Fx",
        ] {
            assert!(!ask(path), "{path}");
        }
    }

    #[test]
    fn refusals_name_what_did_not_fit() {
        let only_get = https("a.example.org", &["/x"], "")
            .replace("\"methods\":null", "\"methods\":[\"GET\"]");
        let rules = rules(&policy(&[only_get]));
        let ask = |method: &str, path: &str| {
            rules
                .request(&name("a.example.org"), 443, method, path)
                .map(|_| ())
        };
        assert_eq!(ask("GET", "/x"), Ok(()));
        assert_eq!(ask("POST", "/x"), Err(Refusal::Method));
        assert_eq!(ask("get", "/x"), Err(Refusal::Method));
        assert_eq!(ask("GET", "/y"), Err(Refusal::Path));
    }

    #[test]
    fn a_rule_without_inspection_makes_a_tunnel() {
        let tunnel =
            https("p.example.org", &["*"], "").replace("\"inspect\":true", "\"inspect\":false");
        let rules = rules(&policy(&[https("*.example.org", &["/x"], ""), tunnel]));
        assert!(matches!(
            rules.connect(&name("p.example.org"), 443),
            Ok(ConnectVerdict::Tunnel(_))
        ));
        assert_eq!(
            rules.connect(&name("q.example.org"), 443),
            Ok(ConnectVerdict::Inspect)
        );
    }

    #[test]
    fn private_comes_from_the_rule_that_allows_the_request() {
        let private =
            https("a.example.org", &["/in"], "").replace("\"private\":false", "\"private\":true");
        let rules = rules(&policy(&[
            https("a.example.org", &["/in", "/out"], ""),
            private,
        ]));
        let ask = |path: &str| {
            rules
                .request(&name("a.example.org"), 443, "GET", path)
                .unwrap()
                .private
        };
        assert!(ask("/in"));
        assert!(!ask("/out"));
    }

    #[test]
    fn names_are_those_of_rules_and_host_entries() {
        let rules = rules(&policy(&[https("*.example.com", &["*"], "")]));
        for known in ["git.example.org", "fixed.example.org", "a.example.com"] {
            assert!(rules.names(known), "{known}");
        }
        for unknown in ["example.com", "example.org", "x.git.example.org"] {
            assert!(!rules.names(unknown), "{unknown}");
        }
        assert_eq!(
            rules.fixed("fixed.example.org"),
            Some(&["192.0.2.7".parse().unwrap()][..])
        );
        // A fixed address allows nothing by itself.
        assert_eq!(
            rules.connect(&name("fixed.example.org"), 443),
            Err(Refusal::Host)
        );
        assert!(rules.tcp(&name("fixed.example.org"), 22).is_err());
        assert!(rules.tcp(&name("git.example.org"), 22).is_ok());
        assert_eq!(
            rules.tcp(&name("git.example.org"), 23).map(|_| ()),
            Err(Refusal::Port)
        );
    }

    #[test]
    fn a_policy_that_could_be_misread_is_refused() {
        let good = policy(&[https("a.example.org", &["*"], "")]);
        assert!(Rules::from_json(good.as_bytes()).is_ok());
        for (from, to) in [
            ("\"version\":1", "\"version\":2"),
            ("[\"*\"]", "[]"),
            ("\"port\":443", "\"port\":0"),
            ("\"methods\":null", "\"methods\":[\"get\"]"),
            ("\"inspect\":true", "\"inspct\":true"),
            ("\"git.example.org\"", "\"*.example.org\""),
            ("\"Fixed.example.org.\"", "\"1.2.3\""),
            ("a.example.org", "*.org"),
        ] {
            let bad = good.replacen(from, to, 1);
            assert_ne!(bad, good);
            assert!(Rules::from_json(bad.as_bytes()).is_err(), "{bad}");
        }
        for cut in 0..good.len() {
            assert!(Rules::from_json(&good.as_bytes()[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn hosts_in_an_authority_are_names_or_addresses_in_one_form() {
        let parse = |text: &str| Host::parse(text, true);
        assert_eq!(parse("A.Example.ORG."), Ok(name("a.example.org")));
        assert_eq!(
            parse("[2001:DB8::0:1]").map(|host| host.to_string()),
            Ok("[2001:db8::1]".into())
        );
        for wrong in [
            "",
            ".",
            "2001:db8::1",
            "[192.0.2.1]",
            "[::1",
            "::1]",
            "[fe80::1%eth0]",
            "0x7f.1",
            "127.1",
            "2130706433",
            "0177.0.0.1",
            "a b",
            "a@b",
            "a/b",
            "a..b",
            "[a.example.org]",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
