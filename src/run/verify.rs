//! Reads back what a fresh container really is, and compares it with what
//! was asked for. Flags are not trusted: a neighbour with a design like this
//! one ran open sandboxes because a flag was silently ignored.

mod flags;
pub(crate) mod gateway;
mod scope;

use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, FileType, Mode, OFlags, StatVfsMountFlags};
use rustix::process::{Pid, PidfdFlags};

use crate::config::Resources;
use crate::podman::argv::{COVER_SIZE, ContainerSpec, Network};
use crate::policy::mounts::{Cover, Mount, MountKind, MountSet};
use crate::sys::cgroup::{self, Events};
use crate::sys::mountinfo::{self, Entry};
use crate::sys::open;
use crate::sys::process;
use crate::workspace::FileId;

/// A container whose seal was read back. Only [`verify`] makes one.
#[derive(Debug)]
pub(crate) struct Verified {
    /// Host process id of pid 1.
    pub(crate) pid: Pid,
    /// Keeps `pid` from meaning another process.
    pub(crate) pidfd: OwnedFd,
    /// The cgroup below which each command gets its own; the caps hold here.
    pub(crate) cgroup: PathBuf,
    /// Files of it: `memory.events`, `pids.events`, `pids.current`.
    pub(crate) memory_events: Events,
    pub(crate) pids_events: Events,
    pub(crate) pids_current: Events,
    /// The scratch places, for looking at the space that is left.
    pub(crate) scratch: Vec<(String, OwnedFd)>,
    /// The shell of the image: `/bin/bash`, or else `/bin/sh`.
    pub(crate) shell: &'static str,
}

/// A promise that the container does not keep.
#[derive(Debug)]
pub(crate) struct VerifyError {
    /// What was read back, such as `NoNewPrivs`.
    pub(crate) check: &'static str,
    pub(crate) detail: String,
}

impl VerifyError {
    pub(crate) fn hint(&self) -> Option<String> {
        Some(
            "the container was removed; look for what changes podman's flags: a wrapper, a containers.conf, an OCI hook"
                .to_owned(),
        )
    }
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the sandbox is not sealed as it must be: {}: {}",
            self.check, self.detail
        )
    }
}

impl std::error::Error for VerifyError {}

fn fail<T>(check: &'static str, detail: impl Into<String>) -> Result<T, VerifyError> {
    Err(VerifyError {
        check,
        detail: detail.into(),
    })
}

/// What pid 1 measured on itself, from its first packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hello {
    /// Host process id, from the kernel.
    pub(crate) pid: Pid,
    /// errno of a setns(2) that only the derived seccomp profile answers
    /// with EPERM.
    pub(crate) setns_errno: i32,
}

/// Compares the container with `spec`.
pub(crate) fn verify(
    spec: &ContainerSpec,
    exe: &Path,
    hello: Hello,
) -> Result<Verified, VerifyError> {
    let pid = hello.pid;
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).or_else(|error| {
        fail(
            "pid 1",
            format!("process {pid:?} cannot be opened: {error}"),
        )
    })?;
    let proc = Proc {
        dir: format!("/proc/{}", pid.as_raw_nonzero()),
    };
    check_program(&proc, exe)?;
    check_status(&proc, spec)?;
    check_user_map(&proc, spec)?;
    if hello.setns_errno != rustix::io::Errno::PERM.raw_os_error() {
        return fail(
            "seccomp profile",
            format!("setns answered with errno {}, not EPERM", hello.setns_errno),
        );
    }
    check_namespaces(&proc)?;
    check_interfaces(&proc, &spec.network)?;
    let cgroup = check_limits(pid, spec)?;
    let root = open_root(&proc)?;
    check_masks(&root, spec)?;
    check_devices(&root)?;
    flags::complete(&proc, exe, &pidfd, &spec.mounts)?;
    check_mount_table(&proc, spec)?;
    let scratch = check_mounts(&root, spec)?;
    let shell = if open::in_root(&root, "/bin/bash", OFlags::PATH).is_ok() {
        "/bin/bash"
    } else {
        "/bin/sh"
    };
    // All of it was read by number; that the process still lives shows that
    // the number meant the same process throughout.
    if process::has_ended(&pidfd) {
        return fail("pid 1", "it ended while it was checked");
    }
    Ok(Verified {
        pid,
        pidfd,
        memory_events: Events::open(&cgroup, "memory.events"),
        pids_events: Events::open(&cgroup, "pids.events"),
        pids_current: Events::open(&cgroup, "pids.current"),
        cgroup,
        scratch,
        shell,
    })
}

/// The proc directory of pid 1.
struct Proc {
    dir: String,
}

impl Proc {
    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }

    fn read(&self, check: &'static str, name: &str) -> Result<String, VerifyError> {
        std::fs::read_to_string(self.path(name))
            .or_else(|error| fail(check, format!("cannot read {:?}: {error}", self.path(name))))
    }
}

