//! A line of the audit -> the row of the table that a person reads. Pure.

use crate::ctl::audit::record::{Record, Verdict, cut};
use crate::ctl::audit::sources::Line;
use crate::ctl::output::{self, Cell, Colour};
use crate::text::printable;

pub(super) const HEADING: [&str; COLUMNS] = [
    "TIME", "VERDICT", "KIND", "METHOD", "HOST", "PATH", "STATUS", "UP", "DOWN", "TOOK", "WHY",
];
pub(super) const COLUMNS: usize = 11;
/// Longest host and path in the table, and longest last column.
const MAX_HOST: usize = 60;
const MAX_PATH: usize = 60;
const MAX_WHY: usize = 300;

/// `colour`: whether refusals stand out.
pub(super) fn row(line: &Line, colour: bool) -> [Cell; COLUMNS] {
    match &line.record {
        Some(record) => of_record(record, colour),
        None => {
            let mut texts = ["-"; COLUMNS].map(str::to_owned);
            let text = String::from_utf8_lossy(&line.bytes);
            let [_, _, kind, .., why] = &mut texts;
            *kind = "unreadable".to_owned();
            *why = cut(&printable(&text), MAX_WHY);
            texts.map(Cell::plain)
        }
    }
}

fn of_record(record: &Record, colour: bool) -> [Cell; COLUMNS] {
    let (verdict, paint) = match record.verdict() {
        Verdict::Denied => ("deny", Some(Colour::Red)),
        Verdict::Allowed if record.has_failed() => ("allow", Some(Colour::Yellow)),
        Verdict::Allowed => ("allow", None),
        Verdict::Note => ("-", None),
    };
    let size = |bytes: Option<u64>| bytes.map(output::render_size);
    [
        Cell::plain(output::render_time(record.ts)),
        Cell::coloured(verdict, paint.filter(|_| colour)),
        cell(Some(kind(record)), MAX_HOST),
        cell(record.method.clone(), MAX_HOST),
        cell(Some(record.target()), MAX_HOST),
        cell(record.path.clone(), MAX_PATH),
        cell(record.status.map(|status| status.to_string()), MAX_HOST),
        cell(size(record.sent()), MAX_HOST),
        cell(size(record.down), MAX_HOST),
        cell(record.ms.map(output::render_milliseconds), MAX_HOST),
        cell(why(record), MAX_WHY),
    ]
}

fn cell(text: Option<String>, most: usize) -> Cell {
    match text {
        Some(text) => Cell::plain(cut(&printable(&text), most)),
        None => Cell::plain("-"),
    }
}

/// `tunnel open`, `kernel udp`, `https`.
fn kind(record: &Record) -> String {
    match &record.event {
        Some(event) => format!("{} {event}", record.kind),
        None => record.shown_kind(),
    }
}

fn why(record: &Record) -> Option<String> {
    // The kernel counts each packet that it refuses, and new connections.
    let unit = if record.is_denied() {
        "packet"
    } else {
        "connection"
    };
    let times = record.count.map(|count| match count {
        1 => format!("1 {unit}"),
        count => format!("{count} {unit}s"),
    });
    match (times, &record.why) {
        (Some(times), Some(why)) => Some(format!("{times}: {why}")),
        (Some(times), None) => Some(times),
        (None, why) => why.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctl::audit::record::testing::record;

    fn shown(line: &Line) -> String {
        let table = output::render_table(HEADING, &[row(line, false)]);
        let row = table.lines().nth(1).unwrap();
        row.split("  ")
            .map(str::trim)
            .filter(|word| !word.is_empty())
            .collect::<Vec<_>>()
            .join("|")
    }

    fn line(json: &str) -> Line {
        Line {
            bytes: Vec::new(),
            record: Some(record(json)),
        }
    }

    #[test]
    fn records_are_shown_with_what_they_have() {
        for (json, row) in [
            (
                r#""ts":1767225600.1,"kind":"https","method":"GET","host":"a.example.org","port":443,"path":"/x","verdict":"allow","rule":"workspace","status":200,"up":0,"down":5120,"ms":84"#,
                "2026-01-01T00:00:00Z|allow|https|GET|a.example.org:443|/x|200|0|5k|84ms|-",
            ),
            (
                r#""ts":1,"kind":"tunnel","event":"open","host":"2001:db8::1","port":443,"verdict":"allow""#,
                "1970-01-01T00:00:01Z|allow|tunnel open|-|[2001:db8::1]:443|-|-|-|-|-|-",
            ),
            (
                r#""ts":1,"kind":"kernel","protocol":"udp","host":"203.0.113.1","port":53,"verdict":"deny","count":7,"bytes":700"#,
                "1970-01-01T00:00:01Z|deny|kernel udp|-|203.0.113.1:53|-|-|-|-|-|7 packets",
            ),
            (
                r#""ts":1,"kind":"kernel","protocol":"icmp","host":"203.0.113.1","port":0,"verdict":"allow","count":1,"bytes":70"#,
                "1970-01-01T00:00:01Z|allow|kernel icmp|-|203.0.113.1|-|-|70|-|-|1 connection",
            ),
            (
                r#""ts":1,"kind":"kernel","event":"overflow","verdict":"deny","count":9,"bytes":0,"why":"full""#,
                "1970-01-01T00:00:01Z|deny|kernel overflow|-|-|-|-|-|-|-|9 packets: full",
            ),
            (
                r#""ts":1e300,"kind":"policy","event":"broken","why":"half\u001b[2J""#,
                "-|-|policy broken|-|-|-|-|-|-|-|half\\x1b[2J",
            ),
        ] {
            assert_eq!(shown(&line(json)), row);
        }
    }

    #[test]
    fn what_is_unreadable_is_shown_harmless_and_short() {
        let line = Line {
            bytes: [&b"{\"cut\x1b[2J\xff"[..], &[b'x'; 9999]].concat(),
            record: None,
        };
        let row = shown(&line);
        assert!(row.starts_with("-|-|unreadable|-|"), "{row}");
        assert!(row.contains("\\x1b[2J\u{fffd}") && row.chars().count() < MAX_WHY + 60);
    }
}
