//! The tools that a model sees, and their arguments -> calls of the socket
//! API. Pure.
//!
//! The names are short because clients put the server's name before them, and
//! a person's permission rules are written with the whole (`umwelt_shell`).

use serde_json::{Map, Value, json};

use crate::api::{Call, Empty, MAX_COMMAND, Shell};
use crate::mcp::jsonrpc::RpcError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tool {
    Shell,
    List,
}

/// One checked call of a tool.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ToolCall {
    Shell(Shell),
    List,
}

impl ToolCall {
    /// Errors say which argument is wrong and what is expected.
    pub(crate) fn parse(name: &str, arguments: Map<String, Value>) -> Result<ToolCall, RpcError> {
        let mut arguments = Arguments {
            tool: name,
            left: arguments,
        };
        let call = match name {
            "shell" => ToolCall::Shell(arguments.shell()?),
            "list" => ToolCall::List,
            _ => {
                let message = format!("unknown tool {name:?}; the tools are: shell, list");
                return Err(RpcError::invalid_params(message));
            }
        };
        arguments.finish()?;
        Ok(call)
    }

    pub(crate) fn tool(&self) -> Tool {
        match self {
            ToolCall::Shell(_) => Tool::Shell,
            ToolCall::List => Tool::List,
        }
    }

    /// `stream`: whether somebody wants to see the output grow.
    pub(crate) fn into_call(self, stream: bool) -> Call {
        match self {
            ToolCall::Shell(shell) => Call::Shell(Shell { stream, ..shell }),
            ToolCall::List => Call::List(Empty {}),
        }
    }

    /// Bytes that it takes to keep the call.
    pub(crate) fn size(&self) -> usize {
        match self {
            ToolCall::Shell(shell) => shell.command.len(),
            ToolCall::List => 0,
        }
    }
}

struct Arguments<'a> {
    tool: &'a str,
    left: Map<String, Value>,
}

impl Arguments<'_> {
    fn shell(&mut self) -> Result<Shell, RpcError> {
        let command = match self.take("command") {
            Some(Value::String(command)) => command,
            Some(other) => return Err(self.wrong("command", "a string", Some(&other))),
            None => return Err(self.wrong("command", "a string", None)),
        };
        if command.len() > MAX_COMMAND {
            let wanted = format!(
                "at most {MAX_COMMAND} bytes; it has {}. Write the text to a file in pieces",
                command.len()
            );
            return Err(self.wrong("command", &wanted, None));
        }
        let timeout_s = match self.take("timeout_s") {
            None => None,
            Some(value) => match seconds(&value) {
                Some(seconds) => Some(seconds),
                None => {
                    let wanted = "an integer of at least 1 (seconds)";
                    return Err(self.wrong("timeout_s", wanted, Some(&value)));
                }
            },
        };
        let cwd = match self.take("cwd") {
            None => None,
            Some(Value::String(cwd)) => Some(cwd),
            Some(other) => return Err(self.wrong("cwd", "a string", Some(&other))),
        };
        Ok(Shell {
            command,
            timeout_s,
            cwd,
            stream: false,
        })
    }

    /// Some models write null for what they leave out.
    fn take(&mut self, name: &str) -> Option<Value> {
        self.left.remove(name).filter(|value| !value.is_null())
    }

    fn finish(mut self) -> Result<(), RpcError> {
        self.left.retain(|_, value| !value.is_null());
        match self.left.keys().next() {
            None => Ok(()),
            Some(name) => {
                let known = match self.tool {
                    "shell" => "command, timeout_s and cwd",
                    _ => "no arguments",
                };
                let tool = self.tool;
                let name: String = name.chars().take(80).collect();
                Err(RpcError::invalid_params(format!(
                    "{tool}: unknown argument {name:?}; it takes {known}"
                )))
            }
        }
    }

    fn wrong(&self, name: &str, wanted: &str, found: Option<&Value>) -> RpcError {
        let found = match found {
            None => String::new(),
            Some(Value::Number(number)) => format!(", not {number}"),
            Some(Value::Bool(value)) => format!(", not {value}"),
            Some(Value::String(_)) => ", not a string".to_owned(),
            Some(Value::Array(_)) => ", not an array".to_owned(),
            Some(Value::Object(_)) => ", not an object".to_owned(),
            Some(Value::Null) => ", not null".to_owned(),
        };
        let tool = self.tool;
        RpcError::invalid_params(format!(
            "{tool}: argument \"{name}\" must be {wanted}{found}"
        ))
    }
}

/// JSON Schema calls 5.0 an integer, and some models write it.
fn seconds(value: &Value) -> Option<u64> {
    let seconds = value.as_u64().or_else(|| {
        let number = value.as_f64()?;
        (number.fract() == 0.0 && number < 1e15)
            .then(|| format!("{number:.0}").parse().ok())
            .flatten()
    })?;
    (seconds >= 1).then_some(seconds)
}

/// The result of `tools/list`. It is the same for ever, and one page.
pub(crate) fn table() -> Value {
    json!({"tools": [shell(), list()]})
}

