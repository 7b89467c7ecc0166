//! A directory that an agent can write: looked at, and written into, by one
//! descriptor.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{MAX_POINTER, check_ours, pointer, read_file};
use crate::sys::open;

/// Ours, and not to be written by everybody. What takes its name later is not
/// meant.
#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

impl Directory {
    pub(crate) fn open(path: &Path) -> Result<Directory, String> {
        let opened = open::absolute(path, OFlags::RDONLY | OFlags::DIRECTORY);
        Directory::checked(opened, path.to_owned())
    }

    fn checked(opened: rustix::io::Result<OwnedFd>, path: PathBuf) -> Result<Directory, String> {
        let fd = opened.map_err(|error| format!("{path:?}: {error}"))?;
        check_ours(&fd, &path, FileType::Directory)?;
        Ok(Directory { fd, path })
    }

    /// By which it was found.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn dir(&self, name: impl AsRef<OsStr>) -> Result<Directory, String> {
        let name = name.as_ref();
        let opened = open::beneath(&self.fd, name, OFlags::RDONLY | OFlags::DIRECTORY);
        Directory::checked(opened, self.path.join(name))
    }

    /// A regular file of ours, to be read.
    pub(crate) fn file(&self, name: &str) -> Result<File, String> {
        let path = self.path.join(name);
        let fd = open::beneath(&self.fd, name, OFlags::RDONLY)
            .map_err(|error| format!("{path:?}: {error}"))?;
        check_ours(&fd, &path, FileType::RegularFile)?;
        Ok(fd.into())
    }

    pub(crate) fn read(&self, name: &str, most: u64) -> Result<Vec<u8>, String> {
        read_file(self.file(name)?, &self.path.join(name), most)
    }

    /// A file in it that holds one path.
    pub(crate) fn read_pointer(&self, name: &str) -> Result<PathBuf, String> {
        let bytes = self.read(name, MAX_POINTER)?;
        pointer(&bytes, &self.path.join(name), "")
    }

    /// Whether there is anything by this name.
    pub(crate) fn has(&self, name: &str) -> Result<bool, String> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(format!("{:?}: {error}", self.path.join(name))),
        }
    }

    /// What is in it, in no order.
    pub(crate) fn names(&self) -> io::Result<impl Iterator<Item = OsString>> {
        let entries = Dir::read_from(&self.fd)?;
        let names = entries
            .filter_map(Result::ok)
            .map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
        Ok(names.filter(|name| name != "." && name != ".."))
    }

    /// Where it is there already, `AlreadyExists`.
    pub(crate) fn create_dir(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        // Otherwise as umask has it.
        let mode = Mode::from_raw_mode(0o775);
        Ok(rustix::fs::mkdirat(&self.fd, name.as_ref(), mode)?)
    }

    /// A new file. A link in its place is neither followed nor replaced.
    pub(crate) fn create(&self, name: &str) -> io::Result<File> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o664);
        Ok(rustix::fs::openat(&self.fd, name, flags, mode)?.into())
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::fs::symlink;

    fn place() -> (tempfile::TempDir, PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        std::fs::create_dir_all(base.join("repo/worktrees/w1")).unwrap();
        std::fs::write(base.join("victim"), "kept").unwrap();
        (temp, base)
    }

    #[test]
    fn what_takes_the_name_of_a_directory_is_neither_read_nor_written() {
        let (_temp, base) = place();
        let worktrees = base.join("repo/worktrees");
        std::fs::write(worktrees.join("w1/HEAD"), "first").unwrap();
        let repo = Directory::open(&base.join("repo")).unwrap();
        let admin = repo.dir("worktrees").unwrap().dir("w1").unwrap();
        std::fs::rename(&worktrees, base.join("aside")).unwrap();
        std::fs::create_dir_all(base.join("other/w1")).unwrap();
        std::fs::write(base.join("other/w1/HEAD"), "second").unwrap();
        symlink(base.join("other"), &worktrees).unwrap();
        assert_eq!(admin.read("HEAD", 10).unwrap(), b"first");
        admin.create("gitdir").unwrap().write_all(b"x").unwrap();
        admin.create_dir("d").unwrap();
        assert!(base.join("aside/w1/gitdir").exists());
        let names: Vec<OsString> = Directory::open(&base.join("other/w1"))
            .unwrap()
            .names()
            .unwrap()
            .collect();
        assert_eq!(names, ["HEAD"]);
        assert!(repo.dir("worktrees").is_err());
        assert!(Directory::open(&worktrees.join("w1")).is_err());
    }

    #[test]
    fn a_link_in_the_place_of_a_new_file_is_not_followed() {
        let (_temp, base) = place();
        let admin = Directory::open(&base.join("repo/worktrees/w1")).unwrap();
        symlink(base.join("victim"), admin.path().join("gitdir")).unwrap();
        symlink(base.join("none"), admin.path().join("HEAD")).unwrap();
        symlink(base.join("none"), admin.path().join("logs")).unwrap();
        assert!(admin.create("gitdir").is_err());
        assert!(admin.create("HEAD").is_err());
        assert!(admin.create_dir("logs").is_err());
        assert_eq!(std::fs::read(base.join("victim")).unwrap(), b"kept");
        assert!(!base.join("none").exists());
        admin.create("commondir").unwrap();
        assert!(admin.create("commondir").is_err());
    }

    #[test]
    fn only_regular_files_are_read_and_nothing_is_waited_for() {
        let (_temp, base) = place();
        let admin = Directory::open(&base.join("repo/worktrees/w1")).unwrap();
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(&admin, "fifo", FileType::Fifo, mode, 0).unwrap();
        symlink("/dev/zero", admin.path().join("zero")).unwrap();
        std::fs::create_dir(admin.path().join("dir")).unwrap();
        for name in ["fifo", "zero", "dir", "none", "../../worktrees/w1/file"] {
            assert!(admin.file(name).is_err(), "{name}");
        }
        std::fs::write(admin.path().join("file"), "text").unwrap();
        let mut text = String::new();
        let mut file = admin.file("file").unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        assert!(admin.read("file", 3).unwrap_err().contains("longer than 3"));
    }
}
