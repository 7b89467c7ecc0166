//! Changes that reach the running container: nothing in it is ended.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::podman_common::{Client, Options, PATIENCE, host, sandbox::Place, wait_for};
use crate::{
    MASKED, fails, granted, granted_file, is, listed, masked_place, place_with_base, refusal,
    revoked, start, write,
};

/// Answers each connection with a number that only it can know.
const SERVER: &str = r#"
import os, socket, sys
server = socket.create_server(("127.0.0.1", 8123))
secret = os.urandom(8).hex()
print("listening", flush=True)
while True:
    connection, _ = server.accept()
    while connection.recv(1):
        connection.send(secret.encode())
"#;

/// Keeps one connection to the server for all questions.
const CLIENT: &str = r#"
import socket, sys
connection = socket.create_connection(("127.0.0.1", 8123))
print("connected", flush=True)
while True:
    open("ask").read()
    connection.send(b"x")
    open("answer", "w").write(connection.recv(16).decode())
"#;

fn live(reply: &Value) {
    assert_eq!(reply["applied"], "live", "{reply}");
    assert_eq!(reply["lost"], json!([]), "{reply}");
}

/// Starts what runs for as long as the test does, and waits until it is heard.
fn start_for_long(client: &mut Client, command: &str) {
    let params = json!({"command": command, "stream": true, "timeout_s": 300});
    let id = client.send("shell", params);
    let event = client.receive_where("its first output", |message| message["id"] == id);
    assert!(event.is_some_and(|event| event.get("event").is_some()));
}

fn ask(client: &mut Client) -> String {
    client.output("timeout 20 sh -c 'echo x >ask; cat answer'")
}

#[test]
fn server_keeps_its_connection_through_grants_and_revokes() {
    if !host::qualifies() {
        return;
    }
    let place = place_with_base();
    for name in ["base/x/file", "a/file", "b/file", "project/x"] {
        write(&place.path().join(name), "seen\n");
    }
    write(&place.path().join("project/server.py"), SERVER);
    write(&place.path().join("project/client.py"), CLIENT);
    let (sandbox, mut client, dir) = start(place);
    client.output("mkfifo ask answer");
    let mut other = sandbox.client();
    start_for_long(&mut other, "python3 server.py");
    start_for_long(&mut other, "python3 client.py");
    let before = ask(&mut client);
    assert_eq!(before.len(), 16);
    let init = sandbox.init_pid();

    let paths = ["a", "b", "base/x"].map(|name| dir.join(name));
    for (path, mode) in paths.iter().zip(["rw", "ro", "rw"]) {
        live(&granted(&mut client, path, mode));
        assert_eq!(listed(&mut client, path), is(mode, "session"));
        assert_eq!(client.output(&format!("cat {path:?}/file")), "seen\n");
        let writes = client.shell(&format!("touch {path:?}/made"))["code"] == 0;
        assert_eq!(writes, mode == "rw", "{path:?}");
    }
    for path in &paths[1..] {
        live(&revoked(&mut client, path));
    }
    fails(&mut client, &format!("cat {:?}/file", paths[1]));
    // What the base config shows is seen again, as it shows it.
    assert_eq!(client.output(&format!("cat {:?}/file", paths[2])), "seen\n");
    fails(&mut client, &format!("touch {:?}/made", paths[2]));
    assert_eq!(ask(&mut client), before);
    assert_eq!(sandbox.init_pid(), init);
    sandbox.end_and_check();
}

#[test]
fn attached_mount_has_the_flags_of_the_others() {
    if !host::qualifies() {
        return;
    }
    let place = Place::new(Options::default());
    write(&place.path().join("a/file"), "seen\n");
    let (sandbox, mut client, dir) = start(place);
    for (path, mode) in [("a", "rw"), ("a", "ro")] {
        let path = dir.join(path);
        granted(&mut client, &path, mode);
        let entry = client.output(&format!(
            "grep -F ' {} ' /proc/self/mountinfo | tail -n 1",
            path.display()
        ));
        let options = entry.split(' ').nth(5).unwrap();
        for flag in [mode, "nosuid", "nodev"] {
            assert!(options.split(',').any(|option| option == flag), "{entry}");
        }
        assert!(
            !entry.contains("shared:") && !entry.contains("master:"),
            "{entry}"
        );
        revoked(&mut client, &path);
    }
    sandbox.end_and_check();
}

#[test]
fn what_is_in_use_is_taken_away_by_a_new_container() {
    if !host::qualifies() {
        return;
    }
    let place = Place::new(Options::default());
    write(&place.path().join("a/file"), "seen\n");
    let (sandbox, mut client, dir) = start(place);
    let path = dir.join("a");
    for hold in [
        "cd {} && echo on && sleep 86400.21",
        "exec 5<{}/file; echo on; sleep 86400.21",
    ] {
        live(&granted(&mut client, &path, "ro"));
        let mut other = sandbox.client();
        let held = other.start_and_hear(&hold.replace("{}", &format!("{path:?}")));
        let reply = revoked(&mut client, &path);
        assert_eq!(reply["applied"], "recreated", "{reply}");
        assert_eq!(other.answer(held).unwrap()["ended"], "lost");
        fails(&mut client, &format!("ls {path:?}"));
    }
    sandbox.end_and_check();
}

