//! Starting, losing and refusing the sandbox.

use std::time::Duration;

use serde_json::json;

use crate::common::home::Home;
use crate::common::stand_in::{ControlPlane, hello, wait_until};
use crate::driver::{Mcp, assert_within, echo, endless, text};

#[test]
fn failed_start_is_a_result_and_the_next_call_tries_again() {
    let home = Home::new();
    let mut mcp = Mcp::initialized(&home);
    mcp.shell(1, "x");
    // No podman on the PATH: the real umwelt-run cannot succeed.
    let refusal = mcp.refusal(1);
    assert!(refusal.starts_with("umwelt: "), "{refusal}");
    let _plane = ControlPlane::start(&home, echo);
    mcp.shell(2, "hi");
    assert_eq!(text(&mcp.result(2)), "hi\n[exit code 0, after 0.005 s]");
}

#[test]
fn death_of_the_control_plane_is_told_and_the_next_call_attaches_anew() {
    let home = Home::new();
    let plane = ControlPlane::start(&home, endless);
    let mut mcp = Mcp::initialized(&home);
    mcp.shell(1, "x");
    mcp.shell(2, "y");
    wait_until(|| plane.requests("shell").len() == 2);
    plane.hang_up();
    for id in [1, 2] {
        let refusal = mcp.refusal(id);
        assert!(
            refusal.contains("lost the sandbox while this call ran"),
            "{refusal}"
        );
        assert!(refusal.contains("hint: "), "{refusal}");
    }
    let _plane = ControlPlane::start(&home, echo);
    mcp.shell(3, "again");
    assert!(text(&mcp.result(3)).starts_with("again\n"));
}

#[test]
fn hung_control_plane_holds_up_nothing_but_calls() {
    let home = Home::new();
    let socket = home.socket(&home.workspace());
    let _hung = std::os::unix::net::UnixListener::bind(socket).unwrap();
    assert_within(Duration::from_secs(4), || {
        let mut mcp = Mcp::initialized(&home);
        mcp.shell(1, "x");
        mcp.request(2, "tools/list", &json!({}));
        mcp.answer(2);
        let (status, time) = mcp.close();
        assert!(status.success());
        assert!(mcp.refusal(1).contains("cancelled"));
        time
    });
}

#[test]
fn control_plane_of_another_version_is_refused_with_both_numbers() {
    let home = Home::new();
    let hello = json!({"api": 99});
    let _plane = ControlPlane::start_for(&home, &home.workspace(), hello, echo);
    let mut mcp = Mcp::initialized(&home);
    mcp.shell(1, "x");
    let refusal = mcp.refusal(1);
    assert!(refusal.contains("version 99, this program 1"), "{refusal}");
}

#[test]
fn refused_workspace_is_told_in_every_call_not_by_dying() {
    let home = Home::new();
    let mut command = home.command("umwelt-mcp");
    command.current_dir(home.path("home"));
    let mut mcp = Mcp::spawn(&mut command);
    let instructions = mcp.initialize("2025-11-25")["instructions"].clone();
    assert!(
        instructions.as_str().unwrap().contains("home directory"),
        "{instructions}"
    );
    mcp.request(0, "tools/list", &json!({}));
    mcp.result(0);
    for id in [1, 2] {
        mcp.shell(id, "x");
        let refusal = mcp.refusal(id);
        assert!(
            refusal.contains("home directory") && refusal.contains("hint: "),
            "{refusal}"
        );
    }
}

#[test]
fn bad_config_is_told_and_a_repaired_one_counts() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, echo);
    home.write_config("imag = 1\n");
    let mut mcp = Mcp::initialized(&home);
    mcp.shell(1, "x");
    let refusal = mcp.refusal(1);
    assert!(
        refusal.contains("umwelt.toml") && refusal.contains("line 1"),
        "{refusal}"
    );
    home.write_config("");
    mcp.shell(2, "x");
    mcp.result(2);
}

#[test]
fn open_runtime_directory_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    let _plane = ControlPlane::start(&home, echo);
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(home.path("run"), open).unwrap();
    let mut mcp = Mcp::initialized(&home);
    mcp.shell(1, "x");
    let refusal = mcp.refusal(1);
    assert!(refusal.contains("has mode 755"), "{refusal}");
}

#[test]
fn fallback_workspace_is_used_and_told_once() {
    let home = Home::new();
    let project = home.workspace();
    home.write_config(&format!("fallback_workspace = {project:?}\n"));
    let _plane = ControlPlane::start(&home, echo);
    let mut command = home.command("umwelt-mcp");
    command.current_dir(home.path("home"));
    let mut mcp = Mcp::spawn(&mut command);
    mcp.initialize("2025-11-25");
    mcp.shell(1, "x");
    let result = mcp.result(1);
    let notice = result["structuredContent"]["notices"][0].as_str().unwrap();
    assert!(notice.contains("using the fallback workspace"), "{notice}");
    assert!(text(&result).contains("\n[notice: "));
    mcp.shell(2, "x");
    assert_eq!(mcp.result(2)["structuredContent"]["notices"], json!([]));
}

#[test]
fn workspace_option_names_another_directory() {
    let home = Home::new();
    let other = home.path("other");
    std::fs::create_dir(&other).unwrap();
    let plane = ControlPlane::start_for(&home, &other, hello("ready"), echo);
    let mut command = home.command("umwelt-mcp");
    command.arg("--workspace").arg(&other);
    let mut mcp = Mcp::spawn(&mut command);
    mcp.initialize("2025-11-25");
    mcp.shell(1, "x");
    mcp.result(1);
    plane.wait_for("shell");
}
