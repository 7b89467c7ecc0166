//! docs/configuration.md has every key that the parser knows, with its type,
//! its value where it is left out, and an example.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use toml::{Table, Value};

use super::{Config, Reader, SHIPPED};
use crate::config::WorkspaceFile;

const HOME: &str = "/home/u";
/// What stands below it is about `.umwelt.toml`.
const OF_WORKSPACES: &str = "\n## The workspace file\n";

fn base(text: &str) -> Result<Config, String> {
    let home = Path::new(HOME);
    let reader = Reader {
        path: Path::new("/c/umwelt.toml"),
        text,
        home,
    };
    let shipped = Config::shipped(home).unwrap();
    reader
        .read(Some(shipped))
        .map_err(|error| error.to_string())
}

fn workspace(text: &str) -> Result<WorkspaceFile, String> {
    let parsed = WorkspaceFile::parse(Path::new("/w/.umwelt.toml"), text, Path::new(HOME));
    parsed.map_err(|error| error.to_string())
}

/// Why one of the two parsers refuses a text.
type Problem = fn(&str) -> Option<String>;

const PARSERS: [Problem; 2] = [|text| base(text).err(), |text| workspace(text).err()];

/// A row of a table of keys.
struct Row<'a> {
    key: String,
    kind: &'a str,
    default: &'a str,
    bounds: &'a str,
}

impl Row<'_> {
    /// The default, where it is one value.
    fn value(&self) -> Option<&str> {
        let value = self.default.strip_prefix('`')?.strip_suffix('`')?;
        (!value.contains('`')).then_some(value)
    }
}

fn rows(page: &str) -> impl Iterator<Item = Row<'_>> {
    let tables = page
        .split("| key | type | shipped value | bounds |\n")
        .skip(1);
    let lines = tables.flat_map(|table| table.lines().skip(1).take_while(|line| !line.is_empty()));
    lines.map(|line| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let mut next = || cells.next().unwrap_or_default();
        Row {
            key: next().replace('`', ""),
            kind: next(),
            default: next(),
            bounds: next(),
        }
    })
}

/// How an error begins that is about a value of another type.
const OTHER_KINDS: [&str; 5] = [
    "must be a text in quotes, not",
    "must be true or false, not",
    "must be a whole number",
    "must be a number, not",
    "must be a list in brackets, not",
];

/// The part on the base config, and the one on the workspace file.
fn pages() -> [String; 2] {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (of_base, of_workspaces) = page.split_once(OF_WORKSPACES).unwrap();
    [of_base, of_workspaces].map(str::to_owned)
}

/// The names in the parser's answer to one that it does not know.
fn expected_at(header: &str, problem: Problem) -> Option<Vec<String>> {
    let answer = problem(&format!("{header}zzz = 1\n"))?;
    let (_, names) = answer.split_once("there is no key \"zzz\" here; the keys are: ")?;
    Some(names.split(", ").map(str::to_owned).collect())
}

/// `key`, `table.key` or `[[table]] key`, as the page writes them.
fn known_keys(problem: Problem) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    let mut tables = vec![(String::new(), String::new(), String::new())];
    while let Some((header, of_key, of_table)) = tables.pop() {
        for name in expected_at(&header, problem).unwrap() {
            let path = format!("{of_table}{name}");
            let table = format!("[{path}]\n");
            let list = format!("[[{path}]]\n");
            if expected_at(&table, problem).is_some() {
                tables.push((table, format!("{path}."), format!("{path}.")));
            } else if expected_at(&list, problem).is_some() {
                tables.push((list, format!("[[{path}]] "), format!("{path}.")));
            } else {
                keys.insert(format!("{of_key}{name}"));
            }
        }
    }
    keys
}

/// The same keys as a text that sets one of them, with what its table needs.
fn setting(key: &str, value: &str) -> String {
    let entries = BTreeMap::from([
        ("[[mounts]]", "type = 'bind'\npath = '/x'\n"),
        ("[[mask]]", "path = '/x'\n"),
        ("[[egress.https]]", "host = 'a.example.org'\n"),
        ("[[egress.tcp]]", "host = 'a.example.org'\nport = 22\n"),
        (
            "[[egress.expect]]",
            "url = 'tcp://a.example.org:22'\nverdict = 'deny'\n",
        ),
        (
            "[[hosts]]",
            "name = 'a.example.org'\naddress = '192.0.2.1'\n",
        ),
        ("[[grants]]", "path = '/x'\nmode = 'ro'\n"),
    ]);
    let Some((table, name)) = key.split_once(' ') else {
        return format!("{key} = {value}\n");
    };
    let others = entries[table]
        .lines()
        .filter(|line| !line.starts_with(&format!("{name} =")));
    let others: Vec<_> = others.collect();
    let own = match value {
        "" => String::new(),
        value => format!("{name} = {value}\n"),
    };
    format!("{table}\n{own}{}\n", others.join("\n"))
}

/// The kinds of TOML that a documented type stands for.
fn kinds_of(kind: &str) -> &'static [&'static str] {
    match kind.split(' ').next().unwrap() {
        "boolean" => &["true"],
        "integer" => &["7"],
        "number" => &["7", "7.5"],
        "list" | "array" => &["['x']"],
        _ => &["'x'"],
    }
}

