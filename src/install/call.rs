//! Programs of the host, podman above all, for those who install: where they are
//! found, and what happens to them at ^C.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use serde::Deserialize;

use crate::install::{InstallError, interrupt};
use crate::podman;
use crate::subprocess::{self, Limits, Running, Said};

/// podman can wait for a lock of its own for ever.
pub(super) const QUICK: Duration = Duration::from_secs(60);
/// An import or a first start copies hundreds of megabytes.
pub(super) const SLOW: Duration = Duration::from_secs(1200);
/// podman that is ended half way leaves things behind: it may come to its end.
const LAST_STEP: Duration = Duration::from_secs(20);
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Most that a program may print, in bytes.
const LIMIT: u64 = 16 << 20;

/// Where administrators' programs are, which `$PATH` of a user may leave out.
const ADMIN: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Input is a memory file, as output is: nothing fills up while it waits.
pub(super) fn run(mut command: Command, input: Option<&[u8]>, limit: Duration) -> io::Result<Said> {
    command.stdin(match input {
        Some(bytes) => Stdio::from(subprocess::memory_file(bytes)?),
        None => Stdio::null(),
    });
    if interrupt::is_due() {
        return Err(io::Error::from(io::ErrorKind::Interrupted));
    }
    if interrupt::is_catching() {
        command.process_group(0);
    }
    let limits = Limits {
        time: limit,
        bytes: LIMIT,
    };
    let mut running = Running::start(&mut command, limits)?;
    match running.await_end(interrupt::is_due) {
        Ok(()) => running.said(),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {
            finish(&mut running.child)?;
            Err(error)
        }
        Err(error) => {
            running.child.kill()?;
            running.child.wait()?;
            Err(error)
        }
    }
}

/// Waits for the end of a program that is not needed any more; one that takes
/// long is told to end, and then made to.
pub(super) fn finish(child: &mut Child) -> io::Result<()> {
    let forever = || Ok(false);
    if !subprocess::wait_unless(child, LAST_STEP, forever)? {
        let _told = rustix::process::kill_process(Pid::from_child(child), Signal::TERM);
        if !subprocess::wait_unless(child, LAST_WORDS, forever)? {
            child.kill()?;
        }
    }
    child.wait().map(drop)
}

/// Where programs are looked for: nowhere that an agent can write.
pub(super) fn search_path() -> OsString {
    let trusted = podman::trusted_search_path();
    let admin = ADMIN.iter().map(PathBuf::from).filter(|dir| dir.is_dir());
    let dirs = std::env::split_paths(&trusted)
        .filter(|dir| !dir.as_os_str().is_empty())
        .chain(admin);
    std::env::join_paths(dirs).unwrap_or(trusted)
}

/// The absolute path of a program.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    let path = search_path();
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| is_executable(file))
}

/// As [`find`], but only where podman is looked for too.
pub(super) fn find_trusted(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&podman::trusted_search_path())
        .map(|dir| dir.join(name))
        .find(|file| file.is_absolute() && is_executable(file))
}

pub(super) fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

pub(super) fn podman<S: AsRef<OsStr>>(
    args: &[S],
    input: Option<&[u8]>,
    limit: Duration,
) -> Result<Said, InstallError> {
    let words: Vec<&OsStr> = args.iter().map(AsRef::as_ref).collect();
    let command = podman::command(&podman::trusted_search_path(), &words);
    run(command, input, limit).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => InstallError::NoPodman,
        _ => failed(&words, error.to_string()),
    })
}

/// As [`podman()`]; any other end than success is an error. What it printed.
pub(super) fn podman_done<S: AsRef<OsStr>>(
    args: &[S],
    input: Option<&[u8]>,
    limit: Duration,
) -> Result<String, InstallError> {
    let said = podman(args, input, limit)?;
    if said.status.success() {
        return Ok(said.text().into_owned());
    }
    let words: Vec<&OsStr> = args.iter().map(AsRef::as_ref).collect();
    Err(failed(&words, said.problem()))
}

fn failed(words: &[&OsStr], problem: String) -> InstallError {
    // The first two name what was done; the rest is long.
    let call = words.iter().take(2).map(|word| word.to_string_lossy());
    let call: Vec<_> = std::iter::once("podman".into()).chain(call).collect();
    InstallError::Podman {
        call: call.join(" "),
        problem,
    }
}

/// An image that podman has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) id: String,
    /// What the label says, or nothing.
    pub(super) label: String,
}

/// As far as it matters of what podman says of an image.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    id: String,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

pub(super) fn find_image(name: &str, label: &str) -> Result<Option<Found>, InstallError> {
    let said = podman(&["image", "exists", name], None, QUICK)?;
    match said.status.code() {
        Some(0) => {}
        Some(1) => return Ok(None),
        _ => {
            return Err(InstallError::Podman {
                call: "podman image exists".to_owned(),
                problem: said.problem(),
            });
        }
    }
    let text = podman_done(&["image", "inspect", name], None, QUICK)?;
    let unclear = |problem: String| InstallError::Podman {
        call: "podman image inspect".to_owned(),
        problem,
    };
    let images: Vec<Inspected> =
        serde_json::from_str(&text).map_err(|error| unclear(error.to_string()))?;
    let image = images.into_iter().next();
    let image = image.ok_or_else(|| unclear(format!("it says nothing about {name}")))?;
    let label = image.labels.and_then(|mut labels| labels.remove(label));
    Ok(Some(Found {
        id: image.id,
        label: label.unwrap_or_default(),
    }))
}

/// Removes an image that nothing uses; whether it is gone.
pub(super) fn remove_image(id: &str) -> Result<bool, InstallError> {
    Ok(podman(&["rmi", "--", id], None, SLOW)?.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_their_absolute_path() {
        assert!(find("sh").unwrap().is_absolute());
        assert_eq!(find("no-such-program"), None);
    }
}
