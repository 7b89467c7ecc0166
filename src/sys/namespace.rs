//! How namespaces belong together (ioctl_ns(2)), and a mount namespace of
//! one's own.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::thread::UnshareFlags;

/// The user namespace whose capabilities count in `namespace`.
pub(crate) fn owning_user_namespace(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    related(namespace, libc::NS_GET_USERNS)
}

/// EPERM where the parent is out of our reach.
pub(crate) fn parent_user_namespace(user: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    related(user, libc::NS_GET_PARENT)
}

fn related(namespace: BorrowedFd<'_>, request: libc::Ioctl) -> io::Result<OwnedFd> {
    // SAFETY: these two requests take no argument.
    let number = unsafe { libc::ioctl(namespace.as_raw_fd(), request) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor (close-on-exec) for us.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Whoever made the user namespace, as a uid of our own.
pub(crate) fn owner_of(user: BorrowedFd<'_>) -> io::Result<u32> {
    let mut uid: libc::uid_t = libc::uid_t::MAX;
    // SAFETY: the kernel writes one uid_t, which lives through the call.
    let result = unsafe { libc::ioctl(user.as_raw_fd(), libc::NS_GET_OWNER_UID, &raw mut uid) };
    if result == 0 {
        Ok(uid)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Leaves the mount namespace for a copy of it, owned by the user namespace
/// that we are in.
pub(crate) fn copy_mount_namespace() -> rustix::io::Result<()> {
    // SAFETY: the descriptor table, the one thing that other threads could
    // miss, stays shared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }
}
