//! Replies of the control plane -> results that a model reads. Pure.
//!
//! Some clients give a model the text, others only the structured content: each
//! of them says everything.

use serde::ser::{Serialize, SerializeStruct, Serializer};
use serde_json::{Value, json};

use crate::api::client::decode;
use crate::api::{
    ApiError, Applied, ChangeReply, EgressReply, ListReply, MountEntry, Outcome, Process,
    ShellReply,
};
use crate::mcp::egress_tool;
use crate::mcp::tools::Tool;
use crate::text::printable;

/// What follows the output stays small: clients cut a result over 50 KB, and
/// the output may have 40.
const MAX_PROCESSES: usize = 20;
const MAX_PROCESS_BYTES: usize = 160;
const MAX_NOTICES: usize = 12;
const MAX_NOTICE_BYTES: usize = 400;

const RECREATED: &str = "the sandbox was created anew: what ran in it has ended, and $HOME and the \
                         temporary directories are empty";

/// The result of one `tools/call`.
#[derive(Debug, PartialEq)]
pub(crate) struct ToolResult {
    pub(crate) text: String,
    /// Matches the tool's outputSchema wherever it is there.
    pub(crate) structured: Option<Value>,
    pub(crate) is_error: bool,
}

impl Serialize for ToolResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut result = serializer.serialize_struct("ToolResult", 3)?;
        result.serialize_field("content", &json!([{"type": "text", "text": self.text}]))?;
        match &self.structured {
            Some(structured) => result.serialize_field("structuredContent", structured)?,
            None => result.skip_field("structuredContent")?,
        }
        result.serialize_field("isError", &self.is_error)?;
        result.end()
    }
}

impl ToolResult {
    /// The call could not be carried out: a result, not a protocol error, so
    /// that the model reads the reason and the way out.
    pub(crate) fn from_error(error: &ApiError) -> ToolResult {
        let mut text = format!("umwelt: {}", printable(&error.message));
        for line in error.hint.iter().flat_map(|hint| hint.lines()) {
            text.push_str("\nhint: ");
            text.push_str(&printable(line));
        }
        ToolResult {
            text,
            structured: None,
            is_error: true,
        }
    }

    /// `notice`: something this program has to say on its own account.
    pub(crate) fn from_reply(tool: Tool, value: Value, notice: Option<String>) -> ToolResult {
        let result = match tool {
            Tool::Shell => decode::<ShellReply>(value).map(|mut reply| {
                reply.notices.splice(0..0, notice);
                render_shell(&reply)
            }),
            Tool::Grant | Tool::Revoke => decode::<ChangeReply>(value).map(|mut reply| {
                reply.notices.splice(0..0, notice);
                render_change(&reply)
            }),
            Tool::Egress => decode::<EgressReply>(value).map(|mut reply| {
                reply.notices.splice(0..0, notice);
                egress_tool::render(&reply)
            }),
            Tool::List => decode::<ListReply>(value).map(|mut reply| {
                reply.notices.splice(0..0, notice);
                render_list(&reply)
            }),
        };
        result.unwrap_or_else(|error| ToolResult::from_error(&error))
    }
}

fn render_shell(reply: &ShellReply) -> ToolResult {
    let mut text = if reply.output.is_empty() {
        "(no output)".to_owned()
    } else {
        reply.output.clone()
    };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let mut lines = vec![status(reply)];
    if reply.omitted_bytes > 0 {
        lines.push(omitted(reply));
    }
    if reply.invalid_bytes > 0 {
        lines.push(format!(
            "{} bytes of the output were not UTF-8 and are shown as U+FFFD",
            reply.invalid_bytes
        ));
    }
    lines.extend(background(&reply.background));
    lines.extend(notices(&reply.notices));
    for line in &lines {
        text.push_str(&format!("[{line}]\n"));
    }
    text.pop();
    ToolResult {
        text,
        structured: Some(structured_shell(reply)),
        is_error: matches!(reply.outcome, Outcome::Lost { .. }),
    }
}

