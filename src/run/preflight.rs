//! What must hold before a container is created; each failure names its fix.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::{BaseMount, Config};
use crate::dirs::Dirs;
use crate::error::exit_code;
use crate::podman::delegation::{self, Delegated, DelegationError};
use crate::podman::local::{self, Remote};
use crate::podman::seccomp;
use crate::policy::mounts::{HostFacts, MountPoint};
use crate::workspace::Workspace;

/// What the checks found out on the way.
#[derive(Debug)]
pub(crate) struct Preflight {
    pub(crate) delegated: Delegated,
    /// The binary that becomes pid 1.
    pub(crate) exe: String,
    /// The derived seccomp profile, as JSON.
    pub(crate) seccomp: Vec<u8>,
    pub(crate) selinux: bool,
    pub(crate) host: HostFacts,
    /// One line each.
    pub(crate) warnings: Vec<String>,
}

#[derive(Debug)]
pub(crate) enum PreflightError {
    Root,
    Remote(Remote),
    Delegation(DelegationError),
    Exe { reason: String },
    Seccomp { path: PathBuf, reason: String },
    MountTable(io::Error),
    Mask { path: PathBuf, reason: String },
}

impl PreflightError {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            PreflightError::Delegation(_) => exit_code::NO_DELEGATION,
            _ => exit_code::FAILURE,
        }
    }

    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            PreflightError::Root => Some("start it as the user whose agent runs".to_owned()),
            PreflightError::Remote(remote) => Some(remote.fix.clone()),
            PreflightError::Delegation(error) => Some(error.hint()),
            PreflightError::Exe { .. } => Some("install umwelt outside of the workspace, then start it again".to_owned()),
            PreflightError::Seccomp { .. } => {
                Some("install the default profile of podman (on Debian: apt-get install golang-github-containers-common)".to_owned())
            }
            PreflightError::MountTable(_) => None,
            PreflightError::Mask { .. } => {
                Some("rename or repair what stands there, or change the mask in umwelt.toml".to_owned())
            }
        }
    }
}

impl fmt::Display for PreflightError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PreflightError::Root => {
                f.write_str("umwelt does not run as root: the sandbox stands on rootless podman")
            }
            PreflightError::Remote(remote) => write!(f, "podman is not local: {}", remote.reason),
            PreflightError::Delegation(error) => error.fmt(f),
            PreflightError::Exe { reason } => {
                write!(f, "cannot use umwelt's own program as pid 1: {reason}")
            }
            PreflightError::Seccomp { path, reason } => {
                write!(f, "cannot derive a seccomp profile from {path:?}: {reason}")
            }
            PreflightError::MountTable(error) => write!(f, "cannot read the mount table: {error}"),
            PreflightError::Mask { path, reason } => {
                write!(f, "cannot tell what has to be hidden at {path:?}: {reason}")
            }
        }
    }
}

impl std::error::Error for PreflightError {}

/// Runs all checks, cheapest first.
pub(crate) fn check(
    config: &Config,
    workspace: &Workspace,
    dirs: &Dirs,
) -> Result<Preflight, PreflightError> {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return Err(PreflightError::Root);
    }
    if let Some(remote) = local::find_remote(&dirs.home, |name| std::env::var_os(name)) {
        return Err(PreflightError::Remote(remote));
    }
    let delegated = delegation::check(uid.as_raw()).map_err(PreflightError::Delegation)?;
    let exe = find_exe(workspace)?;
    let seccomp = derive_seccomp()?;
    let mut warnings = Vec::new();
    let host = host_facts(config, dirs, &mut warnings)?;
    Ok(Preflight {
        delegated,
        exe,
        seccomp,
        selinux: is_selinux_enforcing(),
        host,
        warnings,
    })
}

/// The running binary. It becomes pid 1 inside and is run by the host's user
/// outside, so the agent must not be able to replace it.
fn find_exe(workspace: &Workspace) -> Result<String, PreflightError> {
    let exe = std::env::current_exe().map_err(|error| PreflightError::Exe {
        reason: error.to_string(),
    })?;
    if !exe.is_file() {
        return Err(PreflightError::Exe {
            reason: format!("{exe:?} has been replaced or removed since the start"),
        });
    }
    if exe.starts_with(workspace.path()) {
        return Err(PreflightError::Exe {
            reason: format!("{exe:?} lies in the workspace, where the agent could change it"),
        });
    }
    match exe.to_str() {
        Some(path) if !path.contains('\n') => Ok(path.to_owned()),
        _ => Err(PreflightError::Exe {
            reason: format!("its path {exe:?} is not plain UTF-8"),
        }),
    }
}

/// Where podman looks for its default profile, the administrator's first.
const SECCOMP_PROFILES: [&str; 2] = [
    "/etc/containers/seccomp.json",
    "/usr/share/containers/seccomp.json",
];

fn derive_seccomp() -> Result<Vec<u8>, PreflightError> {
    let [first, last] = SECCOMP_PROFILES.map(PathBuf::from);
    let path = if first.exists() { first } else { last };
    let refused = |reason: String| PreflightError::Seccomp {
        path: path.clone(),
        reason,
    };
    let text = std::fs::read(&path).map_err(|error| refused(error.to_string()))?;
    let profile = serde_json::from_slice(&text).map_err(|error| refused(error.to_string()))?;
    let tight = seccomp::tighten(profile).map_err(refused)?;
    serde_json::to_vec(&tight).map_err(|error| refused(error.to_string()))
}

fn is_selinux_enforcing() -> bool {
    std::fs::read_to_string("/sys/fs/selinux/enforce").is_ok_and(|text| text.trim() == "1")
}

fn host_facts(
    config: &Config,
    dirs: &Dirs,
    warnings: &mut Vec<String>,
) -> Result<HostFacts, PreflightError> {
    let mut missing = Vec::new();
    for mount in &config.mounts {
        if let BaseMount::Bind { path } = mount
            && !path.is_dir()
        {
            warnings.push(format!(
                "base mount {path:?} skipped: there is no such directory"
            ));
            missing.extend(path.to_str().map(str::to_owned));
        }
    }
    let table = crate::sys::mountinfo::of_self().map_err(PreflightError::MountTable)?;
    // A path that is not UTF-8 cannot be handed to podman; should it matter,
    // the mount is found when the table inside is read back.
    let mount_points = table.iter().filter_map(|entry| {
        Some(MountPoint {
            path: entry.mount_point.to_str()?.to_owned(),
            read_only: entry.is_read_only(),
        })
    });
    Ok(HostFacts {
        home: home_text(&dirs.home),
        missing,
        mount_points: mount_points.collect(),
    })
}

/// The home path as it stands in `HOME`; a home that is not UTF-8 is refused
/// long before, as the config directory below it could not be named.
fn home_text(home: &Path) -> String {
    OsString::from(home).to_string_lossy().into_owned()
}
