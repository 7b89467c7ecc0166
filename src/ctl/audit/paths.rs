//! Paths of one host -> counts for their first two directories, or the first
//! alone where there are many. Pure.

use std::collections::HashMap;

use serde::Serialize;

use crate::ctl::audit::record::cut;
use crate::ctl::audit::tally::Tally;

/// Most prefixes of one host that are kept apart.
const MAX_PREFIXES: usize = 200;
/// Longest prefix, in characters.
const MAX_LENGTH: usize = 120;

#[derive(Debug, Default)]
pub(super) struct Paths {
    prefixes: HashMap<String, Tally>,
    /// Those for which there was no room.
    rest: Tally,
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct PathRow {
    pub(super) path: String,
    #[serde(flatten)]
    pub(super) tally: Tally,
}

impl Paths {
    /// Takes from `room`, which all hosts share.
    pub(super) fn add(&mut self, path: &str, one: &Tally, room: &mut usize) {
        let mut key = two(path);
        if !self.prefixes.contains_key(&key) && self.prefixes.len() >= MAX_PREFIXES / 2 {
            key = first(&key);
        }
        if let Some(tally) = self.prefixes.get_mut(&key) {
            tally.add(one);
        } else if self.prefixes.len() < MAX_PREFIXES && *room > 0 {
            *room -= 1;
            self.prefixes.insert(key, one.clone());
        } else {
            self.rest.add(one);
        }
    }

    /// The busiest come first. What is beyond `most` is summed up.
    pub(super) fn rows(&self, most: usize) -> (Vec<PathRow>, Tally) {
        let mut prefixes = self.prefixes.clone();
        while prefixes.len() > most && fold(&mut prefixes) {}
        let mut rows: Vec<PathRow> = prefixes
            .into_iter()
            .map(|(path, tally)| PathRow { path, tally })
            .collect();
        rows.sort_by(|a, b| {
            let by_count = b.tally.attempts().cmp(&a.tally.attempts());
            by_count.then_with(|| a.path.cmp(&b.path))
        });
        let mut rest = self.rest.clone();
        for row in rows.drain(most.min(rows.len())..) {
            rest.add(&row.tally);
        }
        (rows, rest)
    }
}

/// Puts all below the first directory that holds most together; false where
/// there is none with two.
fn fold(prefixes: &mut HashMap<String, Tally>) -> bool {
    let mut sizes: HashMap<String, usize> = HashMap::new();
    for key in prefixes.keys() {
        *sizes.entry(first(key)).or_default() += 1;
    }
    let largest = sizes
        .into_iter()
        .filter(|(_, size)| *size > 1)
        .max_by(|a, b| a.1.cmp(&b.1).then_with(|| b.0.cmp(&a.0)));
    let Some((directory, _)) = largest else {
        return false;
    };
    let mut sum = Tally::default();
    prefixes.retain(|key, tally| {
        let is_below = first(key) == directory;
        if is_below {
            sum.add(tally);
        }
        !is_below
    });
    prefixes.insert(directory, sum);
    true
}

/// `/a/b/*` for what lies deeper, and else the path.
fn two(path: &str) -> String {
    let slashes = path.match_indices('/').map(|(at, _)| at);
    match slashes.skip(1).nth(1) {
        Some(third) => format!(
            "{}/*",
            cut(path.get(..third).unwrap_or_default(), MAX_LENGTH)
        ),
        None => cut(path, MAX_LENGTH),
    }
}

/// `/a/*` for what lies below it, and else the prefix.
fn first(prefix: &str) -> String {
    match prefix.match_indices('/').nth(1) {
        Some((second, _)) => format!("{}/*", prefix.get(..second).unwrap_or_default()),
        None => prefix.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one() -> Tally {
        Tally {
            allowed: 1,
            ..Tally::default()
        }
    }

    fn paths<'a>(given: impl IntoIterator<Item = &'a str>) -> Paths {
        let mut paths = Paths::default();
        let mut room = 1000;
        for path in given {
            paths.add(path, &one(), &mut room);
        }
        paths
    }

    fn shown(paths: &Paths, most: usize) -> Vec<(String, u64)> {
        let (rows, rest) = paths.rows(most);
        let mut shown: Vec<(String, u64)> = rows
            .into_iter()
            .map(|row| (row.path, row.tally.attempts()))
            .collect();
        if rest.attempts() > 0 {
            shown.push(("rest".to_owned(), rest.attempts()));
        }
        shown
    }

    #[test]
    fn prefixes_have_two_directories_at_most() {
        for (path, prefix, directory) in [
            ("/", "/", "/"),
            ("/a", "/a", "/a"),
            ("/a/", "/a/", "/a/*"),
            ("/a/b", "/a/b", "/a/*"),
            ("/a/b/", "/a/b/*", "/a/*"),
            ("/a/b/c/d", "/a/b/*", "/a/*"),
            ("", "", ""),
            ("x", "x", "x"),
        ] {
            assert_eq!(
                (two(path).as_str(), first(&two(path)).as_str()),
                (prefix, directory)
            );
        }
        assert!(two(&"/é".repeat(9999)).chars().count() < 10);
        assert!(two(&"é".repeat(9999)).chars().count() <= MAX_LENGTH + 1);
    }

    #[test]
    fn many_below_one_directory_are_put_together() {
        let paths = paths(["/a/1/x", "/a/2/x", "/a/2/y", "/a/3", "/b/1", "/c", "/c"]);
        assert_eq!(shown(&paths, 9).len(), 6 - 1);
        let folded = [("/a/*", 4), ("/c", 2), ("/b/1", 1)];
        assert_eq!(
            shown(&paths, 3),
            folded.map(|(path, count)| (path.to_owned(), count))
        );
        assert_eq!(shown(&paths, 1)[1], ("rest".to_owned(), 3));
    }

    #[test]
    fn a_flood_of_paths_is_bounded_and_counted() {
        let flood: Vec<String> = (0..5000).map(|n| format!("/d{}/{n}/x", n % 700)).collect();
        let paths = paths(flood.iter().map(String::as_str));
        assert_eq!(paths.prefixes.len(), MAX_PREFIXES);
        let sum: u64 = shown(&paths, 10).iter().map(|(_, count)| count).sum();
        assert_eq!(sum, 5000);
    }
}
