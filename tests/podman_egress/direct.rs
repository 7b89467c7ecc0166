//! TCP rules that are there when the sandbox is created.

use serde_json::{Value, json};

use crate::podman_common::{Client, Sandbox, host};
use crate::world::{Internet, NAME, networks};

const RULE: &str = "[[egress.tcp]]\nhost = \"a.example.org\"\nport = 80\nprivate = true\n";

fn delivery(client: &mut Client) -> Value {
    let reply = client.call("egress", json!({"op": "list"})).unwrap();
    reply["rules"][0]["delivery"].clone()
}

fn fetch(port: u16) -> String {
    format!("timeout 5 curl -sS --noproxy \"*\" http://{NAME}:{port}/direct")
}

#[test]
fn direct_target_is_reached_without_the_gateway_until_the_next_start() {
    if !host::qualifies() {
        return;
    }
    let internet = Internet::start("direct");
    let sandbox = Sandbox::start_at(internet.place(RULE));
    let mut client = sandbox.client();
    assert_eq!(delivery(&mut client), "direct");
    assert_eq!(networks(&sandbox.place).len(), 1);
    assert_eq!(client.output(&fetch(80)), "asked for /direct\n");
    for command in [
        fetch(81),
        fetch(443),
        "timeout 5 curl -sS --noproxy \"*\" http://198.51.100.1/".to_owned(),
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
