//! A report -> one page that needs nothing else: no script, no font, no picture
//! from anywhere. Pure, but for the time.

use std::time::{SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use crate::ctl::audit::chart;
use crate::ctl::audit::html::{Html, base64, size};
use crate::ctl::audit::report::{DenialRow, HostRow, Report};
use crate::ctl::audit::rule::Fix;
use crate::ctl::audit::tally::{Tally, Target};
use crate::ctl::output;

const STYLE: &str = include_str!("page.css");

/// The time of the page, for its foot.
pub(super) fn now() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    time(Some(now.unwrap_or_default().as_secs_f64()))
}

pub(super) fn render(report: &Report, now: &str) -> String {
    let mut html = Html::default();
    push_head(&mut html, report);
    push_title(&mut html, report);
    if report.total.attempts() == 0 {
        html.raw(
            "<section class=\"card empty\"><p>No attempt has been recorded yet.</p></section>\n",
        );
    } else {
        push_totals(&mut html, report);
        push_timeline(&mut html, report);
        push_denials(&mut html, report);
        push_hosts(&mut html, report);
    }
    push_notes(&mut html, report);
    push_foot(&mut html, report, now);
    html.into_string()
}

fn push_head(html: &mut Html, report: &Report) {
    html.raw("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    // By its hash: what came from a sandbox cannot bring a style of its own.
    html.raw("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-")
        .text(&base64(&Sha256::digest(STYLE)))
        .raw("'; base-uri 'none'; form-action 'none'\">\n");
    html.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n")
        .raw("<meta name=\"referrer\" content=\"no-referrer\">\n")
        .raw("<meta name=\"color-scheme\" content=\"light dark\">\n<title>Egress audit: ")
        .text(&report.subject.workspace)
        .raw("</title>\n<style>")
        .raw(STYLE)
        .raw("</style>\n</head>\n<body>\n<main>\n");
}

fn push_title(html: &mut Html, report: &Report) {
    html.raw("<header>\n<p class=\"mark\">umwelt <span>egress audit</span></p>\n<h1>")
        .text(&report.subject.workspace)
        .raw("</h1>\n<p class=\"meta\">session <code>")
        .text(&report.subject.sid)
        .raw("</code>");
    if let (Some(first), Some(last)) = (report.first, report.total.last) {
        let seconds = std::time::Duration::try_from_secs_f64(last - first);
        html.raw("<span>")
            .text(&time(Some(first)))
            .raw(" to ")
            .text(&time(Some(last)))
            .raw(" UTC</span><span>")
            .text(&output::render_duration(
                seconds.unwrap_or_default().as_secs(),
            ))
            .raw("</span>");
    }
    html.raw("</p>\n</header>\n");
}

fn push_totals(html: &mut Html, report: &Report) {
    let total = &report.total;
    html.raw("<dl class=\"totals\">\n<div class=\"allowed\"><dt>Allowed</dt><dd>")
        .number(total.allowed)
        .raw("</dd>");
    if total.failed > 0 {
        html.raw("<dd class=\"more\">")
            .number(total.failed)
            .raw(" failed</dd>");
    }
    html.raw("</div>\n<div class=\"denied\"><dt>Denied</dt><dd>")
        .number(total.denied_requests())
        .raw("</dd>");
    if total.packets > 0 {
        html.raw("<dd class=\"more\">")
            .number(total.packets)
            .raw(" packets, by the kernel</dd>");
    }
    html.raw("</div>\n<div><dt>Hosts</dt><dd>")
        .number(report.name_count as u64)
        .raw("</dd></div>\n<div><dt>Sent</dt><dd>")
        .text(&size(total.up))
        .raw("</dd></div>\n<div><dt>Received</dt><dd>")
        .text(&size(total.down))
        .raw("</dd></div>\n</dl>\n");
}

fn push_timeline(html: &mut Html, report: &Report) {
    let Some(span) = &report.span else {
        return;
    };
    html.raw("<section class=\"card\">\n<h2>Over time</h2>\n");
    chart::push(html, span);
    html.raw("<ul class=\"kinds\">");
    for row in &report.kinds {
        html.raw("<li>")
            .text(&row.kind)
            .raw(" <b>")
            .number(row.tally.attempts())
            .raw("</b></li>");
    }
    html.raw("</ul>\n</section>\n");
}

fn push_denials(html: &mut Html, report: &Report) {
    if report.denials.is_empty() {
        return;
    }
    html.raw("<section class=\"card\">\n<h2>Denied</h2>\n");
    let (ours, others): (Vec<_>, Vec<_>) =
        report.denials.iter().partition(|row| row.rule.is_some());
    if !ours.is_empty() {
        html.raw("<p class=\"lead\">With the rule that would allow it. Add what the project needs, and no more.</p>\n");
        push_list(html, &ours);
    }
    if !others.is_empty() {
        html.raw("<p class=\"lead\">No rule is suggested for ")
            .raw(if ours.is_empty() {
                "any of this"
            } else {
                "the following"
            })
            .raw(".</p>\n");
        push_list(html, &others);
    }
    if report.other_denials > 0 {
        html.raw("<p class=\"lead\">")
            .number(report.other_denials)
            .raw(" more denied attempts are not listed.</p>\n");
    }
    html.raw("</section>\n");
}

fn push_list(html: &mut Html, rows: &[&DenialRow]) {
    html.raw("<ul class=\"denials\">\n");
    for row in rows {
        push_denial(html, row);
    }
    html.raw("</ul>\n");
}

fn push_denial(html: &mut Html, row: &DenialRow) {
    html.raw("<li>\n<p class=\"count\">")
        .number(row.count)
        .raw("</p>\n<div class=\"what\"><p class=\"target\">");
    push_target(html, &row.target);
    if let Some(path) = &row.path {
        html.raw(" <span class=\"at\">").text(path).raw("</span>");
    }
    html.raw("</p><p class=\"why\">");
    if let Some(why) = &row.why {
        html.text(why).raw("<span class=\"sep\"></span>");
    }
    html.raw("<span class=\"last\">last ")
        .text(&time(row.last))
        .raw("</span></p>");
    if let Some(rule) = &row.rule {
        push_rule(html, rule);
    }
    html.raw("</div>\n</li>\n");
}

fn push_rule(html: &mut Html, rule: &Fix) {
    html.raw("<pre class=\"command\"><code>");
    // A line ends between words, and not at the dashes of an option.
    for (at, word) in rule.command.split(' ').enumerate() {
        html.raw(if at > 0 { " <span>" } else { "<span>" })
            .text(word)
            .raw("</span>");
    }
    html.raw("</code></pre>");
    if let Some(note) = rule.note {
        html.raw("<p class=\"note\">").text(note).raw(".</p>");
    }
    html.raw("<details><summary>or in .umwelt.toml</summary><pre><code>")
        .lines(&rule.toml)
        .raw("</code></pre></details>");
}

fn push_target(html: &mut Html, target: &Target) {
    match target.host {
        Some(_) => html
            .raw("<span class=\"host\">")
            .text(&target.shown())
            .raw("</span>"),
        None => html.raw("<span>no host named</span>"),
    };
    html.raw(" <span class=\"kind\">")
        .text(&target.kind)
        .raw("</span>");
}

fn push_hosts(html: &mut Html, report: &Report) {
    html.raw(
        "<section class=\"card\">\n<h2>Hosts</h2>\n<table>\n<thead><tr><th>Host and path</th>",
    )
    .raw("<th class=\"number\">Allowed</th><th class=\"number\">Denied</th>")
    .raw("<th class=\"number wide\">Sent</th><th class=\"number wide\">Received</th>")
    .raw("<th class=\"wide\">Last</th></tr></thead>\n");
    let most = report.hosts.iter().map(|row| row.tally.attempts()).max();
    for row in &report.hosts {
        push_host(html, row, most.unwrap_or_default());
    }
    if report.other_hosts.attempts() > 0 {
        let hidden = report.host_count.saturating_sub(report.hosts.len());
        html.raw("<tbody><tr class=\"rest\"><td>");
        match hidden {
            0 => html.raw("other hosts"),
            hidden => html.number(hidden as u64).raw(" hosts more"),
        };
        push_numbers(html, &report.other_hosts);
        html.raw("</tbody>\n");
    }
    html.raw("</table>\n</section>\n");
}

fn push_host(html: &mut Html, row: &HostRow, most: u64) {
    html.raw("<tbody>\n<tr class=\"top\"><td>");
    push_target(html, &row.target);
    push_share(html, &row.tally, most);
    push_numbers(html, &row.tally);
    for path in &row.paths {
        html.raw("<tr class=\"path\"><td>").text(&path.path);
        push_numbers(html, &path.tally);
    }
    if row.other_paths.attempts() > 0 {
        html.raw("<tr class=\"path rest\"><td>other paths");
        push_numbers(html, &row.other_paths);
    }
    html.raw("</tbody>\n");
}

/// A bar, as long as the host's part of the busiest one's attempts.
fn push_share(html: &mut Html, tally: &Tally, most: u64) {
    let part = |count: u64| match count {
        0 => 0,
        _ => (u128::from(count) * 1000 / u128::from(most.max(1))).max(8),
    };
    let (allowed, denied) = (part(tally.allowed), part(tally.denied));
    html.raw("<svg class=\"share\" aria-hidden=\"true\" preserveAspectRatio=\"none\" viewBox=\"0 0 1016 4\">")
        .raw("<rect class=\"allowed\" height=\"4\" width=\"")
        .text(&allowed.to_string())
        .raw("\"/><rect class=\"denied\" height=\"4\" x=\"")
        .text(&allowed.to_string())
        .raw("\" width=\"")
        .text(&denied.to_string())
        .raw("\"/></svg>");
}

/// The other columns, and the end of the row.
fn push_numbers(html: &mut Html, tally: &Tally) {
    html.raw("</td><td class=\"number\">").number(tally.allowed);
    html.raw(match tally.denied {
        0 => "</td><td class=\"number none\">",
        _ => "</td><td class=\"number denied\">",
    });
    html.number(tally.denied)
        .raw("</td><td class=\"number wide\">")
        .text(&size(tally.up))
        .raw("</td><td class=\"number wide\">")
        .text(&size(tally.down))
        .raw("</td><td class=\"wide time\">")
        .text(&time(tally.last))
        .raw("</td></tr>\n");
}

fn push_notes(html: &mut Html, report: &Report) {
    if report.gateway.is_empty() {
        return;
    }
    html.raw("<section class=\"card\">\n<h2>Gateway</h2>\n<ul class=\"notes\">\n");
    for note in report.gateway.iter().rev() {
        html.raw("<li><span class=\"time\">")
            .text(&time(Some(note.ts)))
            .raw("</span> <b>")
            .text(&note.kind)
            .raw(" ")
            .text(note.event.as_deref().unwrap_or_default())
            .raw("</b> ")
            .text(note.why.as_deref().unwrap_or_default())
            .raw("</li>\n");
    }
    html.raw("</ul>\n</section>\n");
}

fn push_foot(html: &mut Html, report: &Report, now: &str) {
    html.raw("<footer>\n<p>")
        .number(report.records)
        .raw(" records read");
    if report.unreadable > 0 {
        html.raw(", <b>")
            .number(report.unreadable)
            .raw(" lines not understood</b> (of another version of umwelt, or damaged)");
    }
    html.raw(". A request, a connection, a name that was looked up and a packet that the kernel counted is one attempt each.")
        .raw(" All times are in UTC.</p>\n<p>Written by umwelt-ctl ")
        .raw(env!("CARGO_PKG_VERSION"))
        .raw(" at ")
        .text(now)
        .raw(". This page loads nothing and runs no script.</p>\n</footer>\n</main>\n</body>\n</html>\n");
}

/// `2026-01-31 23:59:59`
fn time(ts: Option<f64>) -> String {
    let text = ts.map_or_else(|| "-".to_owned(), output::render_time);
    text.trim_end_matches('Z').replace('T', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctl::audit::report::Limits;
    use crate::ctl::audit::report::testing::{report, request};

    const LIMITS: Limits = Limits {
        hosts: 3,
        paths: 2,
        denials: 3,
    };

    fn page(records: &[String]) -> String {
        render(&report(records, LIMITS), "2026-01-01 00:00:00")
    }

    #[test]
    fn totals_hosts_and_rules_are_on_the_page() {
        let html = page(&[
            request("a.example.org", "/u/x/1", "allow"),
            request("a.example.org", "/v/y/2", "deny"),
            r#""ts":1767225601,"kind":"policy","event":"broken","why":"half a file""#.to_owned(),
        ]);
        for expected in [
            "<title>Egress audit: /w</title>",
            "<dt>Denied</dt><dd>1</dd>",
            "a.example.org:443</span>",
            "<td>/u/x/*</td>",
            "<span>--path</span> <span>&#39;/v/*&#39;</span> <span>/w</span></code>",
            "paths = [&quot;/v/*&quot;]",
            "<b>policy broken</b> half a file",
            "3 records read.",
        ] {
            assert!(html.contains(expected), "{expected}\n{html}");
        }
    }

    #[test]
    fn hostile_names_are_text() {
        let hostile = "<img src=x onerror=alert(1)>\\\"'</style><script>";
        let html = page(&[
            request(hostile, "/<b>/x/y", "allow"),
            request(hostile, "/--></main>\\u202e/y", "deny"),
        ]);
        for markup in ["<img", "<script", "<b>/", "--></main>", "\u{202e}"] {
            assert!(!html.contains(markup), "{markup}");
        }
        assert_eq!(html.matches("</style>").count(), 1);
        assert!(html.contains("&lt;img src=x onerror=alert(1)&gt;"));
    }

    #[test]
    fn nothing_on_the_page_is_loaded_from_anywhere() {
        let html = page(&[request("a.example.org", "/u", "allow")]);
        for word in [
            "http://", "https://", "src=", "href=", "url(", "@import", "style=", "<link", "<script",
        ] {
            assert!(!html.contains(word), "{word}");
        }
        assert!(html.contains("content=\"default-src 'none'; style-src 'sha256-"));
        assert!(!STYLE.contains("</") && !STYLE.contains("url("));
    }

    #[test]
    fn an_empty_audit_says_so() {
        assert!(page(&[]).contains("No attempt has been recorded yet."));
    }

    #[test]
    fn a_flood_makes_no_large_page_and_what_is_left_out_is_said() {
        let mut records = Vec::new();
        for number in 0..3000 {
            let host = format!("h{}.example.org", number % 900);
            records.push(request(&host, &format!("/a{number}/b/c"), "deny"));
        }
        let html = page(&records);
        assert!(html.len() < 100_000, "{}", html.len());
        assert!(html.contains("897 hosts more"));
        assert!(html.contains("2,997 more denied attempts are not listed."));
    }
}
