//! Bytes from the sandbox -> text that can break neither JSON nor a terminal.
//! Pure.

/// Text that is safe to show, with counts of what had to be changed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) text: String,
    /// Bytes that were not UTF-8; each maximal bad run is shown as one U+FFFD.
    pub(crate) invalid_bytes: u64,
    /// Control characters shown in escaped form.
    pub(crate) escaped: u64,
}

/// Shows command output: newline and tab stay, CR LF becomes LF, every other
/// control character is written as an escape. What only joins or styles the
/// letters and pictures beside it stays, too: see [`is_joining`].
pub(crate) fn show(bytes: &[u8]) -> Shown {
    let mut shown = Shown::default();
    for chunk in bytes.utf8_chunks() {
        let mut chars = chunk.valid().chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '\n' | '\t' => shown.text.push(c),
                '\r' if chars.peek() == Some(&'\n') => {}
                c if is_unsafe(c) && !is_joining(c, shown.text.chars().last(), chars.peek()) => {
                    shown.escaped += 1;
                    push_escape(&mut shown.text, c);
                }
                c => shown.text.push(c),
            }
        }
        if !chunk.invalid().is_empty() {
            shown.invalid_bytes += chunk.invalid().len() as u64;
            shown.text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    shown
}

/// One line for a human: newlines and tabs are escaped too, so that a name
/// from the sandbox cannot forge a second line.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unsafe(c) || matches!(c, '\n' | '\t') {
            push_escape(&mut out, c);
        } else {
            out.push(c);
        }
    }
    out
}

/// Control characters, and the characters that reorder text or are not seen:
/// bidirectional overrides, line separators, and all that Unicode lets a font
/// leave out (Default_Ignorable_Code_Point). With these two names look the same,
/// and a model can be told what a person does not see.
pub(crate) fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
            | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Whether it is one of those by which scripts join their letters, and pictures
/// are coloured and put together, where it does that: right behind a visible
/// character that is not ASCII, and to join, before another one. One alone says
/// nothing to a model; a run of them could.
fn is_joining(c: char, before: Option<char>, after: Option<&char>) -> bool {
    let is_seen = |c: char| !c.is_ascii() && !is_unsafe(c);
    let is_styled = |c: char| is_seen(c) || c == '\u{fe0f}';
    match c {
        '\u{fe0e}' | '\u{fe0f}' => before.is_some_and(is_seen),
        '\u{200c}' | '\u{200d}' => {
            before.is_some_and(is_styled) && after.is_some_and(|c| is_seen(*c))
        }
        _ => false,
    }
}

/// A word as a shell reads it, for the command in a hint.
pub(crate) fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn push_escape(out: &mut String, c: char) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if (c as u32) < 0x100 => out.push_str(&format!("\\x{:02x}", c as u32)),
        c => out.push_str(&format!("\\u{{{:x}}}", c as u32)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_escapes_are_shown_not_sent() {
        let shown = show(b"a\x1b[31mred\x1b[0m\x07\n");
        assert_eq!(shown.text, "a\\x1b[31mred\\x1b[0m\\x07\n");
        assert_eq!(shown.escaped, 3);
    }

    #[test]
    fn invalid_bytes_are_counted() {
        let shown = show(b"ok\xff\xfe\xc3(\n");
        assert_eq!(shown.text, "ok\u{fffd}\u{fffd}\u{fffd}(\n");
        assert_eq!(shown.invalid_bytes, 3);
    }

    #[test]
    fn carriage_return_before_newline_goes_and_alone_is_shown() {
        assert_eq!(show(b"a\r\nb\rc").text, "a\nb\\rc");
    }

    #[test]
    fn a_name_cannot_forge_a_second_line() {
        assert_eq!(
            printable("x\nNOTE: \u{202e}y\u{9b}"),
            "x\\nNOTE: \\u{202e}y\\x9b"
        );
    }

    #[test]
    fn invisible_characters_are_shown() {
        let shown = show("a\u{e0041}b\u{61c}c\u{ad}d\u{3164}".as_bytes());
        assert_eq!(shown.text, "a\\u{e0041}b\\u{61c}c\\xadd\\u{3164}");
    }

    #[test]
    fn two_names_never_look_the_same() {
        for hidden in [
            '\u{34f}',
            '\u{115f}',
            '\u{1160}',
            '\u{17b4}',
            '\u{180b}',
            '\u{180f}',
            '\u{200b}',
            '\u{200c}',
            '\u{200d}',
            '\u{2060}',
            '\u{2065}',
            '\u{3164}',
            '\u{fe00}',
            '\u{fe0e}',
            '\u{fe0f}',
            '\u{ffa0}',
            '\u{fff0}',
            '\u{1bca0}',
            '\u{1d173}',
            '\u{e0100}',
            '\u{e0fff}',
        ] {
            let name = printable(&format!("é{hidden}é"));
            assert_eq!(name, format!("é\\u{{{:x}}}é", u32::from(hidden)));
        }
        assert_eq!(printable("é 漢字 क्ष"), "é 漢字 क्ष");
    }

    #[test]
    fn what_joins_stays_in_output_and_what_hides_does_not() {
        for text in [
            "✔\u{fe0f} done",
            "👩\u{200d}💻",
            "❤\u{fe0f}\u{200d}🔥",
            "می\u{200c}خواهم",
        ] {
            assert_eq!(show(text.as_bytes()).text, text);
        }
        for (text, escaped) in [
            ("a\u{fe0f}", 1),
            ("✔\u{fe0f}\u{fe0f}\u{fe0e}", 2),
            ("✔\u{fe01}", 1),
            ("a\u{200d}b", 1),
            ("é\u{200c}\u{200d}\u{200c}é", 3),
            ("é\u{200d}", 1),
            ("\u{200d}é", 1),
            ("✔\u{e0100}", 1),
        ] {
            assert_eq!(show(text.as_bytes()).escaped, escaped, "{text:?}");
        }
    }

    #[test]
    fn ordinary_text_is_untouched() {
        let text = "naïve – 漢字 🎉\ttab\n";
        assert_eq!(show(text.as_bytes()).text, text);
    }

    #[test]
    fn words_in_hints_survive_the_shell() {
        assert_eq!(shell_word("/home/u/p-1"), "/home/u/p-1");
        assert_eq!(shell_word("/a b/it's"), r"'/a b/it'\''s'");
    }
}
