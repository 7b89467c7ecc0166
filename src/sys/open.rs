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

/// As a process with this root directory sees it: links lead no further.
pub(crate) fn in_root(root: impl AsFd, path: &str, flags: OFlags) -> Result<OwnedFd> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    openat2(root, path.trim_start_matches('/'), flags, resolve)
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::FileType;
    use rustix::io::Errno;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    const SEEN: OFlags = OFlags::PATH;

    /// `dir/file`, and links to both.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        std::fs::create_dir(base.join("dir")).unwrap();
        std::fs::write(base.join("dir/file"), "x").unwrap();
        symlink("dir", base.join("link")).unwrap();
        symlink("file", base.join("dir/link")).unwrap();
        (temp, base)
    }

    #[test]
    fn links_lead_nowhere_on_the_way_or_at_the_end() {
        let (_temp, base) = place();
        let dir = absolute(&base, SEEN).unwrap();
        for (path, expected) in [
            ("dir/file", None),
            ("link/file", Some(Errno::LOOP)),
            ("dir/link", Some(Errno::LOOP)),
            ("dir/none", Some(Errno::NOENT)),
        ] {
            assert_eq!(absolute(&base.join(path), SEEN).err(), expected, "{path}");
            assert_eq!(beneath(&dir, path, SEEN).err(), expected, "{path}");
        }
        for path in ["..", "dir/../../x", "/"] {
            let error = beneath(&dir, path, SEEN).unwrap_err();
            assert_eq!(error, Errno::XDEV, "{path}");
        }
    }

    #[test]
    fn links_lead_no_further_than_the_root() {
        let (_temp, base) = place();
        symlink("/../../dir/file", base.join("up")).unwrap();
        symlink("/proc/self/exe", base.join("out")).unwrap();
        let root = absolute(&base, SEEN).unwrap();
        for path in ["/link/file", "up", "../dir/link"] {
            assert!(in_root(&root, path, SEEN).is_ok(), "{path}");
        }
        assert_eq!(in_root(&root, "/out", SEEN).unwrap_err(), Errno::NOENT);
    }

    #[test]
    fn a_fifo_is_not_waited_for() {
        let (_temp, base) = place();
        let fifo = base.join("fifo");
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, mode, 0).unwrap();
        assert!(absolute(&fifo, OFlags::RDONLY).is_ok());
    }

    #[test]
    fn what_is_mounted_can_be_left_out() {
        let root = absolute(Path::new("/"), SEEN).unwrap();
        assert!(beneath(&root, "proc", SEEN).is_ok());
        let error = beneath_on_device(&root, "proc", SEEN).unwrap_err();
        assert_eq!(error, Errno::XDEV);
        let (_temp, base) = place();
        let dir = absolute(&base, SEEN).unwrap();
        assert!(beneath_on_device(&dir, "dir/file", SEEN).is_ok());
    }
}
