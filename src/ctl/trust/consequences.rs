//! A workspace file that is to be accepted -> what would not hold of it, and
//! all that its network would open, in lines for the person who is asked.

use std::collections::BTreeSet;
use std::path::Path;

use crate::config::egress::EgressConfig;
use crate::config::{Config, PersistedGrant, WorkspaceFile};
use crate::ctl::place::Place;
use crate::egress::refused::{Refusals, RefusedRule};
use crate::egress::setup::writable_grants;
use crate::error::Error;
use crate::podman;
use crate::policy::address::AddressClass;
use crate::policy::egress::{EgressPolicy, HostPattern, RuleOrigin};
use crate::policy::egress_rules;
use crate::registries;
use crate::run::grants::Judge;
use crate::run::masks;
use crate::text::printable;
use crate::trust::{FILE, network_meaning};

/// Most rules that are named one by one.
const MAX_RULES: usize = 40;

/// What a person cannot see in the file itself. Each is one line, safe to show.
#[derive(Debug, Default)]
pub(super) struct Consequences {
    /// Grants that the rules would refuse at each start.
    pub(super) never: Vec<(PersistedGrant, String)>,
    /// What the sandbox would reach with the network on.
    pub(super) reached: Vec<String>,
    /// What keeps some of that from being so.
    pub(super) notes: Vec<String>,
}

/// Blocks while the tools of the host are asked for their registries.
pub(super) fn of(
    place: &Place,
    workspace: &Path,
    file: &WorkspaceFile,
) -> Result<Consequences, Error> {
    let mut config = Config::load(&place.dirs)?;
    config.masks = masks::all(config.masks, &place.dirs);
    let exe = std::env::current_exe().map_err(|error| Error::io("find the own program", error))?;
    let search_path = podman::search_path(workspace);
    let judge = Judge {
        config: &config,
        dirs: &place.dirs,
        workspace,
        exe: &exe,
        search_path: &search_path,
        was_writable: &BTreeSet::new(),
    };
    let (reached, notes) = match file.egress.enabled {
        true => reached(place, workspace, &config, file),
        false => (Vec::new(), off(&file.egress).into_iter().collect()),
    };
    Ok(Consequences {
        never: never_granted(&judge, file),
        reached,
        notes,
    })
}

fn never_granted(judge: &Judge<'_>, file: &WorkspaceFile) -> Vec<(PersistedGrant, String)> {
    let refused = file.grants.iter().filter_map(|asked| {
        let error = judge.judge_persisted(asked).err()?;
        let line = printable(&format!("not granted: {error}"));
        Some((asked.clone(), line))
    });
    refused.collect()
}

/// Only the workspace file turns the network on.
fn off(egress: &EgressConfig) -> Option<String> {
    let registries = egress.registries.iter().flatten();
    let count = egress.rule_count() + registries.count() + egress.expect.len();
    (count > 0).then(|| {
        format!("the network stays off, and nothing that the file says of it counts: write enabled = true below [egress] in {FILE}")
    })
}

/// With notes.
fn reached(
    place: &Place,
    workspace: &Path,
    config: &Config,
    file: &WorkspaceFile,
) -> (Vec<String>, Vec<String>) {
    let tools = egress_rules::registries(&config.egress, &file.egress);
    let home = &place.dirs.home;
    let tools_path = podman::trusted_search_path();
    let found = registries::resolve(&tools, home, workspace, &writable_grants(file), tools_path);
    let (lines, mut notes) =
        match egress_rules::merge("", &config.egress, &file.egress, found.rules) {
            Ok(policy) => (rules(&policy), Refusals::of(&policy).notices()),
            Err(error) => {
                let line = format!("nothing, for the sandbox cannot start: {error}");
                (vec![line], Vec::new())
            }
        };
    notes.extend(found.warnings);
    let safe = |lines: Vec<String>| lines.iter().map(|line| printable(line)).collect();
    (safe(lines), safe(notes))
}

