//! A request about one rule -> that rule; a policy -> the entries of an
//! answer. Pure; for the control plane, and for umwelt-ctl where none runs.

use std::collections::BTreeSet;

use crate::api::{ApiError, Delivery, Egress as Asked, EgressOp, RuleEntry, RuleKind};
use crate::config::egress::EgressConfig;
use crate::config::rule::parse_method;
use crate::egress::delivery;
use crate::policy::egress::{EgressPolicy, HttpsRule, PathPattern, TcpRule};
use crate::policy::egress_change::{self, ChangeError, NewRule, OldRule};

const RELAYED: &str = "the rule is relayed: programs that use ALL_PROXY (SOCKS5) reach it now, all others from the next start of the sandbox on";
const PENDING: &str =
    "the sandbox was created with this rule: connections stay possible until its next start";

/// What is to be done to the rules of the workspace.
#[derive(Debug)]
pub(crate) enum RuleChange {
    Add(NewRule),
    Remove(OldRule),
}

impl RuleChange {
    pub(crate) fn parse(asked: &Asked) -> Result<RuleChange, ApiError> {
        let (Some(kind), Some(host)) = (asked.kind, &asked.host) else {
            return Err(ApiError::bad_request(
                "\"kind\" and \"host\" are needed to add and to remove a rule",
            ));
        };
        let paths = asked.paths.as_deref();
        let wrong = |error: ChangeError| ApiError::bad_request(error.to_string());
        if asked.op == EgressOp::Remove {
            if asked.methods.is_some() || asked.inspect.is_some() || asked.private.is_some() {
                return Err(ApiError::bad_request(
                    "\"methods\", \"inspect\" and \"private\" are for adding a rule",
                ));
            }
            let old = OldRule::parse(kind, host, asked.port, paths).map_err(wrong)?;
            return Ok(RuleChange::Remove(old));
        }
        let mut rule = NewRule::parse(kind, host, asked.port, paths).map_err(wrong)?;
        refine(&mut rule, asked).map_err(ApiError::bad_request)?;
        Ok(RuleChange::Add(rule))
    }

    pub(crate) fn op(&self) -> &'static str {
        match self {
            RuleChange::Add(_) => "add",
            RuleChange::Remove(_) => "remove",
        }
    }

    /// The workspace's part after it; `policy` is the effective one.
    pub(crate) fn apply(
        &self,
        policy: &EgressPolicy,
        workspace: &EgressConfig,
    ) -> Result<EgressConfig, ChangeError> {
        match self {
            RuleChange::Add(rule) => egress_change::add(policy, workspace, rule),
            RuleChange::Remove(rule) => egress_change::remove(policy, workspace, rule),
        }
    }
}

/// What only a person asks for.
fn refine(rule: &mut NewRule, asked: &Asked) -> Result<(), String> {
    let rule = match rule {
        NewRule::Tcp(rule) => {
            if asked.methods.is_some() || asked.inspect.is_some() {
                return Err("\"methods\" and \"inspect\" are for https rules".to_owned());
            }
            rule.private = asked.private == Some(true);
            return Ok(());
        }
        NewRule::Https(rule) => rule,
    };
    rule.private = asked.private == Some(true);
    rule.inspect = asked.inspect != Some(false);
    if !rule.inspect && (asked.paths.is_some() || asked.methods.is_some()) {
        return Err("paths and methods cannot be checked without inspection".to_owned());
    }
    if let Some(methods) = &asked.methods {
        let mut parsed = Vec::new();
        for word in methods.split_ascii_whitespace() {
            let method = parse_method(word).map_err(|why| format!("methods: {why}"))?;
            if !parsed.contains(&method) {
                parsed.push(method);
            }
        }
        if parsed.is_empty() {
            return Err("methods: none is named; leave them out to allow all".to_owned());
        }
        rule.methods = Some(parsed);
    }
    Ok(())
}

pub(crate) type Deliveries = Vec<(String, u16, Delivery)>;

/// How the tcp rule that was changed reaches the sandbox that runs.
pub(crate) fn delivery_of(change: &RuleChange, deliveries: &Deliveries) -> Option<Delivery> {
    let of = |host: String, port: u16| {
        let found = deliveries.iter().find(|(h, p, _)| (h, *p) == (&host, port));
        found.map(|(_, _, delivery)| *delivery)
    };
    match change {
        RuleChange::Add(NewRule::Tcp(rule)) => of(rule.host.to_string(), rule.port),
        RuleChange::Remove(rule) if rule.kind == RuleKind::Tcp => {
            of(rule.host.to_string(), rule.port)
        }
        _ => None,
    }
}

/// When a tcp rule holds, where that is not at once.
pub(crate) fn delivery_notice(
    change: &RuleChange,
    deliveries: &Deliveries,
) -> Option<&'static str> {
    match delivery_of(change, deliveries)? {
        Delivery::Direct => None,
        Delivery::Relayed => Some(RELAYED),
        Delivery::PendingRemoval => Some(PENDING),
    }
}

/// What a start would make of the rules; what it finds out of the addresses of
/// tcp rules is not known before.
pub(crate) fn entries_before_start(policy: &EgressPolicy) -> Vec<RuleEntry> {
    let deliveries = delivery::deliveries(policy, &BTreeSet::new());
    let mut entries = entries(policy, &deliveries);
    for entry in &mut entries {
        entry.delivery = None;
    }
    entries
}

