//! The tool `egress`: its schema, its arguments, and its result as a model
//! reads it. Pure.

use serde_json::{Value, json};

use crate::api::{Delivery, Egress, EgressOp, EgressReply, RuleEntry, RuleKind};
use crate::mcp::jsonrpc::RpcError;
use crate::mcp::render::{ToolResult, notices};
use crate::mcp::tools::Arguments;
use crate::text::printable;

const TEXT: &str = "Show or change which hosts programs in the sandbox may reach. op \"list\" shows the \
rules and where each comes from, and changes nothing. op \"add\" asks the user for a host that the task \
needs: kind \"https\", with the paths that will do, or kind \"tcp\" with a port for other protocols (ssh, \
databases). op \"remove\" takes a rule of this project away. The user may have to approve the call, and \
then sees nothing but its arguments: say beforehand what it is for. A change holds at once and for later \
starts. Programs find the HTTPS proxy in their environment. A tcp rule that is added to a running sandbox \
serves programs that use the SOCKS5 proxy in ALL_PROXY; all others can use it from the next start on. A \
request that the proxy refuses is answered with the call that would ask for it. Where the project has no \
network (\"network: none\"), no rule helps, and only the user can turn it on: tell them.";

/// Longest host, and longest list of paths.
const MAX_HOST: usize = 300;
const MAX_PATHS: usize = 16 << 10;
/// Most rules in the text; the structured result has all.
const MAX_RULES: usize = 200;

pub(super) fn schema() -> Value {
    json!({
        "name": "egress",
        "title": "Show or change what can be reached",
        "description": TEXT,
        "inputSchema": {
            "type": "object",
            "properties": {
                "op": {"type": "string", "enum": ["list", "add", "remove"]},
                "kind": {
                    "type": "string",
                    "enum": ["https", "tcp"],
                    "description": "Needed to add and to remove.",
                },
                "host": {
                    "type": "string",
                    "description": "A name, for https also *.suffix, or an address. Needed to add and to remove.",
                },
                "port": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": 65535,
                    "description": "Default for https: 443. Needed for tcp.",
                },
                "paths": {
                    "type": "string",
                    "description": "For https: paths with spaces between, like \"/org/repo /api/*\". Default: all. To remove: only the rule with these.",
                },
            },
            "required": ["op"],
            "additionalProperties": false,
        },
        "outputSchema": output(),
        "annotations": {
            "title": "Show or change what can be reached",
            "readOnlyHint": false,
            "destructiveHint": false,
            "idempotentHint": true,
            "openWorldHint": false,
        },
    })
}

fn output() -> Value {
    let text = json!({"type": "string"});
    let texts = json!({"type": "array", "items": {"type": "string"}});
    let flag = json!({"type": "boolean"});
    json!({
        "type": "object",
        "properties": {
            "network": {"type": "string", "description": "egress, or none: the project has none."},
            "changed": {"type": "boolean", "description": "Whether the rules and .umwelt.toml were changed."},
            "rules": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "kind": text,
                        "host": text,
                        "port": {"type": "integer"},
                        "paths": texts,
                        "methods": texts,
                        "inspect": flag,
                        "private": {"type": "boolean", "description": "Also at a private address."},
                        "source": {"type": "string", "description": "Who allows it."},
                        "delivery": {
                            "type": "string",
                            "enum": ["direct", "relayed", "pending_removal"],
                            "description": "How a tcp rule is served.",
                        },
                    },
                    "required": ["kind", "host", "port", "inspect", "private", "source"],
                    "additionalProperties": false,
                },
            },
            "hosts": {
                "type": "array",
                "description": "Names with fixed addresses.",
                "items": {
                    "type": "object",
                    "properties": {"name": text, "address": text, "origin": text},
                    "required": ["name", "address", "origin"],
                    "additionalProperties": false,
                },
            },
            "status": {
                "type": "object",
                "properties": {
                    "gateway": {"type": "string", "description": "starting, ready or restarting"},
                    "gateway_restarts": {"type": "integer", "minimum": 0},
                    "rules_digest": text,
                    "policy_digest": text,
                    "policy_problem": text,
                    "audit_problem": text,
                    "resolver_problem": text,
                },
                "required": ["gateway", "gateway_restarts", "policy_digest"],
                "additionalProperties": false,
            },
            "notices": texts,
        },
        "required": ["network", "changed", "rules", "hosts", "notices"],
        "additionalProperties": false,
    })
}

