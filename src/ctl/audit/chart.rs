//! Counts over time -> a picture: what was allowed above the axis, what was
//! denied below it, each on a scale of its own. Pure.

use crate::ctl::audit::html::{Html, grouped};
use crate::ctl::audit::timeline::{Bin, Span};
use crate::ctl::output;

/// Of one bin, and of a bar with the space beside it, in units of the picture.
const STEP: u64 = 10;
const BAR: u64 = 8;
const HEIGHT: u64 = 1000;
const TICKS: u64 = 4;
const DAY: u64 = 86_400;

/// Which half of the picture.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lane {
    Allowed,
    Denied,
}

impl Lane {
    fn of(self, bin: &Bin) -> u64 {
        match self {
            Lane::Allowed => bin.allowed,
            Lane::Denied => bin.denied,
        }
    }

    /// What is there can be seen, however little it is beside the rest.
    fn least(self) -> u64 {
        match self {
            Lane::Allowed => 20,
            Lane::Denied => 40,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Lane::Allowed => "allowed",
            Lane::Denied => "denied",
        }
    }
}

pub(super) fn push(html: &mut Html, span: &Span) {
    html.raw("<figure class=\"chart\">");
    push_lane(html, span, Lane::Allowed);
    push_lane(html, span, Lane::Denied);
    push_ticks(html, span);
    html.raw("</figure>\n");
}

fn push_lane(html: &mut Html, span: &Span, lane: Lane) {
    let most = span.bins.iter().map(|bin| lane.of(bin)).max();
    let most = most.unwrap_or_default();
    let label = format!("at most {} in {}", grouped(most), width(span.width));
    let caption = |html: &mut Html| {
        html.raw("<p class=\"scale\"><span class=\"key ")
            .raw(lane.word())
            .raw("\"></span>")
            .raw(lane.word())
            .raw("<span class=\"most\">")
            .text(&label)
            .raw("</span></p>");
    };
    if lane == Lane::Allowed {
        caption(html);
    }
    html.raw("<svg class=\"lane ")
        .raw(lane.word())
        .raw("\" role=\"img\" preserveAspectRatio=\"none\" viewBox=\"0 0 ")
        .text(&(span.bins.len() as u64 * STEP).to_string())
        .raw(" 1000\" aria-label=\"")
        .raw(lane.word())
        .raw(" over time, ")
        .text(&label)
        .raw("\">");
    for (at, bin) in (0..).zip(&span.bins) {
        if lane.of(bin) > 0 {
            push_bar(html, span, at, bin, lane, most);
        }
    }
    html.raw("</svg>");
    if lane == Lane::Denied {
        caption(html);
    }
}

fn push_bar(html: &mut Html, span: &Span, at: u64, bin: &Bin, lane: Lane, most: u64) {
    let full = u128::from(lane.of(bin)) * u128::from(HEIGHT) / u128::from(most.max(1));
    let height = u64::try_from(full).unwrap_or(HEIGHT).max(lane.least());
    let top = match lane {
        Lane::Allowed => HEIGHT - height.min(HEIGHT),
        Lane::Denied => 0,
    };
    for (name, value) in [
        ("<rect x=\"", at * STEP + (STEP - BAR) / 2),
        ("\" y=\"", top),
        ("\" height=\"", height),
    ] {
        html.raw(name).text(&value.to_string());
    }
    let start = span.start.saturating_add(at.saturating_mul(span.width));
    html.raw("\" width=\"8\"><title>")
        .text(&clock(start, 0, 19))
        .raw(", ")
        .text(&width(span.width))
        .raw(": ")
        .number(bin.allowed)
        .raw(" allowed, ")
        .number(bin.denied)
        .raw(" denied</title></rect>");
}

fn push_ticks(html: &mut Html, span: &Span) {
    let bins = span.bins.len() as u64;
    let seconds = bins.saturating_mul(span.width);
    // What changes from one to the next, and no more.
    let (from, to) = match seconds {
        0..=600 => (11, 19),
        601..=172_800 => (11, 16),
        _ if span.width < DAY => (5, 16),
        _ => (0, 10),
    };
    html.raw("<p class=\"ticks\">");
    for tick in 0..=TICKS {
        let at = span.start.saturating_add(seconds / TICKS * tick);
        html.raw("<span>").text(&clock(at, from, to)).raw("</span>");
    }
    html.raw("</p>");
}

/// A part of `2026-01-31 23:59:59`.
fn clock(seconds: u64, from: usize, to: usize) -> String {
    // Exact: times after the year 9999 are no times of ours.
    let seconds = u32::try_from(seconds).map_or(f64::NAN, f64::from);
    let text = output::render_time(seconds).replace('T', " ");
    text.get(from..to).unwrap_or("-").to_owned()
}

/// `30 s`, `10 min`, `2 days`
fn width(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..DAY => format!("{} h", seconds / 3600),
        DAY => "1 day".to_owned(),
        _ => format!("{} days", grouped(seconds / DAY)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(width: u64, bins: &[(u64, u64)]) -> Span {
        let bins = bins.iter();
        Span {
            start: 1_767_225_600,
            width,
            bins: bins
                .map(|(allowed, denied)| Bin {
                    allowed: *allowed,
                    denied: *denied,
                })
                .collect(),
        }
    }

    fn drawn(span: &Span) -> String {
        let mut html = Html::default();
        push(&mut html, span);
        html.into_string()
    }

    #[test]
    fn bars_are_as_high_as_their_share_and_never_invisible() {
        let html = drawn(&span(60, &[(1000, 1), (0, 0), (500, 0), (1, 0)]));
        assert_eq!(html.matches("<rect").count(), 4);
        for bar in [
            "<rect x=\"1\" y=\"0\" height=\"1000\"",
            "<rect x=\"21\" y=\"500\" height=\"500\"",
            "<rect x=\"31\" y=\"980\" height=\"20\"",
        ] {
            assert!(html.contains(bar), "{bar}\n{html}");
        }
        assert!(html.contains("at most 1,000 in 1 min"));
        assert!(html.contains("2026-01-01 00:02:00, 1 min: 500 allowed, 0 denied"));
    }

    #[test]
    fn ticks_show_what_changes() {
        for (width, bins, first, last) in [
            (1, 40, "00:00:00", "00:00:40"),
            (600, 100, "00:00", "16:40"),
            (10_800, 100, "01-01 00:00", "01-13 12:00"),
            (DAY, 100, "2026-01-01", "2026-04-11"),
        ] {
            let html = drawn(&span(width, &vec![(1, 0); bins]));
            let ticks = html.split("class=\"ticks\">").nth(1).unwrap();
            assert!(
                ticks.starts_with(&format!("<span>{first}</span>")),
                "{ticks}"
            );
            assert!(
                ticks.contains(&format!("<span>{last}</span></p>")),
                "{ticks}"
            );
        }
    }

    #[test]
    fn extreme_counts_and_times_are_drawn() {
        let mut span = span(u64::MAX / 4, &[(u64::MAX, u64::MAX), (1, 0)]);
        assert!(drawn(&span).contains("height=\"1000\""));
        span.start = u64::MAX;
        assert!(drawn(&span).contains("<span>-</span>"));
    }
}
