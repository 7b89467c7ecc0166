//! docs/socket-api.md shows what this program reads and writes: its lines are
//! parsed by the types of the API, and nothing is left over.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    Body, CancelReply, ChangeReply, EgressReply, Empty, ErrorKind, ExecReply, HelloReply,
    ListReply, Message, Request, ShellReply, StatusReply,
};

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/socket-api.md");
    std::fs::read_to_string(path).unwrap()
}

/// What the types make of it, to be compared with what is there.
fn written_again<T: DeserializeOwned + Serialize>(value: &Value) -> Value {
    let parsed: T =
        serde_json::from_value(value.clone()).unwrap_or_else(|e| panic!("{e}: {value}"));
    serde_json::to_value(parsed).unwrap()
}

fn result_written_again(method: &str, value: &Value) -> Value {
    let write = match method {
        "hello" => written_again::<HelloReply>,
        "status" => written_again::<StatusReply>,
        "list" => written_again::<ListReply>,
        "shell" => written_again::<ShellReply>,
        "exec" | "terminal" => written_again::<ExecReply>,
        "grant" | "revoke" => written_again::<ChangeReply>,
        "egress" => written_again::<EgressReply>,
        "cancel" => written_again::<CancelReply>,
        _ => written_again::<Empty>,
    };
    write(value)
}

/// The names in the answer to one that is not known.
fn expected(answer: &str) -> Vec<String> {
    let (_, names) = answer.split_once("expected ").unwrap_or_default();
    names
        .split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

fn methods() -> Vec<String> {
    let line = json!({"id": 1, "method": "zzz"}).to_string();
    expected(&Request::parse(line.as_bytes()).unwrap_err().1.message)
}

fn parameters(method: &str) -> Vec<String> {
    let line = json!({"id": 1, "method": method, "params": {"zzz": 1}}).to_string();
    expected(&Request::parse(line.as_bytes()).unwrap_err().1.message)
}

/// The text below the heading that names the method.
fn section<'a>(page: &'a str, method: &str) -> &'a str {
    let mut sections = page.split("\n## ").skip(1);
    let is_its = |section: &&str| {
        let heading = section.lines().next().unwrap();
        heading.split(", ").any(|name| name == method)
    };
    sections
        .find(is_its)
        .unwrap_or_else(|| panic!("no section has {method}"))
}

/// The first cells of the table that has this head.
fn first_cells(text: &str, head: &str) -> BTreeSet<String> {
    let table = text
        .lines()
        .skip_while(|line| !line.starts_with(head))
        .skip(2);
    let rows = table.take_while(|line| line.starts_with('|'));
    rows.flat_map(|row| {
        let cell = row.split('|').nth(1).unwrap();
        cell.split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    })
    .collect()
}

#[test]
fn requests_and_answers_on_the_page_are_those_of_the_types() {
    let page = page();
    let mut asked = BTreeMap::new();
    let mut answers = 0;
    for line in page.lines() {
        // Beside some stands what comes with them.
        let line = line.split("  ").next().unwrap();
        if let Some(line) = line.strip_prefix("> ") {
            let request =
                Request::parse(line.as_bytes()).unwrap_or_else(|e| panic!("{}: {line}", e.1));
            let method: Value = serde_json::from_str(line).unwrap();
            asked.insert(request.id, method["method"].as_str().unwrap().to_owned());
        } else if let Some(line) = line.strip_prefix("< ") {
            answers += 1;
            let message: Message =
                serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
            if let Body::Result(result) = &message.body {
                let id = message.id.unwrap();
                // The command that is cancelled on the page.
                let method = asked.get(&id).map_or("shell", String::as_str);
                let written = result_written_again(method, result);
                assert_eq!(&written, result, "{line}");
            }
        }
    }
    assert!(
        asked.len() >= 10 && answers >= asked.len(),
        "{answers} {asked:?}"
    );
}

#[test]
fn blocks_of_json_on_the_page_are_requests_and_messages() {
    let page = page();
    let blocks = page
        .split("```json\n")
        .skip(1)
        .map(|block| block.split("```").next().unwrap());
    for line in blocks.flat_map(str::lines) {
        let is_request = Request::parse(line.as_bytes()).is_ok();
        let is_message = serde_json::from_str::<Message>(line).is_ok();
        assert!(is_request || is_message, "{line}");
    }
}

#[test]
fn page_has_each_method_with_its_parameters() {
    let page = page();
    assert!(methods().len() > 10);
    for method in methods() {
        let section = section(&page, &method);
        let heading = section.lines().next().unwrap();
        let known: BTreeSet<_> = heading.split(", ").flat_map(parameters).collect();
        for name in parameters(&method) {
            let is_named = [format!("`{name}`"), format!("\"{name}\"")];
            assert!(
                is_named.iter().any(|name| section.contains(name)),
                "{method} {name}"
            );
        }
        for name in first_cells(section, "| parameter") {
            assert!(known.contains(&name), "{method} has no parameter {name}");
        }
    }
}

#[test]
fn page_has_each_kind_of_error() {
    let answer = serde_json::from_value::<ErrorKind>(json!("zzz")).unwrap_err();
    let known: BTreeSet<_> = expected(&answer.to_string()).into_iter().collect();
    assert!(known.len() > 8);
    assert_eq!(first_cells(&page(), "| `kind` | meaning"), known);
}
