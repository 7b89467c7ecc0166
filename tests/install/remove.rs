//! remove: nothing is left but what the user wrote.

use std::os::unix::net::UnixStream;

use crate::stage::Stage;

#[test]
fn listings_before_install_and_after_remove_are_the_same() {
    let stage = Stage::with_image();
    stage.make_dir("home/.config");
    let before = stage.listing("home");
    stage.done(&["install"]);
    assert_ne!(stage.listing("home"), before);
    stage.done(&["install"]);
    // What a control plane leaves.
    stage.make_dir("home/.local/state/umwelt/umwelt-0123abcd");
    stage.write("home/.local/state/umwelt/umwelt-0123abcd/run.log", "log\n");
    stage.done(&["remove"]);
    let mut after = stage.listing("home");
    after.retain(|path, _| !path.ends_with("log") && !path.ends_with("imported.tar"));
    assert_eq!(after, before);
}

#[test]
fn locks_of_sandboxes_that_have_ended_go_too() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    let names = [
        "umwelt-0123abcd",
        "umwelt-0123abce",
        "umwelt-other",
        "else-0123abcd",
    ];
    for name in names {
        stage.write(&format!("run/{name}.lock"), "");
    }
    // One that just starts.
    let held = std::fs::File::open(stage.path("run/umwelt-0123abce.lock")).unwrap();
    held.lock().unwrap();
    let mut remove = stage.install_command(&["remove"]);
    remove.env("XDG_RUNTIME_DIR", stage.path("run"));
    assert!(remove.status().unwrap().success());
    for (name, stays) in names.into_iter().zip([false, true, true, false]) {
        let path = stage.path(&format!("run/{name}.lock"));
        assert_eq!(path.exists(), stays, "{name}");
    }
}

#[test]
fn the_installed_program_can_remove_itself() {
    let stage = Stage::with_image();
    let before = stage.listing("home");
    stage.done(&["install"]);
    let mut remove = stage.command(stage.path("home/.local/bin/umwelt-install"));
    assert!(remove.arg("remove").status().unwrap().success());
    let mut after = stage.listing("home");
    after.retain(|path, _| !path.ends_with("log") && !path.ends_with("imported.tar"));
    assert_eq!(after, before);
}

#[test]
fn what_the_user_wrote_is_kept_and_named_until_it_is_purged() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    for name in [
        "home/.local/state/umwelt/trust",
        "home/.local/state/umwelt/umwelt-0123abcd",
    ] {
        stage.make_dir(name);
    }
    let kept = [
        ("home/.config/umwelt/umwelt.toml", "image = \"mine\"\n"),
        (
            "home/.local/share/umwelt/journal-umwelt-0123abcd.jsonl",
            "{}\n",
        ),
        (
            "home/.local/share/umwelt/egress/audit-0123abcd.jsonl",
            "{}\n",
        ),
        ("home/.local/state/umwelt/trust/0123abcd.json", "{}\n"),
    ];
    for (name, text) in kept {
        stage.write(name, text);
    }
    stage.write("home/.local/state/umwelt/umwelt-0123abcd/run.log", "log\n");
    let said = stage.done(&["remove"]);
    for (name, text) in kept {
        assert_eq!(stage.read(name), text);
        let path = stage.path(name);
        assert!(
            said.contains(&format!("kept      {}", path.display())),
            "{said}"
        );
    }
    assert!(said.contains("rm -r "), "{said}");
    for gone in [
        "home/.local/lib",
        "home/.local/bin",
        "home/.local/share/umwelt/install.json",
        "home/.local/share/umwelt/egress/ca.key",
        "home/.local/share/umwelt/egress/ca.pem",
        "home/.local/state/umwelt/umwelt-0123abcd",
    ] {
        assert!(!stage.path(gone).exists(), "{gone}");
    }
    stage.done(&["remove", "--purge"]);
    for (name, _) in kept {
        assert!(!stage.path(name).exists(), "{name}");
    }
    assert!(!stage.path("home/.local/share/umwelt").exists());
}

