//! `[worktrees]` of the base configuration: git worktrees, inside and as
//! `umwelt-ctl wt` makes them.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use crate::config::ConfigError;
use crate::config::base::Reader;
use crate::config::value::expand_path;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Worktrees {
    pub(crate) common: CommonAccess,
    /// Where new worktrees are made; beside their repository, if not said.
    pub(crate) dir: Option<PathBuf>,
    /// Program and arguments, run on the host in the worktree; empty: none.
    pub(crate) post_add: Vec<String>,
    pub(crate) pre_rm: Vec<String>,
}

/// How much of the common directory of a worktree git may change inside.
/// Whoever can create a file at its top can have git on the host read another
/// configuration (`commondir`), and no mount keeps a name from being created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum CommonAccess {
    /// Objects, refs and their logs: enough to commit.
    #[default]
    Parts,
    /// All but what git executes: enough for gc and for deleting packed refs.
    Whole,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawWorktrees {
    common: Option<Spanned<String>>,
    dir: Option<Spanned<String>>,
    post_add: Option<Spanned<Vec<String>>>,
    pre_rm: Option<Spanned<Vec<String>>>,
}

pub(super) fn read(
    reader: &Reader<'_>,
    raw: RawWorktrees,
    base: Option<&Worktrees>,
) -> Result<Worktrees, ConfigError> {
    let base = base.cloned().unwrap_or_default();
    let command = |key, raw: Option<Spanned<Vec<String>>>, base| match raw {
        Some(raw) => reader.check(key, raw, |argv| check_command(argv, reader.home)),
        None => Ok(base),
    };
    Ok(Worktrees {
        common: match raw.common {
            Some(raw) => reader.check("worktrees.common", raw, |text| check_common(&text))?,
            None => base.common,
        },
        dir: match raw.dir {
            Some(raw) => {
                let path = |text: String| expand_path(&text, reader.home);
                Some(reader.check("worktrees.dir", raw, path)?)
            }
            None => base.dir,
        },
        post_add: command("worktrees.post_add", raw.post_add, base.post_add)?,
        pre_rm: command("worktrees.pre_rm", raw.pre_rm, base.pre_rm)?,
    })
}

fn check_common(text: &str) -> Result<CommonAccess, String> {
    match text {
        "ro" => Ok(CommonAccess::Parts),
        "rw" => Ok(CommonAccess::Whole),
        _ => Err(format!("{text:?} is neither \"ro\" nor \"rw\"")),
    }
}

/// A program by its bare name or by a whole path. It is run in the worktree,
/// where a path relative to that would name a file of the project.
fn check_command(mut argv: Vec<String>, home: &Path) -> Result<Vec<String>, String> {
    if argv.iter().any(|word| word.contains('\0')) {
        return Err("a command cannot contain NUL".to_owned());
    }
    let Some(program) = argv.first_mut() else {
        return Ok(argv);
    };
    if program.is_empty() {
        return Err("the first word must name a program".to_owned());
    }
    if program.contains('/') || program.starts_with('$') {
        let path = expand_path(program, home)?;
        *program = path.to_string_lossy().into_owned();
    }
    Ok(argv)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(words: &[&str]) -> Result<Vec<String>, String> {
        let argv = words.iter().map(|word| (*word).to_owned()).collect();
        check_command(argv, Path::new("/home/u"))
    }

    #[test]
    fn programs_have_a_bare_name_or_a_whole_path() {
        for words in [&[][..], &["make", "./x"], &["/bin/sh", "-c", ""]] {
            assert_eq!(command(words).unwrap(), words);
        }
        assert_eq!(command(&["$HOME/bin/x"]).unwrap(), ["/home/u/bin/x"]);
        for words in [&[""][..], &["./setup"], &["bin/x"], &["/a/../b"], &["a\0"]] {
            assert!(command(words).is_err(), "{words:?}");
        }
    }
}
