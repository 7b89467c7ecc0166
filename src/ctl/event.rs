//! One line of the journal -> rows of the table that a person reads. Pure.

use serde_json::Value;

use crate::ctl::output::{self, Cell};

/// Longest text in the last column, in characters.
const MAX_WHAT: usize = 500;

/// The entry, and a row for each change of files that it tells of.
pub(super) fn rows(line: &[u8]) -> Vec<[Cell; 6]> {
    // What a full disk has cut at the end of a line is ended once more.
    if line.trim_ascii().is_empty() {
        return Vec::new();
    }
    let Ok(entry) = serde_json::from_slice::<Value>(line) else {
        let text = String::from_utf8_lossy(line);
        return vec![row(["-", "unreadable", "-", "-", "-", &text])];
    };
    let time = entry
        .get("ts")
        .and_then(Value::as_f64)
        .map_or_else(|| "-".to_owned(), output::render_time);
    let took = entry
        .get("duration_ms")
        .and_then(Value::as_u64)
        .map_or_else(|| "-".to_owned(), output::render_milliseconds);
    let kind = text(&entry, "kind").unwrap_or("-");
    let client = text(&entry, "client").unwrap_or("-");
    let (result, what) = told(kind, &entry);
    let mut rows = vec![row([&time, kind, client, &result, &took, &what])];
    let changes = entry.get("changes").and_then(Value::as_array);
    for change in changes.into_iter().flatten().filter_map(Value::as_str) {
        rows.push(row([&time, "notice", client, "-", "-", change]));
    }
    rows
}

fn row(texts: [&str; 6]) -> [Cell; 6] {
    texts.map(|text| match text.char_indices().nth(MAX_WHAT) {
        Some((end, _)) => Cell::plain(format!("{}…", text.get(..end).unwrap_or_default())),
        None => Cell::plain(text),
    })
}

fn text<'a>(entry: &'a Value, key: &str) -> Option<&'a str> {
    entry.get(key)?.as_str()
}

/// Result, and what it was.
fn told(kind: &str, entry: &Value) -> (String, String) {
    let field = |key| text(entry, key).unwrap_or("-").to_owned();
    match kind {
        "shell" | "exec" | "terminal" => (outcome(entry), field("command")),
        "started" => {
            let restarts = entry.get("restarts").and_then(Value::as_u64);
            let result = match restarts.unwrap_or_default() {
                0 => "-".to_owned(),
                number => format!("restart {number}"),
            };
            (result, format!("image {}", field("image")))
        }
        "ended" => ("-".to_owned(), field("reason")),
        "grant" => {
            let is_kept = entry.get("persist") == Some(&Value::Bool(true));
            let kept = if is_kept { " (persisted)" } else { "" };
            let what = format!("{} {}{kept}", field("mode"), field("path"));
            let what = match text(entry, "mask") {
                Some(mask) => format!("{what}; {mask}"),
                None => what,
            };
            (field("applied"), what)
        }
        "refused" => {
            let what = format!("{} {}: {}", field("mode"), field("path"), field("reason"));
            ("not granted".to_owned(), what)
        }
        "revoke" => (field("applied"), field("path")),
        "recreated" => {
            let lost = entry.get("lost").and_then(Value::as_array);
            let lost: Vec<&str> = lost
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            let what = match lost.is_empty() {
                true => field("reason"),
                false => format!("{}; lost: {}", field("reason"), lost.join(", ")),
            };
            (format!("{} lost", lost.len()), what)
        }
        "egress" => {
            let what = format!("{} {}", field("op"), field("rule"));
            let what = match text(entry, "reason") {
                Some(reason) => format!("{what}: {reason}"),
                None => what,
            };
            (field("applied"), what)
        }
        "trust" => (field("change"), ".umwelt.toml".to_owned()),
        "gap" => {
            let missing = entry.get("missing").and_then(Value::as_u64);
            let what = format!(
                "{} entries before this one could not be written",
                missing.unwrap_or_default()
            );
            ("-".to_owned(), what)
        }
        // Of a later version.
        _ => ("-".to_owned(), entry.to_string()),
    }
}

