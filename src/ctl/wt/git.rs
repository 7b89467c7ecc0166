//! A repository that an agent may have written, found and read without git.
//!
//! git obeys what a repository configures: hooks, of which newer versions take
//! any number from the configuration, a file monitor, filters. So git is never
//! started in one; see `shadow` for how it is started.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{FileType, OFlags};

use super::WorktreeError;
use crate::gitdir::{self, Directory, Linked};
use crate::podman;
use crate::subprocess::{self, Limits};
use crate::sys::open;

const MAX_HEAD: u64 = 4096;
/// A check-out of a large repository takes a while.
const LIMITS: Limits = Limits {
    time: Duration::from_secs(120),
    bytes: 64 << 20,
};

/// Held since it was found: an agent may swap what has its paths.
#[derive(Debug)]
pub(super) struct Repository {
    pub(super) common: Directory,
    /// The administrative directory of the worktree that was named.
    pub(super) admin: Option<Directory>,
    /// What a person calls the repository: the directory that `.git` is in.
    pub(super) top: PathBuf,
    /// What was named, where that is a worktree of it.
    pub(super) through: Option<PathBuf>,
}

/// What is checked out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Head {
    Branch(String),
    Commit(String),
}

impl Head {
    pub(super) fn branch(&self) -> Option<&str> {
        match self {
            Head::Branch(branch) => Some(branch),
            Head::Commit(_) => None,
        }
    }

    /// As git resolves it.
    pub(super) fn revision(&self) -> String {
        match self {
            Head::Branch(branch) => format!("refs/heads/{branch}^{{commit}}"),
            Head::Commit(commit) => format!("{commit}^{{commit}}"),
        }
    }

    pub(super) fn load(git_dir: &Directory) -> Result<Head, String> {
        let bytes = git_dir.read("HEAD", MAX_HEAD)?;
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end();
        let branch = text.strip_prefix("ref: refs/heads/");
        let is_id = text.len() >= 40 && text.bytes().all(|b| b.is_ascii_hexdigit());
        match branch {
            Some(branch) if !branch.contains(char::is_control) => {
                Ok(Head::Branch(branch.to_owned()))
            }
            None if is_id => Ok(Head::Commit(text.to_owned())),
            _ => Err(format!(
                "{:?} names neither a branch nor a commit",
                git_dir.path().join("HEAD")
            )),
        }
    }
}

impl Repository {
    /// The repository that `path`, a real one, lies in: at its top or below it,
    /// a bare one, or the one that has a worktree there. No other is found by a
    /// `.git` file.
    pub(super) fn find(path: &Path) -> Result<Repository, WorktreeError> {
        for dir in path.ancestors() {
            if let Some(found) = Repository::at(dir)? {
                return Ok(found);
            }
        }
        Err(WorktreeError::NotARepository {
            path: path.to_owned(),
            reason: "there is none, nor in a directory above".to_owned(),
        })
    }

