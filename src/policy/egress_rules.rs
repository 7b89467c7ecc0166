//! The rules of the base config, of the workspace and of registries -> one
//! policy, and single rules added to it and taken away. Pure.

use std::fmt;
use std::net::IpAddr;

use crate::config::egress::{EgressConfig, Registry};
use crate::config::expect::Expectation;
use crate::digest::sha256;
use crate::policy::egress::{
    EgressPolicy, HostEntry, HttpsRule, POLICY_VERSION, PathPattern, RuleOrigin, TcpRule,
};

/// Most rules and hosts entries of a policy, all kinds together.
pub(crate) const MAX_RULES: usize = 20_000;
/// Most paths of one rule.
pub(crate) const MAX_PATHS: usize = 1_000;

/// Why two layers do not make one policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MergeError {
    /// The base config and the workspace name different addresses.
    HostConflict {
        name: String,
        base: IpAddr,
        workspace: IpAddr,
    },
    TooMany(usize),
}

impl MergeError {
    pub(crate) fn hint(&self) -> String {
        match self {
            MergeError::HostConflict { .. } => {
                "take one of the two [[hosts]] entries away, or make their addresses the same"
            }
            MergeError::TooMany(_) => "replace many hosts by one rule for \"*.their.suffix\"",
        }
        .to_owned()
    }
}

impl fmt::Display for MergeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MergeError::HostConflict {
                name,
                base,
                workspace,
            } => write!(
                f,
                "the workspace file gives {name:?} the address \"{workspace}\", the base config \"{base}\""
            ),
            MergeError::TooMany(count) => write!(
                f,
                "base config and workspace file have {count} egress rules and hosts entries together, more than {MAX_RULES}"
            ),
        }
    }
}

impl std::error::Error for MergeError {}

/// The policy of the workspace with this session id: all that the base config
/// allows, and what the trusted workspace file and the registries add.
///
/// Nobody can take anything away from the base config, and so no other layer
/// can say where a name of its `[[hosts]]` leads.
pub(crate) fn merge(
    session_id: &str,
    base: &EgressConfig,
    workspace: &EgressConfig,
    registries: Vec<HttpsRule>,
) -> Result<EgressPolicy, MergeError> {
    let count = base.rule_count() + workspace.rule_count() + registries.len();
    if count > MAX_RULES {
        return Err(MergeError::TooMany(count));
    }
    let https: Vec<HttpsRule> = [&base.https, &registries, &workspace.https]
        .into_iter()
        .flatten()
        .map(normal)
        .collect();
    let tcp = base.tcp.iter().chain(&workspace.tcp);
    Ok(EgressPolicy {
        version: POLICY_VERSION,
        workspace: session_id.to_owned(),
        https: in_order(https.iter(), https_identity, |rule| &rule.origin),
        tcp: in_order(tcp, tcp_identity, |rule| &rule.origin),
        hosts: merge_hosts(&base.hosts, &workspace.hosts)?,
    })
}

/// The registries that either layer names, in a fixed order.
pub(crate) fn registries(base: &EgressConfig, workspace: &EgressConfig) -> Vec<Registry> {
    let named = [&base.registries, &workspace.registries];
    let mut tools: Vec<Registry> = named.into_iter().flatten().flatten().copied().collect();
    tools.sort_unstable();
    tools.dedup();
    tools
}

/// What is to be checked, of both layers.
pub(crate) fn expectations(base: &EgressConfig, workspace: &EgressConfig) -> Vec<Expectation> {
    let mut all = base.expect.clone();
    for other in &workspace.expect {
        let is_known =
            |known: &Expectation| known.target == other.target && known.verdict == other.verdict;
        if !all.iter().any(is_known) {
            all.push(other.clone());
        }
    }
    all
}

