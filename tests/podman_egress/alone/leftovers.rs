//! What a killed control plane leaves is shown, and removed on request.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::podman_common::{PATIENCE, Sandbox, host, sandbox::PREFIX, wait_for};
use crate::world::{Internet, networks};

#[test]
fn networks_of_a_dead_control_plane_are_shown_and_removed() {
    if !host::qualifies() {
        return;
    }
    let internet = Internet::nobody();
    let mut sandbox = Sandbox::start_at(internet.place(""));
    let place = sandbox.place.clone();
    let pid = Pid::from_raw(sandbox.pid.cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    sandbox.end();
    wait_for("the end of the containers", PATIENCE, || {
        host::containers(&place.sid()).is_empty().then_some(())
    });
    let names = networks(&place);
    assert_eq!(names.len(), 2);
    // Something of that life that is still on one of them, and a network of
    // somebody else.
    let (prefix, sid) = (
        format!("--label=umwelt.prefix={PREFIX}"),
        format!("--label=umwelt.sid={}", place.sid()),
    );
    let network = format!("--network={}", names[0]);
    host::podman(&[
        "create",
        "--pull=never",
        &prefix,
        &sid,
        &network,
        "umwelt:latest",
        "true",
    ]);
    let foreign = format!("tb-foreign-{}", place.sid());
    host::podman(&["network", "create", &sid, &foreign]);

    let ctl = |args: &[&str]| {
        let output = place.applet("umwelt-ctl").args(args).output().unwrap();
        (
            output.status.success(),
            String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr),
        )
    };
    let (_, status) = ctl(&["status", "--json"]);
    let rows: Value = serde_json::from_str(&status).unwrap();
    let rows = rows.as_array().unwrap();
    let row = rows.iter().find(|row| row["sid"] == place.sid()).unwrap();
    assert_eq!(row["state"], "dead", "{row}");
    assert_eq!(row["networks"].as_array().unwrap().len(), 2, "{row}");
    let workspace = place.workspace.to_str().unwrap();
    let (stopped, said) = ctl(&["stop", workspace]);
    assert!(!stopped && said.contains("--hard"), "{said}");
    let (stopped, said) = ctl(&["stop", "--hard", workspace]);
    assert!(stopped && said.contains("removed network"), "{said}");
    assert_eq!(host::containers(&place.sid()), Vec::<String>::new());
    assert_eq!(networks(&place), std::slice::from_ref(&foreign));
    host::podman(&["network", "rm", &foreign]);
    let (again, said) = ctl(&["stop", "--hard", workspace]);
    assert!(!again && said.contains("no sandbox"), "{said}");
}
