//! The small files by which git finds its directories, read without following
//! a link, without waiting for a FIFO, and without running git. What is
//! checked and what is used is one descriptor.

mod directory;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, OFlags};

pub(crate) use self::directory::Directory;
use crate::sys::open;
use crate::workspace::lexical;

/// Longest file that names another place.
const MAX_POINTER: u64 = 4096;

pub(crate) fn file_type(path: &Path) -> io::Result<FileType> {
    let fd = open::absolute(path, OFlags::PATH)?;
    let stat = rustix::fs::fstat(&fd)?;
    Ok(FileType::from_raw_mode(stat.st_mode))
}

/// Belongs to this user, and others cannot write it. `path` is for messages.
fn check_ours(found: impl AsFd, path: &Path, wanted: FileType) -> Result<(), String> {
    let stat = rustix::fs::fstat(found).map_err(|error| format!("{path:?}: {error}"))?;
    if FileType::from_raw_mode(stat.st_mode) != wanted {
        return Err(match wanted {
            FileType::Directory => format!("{path:?} is not a directory"),
            _ => format!("{path:?} is not a regular file"),
        });
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(format!("{path:?} belongs to uid {}", stat.st_uid));
    }
    if stat.st_mode & 0o002 != 0 {
        return Err(format!("{path:?} can be written by everybody"));
    }
    Ok(())
}

/// All of a small file.
fn read_file(file: File, path: &Path, most: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    file.take(most + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("{path:?}: {error}"))?;
    if bytes.len() as u64 > most {
        return Err(format!("{path:?} is longer than {most} bytes"));
    }
    Ok(bytes)
}

/// A file that holds one path, taken from the directory it is in where it is
/// relative. Whether a link is on the way is seen when it is opened.
pub(crate) fn read_pointer(path: &Path, prefix: &str) -> Result<PathBuf, String> {
    let failed = |error| format!("{path:?}: {error}");
    let fd = open::absolute(path, OFlags::RDONLY).map_err(failed)?;
    read_pointer_of(fd, path, prefix)
}

fn read_pointer_of(fd: OwnedFd, path: &Path, prefix: &str) -> Result<PathBuf, String> {
    check_ours(&fd, path, FileType::RegularFile)?;
    pointer(&read_file(fd.into(), path, MAX_POINTER)?, path, prefix)
}

fn pointer(bytes: &[u8], path: &Path, prefix: &str) -> Result<PathBuf, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| format!("{path:?} is not UTF-8"))?;
    let place = text
        .trim_end_matches(['\n', '\r'])
        .strip_prefix(prefix)
        .filter(|place| !place.is_empty() && !place.contains(char::is_control))
        .ok_or_else(|| format!("{path:?} does not hold a path as git writes it"))?;
    let base = path.parent().unwrap_or(path);
    Ok(lexical(&base.join(place)))
}

/// A worktree's side in its repository.
#[derive(Debug)]
pub(crate) struct Linked {
    pub(crate) common: Directory,
    /// `worktrees` in it.
    pub(crate) worktrees: Directory,
    /// The administrative directory, in that.
    pub(crate) admin: Directory,
}

/// For the worktree that is held as `dir`, where both sides name each other.
pub(crate) fn linked(dir: impl AsFd, top: &Path) -> Result<Linked, String> {
    let dot_git = top.join(".git");
    let fd = open::beneath(dir, ".git", OFlags::RDONLY);
    let fd = fd.map_err(|error| format!("{dot_git:?}: {error}"))?;
    linked_by(&read_pointer_of(fd, &dot_git, "gitdir: ")?, &dot_git)
}

/// What is at `admin`, if it belongs to this `.git` file.
pub(crate) fn linked_by(admin: &Path, dot_git: &Path) -> Result<Linked, String> {
    let (common, name) = parts(admin)
        .ok_or_else(|| format!("{admin:?} does not lie in the \"worktrees\" of a repository"))?;
    let common = Directory::open(common)?;
    check_repository(&common)?;
    let worktrees = common.dir("worktrees")?;
    let admin = worktrees.dir(name)?;
    let named = admin.read_pointer("gitdir")?;
    if named != dot_git {
        return Err(format!("{:?} belongs to {named:?}", admin.path()));
    }
    let named = admin.read_pointer("commondir")?;
    if named != common.path() {
        let admin = admin.path();
        return Err(format!("{admin:?} belongs to the repository {named:?}"));
    }
    Ok(Linked {
        common,
        worktrees,
        admin,
    })
}

fn parts(admin: &Path) -> Option<(&Path, &OsStr)> {
    let worktrees = admin.parent().filter(|path| path.ends_with("worktrees"))?;
    Some((worktrees.parent()?, admin.file_name()?))
}

/// Whether it is all of a repository.
pub(crate) fn check_repository(common: &Directory) -> Result<(), String> {
    for name in ["objects", "refs"] {
        common.dir(name)?;
    }
    for name in ["HEAD", "config"] {
        common.file(name)?;
    }
    match common.has("commondir")? {
        true => Err(format!(
            "{:?} leads git elsewhere",
            common.path().join("commondir")
        )),
        false => Ok(()),
    }
}

pub(crate) fn one_line(path: &Path) -> Result<String, String> {
    match path.to_str() {
        Some(text) if !text.contains(char::is_control) => Ok(text.to_owned()),
        _ => Err(format!("{path:?} is not one line of UTF-8")),
    }
}
