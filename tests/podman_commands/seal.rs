//! The seal as seen from inside. `probe.py` tries it all; here is what must
//! come of it.

use std::collections::BTreeSet;

use crate::podman_common::{PATIENCE, host, sandbox::PREFIX, wait_for};
use crate::probe::Probes;
use crate::{assert_exited, shared};

/// Errors with which something may be refused.
const REFUSED: [&str; 3] = ["EPERM", "EACCES", "ENOSYS"];

fn assert_refused(probes: &Probes, names: &[&str]) {
    let open: Vec<_> = names
        .iter()
        .map(|name| (*name, probes.text(name)))
        .filter(|(_, outcome)| !REFUSED.contains(outcome))
        .collect();
    assert!(open.is_empty(), "not refused: {open:?}");
}

#[test]
fn the_agent_is_the_user_and_has_no_privilege() {
    let Some(probes) = Probes::of_shared_sandbox() else {
        return;
    };
    let (uid, gid) = (host::uid(), rustix::process::getegid().as_raw());
    let ids = probes.value("ids");
    assert_eq!(ids[0], serde_json::json!([uid, uid, uid]));
    assert_eq!(ids[1], serde_json::json!([gid, gid, gid]));
    // No group but its own.
    let groups = ids[2].as_array().unwrap();
    assert!(groups.iter().all(|group| *group == gid), "{groups:?}");
    let status = probes.value("status");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status[set], "0000000000000000", "{set}");
    }
    assert_eq!(status["NoNewPrivs"], "1");
    assert_eq!(status["Seccomp"], "2");
    assert_refused(
        probes,
        &["setuid_root", "setgid_root", "setgroups", "mknod_device"],
    );
}

#[test]
fn no_namespace_can_be_made_or_entered() {
    let Some(probes) = Probes::of_shared_sandbox() else {
        return;
    };
    for (name, outcome) in probes.starting_with("unshare_") {
        assert_eq!(outcome, "EPERM", "{name}");
    }
    for (name, outcome) in probes.starting_with("setns_") {
        assert_eq!(outcome, "EPERM", "{name}");
    }
    assert_eq!(probes.text("clone_plain"), "ok");
    assert_eq!(probes.text("clone_user"), "EPERM");
    assert_refused(probes, &["clone_user_high_bits"]);
    // Says so in the way that lets libc fall back to clone.
    assert_eq!(probes.text("clone3"), "ENOSYS");
}

#[test]
fn kernel_interfaces_with_a_history_are_refused() {
    let Some(probes) = Probes::of_shared_sandbox() else {
        return;
    };
    assert_refused(
        probes,
        &[
            "keyctl",
            "add_key",
            "request_key",
            "io_uring_setup",
            "io_uring_enter",
            "io_uring_register",
            "bpf",
            "userfaultfd",
            "perf_event_open",
            "open_by_handle_at",
            "name_to_handle_at",
            "mount",
            "mount_bind",
            "umount2",
            "pivot_root",
            "fsopen",
            "fsmount",
            "open_tree",
            "move_mount",
            "mount_setattr",
            "init_module",
            "finit_module",
            "delete_module",
            "kexec_load",
            "reboot",
            "swapon",
            "acct",
            "settimeofday",
            "sethostname",
            "chroot",
            "iopl",
            "quotactl",
            "syslog",
            "fanotify_init",
            "modify_ldt",
        ],
    );
}

#[test]
fn sockets_are_of_the_plain_families_only() {
    let Some(probes) = Probes::of_shared_sandbox() else {
        return;
    };
    let open: BTreeSet<&str> = probes
        .starting_with("socket")
        .into_iter()
        .filter(|(_, outcome)| *outcome == "ok")
        .map(|(name, _)| name)
        .collect();
    let wanted = [
        "socket_inet",
        "socket_inet6",
        "socket_netlink_route",
        "socket_unix",
        "socketpair_unix",
    ];
    assert_eq!(open, wanted.into());
    // The kernel would say EOPNOTSUPP: the filter is asked first.
    assert_eq!(probes.text("socketpair_inet"), "ENOSYS");
}

#[test]
fn pid_1_cannot_be_looked_into_or_changed() {
    let Some(probes) = Probes::of_shared_sandbox() else {
        return;
    };
    assert_refused(
        probes,
        &[
            "ptrace_attach",
            "ptrace_seize",
            "process_vm_readv_one",
            "process_vm_writev_one",
            "pidfd_getfd",
            "kcmp",
            "open_1_environ",
            "open_1_mem",
            "open_1_maps",
            "open_1_auxv",
            "read_1_environ",
            "write_1_mem",
            "write_1_oom",
            "list_1_fd",
            "list_1_map_files",
            "readlink_1_exe",
            "readlink_1_cwd",
            "readlink_1_root",
            "readlink_1_fd/3",
        ],
    );
}

