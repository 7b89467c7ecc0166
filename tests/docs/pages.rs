//! Markdown -> the parts of it that tests compare.

/// The cells of a row of a table; none for another line.
pub(crate) fn cells(line: &str) -> Vec<&str> {
    let inner = line
        .strip_prefix("| ")
        .and_then(|rest| rest.strip_suffix(" |"));
    inner.map_or_else(Vec::new, |inner| {
        inner.split(" | ").map(str::trim).collect()
    })
}

/// What stands between backquotes.
pub(crate) fn code_spans(text: &str) -> Vec<String> {
    text.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}
