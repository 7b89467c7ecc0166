//! cgroup v2 (Linux Documentation/admin-guide/cgroup-v2.rst): delegation of
//! controllers to the user, and one cgroup for each command.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal};

/// Where cgroup v2 is mounted on every systemd host.
const ROOT: &str = "/sys/fs/cgroup";
/// Controllers that the resource caps need.
pub(crate) const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];
/// `CGROUP2_SUPER_MAGIC` of linux/magic.h.
const CGROUP2_SUPER_MAGIC: i64 = 0x6367_7270;

/// Whether the host runs the unified hierarchy.
pub(crate) fn is_unified() -> bool {
    rustix::fs::statfs(ROOT)
        .is_ok_and(|fs| i128::from(fs.f_type) == i128::from(CGROUP2_SUPER_MAGIC))
}

/// The cgroup of the user's systemd instance, below which podman makes the
/// scopes of containers.
pub(crate) fn user_manager(uid: u32) -> PathBuf {
    Path::new(ROOT).join(format!("user.slice/user-{uid}.slice/user@{uid}.service"))
}

/// Whether whole trees can be killed at once (`cgroup.kill`, Linux 5.14).
pub(crate) fn has_kill(cgroup: &Path) -> bool {
    cgroup.join("cgroup.kill").exists()
}

/// The controllers named in `file` (`cgroup.controllers` or
/// `cgroup.subtree_control`) of a cgroup.
pub(crate) fn controllers(cgroup: &Path, file: &str) -> io::Result<Vec<String>> {
    let text = std::fs::read_to_string(cgroup.join(file))?;
    Ok(text.split_ascii_whitespace().map(str::to_owned).collect())
}

/// Passes controllers on to the children of a cgroup.
pub(crate) fn enable(cgroup: &Path, controllers: &[&str]) -> io::Result<()> {
    let words: Vec<String> = controllers.iter().map(|name| format!("+{name}")).collect();
    write(
        &cgroup.join("cgroup.subtree_control"),
        words.join(" ").as_bytes(),
    )
}

/// The cgroup of a process, as a directory.
pub(crate) fn of_process(pid: Pid) -> io::Result<PathBuf> {
    let text = std::fs::read_to_string(format!("/proc/{}/cgroup", pid.as_raw_nonzero()))?;
    let path = text
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no cgroup v2 entry"))?;
    // The kernel appends this to the path of a removed cgroup.
    if path.ends_with(" (deleted)")
        || Path::new(path)
            .components()
            .any(|part| part.as_os_str() == "..")
    {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("unusable cgroup path {path:?}"),
        ));
    }
    Ok(Path::new(ROOT).join(path))
}

/// The cgroup below which the commands of a container get theirs: the lowest
/// one of pid 1's that belongs to this user. crun makes a cgroup `container`
/// that belongs to the container's root, inside the scope that belongs to us.
pub(crate) fn command_base(of_pid1: &Path) -> io::Result<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let ours = |level: &&Path| std::fs::metadata(level).is_ok_and(|metadata| metadata.uid() == uid);
    let base = of_pid1.ancestors().take(2).find(ours);
    base.map(Path::to_owned).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it belongs to somebody else",
        )
    })
}

/// Forbids swap below a cgroup, where the kernel accounts for it. podman sets
/// this on the lowest level only.
pub(crate) fn forbid_swap(cgroup: &Path) -> io::Result<()> {
    match write(&cgroup.join("memory.swap.max"), b"0") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Also where the kernel does not account for it.
pub(crate) fn is_swap_forbidden(cgroup: &Path) -> bool {
    const FILE: &str = "memory.swap.max";
    !cgroup.join(FILE).exists() || effective_limit(cgroup, FILE) == Some(0)
}

/// The lowest limit that `file` (`memory.max`, `pids.max`) sets on a cgroup
/// or on one of the levels above it; `None` where nothing limits it.
pub(crate) fn effective_limit(cgroup: &Path, file: &str) -> Option<u64> {
    levels(cgroup)
        .filter_map(|level| {
            std::fs::read_to_string(level.join(file))
                .ok()?
                .trim()
                .parse()
                .ok()
        })
        .min()
}

/// As [`effective_limit`] for `cpu.max`, in cpus.
pub(crate) fn effective_cpus(cgroup: &Path) -> Option<f64> {
    levels(cgroup)
        .filter_map(|level| {
            let text = std::fs::read_to_string(level.join("cpu.max")).ok()?;
            let (quota, period) = text.trim().split_once(' ')?;
            Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
        })
        .min_by(f64::total_cmp)
}

fn levels(cgroup: &Path) -> impl Iterator<Item = &Path> {
    cgroup
        .ancestors()
        .take_while(|level| *level != Path::new(ROOT))
}

/// Counters of a flat keyed file (`memory.events`, `cgroup.events`), or a
/// single one (`pids.current`). It is kept open: it is read for every command.
#[derive(Debug)]
pub(crate) struct Events {
    /// None where the kernel has no such file: then nothing is ever counted.
    file: Option<File>,
}

impl Events {
    pub(crate) fn open(cgroup: &Path, name: &str) -> Events {
        let file = File::open(cgroup.join(name));
        if let Err(error) = &file {
            log::warn!("cannot open {name:?} of {cgroup:?}: {error}");
        }
        Events { file: file.ok() }
    }

    /// The value of `key`; 0 once the cgroup is gone.
    pub(crate) fn count(&self, key: &str) -> u64 {
        let mut buffer = [0; 512];
        let text = self.read(&mut buffer);
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// Whether the cgroup is gone since it was opened.
    pub(crate) fn is_gone(&self) -> bool {
        self.file.is_some() && self.read(&mut [0; 32]).is_empty()
    }

    /// The number that is the whole of it.
    pub(crate) fn value(&self) -> Option<u64> {
        self.read(&mut [0; 32]).trim().parse().ok()
    }

    /// Empty once the cgroup is gone.
    fn read<'a>(&self, buffer: &'a mut [u8]) -> &'a str {
        let read = |file: &File| file.read_at(buffer, 0);
        let length = self.file.as_ref().map_or(Ok(0), read).unwrap_or_default();
        std::str::from_utf8(buffer.get(..length).unwrap_or_default()).unwrap_or_default()
    }
}

