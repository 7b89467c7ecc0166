//! Which settings a client needs. Pure. Those of opencode 1.18, Claude Code 2.1
//! and Codex 0.171 are measured (tests/clients); those of the others are as their
//! documentation has them.
//!
//! What is switched off is switched off by allowing the rest: lists of what is
//! forbidden miss the tools of the client's next version.

use std::path::Path;

use super::codex;
use super::json_edit::{self, Lists};
use super::jsonc;
use crate::install::NAME;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Client {
    Opencode,
    Claude,
    Codex,
    Goose,
    Vscode,
    Generic,
}

impl Client {
    pub(super) const ALL: [Client; 6] = [
        Client::Opencode,
        Client::Claude,
        Client::Codex,
        Client::Goose,
        Client::Vscode,
        Client::Generic,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Client::Opencode => "opencode",
            Client::Claude => "claude",
            Client::Codex => "codex",
            Client::Goose => "goose",
            Client::Vscode => "vscode",
            Client::Generic => "generic",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Client> {
        Client::ALL.into_iter().find(|client| client.name() == name)
    }

    /// The settings, with where they belong and what to know about them.
    pub(super) fn page(self, command: &str) -> String {
        let left = |mark| commented(mark, &self.left(command, None));
        match self {
            Client::Opencode => format!(
                "// ~/.config/opencode/opencode.jsonc\n{}{}",
                left("//"),
                opencode(command)
            ),
            Client::Claude => format!(
                "# In a shell, once:\n{}\n\n# ~/.claude/settings.json:\n{CLAUDE_SETTINGS}\n{}",
                claude_add(command),
                left("#")
            ),
            Client::Codex => format!(
                "# ~/.codex/config.toml\n{}{}",
                left("#"),
                codex_settings(command)
            ),
            Client::Goose => format!(
                "# ~/.config/goose/config.yaml; what is below \"extensions\" goes into that section:\n{}\n{}",
                goose(command),
                left("#")
            ),
            Client::Vscode => format!(
                "// mcp.json of the user (\"MCP: Open User Configuration\"). Not .vscode/mcp.json: what runs in\n\
                 // the sandbox can write that, and VS Code would run what stands in it.\n{}{}",
                left("//"),
                vscode(command)
            ),
            Client::Generic => {
                format!(
                    "// As most clients have it.\n{}{}",
                    left("//"),
                    mcp_servers(command)
                )
            }
        }
    }

    /// What the settings do not do by themselves, in lines; those of a client
    /// with two files also name the other one, where one of them was merged.
    pub(super) fn left(self, command: &str, merged: Option<&Path>) -> String {
        let own = match self {
            Client::Opencode => {
                "Choose the agent \"umwelt\": it has no tools but those of the sandbox. The others keep\n\
                 opencode's own bash, which works on the host.\n\
                 For a text that teaches it to live there, write that of --skill to\n\
                 ~/.config/opencode/umwelt.md, and add \"instructions\": [\"~/.config/opencode/umwelt.md\"].\n"
            }
            Client::Claude => {
                "Claude Code keeps its own tools, Bash too, which work on the host, unless it is started so:\n  \
                 claude --tools \"\"\n\
                 --append-system-prompt \"$(umwelt-install client claude --skill)\" teaches it to live there.\n"
            }
            Client::Codex => {
                "Codex keeps its own shell, which works on the host, unless it is started so:\n  \
                 codex --disable shell_tool --sandbox read-only\n\
                 The text of --skill, in ~/.codex/AGENTS.md, teaches it to live in the sandbox.\n"
            }
            Client::Goose => {
                "Without that mode goose asks for nothing. Then, with \"goose configure\", let it call\n\
                 shell and list always, and ask before grant, revoke and egress; and switch off the\n\
                 extension \"developer\", whose shell works on the host. The text of --skill, in\n\
                 ~/.config/goose/.goosehints, teaches it to live in the sandbox.\n"
            }
            Client::Vscode => {
                "VS Code asks before a tool is called. Let it always call shell and list, and ask\n\
                 each time for grant, revoke and egress. Its own terminal tool works on the host: switch\n\
                 it off where tools are chosen. The text of --skill, in\n\
                 .github/copilot-instructions.md, teaches it to live in the sandbox.\n"
            }
            Client::Generic => {
                "Start it in the project, or add \"--workspace\", \"DIR\" to args. Let shell and list be\n\
                 called without a question, and ask before grant, revoke and egress. A shell of the\n\
                 client's own works on the host: switch it off. The text of --skill teaches an agent to\n\
                 live in the sandbox: put it where the client takes instructions from.\n"
            }
        };
        let other = match merged {
            Some(file) if self == Client::Claude && is_claude_settings(file) => format!(
                "That is the half about permissions. Name the server in a shell, once:\n  {}\n",
                claude_add(command)
            ),
            Some(_) if self == Client::Claude => {
                "That is the half about the server. Say what it may do without a question with:\n  \
                 umwelt-install client claude --merge ~/.claude/settings.json\n"
                    .to_owned()
            }
            _ => String::new(),
        };
        other + own
    }

    /// The text of the client's file with the settings in it.
    pub(super) fn merge(self, command: &str, file: &Path, text: &str) -> Result<String, String> {
        match self {
            Client::Opencode => {
                check_permissions(text)?;
                json_edit::merge(text, &opencode(command), Lists::Replace)
            }
            Client::Claude if is_claude_settings(file) => {
                json_edit::merge(text, CLAUDE_SETTINGS, Lists::Extend)
            }
            Client::Claude if is_named(file, &[".mcp.json", ".claude.json"]) => {
                json_edit::merge(text, &mcp_servers(command), Lists::Replace)
            }
            Client::Claude => Err(
                "for Claude Code it should be ~/.claude/settings.json (permissions) or ~/.claude.json (the server)"
                    .to_owned(),
            ),
            Client::Codex => codex::merge(text, &codex_settings(command)),
            Client::Goose => Err(
                "the settings of goose are YAML, which is not edited here; put in by hand what is printed without --merge"
                    .to_owned(),
            ),
            Client::Vscode => json_edit::merge(text, &vscode(command), Lists::Replace),
            Client::Generic => json_edit::merge(text, &mcp_servers(command), Lists::Replace),
        }
    }

    /// The way out where `file` is one of a project.
    pub(super) fn of_user(self, file: &Path) -> String {
        let own = match self {
            Client::Opencode => "~/.config/opencode/opencode.jsonc",
            Client::Claude if is_claude_settings(file) => "~/.claude/settings.json",
            Client::Claude => "~/.claude.json",
            Client::Codex => "~/.codex/config.toml",
            Client::Vscode => "~/.config/Code/User/mcp.json",
            Client::Goose => {
                return format!(
                    "put into ~/.config/goose/config.yaml by hand what is printed by: {NAME} client goose"
                );
            }
            Client::Generic => {
                return "name the file in your home in which the client keeps its user's settings"
                    .to_owned();
            }
        };
        format!(
            "use that of your home: {NAME} client {} --merge {own}",
            self.name()
        )
    }

    /// What a person should look at in the merged text.
    pub(super) fn note(self, text: &str) -> Option<String> {
        if self != Client::Opencode {
            return None;
        }
        let node = jsonc::parse(text).ok()?;
        let late = PERMISSIONS.into_iter().find_map(|place| {
            let late = late_wildcard(&node.keys(place))?.to_owned();
            Some(format!(
                "in {:?}, {late:?} stands after the tools of umwelt and wins over them; move it up",
                place.join(".")
            ))
        });
        late.or_else(|| {
            let (place, tool) = opencode_tool_of_the_host(&node)?;
            Some(format!(
                "in {place:?}, {tool:?} was there and is not denied: it works on the host; take it out"
            ))
        })
    }
}

/// Where opencode has permissions of tools, by their names.
const PERMISSIONS: [&[&str]; 2] = [&["permission"], &["agent", "umwelt", "permission"]];

/// One word for all tools has no room for those of umwelt.
fn check_permissions(text: &str) -> Result<(), String> {
    // What is no JSON is told by the merge.
    let Ok(root) = jsonc::parse(text) else {
        return Ok(());
    };
    for place in PERMISSIONS {
        let node = place.iter().try_fold(&root, |node, key| node.find(key));
        let value = node.map(jsonc::Node::to_value);
        if let Some(value @ serde_json::Value::String(_)) = value {
            return Err(format!(
                "{:?} is one word for all tools there; write it as {{\"*\": {value}}}, which means the same, and run it again",
                place.join(".")
            ));
        }
    }
    Ok(())
}

/// What the agent's settings name by themselves.
fn is_ours(key: &str) -> bool {
    key == "*" || key == "doom_loop" || key.starts_with("umwelt_")
}

/// What a user has given the agent `umwelt` beside the tools of umwelt. A merge
/// takes nothing out, and opencode has what one key names win over `*`.
fn opencode_tool_of_the_host(node: &jsonc::Node) -> Option<(&'static str, String)> {
    let agent = node.find("agent")?.find("umwelt")?.to_value();
    let foreign = |part: &str, is_open: fn(&serde_json::Value) -> bool| {
        let entries = agent.get(part)?.as_object()?.iter();
        let mut entries = entries.filter(|(tool, _)| !is_ours(tool));
        Some(entries.find(|(_, value)| is_open(value))?.0.clone())
    };
    if let Some(tool) = foreign("permission", |value| value != "deny") {
        return Some(("agent.umwelt.permission", tool));
    }
    let tool = foreign("tools", |value| value == true)?;
    Some(("agent.umwelt.tools", tool))
}

/// Each line as a comment.
fn commented(mark: &str, lines: &str) -> String {
    lines
        .lines()
        .map(|line| format!("{mark} {line}\n"))
        .collect()
}

/// Of the keys that match a tool, the last one counts.
fn late_wildcard<'a>(keys: &[&'a str]) -> Option<&'a str> {
    let first = keys.iter().position(|key| key.starts_with("umwelt_"))?;
    let mut late = keys.get(first..)?.iter();
    late.find(|key| key.contains('*')).copied()
}

