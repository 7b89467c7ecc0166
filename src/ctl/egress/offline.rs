//! The same answers where no sandbox runs: from the base config and what counts
//! of the workspace file, which is changed by itself.

use std::path::Path;

use crate::api::{ApiError, Egress, EgressOp, EgressReply, ErrorKind};
use crate::config::{Config, WorkspaceFile};
use crate::ctl::place::{Place, Target};
use crate::ctl::trust::directory_of;
use crate::ctl::{CLIENT, NAME};
use crate::egress::refused::Refusals;
use crate::egress::rules::{self, RuleChange};
use crate::egress::setup::writable_grants;
use crate::egress::{EgressError, removed};
use crate::error::Error;
use crate::podman;
use crate::policy::egress::EgressPolicy;
use crate::policy::egress_change::ChangeError;
use crate::policy::egress_rules;
use crate::registries::{self, Resolved};
use crate::run::journal::Entry;
use crate::text::{printable, shell_word};
use crate::trust::{WorkspaceSettings, WorkspaceTrust, network_meaning};
use crate::workspace::Workspace;

const LATER: &str = "no sandbox runs: the rules count from its next start on";

pub(super) fn answer(place: &Place, target: &Target, asked: &Egress) -> Result<EgressReply, Error> {
    let path = directory_of(place, target)?;
    let shown = path.to_str().unwrap_or_default();
    let trust = WorkspaceTrust::of_path(shown, &target.sid, &place.dirs);
    let config = Config::load(&place.dirs)?;
    let settings = trust.load();
    let mut notices: Vec<String> = settings.notice().into_iter().collect();
    notices.extend(off(&trust, &settings, &path));
    let file = settings.file;
    // Where no sandbox can be, there is nothing to tell of one.
    Workspace::select(Some(&path), None, &place.dirs)?;
    let found = registries_of(place, &path, &config, &file);
    let policy = merged(target, &config, &file, &found)?;
    if asked.op == EgressOp::List {
        notices.extend(found.warnings);
        return Ok(reply(&file, &policy, false, notices));
    }
    let change = RuleChange::parse(asked)?;
    let changed = match change.apply(&policy, &file.egress) {
        Ok(changed) => changed,
        // What was asked for is so already.
        Err(error @ (ChangeError::AlreadyThere(_) | ChangeError::NotInspected(_))) => {
            notices.push(error.to_string());
            return Ok(reply(&file, &policy, false, notices));
        }
        // With a file that does not count, that is the reason.
        Err(error) => {
            trust.check_counts()?;
            let hint = removed::hint(&error, &change, &file.egress, &place.dirs);
            let refused = ApiError::new(ErrorKind::Refused, error.to_string());
            return Err(ApiError { hint, ..refused }.into());
        }
    };
    let before = file.egress.clone();
    let file = WorkspaceFile {
        egress: changed,
        ..file
    };
    let policy = merged(target, &config, &file, &found)?;
    let is_changed = trust.change_rules(&change)?;
    notices.extend(removed::notices(&change, &before, &policy));
    if is_changed {
        place.record(target, &entry(&change, &network_meaning::changed(&change)));
    }
    if file.egress.enabled {
        notices.push(LATER.to_owned());
    }
    Ok(reply(&file, &policy, is_changed, notices))
}

fn entry<'a>(change: &RuleChange, rule: &'a str) -> Entry<'a> {
    Entry::Egress {
        op: change.op(),
        rule,
        client: CLIENT,
        applied: "next_start",
        reason: None,
    }
}

/// How the network is turned on, where it is not.
fn off(trust: &WorkspaceTrust, settings: &WorkspaceSettings, path: &Path) -> Option<String> {
    if settings.file.egress.enabled {
        return None;
    }
    let command = format!("{NAME} trust {}", shell_word(&path.to_string_lossy()));
    let asks = |trust: &WorkspaceTrust| {
        let seen = trust.comparison();
        seen.is_ok_and(|seen| seen.file.egress.enabled)
    };
    Some(match asks(trust) {
        true => format!(
            "the workspace has no network until its .umwelt.toml counts, which asks for one; accept it: {command}"
        ),
        false => format!(
            "the workspace has no network yet, and no rule counts: write enabled = true below [egress] in .umwelt.toml, then accept it: {command}"
        ),
    })
}

fn merged(
    target: &Target,
    config: &Config,
    file: &WorkspaceFile,
    found: &Resolved,
) -> Result<EgressPolicy, Error> {
    let (sid, rules) = (target.sid.as_str(), found.rules.clone());
    let merged = egress_rules::merge(sid, &config.egress, &file.egress, rules);
    Ok(merged.map_err(EgressError::from)?)
}

/// The tools of the host are asked, as at a start.
fn registries_of(place: &Place, path: &Path, config: &Config, file: &WorkspaceFile) -> Resolved {
    let tools = egress_rules::registries(&config.egress, &file.egress);
    let writable = writable_grants(file);
    let tools_path = podman::trusted_search_path();
    registries::resolve(&tools, &place.dirs.home, path, &writable, tools_path)
}

fn reply(
    file: &WorkspaceFile,
    policy: &EgressPolicy,
    changed: bool,
    mut notices: Vec<String>,
) -> EgressReply {
    notices.extend(Refusals::of(policy).notices());
    EgressReply {
        network: match file.egress.enabled {
            true => "egress".to_owned(),
            false => "none".to_owned(),
        },
        changed,
        rules: rules::entries_before_start(policy),
        hosts: policy.hosts.clone(),
        status: None,
        checks: Vec::new(),
        notices: notices.iter().map(|line| printable(line)).collect(),
    }
}
