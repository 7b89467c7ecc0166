//! What `umwelt-install remove` leaves -> told: files that the user or an agent
//! wrote, counted by kind and folder, and settings of clients that name the
//! program which is gone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::install::layout::Layout;
use crate::install::record::Record;
use crate::install::{client, files, say};
use crate::text::shell_word;

/// The directories that are umwelt's alone.
pub(super) fn own_dirs(layout: &Layout) -> [&PathBuf; 3] {
    [&layout.dirs.config, &layout.dirs.data, &layout.dirs.state]
}

/// What is left there, and the command that removes it.
pub(super) fn tell(layout: &Layout) {
    let mut dirs = Vec::new();
    for dir in own_dirs(layout) {
        if files::remove_dir_if_empty(dir) {
            continue;
        }
        for ((folder, kind), paths) in by_kind(layout, entries(dir)) {
            match paths.as_slice() {
                [only] => say("kept", &only.display().to_string()),
                _ => say(
                    "kept",
                    &format!("{} {kind} in {}", paths.len(), folder.display()),
                ),
            }
        }
        if dir.exists() {
            dirs.push(shell_word(&dir.to_string_lossy()));
        }
    }
    if !dirs.is_empty() {
        say("", &format!("to remove that too: rm -r {}", dirs.join(" ")));
    }
}

type ByKind = BTreeMap<(PathBuf, &'static str), Vec<PathBuf>>;

fn by_kind(layout: &Layout, paths: Vec<PathBuf>) -> ByKind {
    let (data, trust) = (&layout.dirs.data, layout.dirs.state.join("trust"));
    let mut found = ByKind::new();
    for path in paths {
        let folder = path.parent().unwrap_or(data);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let (folder, kind) = if path.starts_with(&layout.egress) {
            (&*layout.egress, "files of audits")
        } else if path.starts_with(&trust) && name.ends_with(".lock") {
            (&*trust, "empty files for locks")
        } else if path.starts_with(&trust) {
            (&*trust, "records of trust")
        } else if folder == data && name.starts_with("journal-") {
            (&**data, "journals")
        } else {
            (folder, "files")
        };
        let key = (folder.to_owned(), kind);
        found.entry(key).or_default().push(path);
    }
    found
}

/// The files in a directory of ours, and in those in it.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() && !path.is_symlink() {
            true => found.extend(entries(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

/// Settings of clients are theirs: they are named, and stay as they are.
pub(super) fn tell_clients(layout: &Layout, record: Option<&Record>) {
    let merged = record.map(|record| &*record.merged).unwrap_or_default();
    let (settings, copies) = client::left_behind(&layout.dirs, merged);
    for path in &settings {
        let path = path.display();
        say(
            "client",
            &format!("names umwelt still, to be taken out by hand: {path}"),
        );
    }
    for path in &copies {
        let path = path.display();
        say(
            "copy",
            &format!("of settings as they were before --merge: {path}"),
        );
    }
    if !copies.is_empty() {
        let copies = copies
            .iter()
            .map(|path| shell_word(&path.to_string_lossy()));
        let copies: Vec<String> = copies.collect();
        say(
            "",
            &format!("to remove these copies: rm {}", copies.join(" ")),
        );
    }
}
