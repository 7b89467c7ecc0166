//! Tool calls: results, refusals, cancellation, progress.

use std::sync::Mutex;
use std::sync::mpsc::channel;

use serde_json::{Value, json};

use crate::common::home::Home;
use crate::common::stand_in::{ControlPlane, exited, hello, list, reply};
use crate::driver::{Mcp, endless, text};

#[test]
fn command_goes_in_and_its_output_and_exit_code_come_back() {
    let home = Home::new();
    let plane = ControlPlane::start(&home, |_, answer| answer.result(&exited(3, "out\n")));
    let mut mcp = Mcp::initialized(&home);
    mcp.call(
        0,
        "shell",
        &json!({"command": "x", "timeout_s": 9, "cwd": "sub"}),
    );
    let result = mcp.result(0);
    assert_eq!(text(&result), "out\n[exit code 3, after 0.005 s]");
    assert_eq!(result["isError"], false);
    let structured = &result["structuredContent"];
    assert_eq!(structured["ended"], "exited");
    assert_eq!(structured["exit_code"], 3);
    assert_eq!(structured["output"], "out\n");
    assert_eq!(
        plane.wait_for("shell")["params"],
        json!({"command": "x", "timeout_s": 9, "cwd": "sub", "stream": false})
    );
    let hello = plane.wait_for("hello");
    assert_eq!(hello["params"]["holds"], true);
    let name = concat!("umwelt-mcp/", env!("CARGO_PKG_VERSION"), " (test 1)");
    assert_eq!(hello["params"]["client"], name);
}

#[test]
fn ends_of_a_command_are_told_apart() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, |request, answer| {
        let outcome = serde_json::from_str(request["params"]["command"].as_str().unwrap());
        answer.result(&reply(&outcome.unwrap(), ""));
    });
    let mut mcp = Mcp::initialized(&home);
    for (outcome, wanted, is_error) in [
        (
            json!({"ended": "exited", "code": 0}),
            "[exit code 0,",
            false,
        ),
        (
            json!({"ended": "signaled", "signal": 11}),
            "[killed by signal 11 (SIGSEGV)",
            false,
        ),
        (
            json!({"ended": "timed_out", "after_s": 7}),
            "[timed out after 7 s",
            false,
        ),
        (json!({"ended": "cancelled"}), "[cancelled", false),
        (
            json!({"ended": "lost", "reason": "it died"}),
            "[lost: ",
            true,
        ),
    ] {
        mcp.shell(1, &outcome.to_string());
        let result = mcp.result(1);
        assert!(text(&result).contains(wanted), "{result}");
        assert_eq!(result["structuredContent"]["ended"], outcome["ended"]);
        assert_eq!(result["isError"], is_error);
    }
}

#[test]
fn every_result_matches_the_output_schema() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, |request, answer| match request["method"].as_str() {
        Some("list") => answer.result(&list()),
        Some("egress") => answer.result(&egress()),
        _ => {
            let mut full = exited(0, "x");
            full["omitted_bytes"] = json!(7);
            full["full_output"] = json!("/tmp/x");
            full["background"] = json!([{"pid": 1, "command": "sleep 1"}]);
            full["notices"] = json!(["n"]);
            answer.result(&full);
        }
    });
    let mut mcp = Mcp::initialized(&home);
    mcp.request(0, "tools/list", &json!({}));
    let tools = mcp.result(0)["tools"].clone();
    mcp.shell(1, "x");
    conforms(
        &mcp.result(1)["structuredContent"],
        &tools[0]["outputSchema"],
    );
    mcp.call(3, "egress", &json!({"op": "list"}));
    let result = mcp.result(3);
    conforms(&result["structuredContent"], &tools[3]["outputSchema"]);
    assert!(
        text(&result).contains("https  a.example.org:443 /*"),
        "{result}"
    );
    mcp.call(2, "list", &json!({}));
    let result = mcp.result(2);
    conforms(&result["structuredContent"], &tools[4]["outputSchema"]);
    assert!(
        text(&result).contains("\nrw         -  workspace  /w\n"),
        "{}",
        text(&result)
    );
}

fn egress() -> Value {
    json!({
        "network": "egress", "changed": false, "notices": ["n"],
        "rules": [
            {"kind": "https", "host": "a.example.org", "port": 443, "paths": ["/*"], "methods": ["GET"],
                "inspect": true, "private": false, "source": "base"},
            {"kind": "tcp", "host": "b.example.org", "port": 22, "inspect": false, "private": true,
                "source": "workspace", "delivery": "relayed"},
        ],
        "hosts": [{"name": "b.example.org", "address": "192.0.2.1", "origin": "workspace"}],
        "status": {"gateway": "ready", "gateway_restarts": 0, "rules_digest": "d",
            "policy_digest": "d", "policy_problem": "p", "audit_problem": "a",
            "resolver_problem": "r"},
    })
}

