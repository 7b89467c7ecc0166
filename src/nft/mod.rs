//! The kernel layer of the egress policy: what a sandbox may reach -> rules in
//! its network namespace, put there by an OCI hook and read back from outside.
#![allow(
    dead_code,
    reason = "umwelt-run calls it once egress is put together there"
)]

pub(crate) mod hook;
pub(crate) mod oci;
pub(crate) mod probe;
mod program;
pub(crate) mod readback;
pub(crate) mod ruleset;
pub(crate) mod settings;
pub(crate) mod table;

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why the rules of a sandbox could not be made, put in place or confirmed.
#[derive(Debug)]
pub(crate) enum NftError {
    /// No ruleset can be made of what was asked for.
    Ruleset(String),
    /// The runtime's words about the container, on stdin.
    State(String),
    /// The file with the ruleset is not the one that was meant.
    File { path: PathBuf, why: String },
    /// This is not the place where the rules belong.
    Namespace(String),
    /// nft itself could not be started.
    Start { nft: PathBuf, source: io::Error },
    /// It ended without success.
    Failed { what: &'static str, said: String },
    /// What nft listed is not understood.
    Listing(String),
    /// The rules are not those that were asked for.
    Differs(String),
}

impl NftError {
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            NftError::Start { .. } => {
                Some("install nftables (on Debian: apt-get install nftables)".to_owned())
            }
            NftError::Failed { .. } | NftError::Listing(_) => {
                Some("umwelt needs nftables 1.0.6 or later; see: nft --version".to_owned())
            }
            NftError::Differs(_) => Some(
                "look for what else writes rules into containers: other OCI hooks, a wrapper around nft"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

impl fmt::Display for NftError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NftError::Ruleset(why) => write!(f, "no ruleset can be made: {why}"),
            NftError::State(why) => write!(f, "the container's state on stdin: {why}"),
            NftError::File { path, why } => write!(f, "the ruleset {path:?} {why}"),
            NftError::Namespace(why) => write!(f, "the network namespace: {why}"),
            NftError::Start { nft, source } => write!(f, "cannot start {nft:?}: {source}"),
            NftError::Failed { what, said } => write!(f, "nft could not {what}: {said}"),
            NftError::Listing(why) => write!(f, "not understood as JSON of nft: {why}"),
            NftError::Differs(what) => {
                write!(f, "the rules are not those that were asked for: {what}")
            }
        }
    }
}

impl std::error::Error for NftError {}

/// Files of `tests/data/nft`, which the tests of the whole binary use too.
#[cfg(test)]
mod golden {
    use std::path::PathBuf;

    pub(crate) fn path(name: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("tests/data/nft")
            .join(name)
    }

    pub(crate) fn read(name: &str) -> String {
        let path = path(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"))
    }

    /// Compares; `UMWELT_WRITE_GOLDEN=1` writes the files instead.
    pub(crate) fn compare(name: &str, found: &str) {
        if std::env::var_os("UMWELT_WRITE_GOLDEN").is_some() {
            std::fs::write(path(name), found).unwrap();
        }
        let expected = read(name);
        let different = expected
            .lines()
            .zip(found.lines().chain(std::iter::repeat("")))
            .enumerate()
            .find(|(_, (expected, found))| expected != found);
        assert_eq!(different, None, "{name}");
        assert_eq!(expected.len(), found.len(), "{name}");
    }
}
