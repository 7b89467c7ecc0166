//! Package registries, as this host knows them -> https rules.
//!
//! Asked are the tools' own configuration files and variables, and where these
//! say nothing, what the installed tool has built in. No host name stands here,
//! and what an agent can write is neither read nor run: where nothing can be
//! known there is a warning, and no rule.

mod apt;
mod cargo;
mod found;
mod gem;
mod go;
mod host;
mod npm;
mod pip;
mod program;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::config::egress::Registry;
use crate::policy::egress::HttpsRule;
use found::Found;
use host::Host;

/// What the host told.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Resolved {
    pub(crate) rules: Vec<HttpsRule>,
    /// What could not be told or used, and what to do about it. Without
    /// credentials.
    pub(crate) warnings: Vec<String>,
    /// For commands inside, where the tools' configuration files are hidden:
    /// what makes them use the registries that are configured on the host.
    pub(crate) variables: Vec<(&'static str, String)>,
}

/// Asks the host. Blocks while tools run, for 10 seconds at most.
///
/// `writable` are the places that the agent can write besides the workspace:
/// nothing in them counts. The tools are looked for in `search_path`.
pub(crate) fn resolve(
    tools: &[Registry],
    home: &Path,
    workspace: &Path,
    writable: &[PathBuf],
    search_path: OsString,
) -> Resolved {
    if tools.is_empty() {
        return Resolved::default();
    }
    resolve_on(&Host::new(home, workspace, writable, search_path), tools)
}

fn resolve_on(host: &Host, tools: &[Registry]) -> Resolved {
    let mut resolved = Resolved::default();
    for tool in tools {
        let mut found = Found::new(*tool);
        match tool {
            Registry::Pip => pip::resolve(host, &mut found),
            Registry::Npm => npm::resolve(host, &mut found),
            Registry::Cargo => cargo::resolve(host, &mut found),
            Registry::Go => go::resolve(host, &mut found),
            Registry::Apt => apt::resolve(host, &mut found),
            Registry::Gem => gem::resolve(host, &mut found),
        }
        found.hand_over(&mut resolved);
    }
    resolved
}

#[cfg(test)]
mod tests;
