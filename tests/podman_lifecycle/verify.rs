//! Verification finds each weakening that podman's flags could undergo. A
//! wrapper in the place of podman changes one of them.

use crate::podman_common::host;
use crate::run::Run;
use crate::traces::assert_gone;
use crate::wrapper::place_with;

/// One weakening, and the words of the check that must find it.
struct Case {
    /// As `place_with` takes it, for `podman run`.
    change: &'static str,
    expected: &'static str,
}

const fn case(change: &'static str, expected: &'static str) -> Case {
    Case { change, expected }
}

/// Each start must fail, name the check, and leave no container.
fn assert_found(cases: &[Case]) {
    if !host::qualifies() {
        return;
    }
    let mut missed = Vec::new();
    for Case { change, expected } in cases {
        let place = place_with("run", change);
        let mut run = Run::begin(&place);
        match run.wait_ready() {
            Ok(()) => missed.push(format!("{change}: the sandbox is ready")),
            Err(status) => {
                let log = run.log();
                eprintln!("{change}\n    {}", log.lines().next().unwrap_or_default());
                if status.code() != Some(1) || !log.contains(expected) {
                    missed.push(format!("{change}: {status}, no {expected:?} in {log}"));
                }
                assert_gone(&place);
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn wrapper_that_changes_nothing_is_fine() {
    if !host::qualifies() {
        return;
    }
    let place = place_with("run", "--nothing) ;;");
    Run::ready(&place).stop();
}

#[test]
fn privileges_are_read_back() {
    assert_found(&[
        case("--cap-drop=all) ;;", "Cap"),
        case("--cap-drop=all) keep $word --cap-add=kill ;;", "Cap"),
        case("--security-opt=no-new-privileges) ;;", "NoNewPrivs"),
        case(
            "--security-opt=seccomp=*) keep --security-opt=seccomp=unconfined ;;",
            "Seccomp",
        ),
        case("--security-opt=seccomp=*) ;;", "seccomp profile"),
        case(
            "--systemd=false) keep $word --security-opt=unmask=ALL ;;",
            "system paths",
        ),
    ]);
}

#[test]
fn identity_is_read_back() {
    assert_found(&[
        case("--userns=keep-id) ;;", "Uid"),
        case("--userns=keep-id) keep --userns=host ;;", "Uid"),
        case("--user=*) keep --user=1001:1001 ;;", "Uid"),
        case("--user=*) keep --user=0:0 ;;", "Uid"),
        case(
            "--userns=keep-id) ;;
             --user=*) keep --user=0:0 ;;
             --passwd-entry=*) ;;",
            "user namespace",
        ),
    ]);
}

#[test]
fn namespaces_are_read_back() {
    assert_found(&[
        case(
            "--network=none) keep --network=host ;;",
            "net namespace is that of the host",
        ),
        case("--network=none) keep --network=pasta ;;", "interface"),
        case("--network=none) keep --network=private ;;", "interface"),
        case(
            "--pid=private) keep --pid=host ;;",
            "pid namespace is that of the host",
        ),
        case(
            "--ipc=private) keep --ipc=host ;;",
            "ipc namespace is that of the host",
        ),
        case(
            "--uts=private) keep --uts=host ;;
             --hostname=*) ;;",
            "uts namespace is that of the host",
        ),
        case(
            "--cgroupns=private) keep --cgroupns=host ;;",
            "cgroup namespace is that of the host",
        ),
    ]);
}

#[test]
fn limits_are_read_back() {
    assert_found(&[
        case("--memory=*|--memory-swap=*) ;;", "memory cap"),
        case(
            "--memory=*) keep --memory=600m ;;\n--memory-swap=*) ;;",
            "memory cap",
        ),
        case("--cpus=*) ;;", "cpu cap"),
        case("--pids-limit=*) ;;", "process cap"),
        case("--pids-limit=*) keep --pids-limit=-1 ;;", "process cap"),
        case(
            "--mount=type=tmpfs,dst=/tmp,*) keep_with 's/,tmpfs-size=[0-9]*//' ;;",
            "size limit",
        ),
    ]);
}

#[test]
fn mounts_are_read_back() {
    assert_found(&[
        case("--read-only) ;;", "read-only root"),
        case(
            "--mount=type=bind,*,rw=true,*) keep_with \"s,src=[^\\,]*,src=$here/other,\" ;;",
            "is not",
        ),
        case(
            "--workdir=*) keep $word --volume=$here/other:/opt ;;",
            "was not asked for",
        ),
        case(
            "--workdir=*) keep $word --tmpfs=/opt ;;",
            "was not asked for",
        ),
        case(
            "--workdir=*) keep $word --device=/dev/fuse ;;",
            "was not asked for",
        ),
        case(
            "--mount=*dst=/run/umwelt/output,*) keep_with s/ro=true/rw=true/ ;;",
            "writable",
        ),
        case(
            "--mount=type=bind,*,rw=true,*) keep_with s/rprivate/rslave/ ;;",
            "is not private",
        ),
        case("--mount=*dst=/dev/shm,*) ;;", "\"/dev/shm\""),
        case(
            "--mount=type=bind,*,rw=true,*) keep_with s/nosuid/suid/ ;;",
            "without nosuid",
        ),
    ]);
}

#[test]
fn program_of_pid_1_is_ours_and_must_speak() {
    assert_found(&[
        case(
            "--mount=*dst=/run/umwelt/umwelt-init,*) keep_with \"s,src=[^\\,]*,src=$here/program,\" ;;",
            "pid 1: it is not the program",
        ),
        case(
            "--entrypoint=*) keep '--entrypoint=[\"/bin/true\"]' ;;",
            "did not come up",
        ),
        case("--preserve-fds=1) ;;", "did not come up"),
    ]);
}