/// Each rule that leads somewhere, with where it comes from.
fn rules(policy: &EgressPolicy) -> Vec<String> {
    let refusals = Refusals::of(policy);
    let leads = |refused: Option<RefusedRule>| refused.is_none_or(|refused| !refused.is_whole);
    let https = policy
        .https
        .iter()
        .filter(|rule| leads(refusals.https(rule)));
    let https = https.map(|rule| {
        let at = place_of(policy, &rule.host, rule.private);
        let words = network_meaning::https(rule);
        format!("{words}{at}  ({})", origin(&rule.origin))
    });
    let tcp = policy.tcp.iter().filter(|rule| leads(refusals.tcp(rule)));
    let tcp = tcp.map(|rule| {
        let at = place_of(policy, &rule.host, rule.private);
        let words = network_meaning::tcp(rule);
        format!("{words}{at}  ({})", origin(&rule.origin))
    });
    let mut lines: Vec<String> = https.chain(tcp).collect();
    let more = lines.len().saturating_sub(MAX_RULES);
    lines.truncate(MAX_RULES);
    if more > 0 {
        lines.push(format!("and {more} more rules"));
    }
    if lines.is_empty() {
        let is_without = policy.https.is_empty() && policy.tcp.is_empty();
        let line = match is_without {
            true => "nothing: there is no rule",
            false => "nothing",
        };
        lines.push(line.to_owned());
    }
    lines
}

/// A rule that names a private address reaches it without saying `private`,
/// and so does one beside another that says it.
fn place_of(policy: &EgressPolicy, host: &HostPattern, is_told: bool) -> String {
    let address = match host {
        HostPattern::Address(address) => Some(*address),
        HostPattern::Name(name) => {
            let mut entries = policy.hosts.iter();
            let entry = entries.find(|entry| entry.name == *name);
            entry.map(|entry| entry.address)
        }
        HostPattern::Suffix(_) => None,
    };
    let class = address.map(|address| (address, AddressClass::of(address)));
    match class {
        Some((address, class @ AddressClass::Private(_))) if !is_told => {
            format!(", at the address {address} ({})", class.as_str())
        }
        _ => String::new(),
    }
}

fn origin(origin: &RuleOrigin) -> String {
    match origin {
        RuleOrigin::Base => "base config".to_owned(),
        RuleOrigin::Workspace => "this file".to_owned(),
        RuleOrigin::Registry(tool) => format!("registry of {tool} on this host"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::egress::testing::read_workspace;

    #[test]
    fn each_rule_is_told_with_its_origin_and_a_private_address() {
        let text = "[[egress.https]]\nhost='a.example.org'\nprivate=true\n\
            [[egress.https]]\nhost='10.0.0.7'\n\
            [[egress.tcp]]\nhost='10.0.0.8'\nport=22\n\
            [[egress.tcp]]\nhost='b.example.org'\nport=22\n\
            [[egress.https]]\nhost='b.example.org'\n\
            [[hosts]]\nname='b.example.org'\naddress='192.168.1.2'\n";
        let own = read_workspace(text).unwrap();
        let policy = egress_rules::merge("", &EgressConfig::default(), &own, Vec::new());
        let told = rules(&policy.unwrap()).join("\n");
        for line in [
            "https://a.example.org/*, also at a private address  (this file)",
            "https://10.0.0.7/*, at the address 10.0.0.7 (private)  (this file)",
            "tcp://10.0.0.8:22, at the address 10.0.0.8 (private)  (this file)",
        ] {
            assert!(told.contains(line), "{told}");
        }
        // The gateway refuses what leads there by a name.
        assert!(!told.contains("b.example.org"), "{told}");
    }

    #[test]
    fn no_rule_and_many_rules_are_told_too() {
        let merged = |text: &str| {
            let own = read_workspace(text).unwrap();
            egress_rules::merge("", &EgressConfig::default(), &own, Vec::new()).unwrap()
        };
        assert_eq!(rules(&merged("")), ["nothing: there is no rule"]);
        let many =
            (0..MAX_RULES + 3).map(|n| format!("[[egress.https]]\nhost='n{n}.example.org'\n"));
        let lines = rules(&merged(&many.collect::<String>()));
        assert_eq!(lines.len(), MAX_RULES + 1);
        assert_eq!(lines[MAX_RULES], "and 3 more rules");
    }
}
