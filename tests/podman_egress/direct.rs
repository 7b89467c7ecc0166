//! TCP rules that are there when the sandbox is created.

use serde_json::{Value, json};

use crate::podman_common::{Client, PATIENCE, Sandbox, host, wait_for};
use crate::world::{Internet, NAME, networks};

const RULE: &str = "[[egress.tcp]]\nhost = \"a.example.org\"\nport = 80\nprivate = true\n";

fn delivery(client: &mut Client) -> Value {
    let reply = client.call("egress", json!({"op": "list"})).unwrap();
    reply["rules"][0]["delivery"].clone()
}

fn fetch(port: u16) -> String {
    format!("timeout 50 curl -sS --noproxy \"*\" http://{NAME}:{port}/direct")
}

#[test]
fn direct_target_is_reached_without_the_gateway_until_the_next_start() {
    if !host::qualifies() {
        return;
    }
    let internet = Internet::shared();
    let sandbox = Sandbox::start_at(internet.place(RULE));
    let mut client = sandbox.client();
    assert_eq!(delivery(&mut client), "direct");
    assert_eq!(networks(&sandbox.place).len(), 1);
    assert_eq!(client.output(&fetch(80)), "asked for /direct\n");
    for command in [
        fetch(81),
        fetch(443),
        "timeout 50 curl -sS --noproxy \"*\" http://198.51.100.1/".to_owned(),
    ] {
        let result = client.shell(&command);
        assert_eq!(result["code"], 7, "{command}: {result}");
    }

    let remove = json!({"op": "remove", "kind": "tcp", "host": NAME, "port": 80});
    let reply = client.call("egress", remove).unwrap();
    assert!(
        reply["notices"].to_string().contains("next start"),
        "{reply}"
    );
    assert_eq!(delivery(&mut client), "pending_removal");
    assert_eq!(client.output(&fetch(80)), "asked for /direct\n");

    let sandbox = Sandbox::start_at(sandbox.end_and_keep());
    let mut client = sandbox.client();
    assert_eq!(delivery(&mut client), Value::Null);
    assert_eq!(networks(&sandbox.place).len(), 2);
    assert_ne!(client.shell(&fetch(80))["code"], 0);
    sandbox.end_and_check();
}

/// Deliveries by port.
fn deliveries(client: &mut Client) -> Value {
    let reply = client.call("egress", json!({"op": "list"})).unwrap();
    let rules = reply["rules"].as_array().unwrap().iter();
    let pairs = rules.map(|rule| (rule["port"].to_string(), rule["delivery"].clone()));
    Value::Object(pairs.collect())
}

#[test]
fn deliveries_are_right_across_add_remove_recreate_and_restart() {
    if !host::qualifies() {
        return;
    }
    let internet = Internet::shared();
    // By its address, so that a rule of the agent's leads there as well.
    let rule = RULE.replace("a.example.org", &internet.address);
    let sandbox = Sandbox::start_at(internet.place(&rule));
    let mut client = sandbox.client();
    let change = |client: &mut Client, op: &str, port: u16| {
        let rule = json!({"op": op, "kind": "tcp", "host": internet.address, "port": port});
        let reply = client.call("egress", rule).unwrap();
        assert_eq!(reply["changed"], true, "{reply}");
    };
    let at = |port: u16| {
        format!(
            "timeout 50 curl -sS --noproxy '*' http://{}:{port}/x",
            internet.address
        )
    };
    let relayed = |port: u16| {
        format!(
            "curl -sS -m 50 -x \"$ALL_PROXY\" http://{}:{port}/x",
            internet.address
        )
    };
    assert_eq!(deliveries(&mut client), json!({"80": "direct"}));

    change(&mut client, "add", 81);
    change(&mut client, "remove", 80);
    assert_eq!(
        deliveries(&mut client),
        json!({"80": "pending_removal", "81": "relayed"})
    );
    wait_for("the new rule", PATIENCE, || {
        let code = &client.shell(&relayed(81))["code"];
        (code == 0).then_some(())
    });
    assert_eq!(client.shell(&at(81))["code"], 7);
    // Of two changes the gateway may have read the first only.
    wait_for("the end of the old rule", PATIENCE, || {
        (client.shell(&relayed(80))["code"] != 0).then_some(())
    });
    assert_eq!(client.output(&at(80)), "asked for /x\n");

    // What comes back is direct again, as nothing was taken from the kernel.
    change(&mut client, "add", 80);
    assert_eq!(
        deliveries(&mut client),
        json!({"80": "direct", "81": "relayed"})
    );
    change(&mut client, "remove", 80);

    // A new container has all that the policy says now, and nothing else.
    let granted = sandbox.place.path().join("granted");
    std::fs::create_dir_all(&granted).unwrap();
    for (mode, applied) in [("ro", "live"), ("rw", "recreated")] {
        let reply = client.call("grant", json!({"path": granted, "mode": mode}));
        assert_eq!(reply.unwrap()["applied"], applied);
    }
    assert_eq!(deliveries(&mut client), json!({"81": "direct"}));
    assert_eq!(client.output(&at(81)), "asked for /x\n");
    assert_eq!(client.shell(&at(80))["code"], 7);

    change(&mut client, "remove", 81);
    assert_eq!(deliveries(&mut client), json!({"81": "pending_removal"}));
    let sandbox = Sandbox::start_at(sandbox.end_and_keep());
    let mut client = sandbox.client();
    assert_eq!(deliveries(&mut client), json!({}));
    assert_ne!(client.shell(&at(81))["code"], 0);
    sandbox.end_and_check();
}
