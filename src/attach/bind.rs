//! One bind mount into the running container: a restricted copy of the source,
//! put on a mount point, and read back as a process inside would see it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::attach::detach::{unmount_at, unmount_in};
use crate::attach::namespaces::{self, Container};
use crate::attach::place::{self, PathInside, Place, Scratch};
use crate::attach::{Attach, Obstacle, not_live};
use crate::sys::mount;
use crate::sys::mountinfo::Entry;

/// Whether the mount point had to be made.
pub(super) fn attach(container: &Container, wanted: &Attach) -> Result<bool, Obstacle> {
    let path = PathInside::parse(&wanted.path)?;
    container.step_out()?;
    let host = namespaces::mounts_of_host()?;
    let tree = copy_source(wanted, &host)?;
    let id = place::mount_id(&tree)?;
    container.step_in()?;
    let inside = container.mounts()?;
    path.check_nothing_below(&inside)?;
    let scratch = Scratch::new(&inside, &host);
    let mut place = Place::find_or_make(container.root(), path, wanted.is_file, &scratch)?;
    let outcome = match mount::put(tree.as_fd(), &place.file) {
        Ok(()) => {
            // Open descriptors would keep the mount busy.
            drop(tree);
            check(container, path, wanted, id)
                .inspect_err(|_| take_away(container, &place, path, id))
        }
        Err(error) => Err(Obstacle::failed(
            format_args!("cannot mount on {path}"),
            error,
        )),
    };
    if outcome.is_err() {
        place.undo();
    }
    outcome.map(|()| place.is_made())
}

/// A copy of what was granted, mounted nowhere yet.
fn copy_source(wanted: &Attach, host: &[Entry]) -> Result<OwnedFd, Obstacle> {
    let source = &wanted.source;
    let file = place::open_on_host(source).map_err(|error| match error {
        Errno::NOENT | Errno::LOOP | Errno::NOTDIR => changed(source),
        error => Obstacle::failed(format_args!("cannot open {source:?}"), error),
    })?;
    check_identity(&file, wanted)?;
    let below = |mount: &&Entry| {
        mount.mount_point != Path::new(source) && mount.mount_point.starts_with(source)
    };
    if let Some(mount) = host.iter().find(below) {
        return not_live(format!(
            "{:?} is mounted below it on the host",
            mount.mount_point
        ));
    }
    let tree = mount::copy(file.as_fd()).map_err(|error| {
        Obstacle::failed(format_args!("cannot copy the mount of {source:?}"), error)
    })?;
    mount::restrict(tree.as_fd(), wanted.read_only)
        .map_err(|error| Obstacle::failed("mount attributes cannot be set", error))?;
    Ok(tree)
}

fn changed(source: &str) -> Obstacle {
    Obstacle::Changed(format!("{source:?} is not what it was when it was granted"))
}

fn check_identity(file: &OwnedFd, wanted: &Attach) -> Result<(), Obstacle> {
    let stat = rustix::fs::fstat(file).map_err(|error| {
        Obstacle::failed(format_args!("cannot look at {:?}", wanted.source), error)
    })?;
    let kind = if wanted.is_file {
        FileType::RegularFile
    } else {
        FileType::Directory
    };
    let same = (stat.st_dev, stat.st_ino) == (wanted.device, wanted.inode);
    if same && FileType::from_raw_mode(stat.st_mode) == kind {
        Ok(())
    } else {
        Err(changed(&wanted.source))
    }
}

/// Reads back what is seen at `path`, and how it is mounted.
fn check(
    container: &Container,
    path: PathInside<'_>,
    wanted: &Attach,
    id: u64,
) -> Result<(), Obstacle> {
    let failed = |error| Obstacle::failed(format_args!("cannot look at {path} inside"), error);
    let seen = path
        .open(container.root())
        .map_err(|error| path.not_found(error))?;
    let about = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    let found = rustix::fs::statx(&seen, "", AtFlags::EMPTY_PATH, about).map_err(failed)?;
    let is_root = found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    if found.stx_mnt_id != id || !is_root {
        return not_live(format!("the mount is not what is seen at {path} inside"));
    }
    check_identity(&seen, wanted)?;
    let mounts = container.mounts()?;
    path.check_nothing_below(&mounts)?;
    match mounts.iter().find(|mount| mount.id == id) {
        Some(mount) if mount.mount_point == Path::new(path.as_str()) => check_flags(mount, wanted),
        _ => not_live(format!("the mount table does not show it at {path}")),
    }
}

fn check_flags(mount: &Entry, wanted: &Attach) -> Result<(), Obstacle> {
    if !mount.has("nosuid") || !mount.has("nodev") {
        return not_live("the mount is not nosuid and nodev");
    }
    if !mount.propagation.is_empty() {
        return not_live(format!("the mount is not private: {}", mount.propagation));
    }
    match (mount.is_read_only(), wanted.read_only) {
        (true, false) => not_live("it is read-only on the host"),
        (false, true) => not_live("the mount is not read-only"),
        _ => Ok(()),
    }
}

/// How often the agent may rename what lies above, just as it is looked up.
const TRIES: usize = 32;

/// After this the answer is never "done": should it fail, the recreate takes
/// the mount away.
fn take_away(container: &Container, place: &Place, path: PathInside<'_>, id: u64) {
    // Something inside may have entered it by now, and is not waited for.
    let lazily = UnmountFlags::DETACH;
    if unmount_in(place.parent(), path, id, lazily).is_ok() {
        return;
    }
    // The mount point had another name by then.
    for _ in 0..TRIES {
        let mounts = container.mounts().unwrap_or_default();
        let found = mounts.iter().find(|mount| mount.id == id);
        let Some(shown) = found.and_then(|mount| mount.mount_point.to_str()) else {
            return;
        };
        let path = PathInside::parse(shown);
        if path
            .and_then(|path| unmount_at(container.root(), path, id, lazily))
            .is_ok()
        {
            return;
        }
    }
    log::warn!("{path} cannot be taken away again");
}