/// Whether they are checked at each start: either layer can ask for it.
pub(crate) fn verify_at_start(base: &EgressConfig, workspace: &EgressConfig) -> bool {
    let layers = [base, workspace];
    layers
        .iter()
        .any(|layer| layer.verify_at_start == Some(true))
}

/// Sorted, so that equal policies are equal files; of rules that say the same
/// the one with the strongest origin stays.
fn in_order<'a, T: Clone + 'a>(
    rules: impl Iterator<Item = &'a T>,
    identity: impl Fn(&T) -> String,
    origin: impl Fn(&T) -> &RuleOrigin,
) -> Vec<T> {
    let mut rules: Vec<(String, u8, &T)> = rules
        .map(|rule| (identity(rule), rank(origin(rule)), rule))
        .collect();
    rules.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
    rules.dedup_by(|later, first| later.0 == first.0);
    rules.into_iter().map(|(_, _, rule)| rule.clone()).collect()
}

fn rank(origin: &RuleOrigin) -> u8 {
    match origin {
        RuleOrigin::Base => 0,
        RuleOrigin::Registry(_) => 1,
        RuleOrigin::Workspace => 2,
    }
}

fn merge_hosts(base: &[HostEntry], workspace: &[HostEntry]) -> Result<Vec<HostEntry>, MergeError> {
    let mut entries = base.to_vec();
    for entry in workspace {
        let of_base = base.iter().filter(|other| other.name == entry.name);
        let of_base: Vec<&HostEntry> = of_base.collect();
        if of_base.iter().any(|other| other.address == entry.address) {
            continue;
        }
        if let Some(other) = of_base.first() {
            return Err(MergeError::HostConflict {
                name: entry.name.clone(),
                base: other.address,
                workspace: entry.address,
            });
        }
        entries.push(entry.clone());
    }
    entries.sort_by(|a, b| (&a.name, a.address).cmp(&(&b.name, b.address)));
    Ok(entries)
}

/// The same rule with its lists in order.
fn normal(rule: &HttpsRule) -> HttpsRule {
    let mut rule = rule.clone();
    rule.paths.sort_by_cached_key(PathPattern::to_string);
    if let Some(methods) = &mut rule.methods {
        methods.sort_unstable();
    }
    rule
}

/// All of a rule but its origin: rules with one identity say the same.
pub(crate) fn https_identity(rule: &HttpsRule) -> String {
    let HttpsRule {
        host,
        port,
        paths,
        methods,
        inspect,
        private,
        ..
    } = normal(rule);
    format!("{host} {port:05} {paths:?} {methods:?} {inspect} {private}")
}

pub(crate) fn tcp_identity(rule: &TcpRule) -> String {
    format!("{} {:05} {}", rule.host, rule.port, rule.private)
}