fn examples(page: &str) -> impl Iterator<Item = &str> {
    let blocks = page.split("```toml\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap())
}

fn keys_of(table: &Table, of_key: &str, of_table: &str, keys: &mut BTreeSet<String>) {
    for (name, value) in table {
        let path = format!("{of_table}{name}");
        let nested = format!("{path}.");
        match value {
            Value::Table(inner) => keys_of(inner, &nested, &nested, keys),
            Value::Array(list) if list.first().is_some_and(Value::is_table) => {
                for inner in list.iter().filter_map(Value::as_table) {
                    keys_of(inner, &format!("[[{path}]] "), &nested, keys);
                }
            }
            _ => drop(keys.insert(format!("{of_key}{name}"))),
        }
    }
}

#[test]
fn page_has_the_keys_that_the_parsers_know() {
    let [of_base, of_workspaces] =
        pages().map(|page| rows(&page).map(|row| row.key).collect::<BTreeSet<_>>());
    assert!(of_base.len() > 30);
    assert_eq!(of_base, known_keys(PARSERS[0]));
    // Of the network both files have the same.
    let is_shared = |key: &&String| key.contains("egress") || key.contains("hosts");
    let of_both = of_base.iter().filter(is_shared).cloned();
    let of_workspaces: BTreeSet<_> = of_workspaces.into_iter().chain(of_both).collect();
    assert_eq!(of_workspaces, known_keys(PARSERS[1]));
}

#[test]
fn keys_take_the_types_of_the_page() {
    for (page, problem) in pages().into_iter().zip(PARSERS) {
        for row in rows(&page) {
            for value in ["true", "7", "7.5", "['x']", "'x'"] {
                let problem = problem(&setting(&row.key, value));
                let is_of_another =
                    |problem: String| OTHER_KINDS.iter().any(|words| problem.contains(words));
                let is_taken = !problem.is_some_and(is_of_another);
                let is_of_kind = kinds_of(row.kind).contains(&value);
                assert_eq!(
                    is_taken, is_of_kind,
                    "{} = {value}, a {}",
                    row.key, row.kind
                );
            }
        }
    }
}

#[test]
fn left_out_keys_have_the_values_of_the_page() {
    let mut count = 0;
    for (page, is_workspace) in pages().into_iter().zip([false, true]) {
        for row in rows(&page) {
            let Some(value) = row.value() else {
                let may_be_empty = row.key.starts_with("[[") || row.key == "egress.enabled";
                assert!(may_be_empty || !row.default.is_empty(), "{}", row.key);
                continue;
            };
            count += 1;
            if row.key.starts_with("[[mounts]]") {
                assert!(SHIPPED.contains(value), "{}", row.key);
                continue;
            }
            let without = match row.key.starts_with("[[") {
                true => setting(&row.key, ""),
                false => String::new(),
            };
            let with = setting(&row.key, value);
            match is_workspace {
                false => assert_eq!(base(&with).unwrap(), base(&without).unwrap(), "{}", row.key),
                true => assert_eq!(workspace(&with), workspace(&without), "{}", row.key),
            }
        }
    }
    assert!(count > 15, "{count}");
}

/// The manual page, which is there where the documents are not.
const MANUAL: &str = "/docs/man/umwelt.toml.5.md";

/// For each key its line, and what stands below it, without marks.
fn manual_entries() -> BTreeMap<String, (String, String)> {
    let page = std::fs::read_to_string(env!("CARGO_MANIFEST_DIR").to_owned() + MANUAL).unwrap();
    let (_, page) = page.split_once("\n# KEYS OF THE BASE").unwrap();
    let (page, _) = page.split_once("\n# EXAMPLES").unwrap();
    let entries = page.split("\n\n").filter_map(|entry| {
        let (line, text) = entry.split_once("\n:   ")?;
        let key = line.strip_prefix("**")?.split("**").next()?.to_owned();
        let text = text.replace("**", "").replace('`', "");
        let text: Vec<_> = text.split_whitespace().collect();
        Some((key, (line.to_owned(), text.join(" "))))
    });
    entries.collect()
}

#[test]
fn manual_page_says_of_each_key_what_the_page_says() {
    let entries = manual_entries();
    let pages = pages();
    let mut last = String::new();
    let mut keys = BTreeSet::new();
    for row in pages.iter().flat_map(|page| rows(page)) {
        let key = &row.key;
        let (line, text) = entries.get(key).unwrap_or_else(|| panic!("no {key}"));
        let default = row
            .value()
            .map_or_else(String::new, |value| format!(", default `{value}`"));
        let kind = row.kind.replace('`', "");
        assert_eq!(*line, format!("**{key}** (*{kind}*{default})"));
        let mut bounds = row.bounds.replace('`', "").to_lowercase();
        if bounds == "the same" {
            bounds.clone_from(&last);
        }
        let bounds = bounds
            .trim_end_matches("; see below")
            .replace("see below", "");
        let is_told = text.to_lowercase().contains(&bounds);
        assert!(is_told, "{key}: {bounds:?} is not in {text:?}");
        last.clone_from(&bounds);
        keys.insert(key.clone());
    }
    assert_eq!(entries.into_keys().collect::<BTreeSet<_>>(), keys);
}

#[test]
fn examples_are_valid_and_have_every_key() {
    let mut used = BTreeSet::new();
    for (page, problem) in pages().into_iter().zip(PARSERS) {
        for example in examples(&page) {
            assert_eq!(problem(example), None, "{example}");
            keys_of(&example.parse().unwrap(), "", "", &mut used);
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/egress.md");
    for example in examples(&std::fs::read_to_string(path).unwrap()) {
        assert_eq!(workspace(example).err(), None, "{example}");
    }
    let known: BTreeSet<_> = PARSERS.into_iter().flat_map(known_keys).collect();
    let missing: Vec<_> = known.difference(&used).collect();
    assert!(missing.is_empty(), "no example has {missing:?}");
}
