//! umwelt-ctl: what a person sees of the sandboxes and does with them. Each
//! subcommand is a file; each asks the control plane over its socket.

mod audit;
mod channel;
mod config;
pub(crate) mod diff;
mod egress;
mod event;
mod exec;
mod grant;
pub(crate) mod leftover;
mod list;
mod log;
pub(crate) mod output;
mod peer;
mod place;
mod plan;
mod session;
mod shell;
mod signals;
mod status;
mod stop;
mod tail;
pub(crate) mod trust;
mod wt;

use std::fmt;

use crate::cli::program::Program;
use crate::ctl::audit::AuditError;
use crate::ctl::wt::WorktreeError;
use crate::error::Error;
use crate::text::shell_word;

pub(crate) const NAME: &str = "umwelt-ctl";
/// How control planes know this client, in their journals.
const CLIENT: &str = concat!("umwelt-ctl/", env!("CARGO_PKG_VERSION"));

pub(crate) const PROGRAM: Program = Program {
    name: NAME,
    help: HELP,
    subcommands: &[
        &status::SUBCOMMAND,
        &stop::SUBCOMMAND,
        &exec::SUBCOMMAND,
        &shell::SUBCOMMAND,
        &list::SUBCOMMAND,
        &config::SUBCOMMAND,
        &plan::SUBCOMMAND,
        &grant::SUBCOMMAND,
        &grant::REVOKE,
        &trust::SUBCOMMAND,
        &egress::SUBCOMMAND,
        &log::SUBCOMMAND,
        &audit::SUBCOMMAND,
        &wt::SUBCOMMAND,
    ],
};

const HELP: &str = "\
Usage: umwelt-ctl SUBCOMMAND [OPTION…] [WORKSPACE] [-- CMD [ARG…]]
       umwelt-ctl help [SUBCOMMAND]

Looks at sandboxes and works in them, one sandbox per workspace.

Subcommands:
  status  show all sandboxes, running and dead
  stop    end a sandbox
  exec    run a program in a sandbox
  shell   open an interactive shell in a sandbox
  list    show mounts, caps and network of a sandbox
  config  show each value that holds, and where it comes from
  plan    show what the next start of a sandbox would make
  grant   show one more directory or file of the host in a sandbox
  revoke  take back what was granted
  trust   look at the file .umwelt.toml of a workspace, and accept it
  egress  show, change and verify what a sandbox may reach on the network
  log     show the journal of a sandbox
  audit   show what a sandbox has asked for on the network
  wt      make, remove and list git worktrees
  help    print this help, or that of a subcommand

WORKSPACE is a directory, or the session id of a running sandbox: 8 hex digits,
as status shows them. Left out, it is the current directory. A directory whose
name looks like a session id is written with a slash: ./deadbeef

Options:
  -h, --help     print this help, or that of the subcommand, and exit
  -V, --version  print the version and exit

Exit status: 0 done, 1 failed, 2 wrong usage, configuration or workspace, 3 no
cgroup delegation. exec and shell pass on that of their command, 128 + N where
signal N ended it.
";

/// What goes wrong on this side of the socket.
#[derive(Debug)]
pub(crate) enum CtlError {
    /// Nobody serves this workspace.
    NotRunning {
        what: String,
        leftovers: bool,
    },
    /// There is no sandbox that could show a path of the host.
    NoneToGrant {
        what: String,
    },
    /// A control plane holds the workspace, but does not answer on its socket.
    Held {
        what: String,
    },
    /// It was asked to end, and is still there.
    StillThere {
        what: String,
        after_s: u64,
    },
    /// The process behind a socket is not one that may be killed.
    NotOurs {
        pid: i32,
        reason: String,
    },
    NotATerminal,
    NoJournal {
        what: String,
    },
    /// A question needs somebody who can answer it.
    NobodyToAsk {
        hint: String,
    },
    NotAccepted,
    /// While a person was looking at it.
    ChangedMeanwhile,
    /// What came in place of the terminal.
    NotAMaster(String),
    /// The command did not end by itself; a sentence about how.
    Ended(String),
    Podman {
        call: String,
        problem: String,
    },
    /// There is no podman to ask.
    NoPodman,
    Worktree(WorktreeError),
    Audit(AuditError),
    /// Teardown goes on after an error, and tells all of them.
    Teardown(Vec<String>),
}

