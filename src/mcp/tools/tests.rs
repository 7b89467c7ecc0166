use super::*;

fn parse(name: &str, arguments: Value) -> Result<ToolCall, String> {
    let Value::Object(arguments) = arguments else {
        panic!();
    };
    ToolCall::parse(name, arguments).map_err(|error| error.message.into_owned())
}

#[test]
fn shell_arguments_become_a_call() {
    let call = parse(
        "shell",
        json!({"command": "ls", "timeout_s": 5.0, "cwd": null}),
    );
    let wanted = Shell {
        command: "ls".to_owned(),
        timeout_s: Some(5),
        cwd: None,
        stream: true,
    };
    assert_eq!(call.unwrap().into_call(true), Call::Shell(wanted));
}

#[test]
fn wrong_arguments_are_named_with_what_is_expected() {
    for (arguments, wanted) in [
        (
            json!({}),
            "argument \"command\" is missing, it must be a string",
        ),
        (
            json!({"cmd": "ls"}),
            "is missing, it must be a string; unknown argument \"cmd\": it takes command,",
        ),
        (
            json!({"command": 1}),
            "argument \"command\" must be a string, not 1",
        ),
        (
            json!({"command": "a", "timeout_s": 0}),
            "at least 1 (seconds), not 0",
        ),
        (
            json!({"command": "a", "timeout_s": -3}),
            "at least 1 (seconds), not -3",
        ),
        (
            json!({"command": "a", "timeout_s": 1.5}),
            "at least 1 (seconds), not 1.5",
        ),
        (
            json!({"command": "a", "timeout_s": "5"}),
            "at least 1 (seconds), not a string",
        ),
        (
            json!({"command": "a", "timeout_s": 1e300}),
            "at least 1 (seconds), not 1e+300",
        ),
        (
            json!({"command": "a", "cwd": ["/"]}),
            "\"cwd\" must be a string, not an array",
        ),
        (
            json!({"command": "a", "dir": "/"}),
            "unknown argument \"dir\"; it takes command, timeout_s and cwd",
        ),
    ] {
        let message = parse("shell", arguments).unwrap_err();
        assert!(
            message.starts_with("shell: ") && message.contains(wanted),
            "{message}"
        );
    }
}

#[test]
fn unknown_tool_is_told_the_known_ones() {
    let message = parse("umwelt_shell", json!({})).unwrap_err();
    assert_eq!(
        message,
        "unknown tool \"umwelt_shell\"; the tools are: shell, grant, revoke, egress, list"
    );
    assert!(
        parse("list", json!({"x": 1}))
            .unwrap_err()
            .contains("no arguments")
    );
}

#[test]
fn grant_arguments_become_a_call() {
    let call = parse("grant", json!({"path": "/a", "file": null}));
    let mut wanted = Grant {
        path: "/a".to_owned(),
        mode: GrantMode::Ro,
        persist: false,
        file: false,
    };
    assert_eq!(call.unwrap().into_call(true), Call::Grant(wanted.clone()));
    let call = parse(
        "grant",
        json!({"path": "/a", "mode": "rw", "persist": true}),
    );
    (wanted.mode, wanted.persist) = (GrantMode::Rw, true);
    assert_eq!(call.unwrap().into_call(false), Call::Grant(wanted));
    let path = "/a".to_owned();
    let call = parse("revoke", json!({"path": "/a"})).unwrap();
    assert_eq!(call.into_call(true), Call::Revoke(Revoke { path }));
}

#[test]
fn wrong_grants_are_named_with_what_is_expected() {
    for (tool, arguments, wanted) in [
        (
            "grant",
            json!({}),
            "argument \"path\" is missing, it must be a string of 1 to",
        ),
        ("grant", json!({"path": ""}), "1 to 4096 bytes"),
        (
            "grant",
            json!({"path": "x".repeat(4097)}),
            "1 to 4096 bytes",
        ),
        ("grant", json!({"path": ["/a"]}), "4096 bytes, not an array"),
        (
            "grant",
            json!({"path": "/a", "mode": "write"}),
            "\"mode\" must be \"ro\" or \"rw\"",
        ),
        (
            "grant",
            json!({"path": "/a", "mode": true}),
            "\"rw\", not true",
        ),
        (
            "grant",
            json!({"path": "/a", "persist": "yes"}),
            "true or false, not a string",
        ),
        (
            "grant",
            json!({"path": "/a", "mode": "rw", "file": true}),
            "a single file can only be read",
        ),
        (
            "grant",
            json!({"path": "/a", "rw": true}),
            "it takes path, mode, persist and file",
        ),
        ("revoke", json!({}), "argument \"path\" is missing"),
        (
            "revoke",
            json!({"path": "/a", "mode": "ro"}),
            "it takes path",
        ),
    ] {
        let message = parse(tool, arguments).unwrap_err();
        assert!(
            message.starts_with(tool) && message.contains(wanted),
            "{message}"
        );
    }
}

#[test]
fn whoever_approves_sees_scalars_only() {
    for tool in table()["tools"].as_array().unwrap() {
        let properties = tool["inputSchema"]["properties"].as_object().unwrap();
        for (name, schema) in properties {
            let kind = schema["type"].as_str().unwrap();
            assert!(
                ["string", "integer", "boolean"].contains(&kind),
                "{name}: {kind}"
            );
        }
    }
}

#[test]
fn command_past_the_limit_is_refused_with_the_limit() {
    let command = "x".repeat(MAX_COMMAND + 1);
    let message = parse("shell", json!({"command": command})).unwrap_err();
    assert!(
        message.contains("at most 2097152 bytes; it has 2097153"),
        "{message}"
    );
    let command = "x".repeat(MAX_COMMAND);
    assert!(parse("shell", json!({"command": command})).is_ok());
}

#[test]
fn schemas_are_objects_and_name_what_they_require() {
    let table = table();
    for tool in table["tools"].as_array().unwrap() {
        for schema in ["inputSchema", "outputSchema"] {
            let schema = &tool[schema];
            assert_eq!(schema["type"], "object");
            for name in schema["required"].as_array().into_iter().flatten() {
                assert!(schema["properties"].get(name.as_str().unwrap()).is_some());
            }
        }
        assert!(tool["annotations"]["readOnlyHint"].is_boolean());
    }
}
