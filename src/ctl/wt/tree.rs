//! A directory with everything in it, to be removed later. It is held by
//! descriptors since it was looked at: what takes its name, or the name of a
//! directory above, is not meant, and no link is followed.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, OFlags};
use rustix::io::Errno;

use crate::sys::open;
use crate::workspace::FileId;

/// Each level takes two descriptors, three in a copy, of which 1024 are usual.
pub(super) const MAX_DEPTH: usize = 256;
pub(super) const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

#[derive(Debug)]
pub(super) struct Tree {
    above: OwnedFd,
    name: OsString,
    dir: OwnedFd,
}

impl Tree {
    /// By its real path.
    pub(super) fn at(path: &Path) -> io::Result<Tree> {
        match (path.parent(), path.file_name()) {
            (Some(above), Some(name)) => {
                let above = open::absolute(above, OFlags::PATH | OFlags::DIRECTORY)?;
                Tree::beneath(above, name)
            }
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn beneath(above: OwnedFd, name: &OsStr) -> io::Result<Tree> {
        Ok(Tree {
            dir: open::beneath(&above, name, DIRECTORY)?,
            above,
            name: name.to_owned(),
        })
    }

    /// `dir` is what is called `name` in `above`.
    pub(super) fn of(above: impl AsFd, name: &OsStr, dir: impl AsFd) -> io::Result<Tree> {
        Ok(Tree {
            above: above.as_fd().try_clone_to_owned()?,
            name: name.to_owned(),
            dir: dir.as_fd().try_clone_to_owned()?,
        })
    }

    /// Whether it still has its name.
    pub(super) fn is_in_place(&self) -> io::Result<bool> {
        let held = rustix::fs::fstat(&self.dir)?;
        match rustix::fs::statat(&self.above, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(FileId::of(&found) == FileId::of(&held)),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// When it was last moved, or something in it was. Nobody can set it back.
    pub(super) fn changed_at(&self) -> io::Result<(i64, i64)> {
        let stat = rustix::fs::fstat(&self.dir)?;
        let nanoseconds = i64::try_from(stat.st_ctime_nsec).unwrap_or_default();
        Ok((stat.st_ctime, nanoseconds))
    }

    /// What is held, whatever its name is by now.
    pub(super) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    pub(super) fn remove(&self) -> io::Result<()> {
        empty(&self.dir, MAX_DEPTH)?;
        // If another directory has the name by now, it goes only if it is empty.
        remove_dir(&self.above, &self.name)
    }
}

fn empty(dir: &OwnedFd, depth: usize) -> io::Result<()> {
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if [c".", c".."].contains(&name) {
            continue;
        }
        match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) => {
                let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
                let below = open::beneath_on_device(dir, name, DIRECTORY)?;
                empty(&below, depth)?;
                remove_dir(dir, name)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

pub(super) fn too_deep() -> io::Error {
    io::Error::other(format!("directories lie more than {MAX_DEPTH} deep"))
}

fn remove_dir(above: &OwnedFd, name: impl rustix::path::Arg) -> io::Result<()> {
    match rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    /// `mine/w1` and `other/w1`, each with something in it.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        for dir in ["mine/w1/a/b", "other/w1/a/b"] {
            std::fs::create_dir_all(base.join(dir)).unwrap();
            std::fs::write(base.join(dir).join("file"), "x").unwrap();
        }
        (temp, base)
    }

    #[test]
    fn everything_in_it_goes_and_nothing_that_links_lead_to() {
        let (_temp, base) = place();
        symlink(base.join("other"), base.join("mine/w1/dir")).unwrap();
        symlink(base.join("other/w1/a/b/file"), base.join("mine/w1/a/file")).unwrap();
        let tree = Tree::at(&base.join("mine/w1")).unwrap();
        assert!(tree.is_in_place().unwrap());
        tree.remove().unwrap();
        assert!(!base.join("mine/w1").exists() && base.join("mine").exists());
        assert!(base.join("other/w1/a/b/file").exists());
        assert!(!tree.is_in_place().unwrap());
        tree.remove().unwrap();
    }

    #[test]
    fn what_takes_the_name_of_the_directory_above_is_not_touched() {
        let (_temp, base) = place();
        let tree = Tree::at(&base.join("mine/w1")).unwrap();
        std::fs::rename(base.join("mine"), base.join("aside")).unwrap();
        symlink("other", base.join("mine")).unwrap();
        tree.remove().unwrap();
        assert!(base.join("other/w1/a/b/file").exists());
        assert!(!base.join("aside/w1").exists());
        assert!(Tree::at(&base.join("mine/w1")).is_err());
    }

    #[test]
    fn what_takes_its_own_name_is_not_touched() {
        let (_temp, base) = place();
        for is_link in [true, false] {
            let own = base.join("mine/w1");
            let tree = Tree::at(&own).unwrap();
            std::fs::rename(&own, base.join("aside")).unwrap();
            match is_link {
                true => symlink(base.join("other/w1"), &own).unwrap(),
                false => std::fs::rename(base.join("other/w1"), &own).unwrap(),
            }
            assert!(!tree.is_in_place().unwrap());
            assert!(tree.remove().is_err());
            assert!(own.join("a/b/file").exists());
            // What was meant is empty, wherever it is.
            assert_eq!(base.join("aside").read_dir().unwrap().count(), 0);
            if is_link {
                std::fs::remove_file(&own).unwrap();
                std::fs::create_dir(&own).unwrap();
                std::fs::remove_dir(base.join("aside")).unwrap();
            }
        }
    }

    #[test]
    fn a_move_there_and_back_is_noticed() {
        let (_temp, base) = place();
        let own = base.join("mine/w1");
        let tree = Tree::at(&own).unwrap();
        let before = tree.changed_at().unwrap();
        std::fs::write(own.join("a/b/file"), "deeper").unwrap();
        assert_eq!(tree.changed_at().unwrap(), before);
        // The clock of a file system stands still for some milliseconds.
        let aside = base.join("mine/aside");
        until(|| {
            std::fs::rename(&own, &aside).unwrap();
            std::fs::rename(&aside, &own).unwrap();
            tree.changed_at().unwrap() != before
        });
        assert!(tree.is_in_place().unwrap());
    }

    fn until(mut is_so: impl FnMut() -> bool) {
        let begin = std::time::Instant::now();
        while !is_so() {
            assert!(begin.elapsed() < std::time::Duration::from_secs(60));
        }
    }

    #[test]
    fn what_lies_too_deep_is_refused_and_overflows_nothing() {
        let (_temp, base) = place();
        let own = base.join("mine/w1");
        let deep: PathBuf = std::iter::repeat_n("d", MAX_DEPTH).collect();
        std::fs::create_dir_all(own.join(&deep)).unwrap();
        Tree::at(&own).unwrap().remove().unwrap();
        std::fs::create_dir_all(own.join(&deep).join("d")).unwrap();
        let error = Tree::at(&own).unwrap().remove().unwrap_err();
        assert!(error.to_string().contains("256 deep"), "{error}");
    }
}
