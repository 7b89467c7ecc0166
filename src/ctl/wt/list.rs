//! `umwelt-ctl wt list`: the worktrees of a repository, and where a sandbox
//! runs.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

use super::git::{Head, Repository, args};
use super::shadow::Shadow;
use super::{Site, WorktreeError};
use crate::cli;
use crate::ctl::output::{self, Cell, Colour};
use crate::ctl::peer::{self, Presence};
use crate::error::Error;
use crate::gitdir::Directory;
use crate::trust;

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Row {
    /// By which `rm` and `accept` find it; the repository itself has none.
    name: Option<String>,
    path: String,
    /// None where a commit is checked out, or nothing.
    branch: Option<String>,
    commit: Option<String>,
    /// A sandbox runs there.
    running: bool,
    /// `bare`, `locked`, `gone` (the directory), `unreadable`, or `not accepted`: git
    /// does not work in a sandbox there.
    note: Option<&'static str>,
}

pub(super) fn run(site: &Site, repository: &Repository, json: bool) -> Result<ExitCode, Error> {
    let branches = branches(&Shadow::create(site, repository)?)?;
    let mut rows = vec![main_row(repository, &branches)];
    for admin in repository.worktrees() {
        let is_accepted = |top: &Path| {
            let common = repository.common.path();
            trust::repository::is_accepted(&site.place.dirs, top, common)
        };
        rows.push(row(&admin, &branches, is_accepted));
    }
    for row in &mut rows {
        let target = site.place.target(Some(row.path.as_ref()))?;
        let presence = peer::presence(&target.names.socket)?;
        row.running = matches!(presence, Presence::Listening(_));
    }
    if json {
        return Ok(cli::print(&output::render_json(&rows)?));
    }
    let wants_colour = output::wants_colour();
    let rows: Vec<[Cell; 6]> = rows.iter().map(|row| cells(row, wants_colour)).collect();
    let heading = ["NAME", "BRANCH", "COMMIT", "SANDBOX", "NOTE", "PATH"];
    Ok(cli::print(&output::render_table(heading, &rows)))
}

/// Branches with their commits.
fn branches(shadow: &Shadow) -> Result<BTreeMap<String, String>, WorktreeError> {
    let format = "--format=%(objectname) %(refname)";
    let lines = shadow.call(args!["for-each-ref", format, "refs/heads"])?;
    let pairs = lines.lines().filter_map(|line| {
        let (commit, name) = line.split_once(" refs/heads/")?;
        Some((name.to_owned(), commit.to_owned()))
    });
    Ok(pairs.collect())
}

fn main_row(repository: &Repository, branches: &BTreeMap<String, String>) -> Row {
    let is_bare = repository.top == repository.common.path();
    let row = Row {
        path: repository.top.to_string_lossy().into_owned(),
        note: is_bare.then_some("bare"),
        ..Row::default()
    };
    match Head::load(&repository.common) {
        Ok(head) if !is_bare => with_head(row, head, branches),
        _ => row,
    }
}

fn row(
    admin: &Directory,
    branches: &BTreeMap<String, String>,
    is_accepted: impl Fn(&Path) -> bool,
) -> Row {
    let place = admin.read_pointer("gitdir").ok();
    let top = place.as_deref().and_then(Path::parent);
    let is_locked = || admin.has("locked") != Ok(false);
    let note = match top {
        None => Some("unreadable"),
        Some(top) if top.symlink_metadata().is_err() => Some("gone"),
        _ if is_locked() => Some("locked"),
        Some(top) if !is_accepted(top) => Some("not accepted"),
        _ => None,
    };
    let row = Row {
        name: admin
            .path()
            .file_name()
            .map(|name| name.to_string_lossy().into_owned()),
        path: top
            .unwrap_or_else(|| admin.path())
            .to_string_lossy()
            .into_owned(),
        note,
        ..Row::default()
    };
    match Head::load(admin) {
        Ok(head) => with_head(row, head, branches),
        Err(_) => row,
    }
}

fn with_head(row: Row, head: Head, branches: &BTreeMap<String, String>) -> Row {
    match head {
        Head::Branch(branch) => Row {
            commit: branches.get(&branch).cloned(),
            branch: Some(branch),
            ..row
        },
        Head::Commit(commit) => Row {
            commit: Some(commit),
            ..row
        },
    }
}

fn cells(row: &Row, wants_colour: bool) -> [Cell; 6] {
    let commit = row.commit.as_deref().unwrap_or("-");
    let commit: String = commit.chars().take(10).collect();
    let running = match row.running {
        true => Cell::coloured("running", wants_colour.then_some(Colour::Green)),
        false => Cell::plain("-"),
    };
    [
        Cell::plain(row.name.as_deref().unwrap_or("-")),
        Cell::plain(row.branch.as_deref().unwrap_or("-")),
        Cell::plain(commit),
        running,
        Cell::plain(row.note.unwrap_or("-")),
        Cell::plain(&row.path),
    ]
}