/// The process at the other end of the channel is our own binary.
fn check_program(proc: &Proc, exe: &Path) -> Result<(), VerifyError> {
    let ids =
        |path: &Path| std::fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()));
    match (ids(Path::new(&proc.path("exe"))), ids(exe)) {
        (Ok(inside), Ok(outside)) if inside == outside => Ok(()),
        (Ok(_), Ok(_)) => fail("pid 1", "it is not the program that was mounted for it"),
        (Err(error), _) | (_, Err(error)) => {
            fail("pid 1", format!("its program cannot be looked at: {error}"))
        }
    }
}

/// Identity, privileges and seccomp mode, as the kernel reports them.
fn check_status(proc: &Proc, spec: &ContainerSpec) -> Result<(), VerifyError> {
    let text = proc.read("status", "status")?;
    let field = |name: &'static str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(str::trim)
            .map_or_else(|| fail(name, "the kernel does not report it"), Ok)
    };
    let ids = |name, expected: u32| {
        let ids = field(name)?;
        let same = ids
            .split_ascii_whitespace()
            .all(|id| id.parse() == Ok(expected));
        if same {
            Ok(())
        } else {
            fail(name, format!("{ids:?} where all should be {expected}"))
        }
    };
    ids("Uid", spec.uid)?;
    ids("Gid", spec.gid)?;
    for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        let set = field(name)?;
        if u64::from_str_radix(set, 16) != Ok(0) {
            return fail(name, format!("the capability set is {set}, not empty"));
        }
    }
    check_groups(field("Groups")?, spec)?;
    if field("NoNewPrivs")? != "1" {
        return fail("NoNewPrivs", "it is not set");
    }
    if field("Seccomp")? != "2" {
        return fail(
            "Seccomp",
            format!("mode {} where a filter (2) should be", field("Seccomp")?),
        );
    }
    Ok(())
}

/// None of the host's groups but the user's own: they may open what the user
/// alone may not.
fn check_groups(groups: &str, spec: &ContainerSpec) -> Result<(), VerifyError> {
    let of_host = rustix::process::getgroups()
        .or_else(|error| fail("Groups", format!("our own cannot be read: {error}")))?;
    let taken_along = groups
        .split_ascii_whitespace()
        .filter_map(|group| group.parse::<u32>().ok())
        .find(|group| *group != spec.gid && of_host.iter().any(|own| own.as_raw() == *group));
    match taken_along {
        None => Ok(()),
        Some(group) => fail("Groups", format!("the group {group} of the host is there")),
    }
}

/// The user is the same one inside: were it root there, it could do more with
/// what its namespace owns.
fn check_user_map(proc: &Proc, spec: &ContainerSpec) -> Result<(), VerifyError> {
    let map = proc.read("user namespace", "uid_map")?;
    // `first inside, first outside, count`; outside as we see it.
    let inside = map.lines().find_map(|line| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u32>);
        let mut next = || numbers.next()?.ok();
        let (inside, outside, count) = (next()?, next()?, next()?);
        let offset = spec.uid.checked_sub(outside)?;
        (offset < count).then_some(inside.wrapping_add(offset))
    });
    match inside {
        Some(uid) if uid == spec.uid => Ok(()),
        Some(uid) => fail(
            "user namespace",
            format!("uid {} of the host is uid {uid} inside", spec.uid),
        ),
        None => fail(
            "user namespace",
            format!("uid {} of the host does not exist inside", spec.uid),
        ),
    }
}

/// None of the host's namespaces is shared.
fn check_namespaces(proc: &Proc) -> Result<(), VerifyError> {
    for name in ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"] {
        let inside = std::fs::read_link(proc.path(&format!("ns/{name}")));
        let outside = std::fs::read_link(format!("/proc/self/ns/{name}"));
        match (inside, outside) {
            (Ok(inside), Ok(outside)) if inside != outside => {}
            (Ok(_), Ok(_)) => {
                return fail(
                    "namespaces",
                    format!("the {name} namespace is that of the host"),
                );
            }
            (Err(error), _) | (_, Err(error)) => {
                return fail(
                    "namespaces",
                    format!("the {name} namespace cannot be looked at: {error}"),
                );
            }
        }
    }
    Ok(())
}

/// Sealed means that there is no interface but the loopback; with egress there
/// is one more, that of the private network.
fn check_interfaces(proc: &Proc, network: &Network) -> Result<(), VerifyError> {
    let table = proc.read("network", "net/dev")?;
    let expected: &[&str] = match network {
        Network::None => &["lo"],
        Network::Egress(_) => &["lo", "eth0"],
    };
    check_interface_names(&table, expected)
}

