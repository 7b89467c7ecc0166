//! status and list.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;

use serde_json::{Value, json};

use crate::control_plane;
use crate::home::{Home, dead_socket, eventually, finish, sid_of};

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn leftover(sid: &str, workspace: &str) -> String {
    json!([
        {"Id": ID, "Names": [format!("umwelt-{sid}")], "Labels": {
            "umwelt.prefix": "umwelt", "umwelt.sid": sid, "umwelt.workspace": workspace}},
        {"Id": ID, "Names": ["somebody-elses"], "Labels": {"umwelt.prefix": "umwelt"}},
    ])
    .to_string()
}

#[test]
fn no_sandboxes_are_said_to_be_none() {
    let ran = Home::new().run(&["status"]);
    assert_eq!((ran.code, ran.text()), (Some(0), "no sandboxes\n"));
    assert_eq!(ran.stderr, "");
    let ran = Home::new().run(&["status", "--json"]);
    assert_eq!((ran.code, ran.text()), (Some(0), "[]\n"));
}

#[test]
fn live_dead_and_left_ones_are_shown_together() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    dead_socket(&home.path("runtime/umwelt-00000000.sock"));
    std::fs::write(home.path("runtime/umwelt-11111111.sock"), "a file").unwrap();
    dead_socket(&home.path("runtime/other-22222222.sock"));
    // A lock file tells whose it was, where that can be so.
    let killed = sid_of("/gone/q");
    for (sid, workspace) in [(killed.as_str(), "/gone/q"), ("00000000", "/gone/r")] {
        let socket = home.path(&format!("runtime/umwelt-{sid}.sock"));
        std::fs::write(socket.with_extension("lock"), workspace).unwrap();
        if !socket.exists() {
            dead_socket(&socket);
        }
    }
    home.podman(&leftover("ffffffff", "/gone/p"));
    let ran = home.run(&["status"]);
    let mut rows: Vec<Vec<&str>> = ran
        .text()
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let heading = rows.remove(0);
    assert_eq!(
        heading,
        ["SID", "STATE", "UPTIME", "CMDS", "CLIENTS", "WORKSPACE"]
    );
    let live = vec![&home.sid, "ready", "1m", "1s", "2/34", "1", &home.workspace];
    assert_eq!(rows.remove(0), live);
    let mut expected = vec![
        vec!["00000000", "dead", "-", "-", "-", "-"],
        vec![&killed, "dead", "-", "-", "-", "/gone/q"],
        vec!["ffffffff", "dead", "-", "-", "-", "/gone/p"],
    ];
    expected.sort();
    assert_eq!(rows, expected);
    assert_eq!(ran.code, Some(0));
}

#[test]
fn running_ones_do_not_wait_for_podman() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    let containers = home.path("containers");
    std::fs::remove_file(&containers).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &containers, kind, mode, 0).unwrap();
    let mut ctl = home.ctl(&["status"]).spawn().unwrap();
    let mut lines = BufReader::new(ctl.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("SID "));
    assert!(lines.next().unwrap().unwrap().starts_with(&home.sid));
    // podman hangs for as long as nobody writes what it should print.
    let answer = leftover("ffffffff", "/gone/p");
    eventually("podman is asked", || {
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let mut options = std::fs::OpenOptions::new();
        let fifo = options.write(true).custom_flags(flags).open(&containers);
        fifo.is_ok_and(|mut fifo| fifo.write_all(answer.as_bytes()).is_ok())
    });
    assert!(lines.next().unwrap().unwrap().starts_with("ffffffff  dead"));
    assert!(lines.next().is_none());
    assert!(ctl.wait().unwrap().success());
}

#[test]
fn problems_of_the_network_are_told() {
    let home = Home::new();
    let (workspace, sid) = (home.workspace.clone(), home.sid.clone());
    let _control_plane = home.control_plane_with(move |connection, request| {
        if request["method"] != "status" {
            return false;
        }
        let mut status = control_plane::status(&workspace, &sid);
        status["egress"] = json!({"gateway": "ready", "gateway_restarts": 0, "policy_digest": "d",
            "audit_problem": "no room\x1b", "resolver_problem": "nobody answers"});
        connection.result(request["id"].as_u64().unwrap(), status);
        true
    });
    let ran = home.run(&["status"]);
    assert!(ran.text().contains(" ready "), "{ran:?}");
    let wanted = |problem: &str| format!("the network of {}: {problem}\n", home.sid);
    assert!(ran.stderr.contains(&wanted("no room\\x1b")), "{ran:?}");
    assert!(ran.stderr.contains(&wanted("nobody answers")), "{ran:?}");
    let ran = home.run(&["status", "--json"]);
    let rows: Value = serde_json::from_str(ran.text()).unwrap();
    assert_eq!(rows[0]["egress"]["resolver_problem"], "nobody answers");
    assert_eq!(ran.stderr, "");
}

#[test]
fn json_tells_what_the_table_tells() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    home.podman(&leftover("ffffffff", "/gone/\u{9b}p"));
    let ran = home.run(&["status", "--json"]);
    assert!(!ran.text().contains('\u{9b}'));
    let rows: Value = serde_json::from_str(ran.text()).unwrap();
    let row = |sid: &str| {
        let rows = rows.as_array().unwrap();
        rows.iter().find(|row| row["sid"] == sid).unwrap()
    };
    let live = row(&home.sid);
    assert_eq!(live["state"], "ready");
    assert_eq!(live["workspace"], home.workspace);
    assert_eq!(live["commands_total"], 34);
    assert_eq!(live["pid"], std::process::id());
    let dead = row("ffffffff");
    assert_eq!(dead["state"], "dead");
    assert_eq!(dead["workspace"], "/gone/\u{9b}p");
    assert_eq!(dead["containers"], json!(["umwelt-ffffffff"]));
    assert_eq!(dead["pid"], Value::Null);
}

