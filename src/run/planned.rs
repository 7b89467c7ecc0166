//! A workspace -> what the next start of its sandbox would make. Looks at the
//! host as a start does (which enables cgroup controllers of the user's own,
//! should they be off), asks podman nothing, and makes nothing.

use std::net::Ipv4Addr;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::api::{ListReply, RuleEntry};
use crate::egress::rules;
use crate::error::Error;
use crate::podman;
use crate::podman::argv::Network;
use crate::policy::egress::HostEntry;
use crate::run::{Selected, confirm, prepare};
use crate::text::printable;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Planned {
    /// The program and its arguments. Where there is a network, its addresses
    /// are left out: podman chooses them at the start.
    pub(crate) argv: Vec<String>,
    #[serde(flatten)]
    pub(crate) list: ListReply,
    pub(crate) rules: Vec<RuleEntry>,
    pub(crate) hosts: Vec<HostEntry>,
}

/// Fails where the start would be refused, with the same error.
pub(crate) fn plan(workspace: Option<&Path>) -> Result<Planned, Error> {
    // A person who only looks runs no program that an agent could have put
    // into a directory of PATH.
    let tools_path = podman::trusted_search_path();
    let (found, mut asked) = Selected::new(workspace)?.look(tools_path)?;
    let mut context = prepare(found, &asked, false);
    let (grants, refused) = context.persisted(&asked.workspace_file);
    let plan = context.plan(&grants)?;
    context.set_mounts(plan.mounts);
    if let Some(egress) = &asked.egress {
        let runtime = &context.names.runtime;
        context.spec.network = confirm::network_of(egress, Ipv4Addr::UNSPECIFIED, runtime);
    }
    let words = context.spec.render_argv().into_iter();
    let words = words.map(|word| word.to_string_lossy().into_owned());
    let words = words.map(|word| match &context.spec.network {
        Network::Egress(network) if word.starts_with("--network=") => {
            format!("--network={}", network.name)
        }
        _ => word,
    });
    let mut list = context.list;
    let notices = refused.into_iter();
    let notices = notices.chain(asked.workspace_file.notice().map(str::to_owned));
    list.notices.extend(notices.map(|line| printable(&line)));
    let policy = asked.egress.map(|egress| egress.setup.policy);
    Ok(Planned {
        argv: std::iter::once("podman".to_owned()).chain(words).collect(),
        list,
        rules: policy
            .as_ref()
            .map(rules::entries_before_start)
            .unwrap_or_default(),
        hosts: policy.map(|policy| policy.hosts).unwrap_or_default(),
    })
}
