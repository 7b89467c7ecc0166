//! What must hold before a container is created; each failure names its fix.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::{BaseMount, Config, Mask};
use crate::dirs::Dirs;
use crate::error::exit_code;
use crate::places;
use crate::podman::delegation::{self, Delegated, DelegationError};
use crate::podman::local::{self, Remote};
use crate::podman::seccomp;
use crate::policy::mounts::{HostFacts, MountPoint};
use crate::run::masks::hides;
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
    Exe {
        reason: String,
    },
    Seccomp {
        path: PathBuf,
        reason: String,
    },
    MountTable(io::Error),
    /// A base bind that no sandbox may see.
    Bind {
        path: PathBuf,
        reason: String,
    },
    Mask {
        path: PathBuf,
        reason: String,
    },
}

impl PreflightError {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            PreflightError::Delegation(_) => exit_code::NO_DELEGATION,
            PreflightError::Bind { .. } => exit_code::USAGE,
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
            PreflightError::Bind { .. } => {
                Some("bind the directories that are needed, one by one (see: man umwelt.toml)".to_owned())
            }
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
            PreflightError::Bind { path, reason } => {
                write!(f, "cannot use {path:?} as a base mount: {reason}")
            }
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

/// All that this host lacks, for a person who only looks.
pub(crate) fn missing(workspace: &Workspace, dirs: &Dirs) -> Vec<PreflightError> {
    let uid = rustix::process::geteuid();
    let remote = local::find_remote(&dirs.home, |name| std::env::var_os(name));
    let found = [
        uid.is_root().then_some(PreflightError::Root),
        remote.map(PreflightError::Remote),
        delegation::check(uid.as_raw())
            .err()
            .map(PreflightError::Delegation),
        find_exe(workspace).err(),
        derive_seccomp().err(),
    ];
    found.into_iter().flatten().collect()
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

/// The tightened profile of this host, as JSON.
pub(crate) fn derive_seccomp() -> Result<Vec<u8>, PreflightError> {
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

pub(crate) fn host_facts(
    config: &Config,
    dirs: &Dirs,
    warnings: &mut Vec<String>,
) -> Result<HostFacts, PreflightError> {
    let mut real_binds = BTreeMap::new();
    for mount in &config.mounts {
        let BaseMount::Bind { path } = mount else {
            continue;
        };
        let Some(real) = std::fs::canonicalize(path)
            .ok()
            .filter(|real| real.is_dir())
        else {
            warnings.push(format!(
                "base mount {path:?} skipped: there is no such directory"
            ));
            continue;
        };
        if let Some(reason) = bind_refusal(&real, &config.masks, dirs) {
            return Err(PreflightError::Bind {
                path: path.clone(),
                reason,
            });
        }
        match (path.to_str(), real.to_str()) {
            (Some(path), Some(real)) if !real.contains('\n') => {
                real_binds.insert(path.to_owned(), real.to_owned());
            }
            _ => warnings.push(format!(
                "base mount {path:?} skipped: {real:?} is not one line of UTF-8"
            )),
        }
    }
    Ok(HostFacts {
        home: home_text(&dirs.home),
        real_binds,
        mount_points: mount_points()?,
    })
}

/// The mount points of the host as they are now. A path that is not UTF-8
/// cannot be handed to podman; should it matter, the mount is found when the
/// table inside is read back.
pub(crate) fn mount_points() -> Result<Vec<MountPoint>, PreflightError> {
    let table = crate::sys::mountinfo::of_self().map_err(PreflightError::MountTable)?;
    let points = table.iter().filter_map(|entry| {
        Some(MountPoint {
            path: entry.mount_point.to_str()?.to_owned(),
            read_only: entry.is_read_only(),
        })
    });
    Ok(points.collect())
}

/// Why the directory `real` cannot be shown to a sandbox, even read-only.
/// What contains a place is fine where a mask hides that place.
pub(crate) fn bind_refusal(real: &Path, masks: &[Mask], dirs: &Dirs) -> Option<String> {
    /// Reached by a link; config refuses them by name.
    const SYSTEM: [&str; 4] = ["/proc", "/sys", "/dev", "/run"];
    let home = places::real(&dirs.home);
    if real == home {
        return Some("it is the home directory itself".to_owned());
    }
    if home.starts_with(real) {
        return Some(format!("it contains the home directory {home:?}"));
    }
    let places = places::of_user(dirs);
    let secret = places.iter().filter(|place| place.is_secret);
    let refusal = secret.into_iter().find_map(|place| {
        let (there, what) = (places::real(&place.path), place.what);
        if real.starts_with(&there) {
            return Some(format!("{real:?} lies in {what} {there:?}"));
        }
        let is_shown = there.starts_with(real) && !masks.iter().any(|mask| hides(mask, &there));
        is_shown.then(|| format!("{real:?} contains {what} {there:?}, which no mask hides"))
    });
    refusal.or_else(|| {
        let tree = SYSTEM.iter().find(|tree| real.starts_with(tree))?;
        Some(format!(
            "it leads to {real:?}, in {tree}, which belongs to the system"
        ))
    })
}

/// The home path as it stands in `HOME`; a home that is not UTF-8 is refused
/// long before, as the config directory below it could not be named.
fn home_text(home: &Path) -> String {
    OsString::from(home).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MaskTarget;

    fn mask(path: &str) -> Mask {
        Mask {
            target: MaskTarget::parse(path.into()).unwrap(),
            reason: None,
        }
    }

    fn dirs(home: &Path) -> Dirs {
        Dirs {
            home: home.to_owned(),
            config: home.join(".config/umwelt"),
            data: home.join(".local/share/umwelt"),
            state: home.join(".local/state/umwelt"),
            runtime: home.join("run"),
        }
    }

    #[test]
    fn binds_of_umwelts_own_places_and_of_the_home_are_refused() {
        let dirs = dirs(Path::new("/h/u"));
        let refusal = |path: &str| {
            let masks = crate::run::masks::all(Vec::new(), &dirs);
            bind_refusal(Path::new(path), &masks, &dirs)
        };
        for path in [
            "/",
            "/h",
            "/h/u",
            "/h/u/.config/umwelt",
            "/h/u/.local/state/umwelt/x",
            "/h/u/run",
            "/h/u/run/user",
            "/proc",
            "/run/user/1",
        ] {
            assert!(refusal(path).is_some(), "{path}");
        }
        // umwelt's own masks hide what is in this one.
        for path in ["/h/u/.config", "/h/u/.local/state", "/h/u/dev", "/usr/src"] {
            assert_eq!(refusal(path), None, "{path}");
        }
    }

    #[test]
    fn what_contains_a_place_needs_a_mask_over_it() {
        let mut dirs = dirs(Path::new("/h/u"));
        dirs.runtime = "/x/r/run".into();
        let refused = |masks: &[Mask]| bind_refusal(Path::new("/x"), masks, &dirs).is_some();
        assert!(refused(&[]));
        assert!(refused(&[mask("/x/r/run/y"), mask("/x/r*n")]));
        assert!(!refused(&[mask("/x/r/run")]));
        assert!(!refused(&[mask("/x/r*")]));
    }

    #[test]
    fn bind_is_judged_and_mounted_by_its_real_path() {
        let temp = tempfile::tempdir().unwrap();
        let home = temp.path().canonicalize().unwrap();
        let dirs = dirs(&home);
        for dir in ["run", "data"] {
            std::fs::create_dir(home.join(dir)).unwrap();
        }
        let link = home.join("link");
        let mut config = Config::load(&dirs).unwrap();
        config.mounts = vec![BaseMount::Bind { path: link.clone() }];
        let facts = || host_facts(&config, &dirs, &mut Vec::new());
        std::os::unix::fs::symlink("data", &link).unwrap();
        let expected = [&link, &home.join("data")].map(|path| path.to_str().unwrap().to_owned());
        let [path, real] = expected;
        assert_eq!(facts().unwrap().real_binds, BTreeMap::from([(path, real)]));
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("run", &link).unwrap();
        assert!(matches!(facts(), Err(PreflightError::Bind { .. })));
    }
}
