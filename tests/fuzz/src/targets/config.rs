//! Edits of a workspace file. The first line of the input says what is added,
//! the rest is the file. What is not meant stays byte for byte.

use std::path::{Component, Path};

use crate::config::edit::{add_grant, remove_grant};
use crate::config::{GrantMode, PersistedGrant, WorkspaceFile, egress_edit};
use crate::policy::egress_change::{NewRule, OldRule, RuleKind};

const FILE: &str = "/w/.umwelt.toml";
const HOME: &str = "/home/u";

fn parse(text: &str) -> Option<WorkspaceFile> {
    WorkspaceFile::parse(Path::new(FILE), text, Path::new(HOME)).ok()
}

fn split(input: &[u8]) -> Option<(&str, &str)> {
    std::str::from_utf8(input).ok()?.split_once('\n')
}

/// What is gone is one piece, at the start of a table.
fn one_piece_less(text: &str, less: &str) {
    let (text, less) = (text.as_bytes(), less.as_bytes());
    let same = text.iter().zip(less).take_while(|(a, b)| a == b).count();
    assert!(
        text.ends_with(&less[same..]),
        "more than one place is changed"
    );
}

fn without_end(text: &str) -> &str {
    text.trim_end_matches(['\r', '\n'])
}

/// `ro PATH`, `rw PATH`, `file PATH`.
pub(super) fn grant_edit(input: &[u8]) {
    let Some((order, text)) = split(input) else {
        return;
    };
    let Some(file) = parse(text) else {
        let grant = PersistedGrant {
            path: "/a".into(),
            mode: GrantMode::Ro,
            file: false,
        };
        assert!(add_grant(Path::new(FILE), text, Path::new(HOME), &grant).is_err());
        return;
    };
    if let Some(grant) = asked_grant(order) {
        adding(&file, text, &grant);
    }
    for grant in &file.grants {
        let removed = remove_grant(Path::new(FILE), text, Path::new(HOME), &grant.path);
        let Ok(removed) = removed else { continue };
        let removed = removed.expect("it is there");
        let mut wanted = file.clone();
        wanted.grants.retain(|other| other != grant);
        assert_eq!(parse(&removed), Some(wanted));
        one_piece_less(text, &removed);
    }
}

fn asked_grant(order: &str) -> Option<PersistedGrant> {
    let (mode, path) = order.split_once(' ')?;
    let (mode, file) = match mode {
        "ro" => (GrantMode::Ro, false),
        "rw" => (GrantMode::Rw, false),
        "file" => (GrantMode::Ro, true),
        _ => return None,
    };
    let path = Path::new(path);
    // What the control plane hands over is resolved.
    let is_normal =
        path.is_absolute() && !path.components().any(|part| part == Component::ParentDir);
    let path = path.components().collect();
    is_normal.then_some(PersistedGrant { path, mode, file })
}

fn adding(file: &WorkspaceFile, text: &str, grant: &PersistedGrant) {
    let Ok(added) = add_grant(Path::new(FILE), text, Path::new(HOME), grant) else {
        return;
    };
    let mut wanted = file.clone();
    match wanted
        .grants
        .iter_mut()
        .find(|known| known.path == grant.path)
    {
        Some(known) => *known = grant.clone(),
        None => wanted.grants.push(grant.clone()),
    }
    assert_eq!(parse(&added).as_ref(), Some(&wanted));
    if file.grants.len() == wanted.grants.len() {
        return;
    }
    assert!(added.starts_with(text), "the text before is kept");
    let removed = remove_grant(Path::new(FILE), &added, Path::new(HOME), &grant.path);
    let removed = removed.expect("it can be removed").expect("it is there");
    assert_eq!(without_end(&removed), without_end(text), "no trace is left");
    assert_eq!(parse(&removed).as_ref(), Some(file));
}

/// `https HOST PORT [PATH ...]`, `tcp HOST PORT`.
pub(super) fn egress_edit(input: &[u8]) {
    let Some((order, text)) = split(input) else {
        return;
    };
    let mut words = order.splitn(4, ' ');
    let kind = match words.next() {
        Some("https") => RuleKind::Https,
        Some("tcp") => RuleKind::Tcp,
        _ => return,
    };
    let host = words.next().unwrap_or_default();
    let port = words.next().and_then(|port| port.parse().ok());
    let paths = words.next();
    let (Ok(new), Ok(old)) = (
        NewRule::parse(kind, host, port, paths),
        OldRule::parse(kind, host, port, paths),
    ) else {
        return;
    };
    let file = Path::new(FILE);
    if let Ok(added) = egress_edit::add(file, text, &new) {
        assert!(added.starts_with(text), "the text before is kept");
        adds_one_rule(text, &added);
        let removed = egress_edit::remove(file, &added, &old);
        if let Ok(removed) = removed {
            let removed = removed.expect("it is there");
            let was_there = !matches!(egress_edit::remove(file, text, &old), Ok(None));
            assert!(
                was_there || without_end(&removed) == without_end(text),
                "no trace is left"
            );
        }
    }
    if let Ok(Some(removed)) = egress_edit::remove(file, text, &old) {
        assert!(removed.len() < text.len());
        assert!(
            matches!(egress_edit::remove(file, &removed, &old), Ok(None)),
            "all of them are gone"
        );
        every_line_was_there(text, &removed);
    }
}

fn adds_one_rule(text: &str, added: &str) {
    let (Some(before), Some(after)) = (parse(text), parse(added)) else {
        return;
    };
    assert_eq!(after.egress.rule_count(), before.egress.rule_count() + 1);
    assert_eq!(after.grants, before.grants);
}

/// In their order, so that nothing is made up or moved.
fn every_line_was_there(text: &str, removed: &str) {
    // It stays in front of whatever is the first line.
    let marked = |text: &str| text.starts_with('\u{feff}');
    assert_eq!(marked(removed), marked(text), "the byte order mark");
    let bare = |text| str::trim_start_matches(text, '\u{feff}');
    let mut lines = bare(text).split_inclusive('\n');
    for line in bare(removed).split_inclusive('\n') {
        assert!(lines.any(|other| other == line), "{line:?} is new");
    }
}