fn is_named(file: &Path, names: &[&str]) -> bool {
    let name = file.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| names.contains(&name))
}

fn is_claude_settings(file: &Path) -> bool {
    is_named(
        file,
        &[
            "settings.json",
            "settings.local.json",
            "managed-settings.json",
        ],
    )
}

/// As a text of JSON, which one of TOML and of YAML is too.
fn quoted(command: &str) -> String {
    serde_json::Value::from(command).to_string()
}

fn opencode(command: &str) -> String {
    const TEXT: &str = r#"{
  "mcp": {
    "umwelt": {
      "type": "local",
      "command": [COMMAND],
      "enabled": true
    }
  },
  "permission": {
    "umwelt_shell": "allow",
    "umwelt_list": "allow",
    "umwelt_grant": "ask",
    "umwelt_revoke": "ask",
    "umwelt_egress": "ask"
  },
  "agent": {
    "umwelt": {
      "permission": {
        "*": "deny",
        "doom_loop": "ask",
        "umwelt_shell": "allow",
        "umwelt_list": "allow",
        "umwelt_grant": "ask",
        "umwelt_revoke": "ask",
        "umwelt_egress": "ask"
      }
    }
  }
}
"#;
    TEXT.replace("COMMAND", &quoted(command))
}

fn claude_add(command: &str) -> String {
    let command = crate::text::shell_word(command);
    format!("claude mcp add --scope user umwelt -- {command}")
}

