//! The pidfd of pid 1 -> its mount namespace and a copy of our own one, to be
//! entered by turns with the capabilities of podman's user namespace.
//!
//! Never the container's user or pid namespace: nothing in the sandbox can
//! see this process.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::thread::LinkNameSpaceType;

use crate::attach::{Obstacle, not_live};
use crate::sys::mountinfo::{self, Entry};
use crate::sys::namespace;
use crate::sys::process::has_ended;

/// The kernel allows as many levels.
const MAX_DEPTH: usize = 32;

pub(super) struct Container {
    pidfd: OwnedFd,
    /// `/proc/PID`, which means this process and no later one.
    proc: OwnedFd,
    /// The root inside.
    root: OwnedFd,
    inside: OwnedFd,
    outside: OwnedFd,
    pid_namespace: u64,
}

impl Container {
    /// Leaves this process in its own mount namespace, with all capabilities
    /// of podman's user namespace.
    pub(super) fn join(pidfd: OwnedFd) -> Result<Container, Obstacle> {
        let proc = open_proc(&pidfd)?;
        let user = open_in(&proc, "ns/user", OFlags::RDONLY)?;
        let inside = open_in(&proc, "ns/mnt", OFlags::RDONLY)?;
        let pid_namespace = inode(&open_in(&proc, "ns/pid", OFlags::RDONLY)?)?;
        let root = open_in(&proc, "root", OFlags::PATH | OFlags::DIRECTORY)?;
        // The number was read from the pidfd and used since: had the process
        // ended, it could mean another one by now.
        if has_ended(&pidfd) {
            return not_live("pid 1 of the sandbox has ended");
        }
        let podman = podman_namespace(&user)?;
        let owner = namespace::owning_user_namespace(inside.as_fd())
            .map_err(|error| Obstacle::failed("the owner of the mount namespace", error))?;
        if inode(&owner)? != inode(&user)? {
            return not_live("the sandbox does not own its mount namespace");
        }
        enter(&podman, LinkNameSpaceType::User)?;
        namespace::copy_mount_namespace()
            .map_err(|error| Obstacle::failed("no mount namespace of our own", error))?;
        // Whatever is made inside has exactly the mode that is named.
        rustix::process::umask(Mode::empty());
        let outside = open_in(&own_proc()?, "ns/mnt", OFlags::RDONLY)?;
        Ok(Container {
            pidfd,
            proc,
            root,
            inside,
            outside,
            pid_namespace,
        })
    }

    /// From here on paths are those of the host.
    pub(super) fn step_out(&self) -> Result<(), Obstacle> {
        enter(&self.outside, LinkNameSpaceType::Mount)
    }

    /// From here on nothing may be looked up but below [`Container::root`].
    pub(super) fn step_in(&self) -> Result<(), Obstacle> {
        if has_ended(&self.pidfd) {
            return not_live("pid 1 of the sandbox has ended");
        }
        enter(&self.inside, LinkNameSpaceType::Mount)
    }

    pub(super) fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Identity of the pid namespace.
    pub(super) fn pid_namespace(&self) -> u64 {
        self.pid_namespace
    }

    /// What is mounted inside, by the paths that a process inside uses.
    pub(super) fn mounts(&self) -> Result<Vec<Entry>, Obstacle> {
        mounts_of(&self.proc)
    }
}

/// What is mounted on the host. To be called outside.
pub(super) fn mounts_of_host() -> Result<Vec<Entry>, Obstacle> {
    mounts_of(&own_proc()?)
}

fn mounts_of(proc: &OwnedFd) -> Result<Vec<Entry>, Obstacle> {
    let mut table = Vec::with_capacity(16 << 10);
    File::from(open_in(proc, "mountinfo", OFlags::RDONLY)?)
        .read_to_end(&mut table)
        .and_then(|_| mountinfo::parse_table(&table))
        .map_err(|error| Obstacle::failed("the mount table cannot be read", error))
}

fn own_proc() -> Result<OwnedFd, Obstacle> {
    open("/proc/self")
}

/// The proc directory of the process that `pidfd` means.
fn open_proc(pidfd: &OwnedFd) -> Result<OwnedFd, Obstacle> {
    let path = format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd());
    let text = std::fs::read_to_string(path)
        .map_err(|error| Obstacle::failed("the pidfd cannot be read", error))?;
    match parse_pid(&text) {
        Some(pid) => open(&format!("/proc/{pid}")),
        None => not_live("pid 1 of the sandbox has ended"),
    }
}

/// `Pid:` is -1 for a process that is gone, 0 for one that has no number here.
fn parse_pid(fdinfo: &str) -> Option<u32> {
    let value = fdinfo.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    value.trim().parse().ok().filter(|pid| *pid > 0)
}

fn open(path: &str) -> Result<OwnedFd, Obstacle> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|error| Obstacle::failed(format_args!("cannot open {path:?}"), error))
}

fn open_in(proc: &OwnedFd, name: &str, flags: OFlags) -> Result<OwnedFd, Obstacle> {
    rustix::fs::openat(proc, name, flags | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| Obstacle::failed(format_args!("cannot open {name:?} in proc"), error))
}

fn inode(namespace: &OwnedFd) -> Result<u64, Obstacle> {
    match rustix::fs::fstat(namespace) {
        Ok(stat) => Ok(stat.st_ino),
        Err(error) => Err(Obstacle::failed("a namespace cannot be told apart", error)),
    }
}

/// The ancestor of the container's user namespace that is a child of ours:
/// the one that podman runs in. All from there down must belong to us.
fn podman_namespace(user: &OwnedFd) -> Result<OwnedFd, Obstacle> {
    let failed = |error| Obstacle::failed("the user namespaces of podman cannot be found", error);
    let own = inode(&open_in(&own_proc()?, "ns/user", OFlags::RDONLY)?)?;
    let uid = rustix::process::geteuid().as_raw();
    let mut child = user.try_clone().map_err(failed)?;
    for depth in 0..MAX_DEPTH {
        if namespace::owner_of(child.as_fd()).map_err(failed)? != uid {
            return not_live("the user namespaces of the sandbox belong to somebody else");
        }
        let parent = namespace::parent_user_namespace(child.as_fd()).map_err(failed)?;
        match inode(&parent)? == own {
            true if depth > 0 => return Ok(child),
            true => return not_live("the sandbox does not run in a user namespace of podman"),
            false => child = parent,
        }
    }
    not_live("the sandbox does not run below our user namespace")
}

fn enter(namespace: &OwnedFd, kind: LinkNameSpaceType) -> Result<(), Obstacle> {
    rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(kind))
        .map_err(|error| Obstacle::failed("a namespace cannot be entered", error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::PidfdFlags;

    #[test]
    fn number_of_a_process_is_found_unless_it_is_gone() {
        assert_eq!(parse_pid("pos:\t0\nPid:\t77\nNSpid:\t77\n"), Some(77));
        for gone in ["Pid:\t-1\n", "Pid:\t0\n", "NSpid:\t5\n", ""] {
            assert_eq!(parse_pid(gone), None, "{gone:?}");
        }
    }

    #[test]
    fn process_outside_of_any_container_is_refused() {
        let pidfd =
            rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        let Err(Obstacle::NotLive(reason)) = Container::join(pidfd) else {
            panic!("it was joined");
        };
        assert!(reason.contains("user namespace"), "{reason}");
    }

    #[test]
    fn process_that_has_ended_is_refused() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        let Err(Obstacle::NotLive(reason)) = Container::join(pidfd) else {
            panic!("it was joined");
        };
        assert!(reason.contains("has ended"), "{reason}");
    }
}
