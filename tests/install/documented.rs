//! client: what is printed and merged, held against what the programs document.
//!
//! A key that a program does not know, or a value that is none of its, is
//! ignored by some and refused by others; both times a grant could pass without a
//! question. The programs themselves are driven by tests/clients/agents.py.

use serde_json::{Value, json};

use crate::stage::Stage;

#[derive(Clone, Copy)]
enum Kind {
    Text,
    Number,
    Boolean,
    OneOf(&'static [&'static str]),
    /// Of Claude Code, for a tool of a server: without arguments in parentheses,
    /// with which it is skipped.
    Rule,
}

use Kind::{Boolean, Number, OneOf, Rule, Text};

/// Paths of values, with `*` for any key and `[]` for any element.
type Documented = &'static [(&'static str, Kind)];

const APPROVAL: Kind = OneOf(&["auto", "prompt", "approve"]);
/// config.schema.json of Codex, the part for servers that are commands.
const CODEX: Documented = &[
    ("mcp_servers.*.command", Text),
    ("mcp_servers.*.args.[]", Text),
    ("mcp_servers.*.env.*", Text),
    ("mcp_servers.*.cwd", Text),
    ("mcp_servers.*.enabled", Boolean),
    ("mcp_servers.*.required", Boolean),
    ("mcp_servers.*.startup_timeout_sec", Number),
    ("mcp_servers.*.tool_timeout_sec", Number),
    ("mcp_servers.*.enabled_tools.[]", Text),
    ("mcp_servers.*.disabled_tools.[]", Text),
    ("mcp_servers.*.default_tools_approval_mode", APPROVAL),
    ("mcp_servers.*.tools.*.approval_mode", APPROVAL),
];

/// "Settings" and "Permissions" of Claude Code's documentation.
const CLAUDE: Documented = &[
    ("permissions.allow.[]", Rule),
    ("permissions.ask.[]", Rule),
    ("permissions.deny.[]", Rule),
];

/// `.mcp.json` of Claude Code, which most other clients read as well.
const MCP_SERVERS: Documented = &[
    ("mcpServers.*.type", OneOf(&["stdio"])),
    ("mcpServers.*.command", Text),
    ("mcpServers.*.args.[]", Text),
    ("mcpServers.*.env.*", Text),
];

const ANSWER: Kind = OneOf(&["allow", "ask", "deny"]);
/// config.json of opencode 1.
const OPENCODE: Documented = &[
    ("mcp.*.type", OneOf(&["local"])),
    ("mcp.*.command.[]", Text),
    ("mcp.*.enabled", Boolean),
    ("mcp.*.environment.*", Text),
    ("mcp.*.timeout", Number),
    ("permission.*", ANSWER),
    ("agent.*.permission.*", ANSWER),
];

/// mcp.json of VS Code.
const VSCODE: Documented = &[
    ("servers.*.type", OneOf(&["stdio"])),
    ("servers.*.command", Text),
    ("servers.*.args.[]", Text),
    ("servers.*.env.*", Text),
];

/// What is not as documented: one line for each.
fn complaints(value: &Value, documented: Documented) -> Vec<String> {
    let mut found = Vec::new();
    let mut left: Vec<(Vec<String>, &Value)> = vec![(Vec::new(), value)];
    while let Some((path, value)) = left.pop() {
        let below = |key: String| path.iter().cloned().chain([key]).collect();
        match value {
            Value::Object(members) => {
                left.extend(
                    members
                        .iter()
                        .map(|(key, value)| (below(key.clone()), value)),
                );
            }
            Value::Array(elements) => {
                left.extend(elements.iter().map(|value| (below("[]".to_owned()), value)));
            }
            leaf => found.extend(complaint(&path, leaf, documented)),
        }
    }
    found
}

fn complaint(path: &[String], leaf: &Value, documented: Documented) -> Option<String> {
    let is_it = |pattern: &str| {
        let words: Vec<&str> = pattern.split('.').collect();
        let mut pairs = words.iter().zip(path);
        words.len() == path.len() && pairs.all(|(word, key)| *word == "*" || *word == key)
    };
    let Some((_, kind)) = documented.iter().find(|(pattern, _)| is_it(pattern)) else {
        return Some(format!("{path:?} is not documented"));
    };
    let is_good = match kind {
        Text => leaf.is_string(),
        Number => leaf.is_u64(),
        Boolean => leaf.is_boolean(),
        OneOf(words) => leaf.as_str().is_some_and(|word| words.contains(&word)),
        Rule => leaf.as_str().is_some_and(is_rule),
    };
    (!is_good).then(|| format!("{path:?} cannot be {leaf}"))
}

