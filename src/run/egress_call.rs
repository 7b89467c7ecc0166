//! The request `egress`: what the sandbox may reach, and one rule more or
//! less, written to the workspace file and brought to the gateway at once.

use crate::api::{
    ApiError, Delivery, Egress as Asked, EgressOp, EgressReply, EgressStatus, ErrorKind, RuleEntry,
    RuleKind,
};
use crate::config::egress::EgressConfig;
use crate::egress::delivery;
use crate::error::Error;
use crate::policy::egress::{EgressPolicy, HttpsRule, PathPattern, RuleOrigin};
use crate::policy::egress_change::{self, ChangeError, NewRule, OldRule};
use crate::run::control_plane::ControlPlane;
use crate::run::network::Egress;
use crate::run::standing::RuleChange;
use crate::text::printable;
use crate::trust::FILE;

const RELAYED: &str = "the rule is relayed: programs that use ALL_PROXY (SOCKS5) reach it now, all others from the next start of the sandbox on";
const PENDING: &str =
    "the sandbox was created with this rule: connections stay possible until its next start";

impl ControlPlane {
    pub(crate) fn on_egress(&mut self, asked: &Asked) -> Result<EgressReply, ApiError> {
        let Some(egress) = &self.egress else {
            return self.without_network(asked);
        };
        if asked.op == EgressOp::List {
            return Ok(self.egress_reply(egress, false, Vec::new()));
        }
        let change = parse(asked)?;
        let (policy, own) = (&egress.setup.policy, &egress.setup.workspace);
        let changed = match &change {
            RuleChange::Add(rule) => egress_change::add(policy, own, rule),
            RuleChange::Remove(rule) => egress_change::remove(policy, own, rule),
        };
        let changed = match changed {
            Ok(changed) => changed,
            // What was asked for is so already.
            Err(error @ (ChangeError::AlreadyThere(_) | ChangeError::NotInspected(_))) => {
                return Ok(self.egress_reply(egress, false, vec![error.to_string()]));
            }
            Err(error) => return Err(refused(error.to_string())),
        };
        self.change_policy(&change, changed).map_err(|error| {
            log::warn!("the network's rules stay as they are: {error}");
            ApiError {
                kind: ErrorKind::Refused,
                ..ApiError::from(&error)
            }
        })
    }

    fn change_policy(
        &mut self,
        change: &RuleChange,
        changed: EgressConfig,
    ) -> Result<EgressReply, Error> {
        let Some(egress) = &mut self.egress else {
            return Err(Error::Api(refused(OFF)));
        };
        // All that can fail comes before the file is written.
        let policy = egress.setup.merged(&changed)?;
        self.workspace_file.change_rules(change, &changed)?;
        egress.setup.policy = policy;
        egress.setup.workspace = changed;
        self.apply_policy()?;
        let Some(egress) = &self.egress else {
            return Err(Error::Api(refused(OFF)));
        };
        let notice = delivery_notice(change, &deliveries(egress));
        Ok(self.egress_reply(
            egress,
            true,
            notice.map(str::to_owned).into_iter().collect(),
        ))
    }

    fn without_network(&self, asked: &Asked) -> Result<EgressReply, ApiError> {
        if asked.op != EgressOp::List {
            let hint = format!(
                "the user can turn it on: enabled = true below [egress] in {FILE}, umwelt-ctl trust, and a new start of the sandbox"
            );
            return Err(refused(OFF).with_hint(hint));
        }
        Ok(EgressReply {
            network: self.context.list.network.clone(),
            changed: false,
            rules: Vec::new(),
            hosts: Vec::new(),
            status: None,
            notices: vec![OFF.to_owned()],
        })
    }

    fn egress_reply(&self, egress: &Egress, changed: bool, notices: Vec<String>) -> EgressReply {
        EgressReply {
            network: self.context.list.network.clone(),
            changed,
            rules: entries(&egress.setup.policy, &deliveries(egress)),
            hosts: egress.setup.policy.hosts.clone(),
            status: self.egress_status(),
            notices: notices.iter().map(|line| printable(line)).collect(),
        }
    }

