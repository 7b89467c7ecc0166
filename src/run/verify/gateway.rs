//! The same for a gateway: it has the user and the floor of the sandbox, its
//! own mounts and memory, and as many interfaces as it has networks.

use std::collections::BTreeMap;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags};

use super::{
    Proc, VerifyError, check_interface_names, check_namespaces, check_program, check_status,
    check_user_map, fail, flags, mounts, open_root, table,
};
use crate::podman::argv::ContainerSpec;
use crate::podman::gateway::MEMORY;
use crate::policy::mounts::MountSet;
use crate::sys::mountinfo::{self, Entry};
use crate::sys::{cgroup, process};

/// What was asked for.
pub(crate) struct Asked<'a> {
    /// The sandbox that it is for.
    pub(crate) sandbox: &'a ContainerSpec,
    pub(crate) exe: &'a Path,
    pub(crate) interfaces: &'a [&'a str],
    pub(crate) mounts: MountSet,
}

pub(crate) fn verify(asked: Asked<'_>, pid: Pid) -> Result<(), VerifyError> {
    let gone = |error| fail("gateway", format!("it cannot be opened: {error}"));
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).or_else(gone)?;
    let proc = Proc {
        dir: format!("/proc/{}", pid.as_raw_nonzero()),
    };
    // Its files are looked at as they are now: all of them are umwelt's own.
    let spec = ContainerSpec {
        mounts: asked.mounts,
        sources: BTreeMap::new(),
        ..asked.sandbox.clone()
    };
    check_program(&proc, asked.exe)?;
    check_status(&proc, &spec)?;
    check_user_map(&proc, &spec)?;
    check_namespaces(&proc)?;
    check_interface_names(&proc.read("network", "net/dev")?, asked.interfaces)?;
    check_memory(pid)?;
    let root = open_root(&proc)?;
    table::check_devices(&root)?;
    flags::complete(&proc, asked.exe, &pidfd, &spec.mounts)?;
    table::check_mount_table(&proc, &spec)?;
    let entries = mountinfo::load(&proc.path("mountinfo"))
        .or_else(|error| fail("mounts", format!("the mount table cannot be read: {error}")))?;
    check_nothing_else(&entries, &spec.mounts)?;
    mounts::check_mounts(&root, &spec)?;
    match process::has_ended(&pidfd) {
        false => Ok(()),
        true => fail("gateway", "it ended while it was checked"),
    }
}

fn check_memory(pid: Pid) -> Result<(), VerifyError> {
    let limit = cgroup::of_process(pid)
        .ok()
        .and_then(|cgroup| cgroup::effective_limit(&cgroup, "memory.max"));
    match limit {
        Some(limit) if limit <= MEMORY => Ok(()),
        Some(limit) => fail("memory cap", format!("it is {limit}")),
        None => fail("memory cap", "there is no limit"),
    }
}

/// A sandbox may have mounts of the host below its own; a gateway has none.
fn check_nothing_else(entries: &[Entry], mounts: &MountSet) -> Result<(), VerifyError> {
    let is_asked = |entry: &&Entry| {
        let path = entry.mount_point.as_path();
        path == Path::new("/")
            || mounts.iter().any(|mount| path == Path::new(&mount.path))
            || table::is_runtime_mount(path, entry)
    };
    match entries.iter().find(|entry| !is_asked(entry)) {
        None => Ok(()),
        Some(entry) => fail(
            "mounts",
            format!(
                "{:?} is mounted, which was not asked for",
                entry.mount_point
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::mounts::{Access, Mount, Origin};

    #[test]
    fn gateway_has_no_mount_that_was_not_asked_for() {
        let bind = Mount::bind("/audit", "/d/audit", Access::ReadWrite, Origin::Umwelt);
        let mounts = MountSet::merge(vec![bind]);
        let check = |point: &str, fs_type: &str| {
            let file = tempfile::NamedTempFile::new().unwrap();
            let line = format!("1 1 0:1 / {point} ro,nosuid,nodev - {fs_type} x rw\n");
            std::fs::write(file.path(), line).unwrap();
            let table = mountinfo::load(file.path().to_str().unwrap()).unwrap();
            check_nothing_else(&table, &mounts)
        };
        for (point, fs_type) in [
            ("/", "overlay"),
            ("/audit", "ext4"),
            ("/etc/hosts", "tmpfs"),
            ("/dev/null", "devtmpfs"),
        ] {
            assert!(check(point, fs_type).is_ok(), "{point}");
        }
        for point in ["/audit/x", "/home", "/ca", "/policy"] {
            assert!(check(point, "ext4").is_err(), "{point}");
        }
    }
}
