//! How umwelt-run has the rules of a running sandbox read back: a short-lived
//! `umwelt-nft-hook --read-back`, which enters the sandbox's network.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::NftError;
use super::oci::HookFile;
use super::table::Counts;
use crate::sys::inherit;

/// Rules that are what was asked for, and what they have counted so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadBack {
    /// Of the table as the kernel has it, for `status`.
    pub(crate) digest: String,
    pub(crate) counts: Counts,
}

/// The command that reads back, to be run by `run::task`. `pidfd` is that of
/// pid 1, and must stay open until the command is spawned.
///
/// Whoever calls it has called [`inherit::reserve_fd3`].
pub(crate) fn command(exe: &Path, hook: &HookFile<'_>, pidfd: BorrowedFd<'_>) -> Command {
    let mut command = Command::new(exe);
    std::os::unix::process::CommandExt::arg0(&mut command, "umwelt-nft-hook");
    command
        .arg("--read-back")
        .args(hook.options())
        .env_clear()
        .current_dir("/");
    inherit::pass_as_fd3(&mut command, pidfd);
    command
}

/// What the command has printed. Failures are told by its exit status, with
/// the reason on its stderr.
pub(crate) fn parse(stdout: &str) -> Result<ReadBack, NftError> {
    serde_json::from_str(stdout).map_err(|error| NftError::Listing(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::table::Count;

    #[test]
    fn what_is_printed_is_read_back() {
        let found = ReadBack {
            digest: "d".repeat(64),
            counts: Counts {
                denied: vec![Count {
                    address: "2001:db8::1".parse().unwrap(),
                    protocol: 17,
                    port: 53,
                    packets: 3,
                    bytes: 84,
                }],
                allowed: Vec::new(),
                refused: 3,
            },
        };
        let line = serde_json::to_string(&found).unwrap();
        assert_eq!(parse(&line).unwrap(), found);
        assert!(parse(&line[..line.len() - 1]).is_err());
        assert!(parse("").is_err());
    }
}
