//! docs/troubleshooting.md has every message of an error, and no other.

use std::collections::{BTreeMap, BTreeSet};

use super::source::Texts;

/// A format string, or a message as it is in the page, with one `…` for whatever is put in.
pub(crate) fn pattern(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '{' | '}' if rest.peek() == Some(&c) => {
                rest.next();
                out.push(c);
            }
            '{' => {
                rest.by_ref().find(|c| *c == '}');
                out.push('…');
            }
            '\n' => out.push(' '),
            _ => out.push(c),
        }
    }
    out.trim().to_owned()
}

/// One row: messages with the same cause.
struct Entry {
    messages: Vec<String>,
    cause: String,
    way_out: String,
}

/// The rows of the tables "message | cause | way out".
fn entries() -> Vec<Entry> {
    let page = super::read("docs/troubleshooting.md");
    let rows = super::pages::rows(&page, &["message", "cause", "way out"]);
    let entry = |[messages, cause, way_out]: [&str; 3]| Entry {
        messages: super::pages::code_spans(messages),
        cause: cause.to_owned(),
        way_out: way_out.to_owned(),
    };
    rows.into_iter().map(entry).collect()
}

#[test]
fn every_message_of_an_error_is_explained() {
    let explained: BTreeSet<_> = entries()
        .into_iter()
        .flat_map(|entry| entry.messages)
        .collect();
    let texts = Texts::of_the_program();
    assert!(texts.errors.len() > 200, "{}", texts.errors.len());
    let missing: Vec<_> = texts.errors.difference(&explained).collect();
    assert!(
        missing.is_empty(),
        "docs/troubleshooting.md lacks:\n{missing:#?}"
    );
}

#[test]
fn every_explained_message_is_one_of_the_program() {
    let texts = Texts::of_the_program();
    let entries = entries();
    let messages = entries.iter().flat_map(|entry| &entry.messages);
    let unknown: Vec<_> = messages
        .filter(|message| !texts.all.contains(*message))
        .collect();
    assert!(
        unknown.is_empty(),
        "in docs/troubleshooting.md, but no code prints it:\n{unknown:#?}"
    );
}

#[test]
fn every_entry_has_a_cause_and_a_way_out_and_each_message_is_there_once() {
    let mut seen = BTreeMap::new();
    for entry in entries() {
        assert!(!entry.cause.is_empty(), "{:?}", entry.messages);
        assert!(!entry.way_out.is_empty(), "{:?}", entry.messages);
        for message in entry.messages {
            let before = seen.insert(message.clone(), entry.cause.clone());
            assert_eq!(before, None, "twice: {message}");
        }
    }
}

#[test]
fn what_is_put_into_a_format_string_is_one_sign() {
    assert_eq!(pattern("{path:?} has {{mode}} {:03o}\n"), "… has {mode} …");
}
