//! Links between the documents lead somewhere. The README stays short.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn documents() -> Vec<PathBuf> {
    let mut found = super::files_below(&super::root().join("docs"), "md");
    found.push(super::root().join("README.md"));
    found
}

/// What stands in the parentheses of `[…](…)`.
fn links(text: &str) -> Vec<String> {
    let outside = super::pages::prose(text);
    let outside: Vec<_> = outside.split('`').step_by(2).collect();
    let outside = outside.join("x");
    let parts = outside.split("](").skip(1);
    parts
        .map(|part| part.split(')').next().unwrap().to_owned())
        .collect()
}

/// The names that headings have in a URL.
fn anchors(text: &str) -> BTreeSet<String> {
    let prose = super::pages::prose(text);
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let text = line.trim_start_matches('#').trim().to_lowercase();
        let kept = text
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

fn problem(from: &Path, link: &str) -> Option<String> {
    if link.contains("://") {
        return None;
    }
    let (path, anchor) = link
        .split_once('#')
        .map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let to = match path {
        "" => from.to_owned(),
        path => from.parent().unwrap().join(path),
    };
    if !to.exists() {
        return Some(format!("{}: {link} is not there", from.display()));
    }
    let anchor = anchor?;
    let text = std::fs::read_to_string(&to).unwrap();
    let is_there = anchors(&text).contains(anchor);
    (!is_there).then(|| format!("{}: {link} has no such heading", from.display()))
}

#[test]
fn links_lead_somewhere() {
    let mut count = 0;
    let mut problems = Vec::new();
    for path in documents() {
        for link in links(&std::fs::read_to_string(&path).unwrap()) {
            count += 1;
            problems.extend(problem(&path, &link));
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
    assert!(count > 50, "{count}");
}

#[test]
fn a_link_that_leads_nowhere_is_seen() {
    let readme = super::root().join("README.md");
    for link in ["docs/none.md", "docs/egress.md#none", "#none"] {
        assert!(problem(&readme, link).is_some(), "{link}");
    }
    for link in [
        "docs/egress.md",
        "docs/egress.md#what-a-denial-looks-like",
        "#install",
    ] {
        assert_eq!(problem(&readme, link), None);
    }
}

#[test]
fn every_document_can_be_found() {
    let readme = super::read("README.md");
    for path in super::files_below(&super::root().join("docs"), "md") {
        let name = path
            .strip_prefix(super::root())
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        let is_in_a_listed_directory = ["docs/decisions/", "docs/man/"]
            .iter()
            .any(|directory| name.starts_with(directory));
        let is_named = std::iter::once(readme.clone())
            .chain(["egress.md", "design.md"].map(|page| super::read(&format!("docs/{page}"))))
            .any(|text| text.contains(name.trim_start_matches("docs/")));
        assert!(is_in_a_listed_directory || is_named, "no page names {name}");
    }
}

#[test]
fn readme_is_short() {
    let lines = super::read("README.md").lines().count();
    assert!(lines <= 300, "{lines}");
}
