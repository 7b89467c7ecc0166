//! Each mount and each mask that was asked for, looked at in its place.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Dir, FileType, OFlags, StatVfsMountFlags};

use super::{VerifyError, fail};
use crate::podman::argv::{COVER_SIZE, ContainerSpec};
use crate::policy::mounts::{Cover, Mount, MountKind, MountSet};
use crate::sys::open;
use crate::workspace::FileId;

/// Every mount that was asked for leads where it should.
pub(super) fn check_mounts(
    root: &OwnedFd,
    spec: &ContainerSpec,
) -> Result<Vec<(String, OwnedFd)>, VerifyError> {
    let mut scratch = Vec::new();
    for mount in spec.mounts.iter() {
        let inside = open::in_root(root, &mount.path, OFlags::PATH).or_else(|error| {
            fail(
                "mounts",
                format!("{:?} cannot be found inside: {error}", mount.path),
            )
        })?;
        match &mount.kind {
            MountKind::Bind { source, .. } => {
                check_same_file(mount, source, spec.sources.get(source), &inside)?;
                check_access(mount, source, &spec.mounts, &inside)?;
            }
            MountKind::Tmpfs { .. } => scratch.push((mount.path.clone(), inside)),
            MountKind::Mask { .. } => {}
        }
    }
    Ok(scratch)
}

/// Whoever looks at a masked path sees the cover. Read back not by the mount
/// table, as a path may lead through a link, but like a process inside.
pub(super) fn check_masks(root: &OwnedFd, spec: &ContainerSpec) -> Result<(), VerifyError> {
    for mount in spec.mounts.iter() {
        if let MountKind::Mask { cover, .. } = &mount.kind {
            check_mask(root, mount, *cover, spec)?;
        }
    }
    Ok(())
}

fn check_mask(
    root: &OwnedFd,
    mount: &Mount,
    cover: Cover,
    spec: &ContainerSpec,
) -> Result<(), VerifyError> {
    let path = &mount.path;
    let failed = |error| VerifyError {
        check: "masks",
        detail: format!("{path:?} cannot be looked at: {error}"),
    };
    let (is_cover, flags) = look_at_cover(root, path, cover).map_err(failed)?;
    if !is_cover {
        return fail("masks", format!("{path:?} is not hidden"));
    }
    if !flags.contains(READ_ONLY_FLAGS) {
        return fail(
            "masks",
            format!("{path:?} is covered, but not read-only, nosuid and nodev"),
        );
    }
    if cover == Cover::File {
        return Ok(());
    }
    let names = names_in(root, path).map_err(failed)?;
    // Mounts that were asked for below a cover have their mount points in it.
    let expected = |name: &str| {
        let entry = Path::new(path).join(name);
        spec.mounts
            .iter()
            .any(|other| Path::new(&other.path).starts_with(&entry))
    };
    match names.iter().find(|name| !expected(name)) {
        None => Ok(()),
        Some(name) => fail("masks", format!("{path:?} is not empty: it shows {name:?}")),
    }
}

const READ_ONLY_FLAGS: StatVfsMountFlags = StatVfsMountFlags::RDONLY
    .union(StatVfsMountFlags::NOSUID)
    .union(StatVfsMountFlags::NODEV);

/// Whether a cover is what is seen at `path`, and how it is mounted.
fn look_at_cover(
    root: &OwnedFd,
    path: &str,
    cover: Cover,
) -> rustix::io::Result<(bool, StatVfsMountFlags)> {
    let inside = open::in_root(root, path, OFlags::PATH)?;
    let stat = rustix::fs::fstat(&inside)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    let is_cover = match cover {
        Cover::Directory => {
            // From linux/magic.h. The size tells ours from one of the host's.
            const TMPFS_MAGIC: i64 = 0x0102_1994;
            let volume = rustix::fs::fstatvfs(&inside)?;
            kind == FileType::Directory
                && rustix::fs::fstatfs(&inside)?.f_type == TMPFS_MAGIC
                && volume.f_blocks.saturating_mul(volume.f_frsize) == COVER_SIZE
        }
        // null(4)
        Cover::File => {
            kind == FileType::CharacterDevice && stat.st_rdev == rustix::fs::makedev(1, 3)
        }
    };
    Ok((is_cover, rustix::fs::fstatvfs(&inside)?.f_flag))
}

fn names_in(root: &OwnedFd, path: &str) -> rustix::io::Result<Vec<String>> {
    let directory = open::in_root(root, path, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// Compares with what the source was when it was allowed (`recorded`), not
/// with what stands at its path by now: that may have been swapped since.
/// Sources without a record are umwelt's own files, made anew at each create.
fn check_same_file(
    mount: &Mount,
    source: &str,
    recorded: Option<&FileId>,
    inside: &OwnedFd,
) -> Result<(), VerifyError> {
    let file = |fd: &OwnedFd| std::fs::File::from(fd.try_clone()?).metadata();
    let expected = recorded.copied().map_or_else(
        || std::fs::metadata(source).map(|metadata| FileId::from_metadata(&metadata)),
        Ok,
    );
    match (file(inside), expected) {
        (Ok(inside), Ok(expected)) if FileId::from_metadata(&inside) == expected => Ok(()),
        (Ok(_), Ok(_)) => fail(
            "mounts",
            format!(
                "{:?} inside is not what {source:?} was when it was allowed",
                mount.path
            ),
        ),
        (Err(error), _) | (_, Err(error)) => fail(
            "mounts",
            format!("{:?} cannot be compared with the host: {error}", mount.path),
        ),
    }
}

/// What a process sees at the path of a read-only bind is read-only, whatever
/// link leads there. Where the workspace itself is bound once more, the two may
/// lie on one path.
fn check_access(
    mount: &Mount,
    source: &str,
    mounts: &MountSet,
    inside: &OwnedFd,
) -> Result<(), VerifyError> {
    let is_same =
        |other: &Mount| matches!(&other.kind, MountKind::Bind { source: own, .. } if own == source);
    if mounts
        .iter()
        .any(|other| other.is_writable() && is_same(other))
    {
        return Ok(());
    }
    let flags = rustix::fs::fstatvfs(inside).map(|volume| volume.f_flag);
    match flags {
        Ok(flags) if flags.contains(READ_ONLY_FLAGS) => Ok(()),
        Ok(_) => fail(
            "mount flags",
            format!(
                "{:?} is not seen read-only, nosuid and nodev inside",
                mount.path
            ),
        ),
        Err(error) => fail(
            "mount flags",
            format!("{:?} cannot be looked at: {error}", mount.path),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The root of this host, where a directory of the test stands for a bind.
    #[test]
    fn read_only_bind_that_is_seen_writable_is_found() {
        use crate::policy::mounts::{Access, Origin};
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().to_str().unwrap();
        let seen = OwnedFd::from(std::fs::File::open(path).unwrap());
        let bind = |access| Mount::bind(path, "/s", access, Origin::Base);
        let read_only = bind(Access::ReadOnly);
        let set = |mount| MountSet::merge(vec![mount]);
        let check = |mounts| check_access(&read_only, "/s", &mounts, &seen);
        assert!(check(set(read_only.clone())).is_err());
        assert!(check(set(bind(Access::ReadWrite))).is_ok());
    }
}