fn check_interface_names(table: &str, expected: &[&str]) -> Result<(), VerifyError> {
    // Two lines of heading, then `name: counters…`.
    let mut names: Vec<&str> = table
        .lines()
        .skip(2)
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name.trim())
        .collect();
    names.sort_unstable_by_key(|name| (*name != "lo", *name));
    if names == expected {
        return Ok(());
    }
    fail(
        "network",
        format!("the interfaces are {names:?}, where {expected:?} should be"),
    )
}

/// The caps hold for pid 1, and for the level where the commands will be.
fn check_limits(pid: Pid, spec: &ContainerSpec) -> Result<PathBuf, VerifyError> {
    let unusable = |error| fail("cgroup", format!("it cannot be used: {error}"));
    let own = cgroup::of_process(pid).or_else(unusable)?;
    let base = cgroup::command_base(&own).or_else(unusable)?;
    // First those of podman: what it ignores is refused, not repaired.
    expect_limits(&own, &spec.resources)?;
    cgroup::forbid_swap(&base)
        .or_else(|error| fail("swap cap", format!("it cannot be set: {error}")))?;
    if expect_limits(&base, &spec.resources).is_err() {
        scope::cap(&base, &spec.resources)?;
    }
    expect_limits(&base, &spec.resources)?;
    Ok(base)
}

fn expect_limits(cgroup: &Path, caps: &Resources) -> Result<(), VerifyError> {
    let expect = |check, file, cap: u64| match cgroup::effective_limit(cgroup, file) {
        Some(limit) if limit <= cap => Ok(()),
        Some(limit) => fail(check, format!("{limit} where at most {cap} should be")),
        None => fail(check, "there is no limit"),
    };
    expect("memory cap", "memory.max", caps.memory)?;
    expect("process cap", "pids.max", caps.pids_limit)?;
    match cgroup::effective_cpus(cgroup) {
        // cpu.max has a resolution of a microsecond in its period.
        Some(cpus) if cpus <= caps.cpus + 0.001 => Ok(()),
        Some(cpus) => fail(
            "cpu cap",
            format!("{cpus} where at most {} should be", caps.cpus),
        ),
        None => fail("cpu cap", "there is no limit"),
    }
}

