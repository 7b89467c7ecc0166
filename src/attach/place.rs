//! A path inside -> the place that it means, found without following any
//! link, or made where that leaves nothing behind on the host.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::attach::{Obstacle, not_live};
use crate::sys::mountinfo::Entry;
use crate::sys::open;

/// From linux/magic.h.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// An absolute path in its simplest form, below the root. What stands there
/// may be anything: that is looked at when it is opened.
#[derive(Debug, Clone, Copy)]
pub(super) struct PathInside<'a> {
    whole: &'a str,
    parent: &'a str,
    name: &'a str,
}

impl<'a> PathInside<'a> {
    pub(super) fn parse(whole: &'a str) -> Result<PathInside<'a>, Obstacle> {
        let simple = |name: &str| !matches!(name, "" | "." | "..") && !name.contains('\0');
        match whole.rsplit_once('/') {
            Some((parent, name)) if whole.split('/').skip(1).all(simple) => {
                let absolute = parent.is_empty() || parent.starts_with('/');
                let parsed = PathInside {
                    whole,
                    parent: parent.trim_start_matches('/'),
                    name,
                };
                absolute.then_some(parsed)
            }
            _ => None,
        }
        .map_or_else(|| not_live(format!("{whole:?} is not a plain path")), Ok)
    }

    pub(super) fn as_str(self) -> &'a str {
        self.whole
    }

    pub(super) fn name(self) -> &'a str {
        self.name
    }

    pub(super) fn open(self, root: &OwnedFd) -> rustix::io::Result<OwnedFd> {
        walk(root, self.whole.trim_start_matches('/'))
    }

    pub(super) fn open_parent(self, root: &OwnedFd) -> rustix::io::Result<OwnedFd> {
        walk(
            root,
            if self.parent.is_empty() {
                "."
            } else {
                self.parent
            },
        )
    }

    /// Whether the mount would be covered by one at this path.
    pub(super) fn is_above(self, mount: &Entry) -> bool {
        let path = Path::new(self.whole);
        mount.mount_point != path && mount.mount_point.starts_with(path)
    }

    /// Nothing may be mounted below: it would be hidden, or be in the way.
    pub(super) fn check_nothing_below(self, mounts: &[Entry]) -> Result<(), Obstacle> {
        match mounts.iter().find(|mount| self.is_above(mount)) {
            Some(mount) => not_live(format!("{:?} is mounted below it", mount.mount_point)),
            None => Ok(()),
        }
    }

    /// The failure to open this path.
    pub(super) fn not_found(self, error: Errno) -> Obstacle {
        let path = self.whole;
        match error {
            Errno::LOOP => Obstacle::NotLive(format!("a symbolic link leads to {path:?} inside")),
            error => Obstacle::failed(format_args!("{path:?} cannot be opened inside"), error),
        }
    }
}

/// Opens what is seen at a path, mounts included, links excluded.
fn walk(from: &OwnedFd, path: &str) -> rustix::io::Result<OwnedFd> {
    open::beneath(from, path, OFlags::PATH)
}

/// The same for a path of the host.
pub(super) fn open_on_host(path: &str) -> rustix::io::Result<OwnedFd> {
    open::absolute(Path::new(path), OFlags::PATH)
}

/// The mount that a descriptor leads to, by its number in the mount tables.
pub(super) fn mount_id(file: &OwnedFd) -> Result<u64, Obstacle> {
    mount_id_at(file, "", AtFlags::EMPTY_PATH)
        .map_err(|error| Obstacle::failed("a mount cannot be told apart", error))
}

pub(super) fn mount_id_at(dir: &OwnedFd, name: &str, flags: AtFlags) -> rustix::io::Result<u64> {
    let flags = flags | AtFlags::NO_AUTOMOUNT;
    let found = rustix::fs::statx(dir, name, flags, StatxFlags::MNT_ID)?;
    if found.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        return Err(Errno::NOSYS);
    }
    Ok(found.stx_mnt_id)
}

/// Where something may be made: the file systems that the container has for
/// itself alone.
pub(super) struct Scratch {
    ids: BTreeSet<u64>,
}

