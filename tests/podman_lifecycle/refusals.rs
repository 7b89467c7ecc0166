//! Starts that are refused: with which exit status, and in which words.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::podman_common::sandbox::{CONFIG, Place};
use crate::podman_common::{Client, Options, PATIENCE, host, wait_for};
use crate::run::{Run, output};
use crate::traces::assert_gone;
use crate::wrapper::copy_program;

fn place() -> Option<Place> {
    host::qualifies().then(|| Place::new(Options::default()))
}

/// `umwelt-run` for the workspace of the place.
fn command(place: &Place) -> Command {
    let mut command = place.command();
    command.arg("--workspace").arg(&place.workspace);
    command
}

/// It must end by itself with this status and say each of the words.
fn assert_refused(command: &mut Command, status: i32, words: &[&str]) {
    let output = output(command);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{command:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{command:?}: {output:?}");
    for word in words {
        assert!(
            stderr.contains(word),
            "{command:?}: no {word:?} in {stderr}"
        );
    }
    let first = stderr.lines().next().unwrap_or_default();
    assert!(first.starts_with("umwelt-run: "), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
}

fn assert_workspace_refused(place: &Place, workspace: &Path, words: &[&str]) {
    let mut command = place.command();
    command.arg("--workspace").arg(workspace);
    assert_refused(&mut command, 2, words);
}

#[test]
fn unusable_workspaces_are_refused_by_name() {
    let Some(place) = place() else { return };
    let home = host::home();
    let data = home.join(".local/share");
    let cases: [(PathBuf, &str); 10] = [
        ("/".into(), "\"/\""),
        (home.clone(), "home directory"),
        ("/usr/share".into(), "\"/usr\", which belongs to the system"),
        ("/etc/ssl".into(), "\"/etc\", which belongs to the system"),
        (host::runtime_dir(), "\"/run\""),
        (place.path().to_owned(), "umwelt's configuration directory"),
        (
            place.path().join("config/umwelt"),
            "umwelt's configuration directory",
        ),
        (data.join("umwelt"), "umwelt's data directory"),
        (data.join("containers/storage"), "podman's storage"),
        (place.path().join("gone"), "No such file"),
    ];
    for (path, word) in &cases {
        if path.starts_with(&data) {
            std::fs::create_dir_all(path).unwrap();
        }
        let shown = path.to_str().unwrap();
        assert_workspace_refused(&place, path, &["cannot use", shown, word, "hint: "]);
    }
    let odd: [(&[u8], &str); 2] = [
        (b"a\nb", "its path contains a newline"),
        (b"a\xff", "its path is not UTF-8"),
    ];
    for (name, word) in odd {
        let path = place.path().join(OsStr::from_bytes(name));
        std::fs::create_dir(&path).unwrap();
        assert_workspace_refused(&place, &path, &["cannot use", word]);
    }
    let shared = place.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o1777)).unwrap();
    assert_workspace_refused(&place, &shared, &["it is shared with other users"]);
    let file = place.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert_workspace_refused(&place, &file, &["it is not a directory"]);
}

#[test]
fn current_directory_that_is_refused_needs_a_fallback() {
    let Some(place) = place() else { return };
    let home = host::home();
    let mut command = place.command();
    command.current_dir(&home);
    assert_refused(&mut command, 2, &[home.to_str().unwrap(), "home directory"]);

    let fallback = place.workspace.to_str().unwrap();
    let config = format!("fallback_workspace = \"{fallback}\"\n{CONFIG}");
    std::fs::write(place.path().join("config/umwelt/umwelt.toml"), config).unwrap();
    let list = list_of(&place, place.command().current_dir(&home));
    assert_eq!(list["workspace"], fallback, "{list}");
    let notice = list["notices"][0].as_str().unwrap();
    assert!(notice.contains(home.to_str().unwrap()), "{notice}");
    assert!(notice.contains("fallback workspace"), "{notice}");
    assert_gone(&place);
}

