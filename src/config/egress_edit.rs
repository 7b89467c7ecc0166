//! The text of a workspace file -> the same text with one egress rule more or
//! less. Pure. Every other byte stays, so comments and order do too.

use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use toml::{Spanned, Value};

use crate::config::rule::{HTTPS_PORT, all_paths};
use crate::config::source::Source;
use crate::config::{ConfigError, tables};
use crate::policy::egress::{HostPattern, PathPattern};
use crate::policy::egress_change::{NewRule, OldRule, RuleKind};

/// The tables of rules with their places; all else is passed over.
#[derive(Default, Deserialize)]
struct Places {
    #[serde(default)]
    egress: Lists,
}

#[derive(Default, Deserialize)]
struct Lists {
    #[serde(default)]
    https: Vec<Spanned<Entry>>,
    #[serde(default)]
    tcp: Vec<Spanned<Entry>>,
}

type Entry = std::collections::BTreeMap<String, Spanned<Value>>;

/// Adds a rule at the end. `path` is for errors.
pub(crate) fn add(path: &Path, text: &str, rule: &NewRule) -> Result<String, ConfigError> {
    let source = Source { path, text };
    let before = all(source)?;
    let (header, mut fields) = lines(rule);
    fields.insert(0, format!("[[egress.{header}]]"));
    let edited = tables::append(text, &fields);
    verified(source, before, &edited, 1)
}

/// Takes away the rules that are meant; `None` where there is none.
pub(crate) fn remove(
    path: &Path,
    text: &str,
    old: &OldRule,
) -> Result<Option<String>, ConfigError> {
    let source = Source { path, text };
    let before = all(source)?;
    let places = rules(source, old.kind)?;
    let mut edited = text.to_owned();
    let mut removed = 0;
    // From the end, so that the places before stay where they are.
    for entry in places
        .iter()
        .rev()
        .filter(|entry| is_meant(old, entry.get_ref()))
    {
        let (start, end) = extent(source, entry)?;
        edited = tables::cut(&edited, start, end);
        removed += 1;
    }
    if removed == 0 {
        return Ok(None);
    }
    verified(source, before, &edited, -removed).map(Some)
}

/// From its header to the end of its last value.
fn extent(source: Source<'_>, entry: &Spanned<Entry>) -> Result<(usize, usize), ConfigError> {
    let header: Range<usize> = entry.span();
    let word = source.text.get(header.clone()).unwrap_or_default();
    if !word.starts_with("[[") {
        let message = "is an array in one line, which umwelt does not rewrite; write one table, like [[egress.https]], for each rule";
        return Err(source.error(header.start, "egress", message.to_owned()));
    }
    let ends = entry.get_ref().values().map(|value| value.span().end);
    let end = ends.max().unwrap_or(header.end);
    Ok((header.start, end))
}

/// A file can be written in ways that nobody has thought of: what comes out
/// must have as many rules as wanted, and be the same in all else.
fn verified(
    source: Source<'_>,
    mut before: toml::Table,
    edited: &str,
    more: isize,
) -> Result<String, ConfigError> {
    let no_way = || {
        let message = "cannot be rewritten without changing something else; edit it by hand";
        source.error(0, "egress", message.to_owned())
    };
    let edited_source = Source {
        path: source.path,
        text: edited,
    };
    let mut after = all(edited_source).map_err(|_| no_way())?;
    let is_right = before_and_after(&mut before, &mut after) == Some(more);
    match is_right && before == after {
        true => Ok(edited.to_owned()),
        false => Err(no_way()),
    }
}

/// How many rules more there are; takes both lists of rules out.
fn before_and_after(before: &mut toml::Table, after: &mut toml::Table) -> Option<isize> {
    let mut more = 0;
    for kind in [RuleKind::Https, RuleKind::Tcp] {
        let take = |table: &mut toml::Table| {
            let egress = table.get_mut("egress").and_then(Value::as_table_mut);
            let list = egress.and_then(|egress| egress.remove(key(kind)));
            let list = list.and_then(|list| list.as_array().cloned());
            list.unwrap_or_default()
        };
        let (old, new) = (take(before), take(after));
        let (short, long) = if old.len() < new.len() {
            (&old, &new)
        } else {
            (&new, &old)
        };
        // What stays keeps its order and its text.
        let mut rest = long.iter();
        if !short.iter().all(|rule| rest.any(|other| other == rule)) {
            return None;
        }
        more += isize::try_from(new.len()).ok()? - isize::try_from(old.len()).ok()?;
    }
    for table in [before, after] {
        // A table that is there for its rules only.
        if table
            .get("egress")
            .and_then(Value::as_table)
            .is_some_and(toml::Table::is_empty)
        {
            table.remove("egress");
        }
    }
    Some(more)
}

