//! The death of the gateway, of the sandbox and of the control plane.

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
    let internet = Internet::start("gateway");
    let sandbox = Sandbox::start_at(internet.place(RULE));
    let mut client = sandbox.client();
    let fetch = format!("curl -sS -m 10 https://{NAME}/x");
    assert_eq!(client.output(&fetch), "asked for /x\n");
    let (init, gateway) = (sandbox.init_pid(), gateway_pid(&sandbox.place).unwrap());
    kill(gateway);
    wait_for("the end of the gateway", PATIENCE, || {
        (!host::is_alive(gateway)).then_some(())
    });
    wait_for("another gateway", PATIENCE, || {
        let status = sandbox.status();
        (status["egress"]["gateway_restarts"] == 1 && status["egress"]["gateway"] == "ready")
            .then_some(())
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
    let internet = Internet::start("killed");
    let mut sandbox = Sandbox::start_at(internet.place(RULE));
    let place = sandbox.place.clone();
    kill(sandbox.pid);
    sandbox.end();
    wait_for("the end of the containers", PATIENCE, || {
        host::containers(&place.sid()).is_empty().then_some(())
    });
    assert_eq!(networks(&place).len(), 2);

    let sandbox = Sandbox::start_at(place.clone());
    let fetch = format!("curl -sS -m 10 https://{NAME}/x");
    assert_eq!(sandbox.client().output(&fetch), "asked for /x\n");
    sandbox.end_and_check();
    assert!(networks(&place).is_empty());
}