/// Starts a control plane, asks it for its list, and ends it.
fn list_of(place: &Place, command: &mut Command) -> serde_json::Value {
    let mut child = command.spawn().expect("umwelt-run");
    let mut client = wait_for("the socket", PATIENCE, || {
        assert_eq!(child.try_wait().unwrap(), None, "umwelt-run ended");
        Client::try_connect(&place.socket())
    });
    let list = client.call("list", json!({})).unwrap();
    client.call("shutdown", json!({})).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    list
}

#[test]
fn runtime_directory_of_the_user_is_found_without_its_variable() {
    let Some(place) = place() else { return };
    let list = list_of(&place, command(&place).env_remove("XDG_RUNTIME_DIR"));
    assert_eq!(list["workspace"], place.workspace.to_str().unwrap());
}

#[test]
fn bad_configuration_is_told_with_file_line_and_key() {
    let Some(place) = place() else { return };
    let path = place.path().join("config/umwelt/umwelt.toml");
    let shown = path.to_str().unwrap();
    let cases = [
        ("image = 'x'\nimagee = 'x'\n", "line 2", "imagee"),
        (
            "\n[resources]\ncpus = 'two'\n",
            "line 3",
            "resources.cpus: must be a number, not 'two'",
        ),
        ("[resources]\nmemory = '4q'\n", "line 2", "resources.memory"),
        ("[resources]\nnetwork = 'host'\n", "line 2", "network"),
        (
            "[[mounts]]\ntype='bind'\npath='/x'\nmode='rw'\n",
            "line 4",
            "mode",
        ),
        ("session_prefix = '../x'\n", "line 1", "session_prefix"),
        ("image = \n", "line 1", ""),
    ];
    for (text, line, key) in cases {
        std::fs::write(&path, text).unwrap();
        assert_refused(&mut command(&place), 2, &[shown, line, key]);
    }
    std::fs::write(&path, CONFIG).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    assert_refused(
        &mut command(&place),
        2,
        &[shown, "others can write it", "hint: "],
    );
}

#[test]
fn bad_usage_is_status_2() {
    let Some(place) = place() else { return };
    for args in [&["--nonsense"][..], &["--workspace"], &["word"]] {
        assert_refused(
            place.command().args(args),
            2,
            &["hint: see: umwelt-run --help"],
        );
    }
}

#[test]
fn runtime_directory_must_be_there_and_private() {
    let Some(place) = place() else { return };
    let name = "XDG_RUNTIME_DIR";
    assert_refused(
        command(&place).env(name, "relative"),
        2,
        &[name, "absolute"],
    );
    assert_refused(
        command(&place).env(name, "/nonexistent"),
        2,
        &[name, "/nonexistent", "hint: take the usual one with: unset"],
    );
    let of_root = [
        name,
        "belongs to uid 0",
        "hint: take the usual one with: unset",
    ];
    assert_refused(command(&place).env(name, "/run"), 2, &of_root);
    let open = place.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).unwrap();
    let shown = open.to_str().unwrap();
    assert_refused(
        command(&place).env(name, &open),
        2,
        &["mode 755", "chmod 700", shown],
    );
}

#[test]
fn socket_path_that_is_too_long_is_refused_and_leaves_nothing() {
    let Some(place) = place() else { return };
    let long = place.path().join("r".repeat(100));
    std::fs::create_dir(&long).unwrap();
    std::fs::set_permissions(&long, std::fs::Permissions::from_mode(0o700)).unwrap();
    let words = ["socket path", "107 bytes", "XDG_RUNTIME_DIR", "hint: "];
    assert_refused(command(&place).env("XDG_RUNTIME_DIR", &long), 2, &words);
    let left: Vec<_> = std::fs::read_dir(&long)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, [format!("{}.lock", place.name()).as_str()]);
}

#[test]
fn program_inside_the_workspace_is_refused() {
    let Some(place) = place() else { return };
    let copy = place.workspace.join("umwelt-run");
    let program = command(&place).get_program().to_owned();
    copy_program(program.as_ref(), &copy);
    let mut inside = Command::new(&copy);
    for (name, value) in command(&place).get_envs() {
        inside.env(name, value.unwrap());
    }
    inside.arg("--workspace").arg(&place.workspace);
    assert_refused(&mut inside, 1, &["lies in the workspace", "hint: "]);
}

