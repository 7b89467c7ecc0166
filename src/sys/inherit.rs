//! Gives a child process a descriptor under a fixed number.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::{Mode, OFlags};

/// The first number that podman passes on (`--preserve-fds=1`).
const TARGET: i32 = 3;

/// Keeps descriptor 3 of this process occupied for good, so that neither the
/// descriptor to pass nor the pipe on which std reports a failed exec can
/// have that number when [`pass_as_fd3`] overwrites it in the child.
pub(crate) fn reserve_fd3() -> io::Result<OwnedFd> {
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    if null.as_raw_fd() == TARGET {
        return Ok(null);
    }
    // The lowest free number from 3 on: 3 itself where it was free.
    Ok(rustix::io::fcntl_dupfd_cloexec(&null, TARGET)?)
}

/// Lets the child have `fd` as descriptor 3. [`reserve_fd3`] must have been
/// called, and `fd` must stay open until the child is spawned.
pub(crate) fn pass_as_fd3(command: &mut Command, fd: BorrowedFd<'_>) {
    let raw = fd.as_raw_fd();
    let pass = move || {
        // SAFETY: runs in the child between fork and exec; `raw` is open
        // there because the caller keeps it open until spawn has returned.
        let fd = unsafe { BorrowedFd::borrow_raw(raw) };
        // SAFETY: number 3 is held by `reserve_fd3` and by nothing that the
        // child still uses; the OwnedFd is forgotten, so it is not closed.
        let mut target = std::mem::ManuallyDrop::new(unsafe {
            <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(TARGET)
        });
        // dup3 without O_CLOEXEC: the descriptor survives the exec.
        rustix::io::dup2(fd, &mut target)?;
        Ok(())
    };
    // SAFETY: the closure calls dup2(2) only, which is async-signal-safe, and
    // allocates nothing.
    unsafe { command.pre_exec(pass) };
}

/// The same for a descriptor that only the child needs: it lives as long as
/// `command`.
pub(crate) fn hand_over_as_fd3(command: &mut Command, fd: OwnedFd) {
    pass_as_fd3(command, fd.as_fd());
    let keep = move || {
        let _open = &fd;
        Ok(())
    };
    // SAFETY: the closure does nothing; it is there to own the descriptor.
    unsafe { command.pre_exec(keep) };
}
