//! podman: what is asked of it, and how it is called.

pub(crate) mod argv;
pub(crate) mod delegation;
pub(crate) mod leftover;
pub(crate) mod local;
pub(crate) mod seccomp;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::process::{Command, Stdio};

/// Variables that podman needs to find the user's storage and session. Nothing
/// else of the environment reaches it, and nothing of it reaches a sandbox.
const ENVIRONMENT: [&str; 14] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
    "DBUS_SESSION_BUS_ADDRESS",
    "CONTAINERS_CONF",
    "CONTAINERS_STORAGE_CONF",
];

/// `podman ARGS…` with a scrubbed environment, in `/`, without stdin.
pub(crate) fn command(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new("podman");
    command
        .args(args)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null());
    for name in ENVIRONMENT {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

/// Removes containers by id, running or not; one that is gone is no error.
pub(crate) fn remove_args(ids: &[String]) -> Vec<OsString> {
    let options = ["rm", "--force", "--ignore", "--time=0", "--volumes", "--"];
    options
        .into_iter()
        .map(OsString::from)
        .chain(ids.iter().map(OsString::from))
        .collect()
}

/// Why podman could not do what was asked.
#[derive(Debug)]
pub(crate) enum PodmanError {
    /// podman itself could not be started.
    Spawn(io::Error),
    /// It ended without success; `stderr` is its last words.
    Failed {
        what: &'static str,
        status: String,
        stderr: String,
    },
    MissingImage {
        image: String,
    },
    /// Another container has the name of ours.
    NameTaken {
        name: String,
    },
    /// The container runs, but pid 1 did not speak.
    NoHandshake {
        detail: String,
    },
}

impl PodmanError {
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            PodmanError::Spawn(error) if error.kind() == io::ErrorKind::NotFound => {
                Some("install podman (on Debian: apt-get install podman)".to_owned())
            }
            PodmanError::MissingImage { image } => Some(format!(
                "build it: podman build -t {image} containerfiles/sandbox, or without a container registry: containerfiles/sandbox/mmdebstrap.sh image.tar && podman import image.tar {image}"
            )),
            PodmanError::NameTaken { name } => Some(format!(
                "remove it: podman rm --force {name}, or set another session_prefix in the base config"
            )),
            _ => None,
        }
    }
}

impl fmt::Display for PodmanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PodmanError::Spawn(error) => write!(f, "cannot start podman: {error}"),
            PodmanError::Failed {
                what,
                status,
                stderr,
            } if stderr.is_empty() => {
                write!(f, "podman could not {what}: {status}")
            }
            PodmanError::Failed {
                what,
                status,
                stderr,
            } => {
                write!(f, "podman could not {what} ({status}): {stderr}")
            }
            PodmanError::MissingImage { image } => {
                write!(f, "the image {image:?} does not exist on this host")
            }
            PodmanError::NameTaken { name } => write!(
                f,
                "the name {name:?} belongs to a container without umwelt's labels, which is left alone"
            ),
            PodmanError::NoHandshake { detail } => {
                write!(f, "the sandbox did not come up: {detail}")
            }
        }
    }
}

impl std::error::Error for PodmanError {}