#[test]
fn what_is_kept_is_counted_by_kind_and_folder() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    let share = "home/.local/share/umwelt";
    stage.make_dir("home/.local/state/umwelt/trust");
    for sid in ["0123abcd", "4567abcd", "89ababcd"] {
        stage.write(&format!("{share}/journal-umwelt-{sid}.jsonl"), "{}\n");
        stage.make_dir(&format!("{share}/egress/audit-umwelt-{sid}"));
        stage.write(
            &format!("{share}/egress/audit-umwelt-{sid}/audit.jsonl"),
            "{}\n",
        );
        stage.write(
            &format!("home/.local/state/umwelt/trust/{sid}.json"),
            "{}\n",
        );
        stage.write(&format!("home/.local/state/umwelt/trust/{sid}.lock"), "");
    }
    let said = stage.done(&["remove"]);
    for (what, folder) in [
        ("3 journals", share),
        ("3 files of audits", "home/.local/share/umwelt/egress"),
        ("3 records of trust", "home/.local/state/umwelt/trust"),
        ("3 empty files for locks", "home/.local/state/umwelt/trust"),
    ] {
        let line = format!("kept      {what} in {}\n", stage.path(folder).display());
        assert!(said.contains(&line), "{line} in {said}");
    }
    let kept = said.lines().filter(|line| line.starts_with("kept "));
    assert_eq!(kept.count(), 4, "{said}");
}

#[test]
fn settings_of_clients_that_name_umwelt_are_named_and_stay() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    for name in ["home/.claude", "home/.codex", "home/.work", "home/dotfiles"] {
        stage.make_dir(name);
    }
    stage.write("home/.claude/settings.json", "{}\n");
    stage.write("home/dotfiles/codex", "# mine\n");
    let link = stage.path("home/.codex/config.toml");
    std::os::unix::fs::symlink("../dotfiles/codex", &link).unwrap();
    // These two are others'.
    stage.write("home/.claude.json", "{\"projects\": \"/home/u/umwelt\"}\n");
    stage.write("home/dotfiles/codex.before-umwelt-mine", "");
    for (client, file) in [
        ("claude", "home/.claude/settings.json"),
        ("claude", "home/.work/.claude.json"),
        ("codex", "home/.codex/config.toml"),
    ] {
        let file = stage.path(file);
        stage.done(&["client", client, "--merge", file.to_str().unwrap(), "--yes"]);
    }
    let names = [
        ("client", "home/.claude/settings.json"),
        ("client", "home/.work/.claude.json"),
        ("client", "home/dotfiles/codex"),
        ("copy", "home/.claude/settings.json.before-umwelt-1"),
        ("copy", "home/dotfiles/codex.before-umwelt-1"),
    ];
    let before = names.map(|(_, name)| stage.read(name));
    let said = stage.done(&["remove"]);
    for (step, name) in names {
        let path = format!(": {}\n", stage.path(name).display());
        let mut lines = said.split_inclusive('\n');
        assert!(
            lines.any(|line| line.starts_with(step) && line.ends_with(&path)),
            "{name}: {said}"
        );
    }
    let told = |step: &str| said.lines().filter(|line| line.starts_with(step)).count();
    assert_eq!((told("client "), told("copy ")), (3, 2), "{said}");
    assert!(said.contains("to remove these copies: rm "), "{said}");
    assert_eq!(names.map(|(_, name)| stage.read(name)), before);
}

