//! The tools that a model sees, and their arguments -> calls of the socket
//! API. Pure.
//!
//! The names are short because clients put the server's name before them, and
//! a person's permission rules are written with the whole (`umwelt_shell`).

use serde_json::{Map, Value, json};

use crate::api::{Call, Egress, Empty, Grant, GrantMode, MAX_COMMAND, Revoke, Shell};
use crate::mcp::egress_tool;
use crate::mcp::jsonrpc::RpcError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tool {
    Shell,
    Grant,
    Revoke,
    Egress,
    List,
}

/// As the kernel has it, PATH_MAX.
const MAX_PATH: usize = 4096;

/// One checked call of a tool.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ToolCall {
    Shell(Shell),
    Grant(Grant),
    Revoke(Revoke),
    Egress(Egress),
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
            "grant" => ToolCall::Grant(arguments.grant()?),
            "revoke" => ToolCall::Revoke(Revoke {
                path: arguments.path()?,
            }),
            "egress" => ToolCall::Egress(egress_tool::parse(&mut arguments)?),
            "list" => ToolCall::List,
            _ => {
                let all = "shell, grant, revoke, egress, list";
                let message = format!("unknown tool {name:?}; the tools are: {all}");
                return Err(RpcError::invalid_params(message));
            }
        };
        arguments.finish()?;
        Ok(call)
    }

    pub(crate) fn tool(&self) -> Tool {
        match self {
            ToolCall::Shell(_) => Tool::Shell,
            ToolCall::Grant(_) => Tool::Grant,
            ToolCall::Revoke(_) => Tool::Revoke,
            ToolCall::Egress(_) => Tool::Egress,
            ToolCall::List => Tool::List,
        }
    }

    /// `stream`: whether somebody wants to see the output grow.
    pub(crate) fn into_call(self, stream: bool) -> Call {
        match self {
            ToolCall::Shell(shell) => Call::Shell(Shell { stream, ..shell }),
            ToolCall::Grant(grant) => Call::Grant(grant),
            ToolCall::Revoke(revoke) => Call::Revoke(revoke),
            ToolCall::Egress(egress) => Call::Egress(egress),
            ToolCall::List => Call::List(Empty {}),
        }
    }

    /// Bytes that it takes to keep the call.
    pub(crate) fn size(&self) -> usize {
        match self {
            ToolCall::Shell(shell) => shell.command.len(),
            ToolCall::Grant(grant) => grant.path.len(),
            ToolCall::Revoke(revoke) => revoke.path.len(),
            ToolCall::Egress(egress) => egress_tool::size(egress),
            ToolCall::List => 0,
        }
    }
}

pub(super) struct Arguments<'a> {
    tool: &'a str,
    left: Map<String, Value>,
}

