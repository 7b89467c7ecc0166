//! Namespaces: which they are, how they belong together (ioctl_ns(2)), how to
//! enter them, and a mount namespace of one's own.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::thread::{CapabilitySet, LinkNameSpaceType, UnshareFlags};

/// A namespace, as the kernel tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NamespaceId {
    device: u64,
    inode: u64,
}

/// `name` is that of a file in `/proc/PID/ns`.
pub(crate) fn own(name: &str) -> io::Result<OwnedFd> {
    open(&format!("/proc/self/ns/{name}"))
}

/// The namespace of the process behind `pidfd`, which still lives after it was
/// opened, so that its number meant no other process.
pub(crate) fn of_process(pidfd: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let number = info
        .lines()
        .find_map(|line| line.strip_prefix("Pid:")?.trim().parse::<u32>().ok())
        .ok_or_else(|| io::Error::other("it is no descriptor of a living process"))?;
    let namespace = open(&format!("/proc/{number}/ns/{name}"))?;
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // A pidfd is readable once its process has ended (pidfd_open(2)).
    let mut ended = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    if rustix::event::poll(&mut ended, Some(&now))? == 0 {
        Ok(namespace)
    } else {
        Err(io::Error::other("the process has ended"))
    }
}

fn open(path: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

pub(crate) fn id(namespace: impl AsFd) -> io::Result<NamespaceId> {
    let stat = rustix::fs::fstat(namespace)?;
    Ok(NamespaceId {
        device: stat.st_dev,
        inode: stat.st_ino,
    })
}

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

/// Leaves namespaces for new ones of their kinds, as far as it is let.
pub(crate) fn leave(kinds: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: the descriptor table, the one thing that other threads could
    // miss, stays shared.
    unsafe { rustix::thread::unshare_unsafe(kinds.difference(UnshareFlags::FILES)) }
}

/// Moves this process, which must have a single thread, into a user namespace
/// and a namespace owned by it. It has every capability there until it becomes
/// another program.
pub(crate) fn join(user: &OwnedFd, kind: LinkNameSpaceType, target: &OwnedFd) -> io::Result<()> {
    // The kernel refuses to enter the user namespace that one is in.
    if id(user)? != id(own("user")?)? {
        let kind = LinkNameSpaceType::User;
        rustix::thread::move_into_link_name_space(user.as_fd(), Some(kind))?;
    }
    rustix::thread::move_into_link_name_space(target.as_fd(), Some(kind))?;
    Ok(())
}

/// Leaves this thread and the programs it turns into with one capability.
pub(crate) fn keep_only(capability: CapabilitySet) -> io::Result<()> {
    let sets = rustix::thread::CapabilitySets {
        effective: capability,
        permitted: capability,
        inheritable: capability,
    };
    rustix::thread::set_capabilities(None, sets)?;
    // Another program keeps it, also where it is not started as root.
    rustix::thread::configure_capability_in_ambient_set(capability, true)?;
    rustix::thread::set_no_new_privs(true)?;
    Ok(())
}

/// Whether this process is in the user namespace that the host booted with.
pub(crate) fn is_in_initial_user_namespace() -> io::Result<bool> {
    let map = std::fs::read_to_string("/proc/self/uid_map")?;
    let numbers = map.split_ascii_whitespace();
    // Only there are all user ids mapped to themselves.
    Ok(numbers.eq(["0", "0", "4294967295"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    #[test]
    fn namespaces_of_a_process_are_its_own() {
        let pidfd = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        let net = of_process(pidfd.as_fd(), "net").unwrap();
        assert_eq!(id(&net).unwrap(), id(own("net").unwrap()).unwrap());
        assert_ne!(id(&net).unwrap(), id(own("user").unwrap()).unwrap());
    }

    #[test]
    fn a_process_that_has_ended_has_none() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        assert!(of_process(pidfd.as_fd(), "net").is_err());
    }

    #[test]
    fn what_is_no_pidfd_is_refused() {
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(of_process(null.as_fd(), "net").is_err());
        assert!(owning_user_namespace(null.as_fd()).is_err());
    }
}