fn all(source: Source<'_>) -> Result<toml::Table, ConfigError> {
    toml::from_str(source.text).map_err(|error| source.syntax_error(&error))
}

fn rules(source: Source<'_>, kind: RuleKind) -> Result<Vec<Spanned<Entry>>, ConfigError> {
    let places: Places =
        toml::from_str(source.text).map_err(|error| source.syntax_error(&error))?;
    Ok(match kind {
        RuleKind::Https => places.egress.https,
        RuleKind::Tcp => places.egress.tcp,
    })
}

fn key(kind: RuleKind) -> &'static str {
    match kind {
        RuleKind::Https => "https",
        RuleKind::Tcp => "tcp",
    }
}

/// The list of a rule, and its keys and values; what has its default is left
/// out.
fn lines(rule: &NewRule) -> (&'static str, Vec<String>) {
    // A host, a path and a method hold nothing that a string has to escape.
    let list = |texts: Vec<String>| {
        let quoted: Vec<String> = texts.iter().map(|text| format!("\"{text}\"")).collect();
        format!("[{}]", quoted.join(", "))
    };
    let (kind, host, port, private) = match rule {
        NewRule::Https(rule) => (RuleKind::Https, &rule.host, rule.port, rule.private),
        NewRule::Tcp(rule) => (RuleKind::Tcp, &rule.host, rule.port, rule.private),
    };
    let mut lines = vec![format!("host = \"{host}\""), format!("port = {port}")];
    if let NewRule::Https(rule) = rule {
        if rule.paths != all_paths() {
            let paths = rule.paths.iter().map(PathPattern::to_string).collect();
            lines.push(format!("paths = {}", list(paths)));
        }
        if let Some(methods) = &rule.methods {
            lines.push(format!("methods = {}", list(methods.clone())));
        }
        if !rule.inspect {
            lines.push("inspect = false".to_owned());
        }
    }
    if private {
        lines.push("private = true".to_owned());
    }
    (key(kind), lines)
}