    fn at(top: &Path) -> Result<Option<Repository>, WorktreeError> {
        let refused = |reason: String| WorktreeError::NotARepository {
            path: top.to_owned(),
            reason,
        };
        let dot_git = top.join(".git");
        let found = match gitdir::file_type(&dot_git) {
            Ok(FileType::Directory) => Found::Own(dot_git),
            Ok(FileType::RegularFile) => pointed_to(top, &dot_git).map_err(refused)?,
            Ok(_) => {
                return Err(refused(format!(
                    "{dot_git:?} is neither a directory nor a file"
                )));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && is_bare(top) => {
                Found::Own(top.to_owned())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(refused(format!("{dot_git:?}: {error}"))),
        };
        let (common, admin) = match found {
            Found::Own(common) => (Directory::open(&common).map_err(refused)?, None),
            Found::Linked(linked) => (linked.common, Some(linked.admin)),
            Found::Other(common) => {
                Directory::open(&common)
                    .and_then(|common| gitdir::check_repository(&common))
                    .map_err(refused)?;
                let path = top.to_owned();
                return Err(WorktreeError::Elsewhere { path, common });
            }
        };
        gitdir::check_repository(&common).map_err(refused)?;
        gitdir::one_line(common.path()).map_err(refused)?;
        Ok(Some(Repository {
            top: top_of(common.path()),
            through: admin.is_some().then(|| top.to_owned()),
            common,
            admin,
        }))
    }

    /// Of the worktree that was named, or of the repository itself.
    pub(super) fn git_dir(&self) -> &Directory {
        self.admin.as_ref().unwrap_or(&self.common)
    }

    /// The administrative directories of its worktrees, by name. They are
    /// opened one at a time: an agent can make more than can be held.
    pub(super) fn worktrees(&self) -> impl Iterator<Item = Directory> {
        let worktrees = self.common.dir("worktrees").ok();
        let names = worktrees.as_ref().and_then(|dir| dir.names().ok());
        let mut names: Vec<OsString> = names.into_iter().flatten().collect();
        names.sort();
        let open = move |name| worktrees.as_ref()?.dir(name).ok();
        names.into_iter().filter_map(open)
    }

    /// The administrative directory of this name, and where the worktree is that
    /// it says is its own.
    pub(super) fn named(&self, name: &OsStr) -> Option<(PathBuf, PathBuf)> {
        let admin = self.common.dir("worktrees").ok()?.dir(name).ok()?;
        let dot_git = admin.read_pointer("gitdir").ok()?;
        Some((admin.path().to_owned(), dot_git.parent()?.to_owned()))
    }
}

/// What git takes for one where there is no `.git`.
fn is_bare(dir: &Path) -> bool {
    let has = |name: &str| gitdir::file_type(&dir.join(name)).is_ok();
    ["HEAD", "objects", "refs"].into_iter().all(has)
}

/// What a person calls the repository.
pub(super) fn top_of(common: &Path) -> PathBuf {
    match common.parent() {
        Some(parent) if common.ends_with(".git") => parent.to_owned(),
        _ => common.to_owned(),
    }
}

/// What a `.git` leads to.
enum Found {
    /// The common directory of the repository itself.
    Own(PathBuf),
    Linked(Linked),
    /// No worktree says that it belongs there.
    Other(PathBuf),
}

fn pointed_to(top: &Path, dot_git: &Path) -> Result<Found, String> {
    let git_dir = gitdir::read_pointer(dot_git, "gitdir: ")?;
    match gitdir::file_type(&git_dir.join("commondir")) {
        Ok(_) => {
            let held = open::absolute(top, OFlags::PATH | OFlags::DIRECTORY);
            let held = held.map_err(|error| format!("{top:?}: {error}"))?;
            Ok(Found::Linked(gitdir::linked(held, top)?))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::Other(git_dir)),
        Err(error) => Err(format!("{git_dir:?}: {error}")),
    }
}

/// `git ARGS…` that obeys no file of the user's and none of the system's, in
/// a directory of no repository.
pub(super) fn command(args: &[&OsStr]) -> Command {
    let mut command = Command::new("git");
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
        // For the logs of refs; the user's own would have to be read.
        .env("GIT_COMMITTER_NAME", "umwelt")
        .env("GIT_COMMITTER_EMAIL", "umwelt")
        .current_dir("/")
        .stdin(Stdio::null());
    command
}

/// What it prints, without the last line break. It has an end: git waits for a
/// FIFO that an agent has put in the place of a file.
pub(super) fn finish(mut command: Command) -> Result<String, WorktreeError> {
    let said = subprocess::run(&mut command, LIMITS).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => WorktreeError::NoGit,
        _ => failed(&command, error.to_string()),
    })?;
    if !said.status.success() {
        return Err(failed(&command, said.problem()));
    }
    let text = said.text();
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}

fn failed(command: &Command, problem: String) -> WorktreeError {
    let mut call = "git".to_owned();
    for word in command.get_args() {
        call.push(' ');
        call.push_str(&word.to_string_lossy());
    }
    WorktreeError::Git { call, problem }
}

/// Arguments of any kind, side by side.
macro_rules! args {
    ($($arg:expr),* $(,)?) => {
        &[$(std::ffi::OsStr::new($arg)),*]
    };
}
pub(super) use args;
