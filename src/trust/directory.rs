//! Files in a directory that others may write to as well: read only if they
//! are plain files of ours, and replaced as a whole. No link is followed.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use crate::config::ConfigError;
use crate::sys::open;

/// A directory, held by a descriptor: what takes its name later is not meant.
#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

/// What a file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) bytes: Vec<u8>,
    /// The permission bits.
    pub(crate) mode: u32,
}

/// Why a file was not replaced.
#[derive(Debug)]
pub(crate) enum ReplaceError {
    /// It is not what it was expected to be.
    Changed,
    Io(io::Error),
}

impl Directory {
    /// `path` must hold no link; one put there since it was resolved is refused.
    pub(crate) fn open(path: &Path) -> io::Result<Directory> {
        let fd = open::absolute(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(Directory {
            fd,
            path: path.to_owned(),
        })
    }

    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// What the file holds, or `None` where there is none.
    pub(crate) fn read(&self, name: &str, limit: u64) -> Result<Option<Contents>, ConfigError> {
        let path = self.path_of(name);
        let failed = |error: Errno| ConfigError::Read(path.clone(), error.into());
        // Looked at before it is opened: opening a device can do something.
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => check_kind(&path, &stat)?,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(failed(error)),
        }
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        // Another file may have taken the name meanwhile.
        check_kind(&path, &rustix::fs::fstat(&fd).map_err(failed)?)?;
        read_file(File::from(fd), &path, limit).map(Some)
    }

    /// Puts a new file in the place of an old one. `is_expected` is asked last.
    pub(crate) fn replace(
        &self,
        name: &str,
        contents: &Contents,
        is_expected: impl FnOnce(Option<&Contents>) -> bool,
        limit: u64,
    ) -> Result<(), ReplaceError> {
        self.put_if(name, contents, || match self.read(name, limit) {
            Ok(found) if is_expected(found.as_ref()) => Ok(found.is_none()),
            Ok(_) | Err(_) => Err(ReplaceError::Changed),
        })
    }

    /// Puts a new file in the place of whatever is there.
    pub(crate) fn put(&self, name: &str, contents: &Contents) -> Result<(), ReplaceError> {
        self.put_if(name, contents, || Ok(false))
    }

    /// `check` says whether the name must be free.
    fn put_if(
        &self,
        name: &str,
        contents: &Contents,
        check: impl FnOnce() -> Result<bool, ReplaceError>,
    ) -> Result<(), ReplaceError> {
        let temporary = self.create(name, contents).map_err(ReplaceError::Io)?;
        let put = check().and_then(|must_be_new| self.rename(&temporary, name, must_be_new));
        if put.is_err() {
            // What went wrong is told already.
            let _gone = rustix::fs::unlinkat(&self.fd, &temporary, AtFlags::empty());
        }
        put
    }

    fn rename(&self, from: &str, to: &str, must_be_new: bool) -> Result<(), ReplaceError> {
        let flags = if must_be_new {
            RenameFlags::NOREPLACE
        } else {
            RenameFlags::empty()
        };
        let renamed = match rustix::fs::renameat_with(&self.fd, from, &self.fd, to, flags) {
            // A file system that knows no flags (renameat2(2)).
            Err(Errno::INVAL) if must_be_new => rustix::fs::renameat(&self.fd, from, &self.fd, to),
            other => other,
        };
        match renamed {
            Ok(()) => rustix::fs::fsync(&self.fd).map_err(|error| ReplaceError::Io(error.into())),
            Err(Errno::EXIST | Errno::ISDIR | Errno::NOTEMPTY) => Err(ReplaceError::Changed),
            Err(error) => Err(ReplaceError::Io(error.into())),
        }
    }

    /// A new file beside `name`, written and on the disk. Its name.
    fn create(&self, name: &str, contents: &Contents) -> io::Result<String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // A name that somebody has taken is left to them.
        for _ in 0..100 {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let temporary = format!("{name}.{}-{number}", std::process::id());
            let fd = match rustix::fs::openat(&self.fd, &temporary, flags, Mode::RUSR | Mode::WUSR)
            {
                Err(Errno::EXIST) => continue,
                other => other?,
            };
            let written = write_file(File::from(fd), contents);
            if written.is_err() {
                let _gone = rustix::fs::unlinkat(&self.fd, &temporary, AtFlags::empty());
            }
            return written.map(|()| temporary);
        }
        Err(Errno::EXIST.into())
    }

    /// Whether there was something to remove.
    pub(super) fn remove(&self, name: &str) -> io::Result<bool> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) => {
                rustix::fs::fsync(&self.fd)?;
                Ok(true)
            }
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