fn open_root(proc: &Proc) -> Result<OwnedFd, VerifyError> {
    rustix::fs::open(
        proc.path("root"),
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .or_else(|error| {
        fail(
            "mounts",
            format!("the root inside cannot be opened: {error}"),
        )
    })
}

/// Every mount that was asked for leads where it should.
fn check_mounts(
    root: &OwnedFd,
    spec: &ContainerSpec,
) -> Result<Vec<(String, OwnedFd)>, VerifyError> {
    let mut scratch = Vec::new();
    for mount in spec.mounts.iter() {
        let inside = open::in_root(root, &mount.path, OFlags::PATH).or_else(|error| {
            fail(
                "mounts",
                format!("{:?} cannot be found inside: {error}", mount.path),
            )
        })?;
        match &mount.kind {
            MountKind::Bind { source, .. } => {
                check_same_file(mount, source, spec.sources.get(source), &inside)?;
                check_access(mount, source, &spec.mounts, &inside)?;
            }
            MountKind::Tmpfs { .. } => scratch.push((mount.path.clone(), inside)),
            MountKind::Mask { .. } => {}
        }
    }
    Ok(scratch)
}

/// Whoever looks at a masked path sees the cover. Read back not by the mount
/// table, as a path may lead through a link, but like a process inside.
fn check_masks(root: &OwnedFd, spec: &ContainerSpec) -> Result<(), VerifyError> {
    for mount in spec.mounts.iter() {
        if let MountKind::Mask { cover, .. } = &mount.kind {
            check_mask(root, mount, *cover, spec)?;
        }
    }
    Ok(())
}

fn check_mask(
    root: &OwnedFd,
    mount: &Mount,
    cover: Cover,
    spec: &ContainerSpec,
) -> Result<(), VerifyError> {
    let path = &mount.path;
    let failed = |error| VerifyError {
        check: "masks",
        detail: format!("{path:?} cannot be looked at: {error}"),
    };
    let (is_cover, flags) = look_at_cover(root, path, cover).map_err(failed)?;
    if !is_cover {
        return fail("masks", format!("{path:?} is not hidden"));
    }
    if !flags.contains(READ_ONLY_FLAGS) {
        return fail(
            "masks",
            format!("{path:?} is covered, but not read-only, nosuid and nodev"),
        );
    }
    if cover == Cover::File {
        return Ok(());
    }
    let names = names_in(root, path).map_err(failed)?;
    // Mounts that were asked for below a cover have their mount points in it.
    let expected = |name: &str| {
        let entry = Path::new(path).join(name);
        spec.mounts
            .iter()
            .any(|other| Path::new(&other.path).starts_with(&entry))
    };
    match names.iter().find(|name| !expected(name)) {
        None => Ok(()),
        Some(name) => fail("masks", format!("{path:?} is not empty: it shows {name:?}")),
    }
}

const READ_ONLY_FLAGS: StatVfsMountFlags = StatVfsMountFlags::RDONLY
    .union(StatVfsMountFlags::NOSUID)
    .union(StatVfsMountFlags::NODEV);

/// Whether a cover is what is seen at `path`, and how it is mounted.
fn look_at_cover(
    root: &OwnedFd,
    path: &str,
    cover: Cover,
) -> rustix::io::Result<(bool, StatVfsMountFlags)> {
    let inside = open::in_root(root, path, OFlags::PATH)?;
    let stat = rustix::fs::fstat(&inside)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    let is_cover = match cover {
        Cover::Directory => {
            // From linux/magic.h. The size tells ours from one of the host's.
            const TMPFS_MAGIC: i64 = 0x0102_1994;
            let volume = rustix::fs::fstatvfs(&inside)?;
            kind == FileType::Directory
                && rustix::fs::fstatfs(&inside)?.f_type == TMPFS_MAGIC
                && volume.f_blocks.saturating_mul(volume.f_frsize) == COVER_SIZE
        }
        // null(4)
        Cover::File => {
            kind == FileType::CharacterDevice && stat.st_rdev == rustix::fs::makedev(1, 3)
        }
    };
    Ok((is_cover, rustix::fs::fstatvfs(&inside)?.f_flag))
}

fn names_in(root: &OwnedFd, path: &str) -> rustix::io::Result<Vec<String>> {
    let directory = open::in_root(root, path, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// Compares with what the source was when it was allowed (`recorded`), not
/// with what stands at its path by now: that may have been swapped since.
/// Sources without a record are umwelt's own files, made anew at each create.
fn check_same_file(
    mount: &Mount,
    source: &str,
    recorded: Option<&FileId>,
    inside: &OwnedFd,
) -> Result<(), VerifyError> {
    let file = |fd: &OwnedFd| std::fs::File::from(fd.try_clone()?).metadata();
    let expected = recorded.copied().map_or_else(
        || std::fs::metadata(source).map(|metadata| FileId::from_metadata(&metadata)),
        Ok,
    );
    match (file(inside), expected) {
        (Ok(inside), Ok(expected)) if FileId::from_metadata(&inside) == expected => Ok(()),
        (Ok(_), Ok(_)) => fail(
            "mounts",
            format!(
                "{:?} inside is not what {source:?} was when it was allowed",
                mount.path
            ),
        ),
        (Err(error), _) | (_, Err(error)) => fail(
            "mounts",
            format!("{:?} cannot be compared with the host: {error}", mount.path),
        ),
    }
}

/// What a process sees at the path of a read-only bind is read-only, whatever
/// link leads there. Where the workspace itself is bound once more, the two may
/// lie on one path.
fn check_access(
    mount: &Mount,
    source: &str,
    mounts: &MountSet,
    inside: &OwnedFd,
) -> Result<(), VerifyError> {
    let is_same =
        |other: &Mount| matches!(&other.kind, MountKind::Bind { source: own, .. } if own == source);
    if mounts
        .iter()
        .any(|other| other.is_writable() && is_same(other))
    {
        return Ok(());
    }
    let flags = rustix::fs::fstatvfs(inside).map(|volume| volume.f_flag);
    match flags {
        Ok(flags) if flags.contains(READ_ONLY_FLAGS) => Ok(()),
        Ok(_) => fail(
            "mount flags",
            format!(
                "{:?} is not seen read-only, nosuid and nodev inside",
                mount.path
            ),
        ),
        Err(error) => fail(
            "mount flags",
            format!("{:?} cannot be looked at: {error}", mount.path),
        ),
    }
}

/// The mount table holds what was asked for, with its flags, and nothing else.
fn check_mount_table(proc: &Proc, spec: &ContainerSpec) -> Result<(), VerifyError> {
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
fn check_devices(root: &OwnedFd) -> Result<(), VerifyError> {
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
fn is_runtime_mount(path: &Path, entry: &Entry) -> bool {
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

    /// The root of this host, where a directory of the test stands for a bind.
    #[test]
    fn read_only_bind_that_is_seen_writable_is_found() {
        use crate::policy::mounts::{Access, Origin};
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().to_str().unwrap();
        let seen = OwnedFd::from(std::fs::File::open(path).unwrap());
        let bind = |access| Mount::bind(path, "/s", access, Origin::Base);
        let read_only = bind(Access::ReadOnly);
        let set = |mount| MountSet::merge(vec![mount]);
        let check = |mounts| check_access(&read_only, "/s", &mounts, &seen);
        assert!(check(set(read_only.clone())).is_err());
        assert!(check(set(bind(Access::ReadWrite))).is_ok());
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
