//! `umwelt-ctl wt`: git worktrees, one for each session of an agent.

mod accept;
mod add;
mod branch;
mod copy;
mod git;
mod given;
mod hook;
mod list;
mod rm;
mod shadow;
mod staging;
mod temporary;
mod tree;

use std::ffi::OsStr;
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use self::git::Repository;
use self::rm::Worktree;
use crate::cli::args::{Action, Args, Operands, Subcommand};
use crate::config::{Config, Worktrees};
use crate::ctl::NAME;
use crate::ctl::place::Place;
use crate::error::Error;
use crate::text::shell_word;

pub(super) const SUBCOMMAND: Subcommand = Subcommand {
    name: "wt",
    help: "\
Usage: umwelt-ctl wt add [REPO [NAME]] [--branch B]
       umwelt-ctl wt rm [--force] PATH|NAME
       umwelt-ctl wt list [--json] [REPO]
       umwelt-ctl wt accept [--yes] PATH|NAME

Makes, removes and lists git worktrees: directories with a branch each, in which
agents work side by side. Nothing that the repository configures is run: no
hook, no filter, no monitor. Files of git-lfs therefore stay pointers.

REPO is a repository or a directory in one; left out, the current directory.
NAME of rm and accept is one that list shows in the current directory's.

add makes a worktree for branch B, or for a new branch NAME, and prints its
path. It lies in REPO.worktrees beside the repository, or where worktrees.dir
says. rm refuses while files are changed or unknown to git, while no branch
holds the commits, and while a sandbox runs there. The branch stays.

accept lets the sandbox of a worktree that was made otherwise share its
repository, after a question; add does so by itself.

A link on the way to a directory is refused where a sandbox can have made it.

worktrees.post_add and worktrees.pre_rm of umwelt.toml name commands that run
on the host in the worktree, after add and before rm.

Options:
  -b, --branch B  the branch to work on; made if it does not exist
  -f, --force     remove also what would be lost
      --json      print a JSON array, one object per worktree
  -y, --yes       accept without a question
  -h, --help      print this help and exit
  -V, --version   print the version and exit
",
    flags: &["force", "json", "yes"],
    values: &["branch"],
    operands: Operands::Actions(ACTIONS),
    run,
};

const ACTIONS: &[Action] = &[
    Action {
        name: "add",
        options: &["branch"],
        operands: (0, 2, "at most a repository and a name"),
    },
    Action {
        name: "rm",
        options: &["force"],
        operands: (1, 1, "one path or name"),
    },
    Action {
        name: "list",
        options: &["json"],
        operands: (0, 1, "one repository"),
    },
    Action {
        name: "accept",
        options: &["yes"],
        operands: (1, 1, "one path or name"),
    },
];

fn run(args: Args) -> Result<ExitCode, Error> {
    let place = Place::load()?;
    let worktrees = Config::load(&place.dirs)?.worktrees;
    let site = Site { place, worktrees };
    let given = args.operand(0).unwrap_or_else(|| OsStr::new("."));
    match args.action {
        "add" => {
            let name = args.operand(1).map(OsStr::to_string_lossy);
            let repository = site.repository_to_add(given, name.is_none())?;
            add::run(&site, &repository, name.as_deref(), args.text("branch")?)
        }
        "rm" => rm::run(&site, site.worktree(given)?, args.has("force")),
        "accept" => accept::run(&site, &site.worktree(given)?, args.has("yes")),
        _ => list::run(&site, &site.repository(given)?, args.has("json")),
    }
}

/// For a program to be started in: this very directory, whatever takes its
/// path. It is resolved before the descriptor is closed.
fn place_of(dir: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()))
}

/// What a person has set up.
struct Site {
    place: Place,
    worktrees: Worktrees,
}

impl Site {
    fn repository(&self, given: &OsStr) -> Result<Repository, WorktreeError> {
        Repository::find(&given::real_path(Path::new(given), &self.place.dirs)?)
    }