#[test]
fn remote_podman_is_refused_wherever_it_is_set() {
    let Some(place) = place() else { return };
    for name in ["CONTAINER_HOST", "CONTAINER_CONNECTION"] {
        let words = ["podman is not local", name, "hint: unset"];
        assert_refused(
            command(&place).env(name, "ssh://box/run/podman.sock"),
            1,
            &words,
        );
    }
    let containers = place.path().join("config/containers");
    std::fs::create_dir(&containers).unwrap();
    let files = [
        ("containers.conf", "[engine]\nremote = true\n"),
        ("containers.conf", "[engine]\nactive_service = \"box\"\n"),
        (
            "podman-connections.json",
            r#"{"Connection":{"Default":"box","Connections":{"box":{"URI":"ssh://box/x"}}}}"#,
        ),
    ];
    for (name, text) in files {
        let file = containers.join(name);
        std::fs::write(&file, text).unwrap();
        let shown = file.to_str().unwrap();
        assert_refused(
            &mut command(&place),
            1,
            &["podman is not local", shown, "hint: "],
        );
        std::fs::remove_file(file).unwrap();
    }
    let elsewhere = place.path().join("elsewhere.conf");
    std::fs::write(&elsewhere, "[engine]\nremote = true\n").unwrap();
    let words = ["podman is not local", elsewhere.to_str().unwrap()];
    assert_refused(
        command(&place).env("CONTAINERS_CONF", &elsewhere),
        1,
        &words,
    );
}

#[test]
fn missing_image_is_named_with_the_command_that_builds_it() {
    let Some(place) = place() else { return };
    let config = format!("image = \"nosuch/thing:7\"\n{CONFIG}");
    std::fs::write(place.path().join("config/umwelt/umwelt.toml"), config).unwrap();
    let words = [
        "\"nosuch/thing:7\" does not exist",
        "hint: ",
        "podman pull nosuch/thing:7",
        "umwelt-install image",
    ];
    assert_refused(&mut command(&place), 1, &words);
    assert_gone(&place);
}

#[test]
fn missing_podman_is_told() {
    let Some(place) = place() else { return };
    let words = ["cannot start podman", "hint: install podman"];
    assert_refused(command(&place).env("PATH", place.path()), 1, &words);
    assert!(!place.socket().exists());
    let launched = Place::new(Options {
        launched: true,
        ..Options::default()
    });
    let report = output(
        command(&launched)
            .arg("--detach")
            .env("PATH", launched.path()),
    );
    assert_eq!(report.stdout, b"{\"listening\":true}\n");
    wait_for("the launched one to end", PATIENCE, || {
        (!launched.socket().exists()).then_some(())
    });
    assert_gone(&launched);
}

#[test]
fn refused_launch_reports_the_error_in_its_line() {
    let Some(place) = place() else { return };
    std::fs::write(place.path().join("config/umwelt/umwelt.toml"), "x = 1\n").unwrap();
    let refused = output(command(&place).arg("--detach"));
    let report: serde_json::Value = serde_json::from_slice(&refused.stdout)
        .unwrap_or_else(|error| panic!("{error}: {refused:?}"));
    assert_eq!(report["error"]["kind"], "bad_config", "{report}");
    assert!(
        report["error"]["message"]
            .as_str()
            .unwrap()
            .contains("line 1")
    );
}

#[test]
fn base_mount_that_is_missing_is_skipped_and_told() {
    let Some(place) = place() else { return };
    let gone = place.path().join("gone");
    let mount = format!(
        "[[mounts]]\ntype = \"bind\"\npath = \"{}\"\n",
        gone.display()
    );
    std::fs::write(
        place.path().join("config/umwelt/umwelt.toml"),
        format!("{CONFIG}{mount}"),
    )
    .unwrap();
    let mut run = Run::ready(&place);
    let list = run.client().call("list", json!({})).unwrap();
    let notice = list["notices"][0].as_str().unwrap_or_default();
    assert!(notice.contains(gone.to_str().unwrap()), "{list}");
    assert!(notice.contains("skipped"), "{list}");
    run.stop();
}
