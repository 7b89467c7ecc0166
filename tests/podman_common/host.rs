//! The host: can it run sandboxes, and what is to be seen of them on it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const IMAGE: &str = "umwelt:latest";

/// Whether sandboxes can be started here. Where not, the reason is printed
/// and the test is over; with `UMWELT_REQUIRE_PODMAN=1` it fails instead.
pub(crate) fn qualifies() -> bool {
    static REASON: OnceLock<Option<String>> = OnceLock::new();
    let Some(reason) = REASON.get_or_init(|| look().err()) else {
        return true;
    };
    let required = std::env::var("UMWELT_REQUIRE_PODMAN").is_ok_and(|value| value == "1");
    assert!(!required, "this host cannot run sandboxes: {reason}");
    eprintln!("skipped, this host cannot run sandboxes: {reason}");
    false
}

fn look() -> Result<(), String> {
    let uid = uid();
    if uid == 0 {
        return Err("root has no rootless podman".to_owned());
    }
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        return Err("XDG_RUNTIME_DIR is not set".to_owned());
    }
    let manager = format!("/sys/fs/cgroup/user.slice/user-{uid}.slice/user@{uid}.service");
    let controllers = std::fs::read_to_string(format!("{manager}/cgroup.controllers"))
        .map_err(|error| format!("no cgroup v2 delegation: {error}"))?;
    for wanted in ["cpu", "memory", "pids"] {
        if !controllers.split_whitespace().any(|have| have == wanted) {
            return Err(format!("the controller {wanted} is not delegated"));
        }
    }
    let image = Command::new("podman")
        .args(["image", "exists", IMAGE])
        .status()
        .map_err(|error| format!("no podman: {error}"))?;
    if !image.success() {
        return Err(format!("podman has no image {IMAGE}"));
    }
    Ok(())
}

pub(crate) fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

pub(crate) fn home() -> PathBuf {
    PathBuf::from(std::env::var_os("HOME").expect("HOME"))
}

pub(crate) fn runtime_dir() -> PathBuf {
    PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR").expect("XDG_RUNTIME_DIR"))
}

/// stdout of `podman ARGS`, which must succeed.
pub(crate) fn podman(args: &[&str]) -> String {
    let output = Command::new("podman").args(args).output().expect("podman");
    assert!(output.status.success(), "podman {args:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Ids of all containers, running or not, of one workspace.
pub(crate) fn containers(sid: &str) -> Vec<String> {
    let filter = format!("label=umwelt.sid={sid}");
    let ids = podman(&["ps", "-a", "-q", "--no-trunc", "--filter", &filter]);
    ids.lines().map(str::to_owned).collect()
}

/// Host pids of the processes whose command line contains `marker`.
pub(crate) fn processes_with(marker: &str) -> Vec<u32> {
    let own = std::process::id();
    all_pids()
        .filter(|pid| *pid != own && command_line(*pid).contains(marker))
        .collect()
}

fn all_pids() -> impl Iterator<Item = u32> {
    std::fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Words separated by spaces; empty for a zombie and for a process that is gone.
pub(crate) fn command_line(pid: u32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

/// A field of `/proc/PID/status`, such as `VmRSS`; `None` when it is gone.
pub(crate) fn status_field(pid: u32, name: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

/// A field of `/proc/PID/status` that is an amount of memory, in KiB.
pub(crate) fn memory_kib(pid: u32, name: &str) -> u64 {
    let field = status_field(pid, name).expect("a field");
    let number = field.split_whitespace().next().expect("a number");
    number.parse().expect("a number")
}

/// Resident memory of a process that is its own, in KiB. How much of its program
/// is resident as well depends on the linker, and on the page cache.
pub(crate) fn resident_kib(pid: u32) -> u64 {
    memory_kib(pid, "RssAnon") + memory_kib(pid, "RssShmem")
}

/// The most that [`resident_kib`] can ever have been, but for what of the program
/// is resident by now.
pub(crate) fn peak_kib(pid: u32) -> u64 {
    memory_kib(pid, "VmHWM").saturating_sub(memory_kib(pid, "RssFile"))
}

/// Whether a process exists and is no zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    status_field(pid, "State").is_some_and(|state| !state.starts_with(['Z', 'X']))
}

/// Host pids of all processes in a cgroup and below it.
pub(crate) fn pids_below(cgroup: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    let mut pids: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    for entry in std::fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            pids.extend(pids_below(&entry.path()));
        }
    }
    pids
}