#[test]
fn a_link_and_an_image_of_another_stay() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    let ctl = stage.path("home/.local/bin/umwelt-ctl");
    std::fs::remove_file(&ctl).unwrap();
    stage.write("home/.local/bin/umwelt-ctl", "mine");
    stage.write(
        "home/podman/images/umwelt-egress-gw_latest",
        "beef umwelt.program other\n",
    );
    stage.podman_log();
    stage.done(&["remove"]);
    assert!(!stage.podman_log().contains("rmi"));
    assert_eq!(stage.read("home/.local/bin/umwelt-ctl"), "mine");
    assert!(!stage.path("home/.local/bin/umwelt-run").is_symlink());
    assert!(
        stage
            .path("home/podman/images/umwelt-egress-gw_latest")
            .exists()
    );
    // It was not built here.
    assert!(stage.path("home/podman/images/umwelt_latest").exists());
}

#[test]
fn nothing_is_removed_while_sandboxes_run() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    let before = stage.listing("home/.local");
    let labels =
        r#"{"umwelt.prefix":"umwelt","umwelt.sid":"0123abcd","umwelt.workspace":"/home/u/p"}"#;
    let id = "0123456789abcdef".repeat(4);
    let ps = format!(r#"[{{"Id":"{id}","Names":["umwelt-0123abcd"],"Labels":{labels}}}]"#);
    stage.write("home/podman/ps.json", ps);
    let ended = stage.run(&["remove"]);
    ended.failed(&[
        "sandboxes run: /home/u/p\n",
        "with: umwelt-ctl stop /home/u/p\n",
    ]);
    assert_eq!(stage.listing("home/.local"), before);

    // One that has no container yet has a socket.
    std::fs::remove_file(stage.path("home/podman/ps.json")).unwrap();
    let socket = stage.path("run/umwelt-beefbeef.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    stage.own(&socket);
    let run = |stage: &Stage| {
        let mut command = stage.install_command(&["remove"]);
        command.env("XDG_RUNTIME_DIR", stage.path("run"));
        crate::stage::Ended::from(command.output().unwrap())
    };
    run(&stage).failed(&["sandboxes run: beefbeef"]);
    assert_eq!(stage.listing("home/.local"), before);
    drop(listener);
    // A child that another test forks has it too, for a moment.
    while UnixStream::connect(&socket).is_ok() {}
    assert_eq!(run(&stage).code, Some(0));
}

/// It has two containers, and a socket.
#[test]
fn a_sandbox_that_runs_is_named_once() {
    let stage = Stage::with_image();
    let socket = stage.path("run/umwelt-0123abcd.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    stage.own(&socket);
    let entry = |id: &str, name: &str, more: &str| {
        let id = id.repeat(32);
        let labels = format!(r#""umwelt.prefix":"umwelt","umwelt.sid":"0123abcd"{more}"#);
        format!(r#"{{"Id":"{id}","Names":["{name}"],"Labels":{{{labels}}}}}"#)
    };
    let workspace = r#","umwelt.workspace":"/home/u/p q""#;
    let sandbox = entry("01", "umwelt-0123abcd", workspace);
    let gateway = entry("02", "umwelt-egress-gw-0123abcd", "");
    for ps in [
        format!("[{sandbox},{gateway}]"),
        format!("[{gateway},{sandbox}]"),
    ] {
        stage.write("home/podman/ps.json", ps);
        let mut command = stage.install_command(&["remove"]);
        command.env("XDG_RUNTIME_DIR", stage.path("run"));
        crate::stage::Ended::from(command.output().unwrap()).failed(&[
            "sandboxes run: /home/u/p q\n",
            "with: umwelt-ctl stop '/home/u/p q'\n",
        ]);
    }
}

#[test]
fn nothing_is_removed_when_podman_cannot_tell_what_runs() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    let before = stage.listing("home/.local");
    stage.write("home/podman/broken", "");
    stage.run(&["remove"]).failed(&["podman ps", "broken"]);
    assert_eq!(stage.listing("home/.local"), before);
}

#[test]
fn what_is_not_installed_can_be_removed() {
    let stage = Stage::new();
    let before = stage.listing("home/bin");
    assert_eq!(stage.done(&["remove"]), "");
    assert_eq!(stage.listing("home/bin"), before);
    assert!(!stage.path("home/.local").exists());
}
