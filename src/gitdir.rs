//! The small files by which git finds its directories, read without following
//! a link, without waiting for a FIFO, and without running git.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};

use crate::workspace::lexical;

/// Longest file that names another place.
const MAX_POINTER: u64 = 4096;

/// Opens an absolute path, without links on the way or at its end.
pub(crate) fn open(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    // Never waits for the other end of a FIFO.
    let waits = match flags.contains(OFlags::PATH) {
        true => OFlags::empty(),
        false => OFlags::NONBLOCK | OFlags::NOCTTY,
    };
    let flags = flags | waits | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(rustix::fs::openat2(
        rustix::fs::CWD,
        path,
        flags,
        Mode::empty(),
        resolve,
    )?)
}

pub(crate) fn file_type(path: &Path) -> io::Result<FileType> {
    let fd = open(path, OFlags::PATH)?;
    let stat = rustix::fs::fstat(&fd)?;
    Ok(FileType::from_raw_mode(stat.st_mode))
}

/// Belongs to this user, and others cannot write it.
pub(crate) fn check_ours(path: &Path, wanted: FileType) -> Result<(), String> {
    let failed = |error: io::Error| format!("{path:?}: {error}");
    let fd = open(path, OFlags::PATH).map_err(failed)?;
    let metadata = File::from(fd).metadata().map_err(failed)?;
    let uid = rustix::process::geteuid().as_raw();
    if FileType::from_raw_mode(metadata.mode()) != wanted {
        return Err(match wanted {
            FileType::Directory => format!("{path:?} is not a directory"),
            _ => format!("{path:?} is not a regular file"),
        });
    }
    if metadata.uid() != uid {
        return Err(format!("{path:?} belongs to uid {}", metadata.uid()));
    }
    if metadata.mode() & 0o002 != 0 {
        return Err(format!("{path:?} can be written by everybody"));
    }
    Ok(())
}

/// A small regular file of ours.
pub(crate) fn read(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    check_ours(path, FileType::RegularFile)?;
    let failed = |error: io::Error| format!("{path:?}: {error}");
    let file = File::from(open(path, OFlags::RDONLY).map_err(failed)?);
    let mut bytes = Vec::new();
    file.take(most + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > most {
        return Err(format!("{path:?} is longer than {most} bytes"));
    }
    Ok(bytes)
}

/// A file that holds one path, taken from `base` where it is relative. Whether
/// a link is on the way is seen when it is opened.
pub(crate) fn read_pointer(path: &Path, prefix: &str, base: &Path) -> Result<PathBuf, String> {
    let bytes = read(path, MAX_POINTER)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| format!("{path:?} is not UTF-8"))?;
    let place = text
        .trim_end_matches(['\n', '\r'])
        .strip_prefix(prefix)
        .filter(|place| !place.is_empty() && !place.contains(char::is_control))
        .ok_or_else(|| format!("{path:?} does not hold a path as git writes it"))?;
    Ok(lexical(&base.join(place)))
}

/// The administrative directory of a worktree at `top`, and the common
/// directory of its repository, where both sides name each other.
pub(crate) fn linked(top: &Path) -> Result<(PathBuf, PathBuf), String> {
    let dot_git = top.join(".git");
    let admin = read_pointer(&dot_git, "gitdir: ", top)?;
    let common = common_of(&admin, &dot_git)?;
    Ok((admin, common))
}

/// The common directory of `admin`, if that belongs to this `.git` file.
pub(crate) fn common_of(admin: &Path, dot_git: &Path) -> Result<PathBuf, String> {
    let worktrees = admin.parent().filter(|path| path.ends_with("worktrees"));
    let common = worktrees
        .and_then(Path::parent)
        .ok_or_else(|| format!("{admin:?} does not lie in the \"worktrees\" of a repository"))?;
    check_repository(common)?;
    check_ours(admin, FileType::Directory)?;
    let named = read_pointer(&admin.join("gitdir"), "", admin)?;
    if named != dot_git {
        return Err(format!("{admin:?} belongs to {named:?}"));
    }
    let named = read_pointer(&admin.join("commondir"), "", admin)?;
    if named != common {
        return Err(format!("{admin:?} belongs to the repository {named:?}"));
    }
    Ok(common.to_owned())
}

/// Whether it is a git directory of ours, and all of a repository.
pub(crate) fn check_repository(common: &Path) -> Result<(), String> {
    for dir in [common, &common.join("objects"), &common.join("refs")] {
        check_ours(dir, FileType::Directory)?;
    }
    for file in [common.join("HEAD"), common.join("config")] {
        check_ours(&file, FileType::RegularFile)?;
    }
    let elsewhere = common.join("commondir");
    match file_type(&elsewhere) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        _ => Err(format!("{elsewhere:?} leads git elsewhere")),
    }
}

pub(crate) fn one_line(path: &Path) -> Result<String, String> {
    match path.to_str() {
        Some(text) if !text.contains(char::is_control) => Ok(text.to_owned()),
        _ => Err(format!("{path:?} is not one line of UTF-8")),
    }
}
