//! A directory of ours, with everything in it -> a new one where an agent may
//! be at work: what is written goes into directories that are held, under
//! names that are free, and no link is followed.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::path::Arg;

use super::tree::{DIRECTORY, MAX_DEPTH, Tree, too_deep};
use crate::sys::open;

const NEW_FILE: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// All of it, or nothing.
pub(super) fn tree(from: impl AsFd, above: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let mode = rustix::fs::fstat(&from)?.st_mode;
    let to = new_dir(&above, name, mode)?;
    if let Err(error) = fill(&from, &to, MAX_DEPTH) {
        drop(Tree::of(&above, name, &to).and_then(|tree| tree.remove()));
        return Err(error);
    }
    Ok(to)
}

fn fill(from: impl AsFd, to: &OwnedFd, depth: usize) -> io::Result<()> {
    for entry in Dir::read_from(&from)? {
        let entry = entry?;
        let name = entry.file_name();
        if [c".", c".."].contains(&name) {
            continue;
        }
        let stat = rustix::fs::statat(&from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
                let below = open::beneath(&from, name, DIRECTORY)?;
                fill(below, &new_dir(to, name, stat.st_mode)?, depth)?;
            }
            FileType::RegularFile => file(&from, to, name, stat.st_mode)?,
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&from, name, Vec::new())?;
                rustix::fs::symlinkat(target, to, name)?;
            }
            // git writes nothing else.
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        }
    }
    Ok(())
}

fn file(from: impl AsFd, to: &OwnedFd, name: &CStr, mode: u32) -> io::Result<()> {
    let mut from = File::from(open::beneath(from, name, OFlags::RDONLY)?);
    let mode = Mode::from_raw_mode(mode & 0o777);
    let mut to = File::from(rustix::fs::openat(to, name, NEW_FILE, mode)?);
    io::copy(&mut from, &mut to)?;
    Ok(())
}

/// It is opened after it was made. An agent can move another directory to its
/// name between the two, of those that it can write: one with something in it
/// is not taken for the new one.
fn new_dir(above: impl AsFd, name: impl Arg + Copy, mode: u32) -> io::Result<OwnedFd> {
    rustix::fs::mkdirat(&above, name, Mode::from_raw_mode(mode & 0o777))?;
    let made = open::beneath_on_device(&above, name, DIRECTORY)?;
    for entry in Dir::read_from(&made)? {
        if ![c".", c".."].contains(&entry?.file_name()) {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::{Path, PathBuf};

    /// `from` to be copied, an empty `above`, and a `victim`.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        for dir in ["from/a/b", "above", "victim"] {
            std::fs::create_dir_all(base.join(dir)).unwrap();
        }
        std::fs::write(base.join("from/a/b/file"), "text").unwrap();
        std::fs::write(base.join("victim/file"), "kept").unwrap();
        (temp, base)
    }

    fn held(path: &Path) -> OwnedFd {
        open::absolute(path, DIRECTORY).unwrap()
    }

    fn copy(base: &Path) -> io::Result<OwnedFd> {
        let (from, above) = (held(&base.join("from")), held(&base.join("above")));
        tree(from, above, "w1".as_ref())
    }

    #[test]
    fn files_modes_and_links_are_copied_as_they_are() {
        let (_temp, base) = place();
        let script = base.join("from/script");
        std::fs::write(&script, "#!").unwrap();
        for (mode, path) in [(0o750, &script), (0o700, &base.join("from/a"))] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        symlink(base.join("victim"), base.join("from/link")).unwrap();
        symlink("none", base.join("from/a/dangling")).unwrap();
        copy(&base).unwrap();
        let made = base.join("above/w1");
        assert_eq!(std::fs::read(made.join("a/b/file")).unwrap(), b"text");
        let mode = |path: &str| made.join(path).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("script"), mode("a")), (0o750, 0o700));
        assert_eq!(made.join("link").read_link().unwrap(), base.join("victim"));
        let dangling = made.join("a/dangling").read_link().unwrap();
        assert_eq!(dangling, Path::new("none"));
        // A second time there is something in its place.
        let error = copy(&base).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert!(made.join("a/b/file").exists());
    }

    #[test]
    fn what_waits_in_the_place_is_neither_followed_nor_replaced() {
        let (_temp, base) = place();
        let victim = base.join("victim");
        symlink(&victim, base.join("above/w1")).unwrap();
        assert!(copy(&base).is_err());
        std::fs::remove_file(base.join("above/w1")).unwrap();
        // Planted in the new directory before its files are written.
        for (name, target) in [("a", "victim"), ("a", "none"), ("file", "victim/file")] {
            std::fs::write(base.join("from/file"), "of the agent").unwrap();
            std::fs::create_dir(base.join("above/w1")).unwrap();
            symlink(base.join(target), base.join("above/w1").join(name)).unwrap();
            let to = held(&base.join("above/w1"));
            let error = fill(held(&base.join("from")), &to, MAX_DEPTH).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{name}");
            std::fs::remove_dir_all(base.join("above/w1")).unwrap();
        }
        assert!(!base.join("none").exists());
        assert_eq!(std::fs::read(victim.join("file")).unwrap(), b"kept");
        assert_eq!(victim.read_dir().unwrap().count(), 1);
    }

    #[test]
    fn what_takes_the_name_of_the_directory_above_gets_nothing() {
        let (_temp, base) = place();
        let (from, above) = (held(&base.join("from")), held(&base.join("above")));
        std::fs::rename(base.join("above"), base.join("aside")).unwrap();
        symlink("victim", base.join("above")).unwrap();
        tree(from, above, "w1".as_ref()).unwrap();
        assert!(base.join("aside/w1/a/b/file").exists());
        assert_eq!(base.join("victim").read_dir().unwrap().count(), 1);
    }

    #[test]
    fn half_a_copy_is_removed() {
        let (_temp, base) = place();
        let fifo = base.join("from/a/fifo");
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, mode, 0).unwrap();
        assert!(copy(&base).is_err());
        std::fs::remove_file(&fifo).unwrap();
        let deep: PathBuf = std::iter::repeat_n("d", MAX_DEPTH + 1).collect();
        std::fs::create_dir_all(base.join("from").join(deep)).unwrap();
        let error = copy(&base).unwrap_err();
        assert!(error.to_string().contains("256 deep"), "{error}");
        assert_eq!(base.join("above").read_dir().unwrap().count(), 0);
    }
}
