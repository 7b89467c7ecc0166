//! One rule more or less in the workspace's part of the policy, or why not.
//! Pure; `config::egress_edit` does the same to the text of the file.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::config::egress::EgressConfig;
use crate::config::rule::{HTTPS_PORT, all_paths, parse_host, parse_port, parse_tcp_host};
use crate::policy::egress::{
    EgressPolicy, HostPattern, HttpsRule, PathPattern, RuleOrigin, TcpRule,
};
use crate::policy::egress_rules::{MAX_PATHS, MAX_RULES, https_identity, tcp_identity};
use crate::text::shell_word;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RuleKind {
    Https,
    Tcp,
}

/// A rule that somebody asks for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum NewRule {
    Https(HttpsRule),
    Tcp(TcpRule),
}

/// The rules that are to go: all of the workspace for a host and port, or only
/// the one with exactly these paths.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OldRule {
    pub(crate) kind: RuleKind,
    pub(crate) host: HostPattern,
    pub(crate) port: u16,
    pub(crate) paths: Option<Vec<PathPattern>>,
}

/// Why a policy stays as it is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ChangeError {
    Host(String),
    Port(String),
    Paths(String),
    /// The policy has this rule already.
    AlreadyThere(RuleOrigin),
    /// All of the host is allowed already, without inspection.
    NotInspected(RuleOrigin),
    /// A file cannot have this host and port with inspection and without it.
    Inspected(Box<HttpsRule>),
    TooMany,
    NotThere(String),
    /// There is a rule for the same host and port, with these paths.
    OtherPaths(Vec<PathPattern>),
    /// There is such a rule, but the workspace file does not have it.
    NotOfWorkspace(RuleOrigin),
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChangeError::Host(message) => write!(f, "host: {message}"),
            ChangeError::Port(message) => write!(f, "port: {message}"),
            ChangeError::Paths(message) => write!(f, "paths: {message}"),
            ChangeError::AlreadyThere(origin) => {
                write!(f, "the policy has this rule already, from {}", of(origin))
            }
            ChangeError::NotInspected(origin) => write!(
                f,
                "a rule from {} allows all of this host and port already, without inspection",
                of(origin)
            ),
            ChangeError::Inspected(rule) => {
                let paths: Vec<_> = rule.paths.iter().map(PathPattern::to_string).collect();
                write!(
                    f,
                    "the workspace file has a rule for this host and port that is inspected, with the paths {}",
                    paths.join(", ")
                )
            }
            ChangeError::TooMany => write!(f, "the policy has {MAX_RULES} rules already"),
            ChangeError::NotThere(rule) => write!(f, "no rule {rule} is in the policy"),
            ChangeError::OtherPaths(paths) => {
                let paths: Vec<_> = paths.iter().map(PathPattern::to_string).collect();
                let paths = paths.join(", ");
                write!(
                    f,
                    "the rule for this host and port has the paths {paths}: name all of them, or none"
                )
            }
            ChangeError::NotOfWorkspace(origin) => write!(
                f,
                "the rule comes from {}, and only rules of the workspace file can be removed",
                of(origin)
            ),
        }
    }
}

impl std::error::Error for ChangeError {}

impl ChangeError {
    /// The way out, where it is one command.
    pub(crate) fn hint(&self) -> Option<String> {
        let ChangeError::Inspected(rule) = self else {
            return None;
        };
        let port = match rule.port {
            HTTPS_PORT => String::new(),
            port => format!(" --port {port}"),
        };
        Some(format!(
            "take it out first: umwelt-ctl egress remove https {}{port}",
            shell_word(&rule.host.to_string())
        ))
    }
}

/// Whose a rule is, in words.
pub(crate) fn of(origin: &RuleOrigin) -> String {
    match origin {
        RuleOrigin::Base => "the base config".to_owned(),
        RuleOrigin::Workspace => "the workspace file".to_owned(),
        RuleOrigin::Registry(tool) => format!("the host's configuration of {tool}"),
    }
}

