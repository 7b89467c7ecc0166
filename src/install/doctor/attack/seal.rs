//! The seal of a sandbox, as seen from inside: what was tried -> findings.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::thread::UnshareFlags;

use super::super::finding::Finding;
use super::Target;
use crate::sys::{mountinfo, namespace};

/// All that is looked at. What cannot be looked at is as bad as what is open.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// `/proc/self/status`.
    status: String,
    is_root_read_only: bool,
    /// Where a file could be made.
    made: Vec<PathBuf>,
    /// Mounts that honour set-uid bits, and can be written.
    setuid_mounts: Vec<PathBuf>,
    interfaces: Vec<String>,
    memory_max: String,
    pids_max: String,
    hidden: Vec<PathBuf>,
    socket: Option<String>,
    /// Of the kernel's: read, listed or opened for writing.
    kernel: Vec<String>,
    setuid: Option<SetUid>,
    namespaces: Vec<&'static str>,
}

/// A program with the set-uid bit, and the user ids that it ran with.
#[derive(Debug, Clone)]
struct SetUid {
    program: PathBuf,
    ids: Vec<u32>,
}

/// No file can be made where the image is.
const SYSTEM: [&str; 4] = ["/", "/etc", "/usr", "/run"];

/// podman hides the content of these.
const SECRET_FILES: [&str; 5] = [
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/sched_debug",
];
const SECRET_DIRS: [&str; 5] = [
    "/proc/acpi",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/fs/selinux",
    "/sys/devices/virtual/powercap",
];
/// Whoever writes these commands the host.
const LEVERS: [&str; 5] = [
    "/proc/sysrq-trigger",
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/sys/kernel/uevent_helper",
    "/sys/fs/cgroup/cgroup.procs",
];

/// Programs that most images have with the set-uid bit.
const SET_UID_PROGRAMS: [&str; 6] = [
    "/usr/bin/su",
    "/usr/bin/passwd",
    "/usr/bin/newgrp",
    "/usr/bin/chsh",
    "/usr/bin/mount",
    "/bin/su",
];

const KINDS: [(&str, UnshareFlags); 7] = [
    ("user", UnshareFlags::NEWUSER),
    ("mount", UnshareFlags::NEWNS),
    ("network", UnshareFlags::NEWNET),
    ("pid", UnshareFlags::NEWPID),
    ("uts", UnshareFlags::NEWUTS),
    ("ipc", UnshareFlags::NEWIPC),
    ("cgroup", UnshareFlags::NEWCGROUP),
];

impl Seen {
    pub(super) fn try_all(target: &Target) -> Seen {
        let mounts = mountinfo::of_self().unwrap_or_default();
        let is_root = |mount: &&mountinfo::Entry| mount.mount_point == Path::new("/");
        let root = mounts.iter().rfind(is_root);
        let open = mounts
            .iter()
            .filter(|mount| !mount.is_read_only() && !mount.has("nosuid"));
        Seen {
            status: read("/proc/self/status"),
            is_root_read_only: root.is_some_and(mountinfo::Entry::is_read_only),
            made: SYSTEM.iter().filter_map(|dir| make_file(dir)).collect(),
            setuid_mounts: open.map(|mount| mount.mount_point.clone()).collect(),
            interfaces: interfaces(&read("/proc/net/dev")),
            memory_max: read("/sys/fs/cgroup/memory.max"),
            pids_max: read("/sys/fs/cgroup/pids.max"),
            hidden: target
                .hidden
                .iter()
                .filter(|path| is_seen(path))
                .cloned()
                .collect(),
            socket: reach_socket(&target.socket),
            kernel: kernel(),
            setuid: SET_UID_PROGRAMS.iter().find_map(|path| run_set_uid(path)),
            // These change what the others would see.
            namespaces: KINDS
                .iter()
                .filter(|(_, kind)| !is_refused(namespace::leave(*kind)))
                .map(|(name, _)| *name)
                .collect(),
        }
    }

