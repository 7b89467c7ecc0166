//! How a change reaches the sandbox, what it costs, and what is left if it
//! fails.

use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::podman_common::{Client, Options, PATIENCE, Sandbox, host, sandbox::Place, wait_for};
use crate::wrapper::wrap;
use crate::{fails, granted, is, listed, masked_place, refusal, revoked, start, write};

fn strings(value: &Value) -> Vec<String> {
    let texts = value.as_array().unwrap().iter();
    texts
        .map(|text| text.as_str().unwrap().to_owned())
        .collect()
}

/// A directory that only a new container can show: it holds a mask.
fn above_mask(dir: &std::path::Path) -> PathBuf {
    dir.join("masked")
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn new_container_tells_what_it_has_ended() {
    if !host::qualifies() {
        return;
    }
    let (sandbox, mut client, dir) = start(masked_place());
    let mut other = sandbox.client();
    let running = other.start_and_hear("echo on; sleep 86400.11; echo not reached");
    client.output("sleep 86400.12 >/dev/null 2>&1 &");
    let first = sandbox.init_pid();

    let reply = granted(&mut client, &above_mask(&dir), "ro");
    assert_eq!(reply["applied"], "recreated", "{reply}");
    let lost = strings(&reply["lost"]).join("\n");
    assert!(
        lost.contains("86400.11") && lost.contains("86400.12"),
        "{lost}"
    );
    let ended = other.answer(running).unwrap();
    assert_eq!(ended["ended"], "lost", "{ended}");
    assert_ne!(sandbox.init_pid(), first);
    let status = sandbox.status();
    assert_eq!(status["restarts"], 0, "{status}");
    assert_eq!(client.output("pgrep -fc '86400[.]1' || true"), "0\n");
    sandbox.end_and_check();
}

#[test]
fn grants_at_the_same_time_cost_one_container() {
    if !host::qualifies() {
        return;
    }
    let place = masked_place();
    for name in ["a", "b", "c", "d", "e"] {
        write(&place.path().join(name).join("file"), "seen\n");
    }
    let (sandbox, mut first, dir) = start(place);
    let mut clients: Vec<Client> = (0..5).map(|_| sandbox.client()).collect();
    let mut ids = Vec::new();
    let above = first.send("grant", json!({"path": above_mask(&dir), "mode": "ro"}));
    for (client, name) in clients.iter_mut().zip(["a", "b", "c", "d", "e"]) {
        ids.push(client.send("grant", json!({"path": dir.join(name), "mode": "rw"})));
    }
    // One that comes with them does not get lost with the old container.
    let mut worker = sandbox.client();
    let command = worker.start("echo works");
    let mut inits = std::collections::BTreeSet::new();
    first.answer(above).unwrap();
    for (client, id) in clients.iter_mut().zip(ids) {
        client.answer(id).unwrap();
        inits.insert(sandbox.init_pid());
    }
    assert_eq!(inits.len(), 1, "{inits:?}");
    let worked = worker.answer(command).unwrap();
    assert_eq!(worked["output"], "works\n", "{worked}");
    assert_eq!(
        first.output(&format!("cat {dir:?}/[a-e]/file | wc -l")),
        "5\n"
    );
    sandbox.end_and_check();
}

#[test]
fn failed_change_leaves_the_former_mounts() {
    if !host::qualifies() {
        return;
    }
    let mut place = masked_place();
    write(&place.path().join("kept/file"), "seen\n");
    // podman is killed once, when the test says so.
    let change =
        "--hostname=umwelt) keep \"$word\"; ! rm \"$here/kill\" 2>/dev/null || kill -KILL $$ ;;";
    wrap(&mut place, "run", change);
    let (sandbox, mut client, dir) = start(place);
    granted(&mut client, &dir.join("kept"), "ro");
    write(&dir.join("kill"), "");
    let asked = json!({"path": above_mask(&dir), "mode": "ro"});
    let error = client.call("grant", asked).unwrap_err();
    let said = error["message"].as_str().unwrap();
    assert!(said.contains("the former mounts hold again"), "{said}");
    assert_eq!(
        client.output(&format!("cat {:?}/file", dir.join("kept"))),
        "seen\n"
    );
    fails(&mut client, &format!("ls {:?}", above_mask(&dir)));
    assert_eq!(listed(&mut client, &above_mask(&dir)), None);
    // And it can be asked for again.
    granted(&mut client, &above_mask(&dir), "ro");
    sandbox.end_and_check();
}

fn kill_and_wait(sandbox: &Sandbox) {
    let first = sandbox.init_pid();
    kill(first);
    wait_for("the next container", PATIENCE, || {
        let status = sandbox.status();
        let pid = status["init_pid"].as_u64();
        let is_next = pid.is_some_and(|pid| pid != u64::from(first));
        (status["state"] == "ready" && is_next).then_some(())
    });
}

#[test]
fn grants_outlive_a_container_that_died_unless_their_path_was_swapped() {
    if !host::qualifies() {
        return;
    }
    let place = Place::new(Options::default());
    for name in ["same", "swapped", "link", "secret"] {
        write(&place.path().join(name).join("file"), name);
    }
    let (sandbox, mut client, dir) = start(place);
    for name in ["same", "swapped", "link"] {
        granted(&mut client, &dir.join(name), "rw");
    }
    std::fs::rename(dir.join("swapped"), dir.join("aside")).unwrap();
    write(&dir.join("swapped/file"), "another");
    std::fs::rename(dir.join("link"), dir.join("aside2")).unwrap();
    std::os::unix::fs::symlink("secret", dir.join("link")).unwrap();
    kill_and_wait(&sandbox);

    assert_eq!(
        client.output(&format!("cat {:?}/file", dir.join("same"))),
        "same"
    );
    for name in ["swapped", "link"] {
        fails(&mut client, &format!("ls {:?}/file", dir.join(name)));
        assert_eq!(listed(&mut client, &dir.join(name)), None, "{name}");
    }
    let list = client.call("list", json!({})).unwrap();
    let notices = strings(&list["notices"]).join("\n");
    assert!(
        notices.contains("swapped") && notices.contains("link"),
        "{notices}"
    );
    assert_eq!(listed(&mut client, &dir.join("same")), is("rw", "session"));
    sandbox.end_and_check();
}

#[test]
fn what_was_not_granted_cannot_be_revoked() {
    if !host::qualifies() {
        return;
    }
    let place = crate::place_with_base();
    write(&place.path().join("base/x/file"), "x");
    let (sandbox, mut client, dir) = start(place);
    let mut revoke = |path: PathBuf| refusal(client.call("revoke", json!({"path": path})));
    for path in [dir.join("project"), dir.join("project/sub")] {
        assert!(revoke(path).contains("workspace"));
    }
    for path in [dir.join("base"), dir.join("base/x")] {
        assert!(revoke(path).contains("base configuration"));
    }
    assert!(revoke(dir.join("other")).contains("nothing was granted"));
    sandbox.end_and_check();
}

#[test]
fn grant_of_what_is_shown_already_changes_nothing() {
    if !host::qualifies() {
        return;
    }
    let place = crate::place_with_base();
    write(&place.path().join("base/x/file"), "x");
    let (sandbox, mut client, dir) = start(place);
    let first = sandbox.init_pid();
    let reply = granted(&mut client, &dir.join("base/x"), "ro");
    assert_eq!(reply["applied"], "unchanged", "{reply}");
    assert!(
        strings(&reply["notices"])
            .join("")
            .contains("visible already")
    );
    assert_eq!(sandbox.init_pid(), first);
    let said = refusal(client.call("revoke", json!({"path": dir.join("base/x")})));
    assert!(said.contains("base configuration"), "{said}");
    sandbox.end_and_check();
}

#[test]
fn grant_while_the_sandbox_starts_is_served_then() {
    if !host::qualifies() {
        return;
    }
    let mut place = masked_place();
    write(&place.path().join("more/file"), "seen\n");
    // podman begins when the test says so.
    let change =
        "--hostname=umwelt) keep \"$word\"; until [[ -e $here/go ]]; do sleep 0.1; done ;;";
    wrap(&mut place, "run", change);
    let dir = place.path().canonicalize().unwrap();
    let mut child = place.spawn();
    let mut client = wait_for("the socket", PATIENCE, || {
        Client::try_raw(&place.socket()).ok()
    });
    client
        .call("hello", json!({"api": 1, "client": "test/1"}))
        .unwrap();
    let command = client.start(&format!("cat {:?}/file", dir.join("more")));
    let id = client.send("grant", json!({"path": dir.join("more"), "mode": "ro"}));
    // What is answered at once has come after both.
    let status = client.call("status", json!({})).unwrap();
    assert_eq!(status["state"], "starting", "{status}");
    write(&dir.join("go"), "");
    client.answer(id).unwrap();
    // The command waited for the grant as well.
    let shown = client.answer(command).unwrap();
    assert_eq!(shown["output"], "seen\n", "{shown}");
    revoked(&mut client, &dir.join("more"));
    client.call("shutdown", json!({})).unwrap();
    let status = wait_for("the end", PATIENCE, || child.try_wait().unwrap());
    assert!(status.success(), "{status}");
    place.assert_nothing_left();
}

#[test]
fn changes_are_in_the_journal() {
    if !host::qualifies() {
        return;
    }
    let place = masked_place();
    write(&place.path().join("a/file"), "seen\n");
    let (sandbox, mut client, dir) = start(place);
    granted(&mut client, &dir.join("a"), "rw");
    granted(&mut client, &above_mask(&dir), "ro");
    revoked(&mut client, &dir.join("a"));
    let kinds: Vec<String> = sandbox
        .entries()
        .iter()
        .map(|entry| entry["kind"].as_str().unwrap().to_owned())
        .filter(|kind| ["grant", "revoke", "recreated"].contains(&kind.as_str()))
        .collect();
    assert_eq!(kinds, ["grant", "recreated", "grant", "revoke"]);
    let log = sandbox
        .place
        .applet("umwelt-ctl")
        .arg("log")
        .arg(sandbox.workspace())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&log.stdout).into_owned();
    assert!(text.contains("grant") && text.contains("/a"), "{text}");
    sandbox.end_and_check();
}