impl EgressPolicy {
    /// The text of the gateway's policy file. Equal policies have equal texts.
    pub(crate) fn render_json(&self) -> String {
        // Strings, numbers and lists only: this cannot fail. If it did, the
        // gateway would refuse an empty file.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// SHA-256 of that text, in hex.
    pub(crate) fn digest(&self) -> String {
        sha256(self.render_json().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::egress::testing::{read_base, read_workspace};
    use std::path::Path;

    /// Each directory of `tests/data/egress` is one case: two files, and the
    /// policy or the error that they make.
    #[test]
    fn golden_trees_give_what_is_expected() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/egress");
        let mut cases: Vec<_> = std::fs::read_dir(root)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        cases.sort();
        assert!(cases.len() >= 6);
        for case in cases {
            let file = |name: &str| std::fs::read_to_string(case.join(name)).unwrap_or_default();
            let base = read_base(&file("umwelt.toml"));
            let workspace = read_workspace(&file("workspace.toml"));
            let made = base.and_then(|base| {
                merge("0123abcd", &base, &workspace?, Vec::new()).map_err(|error| error.to_string())
            });
            match made {
                Ok(policy) => {
                    let pretty = serde_json::to_string_pretty(&policy).unwrap();
                    assert_eq!(
                        pretty.trim(),
                        file("policy.expected.json").trim(),
                        "{case:?}"
                    );
                }
                Err(error) => {
                    assert_eq!(error.trim(), file("error.expected").trim(), "{case:?}");
                }
            }
        }
    }

    fn https(host: &str, origin: RuleOrigin) -> HttpsRule {
        HttpsRule {
            host: host.parse().unwrap(),
            port: 443,
            paths: vec!["/b".parse().unwrap(), "/a".parse().unwrap()],
            methods: None,
            inspect: true,
            private: false,
            origin,
        }
    }

    #[test]
    fn rules_of_registries_stand_between_base_and_workspace() {
        let pip = RuleOrigin::Registry("pip".into());
        let base = EgressConfig {
            https: vec![https("a.example.org", RuleOrigin::Base)],
            ..EgressConfig::default()
        };
        let workspace = EgressConfig {
            https: vec![
                https("b.example.org", RuleOrigin::Workspace),
                https("a.example.org", RuleOrigin::Workspace),
            ],
            ..EgressConfig::default()
        };
        let registries = vec![
            https("a.example.org", pip.clone()),
            https("b.example.org", pip.clone()),
        ];
        let policy = merge("0123abcd", &base, &workspace, registries).unwrap();
        let origins: Vec<_> = policy.https.iter().map(|rule| &rule.origin).collect();
        assert_eq!(origins, [&RuleOrigin::Base, &pip]);
    }

    #[test]
    fn equal_policies_have_one_text_and_one_digest() {
        let rule = https("a.example.org", RuleOrigin::Base);
        let mut turned = rule.clone();
        turned.paths.reverse();
        let other = https("b.example.org", RuleOrigin::Base);
        let with = |https: Vec<HttpsRule>| {
            let base = EgressConfig {
                https,
                ..EgressConfig::default()
            };
            merge("0123abcd", &base, &EgressConfig::default(), Vec::new()).unwrap()
        };
        let first = with(vec![rule.clone(), other.clone()]);
        let second = with(vec![other, turned]);
        assert_eq!(first.render_json(), second.render_json());
        assert_eq!(first.digest(), second.digest());
        assert_ne!(first.digest(), with(vec![rule]).digest());
        assert_eq!(first.digest().len(), 64);
        let read: EgressPolicy = serde_json::from_str(&first.render_json()).unwrap();
        assert_eq!(read, first);
    }

    #[test]
    fn both_layers_together_have_the_bound_too() {
        let rules = |from: usize, count: usize| EgressConfig {
            https: (from..from + count)
                .map(|i| https(&format!("h{i}.example.org"), RuleOrigin::Base))
                .collect(),
            ..EgressConfig::default()
        };
        let half = MAX_RULES / 2;
        assert!(merge("x", &rules(0, half), &rules(half, half), Vec::new()).is_ok());
        let error = merge("x", &rules(0, half), &rules(half, half + 1), Vec::new());
        assert_eq!(error, Err(MergeError::TooMany(MAX_RULES + 1)));
    }

    #[test]
    fn registries_and_checks_of_both_layers_hold() {
        let base = read_base("[egress]\nregistries=['go','pip']\nverify_at_start=true\n[[egress.expect]]\nurl='tcp://a.example.org:22'\nverdict='deny'\n").unwrap();
        let own = read_workspace("[egress]\nregistries=['pip','npm']\nverify_at_start=false\n[[egress.expect]]\nurl='tcp://a.example.org:22'\nverdict='deny'\n[[egress.expect]]\nurl='tcp://a.example.org:23'\nverdict='deny'\n").unwrap();
        let tools = registries(&base, &own);
        assert_eq!(tools, [Registry::Pip, Registry::Npm, Registry::Go]);
        assert!(verify_at_start(&base, &own) && !verify_at_start(&own, &own));
        assert_eq!(expectations(&base, &own).len(), 2);
    }
}
