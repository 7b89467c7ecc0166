//! podman: what is asked of it, and how it is called.

pub(crate) mod argv;
pub(crate) mod delegation;
pub(crate) mod gateway;
pub(crate) mod leftover;
pub(crate) mod local;
pub(crate) mod network;
pub(crate) mod seccomp;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use crate::text::shell_word;

/// Variables that podman needs to find the user's storage and session. Nothing
/// else of the environment reaches it, and nothing of it reaches a sandbox.
const ENVIRONMENT: [&str; 13] = [
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

/// Where programs of the host are looked for: `$PATH` without relative entries
/// and without those below `workspace`, by name or in truth. Project tools like
/// to put directories of the project there, where the agent could plant a
/// `podman` or a `git`. What is kept is named by its real path, so that a link
/// on the way to it, changed later, changes nothing.
pub(crate) fn search_path(workspace: &Path) -> OsString {
    let path =
        std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/local/bin:/usr/bin:/bin"));
    let entries = std::env::split_paths(&path).filter_map(|entry| safe_entry(&entry, workspace));
    // What was split at colons holds none, unless a link led to one.
    std::env::join_paths(entries).unwrap_or_default()
}

fn safe_entry(entry: &Path, workspace: &Path) -> Option<PathBuf> {
    let real = std::fs::canonicalize(entry).ok()?;
    let parent_is_inside = entry
        .ancestors()
        .filter_map(|above| std::fs::canonicalize(above.parent()?).ok())
        .any(|above| above.starts_with(workspace));
    let is_inside = entry.starts_with(workspace) || real.starts_with(workspace) || parent_is_inside;
    (entry.is_absolute() && !is_inside).then_some(real)
}

/// Where they are looked for when no workspace is given, so that none is known
/// to be left out: entries of `$PATH` that only root can write, and the user's
/// own `~/.local/bin` and `~/bin`, which no workspace can hold.
pub(crate) fn trusted_search_path() -> OsString {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let path = variable("PATH").unwrap_or_else(|| OsString::from("/usr/local/bin:/usr/bin:/bin"));
    let home = variable("HOME").map(PathBuf::from);
    let own: Vec<PathBuf> = home
        .into_iter()
        .flat_map(|home| [home.join(".local/bin"), home.join("bin")])
        .filter_map(|own| std::fs::canonicalize(own).ok())
        .collect();
    let entries = std::env::split_paths(&path).filter(|entry| is_trusted(entry, &own));
    std::env::join_paths(entries).unwrap_or_default()
}

fn is_trusted(entry: &Path, own: &[PathBuf]) -> bool {
    let real = match std::fs::canonicalize(entry) {
        Ok(real) if entry.is_absolute() => real,
        _ => return false,
    };
    let is_roots = |metadata: std::fs::Metadata| {
        let writers = if metadata.gid() == 0 { 0o002 } else { 0o022 };
        metadata.uid() == 0 && metadata.mode() & writers == 0
    };
    own.contains(&real) || real.metadata().is_ok_and(is_roots)
}

/// `podman ARGS…` with a scrubbed environment, in `/`, without stdin. `path`
/// is what [`search_path`] or [`trusted_search_path`] gave.
pub(crate) fn command(path: &OsStr, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new("podman");
    command
        .args(args)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null());
    if let Some(usual) = crate::dirs::usual_runtime() {
        command.env("XDG_RUNTIME_DIR", usual);
    }
    for name in ENVIRONMENT {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    // std looks for the program in this one too.
    command.env("PATH", path);
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
        status: ExitStatus,
        stderr: String,
    },
    MissingImage {
        image: String,
    },
    /// Another container has the name of ours.
    NameTaken {
        name: String,
    },
    /// The hook with the rules of the network could not be run, or has failed.
    Hook {
        why: String,
    },
    /// The container runs, but pid 1 did not speak.
    NoHandshake {
        detail: String,
    },
}

impl PodmanError {
    /// The way to an image that umwelt does not build.
    pub(crate) fn foreign_image_hint(image: &str) -> String {
        format!(
            "if it is one of yours, get it with: podman pull {}; for the one that umwelt builds, set image = \"umwelt:latest\" in the base config and run: umwelt-install image",
            shell_word(image)
        )
    }

    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            PodmanError::Spawn(error) if error.kind() == io::ErrorKind::NotFound => {
                Some("install podman (on Debian: apt-get install podman)".to_owned())
            }
            PodmanError::MissingImage { image }
                if ["umwelt:latest", "localhost/umwelt:latest"].contains(&image.as_str()) =>
            {
                Some("build it: umwelt-install image".to_owned())
            }
            PodmanError::MissingImage { image } => Some(PodmanError::foreign_image_hint(image)),
            PodmanError::Hook { .. } => Some(
                "to record where nft is, and to make what egress needs, run: umwelt-install install --egress"
                    .to_owned(),
            ),
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
                "the name {name:?} belongs to another container, which is left alone"
            ),
            PodmanError::Hook { why } => {
                write!(f, "the network's rules could not be put in force: {why}")
            }
            PodmanError::NoHandshake { detail } => {
                write!(f, "the sandbox did not come up: {detail}")
            }
        }
    }
}

impl std::error::Error for PodmanError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Its recipe lies in a checkout only; each hint can be followed without one.
    #[test]
    fn a_missing_image_is_built_or_pulled() {
        let hint = |image: &str| {
            let image = image.to_owned();
            PodmanError::MissingImage { image }.hint().unwrap()
        };
        for ours in ["umwelt:latest", "localhost/umwelt:latest"] {
            assert_eq!(hint(ours), "build it: umwelt-install image");
        }
        let other = hint("nope:1");
        assert!(other.contains("podman pull nope:1; "), "{other}");
        assert!(other.ends_with("run: umwelt-install image"), "{other}");
        assert!(!other.contains("containerfiles"), "{other}");
    }

    #[test]
    fn only_roots_and_the_users_own_programs_are_trusted() {
        let temp = tempfile::tempdir().unwrap();
        let planted = temp.path().canonicalize().unwrap();
        // As root, ownership alone would make it trusted.
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&planted, open).unwrap();
        assert!(!is_trusted(&planted, &[]));
        assert!(is_trusted(&planted, std::slice::from_ref(&planted)));
        assert!(is_trusted(Path::new("/usr/bin"), &[]));
        assert!(!is_trusted(Path::new("usr/bin"), &[]));
        assert!(!is_trusted(Path::new("."), &[]));
        assert!(!is_trusted(&planted.join("gone"), &[]));
    }

    #[test]
    fn entries_in_the_workspace_are_left_out_whatever_they_lead_to() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let workspace = base.join("w");
        std::fs::create_dir_all(workspace.join("real")).unwrap();
        std::fs::create_dir_all(base.join("tools")).unwrap();
        let link = std::os::unix::fs::symlink::<&Path, PathBuf>;
        link(Path::new("/usr/bin"), workspace.join("bin")).unwrap();
        link(&workspace, base.join("alias")).unwrap();
        link(&base.join("tools"), base.join("short")).unwrap();
        for inside in ["w/bin", "w/real", "alias/bin", "alias/real"] {
            assert_eq!(safe_entry(&base.join(inside), &workspace), None, "{inside}");
        }
        assert_eq!(safe_entry(Path::new("bin"), &workspace), None);
        assert_eq!(safe_entry(&base.join("gone"), &workspace), None);
        let tools = safe_entry(&base.join("short"), &workspace);
        assert_eq!(tools, Some(base.join("tools")));
    }
}