fn status(reply: &ShellReply) -> String {
    let time = duration(reply.duration_ms);
    match &reply.outcome {
        Outcome::Exited { code } => format!("exit code {code}, after {time}"),
        Outcome::Signaled { signal } => {
            let name = signal_name(*signal);
            format!("killed by signal {signal} ({name}), no exit code, after {time}")
        }
        Outcome::TimedOut { after_s } => format!(
            "timed out after {after_s} s: killed with everything it had started, no exit code"
        ),
        Outcome::Cancelled => {
            format!("cancelled: killed with everything it had started, no exit code, after {time}")
        }
        Outcome::Lost { reason } => format!(
            "lost: the sandbox went away while the command ran, no exit code, after {time}: {}",
            cut(reason, MAX_NOTICE_BYTES)
        ),
    }
}

fn signal_name(signal: i32) -> &'static str {
    signal_hook::low_level::signal_name(signal).unwrap_or("unnamed")
}

fn omitted(reply: &ShellReply) -> String {
    let mut line = format!(
        "{} of {} bytes of the output are left out above",
        reply.omitted_bytes, reply.bytes
    );
    if let Some(path) = &reply.full_output {
        line.push_str(&format!("; the whole is in {}", printable(path)));
    }
    line
}

fn background(processes: &[Process]) -> Vec<String> {
    let mut lines: Vec<_> = processes
        .iter()
        .take(MAX_PROCESSES)
        .map(|process| {
            let command = cut(&process.command, MAX_PROCESS_BYTES);
            format!("still running: pid {}: {command}", process.pid)
        })
        .collect();
    lines.extend(rest(processes.len(), MAX_PROCESSES, "processes run"));
    lines
}

pub(super) fn notices(notices: &[String]) -> Vec<String> {
    let mut lines: Vec<_> = notices
        .iter()
        .take(MAX_NOTICES)
        .map(|notice| format!("notice: {}", cut(notice, MAX_NOTICE_BYTES)))
        .collect();
    lines.extend(rest(notices.len(), MAX_NOTICES, "notices"));
    lines
}

fn rest(total: usize, shown: usize, what: &str) -> Option<String> {
    (total > shown).then(|| format!("{} more {what}", total - shown))
}

