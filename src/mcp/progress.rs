//! When to send a progress notification, and what it says. Pure.

use std::time::{Duration, Instant};

use serde_json::value::RawValue;

use crate::mcp::jsonrpc::{Id, render_notification};
use crate::text::printable;

/// Clients give up after 60 s without one; twice as often as asked for.
const EVERY: Duration = Duration::from_secs(5);
/// With output to show, not more often than this.
const AT_MOST: Duration = Duration::from_millis(250);
const MAX_MESSAGE: usize = 200;

/// The progress of one call whose client asked to be told.
#[derive(Debug)]
pub(crate) struct Progress {
    token: Id,
    start: Instant,
    sent: Option<Instant>,
    /// The last value sent, in milliseconds; the next one must be higher.
    value: u128,
    /// A line of output that has not been shown yet.
    news: Option<String>,
    /// The last line, as far as it has come.
    partial: String,
}

impl Progress {
    pub(crate) fn new(token: Id, now: Instant) -> Progress {
        Progress {
            token,
            start: now,
            sent: None,
            value: 0,
            news: None,
            partial: String::new(),
        }
    }

    /// Takes in a piece of output; the last line that is not blank is news.
    pub(crate) fn push(&mut self, text: &str) {
        self.partial.push_str(text);
        let shown = self
            .partial
            .rsplit('\n')
            .find(|line| !line.trim().is_empty());
        if let Some(line) = shown {
            self.news = Some(message(line));
        }
        let last = self.partial.rsplit('\n').next().unwrap_or_default();
        self.partial = tail(last, MAX_MESSAGE).to_owned();
    }

    /// When `take` will have something if nothing happens before.
    pub(crate) fn deadline(&self) -> Instant {
        match (self.sent, &self.news) {
            (None, Some(_)) => self.start,
            (Some(sent), Some(_)) => sent + AT_MOST,
            (sent, None) => sent.unwrap_or(self.start) + EVERY,
        }
    }

    /// The notification that is due, if one is. `doing` is said where there is
    /// no output to show: what is going on.
    pub(crate) fn take(&mut self, now: Instant, doing: &str) -> Option<String> {
        if now < self.deadline() {
            return None;
        }
        let elapsed = now.saturating_duration_since(self.start);
        let message = self
            .news
            .take()
            .unwrap_or_else(|| format!("{doing}, {} s", elapsed.as_secs()));
        self.sent = Some(now);
        self.value = elapsed.as_millis().max(self.value + 1);
        Some(self.render(&message))
    }

    fn render(&self, message: &str) -> String {
        #[derive(serde::Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Params<'a> {
            progress_token: &'a Id,
            progress: Option<Box<RawValue>>,
            message: &'a str,
        }
        let value = format!("{}.{:03}", self.value / 1000, self.value % 1000);
        let params = Params {
            progress_token: &self.token,
            progress: RawValue::from_string(value).ok(),
            message,
        };
        render_notification("notifications/progress", &params)
    }
}

fn message(line: &str) -> String {
    let line = printable(line.trim());
    let shown = tail(&line, MAX_MESSAGE);
    if shown.len() == line.len() {
        return line;
    }
    format!("…{}", tail(&line, MAX_MESSAGE - 1))
}

/// The last `limit` characters: where a line grows, the end is the news.
fn tail(text: &str, limit: usize) -> &str {
    match text.char_indices().rev().nth(limit.saturating_sub(1)) {
        Some((start, _)) => text.get(start..).unwrap_or_default(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::jsonrpc::{Incoming, Parsed, parse_line};
    use serde_json::Value;

    fn progress(now: Instant) -> Progress {
        let line = br#"{"jsonrpc":"2.0","id":12345678901234567890123,"method":"a"}"#;
        let Parsed::One(Incoming::Request { id, .. }) = parse_line(line) else {
            panic!();
        };
        Progress::new(id, now)
    }

    fn take(progress: &mut Progress, now: Instant) -> Option<Value> {
        let line = progress.take(now, "running")?;
        assert!(line.contains(r#""progressToken":12345678901234567890123"#));
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["method"], "notifications/progress");
        Some(value["params"].clone())
    }

    #[test]
    fn silence_is_broken_every_five_seconds() {
        let start = Instant::now();
        let mut progress = progress(start);
        assert_eq!(take(&mut progress, start + EVERY - AT_MOST), None);
        let first = take(&mut progress, start + EVERY).unwrap();
        assert_eq!(first["message"], "running, 5 s");
        assert_eq!(first["progress"], 5.0);
        assert_eq!(progress.deadline(), start + EVERY * 2);
    }

    #[test]
    fn output_is_shown_at_once_and_then_four_times_a_second() {
        let start = Instant::now();
        let mut progress = progress(start);
        progress.push("a\nb\n\n");
        assert_eq!(take(&mut progress, start).unwrap()["message"], "b");
        progress.push("c\n");
        assert_eq!(take(&mut progress, start + AT_MOST / 2), None);
        progress.push("d");
        let later = start + AT_MOST;
        assert_eq!(take(&mut progress, later).unwrap()["message"], "d");
        assert_eq!(take(&mut progress, later + AT_MOST), None);
    }

    #[test]
    fn progress_always_increases() {
        let start = Instant::now();
        let mut progress = progress(start);
        let mut last = -1.0;
        for step in [0, 0, 0, 1, 250, 251, 4000] {
            progress.push("x\n");
            progress.sent = None;
            let params = take(&mut progress, start + Duration::from_millis(step)).unwrap();
            let value = params["progress"].as_f64().unwrap();
            assert!(value > last, "{value} after {last}");
            last = value;
        }
    }

    #[test]
    fn message_is_one_short_printable_line() {
        let start = Instant::now();
        let mut progress = progress(start);
        progress.push("first\n  ");
        progress.push("50%\x1b[K\u{202e}");
        let params = take(&mut progress, start).unwrap();
        assert_eq!(params["message"], "50%\\x1b[K\\u{202e}");
        for _ in 0..100 {
            progress.push(&"漢字".repeat(500));
            assert!(progress.partial.len() <= 4 * MAX_MESSAGE);
        }
        let params = take(&mut progress, start + EVERY).unwrap();
        let message = params["message"].as_str().unwrap();
        assert_eq!(message.chars().count(), MAX_MESSAGE);
        assert!(message.starts_with('…') && message.ends_with('字'));
    }
}
