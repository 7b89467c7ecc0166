//! Programs of the host: started with a limit of time, their words kept.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal};
use serde::Deserialize;

use crate::install::{InstallError, interrupt};
use crate::podman;

/// podman can wait for a lock of its own for ever.
pub(super) const QUICK: Duration = Duration::from_secs(60);
/// An import or a first start copies hundreds of megabytes.
pub(super) const SLOW: Duration = Duration::from_secs(1200);
/// podman that is ended half way leaves things behind: it may come to its end.
const LAST_STEP: Duration = Duration::from_secs(20);
const LAST_WORDS: Duration = Duration::from_secs(5);
/// What is kept of the words of a program.
const LIMIT: u64 = 4 << 20;

/// Where administrators' programs are, which `$PATH` of a user may leave out.
const ADMIN: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

#[derive(Debug)]
pub(super) struct Said {
    pub(super) status: ExitStatus,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Said {
    /// The last line of an error message, which is the one that counts.
    pub(super) fn problem(&self) -> String {
        let last = self.stderr.lines().rfind(|line| !line.trim().is_empty());
        last.map_or_else(|| self.status.to_string(), |line| line.trim().to_owned())
    }
}

/// Input and output are memory files: nothing fills up while it waits.
pub(super) fn run(mut command: Command, input: Option<&[u8]>, limit: Duration) -> io::Result<Said> {
    let (mut stdout, mut stderr) = (memory_file()?, memory_file()?);
    match input {
        Some(bytes) => {
            let mut file = memory_file()?;
            file.write_all(bytes)?;
            file.rewind()?;
            command.stdin(Stdio::from(file));
        }
        None => {
            command.stdin(Stdio::null());
        }
    }
    command
        .stdout(Stdio::from(stdout.try_clone()?))
        .stderr(Stdio::from(stderr.try_clone()?));
    if interrupt::is_due() {
        return Err(io::Error::from(io::ErrorKind::Interrupted));
    }
    if interrupt::is_catching() {
        command.process_group(0);
    }
    let status = wait(&mut command.spawn()?, limit)?;
    Ok(Said {
        status,
        stdout: contents(&mut stdout)?,
        stderr: contents(&mut stderr)?,
    })
}

pub(super) fn memory_file() -> io::Result<File> {
    Ok(rustix::fs::memfd_create("umwelt-install", MemfdFlags::CLOEXEC)?.into())
}

pub(super) fn contents(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(LIMIT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn wait(child: &mut Child, limit: Duration) -> io::Result<ExitStatus> {
    match wait_unless(child, limit, interrupt::is_due)? {
        Some(status) => Ok(status),
        None if interrupt::is_due() => {
            finish(child)?;
            Err(io::Error::from(io::ErrorKind::Interrupted))
        }
        None => {
            child.kill()?;
            child.wait()?;
            let message = format!("it took more than {} s", limit.as_secs());
            Err(io::Error::new(io::ErrorKind::TimedOut, message))
        }
    }
}

/// Nothing where it has not ended in time, or is not to be waited for.
fn wait_unless(
    child: &mut Child,
    limit: Duration,
    is_over: impl Fn() -> bool,
) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline || is_over() {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits for the end of a program that is not needed any more; one that takes
/// long is told to end, and then made to.
pub(super) fn finish(child: &mut Child) -> io::Result<()> {
    let forever = || false;
    if wait_unless(child, LAST_STEP, forever)?.is_some() {
        return Ok(());
    }
    let _told = rustix::process::kill_process(Pid::from_child(child), Signal::TERM);
    if wait_unless(child, LAST_WORDS, forever)?.is_none() {
        child.kill()?;
        child.wait()?;
    }
    Ok(())
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
        return Ok(said.stdout);
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

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn words_of_a_program_are_kept_and_input_is_given() {
        let said = run(
            shell("cat; echo one >&2; echo >&2; exit 3"),
            Some(b"in"),
            QUICK,
        )
        .unwrap();
        assert_eq!((said.status.code(), &*said.stdout), (Some(3), "in"));
        assert_eq!(said.problem(), "one");
        let silent = run(shell("exit 4"), None, QUICK).unwrap();
        assert!(silent.problem().contains('4'));
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let error = run(shell("exec sleep 1000"), None, Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn programs_are_found_by_their_absolute_path() {
        assert!(find("sh").unwrap().is_absolute());
        assert_eq!(find("no-such-program"), None);
    }
}