    /// A line of `/proc/self/status`.
    fn line(&self, key: &str) -> &str {
        let mut lines = self.status.lines();
        let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        value.map_or("unknown", str::trim)
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn is_refused(done: rustix::io::Result<()>) -> bool {
    matches!(done, Err(Errno::PERM | Errno::NOSYS | Errno::ACCESS))
}

fn make_file(dir: &str) -> Option<PathBuf> {
    let path = Path::new(dir).join(".umwelt-doctor");
    std::fs::File::create(&path).ok()?;
    let _gone = std::fs::remove_file(&path);
    Some(dir.into())
}

/// Something empty stands in for what is hidden.
fn is_seen(path: &Path) -> bool {
    let Ok(metadata) = path.symlink_metadata() else {
        return false;
    };
    match metadata.is_dir() {
        true => std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()),
        false => has_content(path),
    }
}

fn has_content(path: &Path) -> bool {
    let Ok(file) = std::fs::File::open(path) else {
        return false;
    };
    let mut byte = [0; 1];
    file.take(1).read(&mut byte).is_ok_and(|len| len > 0)
}

fn interfaces(table: &str) -> Vec<String> {
    let lines = table.lines().skip(2);
    let names = lines.filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()));
    names.collect()
}

fn reach_socket(path: &Path) -> Option<String> {
    match UnixStream::connect(path) {
        Ok(_) => Some("it can be connected to".to_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => Some(format!("it is there: {error}")),
    }
}

fn kernel() -> Vec<String> {
    let mut open = Vec::new();
    let files = SECRET_FILES
        .iter()
        .filter(|path| has_content(Path::new(path)));
    open.extend(files.map(|path| format!("{path} can be read")));
    let dirs = SECRET_DIRS.iter().filter(|path| is_seen(Path::new(path)));
    open.extend(dirs.map(|path| format!("{path} can be listed")));
    let levers = LEVERS
        .iter()
        .filter(|path| OpenOptions::new().write(true).open(path).is_ok());
    open.extend(levers.map(|path| format!("{path} can be written")));
    open
}

/// Whom it runs as; one that has ended already tells it as well.
fn run_set_uid(path: &str) -> Option<SetUid> {
    use std::os::unix::fs::PermissionsExt;
    const SET_UID: u32 = 0o4000;
    let metadata = std::fs::metadata(path).ok()?;
    if metadata.permissions().mode() & SET_UID == 0 {
        return None;
    }
    let mut child = Command::new(path)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let status = read(&format!("/proc/{}/status", child.id()));
    let _killed = child.kill();
    let _ended = child.wait();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    Some(SetUid {
        program: path.into(),
        ids: numbers(ids.unwrap_or_default()),
    })
}

fn numbers(text: &str) -> Vec<u32> {
    let words = text.split_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

pub(super) fn findings(seen: &Seen, target: &Target) -> Vec<Finding> {
    vec![
        user(seen, target),
        capabilities(seen),
        privileges(seen),
        seccomp(seen),
        root(seen),
        network(seen, target),
        limits(seen, target),
        namespaces(seen),
        home(seen, target),
        kernel_interfaces(seen),
        socket(seen),
        set_uid(seen, target),
    ]
}

fn finding(check: &'static str, holds: bool, good: String, bad: String) -> Finding {
    const REPORT: &str = "start no sandbox here, and report it: this should not be possible";
    match holds {
        true => Finding::ok(check, good),
        false => Finding::fail(check, bad).hint(REPORT),
    }
}

fn user(seen: &Seen, target: &Target) -> Finding {
    let is_all = |key, id| {
        let found = numbers(seen.line(key));
        found.len() == 4 && found.iter().all(|one| *one == id)
    };
    let (uid, gid) = (target.uid, target.gid);
    finding(
        "seal-user",
        uid != 0 && is_all("Uid", uid) && is_all("Gid", gid),
        format!("uid {uid} and gid {gid}, as outside"),
        format!("uids {}, gids {}", seen.line("Uid"), seen.line("Gid")),
    )
}

fn capabilities(seen: &Seen) -> Finding {
    let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
    let held: Vec<String> = sets
        .iter()
        .filter(|set| u64::from_str_radix(seen.line(set), 16) != Ok(0))
        .map(|set| format!("{set} {}", seen.line(set)))
        .collect();
    finding(
        "seal-capabilities",
        held.is_empty(),
        "all five sets are empty".to_owned(),
        held.join(", "),
    )
}

fn privileges(seen: &Seen) -> Finding {
    let found = seen.line("NoNewPrivs");
    finding(
        "seal-privileges",
        found == "1",
        "NoNewPrivs is set".to_owned(),
        format!("NoNewPrivs is {found}"),
    )
}

fn seccomp(seen: &Seen) -> Finding {
    let found = seen.line("Seccomp");
    finding(
        "seal-seccomp",
        found == "2",
        "system calls are filtered".to_owned(),
        format!("the mode is {found}, not 2"),
    )
}

fn root(seen: &Seen) -> Finding {
    let bad = match seen.made.is_empty() {
        true => "the mount is not read-only".to_owned(),
        false => format!("a file could be made in {}", shown(&seen.made)),
    };
    finding(
        "seal-root",
        seen.is_root_read_only && seen.made.is_empty(),
        "read-only".to_owned(),
        bad,
    )
}

fn network(seen: &Seen, target: &Target) -> Finding {
    let found = &seen.interfaces;
    let own = found.iter().filter(|name| *name != "lo").count();
    let shown = found.join(", ");
    finding(
        "seal-network",
        !found.is_empty() && own == usize::from(target.network),
        format!("only {shown}"),
        format!("interfaces: {shown}"),
    )
}

fn limits(seen: &Seen, target: &Target) -> Finding {
    let (memory, pids) = (seen.memory_max.trim(), seen.pids_max.trim());
    // Rounded down to whole pages.
    let is_memory = memory
        .parse::<u64>()
        .is_ok_and(|found| found <= target.memory && found + (64 << 10) > target.memory);
    finding(
        "seal-limits",
        is_memory && pids.parse() == Ok(target.pids),
        format!("memory.max {memory}, pids.max {pids}"),
        format!(
            "memory.max {memory:?} and pids.max {pids:?}, not {} and {}",
            target.memory, target.pids
        ),
    )
}

fn namespaces(seen: &Seen) -> Finding {
    finding(
        "seal-namespaces",
        seen.namespaces.is_empty(),
        "no new one can be made".to_owned(),
        format!("new ones can be made: {}", seen.namespaces.join(", ")),
    )
}

fn home(seen: &Seen, target: &Target) -> Finding {
    finding(
        "seal-home",
        seen.hidden.is_empty(),
        format!("{} places of yours are not to be seen", target.hidden.len()),
        format!("can be seen: {}", shown(&seen.hidden)),
    )
}

fn kernel_interfaces(seen: &Seen) -> Finding {
    finding(
        "seal-kernel",
        seen.kernel.is_empty(),
        "what /proc and /sys tell of the host is masked".to_owned(),
        seen.kernel.join(", "),
    )
}

fn socket(seen: &Seen) -> Finding {
    finding(
        "seal-socket",
        seen.socket.is_none(),
        "the one of the control plane is not there".to_owned(),
        seen.socket.clone().unwrap_or_default(),
    )
}

fn set_uid(seen: &Seen, target: &Target) -> Finding {
    let is_ours = |ran: &SetUid| !ran.ids.is_empty() && ran.ids.iter().all(|id| *id == target.uid);
    let good = match &seen.setuid {
        Some(ran) => format!("{} runs as uid {}", ran.program.display(), target.uid),
        None => "the image has none, and no place honours it".to_owned(),
    };
    let bad = match &seen.setuid {
        Some(ran) if !is_ours(ran) => format!("{} ran as {:?}", ran.program.display(), ran.ids),
        _ => format!("programs could be put in {}", shown(&seen.setuid_mounts)),
    };
    finding(
        "seal-setuid",
        seen.setuid_mounts.is_empty() && seen.setuid.as_ref().is_none_or(is_ours),
        good,
        bad,
    )
}

fn shown(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    paths.join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::Verdict;
    use super::*;

    fn target() -> Target {
        Target {
            uid: 1000,
            gid: 100,
            memory: 1 << 30,
            pids: 64,
            socket: "/run/s".into(),
            hidden: vec!["/h/.ssh".into()],
            network: false,
        }
    }

    fn tight() -> Seen {
        Seen {
            status: "Uid:\t1000\t1000\t1000\t1000\nGid:\t100\t100\t100\t100\n\
                CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n\
                CapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n"
                .into(),
            is_root_read_only: true,
            made: vec![],
            setuid_mounts: vec![],
            interfaces: vec!["lo".into()],
            memory_max: "1073741824\n".into(),
            pids_max: "64\n".into(),
            hidden: vec![],
            socket: None,
            kernel: vec![],
            setuid: Some(SetUid {
                program: "/usr/bin/su".into(),
                ids: vec![1000; 4],
            }),
            namespaces: vec![],
        }
    }

    #[test]
    fn a_tight_sandbox_passes() {
        for finding in findings(&tight(), &target()) {
            assert_eq!(finding.verdict, Verdict::Ok, "{finding:?}");
        }
    }

    #[test]
    fn each_leak_is_found_by_its_check_alone() {
        type Leak = fn(&mut Seen);
        fn status(seen: &mut Seen, from: &str, to: &str) {
            let changed = seen.status.replace(from, to);
            assert_ne!(changed, seen.status);
            seen.status = changed;
        }
        let cases: [(&str, Leak, &str); 18] = [
            (
                "seal-user",
                |s| status(s, "Uid:\t1000", "Uid:\t0"),
                "uids 0",
            ),
            ("seal-user", |s| status(s, "Gid:\t100", "Gid:\t0"), "gids 0"),
            (
                "seal-capabilities",
                |s| status(s, "CapAmb:\t0", "CapAmb:\t1"),
                "CapAmb 1",
            ),
            (
                "seal-capabilities",
                |s| status(s, "CapBnd", "Other"),
                "CapBnd unknown",
            ),
            (
                "seal-privileges",
                |s| status(s, "NoNewPrivs:\t1", "NoNewPrivs:\t0"),
                "is 0",
            ),
            (
                "seal-seccomp",
                |s| status(s, "Seccomp:\t2", "Seccomp:\t0"),
                "mode is 0",
            ),
            (
                "seal-root",
                |s| s.is_root_read_only = false,
                "not read-only",
            ),
            ("seal-root", |s| s.made.push("/etc".into()), "/etc"),
            (
                "seal-network",
                |s| s.interfaces.push("eth0".into()),
                "lo, eth0",
            ),
            ("seal-network", |s| s.interfaces.clear(), "interfaces"),
            ("seal-limits", |s| s.memory_max = "max\n".into(), "max"),
            ("seal-limits", |s| s.pids_max = "65\n".into(), "65"),
            ("seal-namespaces", |s| s.namespaces.push("user"), "user"),
            ("seal-home", |s| s.hidden.push("/h/.ssh".into()), "/h/.ssh"),
            (
                "seal-kernel",
                |s| s.kernel.push("/proc/kcore can be read".into()),
                "kcore",
            ),
            (
                "seal-socket",
                |s| s.socket = Some("it is there".into()),
                "there",
            ),
            (
                "seal-setuid",
                |s| {
                    if let Some(ran) = &mut s.setuid {
                        ran.ids = vec![1000, 0, 0, 0];
                    }
                },
                "[1000, 0, 0, 0]",
            ),
            (
                "seal-setuid",
                |s| s.setuid_mounts.push("/tmp".into()),
                "/tmp",
            ),
        ];
        for (check, leak, words) in cases {
            let mut seen = tight();
            leak(&mut seen);
            for finding in findings(&seen, &target()) {
                let fails = finding.verdict == Verdict::Fail;
                assert_eq!(fails, finding.check == check, "{finding:?}");
                if fails {
                    assert!(finding.evidence.contains(words), "{finding:?}");
                    assert!(finding.fix.is_some());
                }
            }
        }
    }

    #[test]
    fn one_interface_more_is_that_of_a_network() {
        let mut seen = tight();
        seen.interfaces.push("eth0".into());
        let target = Target {
            network: true,
            ..target()
        };
        let all_hold = |seen: &Seen| {
            let mut found = findings(seen, &target).into_iter();
            found.all(|finding| finding.verdict == Verdict::Ok)
        };
        assert!(all_hold(&seen));
        seen.interfaces.push("eth1".into());
        assert!(!all_hold(&seen));
    }

    #[test]
    fn empty_stand_ins_are_not_what_they_hide() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_seen(dir.path()));
        assert!(!is_seen(&dir.path().join("gone")));
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(!is_seen(&dir.path().join("file")));
        assert!(is_seen(dir.path()));
        std::fs::write(dir.path().join("file"), "x").unwrap();
        assert!(is_seen(&dir.path().join("file")));
    }
}