pub(super) fn parse(arguments: &mut Arguments<'_>) -> Result<Egress, RpcError> {
    let ops = [
        ("list", EgressOp::List),
        ("add", EgressOp::Add),
        ("remove", EgressOp::Remove),
    ];
    let kinds = [("https", RuleKind::Https), ("tcp", RuleKind::Tcp)];
    let Some(op) = one_of(arguments, "op", &ops)? else {
        return Err(arguments.missing("op", &words(&ops)));
    };
    let asked = Egress {
        op,
        kind: one_of(arguments, "kind", &kinds)?,
        host: text(arguments, "host", MAX_HOST)?,
        port: port(arguments)?,
        paths: paths(arguments)?,
        // Only a person asks for these.
        methods: None,
        inspect: None,
        private: None,
    };
    if op != EgressOp::List && asked.kind.is_none() {
        return Err(arguments.missing("kind", &words(&kinds)));
    }
    if op != EgressOp::List && asked.host.is_none() {
        return Err(arguments.missing("host", "a string"));
    }
    Ok(asked)
}

fn words<T>(known: &[(&str, T)]) -> String {
    let words: Vec<String> = known.iter().map(|(word, _)| format!("{word:?}")).collect();
    words.join(" or ")
}

fn one_of<T: Copy>(
    arguments: &mut Arguments<'_>,
    name: &str,
    known: &[(&str, T)],
) -> Result<Option<T>, RpcError> {
    match arguments.take(name) {
        None => Ok(None),
        Some(Value::String(text)) => match known.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => Ok(Some(*value)),
            None => Err(arguments.wrong(name, &words(known), None)),
        },
        Some(other) => Err(arguments.wrong(name, &words(known), Some(&other))),
    }
}

fn text(
    arguments: &mut Arguments<'_>,
    name: &str,
    most: usize,
) -> Result<Option<String>, RpcError> {
    let wanted = format!("a string of at most {most} bytes");
    match arguments.take(name) {
        None => Ok(None),
        Some(Value::String(text)) if text.len() <= most => Ok(Some(text)),
        Some(Value::String(_)) => Err(arguments.wrong(name, &wanted, None)),
        Some(other) => Err(arguments.wrong(name, &wanted, Some(&other))),
    }
}

/// One text with spaces between. Some models write a list in its place, which
/// the schema does not show: whoever approves a call sees scalars better.
fn paths(arguments: &mut Arguments<'_>) -> Result<Option<String>, RpcError> {
    let Some(Value::Array(list)) = arguments.peek("paths") else {
        return text(arguments, "paths", MAX_PATHS);
    };
    let is_one = |text: &&str| !text.is_empty() && !text.contains(char::is_whitespace);
    let words: Option<Vec<&str>> = list
        .iter()
        .map(|path| path.as_str().filter(is_one))
        .collect();
    let joined = words.map(|words| words.join(" "));
    arguments.take("paths");
    match joined.filter(|joined| (1..=MAX_PATHS).contains(&joined.len())) {
        Some(joined) => Ok(Some(joined)),
        None => {
            let wanted = format!("a string, or a list of paths, of at most {MAX_PATHS} bytes");
            Err(arguments.wrong("paths", &wanted, None))
        }
    }
}

fn port(arguments: &mut Arguments<'_>) -> Result<Option<i64>, RpcError> {
    let Some(value) = arguments.take("port") else {
        return Ok(None);
    };
    match value.as_i64() {
        Some(port @ 1..=65535) => Ok(Some(port)),
        _ => Err(arguments.wrong("port", "an integer from 1 to 65535", Some(&value))),
    }
}

pub(super) fn size(egress: &Egress) -> usize {
    let texts = [&egress.host, &egress.paths].into_iter().flatten();
    texts.map(String::len).sum()
}

pub(super) fn render(reply: &EgressReply) -> ToolResult {
    let mut lines = vec![format!("network: {}", printable(&reply.network))];
    if let Some(status) = &reply.status {
        lines.push(format!("gateway: {}", printable(&status.gateway)));
        for problem in status.problems() {
            lines.push(format!("[problem: {}]", printable(problem)));
        }
    }
    lines.extend(reply.rules.iter().take(MAX_RULES).map(rule));
    let rest = reply.rules.len().saturating_sub(MAX_RULES);
    if rest > 0 {
        lines.push(format!("[{rest} more rules are in the structured result]"));
    }
    for entry in reply.hosts.iter().take(MAX_RULES) {
        lines.push(format!(
            "name   {} is {}",
            printable(&entry.name),
            entry.address
        ));
    }
    if reply.changed {
        lines.push("[.umwelt.toml was changed as well, for later starts]".to_owned());
    }
    let told = notices(&reply.notices);
    lines.extend(told.iter().map(|line| format!("[{line}]")));
    ToolResult {
        text: lines.join("\n"),
        structured: serde_json::to_value(reply).ok(),
        is_error: false,
    }
}

