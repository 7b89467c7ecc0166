//! The whole socket API on one page: what a client can ask of a control
//! plane, and what it gets back. docs/socket-api.md says the same in prose.
//!
//! One JSON object a line in both directions. A request is
//! `{"id": 1, "method": "shell", "params": {…}}`; its answers carry the same
//! id: any number of `{"id": 1, "event": {…}}`, then exactly one
//! `{"id": 1, "result": {…}}` or `{"id": 1, "error": {…}}`.

pub(crate) mod client;
#[cfg(test)]
mod document;
pub(crate) mod launch;
pub(crate) mod line;

use std::fmt;

use serde::{Deserialize, Serialize};

/// Parts of [`Grant`] and [`ListReply`], as the configuration has them.
pub(crate) use crate::config::expect::Verdict;
pub(crate) use crate::config::{GrantMode, Resources};
/// Parts of [`Egress`] and [`EgressReply`], as the policy has them.
pub(crate) use crate::egress::check::Got;
pub(crate) use crate::egress::delivery::Delivery;
pub(crate) use crate::policy::egress::HostEntry;
pub(crate) use crate::policy::egress_change::RuleKind;

/// Raised whenever a client of the old version could misread the new one.
pub(crate) const API_VERSION: u32 = 1;
/// Longest accepted line, in bytes, the newline not counted.
pub(crate) const MAX_LINE: usize = 4 << 20;
/// Longest accepted command text, in bytes.
pub(crate) const MAX_COMMAND: usize = 2 << 20;

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "method",
    content = "params",
    rename_all = "snake_case",
    deny_unknown_fields
)]
pub(crate) enum Call {
    /// Must be the first request on a connection.
    Hello(Hello),
    /// Answers `{}` at once, also while the sandbox is starting.
    Ping(Empty),
    Status(Empty),
    List(Empty),
    /// Runs a command with a shell and answers with its captured output.
    Shell(Shell),
    /// Runs a program on three pipes that come with the request as
    /// descriptors (`SCM_RIGHTS`): its stdin, stdout and stderr.
    Exec(Exec),
    /// Runs a program on a new terminal inside the sandbox. The master side
    /// comes back as a descriptor with the `terminal` event.
    Terminal(Terminal),
    /// Shows one more directory or file of the host inside.
    Grant(Grant),
    /// Takes back what was granted for a path.
    Revoke(Revoke),
    /// What the sandbox may reach on the network, and one rule more or less.
    Egress(Egress),
    /// Ends the commands of another request of this connection. The answer
    /// says whether it was still running; the cancelled one is answered too.
    Cancel(Cancel),
    /// Ends the sandbox and the control plane.
    Shutdown(Empty),
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Empty {}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hello {
    pub(crate) api: u32,
    /// Name and version of the client, for the journal.
    pub(crate) client: String,
    /// Whether a control plane that a client launched stays while this
    /// connection is open. Agents hold, a status question does not.
    #[serde(default)]
    pub(crate) holds: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shell {
    pub(crate) command: String,
    /// Seconds; the default and the maximum come from the base config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_s: Option<u64>,
    /// Absolute, or relative to the workspace; default the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cwd: Option<String>,
    /// Whether to send `output` events while the command runs.
    #[serde(default)]
    pub(crate) stream: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Exec {
    pub(crate) argv: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cwd: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Terminal {
    /// Empty: an interactive shell.
    pub(crate) argv: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cwd: Option<String>,
    pub(crate) rows: u16,
    pub(crate) cols: u16,
    /// The value of `TERM` inside.
    pub(crate) term: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Grant {
    /// Absolute, or relative to the workspace. Links in it are followed.
    pub(crate) path: String,
    pub(crate) mode: GrantMode,
    /// Whether it is also written to the workspace file, for later starts.
    #[serde(default)]
    pub(crate) persist: bool,
    /// Says that the path is a single file, which can only be read.
    #[serde(default)]
    pub(crate) file: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Revoke {
    pub(crate) path: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Egress {
    pub(crate) op: EgressOp,
    /// Kind, host and port are needed to add and to remove; an https rule has
    /// port 443 where none is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<RuleKind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<i64>,
    /// With spaces between; left out, all paths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) paths: Option<String>,
    /// To add an https rule: with spaces between; left out, all methods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) methods: Option<String>,
    /// To add an https rule: false for a tunnel that is not looked into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) inspect: Option<bool>,
    /// To add: whether it holds at private addresses, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) private: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EgressOp {
    List,
    Add,
    Remove,
    /// Tries from inside what `[[egress.expect]]` says.
    Verify,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cancel {
    /// The id of the request to cancel.
    pub(crate) request: u64,
}

/// A request as it stands on the line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Request {
    pub(crate) id: u64,
    #[serde(flatten)]
    pub(crate) call: Call,
}

/// What a control plane sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Message {
    /// `None` answers a line from which no id could be read.
    pub(crate) id: Option<u64>,
    #[serde(flatten)]
    pub(crate) body: Body,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Body {
    Event(Event),
    /// One of the reply types below, by the method that was called.
    Result(serde_json::Value),
    Error(ApiError),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// What a command has printed since the last event, made safe to show.
    /// Pieces are left out (`skipped` bytes) for a client that reads slowly.
    Output { text: String, skipped: u64 },
    /// The terminal is open; the message carries its master descriptor.
    Terminal,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct HelloReply {
    pub(crate) api: u32,
    pub(crate) version: String,
    pub(crate) sid: String,
    pub(crate) workspace: String,
    pub(crate) state: State,
}

/// Where the sandbox stands. Requests that need it wait while it is starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    Starting,
    Ready,
    /// The container died and is being created again.
    Restarting,
    Stopping,
}

impl State {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            State::Starting => "starting",
            State::Ready => "ready",
            State::Restarting => "restarting",
            State::Stopping => "stopping",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StatusReply {
    pub(crate) version: String,
    pub(crate) sid: String,
    pub(crate) workspace: String,
    pub(crate) state: State,
    /// Process id of the control plane.
    pub(crate) pid: u32,
    pub(crate) container: String,
    pub(crate) image: String,
    /// Host process id of the sandbox's pid 1, once it is verified.
    pub(crate) init_pid: Option<u32>,
    /// Seconds since the control plane started.
    pub(crate) uptime_s: u64,
    /// How often the watchdog had to create the container again.
    pub(crate) restarts: u32,
    pub(crate) clients: u32,
    pub(crate) commands_running: u32,
    pub(crate) commands_total: u64,
    pub(crate) network: String,
    /// Only where there is a network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) egress: Option<EgressStatus>,
    /// Whether it ends with its last client.
    pub(crate) launched: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct EgressStatus {
    /// `starting`, `ready` or `restarting`.
    pub(crate) gateway: String,
    pub(crate) gateway_restarts: u32,
    /// SHA-256 of the kernel's rules, as they were read back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rules_digest: Option<String>,
    /// SHA-256 of the policy.
    pub(crate) policy_digest: String,
    /// Why the gateway does not go by the newest policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) policy_problem: Option<String>,
    /// That the gateway refuses all that is new, as it cannot record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) audit_problem: Option<String>,
    /// That the host's resolvers are gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) resolver_problem: Option<String>,
}

impl EgressStatus {
    pub(crate) fn problems(&self) -> impl Iterator<Item = &str> {
        let all = [
            &self.policy_problem,
            &self.audit_problem,
            &self.resolver_problem,
        ];
        all.into_iter().flatten().map(String::as_str)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ListReply {
    pub(crate) workspace: String,
    pub(crate) mounts: Vec<MountEntry>,
    pub(crate) resources: Resources,
    pub(crate) network: String,
    pub(crate) timeout_default_s: u64,
    pub(crate) timeout_max_s: u64,
    pub(crate) notices: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct MountEntry {
    pub(crate) path: String,
    /// `rw`, `ro`, `tmpfs` or `masked`.
    pub(crate) mode: String,
    /// The layer that asked for it: `workspace`, `session`, `persisted`,
    /// `base`, `scratch` or `umwelt`.
    pub(crate) source: String,
    /// Bytes, for a tmpfs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) size: Option<u64>,
    /// Why a masked path is hidden.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

/// The answer to `egress`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct EgressReply {
    /// `egress`, or `none` where the workspace has not turned it on.
    pub(crate) network: String,
    /// Whether the policy and the workspace file were changed.
    pub(crate) changed: bool,
    pub(crate) rules: Vec<RuleEntry>,
    pub(crate) hosts: Vec<HostEntry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<EgressStatus>,
    /// What `verify` has found, in the order of the files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) checks: Vec<CheckEntry>,
    /// One line each, already safe to show.
    pub(crate) notices: Vec<String>,
}

/// One expectation, and what was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CheckEntry {
    pub(crate) url: String,
    pub(crate) expected: Verdict,
    pub(crate) got: Got,
    /// The two are the same.
    pub(crate) ok: bool,
    pub(crate) why: String,
    /// `base` or `workspace`.
    pub(crate) source: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RuleEntry {
    pub(crate) kind: RuleKind,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Of https rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) paths: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) methods: Option<Vec<String>>,
    /// Whether each request is looked at; tcp rules carry anything.
    pub(crate) inspect: bool,
    pub(crate) private: bool,
    /// `base`, `workspace`, or the tool whose registry it is.
    pub(crate) source: String,
    /// Of tcp rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) delivery: Option<Delivery>,
}

/// The answer to `grant` and `revoke`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ChangeReply {
    /// The path with its links resolved: what was in fact granted or revoked.
    pub(crate) path: String,
    /// What the path is from now on: `ro` or `rw`, or none where nothing of the
    /// host is shown there.
    pub(crate) mode: Option<String>,
    pub(crate) applied: Applied,
    /// Whether the workspace file was changed as well.
    pub(crate) persisted: bool,
    /// Commands and background processes that a recreate has ended.
    pub(crate) lost: Vec<String>,
    /// All mounts, as `list` shows them.
    pub(crate) mounts: Vec<MountEntry>,
    /// One line each, already safe to show.
    pub(crate) notices: Vec<String>,
}

/// How a changed mount set has reached the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Applied {
    /// It was so already.
    Unchanged,
    /// In the running container; nothing was ended.
    Live,
    /// By a new container.
    Recreated,
}

/// How a command ended; the three ways of not ending normally are kept apart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ended", rename_all = "snake_case")]
pub(crate) enum Outcome {
    Exited {
        code: i32,
    },
    Signaled {
        signal: i32,
    },
    TimedOut {
        after_s: u64,
    },
    Cancelled,
    /// The sandbox went away under it.
    Lost {
        reason: String,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ShellReply {
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
    /// stdout and stderr in the order of arrival, made safe to show; head and
    /// tail where it was long.
    pub(crate) output: String,
    /// Bytes that the command printed in all.
    pub(crate) bytes: u64,
    /// Bytes left out of `output`.
    pub(crate) omitted_bytes: u64,
    /// The whole output (up to a cap), as a path inside the sandbox; only
    /// where something was left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) full_output: Option<String>,
    /// Bytes that were not UTF-8.
    pub(crate) invalid_bytes: u64,
    pub(crate) duration_ms: u64,
    /// What still runs of this and of earlier commands.
    pub(crate) background: Vec<Process>,
    /// One line each, already safe to show.
    pub(crate) notices: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Process {
    /// Process id inside the sandbox.
    pub(crate) pid: u32,
    pub(crate) command: String,
}

/// The answer to `exec` and `terminal`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ExecReply {
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
    pub(crate) duration_ms: u64,
    /// One line each, already safe to show.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) notices: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CancelReply {
    pub(crate) was_running: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ApiError {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ErrorKind {
    /// The line is not a request, or its parameters are not those of the method.
    BadRequest,
    /// Another API version; the message names both.
    Version,
    /// The sandbox could not be started; the exit code says of which kind.
    StartFailed,
    /// As `StartFailed`, for bad config.
    BadConfig,
    /// As `StartFailed`, for missing cgroup delegation.
    NoDelegation,
    /// A grant or revoke that the rules do not allow.
    Refused,
    /// The command could not be started in the running sandbox.
    CannotRun,
    /// Too many clients, requests or bytes; the message names the limit.
    Limit,
    /// The control plane is on its way out.
    Stopping,
    /// Nobody answers, or the connection broke.
    Unreachable,
}

impl ErrorKind {
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            ErrorKind::BadConfig => crate::error::exit_code::USAGE,
            ErrorKind::NoDelegation => crate::error::exit_code::NO_DELEGATION,
            _ => crate::error::exit_code::FAILURE,
        }
    }
}

impl ApiError {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> ApiError {
        ApiError {
            kind,
            message: message.into(),
            hint: None,
        }
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> ApiError {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> ApiError {
        ApiError::new(ErrorKind::BadRequest, message)
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

impl Request {
    /// Reads one line; the error carries the id where one could be read.
    pub(crate) fn parse(line: &[u8]) -> Result<Request, (Option<u64>, ApiError)> {
        let mut value: serde_json::Value = serde_json::from_slice(line).map_err(|error| {
            (
                None,
                ApiError::bad_request(format!("not a JSON object: {error}")),
            )
        })?;
        let Some(object) = value.as_object_mut() else {
            return Err((None, ApiError::bad_request("not a JSON object")));
        };
        let Some(id) = object.remove("id").and_then(|id| id.as_u64()) else {
            return Err((
                None,
                ApiError::bad_request("\"id\" must be an unsigned integer"),
            ));
        };
        let params = object
            .entry("params")
            .or_insert_with(|| serde_json::json!({}));
        // serde would take an array for the fields in their order.
        if !params.is_object() {
            return Err((
                Some(id),
                ApiError::bad_request("\"params\" must be an object"),
            ));
        }
        match serde_json::from_value(value) {
            Ok(call) => Ok(Request { id, call }),
            Err(error) => Err((Some(id), ApiError::bad_request(error.to_string()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_survives_the_line() {
        let request = Request {
            id: 7,
            call: Call::Shell(Shell {
                command: "ls\n".into(),
                ..Shell::default()
            }),
        };
        let line = serde_json::to_vec(&request).unwrap();
        assert_eq!(Request::parse(&line).unwrap(), request);
    }

    #[test]
    fn params_may_be_left_out_where_none_are_needed() {
        let request = Request::parse(br#"{"id":1,"method":"ping"}"#).unwrap();
        assert_eq!(request.call, Call::Ping(Empty {}));
    }

    #[test]
    fn unknown_methods_and_parameters_are_refused_with_the_id() {
        for line in [
            &br#"{"id":3,"method":"dance"}"#[..],
            br#"{"id":3,"method":"ping","params":{"x":1}}"#,
            br#"{"id":3,"method":"shell","params":{"command":1}}"#,
            br#"{"id":3,"method":"shell","params":["true"]}"#,
            br#"{"id":3,"method":"shell","params":{"command":"a"},"extra":1}"#,
            br#"{"id":3}"#,
        ] {
            let (id, error) = Request::parse(line).unwrap_err();
            assert_eq!(id, Some(3), "{}", String::from_utf8_lossy(line));
            assert_eq!(error.kind, ErrorKind::BadRequest);
        }
    }

    #[test]
    fn lines_without_an_id_are_refused_without_one() {
        for line in [
            &b"x"[..],
            b"[1]",
            b"{}",
            br#"{"id":-1,"method":"ping"}"#,
            br#"{"id":"1","method":"ping"}"#,
        ] {
            assert_eq!(Request::parse(line).unwrap_err().0, None);
        }
    }

    #[test]
    fn message_survives_the_line() {
        for body in [
            Body::Event(Event::Terminal),
            Body::Event(Event::Output {
                text: "x".into(),
                skipped: 0,
            }),
            Body::Result(serde_json::json!({"was_running": true})),
            Body::Error(ApiError::bad_request("no").with_hint("yes")),
        ] {
            let message = Message { id: Some(1), body };
            let line = serde_json::to_string(&message).unwrap();
            assert_eq!(serde_json::from_str::<Message>(&line).unwrap(), message);
        }
    }
}
