//! One bind mount out of the running container, if nothing inside uses it.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::attach::holders;
use crate::attach::namespaces::{self, Container};
use crate::attach::place::{self, PathInside, Scratch};
use crate::attach::{Detach, Obstacle, not_live};
use crate::sys::mountinfo::Entry;

pub(super) fn detach(container: &Container, wanted: &Detach) -> Result<(), Obstacle> {
    let path = PathInside::parse(&wanted.path)?;
    container.step_out()?;
    let host = namespaces::mounts_of_host()?;
    container.step_in()?;
    let mounts = container.mounts()?;
    let mount = topmost(container.root(), path, wanted, &mounts)?;
    path.check_nothing_below(&mounts)?;
    if unmount_at(container.root(), path, mount.id, UnmountFlags::empty())? == Unmounted::Busy {
        container.step_out()?;
        return not_live(holders::describe(container.pid_namespace(), mount));
    }
    let mounts = container.mounts()?;
    if mounts.iter().any(|other| other.id == mount.id) {
        return not_live(format!("{path} is still mounted inside"));
    }
    if wanted.made_mount_point {
        remove_mount_point(container.root(), path, &Scratch::new(&mounts, &host));
    }
    Ok(())
}

/// The mount that is seen at `path`, if it is the one that is meant.
fn topmost<'a>(
    root: &OwnedFd,
    path: PathInside<'_>,
    wanted: &Detach,
    mounts: &'a [Entry],
) -> Result<&'a Entry, Obstacle> {
    let seen = path.open(root).map_err(|error| path.not_found(error))?;
    let stat = rustix::fs::fstat(&seen).map_err(|error| path.not_found(error))?;
    let id = place::mount_id(&seen)?;
    let mount = mounts
        .iter()
        .find(|mount| mount.id == id && mount.mount_point == Path::new(path.as_str()));
    match mount {
        Some(mount) if (stat.st_dev, stat.st_ino) == (wanted.device, wanted.inode) => Ok(mount),
        _ => not_live(format!(
            "what was granted is not what is mounted at {path} inside"
        )),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unmounted {
    Done,
    /// Something inside uses it.
    Busy,
}

/// Unmounts the mount with this number, which must be what is seen at `path`.
pub(super) fn unmount_at(
    root: &OwnedFd,
    path: PathInside<'_>,
    id: u64,
    flags: UnmountFlags,
) -> Result<Unmounted, Obstacle> {
    let parent = path
        .open_parent(root)
        .map_err(|error| path.not_found(error))?;
    unmount_in(&parent, path, id, flags)
}

/// The same below a directory that was opened before: whatever happens to the
/// path of that one. A mount point cannot be renamed, so that its name in there
/// cannot come to mean something else.
pub(super) fn unmount_in(
    parent: &OwnedFd,
    path: PathInside<'_>,
    id: u64,
    flags: UnmountFlags,
) -> Result<Unmounted, Obstacle> {
    let seen = place::mount_id_at(parent, path.name(), AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|error| path.not_found(error))?;
    if seen != id {
        return not_live(format!("{path} was changed inside"));
    }
    rustix::process::fchdir(parent).map_err(|error| path.not_found(error))?;
    match rustix::mount::unmount(path.name(), flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(Unmounted::Done),
        Err(Errno::BUSY) => Ok(Unmounted::Busy),
        Err(error) => Err(Obstacle::failed(
            format_args!("cannot unmount {path}"),
            error,
        )),
    }
}

/// Only what is empty, and only in a scratch place; else it stays.
fn remove_mount_point(root: &OwnedFd, path: PathInside<'_>, scratch: &Scratch) {
    let Ok(parent) = path.open_parent(root) else {
        return;
    };
    if !scratch.holds(&parent) {
        return;
    }
    let found = rustix::fs::statat(&parent, path.name(), AtFlags::SYMLINK_NOFOLLOW);
    let flags = match found.map(|stat| (FileType::from_raw_mode(stat.st_mode), stat.st_size)) {
        Ok((FileType::Directory, _)) => AtFlags::REMOVEDIR,
        Ok((FileType::RegularFile, 0)) => AtFlags::empty(),
        _ => return,
    };
    let _not_empty = rustix::fs::unlinkat(&parent, path.name(), flags);
}