fn check_kind(path: &Path, stat: &Stat) -> Result<(), ConfigError> {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => None,
        FileType::Symlink => Some("a symbolic link"),
        FileType::Directory => Some("a directory"),
        FileType::Fifo => Some("a FIFO"),
        FileType::Socket => Some("a socket"),
        _ => Some("a device"),
    };
    let reason = match kind {
        Some(kind) => format!("it is {kind}, not a regular file"),
        None if stat.st_uid != rustix::process::geteuid().as_raw() => {
            format!("it belongs to uid {}", stat.st_uid)
        }
        // Its content could be changed under another name.
        None if stat.st_nlink != 1 => {
            format!("it has {} names (hard links), not one", stat.st_nlink)
        }
        None => return Ok(()),
    };
    Err(ConfigError::NotPlain {
        path: path.to_owned(),
        reason,
    })
}

fn read_file(file: File, path: &Path, limit: u64) -> Result<Contents, ConfigError> {
    let failed = |error| ConfigError::Read(path.to_owned(), error);
    let mode = file.metadata().map_err(failed)?.mode() & 0o777;
    let mut bytes = Vec::new();
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > limit {
        return Err(ConfigError::TooLarge {
            path: path.to_owned(),
            limit,
        });
    }
    Ok(Contents { bytes, mode })
}

fn write_file(mut file: File, contents: &Contents) -> io::Result<()> {
    file.write_all(&contents.bytes)?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(contents.mode & 0o777))?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const LIMIT: u64 = 100;

    fn directory() -> (tempfile::TempDir, Directory) {
        let temp = tempfile::tempdir().unwrap();
        let directory = Directory::open(&temp.path().canonicalize().unwrap()).unwrap();
        (temp, directory)
    }

    fn contents(text: &str) -> Contents {
        Contents {
            bytes: text.into(),
            mode: 0o640,
        }
    }

    fn refusal(directory: &Directory) -> String {
        directory.read("f", LIMIT).unwrap_err().to_string()
    }

    #[test]
    fn plain_files_are_read_and_missing_ones_are_none() {
        let (temp, directory) = directory();
        assert_eq!(directory.read("f", LIMIT).unwrap(), None);
        std::fs::write(temp.path().join("f"), "x".repeat(100)).unwrap();
        let read = directory.read("f", LIMIT).unwrap().unwrap();
        assert_eq!(read.bytes.len(), 100);
        std::fs::write(temp.path().join("f"), "x".repeat(101)).unwrap();
        assert!(refusal(&directory).contains("larger than 100 bytes"));
    }

    #[test]
    fn whatever_is_no_plain_file_is_refused_and_blocks_nobody() {
        let (temp, directory) = directory();
        let path = temp.path().join("f");
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert!(refusal(&directory).contains("a symbolic link"));
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("gone", &path).unwrap();
        assert!(refusal(&directory).contains("a symbolic link"));
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        assert!(refusal(&directory).contains("a FIFO"));
        std::fs::remove_file(&path).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(refusal(&directory).contains("a socket"));
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(refusal(&directory).contains("a directory"));
        std::fs::remove_dir(&path).unwrap();
        std::fs::write(&path, "x").unwrap();
        std::fs::hard_link(&path, temp.path().join("g")).unwrap();
        assert!(refusal(&directory).contains("2 names"));
    }

    #[test]
    fn directory_behind_a_link_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        std::fs::create_dir(base.join("real")).unwrap();
        std::os::unix::fs::symlink("real", base.join("link")).unwrap();
        assert!(Directory::open(&base.join("real")).is_ok());
        assert!(Directory::open(&base.join("link")).is_err());
    }

    #[test]
    fn replaced_file_is_whole_and_nothing_else_is_left() {
        let (temp, directory) = directory();
        let path = temp.path().join("f");
        directory
            .replace("f", &contents("a"), |old| old.is_none(), LIMIT)
            .unwrap();
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        directory
            .replace(
                "f",
                &contents("b"),
                |old| old == Some(&contents("a")),
                LIMIT,
            )
            .unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "b");
        let replaced = directory.replace("f", &contents("c"), |_| false, LIMIT);
        assert!(matches!(replaced, Err(ReplaceError::Changed)));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "b");
        assert_eq!(temp.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn link_that_appears_meanwhile_is_neither_followed_nor_replaced() {
        let (temp, directory) = directory();
        let victim = temp.path().join("victim");
        std::fs::write(&victim, "v").unwrap();
        let replaced = directory.replace(
            "f",
            &contents("a"),
            |old| {
                std::os::unix::fs::symlink("victim", temp.path().join("f")).unwrap();
                old.is_none()
            },
            LIMIT,
        );
        assert!(matches!(replaced, Err(ReplaceError::Changed)));
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "v");
        let link = temp.path().join("f").symlink_metadata().unwrap();
        assert!(link.is_symlink());
        assert_eq!(temp.path().read_dir().unwrap().count(), 2);
    }
}
