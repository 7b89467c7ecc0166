//! The table of mounts, and the devices: nothing is there but what was asked
//! for and what the OCI runtime always mounts.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, OFlags};

use super::{Proc, VerifyError, fail};
use crate::podman::argv::ContainerSpec;
use crate::policy::mounts::{Mount, MountKind};
use crate::sys::mountinfo::{self, Entry};
use crate::sys::open;

/// The mount table holds what was asked for, with its flags, and nothing else.
pub(super) fn check_mount_table(proc: &Proc, spec: &ContainerSpec) -> Result<(), VerifyError> {
    let table = mountinfo::load(&proc.path("mountinfo"))
        .or_else(|error| fail("mounts", format!("the mount table cannot be read: {error}")))?;
    let mounts: Vec<&Mount> = spec.mounts.iter().collect();
    for mount in &mounts {
        // Of several mounts on one path the last one is seen.
        let entry = table
            .iter()
            .rev()
            .find(|entry| entry.mount_point == Path::new(&mount.path));
        let Some(entry) = entry else {
            // An alias below a bind that shows the same link needs none.
            // A mask on a path through a link is read back by itself.
            if is_alias(mount, &mounts) || mount.is_mask() {
                continue;
            }
            return fail("mounts", format!("{:?} is not mounted", mount.path));
        };
        check_flags(mount, entry)?;
    }
    check_system_paths(&table)?;
    for (index, entry) in table.iter().enumerate() {
        let covered = table
            .iter()
            .skip(index + 1)
            .any(|later| later.mount_point == entry.mount_point);
        if !covered {
            check_expected(entry, &mounts)?;
        }
    }
    Ok(())
}

/// Character devices that are there, with their numbers (mem(4), tty(4)).
const DEVICES: [(&str, u32, u32); 6] = [
    ("/dev/null", 1, 3),
    ("/dev/zero", 1, 5),
    ("/dev/full", 1, 7),
    ("/dev/random", 1, 8),
    ("/dev/urandom", 1, 9),
    ("/dev/tty", 5, 0),
];

/// Each device is the one that its name says. The mount table shows that
/// there are no others, but not what is behind these.
pub(super) fn check_devices(root: &OwnedFd) -> Result<(), VerifyError> {
    for (path, major, minor) in DEVICES {
        let stat = open::in_root(root, path, OFlags::PATH).and_then(rustix::fs::fstat);
        let stat = stat
            .or_else(|error| fail("devices", format!("{path:?} cannot be looked at: {error}")))?;
        let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
        if !is_device || stat.st_rdev != rustix::fs::makedev(major, minor) {
            return fail("devices", format!("{path:?} is another file"));
        }
    }
    Ok(())
}

/// podman covers the parts of /proc that tell of the host or control it, and
/// what is in /sys, the cgroups among it, can only be read.
fn check_system_paths(table: &[Entry]) -> Result<(), VerifyError> {
    const HIDDEN: [&str; 3] = ["/proc/kcore", "/proc/keys", "/proc/timer_list"];
    const READ_ONLY: [&str; 2] = ["/proc/sys", "/proc/sysrq-trigger"];
    let covering = |path: &str| {
        let mut of_path = table
            .iter()
            .filter(|entry| entry.mount_point == Path::new(path));
        of_path.next_back()
    };
    let is_bare = |path: &&&str| covering(path).is_none();
    let is_writable = |path: &&&str| !covering(path).is_some_and(Entry::is_read_only);
    let bare = HIDDEN.iter().filter(is_bare);
    // A kernel without such a file has nothing to cover.
    let bare = bare.chain(READ_ONLY.iter().filter(is_writable));
    if let Some(path) = bare.copied().find(|path| Path::new(path).exists()) {
        return fail("system paths", format!("{path:?} is not covered"));
    }
    for (path, fs_type) in [("/sys", "sysfs"), ("/sys/fs/cgroup", "cgroup2")] {
        if !covering(path).is_some_and(|entry| entry.fs_type == fs_type && entry.is_read_only()) {
            return fail(
                "system paths",
                format!("{path:?} is not a read-only {fs_type}"),
            );
        }
    }
    Ok(())
}

/// Whether the set shows the same in a second place: a bind of the same
/// source, or a like tmpfs under the other name of the workspace.
fn is_alias(mount: &Mount, mounts: &[&Mount]) -> bool {
    mounts.iter().any(|other| match (&other.kind, &mount.kind) {
        (MountKind::Bind { source: a, .. }, MountKind::Bind { source: b, .. }) => {
            a == b && other.path != mount.path
        }
        (MountKind::Tmpfs { .. }, MountKind::Tmpfs { .. }) => {
            other.path != mount.path && other.kind == mount.kind && lie_alike(mount, other, mounts)
        }
        _ => false,
    })
}

