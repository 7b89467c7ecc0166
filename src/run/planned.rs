//! A workspace -> what the next start of its sandbox would make. Looks at the
//! host as a start does (which enables cgroup controllers of the user's own,
//! should they be off), asks podman nothing, and makes nothing.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::api::{ListReply, RuleEntry};
use crate::config::{Config, WorkspaceFile};
use crate::dirs::Dirs;
use crate::egress::refused::Refusals;
use crate::egress::setup::writable_grants;
use crate::egress::state::InstallState;
use crate::egress::{EgressError, rules};
use crate::error::Error;
use crate::podman;
use crate::podman::argv::Network;
use crate::policy::egress::{EgressPolicy, HostEntry};
use crate::policy::egress_rules;
use crate::policy::grants::GrantSet;
use crate::registries;
use crate::run::control_plane::Asked;
use crate::run::grants::Judge;
use crate::run::layout::{Ground, Sources};
use crate::run::standing::StandingFile;
use crate::run::{Found, Selected, confirm, list_reply, masks, mount_entry, preflight, prepare};
use crate::text::printable;
use crate::trust::WorkspaceTrust;
use crate::workspace::Workspace;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Planned {
    /// The program and its arguments. Where there is a network, its addresses
    /// are left out: podman chooses them at the start.
    pub(crate) argv: Vec<String>,
    #[serde(flatten)]
    pub(crate) list: ListReply,
    pub(crate) rules: Vec<RuleEntry>,
    pub(crate) hosts: Vec<HostEntry>,
    /// What this host lacks for a start; the call of podman is empty then.
    pub(crate) missing: Vec<String>,
}

/// Where the start would be refused, the same errors come along, with what can
/// be told nevertheless: all but the call of podman. Fails where nothing can.
pub(crate) fn plan(workspace: Option<&Path>) -> Result<(Planned, Vec<Error>), Error> {
    // A person who only looks runs no program that an agent could have put
    // into a directory of PATH.
    let tools_path = podman::trusted_search_path();
    let selected = Selected::new(workspace)?;
    let missing = preflight::missing(&selected.workspace, &selected.dirs);
    let missing: Vec<Error> = missing.into_iter().map(Error::from).collect();
    if !missing.is_empty() {
        return part(selected, tools_path, missing);
    }
    match selected.look(tools_path.clone()) {
        Ok((found, asked)) => Ok((whole(found, asked)?, Vec::new())),
        Err(error @ Error::Egress(_)) => part(Selected::new(workspace)?, tools_path, vec![error]),
        Err(error) => Err(error),
    }
}

fn whole(found: Found, mut asked: Asked) -> Result<Planned, Error> {
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
    let policy = asked.egress.map(|egress| egress.setup.policy);
    let notices = notices.chain(refused_rules(policy.as_ref()));
    list.notices.extend(notices.map(|line| printable(&line)));
    Ok(Planned {
        argv: std::iter::once("podman".to_owned()).chain(words).collect(),
        list,
        rules: policy
            .as_ref()
            .map(rules::entries_before_start)
            .unwrap_or_default(),
        hosts: policy.map(|policy| policy.hosts).unwrap_or_default(),
        missing: Vec::new(),
    })
}

/// What needs neither podman nor what `umwelt-install` has made.
fn part(
    selected: Selected,
    tools_path: OsString,
    mut missing: Vec<Error>,
) -> Result<(Planned, Vec<Error>), Error> {
    let Selected {
        mut config,
        dirs,
        workspace,
        names,
        notice,
    } = selected;
    config.masks = masks::all(config.masks, &dirs);
    let mut notices: Vec<String> = notice.into_iter().collect();
    let host = preflight::host_facts(&config, &dirs, &mut notices)?;
    let mut file = StandingFile::load(WorkspaceTrust::new(&workspace, &dirs));
    let policy = match file.counted() {
        counted if counted.egress.enabled => {
            if !missing
                .iter()
                .any(|error| matches!(error, Error::Egress(_)))
            {
                missing.extend(InstallState::load(&dirs).err().map(Error::from));
            }
            let found = policy_of(&config, counted, &workspace, &dirs, tools_path)?;
            notices.extend(found.1);
            Some(found.0)
        }
        _ => None,
    };
    let exe = std::env::current_exe().map_err(|error| Error::io("find the own program", error))?;
    let ground = Ground {
        config: &config,
        dirs: &dirs,
        workspace: &workspace,
        names: &names,
        exe: &exe,
        host: &host,
        network_mounts: &[],
        sources: &Sources::new(),
    };
    let (grants, refused) = persisted(&ground, &file);
    let mounts = ground.plan(&grants)?.mounts;
    let notices = notices.into_iter().chain(refused);
    let notices = notices.chain(file.notice().map(str::to_owned));
    let notices = notices.chain(refused_rules(policy.as_ref()));
    let mut list = list_reply(&config, &workspace, policy.is_some(), notices);
    list.mounts = mounts.iter().map(mount_entry).collect();
    let told = missing.iter().map(|error| printable(&error.to_string()));
    let planned = Planned {
        argv: Vec::new(),
        list,
        rules: policy
            .as_ref()
            .map(rules::entries_before_start)
            .unwrap_or_default(),
        hosts: policy.map(|policy| policy.hosts).unwrap_or_default(),
        missing: told.collect(),
    };
    Ok((planned, missing))
}

fn refused_rules(policy: Option<&EgressPolicy>) -> Vec<String> {
    policy.map_or_else(Vec::new, |policy| Refusals::of(policy).notices())
}

fn persisted(ground: &Ground<'_>, file: &StandingFile) -> (GrantSet, Vec<String>) {
    let judge = Judge {
        config: ground.config,
        dirs: ground.dirs,
        workspace: ground.workspace.path(),
        exe: ground.exe,
        search_path: &podman::search_path(ground.workspace.path()),
        was_writable: &BTreeSet::new(),
    };
    judge.persisted(file)
}

/// With what could not be told of registries, one line each.
fn policy_of(
    config: &Config,
    file: &WorkspaceFile,
    workspace: &Workspace,
    dirs: &Dirs,
    tools_path: OsString,
) -> Result<(EgressPolicy, Vec<String>), Error> {
    let tools = egress_rules::registries(&config.egress, &file.egress);
    let writable = writable_grants(file);
    let found = registries::resolve(&tools, &dirs.home, workspace.path(), &writable, tools_path);
    let sid = workspace.sid().as_str();
    let merged = egress_rules::merge(sid, &config.egress, &file.egress, found.rules);
    Ok((merged.map_err(EgressError::from)?, found.warnings))
}
