//! Configuration text -> types that mean something.

mod base;
pub(crate) mod egress;
pub(crate) mod egress_edit;
pub(crate) mod expect;
mod file;
pub(crate) mod layers;
pub(crate) mod mask;
mod prefix;
pub(crate) mod rule;
mod source;
mod tables;
mod value;
mod wording;
mod workspace_file;
mod worktrees;

pub(crate) use base::{BaseMount, Config, Resources, SHIPPED};
pub(crate) use file::load as load_file;
pub(crate) use mask::{Mask, MaskTarget};
pub(crate) use prefix::session_prefix;
pub(crate) use workspace_file::{GrantMode, MAX_GRANTS, PersistedGrant, WorkspaceFile, edit};
pub(crate) use worktrees::{CommonAccess, Worktrees};

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a configuration file is refused.
#[derive(Debug)]
pub(crate) enum ConfigError {
    Read(PathBuf, io::Error),
    NotAFile(PathBuf),
    TooLarge {
        path: PathBuf,
        limit: u64,
    },
    /// Somebody else could have written it.
    NotOurs {
        path: PathBuf,
        reason: String,
    },
    /// Not the plain file that it has to be.
    NotPlain {
        path: PathBuf,
        reason: String,
    },
    NotUtf8(PathBuf),
    /// Not TOML, an unknown key, or a value of the wrong type.
    Syntax {
        path: PathBuf,
        line: usize,
        message: String,
    },
    /// A well-formed value that makes no sense.
    Value {
        path: PathBuf,
        line: usize,
        key: String,
        message: String,
    },
}

impl ConfigError {
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            ConfigError::NotOurs { path, .. } => Some(format!(
                "check the file, then run: chmod go-w '{}'",
                path.display()
            )),
            ConfigError::NotPlain { path, .. } => Some(format!(
                "put a regular file of your own in its place; look at it with: ls -l '{}'",
                path.display()
            )),
            ConfigError::Syntax { .. } | ConfigError::Value { .. } => {
                Some("the keys and their values are listed by: man umwelt.toml".to_owned())
            }
            _ => None,
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Read(path, error) => write!(f, "cannot read {path:?}: {error}"),
            ConfigError::NotAFile(path) => write!(f, "{path:?} is not a regular file"),
            ConfigError::TooLarge { path, limit } => {
                write!(f, "{path:?} is larger than {limit} bytes")
            }
            ConfigError::NotOurs { path, reason } => write!(f, "{path:?} is not trusted: {reason}"),
            ConfigError::NotPlain { path, reason } => write!(f, "{path:?} is not read: {reason}"),
            ConfigError::NotUtf8(path) => write!(f, "{path:?} is not UTF-8"),
            ConfigError::Syntax {
                path,
                line,
                message,
            } => write!(f, "{path:?} line {line}: {message}"),
            ConfigError::Value {
                path,
                line,
                key,
                message,
            } => {
                write!(f, "{path:?} line {line}: {key}: {message}")
            }
        }
    }
}

impl std::error::Error for ConfigError {}
