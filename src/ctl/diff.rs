//! Two texts -> the lines in which they differ, in the unified form, safe to
//! show. Pure.

use crate::text::printable;

/// Lines that are shown around a change.
const CONTEXT: usize = 3;
/// The table of the comparison holds at most as many numbers. Beyond it all
/// old lines are shown as gone and all new ones as added: longer, not wrong.
const MAX_TABLE: usize = 4 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Same,
    Gone,
    Added,
}

type Line<'a> = (Kind, &'a str);

/// Empty where the texts are the same.
pub(crate) fn render(old: &str, new: &str) -> String {
    let lines = compare(
        &old.split_inclusive('\n').collect::<Vec<_>>(),
        &new.split_inclusive('\n').collect::<Vec<_>>(),
    );
    let mut out = String::new();
    let mut start = 0;
    while let Some((from, to)) = hunk(&lines, start) {
        push_hunk(&mut out, &lines, from, to);
        start = to;
    }
    out
}

fn compare<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<Line<'a>> {
    let same = |pair: &(&&str, &&str)| pair.0 == pair.1;
    let head = old.iter().zip(new).take_while(same).count();
    let (start, old) = old.split_at(head);
    let new = new.get(head..).unwrap_or_default();
    let reversed = old.iter().rev().zip(new.iter().rev());
    let tail = reversed.take_while(same).count();
    let (old, end) = old.split_at(old.len() - tail);
    let new = new.get(..new.len() - tail).unwrap_or_default();
    let mut lines: Vec<Line<'a>> = start.iter().map(|line| (Kind::Same, *line)).collect();
    lines.extend(middle(old, new));
    lines.extend(end.iter().map(|line| (Kind::Same, *line)));
    lines
}

/// By the longest common subsequence.
fn middle<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<Line<'a>> {
    let width = new.len() + 1;
    let table = match width.checked_mul(old.len() + 1) {
        Some(size) if size <= MAX_TABLE => common(old, new),
        _ => Vec::new(),
    };
    let at = |i: usize, j: usize| table.get(i * width + j).copied().unwrap_or(0);
    let (mut i, mut j) = (0, 0);
    let mut lines = Vec::new();
    loop {
        match (old.get(i), new.get(j)) {
            (Some(a), Some(b)) if a == b && !table.is_empty() => {
                lines.push((Kind::Same, *a));
                (i, j) = (i + 1, j + 1);
            }
            (Some(a), b) if b.is_none() || at(i + 1, j) >= at(i, j + 1) => {
                lines.push((Kind::Gone, *a));
                i += 1;
            }
            (_, Some(b)) => {
                lines.push((Kind::Added, *b));
                j += 1;
            }
            (_, None) => return lines,
        }
    }
}

/// How many lines `old[i..]` and `new[j..]` have in common, row by row.
fn common(old: &[&str], new: &[&str]) -> Vec<u32> {
    let width = new.len() + 1;
    let mut table = vec![0; width * (old.len() + 1)];
    for (i, a) in old.iter().enumerate().rev() {
        for (j, b) in new.iter().enumerate().rev() {
            let at = |i: usize, j: usize| table.get(i * width + j).copied().unwrap_or(0);
            let value = match a == b {
                true => at(i + 1, j + 1) + 1,
                false => at(i + 1, j).max(at(i, j + 1)),
            };
            if let Some(cell) = table.get_mut(i * width + j) {
                *cell = value;
            }
        }
    }
    table
}

