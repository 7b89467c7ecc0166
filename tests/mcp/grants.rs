//! grant and revoke.

use serde_json::{Value, json};

use crate::calls::conforms;
use crate::common::home::Home;
use crate::common::stand_in::{Answer, ControlPlane};
use crate::driver::{Mcp, text};

/// The answer to any grant (it has a mode) or revoke.
fn change(request: Value, answer: Answer) {
    let params = &request["params"];
    let mut mounts = vec![json!({"path": "/w", "mode": "rw", "source": "workspace"})];
    if params["mode"].is_string() {
        mounts.push(json!({"path": "/real", "mode": params["mode"], "source": "session"}));
    }
    answer.result(&json!({
        "path": "/real", "mode": params["mode"], "applied": "recreated",
        "persisted": params["persist"] == true, "lost": ["sleep 9"], "mounts": mounts,
        "notices": ["n"],
    }));
}

#[test]
fn grant_and_revoke_go_in_and_what_is_there_now_comes_back() {
    let home = Home::new();
    let plane = ControlPlane::start(&home, change);
    let mut mcp = Mcp::initialized(&home);
    mcp.request(0, "tools/list", &json!({}));
    let tools = mcp.result(0)["tools"].clone();
    for (id, tool, arguments, asked, wanted) in [
        (
            1,
            "grant",
            json!({"path": "/a"}),
            json!({"path": "/a", "mode": "ro", "persist": false, "file": false}),
            "/real can be read in the sandbox\n",
        ),
        (
            2,
            "grant",
            json!({"path": "/a", "mode": "rw", "persist": true}),
            json!({"path": "/a", "mode": "rw", "persist": true, "file": false}),
            "/real can be read and written in the sandbox\n",
        ),
        (
            3,
            "revoke",
            json!({"path": "/a"}),
            json!({"path": "/a"}),
            "/real of the host is not shown in the sandbox\n",
        ),
    ] {
        mcp.call(id, tool, &arguments);
        let result = mcp.result(id);
        assert_eq!(result["isError"], false);
        let shown = text(&result);
        assert!(shown.starts_with(wanted), "{shown}");
        assert!(shown.contains("[ended: sleep 9]"), "{shown}");
        assert!(shown.contains("[notice: n]"), "{shown}");
        assert!(
            shown.ends_with("session    /real") == (tool == "grant"),
            "{shown}"
        );
        assert_eq!(plane.requests(tool).pop().unwrap()["params"], asked);
        let of_tool = |described: &&Value| described["name"] == tool;
        let described = tools.as_array().unwrap().iter().find(of_tool).unwrap();
        conforms(&result["structuredContent"], &described["outputSchema"]);
        assert_eq!(described["annotations"]["readOnlyHint"], false);
        assert_eq!(described["annotations"]["destructiveHint"], true);
    }
}

#[test]
fn refused_grant_is_an_error_result_with_its_reason() {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, |_, answer| {
        answer.error("refused", "\"/etc\" belongs to the system", "ask for less");
    });
    let mut mcp = Mcp::initialized(&home);
    for (id, tool) in [(1, "grant"), (2, "revoke")] {
        mcp.call(id, tool, &json!({"path": "/etc"}));
        assert_eq!(
            mcp.refusal(id),
            "umwelt: \"/etc\" belongs to the system\nhint: ask for less"
        );
    }
}

#[test]
fn wrong_arguments_do_not_reach_the_control_plane() {
    let home = Home::new();
    let plane = ControlPlane::start(&home, change);
    let mut mcp = Mcp::initialized(&home);
    for (id, arguments) in [
        (1, json!({})),
        (2, json!({"path": "/a", "mode": "rwx"})),
        (3, json!({"path": "/a", "mode": "rw", "file": true})),
        (4, json!({"paths": ["/a"]})),
    ] {
        mcp.call(id, "grant", &arguments);
        assert_eq!(mcp.error_code(id), -32602);
    }
    assert!(plane.requests("grant").is_empty());
}

#[test]
fn recreate_that_takes_long_is_told_as_progress_and_can_be_given_up() {
    let home = Home::new();
    let plane = ControlPlane::start(&home, |_, answer| answer.wait_cancelled());
    let mut mcp = Mcp::initialized(&home);
    let params = json!({
        "name": "grant", "arguments": {"path": "/a"}, "_meta": {"progressToken": "t"},
    });
    mcp.request(1, "tools/call", &params);
    let message = mcp.next();
    assert_eq!(message["method"], "notifications/progress");
    assert_eq!(message["params"]["progressToken"], "t");
    let said = message["params"]["message"].as_str().unwrap();
    assert!(said.starts_with("changing what the sandbox sees"), "{said}");
    mcp.cancel(1);
    let request = plane.wait_for("grant");
    assert_eq!(plane.wait_for("cancel")["params"]["request"], request["id"]);
}
