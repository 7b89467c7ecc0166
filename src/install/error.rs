//! What goes wrong while umwelt is installed, and the way out.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::gateway::tls::authority::CertificateError;
use crate::install::NAME;
use crate::text::shell_word;

#[derive(Debug)]
pub(crate) enum InstallError {
    Root,
    File {
        /// `write`, for example.
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// Another one is at work.
    Busy(PathBuf),
    /// An install.json that cannot be understood.
    Record {
        path: PathBuf,
        why: String,
    },
    /// Written by a later version.
    Newer {
        path: PathBuf,
        schema: u32,
    },
    /// Something of another has the name of a link.
    Foreign(PathBuf),
    /// No image can be made of the program.
    Program(String),
    NoPodman,
    Podman {
        call: String,
        problem: String,
    },
    /// This host has no file with certificates to trust.
    NoRoots,
    Authority(CertificateError),
    /// The sandboxes that run, by workspace or session id.
    Running(Vec<String>),
    /// Not the name of a Debian package.
    Package {
        path: PathBuf,
        word: String,
    },
    /// No way of building the image worked; one line for each.
    Image(Vec<String>),
    /// Settings that are not edited, and are as they were.
    Merge {
        path: PathBuf,
        why: String,
        client: &'static str,
    },
    /// Settings that an agent could write.
    OfProject {
        path: PathBuf,
        /// Can be a workspace.
        dir: PathBuf,
        /// The way out.
        instead: String,
    },
    /// A question needs somebody who can answer it.
    NobodyToAsk,
    NotAccepted,
}

impl InstallError {
    pub(super) fn file(what: &'static str, path: &Path, source: io::Error) -> InstallError {
        InstallError::File {
            what,
            path: path.to_owned(),
            source,
        }
    }

    /// Of whose settings it tells.
    pub(super) fn of_client(self, name: &'static str) -> InstallError {
        match self {
            InstallError::Merge { path, why, .. } => InstallError::Merge {
                path,
                why,
                client: name,
            },
            other => other,
        }
    }

    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            InstallError::Root => Some("run it as the user whose agent is to be confined".to_owned()),
            InstallError::File { source, path, .. } => file_hint(source, path),
            InstallError::Busy(_) => Some("wait until it is done".to_owned()),
            InstallError::Record { path, .. } => Some(format!(
                "write it anew with: rm {} && {NAME} install",
                shell_word(&path.to_string_lossy())
            )),
            InstallError::Newer { .. } => Some("install the later version of umwelt again".to_owned()),
            InstallError::Foreign(path) => Some(format!(
                "look at it with: ls -l {}; links can be made elsewhere with: {NAME} install --prefix-bin DIR",
                shell_word(&path.to_string_lossy())
            )),
            InstallError::NoPodman => Some(format!(
                "install podman, then run: {NAME} install (of PATH only ~/.local/bin, ~/bin and what root alone can write are searched)"
            )),
            InstallError::Podman { .. } => Some(format!("see what is wrong with: {NAME} doctor")),
            InstallError::NoRoots => Some(
                "install the certificates of your distribution (on Debian: apt-get install ca-certificates)"
                    .to_owned(),
            ),
            InstallError::Authority(error) => error.hint(),
            InstallError::Running(who) => {
                let who = who.iter().map(|who| format!("umwelt-ctl stop {}", shell_word(who)));
                let stop: Vec<String> = who.collect();
                Some(format!("end them with: {}", stop.join("; ")))
            }
            InstallError::Image(_) => Some(
                "install mmdebstrap (on Debian: apt-get install mmdebstrap), or see whether podman reaches a registry: podman pull debian:trixie-slim, or bring one along: umwelt-install image --from FILE"
                    .to_owned(),
            ),
            InstallError::Merge { client, .. } => Some(format!(
                "what has to be in it is printed by: {NAME} client {client}"
            )),
            InstallError::OfProject { instead, .. } => Some(instead.clone()),
            InstallError::NobodyToAsk => Some("write it without a question with --yes".to_owned()),
            InstallError::NotAccepted
            | InstallError::Program(_) | InstallError::Package { .. } => None,
        }
    }
}