#[test]
fn what_was_attached_is_in_the_next_container_too() {
    if !host::qualifies() {
        return;
    }
    let place = masked_place();
    write(&place.path().join("a/file"), "seen\n");
    let (sandbox, mut client, dir) = start(place);
    let path = dir.join("a");
    live(&granted(&mut client, &path, "rw"));
    // A mask below it takes a new container.
    let reply = granted(&mut client, &dir.join("masked"), "ro");
    assert_eq!(reply["applied"], "recreated", "{reply}");
    assert_eq!(client.output(&format!("cat {path:?}/file")), "seen\n");
    // There it can be detached as well.
    live(&revoked(&mut client, &path));
    fails(&mut client, &format!("ls {path:?}/file"));
    sandbox.end_and_check();
}

#[test]
fn link_planted_at_the_mount_point_leads_nowhere() {
    if !host::qualifies() {
        return;
    }
    let (sandbox, mut client, _) = start(Place::new(Options::default()));
    // Directly in the scratch home, where commands can put anything.
    let temp = || tempfile::Builder::new().prefix("tb-planted-").to_owned();
    let tree = temp().tempdir_in(host::home()).unwrap();
    let file = temp().tempfile_in(host::home()).unwrap();
    write(&tree.path().join("file"), "seen\n");
    write(file.path(), "single\n");
    client.output("mkdir copy");
    client.output(&format!("ln -s $PWD/copy {:?}", tree.path()));
    client.output(&format!("ln -s $PWD/stolen {:?}", file.path()));
    granted(&mut client, tree.path(), "rw");
    granted_file(&mut client, file.path());
    let shown = format!("cat {:?}/file {:?}", tree.path(), file.path());
    assert_eq!(client.output(&shown), "seen\nsingle\n");
    let project = sandbox.workspace();
    assert_eq!(project.join("copy").read_dir().unwrap().count(), 0);
    assert!(!project.join("stolen").exists());
    sandbox.end_and_check();
}

#[test]
fn directory_swapped_while_it_is_granted_is_never_shown() {
    if !host::qualifies() {
        return;
    }
    let place = masked_place();
    let dir = place.path().canonicalize().unwrap();
    write(&dir.join("swap/one/file"), "seen\n");
    let (sandbox, mut client, _) = start(place);
    let (path, aside) = (dir.join("swap/one"), dir.join("swap/aside"));
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // A link to what is hidden takes the place of the directory, and
            // gives it back, all the time.
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                std::fs::rename(&path, &aside).unwrap();
                std::os::unix::fs::symlink(dir.join(MASKED), &path).unwrap();
                std::fs::remove_file(&path).unwrap();
                std::fs::rename(&aside, &path).unwrap();
            }
        });
        for _ in 0..6 {
            let answer = client.call("grant", json!({"path": path, "mode": "ro"}));
            let shown = client.shell(&format!("cat {path:?}/key"));
            assert!(
                !shown["output"].as_str().unwrap().contains("secret"),
                "{answer:?}: {shown}"
            );
            drop(client.call("revoke", json!({"path": path})));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    wait_for("the sandbox", PATIENCE, || {
        (sandbox.status()["state"] == "ready").then_some(())
    });
    assert_eq!(client.output("echo next"), "next\n");
    sandbox.end_and_check();
}

#[test]
fn magic_links_and_other_processes_are_no_way_to_a_path() {
    if !host::qualifies() {
        return;
    }
    let place = Place::new(Options::default());
    write(&place.path().join("a/file"), "seen\n");
    let (sandbox, mut client, dir) = start(place);
    let link = |to: &Path, name| std::os::unix::fs::symlink(to, sandbox.workspace().join(name));
    link(&dir.join("a"), "link").unwrap();
    let mut other = Command::new("sleep");
    let mut other = other.arg("600").current_dir(dir.join("a")).spawn().unwrap();
    let own = format!("/proc/{}/cwd", other.id());
    link(Path::new(&own), "magic").unwrap();
    for path in [
        "/proc/self/root".to_owned() + dir.to_str().unwrap(),
        own,
        "magic".to_owned(),
        "link".to_owned(),
        "./sub/../link".to_owned(),
    ] {
        let message = refusal(client.call("grant", json!({"path": path, "mode": "ro"})));
        if path.ends_with("link") {
            continue;
        }
        // Where the link of a process leads is not told, though it is a place
        // that could be granted.
        assert!(message.contains("lies outside of"), "{path}: {message}");
        let leads_to = dir.join("a");
        let is_told = message.contains(leads_to.to_str().unwrap());
        assert!(!is_told || path.contains("/root/"), "{message}");
    }
    other.kill().unwrap();
    other.wait().unwrap();
    sandbox.end_and_check();
}
