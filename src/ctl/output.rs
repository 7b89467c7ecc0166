//! Facts -> the text that a person or a program reads. Pure.

use std::time::Duration;

use serde::Serialize;

use crate::error::Error;
use crate::text;

/// Rows under a heading, aligned; the last column may be of any width.
/// Whatever a cell holds is made safe to show.
pub(crate) fn render_table<const N: usize>(heading: [&str; N], rows: &[[Cell; N]]) -> String {
    let widths = Widths::fitting(heading, rows);
    widths.render_heading(heading) + &widths.render(rows)
}

/// Widths of columns, for rows that come one after the other.
pub(crate) struct Widths<const N: usize>([usize; N]);

impl<const N: usize> Widths<N> {
    pub(crate) fn fitting(heading: [&str; N], rows: &[[Cell; N]]) -> Widths<N> {
        let heading = heading.map(Cell::plain);
        let mut widths = [0; N];
        for row in std::iter::once(&heading).chain(rows) {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.text.chars().count());
            }
        }
        Widths(widths)
    }

    pub(crate) fn render_heading(&self, heading: [&str; N]) -> String {
        self.render(&[heading.map(Cell::plain)])
    }

    /// A cell that is too wide moves the rest of its row.
    pub(crate) fn render(&self, rows: &[[Cell; N]]) -> String {
        let mut out = String::new();
        for row in rows {
            let mut line = String::new();
            for (width, cell) in self.0.iter().zip(row) {
                line.push_str(&cell.painted());
                let used = cell.text.chars().count();
                line.push_str(&" ".repeat(width.saturating_sub(used) + 2));
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

#[derive(Debug)]
pub(crate) struct Cell {
    text: String,
    colour: Option<Colour>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    Green,
    Yellow,
    Red,
}

impl Cell {
    pub(crate) fn plain(text: impl AsRef<str>) -> Cell {
        Cell {
            text: text::printable(text.as_ref()),
            colour: None,
        }
    }

    pub(crate) fn coloured(text: &str, colour: Option<Colour>) -> Cell {
        Cell {
            colour,
            ..Cell::plain(text)
        }
    }

    fn painted(&self) -> String {
        let code = match self.colour {
            None => return self.text.clone(),
            Some(Colour::Green) => 32,
            Some(Colour::Yellow) => 33,
            Some(Colour::Red) => 31,
        };
        format!("\x1b[{code}m{}\x1b[0m", self.text)
    }
}

/// Colour is for a terminal, and only where nobody has asked for none
/// (no-color.org).
pub(crate) fn wants_colour() -> bool {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    rustix::termios::isatty(rustix::stdio::stdout())
        && set("NO_COLOR").is_none()
        && set("TERM").is_some_and(|term| term != "dumb")
}

/// Exact for a program, and harmless for the terminal of a person who looks:
/// JSON leaves DEL, C1 controls and characters that reorder text as they are.
pub(crate) fn render_json(value: &impl Serialize) -> Result<String, Error> {
    let json = serde_json::to_string_pretty(value)
        .map_err(|error| Error::io("write JSON", std::io::Error::from(error)))?;
    Ok(escape_json(&json) + "\n")
}

/// JSON text -> the same value, harmless for a terminal.
pub(crate) fn escape_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len() + 1);
    for c in json.chars() {
        // Line feeds stand between the values only; inside they are escaped.
        if c != '\n' && text::is_unsafe(c) {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// Seconds since the epoch -> `2026-01-31T23:59:59Z`. By the rules of the
/// Gregorian calendar, counted in eras of 400 years that begin in March.
pub(crate) fn render_time(seconds: f64) -> String {
    // Whatever lies before 1970 or after the year 9999 is no time of ours.
    if !(0.0..253_402_300_800.0).contains(&seconds) {
        return "-".to_owned();
    }
    let seconds = Duration::from_secs_f64(seconds).as_secs();
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let from_march = (5 * day + 2) / 153;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    format!(
        "{:04}-{month:02}-{:02}T{:02}:{:02}:{:02}Z",
        era * 400 + year + u64::from(month <= 2),
        day - (153 * from_march + 2) / 5 + 1,
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// `5ms`, `1.2s`, and from a minute on as other durations.
pub(crate) fn render_milliseconds(milliseconds: u64) -> String {
    match milliseconds {
        0..1000 => format!("{milliseconds}ms"),
        1000..60_000 => format!("{}.{}s", milliseconds / 1000, milliseconds % 1000 / 100),
        _ => render_duration(milliseconds / 1000),
    }
}

/// The two largest units: `3d 4h`, `5m 6s`, `7s`.
pub(crate) fn render_duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, _, _) => format!("{hours}h {}m", minutes % 60),
        _ => format!("{days}d {}h", hours % 24),
    }
}

/// In the unit of the configuration that leaves no more than one decimal.
pub(crate) fn render_size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("t", 40), ("g", 30), ("m", 20), ("k", 10)];
    for (unit, shift) in UNITS {
        let (whole, rest) = (bytes >> shift, bytes & ((1 << shift) - 1));
        if whole > 0 {
            let tenth = (u128::from(rest) * 10) >> shift;
            return match tenth {
                0 => format!("{whole}{unit}"),
                tenth => format!("{whole}.{tenth}{unit}"),
            };
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_have_no_tail() {
        let rows = [
            [Cell::plain("a"), Cell::coloured("b", Some(Colour::Red))],
            [Cell::plain("long"), Cell::plain("")],
        ];
        let table = render_table(["A", "B"], &rows);
        assert_eq!(table, "A     B\na     \x1b[31mb\x1b[0m\nlong\n");
    }

    #[test]
    fn a_name_can_neither_paint_nor_forge_a_row() {
        let rows = [[Cell::plain("x\x1b[31m\nready")]];
        assert_eq!(render_table(["A"], &rows), "A\nx\\x1b[31m\\nready\n");
    }

    #[test]
    fn json_is_exact_and_harmless() {
        let value = "a\n\x1b\u{7f}\u{9b}\u{202e}é";
        let json = render_json(&value).unwrap();
        assert_eq!(json, "\"a\\n\\u001b\\u007f\\u009b\\u202eé\"\n");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), value);
    }

    #[test]
    fn times_are_in_utc() {
        for (seconds, shown) in [
            (0.0, "1970-01-01T00:00:00Z"),
            (951_782_399.9, "2000-02-28T23:59:59Z"),
            (951_782_400.0, "2000-02-29T00:00:00Z"),
            (1_798_761_599.0, "2026-12-31T23:59:59Z"),
            (4_107_542_400.0, "2100-03-01T00:00:00Z"),
            (-1.0, "-"),
            (f64::NAN, "-"),
            (1e300, "-"),
        ] {
            assert_eq!(render_time(seconds), shown);
        }
    }

    #[test]
    fn short_times_show_fractions() {
        for (milliseconds, shown) in [(999, "999ms"), (1250, "1.2s"), (61_000, "1m 1s")] {
            assert_eq!(render_milliseconds(milliseconds), shown);
        }
    }

    #[test]
    fn durations_show_two_units() {
        for (seconds, shown) in [
            (0, "0s"),
            (59, "59s"),
            (61, "1m 1s"),
            (7260, "2h 1m"),
            (93_600, "1d 2h"),
        ] {
            assert_eq!(render_duration(seconds), shown);
        }
    }

    #[test]
    fn sizes_are_written_as_in_the_configuration() {
        for (bytes, shown) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1k"),
            (512 << 20, "512m"),
            (3 << 29, "1.5g"),
            (u64::MAX, "16777215.9t"),
        ] {
            assert_eq!(render_size(bytes), shown);
        }
    }
}
