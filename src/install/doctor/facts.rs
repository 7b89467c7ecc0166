//! What this host is like, as far as the design relies on it. Read, never
//! changed, but for controllers that the user may enable (see `delegation`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::holes;
use super::packages::Family;
use crate::config::Config;
use crate::dirs::Dirs;
use crate::error::Error;
use crate::install::image::{self, Standing};
use crate::install::layout::Layout;
use crate::install::record::Record;
use crate::install::{InstallError, call, program};
use crate::podman::delegation::{self, DelegationError};
use crate::podman::local::{self, Remote};
use crate::run::preflight;
use crate::sys::user;

#[derive(Debug)]
pub(super) struct Facts {
    pub(super) uid: u32,
    pub(super) user: String,
    pub(super) family: Family,
    /// Message and way out.
    pub(super) places: Result<(), Problem>,
    pub(super) podman: Option<PathBuf>,
    pub(super) remote: Option<Remote>,
    pub(super) info: Result<Info, String>,
    pub(super) kernel: Kernel,
    /// By the name of the program, for those whose version has holes.
    pub(super) changelogs: BTreeMap<String, String>,
    pub(super) delegation: Result<(), DelegationError>,
    pub(super) subids: Subids,
    pub(super) seccomp: Result<(), Problem>,
    /// The base configuration, where there is one.
    pub(super) config: Result<Option<PathBuf>, Problem>,
    /// The name that is configured, and what podman has under it.
    pub(super) image: Result<(String, Standing), String>,
    pub(super) nft: Option<(PathBuf, String)>,
    /// Programs that this podman needs for a network.
    pub(super) missing_tools: Vec<&'static str>,
    pub(super) disks: Vec<Disk>,
    pub(super) bin: PathBuf,
    pub(super) is_on_path: bool,
    pub(super) is_installed: bool,
    /// As `install --no-egress` was asked to.
    pub(super) is_without_egress: bool,
    /// The installed one, which is pid 1 and hook, if it cannot be executed.
    pub(super) broken_program: Option<PathBuf>,
}

/// How the kernel calls itself, and how its distribution does.
#[derive(Debug, Clone, Default)]
pub(super) struct Kernel {
    pub(super) release: String,
    pub(super) build: String,
    pub(super) signature: String,
}

impl Kernel {
    fn of_host() -> Kernel {
        Kernel {
            release: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            build: read("/proc/sys/kernel/version").trim().to_owned(),
            signature: read("/proc/version_signature").trim().to_owned(),
        }
    }

