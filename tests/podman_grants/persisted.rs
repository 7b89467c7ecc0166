//! Grants that outlive the control plane, and a workspace file that is not
//! believed.

use serde_json::json;

use crate::podman_common::{Client, Options, Sandbox, host, sandbox::Place};
use crate::{fails, is, listed, refusal, revoked, start, write};

const FILE: &str = ".umwelt.toml";

fn notices(result: &serde_json::Value) -> String {
    result["notices"].to_string()
}

fn trust(place: &Place, option: &str) -> std::process::Output {
    let mut command = place.applet("umwelt-ctl");
    let command = command.args(["trust", option]).arg(&place.workspace);
    command.output().unwrap()
}

/// Ends the control plane, and starts the next one in the same place.
fn restart(sandbox: Sandbox) -> (Sandbox, Client) {
    let place = sandbox.end_and_keep();
    let sandbox = Sandbox::start_at(place);
    let client = sandbox.client();
    (sandbox, client)
}

#[test]
fn persisted_grant_is_there_after_a_restart_and_gone_after_revoke() {
    if !host::qualifies() {
        return;
    }
    let place = Place::new(Options::default());
    write(&place.path().join("a/file"), "seen\n");
    write(&place.path().join("b/file"), "seen\n");
    write(&place.workspace.join(FILE), "# mine\n");
    let (sandbox, mut client, dir) = start(place);
    let (a, b) = (dir.join("a"), dir.join("b"));
    let reply = client
        .call("grant", json!({"path": a, "mode": "rw", "persist": true}))
        .unwrap();
    assert_eq!(reply["persisted"], true, "{reply}");
    client
        .call("grant", json!({"path": b, "mode": "ro"}))
        .unwrap();
    let text = std::fs::read_to_string(sandbox.workspace().join(FILE)).unwrap();
    assert!(
        text.starts_with("# mine\n") && text.contains("[[grants]]"),
        "{text}"
    );
    assert_eq!(listed(&mut client, &a), is("rw", "persisted"));

    let (sandbox, mut client) = restart(sandbox);
    assert_eq!(listed(&mut client, &a), is("rw", "persisted"));
    assert_eq!(listed(&mut client, &b), None);
    client.output(&format!("touch {a:?}/made"));
    let reply = revoked(&mut client, &a);
    assert_eq!(reply["persisted"], true, "{reply}");
    fails(&mut client, &format!("ls {a:?}/file"));

    let (sandbox, mut client) = restart(sandbox);
    assert_eq!(listed(&mut client, &a), None);
    sandbox.end_and_check();
}

#[test]
fn file_that_the_agent_or_a_repository_brings_does_not_count() {
    if !host::qualifies() {
        return;
    }
    let place = Place::new(Options::default());
    write(&place.path().join("a/file"), "seen\n");
    let dir = place.path().canonicalize().unwrap();
    let asks = format!("[[grants]]\npath = {:?}\nmode = \"rw\"\n", dir.join("a"));
    write(&place.workspace.join(FILE), &asks);
    let (sandbox, mut client, _) = start(place);
    let a = dir.join("a");
    let result = client.shell("true");
    assert!(notices(&result).contains("umwelt-ctl trust"), "{result}");
    fails(&mut client, &format!("ls {a:?}"));
    let answer = client.call("grant", json!({"path": a, "mode": "ro", "persist": true}));
    let said = refusal(answer);
    assert!(said.contains("umwelt-ctl trust"), "{said}");
    assert_eq!(
        std::fs::read_to_string(sandbox.workspace().join(FILE)).unwrap(),
        asks
    );

    // Shown, not accepted; then accepted, for the next start.
    let shown = trust(&sandbox.place, "--diff");
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(
        text.contains("a") && shown.status.code() == Some(1),
        "{text}"
    );
    assert!(trust(&sandbox.place, "--yes").status.success());
    let result = client.shell("true");
    assert!(notices(&result).contains("next start"), "{result}");
    fails(&mut client, &format!("ls {a:?}"));
    let (sandbox, mut client) = restart(sandbox);
    assert_eq!(notices(&client.shell("true")), "[]");
    client.output(&format!("touch {a:?}/made"));

    // What a command makes of it counts no more than before, in either life.
    client.output("sed -i s,/a,/config, .umwelt.toml");
    let result = client.shell("true");
    assert!(notices(&result).contains("umwelt-ctl trust"), "{result}");
    let (sandbox, mut client) = restart(sandbox);
    assert_eq!(listed(&mut client, &a), None);
    fails(&mut client, &format!("ls {:?}", dir.join("config")));
    sandbox.end_and_check();
}

#[test]
fn accepted_grant_whose_path_has_become_a_link_does_not_hold() {
    if !host::qualifies() {
        return;
    }
    let place = Place::new(Options::default());
    write(&place.path().join("a/file"), "seen\n");
    write(&place.path().join("secret/key"), "secret\n");
    let (sandbox, mut client, dir) = start(place);
    let a = dir.join("a");
    client
        .call("grant", json!({"path": a, "mode": "rw", "persist": true}))
        .unwrap();
    let place = sandbox.end_and_keep();
    std::fs::rename(&a, dir.join("aside")).unwrap();
    std::os::unix::fs::symlink(dir.join("secret"), &a).unwrap();
    let sandbox = Sandbox::start_at(place);
    let mut client = sandbox.client();
    let list = client.call("list", json!({})).unwrap();
    assert!(notices(&list).contains("does not hold"), "{list}");
    fails(&mut client, &format!("cat {a:?}/key"));
    fails(&mut client, &format!("cat {:?}/key", dir.join("secret")));
    sandbox.end_and_check();
}

#[test]
fn workspace_file_of_a_hostile_kind_is_named_and_harms_nothing() {
    if !host::qualifies() {
        return;
    }
    let place = Place::new(Options::default());
    write(&place.path().join("a/file"), "seen\n");
    let (mut sandbox, mut client, dir) = start(place);
    let a = dir.join("a");
    for attack in [
        "ln -s /etc/passwd .umwelt.toml",
        "mkfifo .umwelt.toml",
        "mkdir .umwelt.toml",
        "head -c 50M /dev/zero >.umwelt.toml",
        "printf '[[grants]]\\npath = \"/x' >.umwelt.toml",
        "printf '\\377\\376' >.umwelt.toml",
    ] {
        client.output(&format!("rm -rf .umwelt.toml; {attack}"));
        let result = client.shell("true");
        assert!(
            notices(&result).contains(".umwelt.toml"),
            "{attack}: {result}"
        );
        let answer = client.call("grant", json!({"path": a, "mode": "ro", "persist": true}));
        drop(refusal(answer));
        (sandbox, client) = restart(sandbox);
        let result = client.shell("true");
        assert!(
            notices(&result).contains(".umwelt.toml"),
            "{attack}: {result}"
        );
    }
    sandbox.end_and_check();
}