impl Arguments<'_> {
    fn shell(&mut self) -> Result<Shell, RpcError> {
        let command = match self.take("command") {
            Some(Value::String(command)) => command,
            Some(other) => return Err(self.wrong("command", "a string", Some(&other))),
            None => return Err(self.missing("command", "a string")),
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

    fn grant(&mut self) -> Result<Grant, RpcError> {
        let path = self.path()?;
        let mode = match self.take("mode") {
            None => GrantMode::Ro,
            Some(Value::String(mode)) if mode == "ro" => GrantMode::Ro,
            Some(Value::String(mode)) if mode == "rw" => GrantMode::Rw,
            Some(Value::String(_)) => return Err(self.wrong("mode", MODES, None)),
            Some(other) => return Err(self.wrong("mode", MODES, Some(&other))),
        };
        let persist = self.flag("persist")?;
        let file = self.flag("file")?;
        if file && mode == GrantMode::Rw {
            let wanted = "\"ro\" with file: true; a single file can only be read";
            return Err(self.wrong("mode", wanted, None));
        }
        Ok(Grant {
            path,
            mode,
            persist,
            file,
        })
    }

    fn path(&mut self) -> Result<String, RpcError> {
        let wanted = format!("a string of 1 to {MAX_PATH} bytes");
        match self.take("path") {
            Some(Value::String(path)) if (1..=MAX_PATH).contains(&path.len()) => Ok(path),
            None => Err(self.missing("path", &wanted)),
            Some(Value::String(_)) => Err(self.wrong("path", &wanted, None)),
            Some(other) => Err(self.wrong("path", &wanted, Some(&other))),
        }
    }

    fn flag(&mut self, name: &str) -> Result<bool, RpcError> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(other) => Err(self.wrong(name, "true or false", Some(&other))),
        }
    }

    pub(super) fn peek(&self, name: &str) -> Option<&Value> {
        self.left.get(name)
    }

    /// Some models write null for what they leave out.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.left.remove(name).filter(|value| !value.is_null())
    }

    fn finish(mut self) -> Result<(), RpcError> {
        self.left.retain(|_, value| !value.is_null());
        match self.unknown() {
            None => Ok(()),
            Some((name, known)) => {
                let tool = self.tool;
                Err(RpcError::invalid_params(format!(
                    "{tool}: unknown argument {name:?}; it takes {known}"
                )))
            }
        }
    }

    /// The first that the tool does not have, and those that it has.
    fn unknown(&self) -> Option<(String, String)> {
        let known: &[&str] = match self.tool {
            "shell" => &["command", "timeout_s", "cwd"],
            "grant" => &["path", "mode", "persist", "file"],
            "revoke" => &["path"],
            "egress" => &["op", "kind", "host", "port", "paths"],
            _ => &[],
        };
        let mut left = self.left.keys();
        let name = left.find(|name| !known.contains(&name.as_str()))?;
        let name: String = name.chars().take(80).collect();
        let known = match known {
            [] => "no arguments".to_owned(),
            [one] => (*one).to_owned(),
            [first @ .., last] => format!("{} and {last}", first.join(", ")),
        };
        Some((name, known))
    }

    /// Another name was perhaps given for it: that is told as well.
    pub(super) fn missing(&self, name: &str, wanted: &str) -> RpcError {
        let unknown = self.unknown();
        let unknown = unknown.map_or_else(String::new, |(name, known)| {
            format!("; unknown argument {name:?}: it takes {known}")
        });
        let tool = self.tool;
        RpcError::invalid_params(format!(
            "{tool}: argument \"{name}\" is missing, it must be {wanted}{unknown}"
        ))
    }

    pub(super) fn wrong(&self, name: &str, wanted: &str, found: Option<&Value>) -> RpcError {
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

const MODES: &str = "\"ro\" or \"rw\"";

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
    json!({"tools": [shell(), grant(), revoke(), egress_tool::schema(), list()]})
}

const SHELL: &str = "Run a command with bash (or sh) in this project's sandbox; returns its output \
(stdout and stderr together) and how it ended. Every command is a new shell: it starts in the \
workspace, files stay, but cd and variables do not. The workspace holds the real project files, \
under the same path as on the host, and is writable. So are $HOME and the temporary directories, \
which start empty and are gone when the sandbox stops. Everything else is read-only or not there. \
There is no network unless the project has turned it on; then its rules decide, which the egress \
tool shows. There is no stdin, no terminal and no root. The middle of a long output is left out; \
the result then names a file in the sandbox with all of it. A command that runs into its time \
limit is killed with all that it started: for long builds set timeout_s; start servers with & and \
send their output to a file, they live on until the sandbox stops. A refusal (\"Permission \
denied\", \"Read-only file system\", a missing path, a name that does not resolve) is a decision, so \
do not look for a way around it: the list tool shows what is there, the grant tool asks for a \
path, the egress tool for a host. Tell the user what else is missing.";

