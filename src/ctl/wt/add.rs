//! `umwelt-ctl wt add`: a new worktree, its files, and the hook.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::fs::FileType;

use super::git::{Repository, args};
use super::hook::{self, Told};
use super::shadow::Shadow;
use super::{Site, WorktreeError};
use crate::cli;
use crate::error::Error;
use crate::gitdir;
use crate::workspace;

/// Names that are tried where none is given.
const MAX_NUMBER: u32 = 9999;

pub(super) fn run(
    site: &Site,
    repo: &Path,
    name: Option<&str>,
    branch: Option<String>,
) -> Result<ExitCode, Error> {
    let repository = Repository::find(repo)?;
    let dir = site
        .worktrees
        .dir
        .as_ref()
        .map_or_else(|| beside(&repository.top), |dir| below(dir, &repository));
    let name = match name {
        Some(name) => checked(name)?,
        None => free_name(&repository, &dir)?,
    };
    let path = dir.join(&name);
    let branch = branch.unwrap_or(name);
    prepare(site, &dir, &path)?;
    create(site, &repository, &path, &branch)?;
    let told = Told {
        repository: &repository,
        worktree: &path,
        branch: &branch,
    };
    hook::run("worktrees.post_add", &site.worktrees.post_add, &told).map_err(|error| {
        let mut error = error;
        if let WorktreeError::Hook { left, .. } = &mut error {
            *left = Some(path.clone());
        }
        error
    })?;
    Ok(cli::print(&format!("{}\n", path.display())))
}

/// `/p/repo.worktrees` beside `/p/repo`.
fn beside(top: &Path) -> PathBuf {
    let mut name = top.file_name().unwrap_or_default().to_owned();
    name.push(".worktrees");
    top.with_file_name(name)
}

/// In a place for all repositories, with the session id, as two of them may
/// have one name.
fn below(dir: &Path, repository: &Repository) -> PathBuf {
    let mut name = repository.top.file_name().unwrap_or_default().to_owned();
    if let Some(sid) = workspace::Workspace::sid_of_path(&repository.top) {
        name.push(format!("-{sid}"));
    }
    dir.join(name)
}

fn checked(name: &str) -> Result<String, WorktreeError> {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins_well && name.len() <= 64 && name.bytes().all(is_plain) {
        Ok(name.to_owned())
    } else {
        Err(WorktreeError::Name(name.to_owned()))
    }
}

/// `w1`, `w2`, …: the first that is neither a directory nor a branch.
fn free_name(repository: &Repository, dir: &Path) -> Result<String, WorktreeError> {
    let is_free =
        |name: &String| dir.join(name).symlink_metadata().is_err() && !has_branch(repository, name);
    let mut names = (1..=MAX_NUMBER).map(|number| format!("w{number}"));
    names.find(is_free).ok_or_else(|| WorktreeError::Place {
        path: dir.to_owned(),
        reason: "all of its names are taken".to_owned(),
    })
}

fn has_branch(repository: &Repository, name: &str) -> bool {
    let full = format!("refs/heads/{name}");
    repository.says(args!["show-ref", "--verify", "--quiet", &full])
}

/// The directory above, by its real path, and nothing in the way.
fn prepare(site: &Site, dir: &Path, path: &Path) -> Result<(), WorktreeError> {
    let refused = |reason: String| WorktreeError::Place {
        path: path.to_owned(),
        reason,
    };
    if let Some(reason) = workspace::refusal(path, &site.place.dirs) {
        return Err(refused(reason));
    }
    std::fs::create_dir_all(dir).map_err(|error| refused(error.to_string()))?;
    // What is made below must not end up where a link leads.
    let real = std::fs::canonicalize(dir).map_err(|error| refused(error.to_string()))?;
    if real != dir {
        return Err(refused(format!("{dir:?} leads to {real:?}")));
    }
    gitdir::check_ours(dir, FileType::Directory).map_err(refused)?;
    gitdir::one_line(path).map_err(refused)?;
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(refused(error.to_string())),
        Ok(_) => Err(refused("it exists already".to_owned())),
    }
}

fn create(
    site: &Site,
    repository: &Repository,
    path: &Path,
    branch: &str,
) -> Result<(), WorktreeError> {
    let checked = repository.call(args!["check-ref-format", "--branch", branch]);
    // Such as @{-1} stand for another name.
    if !checked.is_ok_and(|name| name == branch) {
        return Err(WorktreeError::Name(branch.to_owned()));
    }
    let is_new = !has_branch(repository, branch);
    let start = match is_new {
        true => "HEAD^{commit}".to_owned(),
        false => format!("refs/heads/{branch}^{{commit}}"),
    };
    let commit = repository.call(args!["rev-parse", "--verify", "--end-of-options", &start])?;
    match is_new {
        true => repository.call(args![
            "worktree",
            "add",
            "--quiet",
            "--no-checkout",
            "--no-track",
            "-b",
            branch,
            "--",
            path,
            &commit
        ])?,
        false => repository.call(args![
            "worktree",
            "add",
            "--quiet",
            "--no-checkout",
            "--",
            path,
            branch
        ])?,
    };
    let filled = fill(site, repository, path, &commit);
    if filled.is_err() {
        let undone = repository.call(args!["worktree", "remove", "--force", "--", path]);
        if let Err(error) = undone {
            log::warn!("{error}");
        }
    }
    filled
}

/// The files, and with them the index of the new worktree.
fn fill(
    site: &Site,
    repository: &Repository,
    path: &Path,
    commit: &str,
) -> Result<(), WorktreeError> {
    let refused = |reason| WorktreeError::NotAWorktree {
        path: path.to_owned(),
        reason,
    };
    let (admin, _) = gitdir::linked(path).map_err(refused)?;
    let index = admin.join("index");
    Shadow::create(site, repository, path, Some(commit), index)?.check_out()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for name in ["w1", "a.b-c_D", &"x".repeat(64)] {
            assert_eq!(checked(name).unwrap(), name);
        }
        for name in ["", ".", "..", "-x", "a/b", "a b", "é", &"x".repeat(65)] {
            assert!(checked(name).is_err(), "{name}");
        }
    }

    #[test]
    fn worktrees_lie_beside_their_repository() {
        assert_eq!(beside(Path::new("/p/repo")), Path::new("/p/repo.worktrees"));
        assert_eq!(
            beside(Path::new("/p/repo.git")),
            Path::new("/p/repo.git.worktrees")
        );
    }
}
