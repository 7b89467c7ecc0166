//! `umwelt-ctl wt add`: a new worktree, its files, and the hook.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::fs::FileType;

use super::git::{Head, Repository, args};
use super::hook::{self, Told};
use super::shadow::Shadow;
use super::{Site, WorktreeError};
use crate::cli;
use crate::error::Error;
use crate::gitdir;
use crate::trust::repository;
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
    let shadow = Shadow::create(site, &repository)?;
    let name = match name {
        Some(name) => checked(name)?,
        None => free_name(&shadow, &dir)?,
    };
    let path = dir.join(&name);
    let branch = branch.unwrap_or(name);
    check_branch(&shadow, &repository, &branch)?;
    let start = start(&shadow, &repository, &branch)?;
    prepare(site, &dir, &path)?;
    if start.is_new {
        make_branch(&shadow, &repository, &branch, &start.commit)?;
    }
    let admin = link(&repository, &path, &branch)?;
    let index = admin.join("index");
    let filled = shadow
        .files(&path, Some(&start.commit), index)
        .and_then(|files| files.check_out());
    if let Err(error) = filled {
        for dir in [&path, &admin] {
            drop(std::fs::remove_dir_all(dir));
        }
        return Err(error.into());
    }
    drop(shadow);
    repository::accept(&site.place.dirs, &path, &repository.common)?;
    call_hook(site, &repository, &path, &branch)?;
    Ok(cli::print(&format!("{}\n", path.display())))
}

fn call_hook(
    site: &Site,
    repository: &Repository,
    path: &Path,
    branch: &str,
) -> Result<(), WorktreeError> {
    let told = Told {
        repository,
        worktree: path,
        branch,
    };
    let ran = hook::run("worktrees.post_add", &site.worktrees.post_add, &told);
    ran.map_err(|mut error| {
        if let WorktreeError::Hook { left, .. } = &mut error {
            *left = Some(path.to_owned());
        }
        error
    })
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
fn free_name(shadow: &Shadow, dir: &Path) -> Result<String, WorktreeError> {
    let is_free = |name: &String| {
        dir.join(name).symlink_metadata().is_err() && commit_of(shadow, name).is_none()
    };
    let mut names = (1..=MAX_NUMBER).map(|number| format!("w{number}"));
    names.find(is_free).ok_or_else(|| WorktreeError::Place {
        path: dir.to_owned(),
        reason: "all of its names are taken".to_owned(),
    })
}

fn commit_of(shadow: &Shadow, branch: &str) -> Option<String> {
    let revision = Head::Branch(branch.to_owned()).revision();
    shadow
        .call(args!["rev-parse", "--verify", "--quiet", &revision])
        .ok()
}

/// A name that git takes, of a branch that no other worktree works on.
fn check_branch(
    shadow: &Shadow,
    repository: &Repository,
    branch: &str,
) -> Result<(), WorktreeError> {
    let checked = shadow.call(args!["check-ref-format", "--branch", branch]);
    // Such as @{-1} stand for another name.
    if !checked.is_ok_and(|name| name == branch) {
        return Err(WorktreeError::Name(branch.to_owned()));
    }
    let others = repository.worktrees();
    let mut all = std::iter::once(&repository.common).chain(&others);
    let is_taken = |dir: &&PathBuf| Head::load(dir).is_ok_and(|head| head.branch() == Some(branch));
    match all.find(is_taken) {
        Some(dir) => Err(WorktreeError::Taken {
            branch: branch.to_owned(),
            git_dir: dir.clone(),
        }),
        None => Ok(()),
    }
}

/// What is checked out at first.
struct Start {
    commit: String,
    /// The branch has to be made.
    is_new: bool,
}

/// A branch that does not exist is made at what is checked out in the
/// repository.
fn start(shadow: &Shadow, repository: &Repository, branch: &str) -> Result<Start, WorktreeError> {
    if let Some(commit) = commit_of(shadow, branch) {
        let is_new = false;
        return Ok(Start { commit, is_new });
    }
    let refused = |reason| WorktreeError::NotARepository {
        path: repository.top.clone(),
        reason,
    };
    let head = Head::load(&repository.git_dir).map_err(refused)?;
    let called = shadow.call(args!["rev-parse", "--verify", &head.revision()]);
    match (called, head) {
        (Ok(commit), _) => Ok(Start {
            commit,
            is_new: true,
        }),
        (Err(_), Head::Branch(branch)) if is_unborn(shadow, &branch) => {
            Err(WorktreeError::NoCommit {
                path: repository.top.clone(),
                branch,
            })
        }
        (Err(error), _) => Err(error),
    }
}

/// As after git init.
fn is_unborn(shadow: &Shadow, branch: &str) -> bool {
    let name = format!("refs/heads/{branch}");
    let found = shadow.call(args!["for-each-ref", "--count=1", &name]);
    found.is_ok_and(|found| found.is_empty())
}

fn make_branch(
    shadow: &Shadow,
    repository: &Repository,
    branch: &str,
    commit: &str,
) -> Result<(), WorktreeError> {
    let refused = |reason| WorktreeError::NotARepository {
        path: repository.top.clone(),
        reason,
    };
    // As git would; a bare repository has none at first.
    match std::fs::create_dir(repository.common.join("logs")) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(refused(error.to_string()));
        }
        _ => {}
    }
    let name = format!("refs/heads/{branch}");
    let message = "branch: made by umwelt-ctl wt add";
    // The last word: it must not exist.
    shadow
        .call(args!["update-ref", "-m", message, &name, commit, ""])
        .map(drop)
}

/// The worktree and its administrative directory, which is returned, with the
/// few files by which they find each other. Left out is what git adds by
/// itself.
fn link(repository: &Repository, path: &Path, branch: &str) -> Result<PathBuf, WorktreeError> {
    let failed = |error: io::Error| WorktreeError::Place {
        path: path.to_owned(),
        reason: error.to_string(),
    };
    let worktrees = repository.common.join("worktrees");
    match std::fs::create_dir(&worktrees) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    gitdir::check_ours(&worktrees, FileType::Directory).map_err(|reason| {
        WorktreeError::NotARepository {
            path: repository.top.clone(),
            reason,
        }
    })?;
    let admin = create_admin(&worktrees, path).map_err(failed)?;
    std::fs::create_dir(path).map_err(failed)?;
    let dot_git = path.join(".git");
    for (file, text) in [
        (dot_git.clone(), format!("gitdir: {}\n", admin.display())),
        (admin.join("gitdir"), format!("{}\n", dot_git.display())),
        (admin.join("commondir"), "../..\n".to_owned()),
        (admin.join("HEAD"), format!("ref: refs/heads/{branch}\n")),
    ] {
        std::fs::write(file, text).map_err(failed)?;
    }
    Ok(admin)
}

/// By the name of the worktree, with a number where that is taken.
fn create_admin(worktrees: &Path, path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
    for number in 0..MAX_NUMBER {
        let admin = match number {
            0 => worktrees.join(&*name),
            number => worktrees.join(format!("{name}{number}")),
        };
        match std::fs::create_dir(&admin) {
            Ok(()) => return Ok(admin),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
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
