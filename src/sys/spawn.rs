//! Fork, dispositions and raw descriptor numbers, for pid 1 and what it starts.

#![allow(unsafe_code)]

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use rustix::io::FdFlags;
use rustix::process::Pid;

/// The exit code of a child that could not become its program.
const NOT_STARTED: i32 = 127;

/// Takes over a descriptor that this process was started with, and makes it
/// close-on-exec. To be called once a number, before anything else is opened.
pub(crate) fn take_inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the borrow lasts for one call, which fails if nothing is open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    // SAFETY: it is open, as the call above has shown, and by this function's
    // contract nothing else in this process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Puts every signal back to its default and empties the mask: a parent may
/// leave signals ignored or blocked, and both survive exec.
///
/// Through the kernel, because the C library keeps some signals for itself,
/// and these too may have been left ignored.
pub(crate) fn reset_signals() -> io::Result<()> {
    const LAST: i32 = 64;
    const SET_SIZE: usize = (LAST / 8).unsigned_abs() as usize;
    // The kernel's `struct sigaction`: all zero is SIG_DFL without flags.
    let default = [0_usize; 4];
    let none = [0_u8; SET_SIZE];
    for signal in 1..=LAST {
        // SAFETY: reads `default`, which is as large as the structure on every
        // 64-bit machine; installs no handler. SIGKILL and SIGSTOP refuse.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                ptr::null::<usize>(),
                SET_SIZE,
            )
        };
    }
    // SAFETY: reads `none`, which has the size that is given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            none.as_ptr(),
            ptr::null::<u8>(),
            SET_SIZE,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Runs `child` in a new process and returns its pid. `child` either becomes
/// another program or returns, which ends the new process at once.
///
/// Only for a process with a single thread, as pid 1 is: with more, the copy
/// could find a lock held for ever by a thread that it does not have.
pub(crate) fn fork(child: impl FnOnce() -> Result<Infallible, ()>) -> io::Result<Pid> {
    // SAFETY: one thread (see above), so the copy is as consistent as the
    // original and any code may run in it; it never returns from here.
    match unsafe { libc::fork() } {
        0 => {
            let Err(()) = child();
            // SAFETY: ends the process; exit handlers are the parent's to run.
            unsafe { libc::_exit(NOT_STARTED) }
        }
        -1 => Err(io::Error::last_os_error()),
        pid => Pid::from_raw(pid).ok_or_else(|| io::ErrorKind::Other.into()),
    }
}

/// Makes `descriptor` also known as `number`, and inherited through exec.
///
/// Whatever had that number is closed, so it must not be owned by anything
/// that the caller still uses: this is for a child on its way to exec.
pub(crate) fn place(descriptor: impl AsFd, number: RawFd) -> io::Result<()> {
    // SAFETY: the source is borrowed and alive; the target is this function's
    // contract.
    if unsafe { libc::dup2(descriptor.as_fd().as_raw_fd(), number) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Closes every descriptor from `first` on. To be called at the start of the
/// process, when nothing owns one of these.
pub(crate) fn close_from(first: RawFd) -> io::Result<()> {
    close_between(first, libc::c_uint::MAX, 0)
}

/// Marks every descriptor from `first` on as close-on-exec.
pub(crate) fn close_on_exec_from(first: RawFd) -> io::Result<()> {
    close_between(first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
}

/// Closes every descriptor from `first` on but the kept ones. For a process
/// just forked, which from then on must use and drop nothing but these.
pub(crate) fn close_all_but(first: RawFd, kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut numbers: Vec<RawFd> = kept.iter().map(AsRawFd::as_raw_fd).collect();
    numbers.sort_unstable();
    let mut next = first;
    for number in numbers {
        if next < number {
            close_between(next, (number - 1).unsigned_abs(), 0)?;
        }
        next = next.max(number + 1);
    }
    close_between(next, libc::c_uint::MAX, 0)
}

fn close_between(first: RawFd, last: libc::c_uint, flags: libc::c_uint) -> io::Result<()> {
    // By number, because not every C library has a wrapper.
    // SAFETY: takes three integers; what it closes is the callers' contract.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
