//! The death of the gateway, of the sandbox and of the control plane.

use serde_json::json;

use rustix::process::{Pid, Signal, kill_process};

use crate::podman_common::{PATIENCE, Sandbox, host, wait_for};
use crate::world::{Internet, NAME, gateway_pid, networks};

const RULE: &str = "[[egress.https]]\nhost = \"a.example.org\"\nprivate = true\n";

fn kill(pid: u32) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

#[test]
fn gateway_that_dies_is_started_again_under_the_running_sandbox() {
    if !host::qualifies() {
        return;
    }
    let internet = Internet::shared();
    let sandbox = Sandbox::start_at(internet.place(RULE));
    let mut client = sandbox.client();
    let fetch = format!("curl -sS -m 50 https://{NAME}/x");
    assert_eq!(client.output(&fetch), "asked for /x\n");
    let (init, gateway) = (sandbox.init_pid(), gateway_pid(&sandbox.place).unwrap());
    kill(gateway);
    wait_for("the end of the gateway", PATIENCE, || {
        (!host::is_alive(gateway)).then_some(())
    });
    wait_for("another gateway", PATIENCE, || {
        let status = sandbox.status();
        let restarts = status["egress"]["gateway_restarts"].as_u64();
        (restarts >= Some(1) && status["egress"]["gateway"] == "ready").then_some(())
    });
    assert_eq!(client.output(&fetch), "asked for /x\n");
    assert_eq!(sandbox.init_pid(), init);

    // The sandbox dies: the gateway stays.
    let gateway = gateway_pid(&sandbox.place).unwrap();
    kill(init);
    wait_for("another sandbox", PATIENCE, || {
        let status = sandbox.status();
        (status["restarts"] == 1 && status["state"] == "ready").then_some(())
    });
    assert_eq!(gateway_pid(&sandbox.place), Some(gateway));
    assert_eq!(client.output(&fetch), "asked for /x\n");
    sandbox.end_and_check();
}

#[test]
fn killed_control_plane_leaves_no_container_and_no_obstacle() {
    if !host::qualifies() {
        return;
    }
    let internet = Internet::shared();
    let mut sandbox = Sandbox::start_at(internet.place(RULE));
    let place = sandbox.place.clone();
    kill(sandbox.pid);
    sandbox.end();
    wait_for("the end of the containers", PATIENCE, || {
        host::containers(&place.sid()).is_empty().then_some(())
    });
    assert_eq!(networks(&place).len(), 2);

    let sandbox = Sandbox::start_at(place.clone());
    let fetch = format!("curl -sS -m 50 https://{NAME}/x");
    assert_eq!(sandbox.client().output(&fetch), "asked for /x\n");
    sandbox.end_and_check();
    assert!(networks(&place).is_empty());
}

#[test]
fn gateway_keeps_the_last_good_policy_and_says_that_the_file_is_broken() {
    if !host::qualifies() {
        return;
    }
    let internet = Internet::shared();
    let sandbox = Sandbox::start_at(internet.place(RULE));
    let mut client = sandbox.client();
    let fetch = format!("curl -sS -m 50 https://{NAME}/x");
    let policy = host::runtime_dir()
        .join(sandbox.place.name())
        .join("policy/policy.json");
    let good = std::fs::read_to_string(&policy).unwrap();
    let problem = |sandbox: &Sandbox| sandbox.status()["egress"]["policy_problem"].clone();
    assert!(problem(&sandbox).is_null());
    for broken in [&good[..good.len() / 2], "", "{}"] {
        std::fs::write(&policy, broken).unwrap();
        let said = wait_for("the word of the gateway", PATIENCE, || {
            problem(&sandbox).as_str().map(str::to_owned)
        });
        assert!(!said.is_empty());
        // Neither more nor less is allowed.
        assert_eq!(client.output(&fetch), "asked for /x\n");
        assert_ne!(client.shell("curl -sS https://b.example.org/")["code"], 0);
        std::fs::write(&policy, &good).unwrap();
        wait_for("the end of the problem", PATIENCE, || {
            problem(&sandbox).is_null().then_some(())
        });
    }
    let list = client.call("egress", json!({"op": "list"})).unwrap();
    assert!(list["status"]["policy_problem"].is_null(), "{list}");
    // What is broken stays so for no longer than to the next change.
    std::fs::write(&policy, "{").unwrap();
    wait_for("the word of the gateway", PATIENCE, || {
        (!problem(&sandbox).is_null()).then_some(())
    });
    let rule = json!({"op": "add", "kind": "https", "host": "c.example.org"});
    client.call("egress", rule).unwrap();
    wait_for("the end of the problem", PATIENCE, || {
        problem(&sandbox).is_null().then_some(())
    });

    // podman ends the gateway, while a request is under way.
    let gateway = gateway_pid(&sandbox.place).unwrap();
    let id = client.start(&format!(
        "curl -sS -m 50 https://{NAME}/ok/big/4000 | wc -c"
    ));
    wait_for("the request", PATIENCE, || {
        internet.said().contains("big 4000").then_some(())
    });
    let name = format!("umwelt-test-egress-gw-{}", sandbox.place.sid());
    host::podman(&["kill", "--signal=KILL", &name]);
    let result = client.answer(id).unwrap();
    assert!(
        result["output"].as_str().unwrap().contains("curl:"),
        "{result}"
    );
    wait_for("another gateway", PATIENCE, || {
        let status = sandbox.status();
        let is_new = gateway_pid(&sandbox.place).is_some_and(|pid| pid != gateway);
        (status["egress"]["gateway"] == "ready" && is_new).then_some(())
    });
    assert_eq!(client.output(&fetch), "asked for /x\n");
    sandbox.end_and_check();
}
