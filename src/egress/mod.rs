//! Egress of one sandbox, apart from the loop that runs it: what the host must
//! have, and what follows from the rules. `run::network` and `run::gateway`
//! make it so.

pub(crate) mod check;
pub(crate) mod delivery;
pub(crate) mod environment;
pub(crate) mod kernel_log;
pub(crate) mod prober;
pub(crate) mod refused;
pub(crate) mod removed;
pub(crate) mod resolvers;
pub(crate) mod rules;
pub(crate) mod setup;
pub(crate) mod state;
pub(crate) mod targets;

use std::fmt;
use std::path::PathBuf;

use crate::api::CheckEntry;
use crate::policy::egress_rules::MergeError;

/// Why a sandbox that is to have a network is not started.
#[derive(Debug)]
pub(crate) enum EgressError {
    /// Something that umwelt-install makes is missing or of no use.
    NotInstalled {
        what: PathBuf,
        why: String,
    },
    MissingImage(String),
    Policy(MergeError),
    /// A direct target without an address that can be used.
    Target {
        host: String,
        why: String,
    },
    /// podman cannot make the network.
    Network {
        name: String,
        why: String,
    },
    /// Another network has the name of ours.
    NameTaken(String),
    Gateway(String),
    /// What `[[egress.expect]]` says is not so; those that differ.
    Unexpected(Vec<CheckEntry>),
    /// They are not in force, or nobody can tell.
    Rules(String),
}

impl EgressError {
    pub(crate) fn hint(&self) -> Option<String> {
        let install = "to make what egress needs, run: umwelt-install install --egress";
        Some(match self {
            EgressError::NotInstalled { .. } | EgressError::MissingImage(_) => install.to_owned(),
            EgressError::Policy(error) => error.hint(),
            EgressError::Target { .. } => {
                "correct or remove the [[egress.tcp]] rule, or give the name an address in [[hosts]]"
                    .to_owned()
            }
            EgressError::Network { .. } => format!(
                "try it: podman network create umwelt-try && podman network rm umwelt-try; {install}"
            ),
            EgressError::NameTaken(name) => format!(
                "remove it: podman network rm {name}, or set another session_prefix in the base config"
            ),
            EgressError::Gateway(_) => install.to_owned(),
            EgressError::Unexpected(_) => "correct the rules or the [[egress.expect]] entries; or set verify_at_start = false below [egress], start the sandbox, and see: umwelt-ctl egress verify"
                .to_owned(),
            EgressError::Rules(_) => format!(
                "look for what keeps podman's hook from running: a wrapper, a containers.conf; {install}"
            ),
        })
    }
}

impl fmt::Display for EgressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EgressError::NotInstalled { what, why } => {
                write!(f, "egress is not installed: {what:?} {why}")
            }
            EgressError::MissingImage(image) => {
                write!(
                    f,
                    "egress is not installed: the image {image:?} does not exist"
                )
            }
            EgressError::Policy(error) => error.fmt(f),
            EgressError::Target { host, why } => {
                write!(
                    f,
                    "the tcp target {host:?} cannot be reached directly: {why}"
                )
            }
            EgressError::Network { name, why } => {
                write!(f, "the network {name:?} cannot be made: {why}")
            }
            EgressError::NameTaken(name) => write!(
                f,
                "the name {name:?} belongs to another network, which is left alone"
            ),
            EgressError::Gateway(why) => write!(f, "the gateway did not come up: {why}"),
            EgressError::Unexpected(checks) => write!(
                f,
                "the network is not what [[egress.expect]] says:\n{}",
                check::render_different(checks)
            ),
            EgressError::Rules(why) => {
                write!(f, "the network's rules are not in force: {why}")
            }
        }
    }
}

impl std::error::Error for EgressError {}

impl From<MergeError> for EgressError {
    fn from(error: MergeError) -> EgressError {
        EgressError::Policy(error)
    }
}