fn rule(rule: &RuleEntry) -> String {
    let host = match rule.host.contains(':') {
        true => format!("[{}]", rule.host),
        false => rule.host.clone(),
    };
    let mut line = match rule.kind {
        RuleKind::Https => format!("https  {host}:{} {}", rule.port, rule.paths.join(" ")),
        RuleKind::Tcp => format!("tcp    {host}:{}", rule.port),
    };
    if let Some(methods) = &rule.methods {
        line.push_str(&format!(" {}", methods.join(",")));
    }
    let delivery = match rule.delivery {
        None | Some(Delivery::Direct) => "",
        Some(Delivery::Relayed) => ", relayed",
        Some(Delivery::PendingRemoval) => ", removed, possible until the next start",
    };
    printable(&format!("{line} ({}{delivery})", rule.source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::tools::ToolCall;

    fn parse(arguments: Value) -> Result<Egress, String> {
        let Value::Object(arguments) = arguments else {
            panic!();
        };
        match ToolCall::parse("egress", arguments) {
            Ok(ToolCall::Egress(egress)) => Ok(egress),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.message.into_owned()),
        }
    }

    #[test]
    fn arguments_become_a_call() {
        let list = parse(json!({"op": "list", "kind": null})).unwrap();
        assert_eq!((list.op, list.kind), (EgressOp::List, None));
        let add = json!({"op": "add", "kind": "https", "host": "a.example.org", "port": 443, "paths": "/a /b"});
        let add = parse(add).unwrap();
        assert_eq!((add.port, add.paths.as_deref()), (Some(443), Some("/a /b")));
        let list =
            json!({"op": "add", "kind": "https", "host": "a.example.org", "paths": ["/a", "/b"]});
        assert_eq!(parse(list).unwrap().paths.as_deref(), Some("/a /b"));
    }

    #[test]
    fn wrong_arguments_are_named_with_what_is_expected() {
        for (arguments, said) in [
            (
                json!({}),
                "\"op\" is missing, it must be \"list\" or \"add\" or \"remove\"",
            ),
            (
                json!({"operation": "list"}),
                "unknown argument \"operation\"",
            ),
            (json!({"op": "allow"}), "\"op\" must be"),
            (
                json!({"op": "add", "host": "a"}),
                "\"kind\" is missing, it must be \"https\" or \"tcp\"",
            ),
            (json!({"op": "add", "kind": "udp"}), "\"kind\" must be"),
            (
                json!({"op": "remove", "kind": "tcp"}),
                "\"host\" is missing",
            ),
            (
                json!({"op": "list", "port": 0}),
                "\"port\" must be an integer",
            ),
            (
                json!({"op": "list", "paths": {"a": 1}}),
                "\"paths\" must be a string",
            ),
            (json!({"op": "list", "paths": [1]}), "or a list of paths"),
            (json!({"op": "list", "paths": []}), "or a list of paths"),
            (
                json!({"op": "list", "paths": ["/a /b"]}),
                "or a list of paths",
            ),
            (
                json!({"op": "list", "x": 1}),
                "it takes op, kind, host, port and paths",
            ),
        ] {
            let error = parse(arguments.clone()).unwrap_err();
            assert!(error.contains(said), "{arguments}: {error}");
        }
    }

    #[test]
    fn rules_are_one_line_each_and_cannot_forge_another() {
        let reply = json!({
            "network": "egress", "changed": true, "hosts": [],
            "rules": [
                {"kind": "https", "host": "a.example.org", "port": 443, "paths": ["/*"], "inspect": true, "private": false, "source": "base"},
                {"kind": "https", "host": "2001:db8::1", "port": 443, "paths": ["/*"], "inspect": true, "private": false, "source": "base"},
                {"kind": "tcp", "host": "b\n[x]", "port": 22, "inspect": false, "private": false, "source": "workspace", "delivery": "relayed"},
            ],
            "notices": ["told"],
        });
        let result = render(&serde_json::from_value(reply).unwrap());
        let lines: Vec<&str> = result.text.lines().collect();
        assert_eq!(lines[1], "https  a.example.org:443 /* (base)");
        assert_eq!(lines[2], "https  [2001:db8::1]:443 /* (base)");
        assert!(lines[3].contains("(workspace, relayed)"), "{lines:?}");
        assert_eq!(lines.last(), Some(&"[notice: told]"));
        assert_eq!(lines.len(), 6);
    }
}
