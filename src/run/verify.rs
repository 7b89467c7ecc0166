//! Reads back what a fresh container really is, and compares it with what
//! was asked for. Flags are not trusted: a neighbour with a design like this
//! one ran open sandboxes because a flag was silently ignored. What is known
//! that an old runtime leaves out is set first ([`flags`], [`scope`]).

mod flags;
pub(crate) mod gateway;
mod mounts;
mod scope;
mod table;

use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags};

use crate::config::Resources;
use crate::podman::argv::{ContainerSpec, Network};
use crate::sys::cgroup::{self, Events};
use crate::sys::open;
use crate::sys::process;

/// A container whose seal was read back. Only [`verify`] makes one.
#[derive(Debug)]
pub(crate) struct Verified {
    /// Host process id of pid 1.
    pub(crate) pid: Pid,
    /// Keeps `pid` from meaning another process.
    pub(crate) pidfd: OwnedFd,
    /// The cgroup below which each command gets its own; the caps hold here.
    pub(crate) cgroup: PathBuf,
    /// Files of it: `memory.swap.max`, `memory.events`, `pids.events`, `pids.current`.
    pub(crate) swap_max: Events,
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
    mounts::check_masks(&root, spec)?;
    table::check_devices(&root)?;
    flags::complete(&proc, exe, &pidfd, &spec.mounts)?;
    table::check_mount_table(&proc, spec)?;
    let scratch = mounts::check_mounts(&root, spec)?;
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
        swap_max: Events::open(&cgroup, "memory.swap.max"),
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
    match cgroup::is_swap_forbidden(&base) {
        true => Ok(base),
        false => fail("swap cap", "swap can be used"),
    }
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