#[test]
fn a_silent_control_plane_is_hung_and_delays_nobody_for_long() {
    let home = Home::new();
    let _control_plane = home.control_plane_with(|_, request| request["method"] == "status");
    let ran = home.run(&["status"]);
    assert!(ran.text().contains(" hung "), "{ran:?}");
    assert!(ran.stderr.contains("does not answer"), "{ran:?}");
    assert_eq!(ran.code, Some(0));
}

#[test]
fn garbage_and_endless_lines_are_named_and_survived() {
    for (bytes, problem) in [
        (&b"garbage\n"[..], "cannot read an answer"),
        (b"{\"id\":2,\"result\":{}}\n", "cannot read an answer"),
        (b"", "closed the connection"),
        (&vec![b'x'; 5 << 20], "does not answer"),
        (
            &[&vec![b'x'; 5 << 20], &b"\n"[..]].concat(),
            "a line of more than",
        ),
    ] {
        let home = Home::new();
        let bytes = bytes.to_vec();
        let _control_plane = home.control_plane_with(move |connection, request| {
            if request["method"] == "status" {
                connection.raw(&bytes, &[]);
                if bytes.is_empty() {
                    connection.close();
                }
                return true;
            }
            false
        });
        let ran = home.run(&["status"]);
        assert!(ran.stderr.contains(problem), "{problem}: {}", ran.stderr);
        assert_eq!(ran.code, Some(0));
    }
}

#[test]
fn names_cannot_drive_the_terminal() {
    let home = Home::new();
    let evil = "/w\u{1b}]0;x\u{7}\n00000000  ready";
    let _control_plane = home.control_plane_with(move |connection, request| {
        let id = request["id"].as_u64().unwrap();
        match request["method"].as_str() {
            Some("status") => connection.result(id, control_plane::status(evil, "\u{1b}c")),
            Some("list") => connection.result(id, control_plane::list(evil)),
            _ => return false,
        }
        true
    });
    home.podman(&leftover("ffffffff", evil));
    for args in [&["status"][..], &["list", &home.sid], &["status", "--json"]] {
        let ran = home.run(args);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(!ran.text().contains(['\u{1b}', '\u{7}']), "{}", ran.text());
        assert!(!ran.text().contains("\n00000000"), "{}", ran.text());
    }
}

#[test]
fn without_podman_the_rest_is_shown_with_a_note() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    home.no_podman();
    let mut ctl = home.ctl(&["status"]);
    ctl.env("PATH", home.bin());
    let ran = finish(ctl.spawn().unwrap());
    assert!(ran.text().contains("ready"), "{ran:?}");
    assert!(ran.stderr.contains("podman was not found"), "{ran:?}");
    assert_eq!(ran.code, Some(0));
}

#[test]
fn colour_is_for_terminals_of_people_who_want_it() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    let on_terminal = |no_color: &str| {
        let (master, slave) = control_plane::open_pty(24, 200);
        let mut ctl = home.ctl(&["status"]);
        ctl.env("NO_COLOR", no_color).stdout(slave);
        assert_eq!(finish(ctl.spawn().unwrap()).code, Some(0));
        drop(ctl);
        let mut shown = Vec::new();
        // The end of a terminal is an error.
        let _end = std::fs::File::from(master).read_to_end(&mut shown);
        String::from_utf8(shown).unwrap()
    };
    assert!(on_terminal("").contains("\x1b[32mready\x1b[0m"));
    assert!(!on_terminal("1").contains('\x1b'));
    assert!(!home.run(&["status"]).text().contains('\x1b'));
}

#[test]
fn an_open_runtime_directory_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(home.path("runtime"), open).unwrap();
    let ran = home.run(&["status"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("hint: run: chmod 700"), "{ran:?}");
}

#[test]
fn another_prefix_is_another_installation() {
    let home = Home::new();
    std::fs::create_dir(home.path("config/umwelt")).unwrap();
    std::fs::write(
        home.path("config/umwelt/umwelt.toml"),
        "session_prefix = 'two'\n",
    )
    .unwrap();
    let _control_plane = home.control_plane();
    assert_eq!(home.run(&["status"]).text(), "no sandboxes\n");
    assert!(home.podman_log().contains("label=umwelt.prefix=two"));
}

#[test]
fn list_shows_a_running_sandbox() {
    let home = Home::new();
    let _control_plane = home.control_plane();
    for word in [&home.workspace, &home.sid] {
        let ran = home.run(&["list", word]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        for line in [
            "network    none\n",
            "memory     4g\n",
            "tmpfs  1g    umwelt     /tmp\n",
            "note: take care\n",
        ] {
            assert!(ran.text().contains(line), "{}", ran.text());
        }
    }
    let mut ctl = home.ctl(&["list", "--json"]);
    let ran = finish(ctl.current_dir(&home.workspace).spawn().unwrap());
    let list: Value = serde_json::from_str(ran.text()).unwrap();
    assert_eq!(list["mounts"][1]["size"], 1 << 30);
}

#[test]
fn list_of_what_does_not_run_says_so() {
    let home = Home::new();
    let ran = home.run(&["list", &home.workspace]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("no sandbox is running for"), "{ran:?}");
}
