//! The text of a file -> the same text with one table of a list (`[[name]]`)
//! more or less. Pure. Every other byte stays.

/// With a table at the end, set off by an empty line.
pub(super) fn append(text: &str, lines: &[String]) -> String {
    let end = line_end(text);
    let mut out = text.to_owned();
    if !out.is_empty() && !out.ends_with('\n') {
        out.push_str(end);
    }
    if !out.is_empty() {
        out.push_str(end);
    }
    for line in lines {
        out.push_str(line);
        out.push_str(end);
    }
    out
}

/// Without the lines from the one of `start` to the one of `end`, and without
/// the empty line that has set them off.
pub(super) fn cut(text: &str, start: usize, end: usize) -> String {
    let before = text.get(..start).unwrap_or_default();
    // Only blanks can stand before a header on its line.
    let before = before.trim_end_matches([' ', '\t']);
    let after = text.get(end_of_line(text, end)..).unwrap_or_default();
    let is_followed = !(after.is_empty() || after.starts_with(['\n', '\r']));
    let blank = ["\r\n", "\n"]
        .into_iter()
        .filter(|_| !is_followed)
        .filter_map(|blank| before.strip_suffix(blank))
        .find(|rest| rest.ends_with('\n'));
    format!("{}{after}", blank.unwrap_or(before))
}

/// Behind the line end at or after `at`, or the end of the text.
pub(super) fn end_of_line(text: &str, at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    rest.find('\n').map_or(text.len(), |len| at + len + 1)
}

pub(super) fn line_end(text: &str) -> &'static str {
    if text.contains("\r\n") { "\r\n" } else { "\n" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_appended_and_cut_leaves_no_trace() {
        let lines = ["[[a]]".to_owned(), "b = 1".to_owned()];
        for text in [
            "",
            "x = 1\n",
            "# c\r\nx = 1\r\n",
            "x = 1\n\n\n",
            "\u{feff}# c\n",
        ] {
            let more = append(text, &lines);
            let start = more.find("[[a]]").unwrap();
            assert_eq!(cut(&more, start, more.len() - 1), text, "{text:?}");
        }
        assert_eq!(append("x = 1", &lines), "x = 1\n\n[[a]]\nb = 1\n");
    }

    #[test]
    fn lines_around_a_table_stay() {
        let text = "# c\n\n  [[a]] # d\nb = 1 # e\n# f\n\n[[a]]\nb = 2\n";
        let start = text.find("[[a]]").unwrap();
        let end = text.find("1 # e").unwrap() + 1;
        assert_eq!(cut(text, start, end), "# c\n\n# f\n\n[[a]]\nb = 2\n");
    }
}