fn cut(text: &str, limit: usize) -> String {
    let mut text = printable(text);
    if text.len() > limit {
        let mut end = limit;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

fn duration(ms: u64) -> String {
    let (seconds, rest) = (ms / 1000, ms % 1000);
    match seconds {
        0..10 => format!("{seconds}.{rest:03} s"),
        _ => format!("{seconds}.{} s", rest / 100),
    }
}

fn structured_shell(reply: &ShellReply) -> Value {
    let mut value = json!({
        "output": reply.output,
        "bytes": reply.bytes,
        "omitted_bytes": reply.omitted_bytes,
        "invalid_bytes": reply.invalid_bytes,
        "duration_ms": reply.duration_ms,
        "background": reply.background,
        "notices": reply.notices,
    });
    let (ended, detail) = match &reply.outcome {
        Outcome::Exited { code } => ("exited", Some(("exit_code", json!(code)))),
        Outcome::Signaled { signal } => ("signaled", Some(("signal", json!(signal)))),
        Outcome::TimedOut { after_s } => ("timed_out", Some(("timed_out_after_s", json!(after_s)))),
        Outcome::Cancelled => ("cancelled", None),
        Outcome::Lost { reason } => ("lost", Some(("lost_reason", json!(reason)))),
    };
    if let Some(object) = value.as_object_mut() {
        object.insert("ended".to_owned(), json!(ended));
        if let Outcome::Signaled { signal } = reply.outcome {
            let name = signal_name(signal);
            object.insert("signal_name".to_owned(), json!(name));
        }
        object.extend(detail.map(|(name, value)| (name.to_owned(), value)));
        object.extend(
            reply
                .full_output
                .iter()
                .map(|path| ("full_output".to_owned(), json!(path))),
        );
    }
    value
}

fn render_list(reply: &ListReply) -> ToolResult {
    let resources = &reply.resources;
    let mut text = format!(
        "workspace: {}\nnetwork: {}\nlimits: {} of memory, {} cpus, {} processes\n\
         time limit of a command: {} s, at most {} s\n\n",
        printable(&reply.workspace),
        printable(&reply.network),
        size(resources.memory),
        resources.cpus,
        resources.pids_limit,
        reply.timeout_default_s,
        reply.timeout_max_s,
    );
    text.push_str(&mount_table(&reply.mounts));
    for line in notices(&reply.notices) {
        text.push_str(&format!("\n[{line}]"));
    }
    ToolResult {
        text,
        structured: serde_json::to_value(reply).ok(),
        is_error: false,
    }
}

fn render_change(reply: &ChangeReply) -> ToolResult {
    let path = cut(&reply.path, MAX_NOTICE_BYTES);
    let mut lines = vec![match reply.mode.as_deref() {
        Some("ro") => format!("{path} can be read in the sandbox"),
        Some("rw") => format!("{path} can be read and written in the sandbox"),
        // Scratch, a mask, or the image: nothing of the host.
        _ => format!("{path} of the host is not shown in the sandbox"),
    }];
    let applied = match reply.applied {
        Applied::Unchanged => "it was so before; nothing has changed",
        Applied::Live => "changed in the running sandbox; nothing was ended",
        Applied::Recreated => RECREATED,
    };
    lines.push(format!("[{applied}]"));
    lines.extend(lost(&reply.lost));
    if reply.persisted {
        lines.push("[.umwelt.toml says so as well, for later starts]".to_owned());
    }
    let told = notices(&reply.notices);
    lines.extend(told.iter().map(|line| format!("[{line}]")));
    ToolResult {
        text: format!("{}\n\n{}", lines.join("\n"), mount_table(unmasked(reply))),
        structured: Some(structured_change(reply)),
        is_error: false,
    }
}

fn lost(lost: &[String]) -> Vec<String> {
    let shown = lost.iter().take(MAX_PROCESSES);
    let mut lines: Vec<_> = shown
        .map(|what| format!("[ended: {}]", cut(what, MAX_PROCESS_BYTES)))
        .collect();
    let rest = rest(lost.len(), MAX_PROCESSES, "were ended");
    lines.extend(rest.map(|line| format!("[{line}]")));
    lines
}

/// A mode that is not there is left out, as the outputSchema has it.
fn structured_change(reply: &ChangeReply) -> Value {
    let recreated = (reply.applied == Applied::Recreated).then_some(RECREATED);
    let told = reply.notices.iter().map(String::as_str);
    let notices: Vec<&str> = recreated.into_iter().chain(told).collect();
    let mounts: Vec<&MountEntry> = unmasked(reply).collect();
    let mut value = json!(reply);
    if let Some(object) = value.as_object_mut() {
        object.insert("notices".to_owned(), json!(notices));
        object.insert("mounts".to_owned(), json!(mounts));
        object.retain(|_, value| !value.is_null());
    }
    value
}

/// The masks are many, and a grant changes none of them.
fn unmasked(reply: &ChangeReply) -> impl Iterator<Item = &MountEntry> {
    reply.mounts.iter().filter(|mount| mount.mode != "masked")
}

fn mount_table<'a>(mounts: impl IntoIterator<Item = &'a MountEntry>) -> String {
    let mut rows = vec![["MODE", "SIZE", "SOURCE", "PATH"].map(str::to_owned)];
    rows.extend(mounts.into_iter().map(|mount| {
        [
            printable(&mount.mode),
            mount.size.map_or_else(|| "-".to_owned(), size),
            printable(&mount.source),
            with_reason(mount),
        ]
    }));
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let (mode_width, size_width, source_width) = (width(0), width(1), width(2));
    let lines = rows.iter().map(|[mode, size, source, path]| {
        format!("{mode:mode_width$}  {size:>size_width$}  {source:source_width$}  {path}")
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn with_reason(mount: &MountEntry) -> String {
    let path = printable(&mount.path);
    match &mount.reason {
        Some(reason) => format!("{path}  ({})", printable(reason)),
        None => path,
    }
}

fn size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    for (unit, name) in UNITS {
        if bytes >= unit {
            let tenths = u128::from(bytes) * 10 / u128::from(unit);
            return match tenths % 10 {
                0 => format!("{} {name}", tenths / 10),
                rest => format!("{}.{rest} {name}", tenths / 10),
            };
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{ErrorKind, Resources};

    fn reply(outcome: Outcome) -> ShellReply {
        ShellReply {
            outcome,
            output: "out\n".to_owned(),
            bytes: 4,
            omitted_bytes: 0,
            full_output: None,
            invalid_bytes: 0,
            duration_ms: 1234,
            background: Vec::new(),
            notices: Vec::new(),
        }
    }

    fn ended(outcome: Outcome) -> (String, Value, bool) {
        let result = render_shell(&reply(outcome));
        (result.text, result.structured.unwrap(), result.is_error)
    }

    #[test]
    fn exit_code_is_a_normal_result() {
        let (text, structured, is_error) = ended(Outcome::Exited { code: 3 });
        assert_eq!(text, "out\n[exit code 3, after 1.234 s]");
        assert_eq!(structured["ended"], "exited");
        assert_eq!(structured["exit_code"], 3);
        assert!(!is_error);
    }

    #[test]
    fn the_ways_of_not_ending_normally_are_told_apart() {
        let outcomes = [
            (
                Outcome::Signaled { signal: 9 },
                "[killed by signal 9 (SIGKILL)",
                "signaled",
            ),
            (
                Outcome::TimedOut { after_s: 5 },
                "[timed out after 5 s",
                "timed_out",
            ),
            (Outcome::Cancelled, "[cancelled", "cancelled"),
            (
                Outcome::Lost {
                    reason: "oom".to_owned(),
                },
                "[lost: ",
                "lost",
            ),
        ];
        for (outcome, wanted, name) in outcomes {
            let lost = name == "lost";
            let (text, structured, is_error) = ended(outcome);
            assert!(text.contains(wanted), "{text}");
            assert!(text.contains("no exit code"), "{text}");
            assert_eq!(structured["ended"], name);
            assert_eq!(structured.get("exit_code"), None);
            assert_eq!(is_error, lost);
        }
    }

    #[test]
    fn all_that_a_model_must_know_follows_the_status() {
        let mut reply = reply(Outcome::Exited { code: 0 });
        reply.output = String::new();
        reply.bytes = 100;
        reply.omitted_bytes = 60;
        reply.full_output = Some("/tmp/o".to_owned());
        reply.invalid_bytes = 2;
        reply.background = vec![Process {
            pid: 7,
            command: "sleep\n[exit code 0]".to_owned(),
        }];
        reply.notices = vec!["n".to_owned()];
        assert_eq!(
            render_shell(&reply).text,
            "(no output)\n[exit code 0, after 1.234 s]\n\
             [60 of 100 bytes of the output are left out above; the whole is in /tmp/o]\n\
             [2 bytes of the output were not UTF-8 and are shown as U+FFFD]\n\
             [still running: pid 7: sleep\\n[exit code 0]]\n[notice: n]"
        );
    }

    #[test]
    fn a_full_output_leaves_room_below_what_clients_cut() {
        let mut reply = reply(Outcome::Exited { code: 0 });
        reply.output = "x".repeat(40_000);
        let process = Process {
            pid: 1,
            command: "y".repeat(5000),
        };
        reply.background = vec![process; 500];
        reply.notices = vec!["z".repeat(5000); 500];
        let text = render_shell(&reply).text;
        assert!(text.len() < 50_000, "{}", text.len());
        assert!(text.contains("[480 more processes run]"));
    }

    #[test]
    fn list_is_an_aligned_table_beside_the_whole_reply() {
        let mount = |path: &str, mode: &str, size| MountEntry {
            path: path.to_owned(),
            mode: mode.to_owned(),
            source: "base".to_owned(),
            size,
            reason: (mode == "masked").then(|| "a\nb".to_owned()),
        };
        let reply = ListReply {
            workspace: "/w".to_owned(),
            mounts: vec![
                mount("/w", "rw", None),
                mount("/tmp\n", "tmpfs", Some(3 << 29)),
                mount("/h/.ssh", "masked", None),
            ],
            resources: Resources {
                memory: 4 << 30,
                cpus: 1.5,
                pids_limit: 99,
            },
            network: "none".to_owned(),
            timeout_default_s: 120,
            timeout_max_s: 3600,
            notices: vec!["n".to_owned()],
        };
        let result = ToolResult::from_reply(
            Tool::List,
            serde_json::to_value(&reply).unwrap(),
            Some("first".to_owned()),
        );
        assert_eq!(
            result.text,
            "workspace: /w\nnetwork: none\nlimits: 4 GiB of memory, 1.5 cpus, 99 processes\n\
             time limit of a command: 120 s, at most 3600 s\n\n\
             MODE       SIZE  SOURCE  PATH\n\
             rw            -  base    /w\n\
             tmpfs   1.5 GiB  base    /tmp\\n\n\
             masked        -  base    /h/.ssh  (a\\nb)\n\
             [notice: first]\n[notice: n]"
        );
        assert_eq!(result.structured.unwrap()["notices"], json!(["first", "n"]));
    }

    fn changed(mode: Option<&str>, applied: Applied) -> ChangeReply {
        let mount = |path: &str, mode: &str| MountEntry {
            path: path.to_owned(),
            mode: mode.to_owned(),
            source: "session".to_owned(),
            size: None,
            reason: None,
        };
        ChangeReply {
            path: "/a\n".to_owned(),
            mode: mode.map(str::to_owned),
            applied,
            persisted: false,
            lost: Vec::new(),
            mounts: vec![mount("/a", "rw"), mount("/h/.ssh", "masked")],
            notices: Vec::new(),
        }
    }

    #[test]
    fn what_a_recreate_has_cost_follows_what_is_there_now() {
        let mut reply = changed(Some("rw"), Applied::Recreated);
        reply.persisted = true;
        reply.lost = vec!["sleep 9\n[x]".to_owned(); 22];
        let result = ToolResult::from_reply(Tool::Grant, json!(reply), Some("first".to_owned()));
        assert!(!result.is_error);
        let lines: Vec<_> = result.text.lines().collect();
        assert_eq!(lines[0], "/a\\n can be read and written in the sandbox");
        assert!(lines[1].starts_with("[the sandbox was created anew"));
        assert_eq!(lines[2..22], ["[ended: sleep 9\\n[x]]"; 20]);
        let rest = [
            "[2 more were ended]",
            "[.umwelt.toml says so as well, for later starts]",
            "[notice: first]",
            "",
            "MODE  SIZE  SOURCE   PATH",
            "rw       -  session  /a",
        ];
        assert_eq!(lines[22..], rest);
        let structured = result.structured.unwrap();
        assert_eq!(structured["applied"], "recreated");
        assert_eq!(structured["mounts"].as_array().unwrap().len(), 1);
        assert_eq!(structured["notices"], json!([RECREATED, "first"]));
    }

    /// Each fact of a reply is a word of its own, and what the text has of them
    /// has to be in the structured content, and the other way round.
    fn both_say(tool: Tool, reply: Value, facts: &str) {
        let result = ToolResult::from_reply(tool, reply, Some("fact-own".to_owned()));
        let structured = result.structured.unwrap().to_string();
        for fact in facts.split(' ').chain(["fact-own"]) {
            assert!(result.text.contains(fact), "{fact}: {}", result.text);
            assert!(structured.contains(fact), "{fact}: {structured}");
        }
    }

    #[test]
    fn text_and_structured_content_of_a_command_say_the_same() {
        let mut told = reply(Outcome::Exited { code: 77 });
        told.output = "fact-output".to_owned();
        told.bytes = 5001;
        told.omitted_bytes = 5002;
        told.full_output = Some("/fact-file".to_owned());
        told.invalid_bytes = 5003;
        told.background = vec![Process {
            pid: 5004,
            command: "fact-command".to_owned(),
        }];
        told.notices = vec!["fact-notice".to_owned()];
        let facts = "77 fact-output 5001 5002 /fact-file 5003 5004 fact-command fact-notice";
        both_say(Tool::Shell, json!(told), facts);
        let reason = "fact-reason".to_owned();
        for (outcome, fact) in [
            (Outcome::Signaled { signal: 9 }, "SIGKILL"),
            (Outcome::TimedOut { after_s: 5005 }, "5005"),
            (Outcome::Cancelled, "cancelled"),
            (Outcome::Lost { reason }, "fact-reason"),
        ] {
            both_say(Tool::Shell, json!(reply(outcome)), fact);
        }
    }

    #[test]
    fn text_and_structured_content_of_a_change_say_the_same() {
        let mut told = changed(Some("rw"), Applied::Recreated);
        told.path = "/fact-path".to_owned();
        told.persisted = true;
        told.lost = vec!["fact-lost".to_owned()];
        told.notices = vec!["fact-notice".to_owned()];
        let facts = "/fact-path fact-lost fact-notice session";
        for tool in [Tool::Grant, Tool::Revoke] {
            both_say(tool, json!(told), facts);
        }
        let structured = structured_change(&told);
        assert_eq!(structured["notices"][0], RECREATED);
        assert_eq!(structured["persisted"], true);
        for (applied, word) in [(Applied::Live, "live"), (Applied::Unchanged, "unchanged")] {
            let structured = structured_change(&changed(Some("ro"), applied));
            assert_eq!(structured["applied"], word);
            assert_eq!(structured["notices"], json!([]));
        }
    }

    #[test]
    fn text_and_structured_content_of_list_and_egress_say_the_same() {
        let list = json!({
            "workspace": "/fact-workspace", "network": "fact-network",
            "mounts": [{"path": "/fact-mount", "mode": "fact-mode", "source": "fact-source",
                        "reason": "fact-reason"}],
            "resources": {"memory": 5001, "cpus": 5002.0, "pids_limit": 5003},
            "timeout_default_s": 5004, "timeout_max_s": 5005, "notices": ["fact-notice"],
        });
        let facts = "/fact-workspace fact-network /fact-mount fact-mode fact-source fact-reason 5002 5003 5004 5005 fact-notice";
        both_say(Tool::List, list, facts);
        let egress = json!({
            "network": "fact-network", "changed": true, "notices": ["fact-notice"],
            "rules": [{"kind": "https", "host": "fact-host", "port": 5001, "paths": ["/fact-path"],
                       "methods": ["FACT"], "inspect": true, "private": false,
                       "source": "fact-source"}],
            "hosts": [{"name": "fact.example.org", "address": "192.0.2.7", "origin": "base"}],
            "status": {"gateway": "fact-gateway", "gateway_restarts": 0, "policy_digest": "d",
                       "policy_problem": "fact-policy", "audit_problem": "fact-audit",
                       "resolver_problem": "fact-resolver"},
        });
        let facts = "fact-network fact-notice fact-host 5001 /fact-path FACT fact-source fact.example.org 192.0.2.7 fact-gateway fact-policy fact-audit fact-resolver";
        both_say(Tool::Egress, egress, facts);
    }

    #[test]
    fn path_that_is_not_shown_has_no_mode() {
        let reply = json!(changed(None, Applied::Live));
        let result = ToolResult::from_reply(Tool::Revoke, reply, None);
        assert!(result.text.starts_with(
            "/a\\n of the host is not shown in the sandbox\n[changed in the running sandbox; nothing was ended]\n"
        ));
        assert_eq!(result.structured.unwrap().get("mode"), None);
    }

    #[test]
    fn errors_are_results_with_message_and_hint() {
        let error =
            ApiError::new(ErrorKind::NoDelegation, "no\x1b caps").with_hint("run: a\nrun: b");
        let result = serde_json::to_value(ToolResult::from_error(&error)).unwrap();
        assert_eq!(
            result,
            json!({
                "content": [{"type": "text", "text": "umwelt: no\\x1b caps\nhint: run: a\nhint: run: b"}],
                "isError": true,
            })
        );
    }

    #[test]
    fn a_reply_of_another_form_is_an_error_not_a_crash() {
        assert!(ToolResult::from_reply(Tool::Shell, json!({"x": 1}), None).is_error);
    }
}