/// Whether both have the same path below two binds of one source.
fn lie_alike(a: &Mount, b: &Mount, mounts: &[&Mount]) -> bool {
    let rest = |mount: &Mount, above: &Mount| {
        let is_bind = matches!(above.kind, MountKind::Bind { .. });
        let rest = Path::new(&mount.path).strip_prefix(&above.path).ok();
        rest.filter(|_| is_bind).map(Path::to_owned)
    };
    mounts.iter().any(|first| {
        let mut seconds = mounts.iter().filter(|second| second.kind == first.kind);
        rest(a, first)
            .is_some_and(|path| seconds.any(|second| rest(b, second).as_ref() == Some(&path)))
    })
}

fn check_flags(mount: &Mount, entry: &Entry) -> Result<(), VerifyError> {
    for flag in ["nosuid", "nodev"] {
        if !entry.has(flag) {
            return fail(
                "mount flags",
                format!("{:?} is mounted without {flag}", mount.path),
            );
        }
    }
    if !mount.is_writable() && !entry.is_read_only() {
        return fail("mount flags", format!("{:?} is writable", mount.path));
    }
    if !entry.propagation.is_empty() && entry.propagation != "unbindable" {
        return fail(
            "mount flags",
            format!("{:?} is not private: {}", mount.path, entry.propagation),
        );
    }
    if let MountKind::Tmpfs { size, .. } = mount.kind {
        if entry.fs_type != "tmpfs" {
            return fail(
                "mounts",
                format!(
                    "{:?} is {} where a tmpfs should be",
                    mount.path, entry.fs_type
                ),
            );
        }
        // The kernel reports kibibytes, rounded up to whole pages.
        let limit = entry
            .super_option("size")
            .and_then(|size| size.strip_suffix('k')?.parse::<u64>().ok());
        if limit.is_none_or(|kib| kib * 1024 > size.next_multiple_of(4096)) {
            return fail(
                "mounts",
                format!("{:?} has no size limit of {size} bytes", mount.path),
            );
        }
    }
    Ok(())
}

/// A mount that nobody asked for must be one of the runtime's own, or lie in
/// a bind of ours, where it must not be more writable than that bind.
fn check_expected(entry: &Entry, mounts: &[&Mount]) -> Result<(), VerifyError> {
    let path = entry.mount_point.as_path();
    if path == Path::new("/") {
        return if entry.is_read_only() {
            Ok(())
        } else {
            fail("read-only root", "the root is writable")
        };
    }
    if mounts.iter().any(|mount| path == Path::new(&mount.path)) || is_runtime_mount(path, entry) {
        return Ok(());
    }
    let above = mounts
        .iter()
        .rev()
        .find(|mount| path.starts_with(&mount.path));
    let has_flags = entry.has("nosuid") && entry.has("nodev");
    match above.map(|mount| (&mount.kind, mount.is_writable())) {
        // Out of sight: masks are read back as empty.
        Some((MountKind::Mask { .. }, _)) => Ok(()),
        Some((MountKind::Bind { .. }, _)) if !has_flags => fail(
            "mount flags",
            format!("{path:?} is mounted without nosuid and nodev"),
        ),
        Some((MountKind::Bind { .. }, true)) => Ok(()),
        Some((MountKind::Bind { .. }, false)) if entry.is_read_only() => Ok(()),
        Some((MountKind::Bind { .. }, false)) => fail(
            "mount flags",
            format!("{path:?} is writable below a read-only mount"),
        ),
        _ => fail(
            "mounts",
            format!("{path:?} is mounted, which was not asked for"),
        ),
    }
}