impl NewRule {
    /// As a tool call has it: `paths` is one text with spaces between, and a
    /// port that is left out is that of https.
    pub(crate) fn parse(
        kind: RuleKind,
        host: &str,
        port: Option<i64>,
        paths: Option<&str>,
    ) -> Result<NewRule, ChangeError> {
        let old = OldRule::parse(kind, host, port, paths)?;
        let origin = RuleOrigin::Workspace;
        Ok(match kind {
            RuleKind::Https => NewRule::Https(HttpsRule {
                host: old.host,
                port: old.port,
                paths: old.paths.unwrap_or_else(all_paths),
                methods: None,
                inspect: true,
                private: false,
                origin,
            }),
            RuleKind::Tcp => NewRule::Tcp(TcpRule {
                host: old.host,
                port: old.port,
                private: false,
                origin,
            }),
        })
    }
}

impl OldRule {
    /// The same form as for a rule that is added.
    pub(crate) fn parse(
        kind: RuleKind,
        host: &str,
        port: Option<i64>,
        paths: Option<&str>,
    ) -> Result<OldRule, ChangeError> {
        let host = match kind {
            RuleKind::Https => parse_host(host),
            RuleKind::Tcp => parse_tcp_host(host),
        };
        let port = match (port, kind) {
            (Some(port), _) => parse_port(port),
            (None, RuleKind::Https) => Ok(HTTPS_PORT),
            (None, RuleKind::Tcp) => Err("a tcp rule needs one".to_owned()),
        };
        let paths = match (paths, kind) {
            (Some(_), RuleKind::Tcp) => Err("a tcp rule has none".to_owned()),
            (Some(paths), RuleKind::Https) => parse_paths(paths).map(Some),
            (None, _) => Ok(None),
        };
        Ok(OldRule {
            kind,
            host: host.map_err(ChangeError::Host)?,
            port: port.map_err(ChangeError::Port)?,
            paths: paths.map_err(ChangeError::Paths)?,
        })
    }

    /// Whether an https rule is among those that are to go.
    pub(crate) fn is_https(
        &self,
        host: &HostPattern,
        port: u16,
        mut paths: Vec<PathPattern>,
    ) -> bool {
        let is_meant = match self.paths.clone() {
            None => true,
            Some(mut wanted) => {
                wanted.sort_by_cached_key(PathPattern::to_string);
                paths.sort_by_cached_key(PathPattern::to_string);
                wanted == paths
            }
        };
        is_meant && self.kind == RuleKind::Https && self.host == *host && self.port == port
    }

    pub(crate) fn is_tcp(&self, host: &HostPattern, port: u16) -> bool {
        self.kind == RuleKind::Tcp && self.host == *host && self.port == port
    }

    pub(crate) fn is_meant_https(&self, rule: &HttpsRule) -> bool {
        self.is_https(&rule.host, rule.port, rule.paths.clone())
    }

    pub(crate) fn is_meant_tcp(&self, rule: &TcpRule) -> bool {
        self.is_tcp(&rule.host, rule.port)
    }
}

