//! stop, against control planes in processes of their own.

use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::FlockOperation;
use serde_json::json;

use crate::control_plane;
use crate::home::{Home, dead_socket, eventually, exists, finish};

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const OTHER_ID: &str = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210";

fn containers(home: &Home) -> String {
    json!([
        {"Id": ID, "Names": [format!("umwelt-{}", home.sid)],
         "Labels": {"umwelt.prefix": "umwelt", "umwelt.sid": home.sid}},
        {"Id": OTHER_ID, "Names": [format!("umwelt-{}", home.sid)],
         "Labels": {"umwelt.prefix": "umwelt"}},
        {"Id": OTHER_ID, "Names": ["other-workspace"],
         "Labels": {"umwelt.prefix": "umwelt", "umwelt.sid": "00000000"}},
    ])
    .to_string()
}

/// A control plane as its own process, named as umwelt-run is.
struct Process(Child);

impl Process {
    fn start(home: &Home, manner: &str, arg0: &str) -> Process {
        let child = Command::new(std::env::current_exe().unwrap())
            .arg0(arg0)
            .args(["--exact", "stop::control_plane_process"])
            .env("UMWELT_TEST_SOCKET", home.socket())
            .env("UMWELT_TEST_WORKSPACE", &home.workspace)
            .env("UMWELT_TEST_SID", &home.sid)
            .env("UMWELT_TEST_MANNER", manner)
            .env("UMWELT_TEST_CONTAINERS", home.path("containers"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let is_there = || UnixStream::connect(home.socket()).is_ok();
        eventually("the control plane listens", is_there);
        Process(child)
    }

    fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Not a test: what `Process` runs.
#[test]
#[allow(clippy::exit, reason = "it plays a process that ends")]
fn control_plane_process() {
    let var = |name: &str| std::env::var(name);
    let Ok(socket) = var("UMWELT_TEST_SOCKET") else {
        return;
    };
    let manner = var("UMWELT_TEST_MANNER").unwrap();
    let containers = var("UMWELT_TEST_CONTAINERS").unwrap();
    let path = socket.clone();
    control_plane::serve(
        Path::new(&socket),
        &var("UMWELT_TEST_WORKSPACE").unwrap(),
        &var("UMWELT_TEST_SID").unwrap(),
        Box::new(move |connection, request| {
            let id = request["id"].as_u64().unwrap();
            match (manner.as_str(), request["method"].as_str().unwrap()) {
                ("silent", _) => true,
                ("old", "hello") => {
                    connection.result(id, json!({"api": 0}));
                    true
                }
                ("stuck", "shutdown") => true,
                ("crash", "shutdown") => std::process::exit(1),
                // Asked for a sign of life, it gives one, and then comes to its end.
                ("slow", "shutdown") => true,
                ("slow", "ping") | (_, "shutdown") => {
                    connection.result(id, json!({}));
                    std::thread::sleep(Duration::from_millis(200));
                    std::fs::write(&containers, "[]").unwrap();
                    std::fs::remove_file(&path).unwrap();
                    std::process::exit(0);
                }
                _ => false,
            }
        }),
    );
}

#[test]
fn stop_waits_until_nothing_is_left() {
    let home = Home::new();
    home.podman(&containers(&home));
    let mut process = Process::start(&home, "good", "umwelt-run");
    let ran = home.run(&["stop", &home.workspace]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(
        ran.text(),
        format!("stopped the sandbox of {}\n", home.workspace)
    );
    assert!(process.has_ended());
    assert!(!exists(&home.socket()));
    assert!(!home.podman_log().contains("rm "), "{}", home.podman_log());
}

#[test]
fn a_wrong_base_config_takes_away_neither_status_nor_the_stop() {
    let home = Home::new();
    home.podman(&containers(&home));
    let config = home.path("config/umwelt");
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join("umwelt.toml"), "# mine\nimge = \"x\"\n").unwrap();
    let mut process = Process::start(&home, "good", "umwelt-run");
    for args in [&["status"][..], &["stop", "--all"]] {
        let ran = home.run(args);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.text().contains(&home.workspace), "{ran:?}");
        let warned = "umwelt.toml\" line 2: there is no key \"imge\"";
        assert!(ran.stderr.contains(warned), "{ran:?}");
    }
    assert!(process.has_ended());
    // What starts something goes by all of the file.
    let ran = home.run(&["exec", &home.workspace, "--", "ls"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
}

#[test]
fn stop_works_by_session_id_and_after_the_directory_is_gone() {
    for by_sid in [true, false] {
        let home = Home::new();
        let mut process = Process::start(&home, "good", "umwelt-run");
        std::fs::remove_dir(&home.workspace).unwrap();
        let word = if by_sid { &home.sid } else { &home.workspace };
        let ran = home.run(&["stop", word]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(process.has_ended());
    }
}

#[test]
fn all_are_ended_and_dead_ones_with_hard_only() {
    let home = Home::new();
    home.podman(&containers(&home));
    let ran = home.run(&["stop", "--all"]);
    assert_eq!((ran.code, ran.text()), (Some(0), "no sandboxes to stop\n"));
    let mut process = Process::start(&home, "good", "umwelt-run");
    let dead = home.path("runtime/umwelt-0badcafe.sock");
    dead_socket(&dead);
    let ran = home.run(&["stop", "--all"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let stopped = format!("stopped the sandbox of {}\n", home.workspace);
    assert_eq!(ran.text(), stopped);
    assert!(
        ran.stderr.contains("the sandbox of 0badcafe is dead"),
        "{ran:?}"
    );
    assert!(process.has_ended() && exists(&dead));
    assert!(!home.podman_log().contains("rm "), "{}", home.podman_log());

    home.podman(&containers(&home));
    let ran = home.run(&["stop", "--all", "--hard"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    assert!(ran.text().contains("removed socket "), "{ran:?}");
    assert!(!exists(&dead));
}

#[test]
fn one_that_does_not_end_keeps_none_of_the_others() {
    let home = Home::new();
    let mut silent = Process::start(&home, "silent", "database");
    let dead = home.path("runtime/umwelt-ffffffff.sock");
    dead_socket(&dead);
    let ran = home.run(&["stop", "--all", "--hard"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("it is not umwelt-run"), "{ran:?}");
    assert!(!silent.has_ended() && !exists(&dead));
}

#[test]
fn stop_of_what_does_not_run_says_so() {
    let home = Home::new();
    for args in [
        &["stop", &home.workspace][..],
        &["stop", "--hard", &home.sid],
    ] {
        let ran = home.run(args);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains("no sandbox is running for"), "{ran:?}");
    }
    assert_eq!(std::fs::read_dir(home.path("runtime")).unwrap().count(), 0);
}

#[test]
fn what_a_dead_control_plane_left_needs_hard_and_only_ours_goes() {
    let home = Home::new();
    home.podman(&containers(&home));
    dead_socket(&home.socket());
    let ran = home.run(&["stop", &home.workspace]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("stop --hard /"), "{ran:?}");
    assert!(exists(&home.socket()));
    assert!(!home.podman_log().contains("rm "));

    let ran = home.run(&["stop", "--hard", &home.workspace]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.text().contains("removed container umwelt-"), "{ran:?}");
    assert!(ran.text().contains("removed socket "), "{ran:?}");
    assert!(!exists(&home.socket()));
    let log = home.podman_log();
    assert!(
        log.contains(&format!("rm --force --ignore --time=0 --volumes -- {ID}\n")),
        "{log}"
    );
    assert!(!log.contains(OTHER_ID), "{log}");
}

#[test]
fn a_container_without_any_socket_is_found_too() {
    let home = Home::new();
    home.podman(&containers(&home));
    let ran = home.run(&["stop", &home.sid]);
    assert!(ran.stderr.contains("stop --hard"), "{ran:?}");
    assert_eq!(home.run(&["stop", "--hard", &home.sid]).code, Some(0));
}

#[test]
fn hard_kills_a_control_plane_that_hangs() {
    for manner in ["silent", "crash"] {
        let home = Home::new();
        home.podman(&containers(&home));
        let mut process = Process::start(&home, manner, "umwelt-run");
        let ran = home.run(&["stop", "--hard", &home.workspace]);
        assert_eq!(ran.code, Some(0), "{manner}: {ran:?}");
        assert!(ran.text().contains("removed container"), "{ran:?}");
        assert!(process.has_ended());
        assert!(!exists(&home.socket()));
    }
}

#[test]
fn hard_kills_nothing_but_a_control_plane() {
    let home = Home::new();
    let mut process = Process::start(&home, "silent", "database");
    let ran = home.run(&["stop", "--hard", &home.workspace]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("it is not umwelt-run"), "{ran:?}");
    assert!(!process.has_ended());
    assert!(exists(&home.socket()));
}

#[test]
fn hard_is_graceful_where_that_works() {
    let home = Home::new();
    let _process = Process::start(&home, "good", "umwelt-run");
    let ran = home.run(&["stop", "--hard", &home.workspace]);
    assert!(ran.text().starts_with("stopped the sandbox of"), "{ran:?}");
}

#[test]
fn a_control_plane_that_crashes_instead_of_stopping_is_told() {
    let home = Home::new();
    let _process = Process::start(&home, "crash", "umwelt-run");
    let ran = home.run(&["stop", &home.workspace]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("its control plane is dead"), "{ran:?}");
}

#[test]
fn one_of_another_version_gets_a_signal_instead() {
    let home = Home::new();
    let mut process = Process::start(&home, "old", "umwelt-run");
    // The stand-in does not clean up on SIGTERM.
    let ran = home.run(&["stop", &home.workspace]);
    assert!(ran.stderr.contains("its control plane is dead"), "{ran:?}");
    assert!(process.has_ended());
}

#[test]
fn a_silent_one_is_not_waited_for_without_end() {
    let home = Home::new();
    let mut process = Process::start(&home, "silent", "umwelt-run");
    let ran = home.run(&["stop", &home.workspace]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("does not answer"), "{ran:?}");
    assert!(ran.stderr.contains("stop --hard /"), "{ran:?}");
    assert!(!process.has_ended());
}

#[test]
fn one_that_takes_its_time_is_waited_for_with_a_note() {
    let home = Home::new();
    let mut process = Process::start(&home, "slow", "umwelt-run");
    let ran = home.run(&["stop", &home.workspace]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.text().starts_with("stopped the sandbox"), "{ran:?}");
    assert!(ran.stderr.contains("still stopping; waiting"), "{ran:?}");
    assert!(process.has_ended());
}

#[test]
fn nothing_is_removed_while_another_process_holds_the_workspace() {
    let home = Home::new();
    home.podman(&containers(&home));
    dead_socket(&home.socket());
    let lock = std::fs::File::create(home.socket().with_extension("lock")).unwrap();
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
    let ran = home.run(&["stop", "--hard", &home.workspace]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("being started or ended"), "{ran:?}");
    assert!(exists(&home.socket()));
    assert!(!home.podman_log().contains("rm "));
}

#[test]
fn podman_is_not_taken_from_a_project() {
    let home = Home::new();
    let planted = home.path("ws/.venv/bin");
    std::fs::create_dir_all(&planted).unwrap();
    std::fs::create_dir(home.path("ws/src")).unwrap();
    // Where the tests run as root, ownership would make it trusted.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&planted, open).unwrap();
    // One that says there is nothing.
    std::os::unix::fs::symlink("/usr/bin/true", planted.join("podman")).unwrap();
    home.podman(&containers(&home));
    let mut ctl = home.ctl(&["stop", &home.sid]);
    let path = format!("{}:{}:/usr/bin", planted.display(), home.bin().display());
    ctl.env("PATH", path).current_dir(home.path("ws/src"));
    let ran = finish(ctl.spawn().unwrap());
    assert!(home.podman_log().contains("ps "), "{ran:?}");
}
