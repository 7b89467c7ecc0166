//! A workspace's `.umwelt.toml` -> what of it counts: all of it when the user
//! has accepted exactly this content, else nothing.
//!
//! The agent can write the file, and a cloned repository can bring one along.
//! So its digest must be in a record outside of the workspace. What umwelt
//! itself writes is recorded as it is written; everything else a person accepts
//! with `umwelt-ctl trust`.

pub(crate) mod directory;
pub(crate) mod meaning;
pub(crate) mod network_meaning;
mod record;
pub(crate) mod repository;
mod update;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

pub(crate) use record::workspace_of;

use crate::config::{ConfigError, WorkspaceFile};
use crate::dirs::{Dirs, DirsError};
use crate::text::{self, printable};
use crate::trust::directory::{Contents, Directory};
use crate::trust::meaning::Change;
use crate::trust::record::{Record, Shelf};
use crate::workspace::{SessionId, Workspace};

/// The name of a workspace file, in the workspace itself.
pub(crate) const FILE: &str = ".umwelt.toml";
/// Longest workspace file, in bytes.
const MAX_FILE: u64 = 256 << 10;

/// One workspace, its file, and what the user has accepted of it.
#[derive(Debug)]
pub(crate) struct WorkspaceTrust {
    workspace: String,
    home: PathBuf,
    shelf: Shelf,
}

/// What a control plane starts from.
#[derive(Debug)]
pub(crate) struct WorkspaceSettings {
    /// Empty unless it is trusted.
    pub(crate) file: WorkspaceFile,
    pub(crate) state: TrustState,
    workspace: String,
}

#[derive(Debug)]
pub(crate) enum TrustState {
    /// There is no file, or one that asks for nothing.
    Absent,
    Trusted,
    Untrusted(Untrusted),
    /// It could not be accepted either.
    Broken(ConfigError),
}

/// Why a file that could be accepted does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Untrusted {
    NeverAccepted,
    Changed,
    /// There is a record that cannot be believed.
    Record(String),
}

/// What the file is now, beside what was accepted of it.
#[derive(Debug)]
pub(crate) struct Comparison {
    pub(crate) state: TrustState,
    /// What would be allowed more or less.
    pub(crate) changes: Vec<Change>,
    pub(crate) old_text: String,
    pub(crate) new_text: String,
    /// What the file asks for now.
    pub(crate) file: WorkspaceFile,
    found: Option<Contents>,
}

/// The file as it was found.
#[derive(Debug)]
struct Found {
    contents: Option<Contents>,
    text: String,
    file: WorkspaceFile,
}

impl WorkspaceTrust {
    pub(crate) fn new(workspace: &Workspace, dirs: &Dirs) -> WorkspaceTrust {
        WorkspaceTrust::of_path(workspace.as_str(), workspace.sid(), dirs)
    }

    /// For a directory that need not pass the workspace rule, or be there.
    /// `workspace` is its real path.
    pub(crate) fn of_path(workspace: &str, sid: &SessionId, dirs: &Dirs) -> WorkspaceTrust {
        WorkspaceTrust {
            workspace: workspace.to_owned(),
            home: dirs.home.clone(),
            shelf: Shelf::new(dirs, sid, workspace),
        }
    }

    /// What of the file counts now. Problems end up in the state.
    pub(crate) fn load(&self) -> WorkspaceSettings {
        let comparison = self.compare();
        let (file, state) = match comparison {
            Ok((found, Comparison { state, .. })) => match state {
                TrustState::Trusted => (found.file, state),
                _ => (WorkspaceFile::default(), state),
            },
            Err(error) => (WorkspaceFile::default(), TrustState::Broken(error)),
        };
        WorkspaceSettings {
            file,
            state,
            workspace: self.workspace.clone(),
        }
    }

    /// What a person has to see before accepting.
    pub(crate) fn comparison(&self) -> Result<Comparison, ConfigError> {
        self.compare().map(|(_, comparison)| comparison)
    }

    fn compare(&self) -> Result<(Found, Comparison), ConfigError> {
        // Between its two writes another process may have left file and record
        // at odds. Without a lock they are only looked at a moment too early.
        let _lock = self.shelf.path().exists().then(|| self.shelf.lock());
        let found = self.find()?;
        let record = self.shelf.load();
        let state = judge(&found, &record);
        let old_text = match record {
            Ok(Some(record)) => record.accepted.text,
            Ok(None) | Err(_) => String::new(),
        };
        let old = WorkspaceFile::parse(&self.path(), &old_text, &self.home).unwrap_or_default();
        let comparison = Comparison {
            state,
            changes: meaning::changes(&old, &found.file),
            old_text,
            new_text: found.text.clone(),
            file: found.file.clone(),
            found: found.contents.clone(),
        };
        Ok((found, comparison))
    }

    /// Where the file is, or would be.
    pub(crate) fn path(&self) -> PathBuf {
        Path::new(&self.workspace).join(FILE)
    }