fn file_hint(source: &io::Error, path: &Path) -> Option<String> {
    let shown = shell_word(&path.parent().unwrap_or(path).to_string_lossy());
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Some(format!("make room; see: df -h {shown}"))
        }
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => Some(format!(
            "umwelt needs to write there; see: ls -ld {shown}; other places are set by XDG_DATA_HOME, XDG_CONFIG_HOME and HOME"
        )),
        _ => None,
    }
}

impl fmt::Display for InstallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InstallError::Root => f.write_str("umwelt is for an ordinary user, not for root"),
            InstallError::File { what, path, source } => {
                write!(f, "cannot {what} {path:?}: {source}")
            }
            InstallError::Busy(path) => {
                write!(f, "another {NAME} is at work: it holds {path:?}")
            }
            InstallError::Record { path, why } => write!(f, "cannot understand {path:?}: {why}"),
            InstallError::Newer { path, schema } => write!(
                f,
                "{path:?} was written by a later umwelt: its schema is {schema}"
            ),
            InstallError::Foreign(path) => {
                write!(f, "{path:?} is not a link of umwelt, and is left alone")
            }
            InstallError::Program(why) => f.write_str(why),
            InstallError::NoPodman => f.write_str("podman was not found"),
            InstallError::Podman { call, problem } => write!(f, "{call:?} failed: {problem}"),
            InstallError::NoRoots => {
                f.write_str("this host has no file with the certificates that it trusts")
            }
            InstallError::Authority(error) => error.fmt(f),
            InstallError::Running(who) => write!(f, "sandboxes run: {}", who.join(", ")),
            InstallError::Package { path, word } => {
                write!(f, "{path:?} names {word:?}, which is no Debian package")
            }
            InstallError::Merge { path, why, .. } => write!(f, "{path:?} is not changed: {why}"),
            InstallError::OfProject { path, dir, .. } => write!(
                f,
                "{path:?} is not changed: {dir:?} can be a workspace, so what runs in a sandbox could write this file, and the client runs on the host what it names"
            ),
            InstallError::NobodyToAsk => {
                f.write_str("nothing is changed: standard input or output is not a terminal")
            }
            InstallError::NotAccepted => f.write_str("nothing is changed"),
            InstallError::Image(problems) => {
                write!(f, "the image was not built: {}", problems.join("; "))
            }
        }
    }
}

impl std::error::Error for InstallError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_of_each() -> Vec<InstallError> {
        let path = || PathBuf::from("/p");
        vec![
            InstallError::Root,
            InstallError::file("write", &path(), io::ErrorKind::StorageFull.into()),
            InstallError::Busy(path()),
            InstallError::Record {
                path: path(),
                why: "w".into(),
            },
            InstallError::Newer {
                path: path(),
                schema: 9,
            },
            InstallError::Foreign(path()),
            InstallError::Program(
                super::super::tar::of_program(&"x".repeat(101), b"").unwrap_err(),
            ),
            InstallError::NoPodman,
            InstallError::Podman {
                call: "podman x".into(),
                problem: "w".into(),
            },
            InstallError::NoRoots,
            InstallError::Authority(CertificateError::Make(rcgen::Error::Time)),
            InstallError::Running(vec!["/w".into()]),
            InstallError::Package {
                path: path(),
                word: "w".into(),
            },
            InstallError::Image(vec!["w".into()]),
            InstallError::Merge {
                path: path(),
                why: "w".into(),
                client: "c",
            },
            InstallError::OfProject {
                path: path(),
                dir: path(),
                instead: "i".into(),
            },
            InstallError::NobodyToAsk,
            InstallError::NotAccepted,
        ]
    }

    #[test]
    fn messages_are_one_line_without_a_full_stop() {
        for error in one_of_each() {
            let message = error.to_string();
            assert!(
                !message.contains('\n') && !message.ends_with('.'),
                "{message}"
            );
            let hint = error.hint().unwrap_or_default();
            assert!(!hint.contains('\n'), "{hint}");
        }
    }
}
