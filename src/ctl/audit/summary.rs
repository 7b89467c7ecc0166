//! A report -> the text that a person reads in a terminal. Pure.

use crate::ctl::audit::record::cut;
use crate::ctl::audit::report::{DenialRow, HostRow, Report};
use crate::ctl::audit::tally::Tally;
use crate::ctl::output::{self, Cell, Colour};
use crate::text::printable;

/// Longest text in a column.
const MAX_CELL: usize = 70;

/// All of it, ready to be printed.
pub(super) fn render(report: &Report, colour: bool) -> String {
    let mut out = heading(report);
    if report.total.attempts() > 0 {
        out.push('\n');
        out.push_str(&hosts(report, colour));
    }
    if !report.denials.is_empty() {
        out.push_str(&format!("\n{}\n", report.total.told_denied()));
        for row in &report.denials {
            out.push('\n');
            out.push_str(&denial(row));
        }
        if report.other_denials > 0 {
            out.push_str(&format!("\n{} more are not listed\n", report.other_denials));
        }
    }
    out
}

fn heading(report: &Report) -> String {
    let time = |ts: Option<f64>| ts.map_or_else(|| "-".to_owned(), output::render_time);
    let total = &report.total;
    let mut out = format!("audit of {}\n", printable(&report.subject.workspace));
    if total.attempts() == 0 {
        out.push_str("no attempt is recorded\n");
        return out;
    }
    out.push_str(&format!(
        "{} to {}\n{} allowed{}, {}; {} up, {} down\n",
        time(report.first),
        time(total.last),
        total.allowed,
        match total.failed {
            0 => String::new(),
            failed => format!(" ({failed} failed)"),
        },
        total.told_denied(),
        output::render_size(total.up),
        output::render_size(total.down),
    ));
    out
}

fn hosts(report: &Report, colour: bool) -> String {
    let heading = ["KIND", "HOST", "ALLOWED", "DENIED", "UP", "DOWN", "LAST"];
    let mut rows = Vec::new();
    for host in &report.hosts {
        push_host(&mut rows, host, colour);
    }
    if report.other_hosts.attempts() > 0 {
        let name = "(other hosts)".to_owned();
        rows.push(row("", name, &report.other_hosts, colour));
    }
    output::render_table(heading, &rows)
}

fn push_host(rows: &mut Vec<[Cell; 7]>, host: &HostRow, colour: bool) {
    let name = host.target.shown();
    rows.push(row(&host.target.kind, name, &host.tally, colour));
    for path in &host.paths {
        rows.push(row("", format!("  {}", path.path), &path.tally, colour));
    }
    if host.other_paths.attempts() > 0 {
        let name = "  (other paths)".to_owned();
        rows.push(row("", name, &host.other_paths, colour));
    }
}

fn row(kind: &str, name: String, tally: &Tally, colour: bool) -> [Cell; 7] {
    let red = (colour && tally.denied > 0).then_some(Colour::Red);
    [
        Cell::plain(kind),
        Cell::plain(cut(&printable(&name), MAX_CELL)),
        Cell::plain(tally.allowed.to_string()),
        Cell::coloured(&tally.denied.to_string(), red),
        Cell::plain(output::render_size(tally.up)),
        Cell::plain(output::render_size(tally.down)),
        Cell::plain(
            tally
                .last
                .map_or_else(|| "-".to_owned(), output::render_time),
        ),
    ]
}

/// What it was, and what to do.
fn denial(row: &DenialRow) -> String {
    let path = row.path.as_deref().unwrap_or_default();
    let mut out = format!(
        "{} x {} {}",
        row.count,
        printable(&row.target.kind),
        printable(&row.target.shown())
    );
    if !path.is_empty() {
        out.push_str(&format!(" {}", printable(path)));
    }
    if let Some(why) = &row.why {
        out.push_str(&format!(": {}", printable(why)));
    }
    out.push('\n');
    let Some(rule) = &row.rule else {
        out.push_str("    no rule is suggested\n");
        return out;
    };
    out.push_str(&format!("    {}\n", printable(&rule.command)));
    out.push_str("    or in .umwelt.toml:\n");
    for line in rule.toml.lines() {
        out.push_str(&format!("        {}\n", printable(line)));
    }
    if let Some(note) = rule.note {
        out.push_str(&format!("    ({note})\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctl::audit::report::Limits;
    use crate::ctl::audit::report::testing::{report, request};

    const LIMITS: Limits = Limits {
        hosts: 9,
        paths: 9,
        denials: 9,
    };

    #[test]
    fn hosts_paths_and_denials_are_told() {
        let records = [
            request("a.example.org", "/u/x/1", "allow"),
            request("a.example.org", "/u/x/2", "allow"),
            request("a.example.org", "/v/y/2", "deny"),
        ];
        assert_eq!(
            render(&report(&records, LIMITS), false),
            "audit of /w
2026-01-01T00:00:00Z to 2026-01-01T00:00:00Z
2 allowed, 1 denied; 20 up, 4k down

KIND   HOST               ALLOWED  DENIED  UP  DOWN  LAST
https  a.example.org:443  2        1       20  4k    2026-01-01T00:00:00Z
         /u/x/*           2        0       20  4k    2026-01-01T00:00:00Z
         /v/y/*           0        1       0   0     2026-01-01T00:00:00Z

1 denied

1 x https a.example.org:443 /v/*: no rule for this host allows the path
    umwelt-ctl egress add https a.example.org --path '/v/*' /w
    or in .umwelt.toml:
        [[egress.https]]
        host = \"a.example.org\"
        port = 443
        paths = [\"/v/*\"]
"
        );
    }

    #[test]
    fn nothing_recorded_is_said() {
        let text = render(&report(&[], LIMITS), false);
        assert_eq!(text, "audit of /w\nno attempt is recorded\n");
    }

    #[test]
    fn hosts_and_paths_cannot_paint() {
        let hostile = request("a\\u001b[2Jb\\u202e", "/x\\u009b\\n/y/z", "deny");
        let text = render(&report(&[hostile], LIMITS), false);
        assert!(text.contains("a\\x1b[2Jb\\u{202e}:443"), "{text}");
        assert!(!text.chars().any(|c| c != '\n' && crate::text::is_unsafe(c)));
        assert!(text.contains("no rule is suggested"));
    }
}
