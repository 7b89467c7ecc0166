//! `umwelt-ctl wt list`: the worktrees of a repository, and where a sandbox
//! runs.

use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

use super::git::{Repository, args};
use super::{Site, WorktreeError};
use crate::cli;
use crate::ctl::output::{self, Cell, Colour};
use crate::ctl::peer::{self, Presence};
use crate::error::Error;

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Row {
    path: String,
    /// None where a commit is checked out, or nothing.
    branch: Option<String>,
    commit: Option<String>,
    /// A sandbox runs there.
    running: bool,
    /// `bare`, `locked` or `prunable`.
    note: Option<String>,
}

pub(super) fn run(site: &Site, repo: &Path, json: bool) -> Result<ExitCode, Error> {
    let repository = Repository::find(repo)?;
    let mut rows = parse(&list(&repository)?);
    for row in &mut rows {
        let target = site.place.target(Some(row.path.as_ref()))?;
        let presence = peer::presence(&target.names.socket)?;
        row.running = matches!(presence, Presence::Listening(_));
    }
    if json {
        return Ok(cli::print(&output::render_json(&rows)?));
    }
    let wants_colour = output::wants_colour();
    let rows: Vec<[Cell; 5]> = rows.iter().map(|row| cells(row, wants_colour)).collect();
    let heading = ["BRANCH", "COMMIT", "SANDBOX", "NOTE", "PATH"];
    Ok(cli::print(&output::render_table(heading, &rows)))
}

fn list(repository: &Repository) -> Result<String, WorktreeError> {
    repository.call(args!["worktree", "list", "--porcelain", "-z"])
}

fn cells(row: &Row, wants_colour: bool) -> [Cell; 5] {
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let commit = or_dash(&row.commit).chars().take(10).collect::<String>();
    let running = match row.running {
        true => Cell::coloured("running", wants_colour.then_some(Colour::Green)),
        false => Cell::plain("-"),
    };
    [
        Cell::plain(or_dash(&row.branch)),
        Cell::plain(commit),
        running,
        Cell::plain(or_dash(&row.note)),
        Cell::plain(&row.path),
    ]
}

/// `worktree PATH NUL HEAD ID NUL branch REF NUL NUL` each.
fn parse(list: &str) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for line in list.split('\0') {
        let (key, value) = line.split_once(' ').unwrap_or((line, ""));
        if key == "worktree" {
            rows.push(Row {
                path: value.to_owned(),
                ..Row::default()
            });
        }
        let Some(row) = rows.last_mut() else { continue };
        match key {
            "HEAD" if value.bytes().any(|b| b != b'0') => row.commit = Some(value.to_owned()),
            "branch" => {
                let branch = value.strip_prefix("refs/heads/").unwrap_or(value);
                row.branch = Some(branch.to_owned());
            }
            "bare" | "locked" | "prunable" => row.note = Some(key.to_owned()),
            _ => {}
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_git_is_read() {
        let rows = parse(
            "worktree /r\0HEAD 12\0branch refs/heads/main\0\0worktree /w x\0HEAD 34\0detached\0locked by me\0\0\
             worktree /b\0bare\0\0",
        );
        let row =
            |path: &str, branch: Option<&str>, commit: Option<&str>, note: Option<&str>| Row {
                path: path.to_owned(),
                branch: branch.map(str::to_owned),
                commit: commit.map(str::to_owned),
                running: false,
                note: note.map(str::to_owned),
            };
        assert_eq!(
            rows,
            [
                row("/r", Some("main"), Some("12"), None),
                row("/w x", None, Some("34"), Some("locked")),
                row("/b", None, None, Some("bare")),
            ]
        );
    }
}