/// `mcp__SERVER__TOOL`
fn is_rule(rule: &str) -> bool {
    let names: Vec<&str> = rule.split("__").collect();
    let is_name = |name: &&str| {
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        !name.is_empty() && name.bytes().all(is_good)
    };
    names.len() == 3 && names[0] == "mcp" && names.iter().all(is_name)
}

/// A settings file of a client, after a merge into what was there.
fn merged(stage: &Stage, client: &str, name: &str, before: &str) -> String {
    stage.write(name, before);
    let file = stage.path(name);
    stage.done(&["client", client, "--merge", file.to_str().unwrap(), "--yes"]);
    stage.read(name)
}

fn of_toml(text: &str) -> Value {
    toml::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn of_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn what_is_merged_has_documented_keys_and_values_alone() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    let json = |client, name| of_json(&merged(&stage, client, name, "{}\n"));
    let codex = of_toml(&merged(&stage, "codex", "home/config.toml", ""));
    for (settings, documented) in [
        (&codex, CODEX),
        (&json("claude", "home/settings.json"), CLAUDE),
        (&json("claude", "home/.mcp.json"), MCP_SERVERS),
        (&json("generic", "home/generic.json"), MCP_SERVERS),
        (&json("opencode", "home/opencode.json"), OPENCODE),
        (&json("vscode", "home/mcp.json"), VSCODE),
    ] {
        assert_eq!(complaints(settings, documented), Vec::<String>::new());
        assert_ne!(settings, &json!({}));
    }
    // What is printed is what is merged.
    assert_eq!(of_toml(&stage.done(&["client", "codex"])), codex);
}

#[test]
fn a_merge_leaves_nothing_that_lets_a_grant_pass() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    let before = "[mcp_servers.umwelt]\ncommand = \"/old\"\ndefault_tools_approval_mode = \"approve\"\n\
                  [mcp_servers.umwelt.tools.grant]\napproval_mode = \"approve\"\n";
    let codex = of_toml(&merged(&stage, "codex", "home/config.toml", before));
    assert_eq!(complaints(&codex, CODEX), Vec::<String>::new());
    let umwelt = &codex["mcp_servers"]["umwelt"];
    assert_eq!(umwelt["default_tools_approval_mode"], "prompt");
    for (tool, mode) in [
        ("shell", "approve"),
        ("list", "approve"),
        ("grant", "prompt"),
        ("revoke", "prompt"),
        ("egress", "prompt"),
    ] {
        assert_eq!(umwelt["tools"][tool]["approval_mode"], mode, "{tool}");
    }
}

#[test]
fn what_is_not_documented_is_found() {
    let server = |key: &str, value: Value| json!({"mcp_servers": {"umwelt": {key: value}}});
    assert!(complaints(&server("command", json!("/x")), CODEX).is_empty());
    for (key, value) in [
        ("comand", json!("/x")),
        ("command", json!(["/x"])),
        ("startup_timeout_sec", json!("30")),
        ("default_tools_approval_mode", json!("ask")),
        ("tools", json!({"shell": {"approval": "approve"}})),
    ] {
        assert_eq!(complaints(&server(key, value), CODEX).len(), 1, "{key}");
    }
    for rule in [
        "Bash",
        "mcp__umwelt",
        "mcp__umwelt__*",
        "mcp__umwelt__grant(/x)",
    ] {
        let settings = json!({"permissions": {"ask": [rule]}});
        assert_eq!(complaints(&settings, CLAUDE).len(), 1, "{rule}");
    }
}

/// The words of the line of a page that begins so.
fn line(page: &str, begin: &str) -> Vec<String> {
    let mut lines = page.lines().map(|line| line.trim_start_matches(['#', ' ']));
    let found = lines.find(|line| line.starts_with(begin));
    let found = found.unwrap_or_else(|| panic!("no {begin:?} in {page}"));
    found.split(' ').map(str::to_owned).collect()
}

#[test]
fn commands_have_documented_options_alone() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    let page = stage.done(&["client", "claude"]);
    let program = stage.path("home/.local/bin/umwelt-mcp");
    let add = ["claude", "mcp", "add", "--scope", "user", "umwelt", "--"];
    let add = [&add[..], &[program.to_str().unwrap()]].concat();
    assert_eq!(line(&page, "claude mcp add"), add);
    // "Use "" to disable all tools".
    assert_eq!(line(&page, "claude --tools"), ["claude", "--tools", "\"\""]);

    let page = stage.done(&["client", "codex"]);
    let words = line(&page, "codex --");
    let pairs: Vec<(&str, &str)> = words[1..]
        .chunks(2)
        .map(|pair| (&*pair[0], &*pair[1]))
        .collect();
    // A feature that is switched off, and the strictest of its sandboxes.
    assert_eq!(
        pairs,
        [("--disable", "shell_tool"), ("--sandbox", "read-only")]
    );
}