impl CtlError {
    fn hard_hint(what: &str) -> String {
        format!(
            "end it the hard way with: {NAME} stop --hard {}",
            shell_word(what)
        )
    }

    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            CtlError::NotRunning {
                what,
                leftovers: true,
            } => Some(format!(
                "its control plane is dead; remove what it left with: {NAME} stop --hard {}",
                shell_word(what)
            )),
            CtlError::NotRunning { what, .. }
            | CtlError::NoneToGrant { what }
            | CtlError::NoJournal { what }
                if what.starts_with('/') && !std::path::Path::new(what).exists() =>
            {
                Some("there is no such directory".to_owned())
            }
            CtlError::NoneToGrant { what } if what.starts_with('/') => {
                let word = shell_word(what);
                Some(format!(
                    "start one with: umwelt-run --workspace {word}\n\
                     or write [[grants]] into its .umwelt.toml, and accept it with: {NAME} trust {word}"
                ))
            }
            CtlError::NotRunning { .. }
            | CtlError::NoneToGrant { .. }
            | CtlError::NoJournal { .. } => {
                Some(format!("see what runs with: {NAME} status"))
            }
            CtlError::StillThere { what, .. } => Some(CtlError::hard_hint(what)),
            CtlError::NoPodman => Some(
                "install podman; of PATH only ~/.local/bin, ~/bin and what root alone can write are searched"
                    .to_owned(),
            ),
            CtlError::Held { .. } => Some("try again in a moment".to_owned()),
            CtlError::Worktree(error) => error.hint(),
            CtlError::Audit(error) => error.hint(),
            CtlError::NotATerminal => Some(format!(
                "run a command without a terminal with: {NAME} exec WORKSPACE -- CMD"
            )),
            CtlError::NobodyToAsk { hint } => Some(hint.clone()),
            _ => None,
        }
    }
}

impl fmt::Display for CtlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CtlError::NotRunning { what, .. } | CtlError::NoneToGrant { what } => {
                write!(f, "no sandbox is running for {what:?}")
            }
            CtlError::Held { what } => write!(
                f,
                "the sandbox of {what:?} is just being started or ended by another process"
            ),
            CtlError::StillThere { what, after_s } => {
                write!(
                    f,
                    "the sandbox of {what:?} is still stopping after {after_s} s"
                )
            }
            CtlError::NotOurs { pid, reason } => {
                write!(f, "will not kill process {pid}: {reason}")
            }
            CtlError::NoJournal { what } => {
                write!(
                    f,
                    "there is no journal of {what:?}: no sandbox has run there"
                )
            }
            CtlError::NotATerminal => f.write_str("standard input is not a terminal"),
            CtlError::NobodyToAsk { .. } => {
                f.write_str("not accepted: standard input or output is not a terminal")
            }
            CtlError::NotAccepted => f.write_str("not accepted"),
            CtlError::ChangedMeanwhile => {
                f.write_str("not accepted: the file changed while you were reading; run it again")
            }
            CtlError::NotAMaster(what) => {
                write!(f, "the control plane sent {what} in place of a terminal")
            }
            CtlError::Ended(how) => f.write_str(how),
            CtlError::Podman { call, problem } => write!(f, "{call:?} failed: {problem}"),
            CtlError::Worktree(error) => error.fmt(f),
            CtlError::Audit(error) => error.fmt(f),
            CtlError::NoPodman => f.write_str("podman was not found"),
            CtlError::Teardown(problems) => f.write_str(&problems.join("; ")),
        }
    }
}

impl std::error::Error for CtlError {}

impl From<WorktreeError> for Error {
    fn from(error: WorktreeError) -> Error {
        Error::Ctl(CtlError::Worktree(error))
    }
}