/// The cgroup of one command, below the scope of its container: the
/// container's caps hold for it, nothing inside can leave it, and the host can end all
/// that is in it at once, whatever it has forked.
#[derive(Debug)]
pub(crate) struct CommandCgroup {
    path: PathBuf,
}

impl CommandCgroup {
    pub(crate) fn create(base: &Path, id: u64) -> io::Result<CommandCgroup> {
        let path = base.join(format!("command-{id}"));
        std::fs::create_dir(&path)?;
        Ok(CommandCgroup { path })
    }

    /// `cgroup.procs` for writing. A process that writes "0" to it moves
    /// itself here; the rights are those of the opener (Linux 5.16 and the
    /// stable kernels with CVE-2021-4197 fixed).
    pub(crate) fn open_procs(&self) -> io::Result<OwnedFd> {
        OpenOptions::new()
            .write(true)
            .open(self.path.join("cgroup.procs"))
            .map(File::into)
    }

    pub(crate) fn is_populated(&self) -> bool {
        Events::open(&self.path, "cgroup.events").count("populated") != 0
    }

    /// Host process ids of all that is in it.
    pub(crate) fn pids(&self) -> Vec<Pid> {
        let text = std::fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        text.lines()
            .filter_map(|line| Pid::from_raw(line.parse().ok()?))
            .collect()
    }

    /// Sends SIGTERM to each process in it. A pid may have changed hands
    /// since it was read, so each is pinned by a pidfd and looked up again.
    pub(crate) fn terminate(&self) {
        let pinned: Vec<_> = self
            .pids()
            .into_iter()
            .filter_map(|pid| {
                Some((
                    pid,
                    rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?,
                ))
            })
            .collect();
        let still = self.pids();
        for (pid, pidfd) in pinned {
            if still.contains(&pid) {
                // It may have ended by itself meanwhile.
                let _ = rustix::process::pidfd_send_signal(pidfd, Signal::TERM);
            }
        }
    }

    /// SIGKILL for all that is in it, forks under way included.
    pub(crate) fn kill(&self) -> io::Result<()> {
        write(&self.path.join("cgroup.kill"), b"1")
    }

    /// Removes it once it is empty; false while something lives in it.
    pub(crate) fn remove(&self) -> bool {
        match std::fs::remove_dir(&self.path) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }
}

/// Whoever lets go of it without removing it has no use for it any more. With
/// something alive in it, it stays until the container ends.
impl Drop for CommandCgroup {
    fn drop(&mut self) {
        self.remove();
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_limit_of_all_levels_counts() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(inner.join("memory.max"), "max\n").unwrap();
        assert_eq!(effective_limit(&inner, "memory.max"), None);
        std::fs::write(dir.path().join("a/memory.max"), "4096\n").unwrap();
        std::fs::write(dir.path().join("memory.max"), "1024\n").unwrap();
        assert_eq!(effective_limit(&inner, "memory.max"), Some(1024));
        std::fs::write(inner.join("cpu.max"), "150000 100000\n").unwrap();
        assert_eq!(effective_cpus(&inner), Some(1.5));
    }

    #[test]
    fn swap_is_forbidden_where_a_level_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("a");
        std::fs::create_dir(&inner).unwrap();
        assert!(is_swap_forbidden(&inner));
        for (text, is_forbidden) in [("max", false), ("4096", false), ("0", true)] {
            std::fs::write(inner.join("memory.swap.max"), text).unwrap();
            assert_eq!(is_swap_forbidden(&inner), is_forbidden, "{text}");
        }
        std::fs::write(inner.join("memory.swap.max"), "max").unwrap();
        std::fs::write(dir.path().join("memory.swap.max"), "0").unwrap();
        assert!(is_swap_forbidden(&inner));
    }

    #[test]
    fn event_counters_are_found_by_their_whole_key() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("memory.events"), "oom 3\noom_kill 2\n").unwrap();
        let events = Events::open(dir.path(), "memory.events");
        assert_eq!((events.count("oom_kill"), events.count("oom")), (2, 3));
        assert_eq!(events.count("low"), 0);
        assert_eq!(Events::open(dir.path(), "missing").count("low"), 0);
        std::fs::write(dir.path().join("pids.current"), "17\n").unwrap();
        assert_eq!(Events::open(dir.path(), "pids.current").value(), Some(17));
        assert_eq!(Events::open(dir.path(), "missing").value(), None);
    }
}