    /// A word that is no directory was perhaps meant as the name of what is made.
    fn repository_to_add(&self, given: &OsStr, alone: bool) -> Result<Repository, WorktreeError> {
        let is_word = Path::new(given).file_name() == Some(given);
        match alone && is_word && Path::new(given).symlink_metadata().is_err() {
            true => Err(WorktreeError::Nothing {
                name: given.to_string_lossy().into_owned(),
                is_new: true,
            }),
            false => self.repository(given),
        }
    }

    /// By its path; or by the name that `list` shows, in the repository that the
    /// current directory lies in. A directory of that name is written with a
    /// slash, as everywhere.
    fn worktree(&self, given: &OsStr) -> Result<Worktree, WorktreeError> {
        let is_name = Path::new(given).file_name() == Some(given);
        let named = || self.repository(OsStr::new(".")).ok()?.named(given);
        let Some((admin, path)) = is_name.then(named).flatten() else {
            if is_name && Path::new(given).symlink_metadata().is_err() {
                return Err(WorktreeError::Nothing {
                    name: given.to_string_lossy().into_owned(),
                    is_new: false,
                });
            }
            return Worktree::find(given::real_path(Path::new(given), &self.place.dirs)?);
        };
        let found = Worktree::find(path)?;
        // An agent can have written there where another worktree is.
        match found.repository.git_dir().path() == admin {
            true => Ok(found),
            false => Err(WorktreeError::NotAWorktree {
                path: found.path,
                reason: format!("{admin:?} names it, but it does not belong to that"),
            }),
        }
    }
}

/// Why a worktree could not be made or removed.
#[derive(Debug)]
pub(crate) enum WorktreeError {
    NotARepository {
        path: PathBuf,
        reason: String,
    },
    NotAWorktree {
        path: PathBuf,
        reason: String,
    },
    /// Neither a directory nor, of those that are there already, a worktree.
    Nothing {
        name: String,
        is_new: bool,
    },
    /// There is no such path, or it cannot be looked at.
    Path {
        path: PathBuf,
        reason: String,
    },
    /// An agent can have made the link that is on the way.
    Planted {
        path: PathBuf,
        link: PathBuf,
        target: PathBuf,
    },
    /// An agent can write a `.git` file: a person has to name what it leads to.
    Elsewhere {
        path: PathBuf,
        common: PathBuf,
    },
    Name(String),
    Place {
        path: PathBuf,
        reason: String,
    },
    /// Another worktree works on it.
    Taken {
        branch: String,
        git_dir: PathBuf,
    },
    /// It could not be made.
    Branch {
        branch: String,
        reason: String,
    },
    Git {
        call: String,
        problem: String,
    },
    NoGit,
    /// There is nothing to check out.
    NoCommit {
        path: PathBuf,
        branch: String,
    },
    /// Removing it would lose this.
    Unsaved {
        path: PathBuf,
        what: String,
    },
    Running {
        path: PathBuf,
    },
    /// Another thing has taken the place of what was looked at.
    Changed {
        path: PathBuf,
        changed: PathBuf,
    },
    Hook {
        key: &'static str,
        program: String,
        problem: String,
        left: Option<PathBuf>,
    },
}

