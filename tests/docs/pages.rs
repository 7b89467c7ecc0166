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

/// What is outside of blocks of code.
pub(crate) fn prose(page: &str) -> String {
    let outside = page.split("\n```").step_by(2);
    outside.collect::<Vec<_>>().join("\n")
}

/// What stands between backquotes.
pub(crate) fn code_spans(text: &str) -> Vec<String> {
    text.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// The rows of the tables that have these heads.
pub(crate) fn rows<'a, const N: usize>(page: &'a str, heads: &[&str; N]) -> Vec<[&'a str; N]> {
    let mut is_one = false;
    let mut rows = Vec::new();
    for line in page.lines() {
        let cells = cells(line);
        if cells.is_empty() {
            is_one = false;
        } else if cells == heads {
            is_one = true;
        } else if is_one && !cells.iter().all(|cell| cell.starts_with("---")) {
            let row = cells.try_into();
            rows.push(row.unwrap_or_else(|_| panic!("not {N} cells: {line}")));
        }
    }
    rows
}