impl Scratch {
    /// A tmpfs whose file system is nowhere in the table of the host; one that
    /// is there was bound from the host.
    pub(super) fn new(inside: &[Entry], host: &[Entry]) -> Scratch {
        let of_host: BTreeSet<&str> = host.iter().map(|mount| mount.device.as_str()).collect();
        let scratch = inside.iter().filter(|mount| {
            mount.fs_type == "tmpfs"
                && mount.root == Path::new("/")
                && !mount.is_read_only()
                && !of_host.contains(mount.device.as_str())
        });
        Scratch {
            ids: scratch.map(|mount| mount.id).collect(),
        }
    }

    pub(super) fn holds(&self, dir: &OwnedFd) -> bool {
        mount_id(dir).is_ok_and(|id| self.ids.contains(&id))
            && rustix::fs::fstatfs(dir).is_ok_and(|volume| volume.f_type == TMPFS_MAGIC)
    }
}

/// A mount point, and what had to be made for it.
pub(super) struct Place {
    pub(super) file: OwnedFd,
    parent: OwnedFd,
    made: Vec<(OwnedFd, String, AtFlags)>,
}

impl Place {
    /// Finds the mount point at `path`. Missing directories, and a missing
    /// file, are made in scratch places only.
    pub(super) fn find_or_make(
        root: &OwnedFd,
        path: PathInside<'_>,
        is_file: bool,
        scratch: &Scratch,
    ) -> Result<Place, Obstacle> {
        let open_root = || walk(root, ".").map_err(|error| path.not_found(error));
        let mut place = Place {
            file: open_root()?,
            parent: open_root()?,
            made: Vec::new(),
        };
        let mut names = path.as_str().split('/').skip(1).peekable();
        while let Some(name) = names.next() {
            let is_file = is_file && names.peek().is_none();
            if let Err(obstacle) = place.step(path, name, is_file, scratch) {
                place.undo();
                return Err(obstacle);
            }
        }
        Ok(place)
    }

    fn step(
        &mut self,
        path: PathInside<'_>,
        name: &str,
        is_file: bool,
        scratch: &Scratch,
    ) -> Result<(), Obstacle> {
        let found = match walk(&self.file, name) {
            Err(Errno::NOENT) if scratch.holds(&self.file) => {
                self.make(name, is_file)
                    .map_err(|error| Obstacle::failed(format_args!("cannot make {path}"), error))?;
                walk(&self.file, name)
            }
            Err(Errno::NOENT) => {
                return not_live(format!(
                    "{path} does not exist inside, and cannot be made there"
                ));
            }
            found => found,
        };
        let found = found.map_err(|error| path.not_found(error))?;
        self.parent = std::mem::replace(&mut self.file, found);
        let kind = rustix::fs::fstat(&self.file).map(|stat| FileType::from_raw_mode(stat.st_mode));
        match kind {
            Ok(FileType::RegularFile) if is_file => Ok(()),
            Ok(FileType::Directory) if !is_file => Ok(()),
            Ok(_) => not_live(format!("{path} is something else inside")),
            Err(error) => Err(path.not_found(error)),
        }
    }

    /// It belongs to the user of the sandbox, whose host uid is ours.
    fn make(&mut self, name: &str, is_file: bool) -> rustix::io::Result<()> {
        let parent = rustix::io::fcntl_dupfd_cloexec(&self.file, 0)?;
        let flags = if is_file {
            let mode = Mode::from_raw_mode(0o644);
            rustix::fs::mknodat(&parent, name, FileType::RegularFile, mode, 0)?;
            AtFlags::empty()
        } else {
            rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755))?;
            AtFlags::REMOVEDIR
        };
        self.made.push((parent, name.to_owned(), flags));
        Ok(())
    }

    /// The directory that holds the mount point.
    pub(super) fn parent(&self) -> &OwnedFd {
        &self.parent
    }

    pub(super) fn is_made(&self) -> bool {
        !self.made.is_empty()
    }

    /// Removes what was made; what is in use by now stays in the scratch place.
    pub(super) fn undo(&mut self) {
        while let Some((parent, name, flags)) = self.made.pop() {
            let _in_use = rustix::fs::unlinkat(parent, name, flags);
        }
    }
}

impl std::fmt::Display for PathInside<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.whole)
    }
}