impl WorktreeError {
    pub(crate) fn hint(&self) -> Option<String> {
        let quoted = |path: &Path| shell_word(&path.to_string_lossy());
        match self {
            WorktreeError::NotARepository { .. } => {
                Some("name a git repository, or a directory in one".to_owned())
            }
            WorktreeError::NotAWorktree { .. } => {
                Some(format!("see which there are with: {NAME} wt list REPO"))
            }
            WorktreeError::Nothing { name, is_new: true } => Some(format!(
                "for a worktree of this name: {NAME} wt add . {}",
                shell_word(name)
            )),
            WorktreeError::Nothing { .. } => {
                Some(format!("see which there are with: {NAME} wt list"))
            }
            WorktreeError::Path { path, .. } => Some(format!("look at it with: ls -ld {}", quoted(path))),
            WorktreeError::Planted { link, .. } => Some(format!(
                "look where it leads with: readlink -f {}; if that is meant, name that directory itself",
                quoted(link)
            )),
            WorktreeError::Elsewhere { common, .. } => Some(format!(
                "if that is meant, name it itself, as in: {NAME} wt add {}",
                quoted(&git::top_of(common))
            )),
            WorktreeError::Name(_) => {
                Some("a name has up to 64 of A-Z a-z 0-9 . _ - and begins with a letter or digit".to_owned())
            }
            WorktreeError::Place { .. } => {
                Some("set worktrees.dir in umwelt.toml to another directory, or give another name".to_owned())
            }
            WorktreeError::NoGit => Some(
                "install git; of PATH only ~/.local/bin, ~/bin and what root alone can write are searched".to_owned(),
            ),
            WorktreeError::NoCommit { .. } => {
                Some("make one first, or name a branch that has one with --branch".to_owned())
            }
            WorktreeError::Unsaved { path, .. } => Some(format!(
                "save it, or lose it with: {NAME} wt rm --force {}",
                quoted(path)
            )),
            WorktreeError::Running { path } => {
                Some(format!("end it with: {NAME} stop {}", quoted(path)))
            }
            WorktreeError::Changed { .. } => Some(format!(
                "see which sandboxes run with: {NAME} list; nothing was removed, so try again when nobody works there"
            )),
            WorktreeError::Hook { left: Some(path), .. } => Some(format!(
                "the worktree is there; remove it with: {NAME} wt rm {}",
                quoted(path)
            )),
            WorktreeError::Hook { key, .. } => Some(format!("see {key} in umwelt.toml")),
            WorktreeError::Taken { .. } => Some(format!(
                "give another name, or another --branch; where {NAME} wt list says that it is gone, free it with: git worktree prune"
            )),
            WorktreeError::Branch { .. } => Some("give another name, or another --branch".to_owned()),
            WorktreeError::Git { .. } => None,
        }
    }
}

impl fmt::Display for WorktreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorktreeError::NotARepository { path, reason } => {
                write!(
                    f,
                    "{path:?} is not a git repository that can be used: {reason}"
                )
            }
            WorktreeError::NotAWorktree { path, reason } => {
                write!(
                    f,
                    "{path:?} is not a git worktree beside its repository: {reason}"
                )
            }
            WorktreeError::Nothing { name, is_new: true } => {
                write!(f, "there is no directory {name:?}")
            }
            WorktreeError::Nothing { name, .. } => {
                write!(
                    f,
                    "there is no worktree {name:?} of this repository, and no directory"
                )
            }
            WorktreeError::Path { path, reason } => write!(f, "cannot use {path:?}: {reason}"),
            WorktreeError::Planted { path, link, target } => {
                write!(
                    f,
                    "{path:?} leads through the link {link:?} to {target:?}: an agent can have made it, for a sandbox can write where it is"
                )
            }
            WorktreeError::Elsewhere { path, common } => {
                write!(
                    f,
                    "the \".git\" file of {path:?} leads to another repository, {common:?}"
                )
            }
            WorktreeError::Name(name) => write!(f, "{name:?} cannot be used as a name"),
            WorktreeError::Place { path, reason } => {
                write!(f, "cannot make a worktree at {path:?}: {reason}")
            }
            WorktreeError::Taken { branch, git_dir } => {
                write!(
                    f,
                    "the branch {branch:?} is checked out already, by {git_dir:?}"
                )
            }
            WorktreeError::Branch { branch, reason } => {
                write!(f, "cannot make the branch {branch:?}: {reason}")
            }
            WorktreeError::Git { call, problem } => write!(f, "{call:?} failed: {problem}"),
            WorktreeError::NoGit => f.write_str("git was not found"),
            WorktreeError::NoCommit { path, branch } => {
                write!(f, "{path:?} has no commit yet on its branch {branch:?}")
            }
            WorktreeError::Unsaved { path, what } => {
                write!(f, "will not remove {path:?}: {what}")
            }
            WorktreeError::Running { path } => {
                write!(f, "will not remove {path:?}: a sandbox runs there")
            }
            WorktreeError::Changed { path, changed } => {
                write!(
                    f,
                    "will not remove {path:?}: {changed:?} was moved or replaced meanwhile"
                )
            }
            WorktreeError::Hook {
                key,
                program,
                problem,
                ..
            } => {
                write!(f, "the command {program:?} of {key} failed: {problem}")
            }
        }
    }
}

impl std::error::Error for WorktreeError {}