    /// Where what was accepted is recorded.
    pub(crate) fn record_path(&self) -> PathBuf {
        self.shelf.path()
    }

    fn find(&self) -> Result<Found, ConfigError> {
        let path = self.path();
        let contents = self.directory()?.read(FILE, MAX_FILE)?;
        let bytes = contents.as_ref().map(|contents| contents.bytes.clone());
        let text = String::from_utf8(bytes.unwrap_or_default())
            .map_err(|_| ConfigError::NotUtf8(path.clone()))?;
        let file = WorkspaceFile::parse(&path, &text, &self.home)?;
        Ok(Found {
            contents,
            text,
            file,
        })
    }

    fn directory(&self) -> Result<Directory, ConfigError> {
        let path = Path::new(&self.workspace);
        Directory::open(path).map_err(|error| ConfigError::Read(path.to_owned(), error))
    }
}

fn judge(found: &Found, record: &Result<Option<Record>, String>) -> TrustState {
    if found.file.asks_for_nothing() {
        return TrustState::Absent;
    }
    match record {
        Ok(Some(record)) if record.accepts(&found.text) => TrustState::Trusted,
        Ok(Some(_)) => TrustState::Untrusted(Untrusted::Changed),
        Ok(None) => TrustState::Untrusted(Untrusted::NeverAccepted),
        Err(problem) => TrustState::Untrusted(Untrusted::Record(problem.clone())),
    }
}

impl WorkspaceSettings {
    /// One line for every result until it is resolved, safe to show.
    pub(crate) fn notice(&self) -> Option<String> {
        // The command first: a long reason may be cut off.
        let command = command(&self.workspace);
        let line = match &self.state {
            TrustState::Absent | TrustState::Trusted => return None,
            TrustState::Untrusted(why) => format!(
                "nothing in {FILE} counts until the user accepts it, on the host, with: {command} ({why})"
            ),
            TrustState::Broken(error) => format!(
                "nothing in {FILE} counts until it is corrected and the user accepts it, on the host, with: {command} ({error})"
            ),
        };
        Some(printable(&line))
    }
}

/// What a person runs to see and accept the file.
fn command(workspace: &str) -> String {
    format!("umwelt-ctl trust {}", text::shell_word(workspace))
}

impl fmt::Display for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Untrusted::NeverAccepted => f.write_str("it was never accepted"),
            Untrusted::Changed => f.write_str("it has changed since it was accepted"),
            Untrusted::Record(problem) => {
                write!(
                    f,
                    "the record of what was accepted cannot be used, {problem}"
                )
            }
        }
    }
}

/// Why the file or its record could not be changed.
#[derive(Debug)]
pub(crate) enum TrustError {
    /// It cannot be used at all.
    Config(ConfigError),
    /// Somebody else's changes are in it, which nobody has accepted.
    NotTrusted {
        workspace: String,
        why: Untrusted,
    },
    /// It is not any more what it was a moment ago.
    Changed(PathBuf),
    /// What stands in the place of the record is no record.
    Record(PathBuf),
    /// Another process has held the lock for long.
    Busy(PathBuf),
    Dirs(DirsError),
    Io {
        what: String,
        source: io::Error,
    },
}

impl TrustError {
    fn io(what: impl Into<String>, source: io::Error) -> TrustError {
        TrustError::Io {
            what: what.into(),
            source,
        }
    }

    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            TrustError::Config(error) => error.hint(),
            TrustError::NotTrusted { workspace, .. } => Some(format!(
                "look at it and accept it on the host with: {}",
                command(workspace)
            )),
            TrustError::Changed(_) => Some("try again".to_owned()),
            TrustError::Record(path) => Some(format!(
                "take away what stands there: ls -ld {}",
                text::shell_word(&path.to_string_lossy())
            )),
            TrustError::Busy(path) => Some(format!(
                "see which process it is with: fuser -v {}",
                text::shell_word(&path.to_string_lossy())
            )),
            TrustError::Dirs(error) => error.hint(),
            TrustError::Io { .. } => None,
        }
    }
}

impl fmt::Display for TrustError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TrustError::Config(error) => error.fmt(f),
            TrustError::NotTrusted { workspace, why } => {
                let path = Path::new(workspace).join(FILE);
                write!(f, "will not write {path:?}: {why}")
            }
            TrustError::Changed(path) => write!(f, "{path:?} was changed by somebody meanwhile"),
            TrustError::Record(path) => write!(f, "cannot replace the trust record {path:?}"),
            TrustError::Busy(path) => write!(f, "another process holds the lock {path:?}"),
            TrustError::Dirs(error) => error.fmt(f),
            TrustError::Io { what, source } => write!(f, "cannot {what}: {source}"),
        }
    }
}

impl std::error::Error for TrustError {}

impl From<ConfigError> for TrustError {
    fn from(error: ConfigError) -> TrustError {
        TrustError::Config(error)
    }
}

impl From<DirsError> for TrustError {
    fn from(error: DirsError) -> TrustError {
        TrustError::Dirs(error)
    }
}
