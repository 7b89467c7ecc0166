//! A path -> a descriptor of what is there, by what links on it may do. Never
//! waits for the other end of a FIFO.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Result;
use rustix::path::Arg;

const NO_LINKS: ResolveFlags = ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS);

/// An absolute path, without links on the way or at its end.
pub(crate) fn absolute(path: &Path, flags: OFlags) -> Result<OwnedFd> {
    openat2(CWD, path, flags, NO_LINKS)
}

/// What lies below a directory, without links on the way or at its end.
pub(crate) fn beneath(dir: impl AsFd, path: impl Arg, flags: OFlags) -> Result<OwnedFd> {
    openat2(dir, path, flags, NO_LINKS | ResolveFlags::BENEATH)
}

/// The same, but nothing that is mounted there.
pub(crate) fn beneath_on_device(dir: impl AsFd, path: impl Arg, flags: OFlags) -> Result<OwnedFd> {
    let resolve = NO_LINKS | ResolveFlags::BENEATH | ResolveFlags::NO_XDEV;
    openat2(dir, path, flags, resolve)
}

fn openat2(
    dir: impl AsFd,
    path: impl Arg,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd> {
    // openat2(2) takes neither of them with O_PATH.
    let waits = match flags.contains(OFlags::PATH) {
        true => OFlags::empty(),
        false => OFlags::NONBLOCK | OFlags::NOCTTY,
    };
    let flags = flags | waits | OFlags::CLOEXEC;
    rustix::fs::openat2(dir, path, flags, Mode::empty(), resolve)
}