/// With one descriptor fewer than it needs it could start no command any more,
/// and would not end either.
#[test]
fn limits_of_pid_1_cannot_be_lowered() {
    let Some(probes) = Probes::of_shared_sandbox() else {
        return;
    };
    assert_eq!(probes.text("prlimit_1_nofile"), "EPERM");
    assert_eq!(probes.text("prlimit_self"), "ok");
}

#[test]
fn the_system_is_read_only() {
    let Some(probes) = Probes::of_shared_sandbox() else {
        return;
    };
    let allowed = ["EROFS", "EACCES", "EPERM", "ENOENT", "ETXTBSY"];
    for prefix in [
        "create ", "write ", "rename ", "chmod ", "unlink ", "mkdir ",
    ] {
        let found = probes.starting_with(prefix);
        assert!(!found.is_empty());
        let open: Vec<_> = found
            .into_iter()
            .filter(|(name, outcome)| {
                !allowed.contains(outcome) && *name != "write /proc/self/uid_map"
            })
            .collect();
        assert!(open.is_empty(), "{open:?}");
    }
    for name in [
        "chmod /run/umwelt/umwelt-init",
        "create /run/umwelt/output/x",
        "write /etc/hosts",
    ] {
        assert_eq!(probes.text(name), "EROFS", "{name}");
    }
}

#[test]
fn writable_mounts_are_the_scratch_places_and_the_workspace() {
    let (Some(sandbox), Some(probes)) = (shared(), Probes::of_shared_sandbox()) else {
        return;
    };
    let mut last = std::collections::BTreeMap::new();
    for line in probes.text("mountinfo").lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let is_private = fields[6] == "-";
        assert!(is_private, "propagates: {line}");
        last.insert(fields[4], fields[5].split(',').collect::<Vec<_>>());
    }
    let mut writable: BTreeSet<&str> = BTreeSet::new();
    for (point, options) in &last {
        if options.contains(&"rw") {
            writable.insert(point);
            let device = point.starts_with("/dev/") && !point.starts_with("/dev/shm");
            assert!(options.contains(&"nosuid"), "{point}: {options:?}");
            assert!(options.contains(&"nodev") || device, "{point}: {options:?}");
        }
    }
    let home = host::home().to_string_lossy().into_owned();
    let mut wanted: BTreeSet<&str> = [
        "/dev/full",
        "/dev/mqueue",
        "/dev/null",
        "/dev/pts",
        "/dev/random",
        "/dev/shm",
        "/dev/tty",
        "/dev/urandom",
        "/dev/zero",
        "/proc",
        "/tmp",
    ]
    .into();
    wanted.insert(&home);
    wanted.insert(sandbox.workspace().to_str().unwrap());
    assert_eq!(writable, wanted);
    assert!(last["/"].contains(&"ro") && last["/sys/fs/cgroup"].contains(&"ro"));
}

#[test]
fn there_is_no_way_out_to_the_network() {
    let Some(probes) = Probes::of_shared_sandbox() else {
        return;
    };
    assert_eq!(*probes.value("interfaces"), serde_json::json!(["lo"]));
    assert_eq!(*probes.value("routes"), serde_json::json!([]));
    for (name, outcome) in probes.starting_with("connect ") {
        assert!(
            ["ENETUNREACH", "EACCES"].contains(&outcome),
            "{name}: {outcome}"
        );
    }
    assert_eq!(probes.text("send udp"), "ENETUNREACH");
    assert_eq!(probes.text("loopback"), "ok");
    let sockets = probes.value("unix_sockets").to_string();
    assert!(!sockets.contains("/run/"), "{sockets}");
    assert_eq!(
        probes.text("hosts"),
        "127.0.0.1 localhost umwelt\n::1 localhost ip6-localhost ip6-loopback\n"
    );
    assert_eq!(probes.text("hostname"), "umwelt");
}