const CLAUDE_SETTINGS: &str = r#"{
  "permissions": {
    "allow": ["mcp__umwelt__shell", "mcp__umwelt__list"],
    "ask": ["mcp__umwelt__grant", "mcp__umwelt__revoke", "mcp__umwelt__egress"]
  }
}
"#;

fn mcp_servers(command: &str) -> String {
    const TEXT: &str = r#"{
  "mcpServers": {
    "umwelt": {
      "command": COMMAND,
      "args": []
    }
  }
}
"#;
    TEXT.replace("COMMAND", &quoted(command))
}

fn vscode(command: &str) -> String {
    const TEXT: &str = r#"{
  "servers": {
    "umwelt": {
      "type": "stdio",
      "command": COMMAND,
      "args": ["--workspace", "${workspaceFolder}"]
    }
  }
}
"#;
    TEXT.replace("COMMAND", &quoted(command))
}

fn codex_settings(command: &str) -> String {
    const TEXT: &str = r#"[mcp_servers.umwelt]
command = COMMAND
default_tools_approval_mode = "prompt"
startup_timeout_sec = 30
tool_timeout_sec = 3700

[mcp_servers.umwelt.tools.egress]
approval_mode = "prompt"

[mcp_servers.umwelt.tools.grant]
approval_mode = "prompt"

[mcp_servers.umwelt.tools.list]
approval_mode = "approve"

[mcp_servers.umwelt.tools.revoke]
approval_mode = "prompt"

[mcp_servers.umwelt.tools.shell]
approval_mode = "approve"
"#;
    TEXT.replace("COMMAND", &quoted(command))
}

