//! What a sandbox reaches through its gateway, and that there is no other way.

use serde_json::json;

use crate::podman_common::{Client, PATIENCE, Sandbox, host, wait_for};
use crate::world::{Internet, NAME, audit, networks};

const RULE: &str =
    "[[egress.https]]\nhost = \"a.example.org\"\npaths = [\"/ok/*\"]\nprivate = true\n";

fn fetch(client: &mut Client, path: &str) -> String {
    client.output(&format!("curl -sS -m 50 https://{NAME}{path}"))
}

/// Fails by a refusal, and not by silence, for which programs wait longer.
fn refused(client: &mut Client, command: &str) {
    let result = client.shell(&format!("timeout 50 {command}"));
    let code = result["code"].as_i64().unwrap();
    assert!(code != 0 && code != 124, "{command}: {result}");
}

fn connect(address: &str, port: u16) -> String {
    format!("bash -c 'exec 3<>/dev/tcp/{address}/{port}'")
}

fn send(address: &str, port: u16) -> String {
    let script = format!(
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(100); s.connect((\"{address}\", {port})); s.send(b\"x\"); s.recv(9)"
    );
    format!("python3 -c '{script}'")
}

#[test]
fn what_a_rule_allows_passes_and_nothing_else_does() {
    if !host::qualifies() {
        return;
    }
    let internet = Internet::shared();
    let sandbox = Sandbox::start_at(internet.place(RULE));
    let mut client = sandbox.client();

    let status = sandbox.status();
    assert_eq!(status["network"], "egress", "{status}");
    assert_eq!(status["egress"]["gateway"], "ready", "{status}");
    assert_eq!(status["egress"]["rules_digest"].as_str().unwrap().len(), 64);

    assert_eq!(fetch(&mut client, "/ok/x"), "asked for /ok/x\n");
    let script =
        format!("import urllib.request as u; print(u.urlopen(\"https://{NAME}/ok/py\").read())");
    let said = client.output(&format!("python3 -c '{script}'"));
    assert!(said.contains("asked for /ok/py"), "{said}");
    let denied = fetch(&mut client, "/other");
    assert!(
        denied.contains("egress_denied") && denied.contains("\"op\":\"add\""),
        "{denied}"
    );
    refused(&mut client, "curl -sS https://b.example.org/");

    // Past the gateway.
    let address = &internet.address;
    refused(
        &mut client,
        &format!("curl -sS --noproxy \"*\" https://{NAME}/ok/x"),
    );
    refused(&mut client, &connect(address, 443));
    refused(&mut client, &connect(address, 80));
    refused(&mut client, &send(address, 53));
    let gateway = client.output("sed -n 's/nameserver //p' /etc/resolv.conf");
    let gateway = gateway.trim();
    refused(&mut client, &connect(gateway, 22));
    refused(&mut client, &send(gateway, 5353));
    refused(&mut client, &connect("169.254.1.2", 22));
    // A resolver that waits for longer than this test.
    let patient = "env RES_OPTIONS='timeout:30 attempts:5'";
    refused(
        &mut client,
        &format!("{patient} getent ahosts b.example.org"),
    );

    // What belongs to the gateway is not to be seen.
    let interfaces = client.output("ls /sys/class/net | xargs");
    assert_eq!(interfaces.trim(), "eth0 lo");
    refused(&mut client, "ls /ca");
    let data = sandbox.place.path().join("data/umwelt/egress/ca.key");
    refused(&mut client, &format!("cat {data:?}"));

    let entries = audit(&sandbox.place);
    let verdict = |path: &str| {
        let found = entries.iter().find(|entry| entry["path"] == path);
        found.map(|entry| entry["verdict"].as_str().unwrap().to_owned())
    };
    assert_eq!(verdict("/ok/x").as_deref(), Some("allow"), "{entries:?}");
    assert_eq!(verdict("/other").as_deref(), Some("deny"), "{entries:?}");

    assert_eq!(networks(&sandbox.place).len(), 2);
    let place = sandbox.end_and_keep();
    place.assert_nothing_left();
    assert!(networks(&place).is_empty());
}

#[test]
fn rules_change_while_the_sandbox_runs_and_outlive_it() {
    if !host::qualifies() {
        return;
    }
    let internet = Internet::shared();
    let sandbox = Sandbox::start_at(internet.place(RULE));
    let mut client = sandbox.client();
    let init = sandbox.init_pid();
    let add = |client: &mut Client, rule: serde_json::Value| {
        let mut params = rule;
        params["op"] = "add".into();
        client
            .call("egress", params)
            .unwrap_or_else(|error| panic!("{error}"))
    };

    assert!(fetch(&mut client, "/more/x").contains("egress_denied"));
    let reply = add(
        &mut client,
        json!({"kind": "https", "host": NAME, "paths": "/more/*"}),
    );
    assert_eq!(reply["changed"], true, "{reply}");
    // Not private: a rule that an agent asks for leads to public places only.
    let private = wait_for("the new rule", PATIENCE, || {
        let said = fetch(&mut client, "/more/x");
        (!said.contains("egress_denied") || said.contains("private")).then_some(said)
    });
    assert!(
        private.contains("private") || private.contains("address"),
        "{private}"
    );
    let again = add(
        &mut client,
        json!({"kind": "https", "host": NAME, "paths": "/more/*"}),
    );
    assert_eq!(again["changed"], false, "{again}");

    let reply = add(
        &mut client,
        json!({"kind": "tcp", "host": internet.address, "port": 80}),
    );
    let notices = reply["notices"].to_string();
    assert!(notices.contains("SOCKS5"), "{reply}");
    let relayed = format!(
        "curl -sS -m 50 -x \"$ALL_PROXY\" http://{}/relay",
        internet.address
    );
    let said = wait_for("the relay", PATIENCE, || {
        let result = client.shell(&relayed);
        (result["code"] == 0).then(|| result["output"].as_str().unwrap().to_owned())
    });
    assert_eq!(said, "asked for /relay\n");

    let file = sandbox.workspace().join(".umwelt.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(
        text.contains("/more/*") && text.contains("[[egress.tcp]]"),
        "{text}"
    );
    assert_eq!(client.shell("true")["notices"].to_string(), "[]");
    let remove = json!({"op": "remove", "kind": "tcp", "host": internet.address, "port": 80});
    let reply = client.call("egress", remove).unwrap();
    assert_eq!(reply["changed"], true, "{reply}");
    wait_for("the end of the relay", PATIENCE, || {
        (client.shell(&relayed)["code"] != 0).then_some(())
    });
    assert_eq!(sandbox.init_pid(), init);

    let sandbox = Sandbox::start_at(sandbox.end_and_keep());
    let reply = sandbox
        .client()
        .call("egress", json!({"op": "list"}))
        .unwrap();
    let rules = reply["rules"].to_string();
    assert!(
        rules.contains("/more/*") && !rules.contains("tcp"),
        "{rules}"
    );
    sandbox.end_and_check();
}
