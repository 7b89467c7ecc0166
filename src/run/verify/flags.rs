//! `nosuid` and `nodev` of writable binds, where the runtime has left out both:
//! crun before 1.11.1 does, in a user namespace, whatever it is asked for. They
//! are set before anything of the agent runs, and read back with all others.

use std::os::fd::OwnedFd;
use std::path::Path;

use super::{Proc, VerifyError, fail};
use crate::attach::{Answer, Operation, Restrict};
use crate::policy::mounts::{Mount, MountKind, MountSet};
use crate::run::live;
use crate::sys::mountinfo::{self, Entry};

const CHECK: &str = "mount flags";

pub(super) fn complete(
    proc: &Proc,
    exe: &Path,
    pidfd: &OwnedFd,
    mounts: &MountSet,
) -> Result<(), VerifyError> {
    let table = mountinfo::load(&proc.path("mountinfo"))
        .or_else(|error| fail("mounts", format!("the mount table cannot be read: {error}")))?;
    let operations: Vec<Operation> = forgotten(mounts, &table)
        .map(|mount| {
            let path = mount.path.clone();
            Operation::Restrict(Restrict { path })
        })
        .collect();
    if operations.is_empty() {
        return Ok(());
    }
    log::info!("nosuid and nodev are set, as the OCI runtime did not");
    let answers = live::perform(exe, pidfd, operations)
        .or_else(|error| fail(CHECK, format!("they cannot be set: {error}")))?;
    for answer in answers {
        if let Answer::NotLive { reason } | Answer::Changed { reason } = answer {
            return fail(CHECK, reason);
        }
    }
    Ok(())
}

/// Where only one is missing, something has changed what podman was told.
fn forgotten<'a>(mounts: &'a MountSet, table: &[Entry]) -> impl Iterator<Item = &'a Mount> {
    mounts.iter().filter(|mount| {
        let is_bind = matches!(mount.kind, MountKind::Bind { .. });
        let mut entries = table.iter().rev();
        let seen = entries.find(|entry| entry.mount_point == Path::new(&mount.path));
        let lacks_both = |entry: &Entry| !entry.has("nosuid") && !entry.has("nodev");
        is_bind && mount.is_writable() && seen.is_some_and(lacks_both)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::mounts::{Access, Origin};

    fn found(access: Access, options: &str) -> usize {
        let mount = Mount::bind("/w", "/w", access, Origin::Workspace);
        let lower = "20 1 8:1 /w /w rw,relatime - ext4 /dev/sda rw\n";
        let table = format!("{lower}21 20 8:1 /w /w {options} - ext4 /dev/sda rw\n");
        let table = mountinfo::parse_table(table.as_bytes()).unwrap();
        forgotten(&MountSet::merge(vec![mount]), &table).count()
    }

    #[test]
    fn writable_bind_without_both_flags_gets_them() {
        assert_eq!(found(Access::ReadWrite, "rw,relatime"), 1);
        for options in ["rw,nosuid,nodev", "rw,nodev", "rw,nosuid"] {
            assert_eq!(found(Access::ReadWrite, options), 0, "{options}");
        }
        assert_eq!(found(Access::ReadOnly, "rw,relatime"), 0);
    }
}