/// Compares what the entry means, however it is written.
fn is_meant(old: &OldRule, entry: &Entry) -> bool {
    let value = |key: &str| entry.get(key).map(Spanned::get_ref);
    let host = value("host").and_then(Value::as_str);
    let Some(host) = host.and_then(|host| host.parse::<HostPattern>().ok()) else {
        return false;
    };
    let port = match value("port") {
        None => Some(HTTPS_PORT),
        Some(port) => port.as_integer().and_then(|port| u16::try_from(port).ok()),
    };
    let paths = match value("paths") {
        None => Some(all_paths()),
        Some(paths) => paths.as_array().and_then(|paths| {
            let paths = paths.iter();
            paths.map(|path| path.as_str()?.parse().ok()).collect()
        }),
    };
    match (old.kind, port, paths) {
        (RuleKind::Tcp, Some(port), _) => old.is_tcp(&host, port),
        (RuleKind::Https, Some(port), Some(paths)) => old.is_https(&host, port, paths),
        _ => false,
    }
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

    fn add(text: &str, rule: &NewRule) -> Result<String, String> {
        super::add(Path::new("/w/.umwelt.toml"), text, rule).map_err(|error| error.to_string())
    }

    fn remove(text: &str, old: &OldRule) -> Result<Option<String>, String> {
        super::remove(Path::new("/w/.umwelt.toml"), text, old).map_err(|error| error.to_string())
    }

    const FILE: &str = "\u{feff}# The project's own.\n\n[[grants]]   # kept\npath = \"/a\"\n\n[egress]\nenabled = true  # since May\n\n# The forge.\n[[egress.https]]\nhost = 'Git.Example.org'\npaths = [\n  \"/u/*\", # mine\n]\n\n[[hosts]]\nname = \"git.example.org\"\naddress = \"192.0.2.1\"\n# the end\n";

    #[test]
    fn rule_is_added_at_the_end_and_the_rest_stays() {
        let rule = https("b.example.org", 443, Some("/x /y/*"));
        let text = add(FILE, &rule).unwrap();
        let table = "\n[[egress.https]]\nhost = \"b.example.org\"\nport = 443\npaths = [\"/x\", \"/y/*\"]\n";
        assert_eq!(text, format!("{FILE}{table}"));
        let gone = old(RuleKind::Https, "b.example.org", 443, None);
        assert_eq!(remove(&text, &gone), Ok(Some(FILE.to_owned())));
        let windows = FILE.replace('\n', "\r\n");
        let text = add(&windows, &rule).unwrap();
        assert_eq!(text, format!("{FILE}{table}").replace('\n', "\r\n"));
        assert_eq!(remove(&text, &gone), Ok(Some(windows)));
    }

    #[test]
    fn removed_rule_leaves_the_comments_around_it() {
        let forge = old(RuleKind::Https, "git.example.org", 443, None);
        let text = remove(FILE, &forge).unwrap().unwrap();
        let end = "# since May\n\n# The forge.\n\n[[hosts]]\n";
        assert!(text.contains(end) && !text.contains("mine"), "{text}");
    }

    #[test]
    fn first_rule_of_a_file_and_all_of_its_keys() {
        let text = add("", &tcp("2001:db8::1")).unwrap();
        assert_eq!(text, "[[egress.tcp]]\nhost = \"2001:db8::1\"\nport = 22\n");
        let text = add("egress.enabled = true\n", &tcp("192.0.2.1")).unwrap();
        assert!(text.starts_with("egress.enabled = true\n\n[[egress.tcp]]\n"));
        let NewRule::Https(mut rule) = https("a.example.org", 8443, None) else {
            panic!("another kind");
        };
        rule.methods = Some(vec!["GET".to_owned(), "HEAD".to_owned()]);
        rule.private = true;
        let text = add("[egress]\nenabled = true\n", &NewRule::Https(rule)).unwrap();
        let keys = "methods = [\"GET\", \"HEAD\"]\nprivate = true\n";
        assert!(text.ends_with(&format!("port = 8443\n{keys}")), "{text}");
    }

    #[test]
    fn only_what_is_meant_is_removed() {
        let text = "[[egress.https]]\nhost = \"a.example.org\"\npaths = [\"/a\", \"/b\"]\n\n[[egress.https]]\nhost = \"A.EXAMPLE.ORG\"\nport = 443\n\n[[egress.tcp]]\nhost = \"a.example.org\"\nport = 443\n";
        let narrow = old(RuleKind::Https, "a.example.org", 443, Some("/b /a"));
        let one = remove(text, &narrow).unwrap().unwrap();
        assert!(one.starts_with("\n[[egress.https]]\nhost = \"A."), "{one}");
        let all = old(RuleKind::Https, "a.example.org", 443, None);
        let none = remove(text, &all).unwrap().unwrap();
        assert!(
            !none.contains("https") && none.contains("[[egress.tcp]]"),
            "{none}"
        );
        for other in [
            old(RuleKind::Https, "a.example.org", 444, None),
            old(RuleKind::Https, "a.example.org", 443, Some("/a")),
            old(RuleKind::Tcp, "b.example.org", 443, None),
        ] {
            assert_eq!(remove(text, &other), Ok(None));
        }
        assert_eq!(remove("", &all), Ok(None));
    }

    #[test]
    fn text_that_means_something_else_is_thrown_away() {
        let rule = |host: &str| format!("[[egress.tcp]]\nhost = \"{host}\"\nport = 1\n");
        let (a, b, c) = (rule("a"), rule("b"), rule("c"));
        let is_taken = |before: &str, after: &str, more| {
            let source = Source {
                path: Path::new("x"),
                text: before,
            };
            verified(source, all(source).unwrap(), after, more).is_ok()
        };
        assert!(is_taken(&a, &format!("{a}{b}"), 1) && is_taken(&format!("{a}{b}"), &b, -1));
        assert!(!is_taken(&a, &format!("{b}{c}"), 1));
        assert!(!is_taken(&format!("{a}{b}"), &format!("{b}{a}"), 0));
        assert!(!is_taken(&a, &a, 1) && !is_taken(&a, &b, 0));
        assert!(!is_taken(
            &format!("x = 1\n{a}"),
            &format!("x = 2\n{a}{b}"),
            1
        ));
        let enabled = "[egress]\nenabled = true\n";
        assert!(!is_taken(&format!("{enabled}{a}"), &a, 0));
    }

    #[test]
    fn forms_that_are_not_rewritten_say_so() {
        let inline = "egress = { https = [{ host = \"a.example.org\" }] }\n";
        let a = old(RuleKind::Https, "a.example.org", 443, None);
        let error = remove(inline, &a).unwrap_err();
        assert!(error.contains("is an array in one line"), "{error}");
        for text in [inline, "egress = 1\n", "[egress]\ntcp = 1\n"] {
            let error = add(text, &tcp("a.example.org")).unwrap_err();
            assert!(error.contains("edit it by hand"), "{text}: {error}");
        }
        assert!(
            add("a = ", &tcp("a.example.org"))
                .unwrap_err()
                .contains("line 1")
        );
    }
}
