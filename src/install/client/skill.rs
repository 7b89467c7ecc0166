//! The text that teaches an agent to live in the sandbox.

/// The same for every client.
pub(super) const TEXT: &str = include_str!("../../../share/skill.md");

#[cfg(test)]
mod tests {
    use super::*;

    /// It is read at the start of every session.
    #[test]
    fn it_is_short() {
        let lines = TEXT.lines().count();
        assert!((30..=120).contains(&lines), "{lines} lines");
        assert!(TEXT.len() <= 6000, "{} bytes", TEXT.len());
    }

    #[test]
    fn it_names_every_tool_and_no_other() {
        let table = crate::mcp::tools::table();
        let mut tools: Vec<&str> = table["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| tool["name"].as_str().unwrap())
            .collect();
        tools.sort_unstable();
        let rows = TEXT.lines().filter_map(|line| line.strip_prefix("| `"));
        let mut named: Vec<&str> = rows
            .filter_map(|row| row.split('`').next())
            .take(tools.len())
            .collect();
        named.sort_unstable();
        assert_eq!(named, tools);
    }

    /// What it tells an agent to write has to be right.
    #[test]
    fn its_examples_are_calls_that_the_tools_take() {
        let mut examples = 0;
        let text = TEXT.replace('\n', " ");
        let pieces = text.split('`').skip(1).step_by(2);
        let mut tool = "";
        for piece in pieces {
            let (name, arguments) = piece.split_once('{').unwrap_or((piece, ""));
            if ["grant", "egress"].contains(&name.trim()) {
                tool = name.trim();
            }
            let arguments = format!("{{{arguments}");
            if let Ok(serde_json::Value::Object(arguments)) = serde_json::from_str(&arguments) {
                crate::mcp::tools::ToolCall::parse(tool, arguments).unwrap();
                examples += 1;
            }
        }
        assert_eq!(examples, 4);
    }

    #[test]
    fn it_says_where_long_outputs_are() {
        assert!(TEXT.contains(crate::policy::mounts::OUTPUT_PATH));
    }
}