/// What podman and the OCI runtime mount into every container.
pub(super) fn is_runtime_mount(path: &Path, entry: &Entry) -> bool {
    let fs_type = entry.fs_type.as_str();
    let system = (path.starts_with("/proc") && ["proc", "tmpfs", "devtmpfs"].contains(&fs_type))
        || (path.starts_with("/sys")
            && entry.is_read_only()
            && ["sysfs", "cgroup2", "tmpfs"].contains(&fs_type));
    const OWN: [(&str, &str); 3] = [
        ("/dev", "tmpfs"),
        ("/dev/pts", "devpts"),
        ("/dev/mqueue", "mqueue"),
    ];
    // What the host's /dev is; in a container host it is a tmpfs.
    let of_host = ["devtmpfs", "tmpfs"].contains(&fs_type);
    let device = OWN
        .iter()
        .any(|(name, kind)| path == Path::new(name) && *kind == fs_type)
        || (of_host && DEVICES.iter().any(|(name, ..)| path == Path::new(name)));
    // Generated by podman for this container, on its own run directory.
    const FILES: [&str; 6] = [
        "/etc/hostname",
        "/etc/hosts",
        "/etc/resolv.conf",
        "/etc/passwd",
        "/etc/group",
        "/run/.containerenv",
    ];
    system || device || FILES.iter().any(|file| path == Path::new(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `POINT OPTIONS TYPE` a line, on top of what podman mounts.
    fn table(lines: &[&str]) -> Vec<Entry> {
        const USUAL: [&str; 6] = [
            "/proc/kcore ro devtmpfs",
            "/proc/keys ro devtmpfs",
            "/proc/timer_list ro devtmpfs",
            "/proc/sys ro proc",
            "/proc/sysrq-trigger ro proc",
            "/sys ro sysfs",
        ];
        let file = tempfile::NamedTempFile::new().unwrap();
        let text: String = USUAL.iter().chain(lines).fold(String::new(), |text, line| {
            let words: Vec<&str> = line.split(' ').collect();
            let [point, options, fs_type] = words[..] else {
                panic!("{line:?}");
            };
            format!("{text}1 1 0:1 / {point} {options} - {fs_type} x rw\n")
        });
        std::fs::write(file.path(), text).unwrap();
        mountinfo::load(file.path().to_str().unwrap()).unwrap()
    }

    #[test]
    fn sys_and_its_cgroups_must_be_read_only() {
        let cgroup = "/sys/fs/cgroup ro,nosuid cgroup2";
        assert!(check_system_paths(&table(&[cgroup])).is_ok());
        for lines in [
            &[][..],
            &["/sys/fs/cgroup rw cgroup2"],
            &["/sys/fs/cgroup ro tmpfs"],
            &[cgroup, "/sys rw sysfs"],
            &[cgroup, "/sys/fs/cgroup rw cgroup2"],
        ] {
            assert!(check_system_paths(&table(lines)).is_err(), "{lines:?}");
        }
    }

    #[test]
    fn runtime_mounts_are_the_usual_ones_only() {
        let is_usual = |line: &str| check_expected(table(&[line]).last().unwrap(), &[]).is_ok();
        for line in [
            "/dev ro tmpfs",
            "/dev/pts rw devpts",
            "/dev/null rw devtmpfs",
            "/dev/tty rw tmpfs",
            "/sys/firmware ro tmpfs",
        ] {
            assert!(is_usual(line), "{line}");
        }
        for line in [
            "/dev/kvm rw devtmpfs",
            "/dev/console rw devpts",
            "/dev/pts rw devtmpfs",
            "/dev/null rw ext4",
            "/dev/shm rw tmpfs",
            "/sys/kernel/debug rw debugfs",
            "/sys/fs/cgroup/x rw cgroup2",
        ] {
            assert!(!is_usual(line), "{line}");
        }
    }

    #[test]
    fn tmpfs_under_both_names_of_the_workspace_is_one() {
        use crate::policy::mounts::{Access, Origin};
        let bind = |path| Mount::bind(path, "/w", Access::ReadWrite, Origin::Workspace);
        let tmpfs = |path, size| Mount::tmpfs(path, size, Origin::Base);
        let mounts = [
            bind("/w"),
            bind("/a"),
            tmpfs("/w/t", 1),
            tmpfs("/a/t", 1),
            tmpfs("/a/u", 1),
            tmpfs("/w/v", 1),
            tmpfs("/a/v", 2),
        ];
        let mounts: Vec<&Mount> = mounts.iter().collect();
        let alias = |path: &str| {
            let mount = mounts.iter().find(|mount| mount.path == path);
            is_alias(mount.unwrap(), &mounts)
        };
        assert!(alias("/a/t") && alias("/w/t") && alias("/a"));
        assert!(!alias("/a/u") && !alias("/a/v") && !alias("/w/v"));
    }

    #[test]
    fn devices_are_compared_by_number() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("dev")).unwrap();
        for (path, ..) in DEVICES {
            std::fs::write(dir.path().join(path.trim_start_matches('/')), "").unwrap();
        }
        let open = |path: &Path| OwnedFd::from(std::fs::File::open(path).unwrap());
        assert!(check_devices(&open(dir.path())).is_err());
        assert!(check_devices(&open(Path::new("/"))).is_ok());
    }
}