const SHELL: &str = "Run a command with bash (or sh) in this project's sandbox and return its \
output, stdout and stderr together, and how it ended. The working directory is the workspace; \
its files are the real project files, under the same paths as on the host. Writable are the \
workspace, $HOME and the temporary directories; $HOME and the temporary directories start empty \
and are gone when the sandbox stops. Everything else is read-only or not there, and there is no \
network. stdin is empty, there is no terminal, and nothing but files carries over from one \
command to the next. A long output is cut in the middle, and the result names a file in the \
sandbox with all of it. A command that runs into its time limit is killed with all it started; \
start servers with & and redirect their output. When the sandbox refuses something (\"Permission \
denied\", \"Read-only file system\", a name that does not resolve), trying other ways will not \
help: use the list tool to see what is there, and tell the user what is missing.";

const LIST: &str = "Show what the sandbox can see and use: every mounted path with its mode \
(rw, ro, tmpfs, or masked: hidden on purpose), the network, the limits on memory, processes and time, and what the user \
should know.";

fn shell() -> Value {
    json!({
        "name": "shell",
        "title": "Run a command in the sandbox",
        "description": SHELL,
        "inputSchema": {
            "type": "object",
            "properties": {
                "command": {
                    "type": "string",
                    "description": "The command text, as after bash -c. May have many lines.",
                },
                "timeout_s": {
                    "type": "integer",
                    "minimum": 1,
                    "description": "Seconds until the command is killed. The list tool shows the default and the maximum.",
                },
                "cwd": {
                    "type": "string",
                    "description": "Working directory: absolute, or relative to the workspace. Default: the workspace.",
                },
            },
            "required": ["command"],
            "additionalProperties": false,
        },
        "outputSchema": shell_output(),
        "annotations": {
            "title": "Run a command in the sandbox",
            "readOnlyHint": false,
            "destructiveHint": true,
            "idempotentHint": false,
            "openWorldHint": false,
        },
    })
}

fn shell_output() -> Value {
    let count = json!({"type": "integer", "minimum": 0});
    json!({
        "type": "object",
        "properties": {
            "ended": {
                "type": "string",
                "enum": ["exited", "signaled", "timed_out", "cancelled", "lost"],
                "description": "How the command ended. Only \"exited\" has an exit code.",
            },
            "exit_code": {"type": "integer"},
            "signal": {"type": "integer", "description": "The signal that killed it."},
            "timed_out_after_s": {"type": "integer", "description": "The time limit it ran into."},
            "lost_reason": {"type": "string", "description": "Why the sandbox went away under it."},
            "output": {"type": "string", "description": "stdout and stderr, as they came."},
            "bytes": {"type": "integer", "minimum": 0, "description": "Length of the whole output."},
            "omitted_bytes": {"type": "integer", "minimum": 0, "description": "Left out of the middle."},
            "full_output": {"type": "string", "description": "File in the sandbox with the whole output."},
            "invalid_bytes": {"type": "integer", "minimum": 0, "description": "Bytes that were not UTF-8."},
            "duration_ms": count,
            "background": {
                "type": "array",
                "description": "Processes that still run, of this and of earlier commands.",
                "items": {
                    "type": "object",
                    "properties": {"pid": count, "command": {"type": "string"}},
                    "required": ["pid", "command"],
                    "additionalProperties": false,
                },
            },
            "notices": {"type": "array", "items": {"type": "string"}},
        },
        "required": [
            "ended", "output", "bytes", "omitted_bytes", "invalid_bytes", "duration_ms",
            "background", "notices",
        ],
        "additionalProperties": false,
    })
}

fn list() -> Value {
    let text = json!({"type": "string"});
    let count = json!({"type": "integer", "minimum": 0});
    json!({
        "name": "list",
        "title": "Show what the sandbox can see",
        "description": LIST,
        "inputSchema": {"type": "object", "properties": {}, "additionalProperties": false},
        "outputSchema": {
            "type": "object",
            "properties": {
                "workspace": text,
                "mounts": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "path": text,
                            "mode": {"type": "string", "description": "rw, ro, tmpfs or masked"},
                            "source": {"type": "string", "description": "Who asked for it."},
                            "size": {"type": "integer", "minimum": 0, "description": "Bytes, of a tmpfs."},
                            "reason": {"type": "string", "description": "Why a masked path is hidden."},
                        },
                        "required": ["path", "mode", "source"],
                        "additionalProperties": false,
                    },
                },
                "resources": {
                    "type": "object",
                    "properties": {
                        "memory": {"type": "integer", "minimum": 0, "description": "Bytes."},
                        "cpus": {"type": "number"},
                        "pids_limit": count,
                    },
                    "required": ["memory", "cpus", "pids_limit"],
                    "additionalProperties": false,
                },
                "network": text,
                "timeout_default_s": count,
                "timeout_max_s": count,
                "notices": {"type": "array", "items": text},
            },
            "required": [
                "workspace", "mounts", "resources", "network", "timeout_default_s",
                "timeout_max_s", "notices",
            ],
            "additionalProperties": false,
        },
        "annotations": {
            "title": "Show what the sandbox can see",
            "readOnlyHint": true,
            "destructiveHint": false,
            "idempotentHint": true,
            "openWorldHint": false,
        },
    })
}

#[cfg(test)]
mod tests {
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
            (json!({}), "argument \"command\" must be a string"),
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
            "unknown tool \"umwelt_shell\"; the tools are: shell, list"
        );
        assert!(
            parse("list", json!({"x": 1}))
                .unwrap_err()
                .contains("no arguments")
        );
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
}