    pub(crate) fn egress_status(&self) -> Option<EgressStatus> {
        let egress = self.egress.as_ref()?;
        let gateway = &egress.gateway;
        Some(EgressStatus {
            gateway: gateway.state.as_str().to_owned(),
            gateway_restarts: gateway.restarts,
            rules_digest: egress.digest.clone(),
            policy_digest: egress.setup.policy.digest(),
            policy_problem: gateway.policy_problem.as_deref().map(printable),
            audit_problem: gateway.is_audit_failing.then(|| AUDIT_FAILS.to_owned()),
        })
    }
}

const OFF: &str = "this workspace has no network";
const AUDIT_FAILS: &str =
    "the egress audit cannot be written, so nothing new is allowed: make room on the host's disk";

fn refused(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorKind::Refused, message)
}

fn parse(asked: &Asked) -> Result<RuleChange, ApiError> {
    let (Some(kind), Some(host)) = (asked.kind, &asked.host) else {
        return Err(ApiError::bad_request(
            "\"kind\" and \"host\" are needed to add and to remove a rule",
        ));
    };
    let paths = asked.paths.as_deref();
    let change = match asked.op {
        EgressOp::Remove => OldRule::parse(kind, host, asked.port, paths).map(RuleChange::Remove),
        EgressOp::Add | EgressOp::List => {
            NewRule::parse(kind, host, asked.port, paths).map(RuleChange::Add)
        }
    };
    change.map_err(|error| ApiError::bad_request(error.to_string()))
}

type Deliveries = Vec<(String, u16, Delivery)>;

fn deliveries(egress: &Egress) -> Deliveries {
    delivery::deliveries(&egress.setup.policy, &egress.targets.rules)
}

fn delivery_notice(change: &RuleChange, deliveries: &Deliveries) -> Option<&'static str> {
    let of = |host: String, port: u16| {
        let found = deliveries.iter().find(|(h, p, _)| (h, *p) == (&host, port));
        found.map(|(_, _, delivery)| *delivery)
    };
    let delivery = match change {
        RuleChange::Add(NewRule::Tcp(rule)) => of(rule.host.to_string(), rule.port),
        RuleChange::Remove(rule) if rule.kind == RuleKind::Tcp => {
            of(rule.host.to_string(), rule.port)
        }
        _ => None,
    };
    match delivery? {
        Delivery::Direct => None,
        Delivery::Relayed => Some(RELAYED),
        Delivery::PendingRemoval => Some(PENDING),
    }
}

fn entries(policy: &EgressPolicy, deliveries: &Deliveries) -> Vec<RuleEntry> {
    let https = policy.https.iter().map(https_entry);
    let tcp = deliveries.iter().map(|(host, port, delivery)| {
        let is_same = |rule: &&crate::policy::egress::TcpRule| {
            rule.host.to_string() == *host && rule.port == *port
        };
        let rule = policy.tcp.iter().find(is_same);
        RuleEntry {
            kind: RuleKind::Tcp,
            host: host.clone(),
            port: *port,
            paths: Vec::new(),
            methods: None,
            inspect: false,
            private: rule.is_some_and(|rule| rule.private),
            source: rule.map_or_else(|| "removed".to_owned(), |rule| source(&rule.origin)),
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
        source: source(&rule.origin),
        delivery: None,
    }
}

fn source(origin: &RuleOrigin) -> String {
    match origin {
        RuleOrigin::Base => "base".to_owned(),
        RuleOrigin::Workspace => "workspace".to_owned(),
        RuleOrigin::Registry(tool) => tool.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::egress::testing::read_workspace;
    use crate::policy::egress_rules::merge;
    use std::collections::BTreeSet;

    fn asked(op: EgressOp, kind: RuleKind, host: &str, port: i64) -> Asked {
        Asked {
            op,
            kind: Some(kind),
            host: Some(host.to_owned()),
            port: Some(port),
            paths: None,
        }
    }

    #[test]
    fn change_without_kind_or_host_and_nonsense_are_bad_requests() {
        let good = asked(EgressOp::Add, RuleKind::Https, "a.example.org", 443);
        assert!(parse(&good).is_ok());
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
            let error = parse(&bad).unwrap_err();
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
            let change = parse(&asked(op, RuleKind::Tcp, host, 22)).unwrap();
            delivery_notice(&change, &deliveries)
        };
        assert_eq!(notice(EgressOp::Add, "a.example.org"), Some(RELAYED));
        assert_eq!(notice(EgressOp::Remove, "b.example.org"), Some(PENDING));
        assert_eq!(notice(EgressOp::Remove, "c.example.org"), None);
    }
}