fn outcome(entry: &Value) -> String {
    let number = |key| {
        entry
            .get(key)
            .map_or_else(|| "?".to_owned(), Value::to_string)
    };
    match text(entry, "ended") {
        Some("exited") => format!("exit {}", number("code")),
        Some("signaled") => format!("signal {}", number("signal")),
        Some("timed_out") => "timed out".to_owned(),
        Some(other) => other.to_owned(),
        None => "not started".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Outcome;
    use crate::ctl::output::Widths;
    use crate::run::journal::{End, Entry, Journal, Record};

    fn shown(rows: &[[Cell; 6]]) -> Vec<String> {
        let table = Widths::fitting([""; 6], rows).render(rows);
        let squeeze = |line: &str| {
            line.split_whitespace()
                .skip(1)
                .collect::<Vec<_>>()
                .join(" ")
        };
        table.lines().map(squeeze).collect()
    }

    #[test]
    fn entries_are_shown_as_the_journal_writes_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.jsonl");
        let journal = Journal::new(path.clone());
        let lost = ["make".to_owned()];
        let (client, applied) = ("c/1", "live");
        for entry in [
            Entry::Started {
                image: "i:1",
                restarts: 2,
            },
            Entry::Ended { reason: "stopped" },
            Entry::Grant {
                path: "/p",
                mode: "rw",
                persist: true,
                client,
                applied,
                mask: Some("this file is hidden by a mask: keys"),
            },
            Entry::Refused {
                path: "/q",
                mode: "ro",
                client,
                reason: "it is hidden",
            },
            Entry::Revoke {
                path: "/p",
                client,
                applied,
            },
            Entry::Recreated {
                reason: "a grant",
                lost: &lost,
            },
            Entry::Egress {
                op: "add",
                rule: "https://a.example.org/*",
                client,
                applied,
                reason: None,
            },
            Entry::Egress {
                op: "add",
                rule: "tcp://b.example.org:22",
                client,
                applied: "refused",
                reason: Some("this workspace has no network"),
            },
            Entry::Trust {
                change: "trusted",
                client,
            },
            Entry::Gap { missing: 3 },
        ] {
            journal.record(&entry);
        }
        let changes = ["\".envrc\" was changed".to_owned()];
        journal.append(&Record {
            client,
            kind: "shell",
            command: "echo\n\x1b[2J",
            cwd: "/w",
            end: End::Ran(&Outcome::Exited { code: 3 }),
            duration_ms: 1200,
            bytes: None,
            changes: &changes,
        });
        let text = std::fs::read_to_string(path).unwrap();
        let rows: Vec<[Cell; 6]> = text
            .lines()
            .flat_map(|line| rows(line.as_bytes()))
            .collect();
        assert_eq!(
            shown(&rows),
            [
                "started - restart 2 - image i:1".to_owned(),
                "ended - - - stopped".to_owned(),
                "grant c/1 live - rw /p (persisted); this file is hidden by a mask: keys"
                    .to_owned(),
                "refused c/1 not granted - ro /q: it is hidden".to_owned(),
                "revoke c/1 live - /p".to_owned(),
                "recreated - 1 lost - a grant; lost: make".to_owned(),
                "egress c/1 live - add https://a.example.org/*".to_owned(),
                "egress c/1 refused - add tcp://b.example.org:22: this workspace has no network"
                    .to_owned(),
                "trust c/1 trusted - .umwelt.toml".to_owned(),
                "gap - - - 3 entries before this one could not be written".to_owned(),
                "shell c/1 exit 3 1.2s echo\\n\\x1b[2J".to_owned(),
                "notice c/1 - - \".envrc\" was changed".to_owned(),
            ]
        );
    }

    #[test]
    fn what_is_no_entry_is_shown_all_the_same() {
        for line in [
            &b"{\"cut"[..],
            b"[]",
            b"{}",
            b"{\"ts\":1e300,\"kind\":7}",
            b"\xff",
        ] {
            assert_eq!(rows(line).len(), 1, "{line:?}");
        }
        let long = format!(
            "{{\"kind\":\"shell\",\"command\":\"{}\"}}",
            "é".repeat(9999)
        );
        let table = shown(&rows(long.as_bytes()));
        assert!(table[0].chars().count() < MAX_WHAT + 50);
    }
}