    pub(super) fn version(&self) -> Option<[u64; 3]> {
        holes::kernel(&self.release, &self.build, &self.signature)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Problem {
    pub(super) message: String,
    pub(super) hint: Option<String>,
}

impl Problem {
    pub(super) fn new(message: impl Into<String>) -> Problem {
        Problem {
            message: message.into(),
            hint: None,
        }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Problem {
        self.hint = Some(hint.into());
        self
    }

    /// As a program of ours has told it on standard error.
    pub(super) fn told(stderr: &str) -> Problem {
        let lines = stderr.lines().filter(|line| !line.trim().is_empty());
        let (hints, words): (Vec<&str>, Vec<&str>) =
            lines.partition(|line| line.starts_with("hint: "));
        let message = words.last().copied().unwrap_or("nothing is told");
        let message = message.split_once(": ").map_or(message, |(_, rest)| rest);
        let hints: Vec<&str> = hints
            .iter()
            .filter_map(|hint| hint.strip_prefix("hint: "))
            .collect();
        Problem {
            message: message.to_owned(),
            hint: (!hints.is_empty()).then(|| hints.join("\n")),
        }
    }
}

impl From<std::io::Error> for Problem {
    fn from(error: std::io::Error) -> Problem {
        Problem::new(error.to_string())
    }
}

impl From<&Error> for Problem {
    fn from(error: &Error) -> Problem {
        Problem {
            message: error.to_string(),
            hint: error.hint(),
        }
    }
}

/// As far as it matters of `podman info`; older versions lack some of it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Info {
    pub(super) host: Host,
    #[serde(default)]
    pub(super) store: Store,
    pub(super) version: Version,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
pub(super) struct Host {
    pub(super) network_backend: String,
    pub(super) network_backend_info: Option<Backend>,
    pub(super) oci_runtime: Runtime,
    pub(super) service_is_remote: bool,
    pub(super) id_mappings: Mappings,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Backend {
    #[serde(default)]
    pub(super) version: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Runtime {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) version: String,
}

impl Runtime {
    /// The first line without what is the same everywhere.
    pub(super) fn short_version(&self) -> &str {
        let line = self.version.lines().next().unwrap_or_default();
        let version = line.trim_start_matches(&self.name);
        let version = version.trim_start_matches([' ', ':']);
        version.trim_start_matches("version ")
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Mappings {
    pub(super) uidmap: Option<Vec<Mapping>>,
    pub(super) gidmap: Option<Vec<Mapping>>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct Mapping {
    pub(super) size: u64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Store {
    pub(super) graph_root: PathBuf,
    pub(super) graph_driver_name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Version {
    pub(super) version: String,
}

/// Ranges of ids that this user may hand out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Subids {
    pub(super) uids: u64,
    pub(super) gids: u64,
    /// Behind all that are given to anybody.
    pub(super) next_free: u64,
    /// The two programs that map them.
    pub(super) has_programs: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Disk {
    pub(super) what: &'static str,
    pub(super) path: PathBuf,
    /// Bytes; `None` where that cannot be told.
    pub(super) free: Option<u64>,
}

pub(super) fn gather(layout: &Layout) -> Facts {
    let uid = rustix::process::geteuid().as_raw();
    let record = Record::load(&layout.record).ok().flatten();
    let layout = layout.clone().with_recorded(record.as_ref());
    let info = info();
    let family = Family::of_host();
    let podman = call::find_trusted("podman");
    let is_without_egress = record.as_ref().is_some_and(|record| record.without_egress);
    let is_installed = record.is_some_and(|record| record.program.is_some());
    Facts {
        uid,
        user: user::name(uid),
        family,
        changelogs: changelogs(family, podman.as_deref(), info.as_ref().ok()),
        places: places(),
        podman,
        remote: local::find_remote(&layout.dirs.home, |name| std::env::var_os(name)),
        kernel: Kernel::of_host(),
        delegation: delegation::check(uid).map(drop),
        subids: subids(uid),
        seccomp: preflight::derive_seccomp()
            .map(drop)
            .map_err(|error| Problem::from(&Error::Preflight(error))),
        config: config(&layout.dirs),
        image: image::standing(&layout).map_err(|error| error.to_string()),
        nft: nft(),
        missing_tools: missing_tools(info.as_ref().ok()),
        disks: disks(&layout, info.as_ref().ok()),
        is_on_path: program::is_on_path(&layout.bin),
        bin: layout.bin,
        is_installed,
        is_without_egress,
        broken_program: Some(layout.program)
            .filter(|program| is_installed && !call::is_executable(program)),
        info,
    }
}

/// Of those programs that a package has brought, and whose version has holes.
fn changelogs(
    family: Family,
    podman: Option<&Path>,
    info: Option<&Info>,
) -> BTreeMap<String, String> {
    let Some(info) = info else {
        return BTreeMap::new();
    };
    let runtime = &info.host.oci_runtime;
    let programs = [
        ("podman", podman, info.version.version.as_str()),
        (
            &*runtime.name,
            Some(&*runtime.path),
            runtime.short_version(),
        ),
    ];
    let suspects = programs.into_iter().filter_map(|(name, path, version)| {
        let found = holes::numbers(version)?;
        let is_packaged = path?.starts_with("/usr/bin") || path?.starts_with("/usr/sbin");
        let is_suspect = is_packaged && !holes::of(name, found).is_empty();
        is_suspect.then_some(name)
    });
    suspects
        .filter_map(|name| Some((name.to_owned(), family.changelog(name)?)))
        .collect()
}

fn places() -> Result<(), Problem> {
    Dirs::from_env()
        .and_then(|dirs| dirs.check_runtime())
        .map_err(|error| Problem::from(&Error::Dirs(error)))
}

fn config(dirs: &Dirs) -> Result<Option<PathBuf>, Problem> {
    Config::load(dirs).map_err(|error| Problem::from(&Error::Config(error)))?;
    let path = dirs.base_config();
    Ok(path.exists().then_some(path))
}

fn info() -> Result<Info, String> {
    let text = call::podman_done(&["info", "--format", "json"], None, call::QUICK);
    let text = text.map_err(|error: InstallError| error.to_string())?;
    serde_json::from_str(&text).map_err(|error| format!("podman info is not understood: {error}"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn subids(uid: u32) -> Subids {
    let (uids, gids) = (read("/etc/subuid"), read("/etc/subgid"));
    let name = user::name(uid);
    let found = |program| call::find_trusted(program).is_some();
    Subids {
        uids: count_ids(&uids, &name, uid),
        gids: count_ids(&gids, &name, uid),
        next_free: next_free(&uids).max(next_free(&gids)),
        has_programs: found("newuidmap") && found("newgidmap"),
    }
}

/// How many ids a file like subuid(5) gives to a user.
pub(super) fn count_ids(text: &str, name: &str, uid: u32) -> u64 {
    let lines = text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (who, _, count) = (fields.next()?, fields.next()?, fields.next()?);
        let is_ours = who == name || who.parse() == Ok(uid);
        is_ours.then(|| count.trim().parse::<u64>().unwrap_or(0))
    });
    lines.sum()
}

fn next_free(text: &str) -> u64 {
    let ends = text.lines().filter_map(|line| {
        let mut fields = line.split(':').skip(1);
        let start: u64 = fields.next()?.trim().parse().ok()?;
        start.checked_add(fields.next()?.trim().parse().ok()?)
    });
    // Where useradd begins.
    ends.max().unwrap_or(0).max(100_000)
}

fn nft() -> Option<(PathBuf, String)> {
    let path = call::find("nft")?;
    let mut command = Command::new(&path);
    command.arg("--version").env_clear();
    let said = call::run(command, None, call::QUICK).ok();
    Some((
        path,
        said.map(|said| said.text().into_owned())
            .unwrap_or_default(),
    ))
}

/// Of those that podman 5 and its netavark do without.
fn missing_tools(info: Option<&Info>) -> Vec<&'static str> {
    let version = info.and_then(|info| holes::numbers(&info.version.version));
    let needed: &[&str] = match version {
        Some(found) if found < [5, 0, 0] => &["slirp4netns", "iptables"],
        _ => &[],
    };
    let missing = |program: &&&str| call::find(program).is_none();
    needed.iter().filter(missing).copied().collect()
}

fn disks(layout: &Layout, info: Option<&Info>) -> Vec<Disk> {
    let mut disks = vec![Disk::of("umwelt's data", &layout.dirs.data)];
    if let Some(info) = info
        && info.store.graph_root.is_absolute()
    {
        disks.push(Disk::of("podman's images", &info.store.graph_root));
    }
    disks
}

impl Disk {
    fn of(what: &'static str, path: &Path) -> Disk {
        // The directory may have to be made yet.
        let there = path.ancestors().find(|above| above.exists());
        let stat = there.and_then(|there| rustix::fs::statvfs(there).ok());
        Disk {
            what,
            path: path.to_owned(),
            free: stat.map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_counted_by_name_and_by_number() {
        let text = "a:100000:65536\n1000:165536:1000\nb:1:x\nbroken\na:300000:10\n";
        assert_eq!(count_ids(text, "a", 1000), 66_546);
        assert_eq!(count_ids(text, "c", 1), 0);
        assert_eq!(next_free(text), 300_010);
        assert_eq!(next_free(""), 100_000);
    }

    #[test]
    fn what_podman_tells_is_read_also_from_an_old_one() {
        let text = r#"{"host":{"networkBackend":"cni","ociRuntime":{"name":"runc","version":"runc version 1.1.5\nx"}},"version":{"Version":"4.3.1"}}"#;
        let info: Info = serde_json::from_str(text).unwrap();
        assert_eq!(info.version.version, "4.3.1");
        assert_eq!(info.host.oci_runtime.name, "runc");
        assert!(info.host.network_backend_info.is_none());
    }
}
