//! Hosts that are not as one would like: each gets a working installation, or
//! one clear error.

use std::process::{Command, Stdio};

use crate::stage::{Ended, Stage, is_root};

#[test]
fn root_is_refused() {
    if !is_root() {
        eprintln!("skipped: only root can be root");
        return;
    }
    for args in [
        &["install"][..],
        &["remove"],
        &["image"],
        &["ca", "rotate"],
        &["status"],
        &["doctor"],
        &["doctor", "--fix-commands"],
    ] {
        let stage = Stage::new();
        let mut command = Command::new(stage.program());
        command
            .arg("install")
            .args(args)
            .env("HOME", stage.path("home"));
        let ended = Ended::from(command.output().unwrap());
        ended.failed(&["for an ordinary user, not for root", "hint: "]);
        assert_eq!(ended.stdout, "", "{args:?}");
        assert!(!stage.path("home/.local").exists());
    }
}

#[test]
fn the_umask_makes_nothing_too_open_or_too_closed() {
    for umask in ["000", "077", "777"] {
        let stage = Stage::with_image();
        let mut command = stage.command("/bin/sh");
        let script = "umask $1 && exec \"$2\" install install --no-image";
        command
            .args(["-c", script, "sh", umask])
            .arg(stage.program());
        let ended = Ended::from(command.output().unwrap());
        if umask == "777" {
            // Directories that nobody can enter: one line, and no panic.
            ended.failed(&["cannot "]);
            continue;
        }
        assert_eq!(ended.code, Some(0), "{ended:?}");
        for (path, what) in stage.listing("home/.local") {
            let mode = u32::from_str_radix(what.split(' ').next().unwrap(), 8).unwrap();
            let is_link = mode & 0o170_000 == 0o120_000;
            assert!(is_link || mode & 0o022 == 0, "{umask} {path:?} {mode:o}");
        }
        assert_eq!(stage.mode("home/.local/lib/umwelt/umwelt"), 0o755);
        assert_eq!(stage.mode("home/.local/share/umwelt/egress/ca.key"), 0o600);
        assert_eq!(stage.mode("home/.config/umwelt/umwelt.toml"), 0o644);
        // A configuration that others can write would not be read.
        let installed = stage.path("home/.local/bin/umwelt-install");
        let output = stage.command(installed).arg("status").output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn places_can_be_set() {
    let stage = Stage::with_image();
    for name in ["c", "d"] {
        stage.make_dir(name);
    }
    let mut command = stage.install_command(&["install"]);
    command
        .env("XDG_CONFIG_HOME", stage.path("c"))
        .env("XDG_DATA_HOME", stage.path("d"));
    let ended = Ended::from(command.output().unwrap());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(stage.path("c/umwelt/umwelt.toml").exists());
    assert!(stage.path("d/umwelt/egress/ca.pem").exists());
    assert!(!stage.path("home/.config").exists());
    assert!(!stage.path("home/.local/share").exists());
}

#[test]
fn a_home_that_is_missing_or_relative_is_named() {
    let stage = Stage::new();
    for home in [None, Some("home"), Some("")] {
        let mut command = stage.install_command(&["install"]);
        command.env_remove("HOME");
        home.map(|home| command.env("HOME", home));
        let ended = Ended::from(command.output().unwrap());
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains("HOME"), "{ended:?}");
    }
}

#[test]
fn a_read_only_home_is_one_clear_error() {
    let stage = Stage::new();
    stage.set_mode("home", 0o555);
    let ended = stage.run(&["install"]);
    ended.failed(&[
        "cannot create directory",
        ".local",
        "hint: ",
        "XDG_DATA_HOME",
    ]);
    assert_eq!(ended.stdout, "");
}

#[test]
fn a_locale_that_is_not_utf8_does_no_harm() {
    let stage = Stage::with_image();
    let mut command = stage.install_command(&["install"]);
    command.env("LC_ALL", "de_DE.ISO-8859-1").env("LANG", "C");
    assert!(command.status().unwrap().success());
}

#[test]
fn without_podman_all_else_is_installed() {
    let stage = Stage::new();
    std::fs::remove_file(stage.path("home/bin/podman")).unwrap();
    let mut command = stage.install_command(&["install"]);
    command.env("PATH", stage.path("home/bin"));
    let ended = Ended::from(command.output().unwrap());
    ended.failed(&[
        "podman was not found",
        "hint: install podman",
        "run it again",
    ]);
    assert_eq!(
        ended.stderr.matches("was not found").count(),
        1,
        "{ended:?}"
    );
    for there in [
        "home/.local/lib/umwelt/umwelt",
        "home/.local/share/umwelt/egress/bundle.pem",
    ] {
        assert!(stage.path(there).exists(), "{there}");
    }
    let mut remove = stage.install_command(&["remove"]);
    remove.env("PATH", stage.path("home/bin"));
    assert!(remove.status().unwrap().success());
    assert!(!stage.path("home/.local").exists());
}

#[test]
fn two_at_once_do_not_get_in_each_others_way() {
    let stage = Stage::with_image();
    let both = [(); 2].map(|()| {
        let mut command = stage.install_command(&["install"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    });
    let both = both.map(|child| Ended::from(child.wait_with_output().unwrap()));
    let is_done = |ended: &&Ended| ended.code == Some(0);
    assert!(both.iter().any(|ended| is_done(&ended)), "{both:?}");
    // A busy machine may keep the other one waiting for longer than it waits.
    for ended in both.iter().filter(|ended| !is_done(ended)) {
        ended.failed(&["another umwelt-install is at work"]);
    }
    assert_eq!(stage.run(&["status"]).code, Some(0));
}

#[test]
fn a_full_disk_is_told_and_leaves_no_half_program() {
    if !is_root() {
        eprintln!("skipped: a small file system can be mounted by root only");
        return;
    }
    let stage = Stage::with_image();
    // Room for the record, not for the program.
    let script = "mount -t tmpfs -o size=1m,mode=755,uid=4242,gid=4242 tmpfs \"$1\" &&
        setpriv --reuid 4242 --regid 4242 --clear-groups \"$2\" install install
        code=$?; find \"$1\" -name '.*.new'; exit $code";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(stage.path("home"))
        .arg(stage.program())
        .env("HOME", stage.path("home"));
    let ended = Ended::from(command.output().unwrap());
    if ended.stderr.contains("unshare") || ended.stderr.contains("mount:") {
        eprintln!(
            "skipped: no file system can be mounted here: {}",
            ended.stderr
        );
        return;
    }
    ended.failed(&[
        "cannot write",
        "umwelt/umwelt",
        "No space left",
        "hint: make room",
    ]);
    assert_eq!(ended.stdout, "", "{ended:?}");
}