const GRANT: &str = "Ask the user for a path of the host that the task needs and that the sandbox \
does not show, or shows read-only. Ask for the smallest directory that will do (or for one file, \
with file: true), and for mode \"rw\" only to write there. The user may have to approve the call, \
and then sees nothing but its arguments: say beforehand what it is for. The path appears in the \
sandbox under its real name, until the sandbox stops, or for later starts too with persist: true. \
Mostly that changes nothing else. If the result says \"recreated\", the sandbox had to be made anew: \
what ran in it has ended, $HOME and the temporary directories are empty again, and the result \
lists what was lost. A refusal is final and says why (outside of what the user allows, a place \
that holds secrets, …): do not try other names for the same place, tell the user.";

const REVOKE: &str = "Take back what grant has given for a path, now and for later starts. Use it \
when the task no longer needs the path. The workspace, and what the user's own configuration shows, \
cannot be revoked. If something in the sandbox still uses the path, the sandbox is made anew, as \
with grant, and the result lists what was lost.";

const LIST: &str = "Show what the sandbox has: every mounted path with its mode (rw: can be \
written; ro: read only; tmpfs: scratch that is gone when the sandbox stops; masked: hidden on \
purpose), the network, the limits on memory, cpus, processes and time, and notices for the user. \
Changes nothing. Call it before you conclude that something is missing, and before you ask for a grant.";

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
                    "description": "Seconds until the command is killed. The list tool shows the default, and the maximum: more is refused.",
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
            "signal_name": {"type": "string"},
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

fn grant() -> Value {
    json!({
        "name": "grant",
        "title": "Ask for a path of the host",
        "description": GRANT,
        "inputSchema": {
            "type": "object",
            "properties": {
                "path": {
                    "type": "string",
                    "description": "Absolute, or relative to the workspace. Links are followed.",
                },
                "mode": {
                    "type": "string",
                    "enum": ["ro", "rw"],
                    "description": "\"ro\" (default): it can be read. \"rw\": also written, on the host.",
                },
                "persist": {
                    "type": "boolean",
                    "description": "Keep the grant for later starts, in .umwelt.toml. Default: false.",
                },
                "file": {
                    "type": "boolean",
                    "description": "The path is a single file; only with mode \"ro\". Default: false.",
                },
            },
            "required": ["path"],
            "additionalProperties": false,
        },
        "outputSchema": change_output(),
        "annotations": {
            "title": "Ask for a path of the host",
            "readOnlyHint": false,
            // A recreate ends what runs.
            "destructiveHint": true,
            "idempotentHint": true,
            "openWorldHint": false,
        },
    })
}

fn revoke() -> Value {
    json!({
        "name": "revoke",
        "title": "Take back a granted path",
        "description": REVOKE,
        "inputSchema": {
            "type": "object",
            "properties": {
                "path": {
                    "type": "string",
                    "description": "The granted path, as the list tool shows it.",
                },
            },
            "required": ["path"],
            "additionalProperties": false,
        },
        "outputSchema": change_output(),
        "annotations": {
            "title": "Take back a granted path",
            "readOnlyHint": false,
            "destructiveHint": true,
            "idempotentHint": true,
            "openWorldHint": false,
        },
    })
}

fn change_output() -> Value {
    let text = json!({"type": "string"});
    json!({
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The real path, links resolved."},
            "mode": {
                "type": "string",
                "description": "What the path is now: ro, rw, tmpfs or masked. Left out: it is not shown.",
            },
            "applied": {
                "type": "string",
                "enum": ["unchanged", "live", "recreated"],
                "description": "Only \"recreated\" has ended what ran in the sandbox.",
            },
            "persisted": {"type": "boolean", "description": "Whether .umwelt.toml was changed."},
            "lost": {"type": "array", "items": text, "description": "What a recreate has ended."},
            "mounts": mounts(),
            "notices": {"type": "array", "items": text},
        },
        "required": ["path", "applied", "persisted", "lost", "mounts", "notices"],
        "additionalProperties": false,
    })
}

fn mounts() -> Value {
    let text = json!({"type": "string"});
    json!({
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
                "mounts": mounts(),
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
mod tests;