fn parse_paths(text: &str) -> Result<Vec<PathPattern>, String> {
    let mut paths: Vec<PathPattern> = Vec::new();
    for word in text.split_ascii_whitespace() {
        let path = word.parse()?;
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    match paths.len() {
        0 => Err("none is named; leave them out to allow all".to_owned()),
        1..=MAX_PATHS => Ok(paths),
        count => Err(format!(
            "{count} are named; at most {MAX_PATHS} are allowed"
        )),
    }
}

/// The workspace's part with one rule more. `policy` is the effective one.
pub(crate) fn add(
    policy: &EgressPolicy,
    workspace: &EgressConfig,
    rule: &NewRule,
) -> Result<EgressConfig, ChangeError> {
    if policy.https.len() + policy.tcp.len() + policy.hosts.len() >= MAX_RULES {
        return Err(ChangeError::TooMany);
    }
    let mut changed = workspace.clone();
    match rule {
        NewRule::Https(rule) => {
            let identity = https_identity(rule);
            if let Some(other) = policy.https.iter().find(|o| https_identity(o) == identity) {
                return Err(ChangeError::AlreadyThere(other.origin.clone()));
            }
            let is_same_place =
                |other: &&HttpsRule| other.host == rule.host && other.port == rule.port;
            let mut open = policy.https.iter().filter(is_same_place);
            let is_open = |other: &&HttpsRule| !other.inspect && (other.private || !rule.private);
            if let Some(other) = open.find(is_open) {
                return Err(ChangeError::NotInspected(other.origin.clone()));
            }
            let mut own = workspace.https.iter().filter(is_same_place);
            if let Some(other) = own.find(|other| other.inspect && !rule.inspect) {
                return Err(ChangeError::Inspected(Box::new(other.clone())));
            }
            changed.https.push(rule.clone());
        }
        NewRule::Tcp(rule) => {
            let identity = tcp_identity(rule);
            if let Some(other) = policy.tcp.iter().find(|o| tcp_identity(o) == identity) {
                return Err(ChangeError::AlreadyThere(other.origin.clone()));
            }
            changed.tcp.push(rule.clone());
        }
    }
    Ok(changed)
}

/// The workspace's part without the rules that are meant.
pub(crate) fn remove(
    policy: &EgressPolicy,
    workspace: &EgressConfig,
    old: &OldRule,
) -> Result<EgressConfig, ChangeError> {
    let mut changed = workspace.clone();
    changed.https.retain(|rule| !old.is_meant_https(rule));
    changed.tcp.retain(|rule| !old.is_meant_tcp(rule));
    if changed.rule_count() < workspace.rule_count() {
        return Ok(changed);
    }
    let https = policy.https.iter().find(|rule| old.is_meant_https(rule));
    let tcp = policy.tcp.iter().find(|rule| old.is_meant_tcp(rule));
    let origin = https
        .map(|rule| &rule.origin)
        .or_else(|| tcp.map(|rule| &rule.origin));
    let mut others = policy.https.iter();
    let other = others
        .find(|rule| old.is_https(&rule.host, rule.port, old.paths.clone().unwrap_or_default()));
    Err(match (origin, other) {
        (Some(origin), _) => ChangeError::NotOfWorkspace(origin.clone()),
        (None, Some(other)) => ChangeError::OtherPaths(other.paths.clone()),
        (None, None) => ChangeError::NotThere(format!("for \"{}\" port {}", old.host, old.port)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::egress::testing::{read_base, read_workspace};
    use crate::config::egress_edit;
    use crate::policy::egress_rules::merge;
    use proptest::prelude::*;
    use std::path::Path;

    const BASE: &str = "[[egress.https]]\nhost='base.example.org'\n[[egress.https]]\nhost='open.example.org'\ninspect=false\n[[egress.tcp]]\nhost='base.example.org'\nport=22\n";

    fn policy(own: &EgressConfig) -> EgressPolicy {
        merge("0123abcd", &read_base(BASE).unwrap(), own, Vec::new()).unwrap()
    }

    fn new(kind: RuleKind, host: &str, port: i64, paths: Option<&str>) -> NewRule {
        NewRule::parse(kind, host, Some(port), paths).unwrap()
    }

    fn add_to_empty(rule: &NewRule) -> Result<EgressConfig, ChangeError> {
        let own = EgressConfig::default();
        add(&policy(&own), &own, rule)
    }

    #[test]
    fn what_is_there_already_is_named_with_its_origin() {
        let same = new(RuleKind::Https, "BASE.example.org", 443, None);
        let there = Err(ChangeError::AlreadyThere(RuleOrigin::Base));
        assert_eq!(add_to_empty(&same), there);
        let narrow = new(RuleKind::Https, "open.example.org", 443, Some("/a"));
        let open = Err(ChangeError::NotInspected(RuleOrigin::Base));
        assert_eq!(add_to_empty(&narrow), open);
        let tcp = new(RuleKind::Tcp, "base.example.org", 22, None);
        assert_eq!(add_to_empty(&tcp), there);
        let other = new(RuleKind::Https, "open.example.org", 444, None);
        assert!(add_to_empty(&other).is_ok());
    }

    #[test]
    fn tunnel_beside_an_inspected_rule_names_that_rule_and_how_it_goes() {
        let own = read_workspace(
            "[[egress.https]]\nhost='*.example.org'\nport=8443\npaths=['/a','/b']\n",
        )
        .unwrap();
        let NewRule::Https(rule) = new(RuleKind::Https, "*.example.org", 8443, None) else {
            panic!("no https rule");
        };
        let tunnel = NewRule::Https(HttpsRule {
            inspect: false,
            ..rule
        });
        let error = add(&policy(&own), &own, &tunnel).unwrap_err();
        assert!(
            error.to_string().ends_with("with the paths /a, /b"),
            "{error}"
        );
        let remove =
            "take it out first: umwelt-ctl egress remove https '*.example.org' --port 8443";
        assert_eq!(error.hint().as_deref(), Some(remove));
        // One of the base config stands in another file.
        let NewRule::Https(rule) = new(RuleKind::Https, "base.example.org", 443, None) else {
            panic!("no https rule");
        };
        let inspect = false;
        assert!(add_to_empty(&NewRule::Https(HttpsRule { inspect, ..rule })).is_ok());
    }

    #[test]
    fn private_addresses_are_more_than_a_tunnel_has_without_them() {
        let NewRule::Https(rule) = new(RuleKind::Https, "open.example.org", 443, None) else {
            panic!("no https rule");
        };
        let tunnel = |private| {
            NewRule::Https(HttpsRule {
                inspect: false,
                private,
                ..rule.clone()
            })
        };
        assert!(add_to_empty(&tunnel(false)).is_err());
        assert!(add_to_empty(&tunnel(true)).is_ok());
    }

    #[test]
    fn only_rules_of_the_workspace_can_be_removed() {
        let own = EgressConfig::default();
        let asked = |kind, host: &str, port| {
            let old = OldRule::parse(kind, host, Some(port), None).unwrap();
            remove(&policy(&own), &own, &old)
        };
        let base = Err(ChangeError::NotOfWorkspace(RuleOrigin::Base));
        assert_eq!(asked(RuleKind::Https, "base.example.org", 443), base);
        assert_eq!(asked(RuleKind::Tcp, "base.example.org", 22), base);
        let other = OldRule::parse(RuleKind::Https, "base.example.org", None, Some("/a")).unwrap();
        let other = remove(&policy(&own), &own, &other).unwrap_err();
        assert!(
            other
                .to_string()
                .ends_with("has the paths /*: name all of them, or none")
        );
        let gone = asked(RuleKind::Tcp, "none.example.org", 22).unwrap_err();
        assert_eq!(
            gone.to_string(),
            "no rule for \"none.example.org\" port 22 is in the policy"
        );
    }

    #[test]
    fn requests_that_make_no_rule_say_which_part_is_wrong() {
        let parse = |kind, host, port, paths| {
            NewRule::parse(kind, host, port, paths)
                .unwrap_err()
                .to_string()
        };
        let (https, tcp) = (RuleKind::Https, RuleKind::Tcp);
        let cases = [
            (parse(https, "https://x", None, None), "host: is a URL"),
            (
                parse(https, "a.example.org", Some(0), None),
                "port: 0 is not",
            ),
            (
                parse(https, "a.example.org", None, Some(" ")),
                "paths: none",
            ),
            (
                parse(https, "a.example.org", None, Some("a")),
                "paths: \"a\"",
            ),
            (
                parse(tcp, "a.example.org", None, None),
                "port: a tcp rule needs",
            ),
            (parse(tcp, "*.example.org", Some(1), None), "host: "),
            (
                parse(tcp, "a.example.org", Some(1), Some("/a")),
                "paths: a tcp rule",
            ),
        ];
        for (message, expected) in cases {
            assert!(message.starts_with(expected), "{message}");
        }
    }

    /// What the policy says of one request, as plainly as it can be said.
    fn is_allowed(
        policy: &EgressPolicy,
        kind: RuleKind,
        host: &str,
        port: u16,
        path: &str,
    ) -> bool {
        let matches_path = |pattern: &PathPattern| match pattern {
            PathPattern::Prefix(prefix) => path.starts_with(prefix.as_str()),
            PathPattern::Tree(tree) => path == tree || path.starts_with(&format!("{tree}/")),
        };
        let matches_host = |pattern: &HostPattern| match pattern {
            HostPattern::Suffix(suffix) => host.ends_with(&format!(".{suffix}")),
            pattern => pattern.to_string() == host,
        };
        match kind {
            RuleKind::Https => policy.https.iter().any(|rule| {
                let path = rule.paths.iter().any(matches_path);
                matches_host(&rule.host) && rule.port == port && (path || !rule.inspect)
            }),
            RuleKind::Tcp => {
                let mut rules = policy.tcp.iter();
                rules.any(|rule| matches_host(&rule.host) && rule.port == port)
            }
        }
    }

    const HOSTS: [&str; 4] = [
        "a.example.org",
        "b.example.org",
        "base.example.org",
        "192.0.2.7",
    ];
    const PATHS: [Option<&str>; 4] = [None, Some("/a"), Some("/a/* /b"), Some("/b /a/*")];

    fn any_rule() -> impl Strategy<Value = (RuleKind, &'static str, i64, Option<&'static str>)> {
        let kind = prop_oneof![Just(RuleKind::Https), Just(RuleKind::Tcp)];
        let parts = (kind, 0..HOSTS.len(), 443_i64..446, 0..PATHS.len());
        parts.prop_map(|(kind, host, port, paths)| {
            let paths = PATHS[paths].filter(|_| kind == RuleKind::Https);
            (kind, HOSTS[host], port, paths)
        })
    }

    proptest! {
        /// On the rules and on the text of the file alike.
        #[test]
        fn added_rule_is_allowed_and_removing_it_gives_the_former_policy(
            before in prop::collection::vec(any_rule(), 0..6),
            (kind, host, port, paths) in any_rule(),
        ) {
            let file = Path::new(".umwelt.toml");
            let mut own = EgressConfig::default();
            let mut text = "# mine\n[egress]\nenabled = true\n".to_owned();
            own.enabled = true;
            for (kind, host, port, paths) in before {
                let rule = new(kind, host, port, paths);
                if let Ok(more) = add(&policy(&own), &own, &rule) {
                    own = more;
                    text = egress_edit::add(file, &text, &rule).unwrap();
                }
            }
            prop_assert_eq!(policy(&read_workspace(&text).unwrap()), policy(&own));
            let former = policy(&own);
            let rule = new(kind, host, port, paths);
            let old = OldRule::parse(kind, host, Some(port), Some(paths.unwrap_or("*")).filter(|_| kind == RuleKind::Https)).unwrap();
            let path = paths.map_or("/any", |paths| paths.split(' ').next_back().unwrap());
            let path = path.trim_end_matches('*');
            let asked = |policy: &EgressPolicy| is_allowed(policy, kind, host, u16::try_from(port).unwrap(), path);
            match add(&former, &own, &rule) {
                Err(_) => prop_assert!(asked(&former)),
                Ok(more) => {
                    let added = policy(&more);
                    prop_assert!(asked(&added));
                    let longer = egress_edit::add(file, &text, &rule).unwrap();
                    prop_assert_eq!(&policy(&read_workspace(&longer).unwrap()), &added);
                    prop_assert_eq!(policy(&remove(&added, &more, &old).unwrap()), former);
                    let shorter = egress_edit::remove(file, &longer, &old).unwrap();
                    prop_assert_eq!(shorter, Some(text));
                }
            }
        }
    }
}
