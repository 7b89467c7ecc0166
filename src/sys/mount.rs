//! Mounts as descriptors: a copy of one that is mounted nowhere yet, its
//! attributes, its way into a place (open_tree(2), mount_setattr(2)).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::mount::{MoveMountFlags, OpenTreeFlags};

/// A bind of `source` that is mounted nowhere, without what is mounted below.
/// It goes with its descriptor.
pub(crate) fn copy(source: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    const AT_EMPTY_PATH: OpenTreeFlags = OpenTreeFlags::AT_EMPTY_PATH;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    rustix::mount::open_tree(source, "", flags | AT_EMPTY_PATH)
}

/// `nosuid`, `nodev`, private, and `ro` where wanted. What the source is not
/// allowed, such as writing, stays so.
pub(crate) fn restrict(tree: BorrowedFd<'_>, read_only: bool) -> io::Result<()> {
    let mut attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    if read_only {
        attributes |= libc::MOUNT_ATTR_RDONLY;
    }
    let wanted = libc::mount_attr {
        attr_set: attributes,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    // SAFETY: reads an empty C string and a structure of the size that is
    // given; both live through the call. The C library may lack a wrapper.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const wanted,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Mounts `tree` on top of what `place` is.
pub(crate) fn put(tree: BorrowedFd<'_>, place: impl AsFd) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(tree, "", place, "", flags)
}
