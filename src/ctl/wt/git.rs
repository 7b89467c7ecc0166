//! Calls of git on the host, on a repository that an agent may have written.
//!
//! Its configuration could name programs: hooks, a file monitor, filters. What
//! git reads of it is overruled, on the command line, which wins over every
//! file; and nothing that could run a filter is asked of it here at all: files
//! are written and compared by `shadow`, without any configuration. So nothing
//! is won by changing the configuration at the right moment either.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::FileType;

use super::WorktreeError;
use crate::gitdir;
use crate::podman;

/// Keys by which git finds programs to run, or goes to the network.
const OVERRULED: [&str; 15] = [
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.sshCommand=false",
    "core.gitProxy=false",
    "core.alternateRefsCommand=false",
    "core.editor=false",
    "core.askPass=false",
    "core.pager=cat",
    "credential.helper=",
    "protocol.allow=never",
    "submodule.recurse=false",
    "gc.auto=0",
];
/// Not for safety: commits in the worktree need the directory of the logs.
const LOGS: &str = "core.logAllRefUpdates=true";

/// A repository, found without running git.
#[derive(Debug, Clone)]
pub(super) struct Repository {
    pub(super) common: PathBuf,
    /// Of the worktree that was named: its administrative directory, or the
    /// common directory itself.
    pub(super) git_dir: PathBuf,
    /// What a person calls the repository: the directory that `.git` is in.
    pub(super) top: PathBuf,
}

impl Repository {
    /// The repository at `path`, a top or a bare one.
    pub(super) fn find(path: &Path) -> Result<Repository, WorktreeError> {
        let refused = |reason: String| WorktreeError::NotARepository {
            path: path.to_owned(),
            reason,
        };
        let real = std::fs::canonicalize(path).map_err(|error| refused(error.to_string()))?;
        let dot_git = real.join(".git");
        let (git_dir, common) = match gitdir::file_type(&dot_git) {
            Ok(FileType::Directory) => (dot_git.clone(), dot_git),
            Ok(FileType::RegularFile) => pointed_to(&real, &dot_git).map_err(refused)?,
            Ok(_) => {
                return Err(refused(format!(
                    "{dot_git:?} is neither a directory nor a file"
                )));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (real.clone(), real),
            Err(error) => return Err(refused(format!("{dot_git:?}: {error}"))),
        };
        gitdir::check_repository(&common).map_err(refused)?;
        gitdir::one_line(&common).map_err(refused)?;
        let top = match common.parent() {
            Some(parent) if common.ends_with(".git") => parent.to_owned(),
            _ => common.clone(),
        };
        Ok(Repository {
            common,
            git_dir,
            top,
        })
    }

    /// What git prints, without its last line break.
    pub(super) fn call(&self, args: &[&OsStr]) -> Result<String, WorktreeError> {
        let mut command = command(args);
        command
            .env("GIT_DIR", &self.git_dir)
            // A file in it could name another one.
            .env("GIT_COMMON_DIR", &self.common);
        finish(command)
    }

    /// Whether git says yes.
    pub(super) fn says(&self, args: &[&OsStr]) -> bool {
        self.call(args).is_ok()
    }
}

/// What a `.git` file leads to: a worktree, or a git directory near by.
fn pointed_to(top: &Path, dot_git: &Path) -> Result<(PathBuf, PathBuf), String> {
    let git_dir = gitdir::read_pointer(dot_git, "gitdir: ", top)?;
    match gitdir::file_type(&git_dir.join("commondir")) {
        Ok(_) => gitdir::linked(top),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((git_dir.clone(), git_dir)),
        Err(error) => Err(format!("{git_dir:?}: {error}")),
    }
}

/// `git ARGS…` that obeys no file of the user's or of the system's, and of a
/// repository's none that names a program.
pub(super) fn command(args: &[&OsStr]) -> Command {
    let mut command = Command::new("git");
    for setting in OVERRULED.iter().chain([&LOGS]) {
        command.arg("-c").arg(setting);
    }
    command
        .args(args)
        .env_clear()
        .env("PATH", podman::trusted_search_path())
        .env("LANG", "C.UTF-8")
        .env("HOME", "/nonexistent")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_ATTR_NOSYSTEM", "1")
        .env("GIT_NO_LAZY_FETCH", "1")
        .env("GIT_NO_REPLACE_OBJECTS", "1")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_OPTIONAL_LOCKS", "0")
        .current_dir("/")
        .stdin(Stdio::null());
    for name in ["name", "email"] {
        // For the logs of refs; the user's own would have to be read.
        let upper = name.to_ascii_uppercase();
        command.env(format!("GIT_COMMITTER_{upper}"), "umwelt");
    }
    command
}

pub(super) fn finish(mut command: Command) -> Result<String, WorktreeError> {
    let output = command.output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => WorktreeError::NoGit,
        _ => failed(&command, error.to_string()),
    })?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let last = stderr.lines().rfind(|line| !line.trim().is_empty());
        let problem = last.map_or_else(|| output.status.to_string(), str::to_owned);
        return Err(failed(&command, problem));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}

fn failed(command: &Command, problem: String) -> WorktreeError {
    let args = command.get_args().skip(2 * (OVERRULED.len() + 1));
    let words = std::iter::once(OsStr::new("git")).chain(args);
    let mut call = OsString::new();
    for word in words {
        if !call.is_empty() {
            call.push(" ");
        }
        call.push(word);
    }
    WorktreeError::Git {
        call: String::from_utf8_lossy(&call.into_vec()).into_owned(),
        problem,
    }
}

/// Arguments of any kind, side by side.
macro_rules! args {
    ($($arg:expr),* $(,)?) => {
        &[$(std::ffi::OsStr::new($arg)),*]
    };
}
pub(super) use args;
