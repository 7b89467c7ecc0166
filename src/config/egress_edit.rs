//! The text of a workspace file -> the same text with one egress rule more or
//! less; comments and order stay. Pure.

use std::fmt;

use toml_edit::{
    Array, ArrayOfTables, DocumentMut, Formatted, InlineTable, Item, Table, TableLike, Value,
};

use crate::config::rule::{HTTPS_PORT, all_paths};
use crate::policy::egress::{HostPattern, PathPattern};
use crate::policy::egress_change::{NewRule, OldRule, RuleKind};

/// Why the text cannot be changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EditError {
    Syntax(String),
    /// This key holds something else than the file format says.
    Shape(&'static str),
}

impl fmt::Display for EditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EditError::Syntax(message) => write!(f, "is not TOML: {message}"),
            EditError::Shape(key) => write!(f, "has something else than a table in {key:?}"),
        }
    }
}

impl std::error::Error for EditError {}

pub(crate) fn add(text: &str, rule: &NewRule) -> Result<String, EditError> {
    let mut document = parse(text)?;
    let kind = match rule {
        NewRule::Https(_) => RuleKind::Https,
        NewRule::Tcp(_) => RuleKind::Tcp,
    };
    let root = document.as_table_mut();
    let egress = root.entry("egress").or_insert_with(|| {
        let mut table = Table::new();
        // Without a line "[egress]" of its own.
        table.set_implicit(true);
        Item::Table(table)
    });
    let egress = egress
        .as_table_like_mut()
        .ok_or(EditError::Shape("egress"))?;
    let key = key(kind);
    match egress.entry(key).or_insert_with(empty_tables) {
        Item::ArrayOfTables(tables) => tables.push(fields(rule).into_iter().collect()),
        Item::Value(Value::Array(array)) => {
            let mut inline = InlineTable::new();
            for (name, value) in fields(rule) {
                inline.insert(name, value);
            }
            array.push(Value::InlineTable(inline));
        }
        _ => return Err(EditError::Shape(key)),
    }
    Ok(document.to_string())
}

/// The text without the rules that are meant, and whether there was one.
pub(crate) fn remove(text: &str, old: &OldRule) -> Result<(String, bool), EditError> {
    let mut document = parse(text)?;
    let key = key(old.kind);
    let Some(egress) = document.get_mut("egress") else {
        return Ok((text.to_owned(), false));
    };
    let egress = egress
        .as_table_like_mut()
        .ok_or(EditError::Shape("egress"))?;
    let (before, after) = match egress.get_mut(key) {
        None => (0, 0),
        Some(Item::ArrayOfTables(tables)) => {
            let before = tables.len();
            tables.retain(|table| !is_meant(old, table));
            (before, tables.len())
        }
        Some(Item::Value(Value::Array(array))) => {
            let before = array.len();
            array.retain(|value| !value.as_inline_table().is_some_and(|t| is_meant(old, t)));
            (before, array.len())
        }
        Some(_) => return Err(EditError::Shape(key)),
    };
    if after == 0 && before > 0 {
        egress.remove(key);
    }
    Ok((document.to_string(), after < before))
}

fn parse(text: &str) -> Result<DocumentMut, EditError> {
    text.parse()
        .map_err(|error: toml_edit::TomlError| EditError::Syntax(error.message().to_owned()))
}

fn key(kind: RuleKind) -> &'static str {
    match kind {
        RuleKind::Https => "https",
        RuleKind::Tcp => "tcp",
    }
}

fn empty_tables() -> Item {
    Item::ArrayOfTables(ArrayOfTables::new())
}

/// Keys and values of a rule; what has its default is left out.
fn fields(rule: &NewRule) -> Vec<(&'static str, Value)> {
    let text = |text: String| Value::String(Formatted::new(text));
    let list = |texts: Vec<String>| Value::Array(texts.into_iter().collect::<Array>());
    let (host, port, private) = match rule {
        NewRule::Https(rule) => (&rule.host, rule.port, rule.private),
        NewRule::Tcp(rule) => (&rule.host, rule.port, rule.private),
    };
    let mut fields = vec![
        ("host", text(host.to_string())),
        ("port", Value::from(i64::from(port))),
    ];
    if let NewRule::Https(rule) = rule {
        if rule.paths != all_paths() {
            let paths = rule.paths.iter().map(PathPattern::to_string).collect();
            fields.push(("paths", list(paths)));
        }
        if let Some(methods) = &rule.methods {
            fields.push(("methods", list(methods.clone())));
        }
        if !rule.inspect {
            fields.push(("inspect", Value::from(false)));
        }
    }
    if private {
        fields.push(("private", Value::from(true)));
    }
    fields
}

/// Compares what the entry means, however it is written.
fn is_meant(old: &OldRule, entry: &dyn TableLike) -> bool {
    let host = entry.get("host").and_then(Item::as_str);
    let Some(host) = host.and_then(|host| host.parse::<HostPattern>().ok()) else {
        return false;
    };
    let port = match entry.get("port").map(Item::as_integer) {
        None => Some(HTTPS_PORT),
        Some(port) => port.and_then(|port| u16::try_from(port).ok()),
    };
    let Some(port) = port else { return false };
    match old.kind {
        RuleKind::Tcp => old.is_tcp(&host, port),
        RuleKind::Https => match entry_paths(entry) {
            Some(paths) => old.is_https(&host, port, paths),
            None => false,
        },
    }
}

