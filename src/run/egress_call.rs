//! The request `egress`: what the sandbox may reach, and one rule more or
//! less, written to the workspace file and brought to the gateway at once.

use std::net::IpAddr;

use crate::api::{ApiError, Egress as Asked, EgressOp, EgressReply, EgressStatus, ErrorKind};
use crate::config::egress::EgressConfig;
use crate::egress::delivery;
use crate::egress::refused::Refusals;
use crate::egress::removed;
use crate::egress::resolvers;
use crate::egress::rules::{self, Deliveries, RuleChange};
use crate::error::Error;
use crate::policy::egress_change::ChangeError;
use crate::run::control_plane::ControlPlane;
use crate::run::gateway::StagedPolicy;
use crate::run::network::Egress;
use crate::text::printable;
use crate::trust::FILE;

const UNCHECKED: &str =
    "what [[egress.expect]] says was not checked again; check it with: umwelt-ctl egress verify";

impl ControlPlane {
    pub(crate) fn on_egress(&mut self, asked: &Asked) -> Result<EgressReply, ApiError> {
        let Some(egress) = &self.egress else {
            return self.without_network(asked);
        };
        if asked.op == EgressOp::List {
            return Ok(self.egress_reply(egress, false, Vec::new()));
        }
        let change = RuleChange::parse(asked)?;
        let (policy, own) = (&egress.setup.policy, &egress.setup.workspace);
        let changed = match change.apply(policy, own) {
            Ok(changed) => changed,
            // What was asked for is so already.
            Err(error @ (ChangeError::AlreadyThere(_) | ChangeError::NotInspected(_))) => {
                return Ok(self.egress_reply(egress, false, vec![error.to_string()]));
            }
            Err(error) => {
                let hint = removed::hint(&error, &change, own, &self.context.dirs);
                let refused = refused(error.to_string());
                return Err(ApiError { hint, ..refused });
            }
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
        // All that can fail comes before the file is written: what it says
        // then is in force.
        let policy = egress.setup.merged(&changed)?;
        let removed = removed::notices(change, &egress.setup.workspace, &policy);
        let staged = StagedPolicy::write(&self.context, &policy)?;
        self.workspace_file.change_rules(change, &changed)?;
        staged.put()?;
        egress.setup.policy = policy;
        egress.setup.workspace = changed;
        let Some(egress) = &self.egress else {
            return Err(Error::Api(refused(OFF)));
        };
        let notice = rules::delivery_notice(change, &deliveries(egress));
        let unchecked = (!egress.setup.expectations().is_empty()).then_some(UNCHECKED);
        let more = notice.into_iter().chain(unchecked).map(str::to_owned);
        Ok(self.egress_reply(egress, true, removed.into_iter().chain(more).collect()))
    }

    fn without_network(&self, asked: &Asked) -> Result<EgressReply, ApiError> {
        if asked.op != EgressOp::List {
            return Err(self.no_network());
        }
        Ok(EgressReply {
            network: self.context.list.network.clone(),
            changed: false,
            rules: Vec::new(),
            hosts: Vec::new(),
            status: None,
            checks: Vec::new(),
            notices: vec![OFF.to_owned()],
        })
    }

    fn egress_reply(
        &self,
        egress: &Egress,
        changed: bool,
        mut notices: Vec<String>,
    ) -> EgressReply {
        notices.extend(Refusals::of(&egress.setup.policy).notices());
        EgressReply {
            network: self.context.list.network.clone(),
            changed,
            rules: rules::entries(&egress.setup.policy, &deliveries(egress)),
            hosts: egress.setup.policy.hosts.clone(),
            status: self.egress_status(),
            checks: Vec::new(),
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
            resolver_problem: match egress.setup.resolvers.as_slice() {
                [] => Some(resolvers::NONE.to_owned()),
                _ if !gateway.is_resolver_silent => None,
                asked => Some(silent(asked)),
            },
        })
    }
}

impl ControlPlane {
    pub(crate) fn no_network(&self) -> ApiError {
        refused(OFF).with_hint(format!(
            "the user can turn it on: enabled = true below [egress] in {FILE}, umwelt-ctl trust, and a new start of the sandbox"
        ))
    }
}

const OFF: &str = "this workspace has no network";
const AUDIT_FAILS: &str =
    "the egress audit cannot be written, so nothing new is allowed: make room on the host's disk";

fn silent(asked: &[IpAddr]) -> String {
    let asked: Vec<String> = asked.iter().map(IpAddr::to_string).collect();
    format!(
        "no resolver of the host answers ({}), so names are not known: see /etc/resolv.conf there; a change of it holds from the next start of the sandbox",
        asked.join(", ")
    )
}

fn refused(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorKind::Refused, message)
}

fn deliveries(egress: &Egress) -> Deliveries {
    delivery::deliveries(&egress.setup.policy, &egress.targets.rules)
}
