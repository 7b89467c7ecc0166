//! The files in which clients keep their settings -> those that name umwelt,
//! and the copies that `--merge` has kept. Nothing is changed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::dirs::Dirs;
use crate::install::files;

/// Stands between the name of a settings file and the number of a copy of it.
pub(super) const COPY: &str = ".before-umwelt-";

/// What settings with umwelt have in them: its command, or a tool as Claude
/// Code or opencode call it.
const WORDS: [&str; 3] = ["umwelt-mcp", "mcp__umwelt__", "umwelt_shell"];

const OF_HOME: [&str; 9] = [
    ".claude.json",
    ".claude/settings.json",
    ".claude/settings.local.json",
    ".claude/.mcp.json",
    ".codex/config.toml",
    ".cursor/mcp.json",
    ".gemini/settings.json",
    ".codeium/windsurf/mcp_config.json",
    ".mcp.json",
];
/// In `$XDG_CONFIG_HOME`.
const OF_CONFIG: [&str; 10] = [
    "opencode/opencode.jsonc",
    "opencode/opencode.json",
    "opencode/config.json",
    "goose/config.yaml",
    "Code/User/mcp.json",
    "Code/User/settings.json",
    "Code - Insiders/User/mcp.json",
    "VSCodium/User/mcp.json",
    "Claude/claude_desktop_config.json",
    "zed/settings.json",
];

/// The usual places, in a home and in its `$XDG_CONFIG_HOME`.
pub(super) fn all(home: &Path, config: &Path) -> impl Iterator<Item = PathBuf> {
    let of_home = OF_HOME.iter().map(|name| home.join(name));
    of_home.chain(OF_CONFIG.iter().map(|name| config.join(name)))
}

/// Settings that name umwelt, and copies of settings, in the usual places and
/// beside `merged`.
pub(in crate::install) fn left_behind(
    dirs: &Dirs,
    merged: &[PathBuf],
) -> (BTreeSet<PathBuf>, BTreeSet<PathBuf>) {
    let config = dirs.config.with_file_name("");
    // People link their settings: a copy is beside what a link leads to.
    let known: BTreeSet<PathBuf> = all(&dirs.home, &config)
        .chain(merged.iter().cloned())
        .map(|path| crate::places::real(&path))
        .collect();
    let copies = known.iter().flat_map(|path| copies(path)).collect();
    let settings = known.into_iter().filter(|path| names_umwelt(path));
    (settings.collect(), copies)
}

fn names_umwelt(path: &Path) -> bool {
    let Ok(Some(bytes)) = files::read(path) else {
        return false;
    };
    let text = String::from_utf8_lossy(&bytes);
    WORDS.iter().any(|word| text.contains(word))
}

fn copies(path: &Path) -> Vec<PathBuf> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Vec::new();
    };
    let mut begin = name.to_owned();
    begin.push(COPY);
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let is_copy = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        let number = name
            .as_encoded_bytes()
            .strip_prefix(begin.as_encoded_bytes());
        number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
    };
    entries.map(|entry| entry.path()).filter(is_copy).collect()
}