#[test]
fn caps_hold_inside_and_cannot_be_left() {
    let (Some(sandbox), Some(probes)) = (shared(), Probes::of_shared_sandbox()) else {
        return;
    };
    assert_eq!(probes.text("memory.max"), format!("{}\n", 512 << 20));
    assert_eq!(probes.text("pids.max"), "300\n");
    let outside = |file: &str| std::fs::read_to_string(sandbox.cgroup().join(file)).unwrap();
    assert_eq!(outside("memory.max"), format!("{}\n", 512 << 20));
    assert_eq!(outside("memory.swap.max"), "0\n");
    // systemd was told another value by the OCI runtime, and sometimes goes back to that one.
    let mut reload = std::process::Command::new("systemctl");
    assert!(
        reload
            .args(["--user", "daemon-reload"])
            .status()
            .unwrap()
            .success()
    );
    std::fs::write(sandbox.cgroup().join("memory.swap.max"), "max").unwrap();
    wait_for("the cap on swap", PATIENCE, || {
        (outside("memory.swap.max") == "0\n").then_some(())
    });
    assert_eq!(outside("pids.max"), "300\n");
    assert_eq!(outside("cpu.max"), "200000 100000\n");
    // The cgroup of a command is beside that of pid 1, in the same scope.
    let cgroup = probes.text("cgroup");
    assert!(cgroup.starts_with("0::/../command-"), "{cgroup}");
    let mut client = sandbox.client();
    let attempt = "for f in $(find /sys/fs/cgroup -name 'cgroup.procs'); do echo 0 >$f && echo left; done; mkdir /sys/fs/cgroup/x && echo made; cat /proc/self/cgroup";
    let output = crate::text(&client.shell(attempt)["output"]).to_owned();
    assert!(
        !output.contains("left") && !output.contains("made"),
        "{output}"
    );
    assert!(
        output.ends_with('\n') && output.contains("0::/../command-"),
        "{output}"
    );
}

#[test]
fn the_host_is_not_to_be_seen() {
    let (Some(sandbox), Some(probes)) = (shared(), Probes::of_shared_sandbox()) else {
        return;
    };
    let place = sandbox.place.path();
    let mut client = sandbox.client();
    // Beside the workspace, in the home, in /tmp: all of it exists outside.
    let secret = tempfile::Builder::new()
        .prefix("tb-secret-")
        .tempdir_in("/tmp")
        .unwrap();
    for path in [
        place.join("config"),
        place.join("log"),
        host::home().join(".local/share/containers"),
        secret.path().to_owned(),
        sandbox.place.socket(),
        host::runtime_dir(),
        "/var/lib/systemd/random-seed".into(),
    ] {
        assert!(
            path.symlink_metadata().is_ok() || path.starts_with("/var"),
            "{path:?}"
        );
        assert_exited(&client.shell(&format!("test -e '{}'", path.display())), 1);
    }
    let found = client.output(&format!(
        "find / -xdev -name '*{PREFIX}*' 2>/dev/null; true"
    ));
    assert_eq!(found, "");
    let user = host::home();
    assert_eq!(
        *probes.value("home"),
        serde_json::json!([user.file_name().unwrap().to_str().unwrap()])
    );
    let run: Vec<String> = serde_json::from_value(probes.value("run").clone()).unwrap();
    assert!(
        !run.iter().any(|name| name == "user" || name == "dbus"),
        "{run:?}"
    );
    let devices: BTreeSet<String> = serde_json::from_value(probes.value("dev").clone()).unwrap();
    for device in ["kvm", "mem", "fuse", "sda", "vda", "snd", "dri", "net"] {
        assert!(!devices.contains(device), "{devices:?}");
    }
    // Nor are its processes.
    let processes: Vec<u32> = serde_json::from_value(probes.value("processes").clone()).unwrap();
    assert!(
        processes.contains(&1) && processes.len() < 150,
        "{processes:?}"
    );
    let visible = client.output("cat /proc/[0-9]*/cmdline | tr '\\0' ' '");
    assert!(
        !visible.contains("umwelt-run") && !visible.contains("systemd"),
        "{visible}"
    );
    for (name, outcome) in probes.starting_with("masked ") {
        assert!(
            ["ok", "EACCES", "ENOENT"].contains(&outcome),
            "{name}: {outcome}"
        );
    }
}

/// The sandbox itself cannot be taken away from those who share it.
#[test]
fn pid_1_survives_what_its_commands_do() {
    let Some(sandbox) = shared() else { return };
    let mut client = sandbox.client();
    let before = sandbox.init_pid();
    client.shell("kill -9 1; kill -TERM 1; kill -STOP 1; kill -SEGV 1; kill -INT 1");
    client.shell("renice -n 19 -p 1; chrt -i -p 0 1; ionice -c 3 -p 1");
    client
        .shell("prlimit --pid 1 --nofile=3:3; prlimit --pid 1 --cpu=1:1; prlimit --pid 1 --as=1:1");
    client.shell("for n in 0 1 2 3; do exec 9>/proc/1/fd/$n; done");
    // Orphans by the hundred are reaped.
    client.output("for n in $(seq 100); do (sleep 0.2 &) ; done; sleep 1");
    // A command of another test may have one for a moment.
    wait_for("the end of all zombies", PATIENCE, || {
        (client.output("ps -e -o stat= | grep -c Z; true") == "0\n").then_some(())
    });
    crate::assert_next_command_works(&mut client);
    assert_eq!(sandbox.init_pid(), before);
    assert_eq!(sandbox.status()["restarts"], 0);
}