fn goose(command: &str) -> String {
    const TEXT: &str = "GOOSE_MODE: approve
extensions:
  umwelt:
    enabled: true
    type: stdio
    name: umwelt
    cmd: COMMAND
    args: []
    timeout: 3700
";
    TEXT.replace("COMMAND", &quoted(command))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TOOLS: [&str; 5] = ["shell", "list", "grant", "revoke", "egress"];

    #[test]
    fn every_page_names_the_command_and_every_tool() {
        for client in Client::ALL {
            let page = client.page("/h/a \"b\"/umwelt-mcp");
            assert!(page.contains("umwelt-mcp"), "{client:?}");
            assert!(page.contains("--skill"), "{client:?}");
            for tool in TOOLS {
                assert!(page.contains(tool), "{client:?} {tool}");
            }
        }
    }

    #[test]
    fn what_is_left_to_do_is_the_same_after_a_merge_as_on_the_page() {
        for (client, file, words) in [
            (Client::Opencode, "o.jsonc", "Choose the agent \"umwelt\""),
            (
                Client::Claude,
                "/h/.claude/settings.json",
                "claude --tools \"\"",
            ),
            (Client::Claude, "/p/.mcp.json", "claude --tools \"\""),
            (
                Client::Codex,
                "config.toml",
                "codex --disable shell_tool --sandbox read-only",
            ),
            (Client::Vscode, "mcp.json", "ask\neach time for grant"),
            (Client::Generic, "x.json", "ask before grant"),
        ] {
            let left = client.left("/x", Some(Path::new(file)));
            assert!(left.contains(words), "{client:?}: {left}");
            assert!(left.contains("works on the host") || left.contains("work on the host"));
            let page = client.page("/x");
            let last = left.lines().last().unwrap();
            assert!(page.contains(last), "{client:?}: {page}");
        }
    }

    /// Its settings are in two files.
    #[test]
    fn after_one_half_for_claude_the_other_one_is_named() {
        let left = |file: &str| Client::Claude.left("/a b", Some(Path::new(file)));
        let server = "claude mcp add --scope user umwelt -- '/a b'";
        let permissions = "client claude --merge ~/.claude/settings.json";
        let settings = left("/h/.claude/settings.json");
        assert!(settings.contains(server) && !settings.contains(permissions));
        let mcp = left("/p/.mcp.json");
        assert!(mcp.contains(permissions) && !mcp.contains(server));
        assert!(Client::Claude.page("/a b").contains(server));
    }

    #[test]
    fn merged_settings_say_what_may_be_called_without_a_question() {
        let merge = |client: Client, file: &str| {
            let text = client.merge("/x", Path::new(file), "").unwrap();
            jsonc::parse(&text).unwrap().to_value()
        };
        let opencode = merge(Client::Opencode, "opencode.jsonc");
        assert_eq!(opencode["mcp"]["umwelt"]["command"][0], "/x");
        assert_eq!(opencode["permission"]["umwelt_shell"], "allow");
        assert_eq!(opencode["permission"]["umwelt_egress"], "ask");
        let agent = &opencode["agent"]["umwelt"]["permission"];
        assert_eq!(
            (&agent["*"], &agent["umwelt_grant"]),
            (&json!("deny"), &json!("ask"))
        );
        let claude = merge(Client::Claude, "settings.json");
        assert_eq!(claude["permissions"]["allow"].as_array().unwrap().len(), 2);
        assert_eq!(claude["permissions"]["ask"].as_array().unwrap().len(), 3);
        let server = merge(Client::Claude, "/p/.mcp.json");
        assert_eq!(server["mcpServers"]["umwelt"]["command"], "/x");
        let codex = Client::Codex.merge("/x", Path::new("c"), "").unwrap();
        let codex: toml::Table = codex.parse().unwrap();
        let umwelt = &codex["mcp_servers"]["umwelt"];
        assert_eq!(
            umwelt["default_tools_approval_mode"].as_str(),
            Some("prompt")
        );
        assert_eq!(
            umwelt["tools"]["shell"]["approval_mode"].as_str(),
            Some("approve")
        );
        // Also where a person had let it pass before.
        let before =
            "[mcp_servers.umwelt]\n[mcp_servers.umwelt.tools.grant]\napproval_mode = \"approve\"\n";
        let codex = Client::Codex.merge("/x", Path::new("c"), before).unwrap();
        assert!(
            !codex.contains("tools.grant]\napproval_mode = \"approve\""),
            "{codex}"
        );
    }

    #[test]
    fn files_that_are_not_the_clients_are_refused() {
        for (client, file) in [(Client::Claude, "x.json"), (Client::Goose, "config.yaml")] {
            assert!(client.merge("/x", Path::new(file), "").is_err());
        }
    }

    #[test]
    fn a_wildcard_that_wins_over_our_permissions_is_told() {
        let note = |text: &str| Client::Opencode.note(text);
        assert_eq!(
            note(r#"{"permission": {"*": "ask", "umwelt_shell": "allow"}}"#),
            None
        );
        let late = r#"{"permission": {"umwelt_grant": "ask", "umwelt_*": "allow"}}"#;
        assert!(note(late).unwrap().contains("umwelt_*"));
        let agent = |permission: &str| {
            note(&format!(
                r#"{{"agent": {{"umwelt": {{"permission": {{{permission}}}}}}}}}"#
            ))
        };
        assert_eq!(agent(r#""*": "deny", "umwelt_shell": "allow""#), None);
        let late = agent(r#""umwelt_shell": "allow", "*": "deny""#).unwrap();
        assert!(late.contains("agent.umwelt.permission"), "{late}");
    }

    #[test]
    fn a_tool_of_the_host_that_the_agent_keeps_is_told() {
        let note = |agent: &str| {
            Client::Opencode
                .merge(
                    "/x",
                    Path::new("o.json"),
                    &format!(r#"{{"agent": {{"umwelt": {agent}}}}}"#),
                )
                .map(|merged| Client::Opencode.note(&merged))
                .unwrap()
        };
        for (agent, place) in [
            (
                r#"{"permission": {"bash": "allow"}}"#,
                "agent.umwelt.permission",
            ),
            (
                r#"{"permission": {"bash": {"git *": "allow"}}}"#,
                "agent.umwelt.permission",
            ),
            (r#"{"tools": {"bash": true}}"#, "agent.umwelt.tools"),
        ] {
            let told = note(agent).unwrap();
            assert!(told.contains(place) && told.contains("bash"), "{told}");
        }
        for agent in [
            r#"{"permission": {"bash": "deny"}}"#,
            r#"{"tools": {"bash": false}}"#,
            "{}",
        ] {
            assert_eq!(note(agent), None, "{agent}");
        }
    }

    #[test]
    fn one_word_for_all_permissions_is_refused_with_the_form_that_is_not() {
        let merge = |text: &str| Client::Opencode.merge("/x", Path::new("o.json"), text);
        for (text, place) in [
            (r#"{"permission": "ask"}"#, "\"permission\""),
            (
                r#"{"agent": {"umwelt": {"permission": "ask"}}}"#,
                "\"agent.umwelt.permission\"",
            ),
        ] {
            let why = merge(text).unwrap_err();
            assert!(why.starts_with(place), "{why}");
            assert!(why.contains(r#"{"*": "ask"}"#), "{why}");
        }
        assert!(merge(r#"{"permission": {"*": "ask"}}"#).is_ok());
    }

    /// There the last key that matches counts.
    #[test]
    fn our_permissions_come_after_a_wildcard_that_stands_last() {
        for text in [
            r#"{"permission": {"bash": "deny", "*": "ask"}}"#,
            "{\"permission\": {\"bash\": \"deny\", \"*\": \"ask\", // mine\n}}",
            r#"{"permission": {"*": "ask"}, "agent": {"umwelt": {"permission": {"*": "deny"}}}}"#,
        ] {
            let merge = |text: &str| Client::Opencode.merge("/x", Path::new("o.json"), text);
            let merged = merge(text).unwrap();
            let node = jsonc::parse(&merged).unwrap();
            let keys = node.keys(&["permission"]);
            let first = keys.iter().position(|key| key.starts_with("umwelt_"));
            assert!(keys.iter().position(|key| *key == "*") < first, "{merged}");
            assert_eq!(Client::Opencode.note(&merged), None, "{merged}");
        }
    }

    #[test]
    fn the_order_of_opencodes_permissions_survives_a_merge() {
        for text in ["", r#"{"agent": {"umwelt": {"tools": {"bash": false}}}}"#] {
            let merged = Client::Opencode
                .merge("/x", Path::new("o.json"), text)
                .unwrap();
            let node = jsonc::parse(&merged).unwrap();
            assert_eq!(node.keys(&["agent", "umwelt", "permission"])[0], "*");
            assert_eq!(Client::Opencode.note(&merged), None);
        }
    }
}