fn entry_paths(entry: &dyn TableLike) -> Option<Vec<PathPattern>> {
    let Some(paths) = entry.get("paths") else {
        return Some(all_paths());
    };
    let paths = paths.as_array()?.iter();
    paths.map(|path| path.as_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn https(host: &str, port: i64, paths: Option<&str>) -> NewRule {
        NewRule::parse(RuleKind::Https, host, Some(port), paths).unwrap()
    }

    fn tcp(host: &str) -> NewRule {
        NewRule::parse(RuleKind::Tcp, host, Some(22), None).unwrap()
    }

    fn old(kind: RuleKind, host: &str, port: i64, paths: Option<&str>) -> OldRule {
        OldRule::parse(kind, host, Some(port), paths).unwrap()
    }

    const FILE: &str = "# The project's own.\n\n[[mounts]]   # kept\npath = \"/a\"\n\n[egress]\nenabled = true  # since May\n\n# The forge.\n[[egress.https]]\nhost = 'Git.Example.org'\npaths = [\n  \"/u/*\", # mine\n]\n\n[[hosts]]\nname = \"git.example.org\"\naddress = \"192.0.2.1\"\n# the end\n";

    #[test]
    fn rule_is_added_beside_its_kind_and_the_rest_stays() {
        let text = add(FILE, &https("b.example.org", 443, Some("/x /y/*"))).unwrap();
        let rule = "\n[[egress.https]]\nhost = \"b.example.org\"\nport = 443\npaths = [\"/x\", \"/y/*\"]\n";
        assert_eq!(
            text,
            FILE.replace("]\n\n[[hosts]]", &format!("]\n{rule}\n[[hosts]]"))
        );
        let (back, removed) =
            remove(&text, &old(RuleKind::Https, "b.example.org", 443, None)).unwrap();
        assert_eq!((back.as_str(), removed), (FILE, true));
    }

    #[test]
    fn first_rule_of_a_kind_and_of_a_file() {
        let text = add("", &tcp("a.example.org")).unwrap();
        assert_eq!(
            text,
            "[[egress.tcp]]\nhost = \"a.example.org\"\nport = 22\n"
        );
        let text = add("[egress]\nenabled = true\n", &tcp("2001:db8::1")).unwrap();
        assert_eq!(
            text,
            "[egress]\nenabled = true\n\n[[egress.tcp]]\nhost = \"2001:db8::1\"\nport = 22\n"
        );
    }

    #[test]
    fn inline_forms_are_understood() {
        let text = "egress = { enabled = true, https = [{ host = \"a.example.org\" }] }\n";
        let added = add(text, &https("b.example.org", 8443, None)).unwrap();
        assert!(
            added.contains("{ host = \"b.example.org\", port = 8443 }"),
            "{added}"
        );
        assert!(
            added.starts_with("egress = { enabled = true, https = ["),
            "{added}"
        );
        let gone = old(RuleKind::Https, "a.example.org", 443, None);
        let (text, removed) = remove(&added, &gone).unwrap();
        assert!(removed && !text.contains("a.example.org"), "{text}");
        let text = add("egress.enabled = true\n", &tcp("a.example.org")).unwrap();
        assert!(text.parse::<toml::Table>().is_ok(), "{text}");
    }

    #[test]
    fn only_what_is_meant_is_removed() {
        let text = "[[egress.https]]\nhost = \"a.example.org\"\npaths = [\"/a\", \"/b\"]\n\n[[egress.https]]\nhost = \"A.EXAMPLE.ORG\"\nport = 443\n\n[[egress.tcp]]\nhost = \"a.example.org\"\nport = 443\n";
        let (one, _) = remove(
            text,
            &old(RuleKind::Https, "a.example.org", 443, Some("/b /a")),
        )
        .unwrap();
        assert_eq!(one.matches("[[egress.https]]").count(), 1);
        let (none, _) = remove(text, &old(RuleKind::Https, "a.example.org", 443, None)).unwrap();
        assert!(
            !none.contains("https") && none.contains("[[egress.tcp]]"),
            "{none}"
        );
        for other in [
            old(RuleKind::Https, "a.example.org", 444, None),
            old(RuleKind::Https, "a.example.org", 443, Some("/a")),
            old(RuleKind::Tcp, "b.example.org", 443, None),
        ] {
            assert_eq!(remove(text, &other), Ok((text.to_owned(), false)));
        }
        assert_eq!(
            remove("", &old(RuleKind::Tcp, "a.b", 1, None)),
            Ok((String::new(), false))
        );
    }

    #[test]
    fn text_that_is_no_workspace_file_is_refused() {
        let rule = tcp("a.example.org");
        assert!(matches!(add("a = ", &rule), Err(EditError::Syntax(_))));
        assert_eq!(add("egress = 1\n", &rule), Err(EditError::Shape("egress")));
        assert_eq!(
            add("[egress]\ntcp = 1\n", &rule),
            Err(EditError::Shape("tcp"))
        );
    }
}