/// As much of JSON Schema as the tools use.
pub(crate) fn conforms(value: &Value, schema: &Value) {
    let fits = match schema["type"].as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        other => panic!("{other}"),
    };
    assert!(fits, "{value} is no {schema}");
    if let Some(allowed) = schema["enum"].as_array() {
        assert!(allowed.contains(value), "{value}");
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        assert!(
            value.get(name.as_str().unwrap()).is_some(),
            "{name} is missing"
        );
    }
    for (name, member) in value.as_object().into_iter().flatten() {
        let member_schema = &schema["properties"][name];
        assert!(member_schema.is_object(), "{name} is not in the schema");
        conforms(member, member_schema);
    }
    for item in value.as_array().into_iter().flatten() {
        conforms(item, &schema["items"]);
    }
}

#[test]
fn refusal_of_the_control_plane_is_a_result_with_its_hint() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, |_, answer| {
        answer.error("no_delegation", "no caps here", "run: systemctl");
    });
    let mut mcp = Mcp::initialized(&home);
    mcp.shell(1, "x");
    assert_eq!(mcp.refusal(1), "umwelt: no caps here\nhint: run: systemctl");
}

#[test]
fn slow_call_delays_nobody() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, |request, answer| {
        if request["params"]["command"] == "slow" {
            answer.wait_cancelled();
        }
        answer.result(&exited(0, request["params"]["command"].as_str().unwrap()));
    });
    let mut mcp = Mcp::initialized(&home);
    mcp.shell("slow", "slow");
    for id in 0..50 {
        mcp.shell(id, "quick");
    }
    let mut ids: Vec<_> = (0..50)
        .map(|_| mcp.next()["id"].as_u64().unwrap())
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..50).collect::<Vec<_>>());
    mcp.ping();
}

#[test]
fn id_in_use_is_refused() {
    let home = Home::new();
    let plane = ControlPlane::start(&home, endless);
    let mut mcp = Mcp::initialized(&home);
    mcp.shell(1, "x");
    mcp.shell(1, "y");
    assert_eq!(mcp.error_code(1), -32600);
    plane.wait_for("shell");
    assert_eq!(plane.requests("shell").len(), 1);
}

#[test]
fn cancelled_call_is_ended_and_not_answered() {
    let home = Home::new();
    let plane = ControlPlane::start(&home, endless);
    let mut mcp = Mcp::initialized(&home);
    mcp.shell(0, "x");
    let request = plane.wait_for("shell");
    mcp.cancel(0);
    assert_eq!(plane.wait_for("cancel")["params"]["request"], request["id"]);
    mcp.is_silent();
    mcp.cancel(0);
    mcp.cancel("never");
    mcp.ping();
    assert_eq!(plane.requests("cancel").len(), 1);
}

#[test]
fn progress_shows_the_output_as_it_grows_and_stops_with_the_answer() {
    let home = Home::new();
    let (go, step) = channel();
    let step = Mutex::new(step);
    let plane = ControlPlane::start(&home, move |_, answer| {
        let step = step.lock().unwrap();
        for piece in ["one\n", "two\x1b[1m\n", "three\n\n", &"x".repeat(1000)] {
            step.recv().unwrap();
            answer.output(piece);
        }
        step.recv().unwrap();
        answer.result(&exited(0, ""));
        answer.output("late\n");
    });
    let mut mcp = Mcp::initialized(&home);
    mcp.shell_with_progress(0, "x");
    let mut last = -1.0;
    // What is printed next is so only when this has been shown.
    let mut next_shown = || {
        go.send(()).unwrap();
        loop {
            let message = mcp.next();
            assert_eq!(message["method"], "notifications/progress");
            let params = &message["params"];
            assert_eq!(params["progressToken"], 0);
            let progress = params["progress"].as_f64().unwrap();
            assert!(progress > last);
            last = progress;
            let shown = params["message"].as_str().unwrap();
            // Said where nothing is printed for long.
            if !shown.starts_with("running, ") && !shown.starts_with("waiting for ") {
                return shown.to_owned();
            }
        }
    };
    assert_eq!(next_shown(), "one");
    assert_eq!(next_shown(), "two\\x1b[1m");
    assert_eq!(next_shown(), "three");
    assert_eq!(next_shown().chars().count(), 200);
    go.send(()).unwrap();
    mcp.result(0);
    assert_eq!(plane.wait_for("shell")["params"]["stream"], true);
    mcp.is_silent();
}

#[test]
fn silent_command_and_starting_sandbox_still_progress() {
    let home = Home::new();
    let _plane = ControlPlane::start_for(&home, &home.workspace(), hello("starting"), endless);
    let mut mcp = Mcp::initialized(&home);
    mcp.shell_with_progress(5, "x");
    // Clients wait for 60 s, and so does this.
    let message = mcp.next();
    assert_eq!(message["method"], "notifications/progress");
    assert_eq!(message["params"]["progressToken"], 5);
    let said = message["params"]["message"].as_str().unwrap();
    assert!(said.starts_with("waiting for the sandbox"), "{said}");
}
