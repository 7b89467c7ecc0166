//! Programs as they are, with nothing but the environment that a command gets:
//! what a rule allows works, and what none allows fails at once, in words that
//! say what to ask for.

use serde_json::json;

use crate::podman_common::{Client, PATIENCE, Sandbox, host};
use crate::world::{Internet, NAME, gateway_pid};

const RULE: &str =
    "[[egress.https]]\nhost = \"a.example.org\"\npaths = [\"/ok/*\"]\nprivate = true\n";
/// Long for a refusal, which takes no time but that of starting the program, and
/// short for the limits at which programs stop waiting.
const AT_ONCE: &str = "timeout 50";

/// What a program says that fails by itself.
pub(crate) fn denied(client: &mut Client, command: &str) -> String {
    let result = client.shell(&format!("{AT_ONCE} {command}"));
    let code = result["code"].as_i64().unwrap();
    assert!(code != 0 && code != 124, "{command}: {result}");
    let ms = &result["duration_ms"];
    eprintln!("denied after {ms} ms: {command}");
    result["output"].as_str().unwrap().to_owned()
}

fn assert_says(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "no {word:?} in: {said}");
    }
}

fn place_client(sandbox: &Sandbox) {
    let script = include_str!("client.py");
    std::fs::write(sandbox.workspace().join("client.py"), script).unwrap();
}

#[test]
fn programs_work_with_their_environment_alone_or_say_what_to_ask_for() {
    if !host::qualifies() {
        return;
    }
    let internet = Internet::shared();
    let sandbox = Sandbox::start_at(internet.place(RULE));
    let mut client = sandbox.client();
    place_client(&sandbox);

    // A path that no rule allows is answered with the call that asks for it.
    let curl = format!("curl -sS https://{NAME}");
    assert_eq!(client.output(&format!("{curl}/ok/c")), "asked for /ok/c\n");
    let said = denied(&mut client, &format!("{curl}/no/c --fail-with-body"));
    assert_says(&said, &["egress_denied", "\"op\":\"add\"", "\"/no/*\""]);
    // A host that no rule names: the client shows the status line, or less.
    let said = denied(&mut client, "curl -sS https://b.example.org/ok/c");
    assert_says(&said, &["403"]);
    let said = denied(&mut client, "curl -v https://b.example.org/ok/c");
    assert_says(&said, &["egress tool"]);

    for kind in ["urllib", "requests"] {
        let run = format!("python3 client.py {kind} https://");
        let said = client.output(&format!("{run}{NAME}/ok/{kind}"));
        assert_says(&said, &["asked for /ok/", kind]);
        for denied_one in ["a.example.org/no", "b.example.org/ok/x"] {
            let said = denied(&mut client, &format!("{run}{denied_one}"));
            assert_says(&said, &["403", "egress tool"]);
        }
    }
    streams(&mut client);
    pip(&mut client);
    sandbox.end_and_check();
}

/// What is open for long, or of unknown length.
fn streams(client: &mut Client) {
    let said = client.output(&format!(
        "python3 client.py events https://{NAME}/ok/events"
    ));
    assert_eq!(said, "data: 0\ndata: 1\ndata: 2\n");
    let websocket = format!("python3 client.py websocket https://{NAME}");
    assert_eq!(client.output(&format!("{websocket}/ok/ws")), "one\ntwo\n");
    let said = denied(client, &format!("{websocket}/no/ws"));
    assert_says(&said, &["egress_denied", "\"op\":\"add\""]);
    let upload = |path: &str| {
        format!(
            "sh -c 'head -c 3000000 /dev/zero | curl -sS --fail-with-body -T - https://{NAME}{path}'"
        )
    };
    let said = client.output(&upload("/ok/up"));
    assert_eq!(said, "got 3000000 by chunked\n");
    let said = denied(client, &upload("/no/up"));
    assert_says(&said, &["egress_denied", "\"op\":\"add\""]);
}

fn pip(client: &mut Client) {
    let install = |host: &str, path: &str| {
        format!(
            "pip install --quiet --disable-pip-version-check --no-cache-dir --target lib --index-url https://{host}{path}/simple demo"
        )
    };
    client.output(&install(NAME, "/ok"));
    let said = client.output("PYTHONPATH=lib python3 -c 'import demo'");
    assert_eq!(said, "demo was installed\n");
    // It takes a page that it may not see for one that does not exist.
    let said = denied(client, &install(NAME, "/no"));
    assert_says(&said, &["No matching distribution"]);
    let said = denied(client, &install("b.example.org", "/ok"));
    assert_says(&said, &["403", "egress tool"]);
}

#[test]
fn large_bodies_pass_while_the_memory_of_the_gateway_stays() {
    if !host::qualifies() {
        return;
    }
    let internet = Internet::shared();
    let sandbox = Sandbox::start_at(internet.place(RULE));
    let mut client = sandbox.client();
    let curl = format!("curl -sS https://{NAME}/ok");
    client.output(&format!("{curl}/first"));
    let gateway = gateway_pid(&sandbox.place).unwrap();
    let before = host::resident_kib(gateway);
    client.patience = PATIENCE * 4;
    let mut transfer = |command: &str| {
        client.shell_with(json!({"command": command, "timeout_s": 200}))["output"].take()
    };
    let said = transfer(&format!("{curl}/big/32 | wc -c"));
    assert_eq!(said.as_str().unwrap().trim(), (32 << 20).to_string());
    let said = transfer(&format!("head -c 32M /dev/zero | {curl}/up -T -"));
    assert_eq!(said, format!("got {} by chunked\n", 32 << 20));
    let grown = host::resident_kib(gateway).saturating_sub(before);
    assert!(grown < 8 << 10, "memory has grown by {grown} KiB");
    sandbox.end_and_check();
}
