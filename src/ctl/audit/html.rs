//! Text -> HTML. Only what stands in this program can be markup; all else is
//! escaped, since hosts and paths are the choice of whoever runs in the sandbox.

use crate::text::printable;

#[derive(Debug, Default)]
pub(super) struct Html(String);

impl Html {
    /// Markup, which is a part of the program.
    pub(super) fn raw(&mut self, markup: &'static str) -> &mut Html {
        self.0.push_str(markup);
        self
    }

    /// Text, also that of an attribute in quotes.
    pub(super) fn text(&mut self, text: &str) -> &mut Html {
        for c in printable(text).chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                c => self.0.push(c),
            }
        }
        self
    }

    /// Lines of text.
    pub(super) fn lines(&mut self, text: &str) -> &mut Html {
        for line in text.lines() {
            self.text(line).raw("\n");
        }
        self
    }

    /// `1,234`
    pub(super) fn number(&mut self, number: u64) -> &mut Html {
        self.text(&grouped(number))
    }

    pub(super) fn into_string(self) -> String {
        self.0
    }
}

/// `1,234`, and from ten millions on `12 M`, which fits in a column.
pub(super) fn grouped(number: u64) -> String {
    const UNITS: [&str; 5] = ["M", "G", "T", "P", "E"];
    let mut found = separated(number);
    let mut unit = 1_000_000;
    for name in UNITS {
        if number / unit < 10 {
            break;
        }
        found = format!("{} {name}", separated(number / unit));
        unit = unit.saturating_mul(1000);
    }
    found
}

fn separated(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `5 B`, `1.5 KiB`, `120 MiB`
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 6] = [
        ("KiB", 10),
        ("MiB", 20),
        ("GiB", 30),
        ("TiB", 40),
        ("PiB", 50),
        ("EiB", 60),
    ];
    let mut found = format!("{bytes} B");
    for (unit, shift) in UNITS {
        let whole = bytes >> shift;
        if whole == 0 {
            break;
        }
        let tenth = ((u128::from(bytes) * 10) >> shift) % 10;
        found = match whole {
            1..10 => format!("{whole}.{tenth} {unit}"),
            _ => format!("{whole} {unit}"),
        };
    }
    found
}

/// As a content security policy has it: base64 (RFC 4648), padded.
pub(super) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or_default());
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for (at, shift) in [18, 12, 6, 0].into_iter().enumerate() {
            let index = usize::try_from(group >> shift & 63).unwrap_or_default();
            match DIGITS.get(index) {
                Some(digit) if at <= chunk.len() => out.push(char::from(*digit)),
                _ => out.push('='),
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        let mut html = Html::default();
        html.raw("<b title=\"")
            .text("\" onload='x' <&\n\u{202e}")
            .raw("\">");
        assert_eq!(
            html.into_string(),
            "<b title=\"&quot; onload=&#39;x&#39; &lt;&amp;\\n\\u{202e}\">"
        );
    }

    #[test]
    fn numbers_and_sizes_are_easy_to_read() {
        for (number, shown) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
            (9_999_999, "9,999,999"),
            (12_345_678, "12 M"),
            (9_876_543_210, "9,876 M"),
            (u64::MAX, "18 E"),
        ] {
            assert_eq!(grouped(number), shown);
        }
        for (bytes, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (10 << 20, "10 MiB"),
            (u64::MAX, "15 EiB"),
        ] {
            assert_eq!(size(bytes), shown);
        }
    }

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (text, shown) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(text.as_bytes()), shown);
        }
    }
}
