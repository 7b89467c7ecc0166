//! Runs nft, in the namespaces that this process is in.

use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::NftError;
use super::ruleset::TABLE;
use crate::subprocess::{self, Limits};

const LIMITS: Limits = Limits {
    // Far more than it takes, but a start that hangs says nothing to anybody.
    time: Duration::from_secs(60),
    // Full sets come to less than 3 MiB.
    bytes: 16 << 20,
};

/// Puts a rendered ruleset in place, all of it or nothing.
pub(crate) fn apply(nft: &Path, ruleset: &[u8]) -> Result<(), NftError> {
    run(nft, "apply the ruleset", &["-j", "-f", "-"], ruleset)?;
    Ok(())
}

/// What the table is now, with protocols as numbers.
pub(crate) fn list(nft: &Path) -> Result<Vec<u8>, NftError> {
    let args = ["-j", "-p", "list", "table", "inet", TABLE];
    run(nft, "list the table", &args, &[])
}

fn run(nft: &Path, what: &'static str, args: &[&str], input: &[u8]) -> Result<Vec<u8>, NftError> {
    let start = |source: io::Error| NftError::Start {
        nft: nft.to_owned(),
        source,
    };
    let mut command = Command::new(nft);
    command
        .args(args)
        .env_clear()
        .current_dir("/")
        .stdin(subprocess::memory_file(input).map_err(start)?);
    let said = subprocess::run(&mut command, LIMITS).map_err(|source| match source.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::FileTooLarge => NftError::Failed {
            what,
            said: source.to_string(),
        },
        _ => start(source),
    })?;
    if said.status.success() {
        return Ok(said.stdout);
    }
    Err(NftError::Failed {
        what,
        said: first_line(&said.errors()).unwrap_or_else(|| said.status.to_string()),
    })
}

fn first_line(said: &str) -> Option<String> {
    let line = said.lines().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stand-in for nft. Another process writes it: the kernel starts no
    /// program that somebody has open for writing, and what is open here may
    /// be so for a moment in children of other tests.
    fn program(folder: &tempfile::TempDir, script: &str) -> std::path::PathBuf {
        let path = folder.path().join("nft");
        let write = r#"printf '#!/bin/sh\n%s\n' "$1" >"$2" && chmod 755 "$2""#;
        let mut shell = Command::new("sh");
        shell.args(["-c", write, "sh", script]).arg(&path);
        assert!(shell.status().unwrap().success());
        path
    }

    #[test]
    fn nft_gets_the_ruleset_and_nothing_of_the_environment() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let script = format!("{{ /bin/cat; echo \"$@\"; echo \"[$HOME]\"; }} >{out:?}");
        let big = "x".repeat(1 << 20);
        apply(&program(&folder, &script), big.as_bytes()).unwrap();
        let said = std::fs::read_to_string(out).unwrap();
        assert_eq!(said, format!("{big}-j -f -\n[]\n"));
    }

    #[test]
    fn a_failure_is_told_in_nfts_words() {
        let folder = tempfile::tempdir().unwrap();
        let nft = program(
            &folder,
            "echo >&2; echo 'Error: no' >&2; echo more >&2; exit 1",
        );
        let error = apply(&nft, b"{}").unwrap_err().to_string();
        assert_eq!(error, "nft could not apply the ruleset: Error: no");
        let error = list(&program(&folder, "kill -9 $$")).unwrap_err();
        assert!(error.to_string().contains("signal: 9"), "{error}");
    }

    #[test]
    fn an_nft_that_does_not_stop_printing_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let nft = program(&folder, "exec /bin/cat /dev/zero");
        let error = list(&nft).unwrap_err().to_string();
        assert_eq!(
            error,
            "nft could not list the table: it printed more than 16777216 bytes"
        );
    }

    #[test]
    fn an_nft_that_is_missing_or_no_program_cannot_be_started() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("none");
        let plain = folder.path().join("plain");
        std::fs::write(&plain, "text").unwrap();
        for nft in [missing, plain] {
            let error = list(&nft).unwrap_err();
            assert!(matches!(error, NftError::Start { .. }), "{error}");
        }
    }
}
