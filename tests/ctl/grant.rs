//! grant, revoke, and how list shows what came of them.

use serde_json::{Value, json};

use crate::home::Home;

#[test]
fn grants_and_revokes_reach_the_control_plane_as_they_were_meant() {
    let home = Home::new();
    let control_plane = home.control_plane();
    for (args, wanted) in [
        (
            &["grant"][..],
            json!({"path": "/srv/x", "mode": "ro", "persist": false, "file": false}),
        ),
        (
            &["grant", "--ro"],
            json!({"path": "/srv/x", "mode": "ro", "persist": false, "file": false}),
        ),
        (
            &["grant", "--rw", "--persist"],
            json!({"path": "/srv/x", "mode": "rw", "persist": true, "file": false}),
        ),
        (
            &["grant", "--file"],
            json!({"path": "/srv/x", "mode": "ro", "persist": false, "file": true}),
        ),
        (&["revoke"], json!({"path": "/srv/x"})),
    ] {
        let args = [args, &[&home.workspace, "/srv/x"]].concat();
        let ran = home.run(&args);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        let asked = control_plane.requests(args[0]).pop().unwrap();
        assert_eq!(asked["params"], wanted);
        let shown = match wanted["mode"].as_str() {
            Some(mode) => format!("{mode}  /srv/x\n"),
            None => "not shown  /srv/x\n".to_owned(),
        };
        assert!(ran.text().starts_with(&shown), "{ran:?}");
        let persisted = ran.text().contains(".umwelt.toml was changed");
        assert_eq!(persisted, wanted["persist"] == true);
    }
}

#[test]
fn relative_path_starts_where_the_person_is() {
    let home = Home::new();
    let control_plane = home.control_plane();
    let mut command = home.ctl(&["grant", &home.workspace, "data/x"]);
    command.current_dir(home.path("home"));
    let ran = crate::home::finish(command.spawn().unwrap());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let asked = control_plane.requests("grant").pop().unwrap();
    assert_eq!(
        asked["params"]["path"],
        home.path("home/data/x").to_str().unwrap()
    );
}

#[test]
fn tilde_that_no_shell_has_expanded_is_the_home_directory() {
    let home = Home::new();
    let control_plane = home.control_plane();
    for subcommand in ["grant", "revoke"] {
        let ran = home.run(&[subcommand, &home.workspace, "~/data"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let asked = control_plane.requests(subcommand).pop().unwrap();
        let wanted = home.path("home/data");
        assert_eq!(asked["params"]["path"], wanted.to_str().unwrap());
    }
    let mut command = home.ctl(&["grant", &home.workspace, "./~/data"]);
    command.current_dir(home.path("home"));
    let ran = crate::home::finish(command.spawn().unwrap());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let asked = control_plane.requests("grant").pop().unwrap();
    let wanted = home.path("home/~/data");
    assert_eq!(asked["params"]["path"], wanted.to_str().unwrap());
}

#[test]
fn json_is_the_whole_answer() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    let ran = home.run(&["grant", "--json", &home.workspace, "/srv/x"]);
    let answer: Value = serde_json::from_str(ran.text()).unwrap();
    assert_eq!(answer["applied"], "live");
    assert_eq!(answer["mounts"][0]["source"], "session");
}

#[test]
fn refusal_is_told_with_its_reason() {
    let home = Home::new();
    let _control_plane = home.control_plane_with(|connection, request| {
        let is_change = request["method"] == "grant" || request["method"] == "revoke";
        if is_change {
            let id = request["id"].as_u64().unwrap();
            connection.error(id, "refused", "\"/etc\u{1b}[31m\" belongs to the system");
        }
        is_change
    });
    for name in ["grant", "revoke"] {
        let ran = home.run(&[name, &home.workspace, "/etc"]);
        assert_eq!(ran.code, Some(1));
        assert_eq!(
            ran.stderr,
            "umwelt-ctl: \"/etc\\x1b[31m\" belongs to the system\n"
        );
    }
}

#[test]
fn without_a_sandbox_nothing_is_started() {
    let home = Home::new();
    let ran = home.run(&["grant", &home.workspace, "/srv/x"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("no sandbox is running"), "{ran:?}");
    let start = format!(
        "hint: start one with: umwelt-run --workspace {}\n",
        home.workspace
    );
    assert!(ran.stderr.contains(&start), "{ran:?}");
    assert!(
        ran.stderr.contains("accept it with: umwelt-ctl trust /"),
        "{ran:?}"
    );
}

#[test]
fn both_operands_are_needed_and_wrong_options_refused() {
    let home = Home::new();
    let control_plane = home.control_plane();
    let workspace = home.workspace.as_str();
    for (args, wanted) in [
        (&["grant"][..], "needs a workspace and a path"),
        (&["grant", workspace], "needs a workspace and a path"),
        (&["revoke", workspace], "needs a workspace and a path"),
        (
            &["grant", workspace, "/a", "/b"],
            "takes a workspace and a path: \"/b\" is one word too many",
        ),
        (
            &["grant", "--rw", "--file", workspace, "/a"],
            "exclude each other",
        ),
        (
            &["grant", "--ro", "--rw", workspace, "/a"],
            "\"--ro\" and \"--rw\" exclude each other",
        ),
        (
            &["revoke", "--rw", workspace, "/a"],
            "unknown option \"--rw\"",
        ),
    ] {
        let ran = home.run(args);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains(wanted), "{ran:?}");
    }
    assert!(control_plane.requests("grant").is_empty());
}

#[test]
fn list_tells_session_and_persisted_grants_apart() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    let ran = home.run(&["list", &home.workspace]);
    let rows: Vec<Vec<&str>> = ran
        .text()
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    for row in [
        ["rw", "-", "session", "/srv/a"],
        ["ro", "-", "persisted", "/srv/b"],
    ] {
        assert!(rows.iter().any(|shown| *shown == row), "{rows:?}");
    }
}