/// The next range of lines to show: changes that are near each other, with
/// what is around them.
fn hunk(lines: &[Line<'_>], start: usize) -> Option<(usize, usize)> {
    let mut changes = lines.iter().enumerate().skip(start);
    let first = changes.find(|(_, line)| line.0 != Kind::Same)?.0;
    let mut last = first;
    for (at, line) in changes {
        if at > last + 2 * CONTEXT {
            break;
        }
        if line.0 != Kind::Same {
            last = at;
        }
    }
    let from = first.saturating_sub(CONTEXT).max(start);
    Some((from, (last + CONTEXT + 1).min(lines.len())))
}

fn push_hunk(out: &mut String, lines: &[Line<'_>], from: usize, to: usize) {
    let before = lines.get(..from).unwrap_or_default();
    let hunk = lines.get(from..to).unwrap_or_default();
    let count = |lines: &[Line<'_>], not: Kind| lines.iter().filter(|line| line.0 != not).count();
    let range = |not: Kind| {
        let (skipped, len) = (count(before, not), count(hunk, not));
        // As diff(1) has it, an empty range stands at the line before.
        format!("{},{len}", skipped + usize::from(len > 0))
    };
    out.push_str(&format!(
        "@@ -{} +{} @@\n",
        range(Kind::Added),
        range(Kind::Gone)
    ));
    for (kind, line) in hunk {
        out.push(match kind {
            Kind::Same => ' ',
            Kind::Gone => '-',
            Kind::Added => '+',
        });
        let text = line.strip_suffix('\n');
        out.push_str(&printable(text.unwrap_or(line)));
        out.push('\n');
        if text.is_none() {
            out.push_str("\\ no newline at the end\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn numbers(range: std::ops::Range<u32>) -> String {
        range.map(|n| format!("{n}\n")).collect()
    }

    #[test]
    fn changes_are_shown_with_what_is_around_them() {
        let old = numbers(0..30);
        let new = old.replace("\n10\n", "\nten\n").replace("\n25\n", "\n");
        assert_eq!(
            render(&old, &new),
            "@@ -8,7 +8,7 @@\n 7\n 8\n 9\n-10\n+ten\n 11\n 12\n 13\n\
             @@ -23,7 +23,6 @@\n 22\n 23\n 24\n-25\n 26\n 27\n 28\n"
        );
        assert_eq!(render(&old, &old), "");
    }

    #[test]
    fn a_text_from_nothing_and_to_nothing() {
        assert_eq!(render("", "a\n"), "@@ -0,0 +1,1 @@\n+a\n");
        assert_eq!(render("a\n", ""), "@@ -1,1 +0,0 @@\n-a\n");
        assert_eq!(
            render("a", "a\n"),
            "@@ -1,1 +1,1 @@\n-a\n\\ no newline at the end\n+a\n"
        );
    }

    #[test]
    fn what_could_deceive_a_reader_is_escaped() {
        let shown = render("", "a\r\n\x1b[2Kb\u{202e}\t\u{9b}\n");
        assert_eq!(
            shown,
            "@@ -0,0 +1,2 @@\n+a\\r\n+\\x1b[2Kb\\u{202e}\\t\\x9b\n"
        );
    }

    #[test]
    fn huge_texts_are_compared_in_bounded_memory() {
        let shown = render(&"a\nb\n".repeat(60_000), &"b\nc\n".repeat(60_000));
        assert_eq!(shown.lines().count(), 240_001);
    }

    proptest! {
        #[test]
        fn old_and_new_can_be_read_from_the_whole(
            old in "([abc]\n){0,12}[ab]?", new in "([abc]\n){0,12}[ab]?",
        ) {
            let split = |text| str::split_inclusive(text, '\n').collect::<Vec<_>>();
            let lines = compare(&split(&old), &split(&new));
            let without = |not: Kind| -> String {
                lines.iter().filter(|line| line.0 != not).map(|line| line.1).collect()
            };
            prop_assert_eq!(without(Kind::Added), old.clone());
            prop_assert_eq!(without(Kind::Gone), new.clone());
            // No hunk is left out, and none is there twice.
            let shown = render(&old, &new);
            let marked = |mark: char| shown.lines().filter(|line| line.starts_with(mark)).count();
            let count = |kind: Kind| lines.iter().filter(|line| line.0 == kind).count();
            prop_assert_eq!(marked('-'), count(Kind::Gone));
            prop_assert_eq!(marked('+'), count(Kind::Added));
        }
    }
}
