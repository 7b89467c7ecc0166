//! What the TOML reader and serde say of a file -> what a person reads. Pure.

/// Most of a value that is repeated, in characters.
const MAX_SHOWN: usize = 60;

/// `key` is where it is, as far as that is known; `written` the text there.
pub(super) fn plain(message: &str, key: &str, written: &str) -> String {
    let message = message.trim().replace('\n', "; ");
    let wrong = message
        .strip_prefix("invalid type: ")
        .or_else(|| message.strip_prefix("invalid value: "));
    if let Some((found, wanted)) = wrong.and_then(|wrong| wrong.rsplit_once(", expected ")) {
        return of_another_kind(found, wanted, key, written);
    }
    if let Some((word, known)) = word_and_known(&message, "unknown field ") {
        return format!("there is no key {word:?} here; the keys are: {known}");
    }
    if let Some((word, known)) = word_and_known(&message, "unknown variant ") {
        return format!("{word:?} is none of: {known}");
    }
    let quoted = |prefix| Some(message.strip_prefix(prefix)?.split('`').nth(1)?.to_owned());
    if let Some(field) = quoted("missing field ") {
        return format!("the key {field:?} is missing");
    }
    match message.as_str() {
        "duplicate key" => format!("{} stands there twice", shown(written)),
        "wanted string or table" => format!("must be a text in quotes, not {}", shown(written)),
        "integer number overflowed" => format!("{} is too large", shown(written)),
        _ => format!("this is not TOML: {message}"),
    }
}

fn of_another_kind(found: &str, wanted: &str, key: &str, written: &str) -> String {
    let is_table = wanted.starts_with("struct ") || matches!(wanted, "map" | "a map");
    match found {
        "map" if wanted == "a sequence" && !key.is_empty() => {
            format!("must be a list of tables: write [[{key}]] above each of them")
        }
        // serde would also take the keys in their order.
        "sequence" | "map" if !key.is_empty() && written.starts_with("[[") => {
            format!("must be one table: write [{key}] above it, and only once")
        }
        _ if is_table => format!("must be a table, not {}", shown(written)),
        _ => format!("must be {}, not {}", kind(wanted), shown(written)),
    }
}

fn kind(wanted: &str) -> &str {
    match wanted {
        "u64" => "a whole number, 0 or more",
        "i64" => "a whole number",
        "f64" => "a number",
        "a string" => "a text in quotes",
        "a boolean" => "true or false",
        "a sequence" => "a list in brackets",
        other => other,
    }
}

/// From "unknown field `x`, expected one of `a`, `b`": the word, and all that
/// would do.
fn word_and_known(message: &str, prefix: &str) -> Option<(String, String)> {
    let mut words = message.strip_prefix(prefix)?.split('`').skip(1).step_by(2);
    let word = words.next()?.to_owned();
    let known: Vec<&str> = words.collect();
    Some((word, known.join(", ")))
}

/// As the file has it, one line at most.
fn shown(written: &str) -> String {
    let line = written.lines().next().unwrap_or_default();
    let mut shown: String = line.chars().take(MAX_SHOWN).collect();
    if shown.len() < written.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_named_in_plain_words_beside_the_value_as_written() {
        for (message, written, wanted) in [
            (
                "invalid type: string \"9\", expected u64",
                "\"9\"",
                "must be a whole number, 0 or more, not \"9\"",
            ),
            (
                "invalid type: string \", expected u64\", expected a boolean",
                "', expected u64'",
                "must be true or false, not ', expected u64'",
            ),
            (
                "invalid value: integer `-3`, expected u64",
                "-0x3",
                "must be a whole number, 0 or more, not -0x3",
            ),
            (
                "invalid type: map, expected a sequence",
                "[k]",
                "must be a list of tables: write [[k]] above each of them",
            ),
            (
                "invalid type: map, expected u64",
                "[[k]]",
                "must be one table: write [k] above it, and only once",
            ),
            (
                "invalid type: integer `1`, expected struct RawShell",
                "1",
                "must be a table, not 1",
            ),
        ] {
            assert_eq!(plain(message, "k", written), wanted);
        }
        let long = "x".repeat(500);
        let message = plain("invalid type: string \"x\", expected f64", "k", &long);
        assert!(message.len() < 120 && message.ends_with('…'), "{message}");
    }

    #[test]
    fn unknown_and_missing_words_are_told_with_the_known_ones() {
        for (message, wanted) in [
            (
                "unknown field `a`, expected one of `b`, `c`",
                "there is no key \"a\" here; the keys are: b, c",
            ),
            (
                "unknown variant `a`, expected `b` or `c`",
                "\"a\" is none of: b, c",
            ),
            ("missing field `a`", "the key \"a\" is missing"),
            ("duplicate key", "a stands there twice"),
            (
                "unclosed array,\nexpected `]`",
                "this is not TOML: unclosed array,; expected `]`",
            ),
        ] {
            assert_eq!(plain(message, "k", "a"), wanted);
        }
    }
}