pub(crate) fn entries(policy: &EgressPolicy, deliveries: &Deliveries) -> Vec<RuleEntry> {
    let https = policy.https.iter().map(https_entry);
    let tcp = deliveries.iter().map(|(host, port, delivery)| {
        let is_same = |rule: &&TcpRule| rule.host.to_string() == *host && rule.port == *port;
        let rule = policy.tcp.iter().find(is_same);
        RuleEntry {
            kind: RuleKind::Tcp,
            host: host.clone(),
            port: *port,
            paths: Vec::new(),
            methods: None,
            inspect: false,
            private: rule.is_some_and(|rule| rule.private),
            source: rule.map_or_else(|| "removed".to_owned(), |rule| rule.origin.to_string()),
            delivery: Some(*delivery),
        }
    });
    https.chain(tcp).collect()
}

fn https_entry(rule: &HttpsRule) -> RuleEntry {
    RuleEntry {
        kind: RuleKind::Https,
        host: rule.host.to_string(),
        port: rule.port,
        paths: rule.paths.iter().map(PathPattern::to_string).collect(),
        methods: rule.methods.clone(),
        inspect: rule.inspect,
        private: rule.private,
        source: rule.origin.to_string(),
        delivery: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ErrorKind;
    use crate::config::egress::testing::read_workspace;
    use crate::egress::delivery;
    use crate::policy::egress_rules::merge;
    use std::collections::BTreeSet;

    fn asked(op: EgressOp, kind: RuleKind, host: &str, port: i64) -> Asked {
        Asked {
            op,
            kind: Some(kind),
            host: Some(host.to_owned()),
            port: Some(port),
            paths: None,
            methods: None,
            inspect: None,
            private: None,
        }
    }

    #[test]
    fn change_without_kind_or_host_and_nonsense_are_bad_requests() {
        let good = asked(EgressOp::Add, RuleKind::Https, "a.example.org", 443);
        assert!(RuleChange::parse(&good).is_ok());
        for bad in [
            Asked {
                kind: None,
                ..good.clone()
            },
            Asked {
                host: None,
                ..good.clone()
            },
            Asked {
                host: Some("https://a.example.org/".into()),
                ..good.clone()
            },
            Asked {
                port: Some(0),
                ..good.clone()
            },
            Asked {
                paths: Some("../x".into()),
                ..good
            },
        ] {
            let error = RuleChange::parse(&bad).unwrap_err();
            assert_eq!(error.kind, ErrorKind::BadRequest, "{bad:?}");
        }
    }

    #[test]
    fn rules_are_told_with_source_and_delivery() {
        let text = "[[egress.https]]\nhost='a.example.org'\npaths=['/x']\n[[egress.tcp]]\nhost='b.example.org'\nport=22\n";
        let own = read_workspace(text).unwrap();
        let policy = merge("x", &EgressConfig::default(), &own, Vec::new()).unwrap();
        let running = BTreeSet::from([("c.example.org".to_owned(), 22)]);
        let entries = entries(&policy, &delivery::deliveries(&policy, &running));
        let told: Vec<(&str, &str, Option<Delivery>)> = entries
            .iter()
            .map(|entry| (entry.host.as_str(), entry.source.as_str(), entry.delivery))
            .collect();
        let expected = [
            ("a.example.org", "workspace", None),
            ("b.example.org", "workspace", Some(Delivery::Relayed)),
            ("c.example.org", "removed", Some(Delivery::PendingRemoval)),
        ];
        assert_eq!(told, expected);
        assert_eq!(entries[0].paths, ["/x"]);
    }

    #[test]
    fn whoever_changes_a_tcp_rule_is_told_when_it_holds() {
        let deliveries = vec![
            ("a.example.org".to_owned(), 22, Delivery::Relayed),
            ("b.example.org".to_owned(), 22, Delivery::PendingRemoval),
        ];
        let notice = |op, host| {
            let change = RuleChange::parse(&asked(op, RuleKind::Tcp, host, 22)).unwrap();
            delivery_notice(&change, &deliveries)
        };
        assert_eq!(notice(EgressOp::Add, "a.example.org"), Some(RELAYED));
        assert_eq!(notice(EgressOp::Remove, "b.example.org"), Some(PENDING));
        assert_eq!(notice(EgressOp::Remove, "c.example.org"), None);
    }

    #[test]
    fn methods_tunnels_and_private_addresses_can_be_asked_for() {
        let good = asked(EgressOp::Add, RuleKind::Https, "a.example.org", 443);
        let Ok(RuleChange::Add(NewRule::Https(rule))) = RuleChange::parse(&Asked {
            methods: Some("GET HEAD GET".into()),
            private: Some(true),
            ..good.clone()
        }) else {
            panic!("no rule");
        };
        assert_eq!(
            rule.methods.as_deref(),
            Some(&["GET".into(), "HEAD".into()][..])
        );
        assert!(rule.private && rule.inspect);
        let tunnel = Asked {
            inspect: Some(false),
            ..good.clone()
        };
        assert!(RuleChange::parse(&tunnel).is_ok());
        let tcp = asked(EgressOp::Add, RuleKind::Tcp, "a.example.org", 22);
        for bad in [
            Asked {
                paths: Some("/x".into()),
                ..tunnel.clone()
            },
            Asked {
                methods: Some("GET".into()),
                ..tunnel.clone()
            },
            Asked {
                methods: Some(" ".into()),
                ..good.clone()
            },
            Asked {
                methods: Some("GET,POST".into()),
                ..good.clone()
            },
            Asked {
                inspect: Some(false),
                ..tcp.clone()
            },
            Asked {
                op: EgressOp::Remove,
                private: Some(true),
                ..tcp
            },
        ] {
            let error = RuleChange::parse(&bad).unwrap_err();
            assert_eq!(error.kind, ErrorKind::BadRequest, "{bad:?}");
        }
    }
}
