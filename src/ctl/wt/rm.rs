//! `umwelt-ctl wt rm`: what would be lost is looked for first.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::git::{Head, Repository, args};
use super::hook::{self, Told};
use super::shadow::Shadow;
use super::{Site, WorktreeError};
use crate::ctl::peer::{self, Presence};
use crate::error::Error;
use crate::gitdir;
use crate::text;
use crate::trust::repository;

/// Most paths that a refusal names.
const MAX_NAMED: usize = 5;

pub(super) fn run(site: &Site, path: &Path, force: bool) -> Result<ExitCode, Error> {
    let worktree = Worktree::find(path)?;
    let target = site.place.target(Some(worktree.path.as_os_str()))?;
    if matches!(
        peer::presence(&target.names.socket)?,
        Presence::Listening(_)
    ) {
        let path = worktree.path;
        return Err(WorktreeError::Running { path }.into());
    }
    if !force && let Some(what) = worktree.unsaved(site)? {
        let path = worktree.path;
        return Err(WorktreeError::Unsaved { path, what }.into());
    }
    let told = Told {
        repository: &worktree.repository,
        worktree: &worktree.path,
        branch: worktree.head.branch().unwrap_or_default(),
    };
    hook::run("worktrees.pre_rm", &site.worktrees.pre_rm, &told)?;
    for dir in [&worktree.path, &worktree.repository.git_dir] {
        std::fs::remove_dir_all(dir)
            .map_err(|error| Error::io(format!("remove {dir:?}"), error))?;
    }
    repository::forget(&site.place.dirs, &worktree.path);
    Ok(ExitCode::SUCCESS)
}

pub(super) struct Worktree {
    pub(super) path: PathBuf,
    pub(super) repository: Repository,
    head: Head,
}

impl Worktree {
    pub(super) fn find(given: &Path) -> Result<Worktree, WorktreeError> {
        let refused = |reason: String| WorktreeError::NotAWorktree {
            path: given.to_owned(),
            reason,
        };
        let path = std::fs::canonicalize(given).map_err(|error| refused(error.to_string()))?;
        let (git_dir, common) = gitdir::linked(&path).map_err(refused)?;
        Ok(Worktree {
            head: Head::load(&git_dir).map_err(refused)?,
            repository: Repository {
                top: common.clone(),
                common,
                git_dir,
            },
            path,
        })
    }

    /// What nobody else has, in words.
    fn unsaved(&self, site: &Site) -> Result<Option<String>, WorktreeError> {
        let git_dir = &self.repository.git_dir;
        if git_dir.join("locked").symlink_metadata().is_ok() {
            return Ok(Some("it is locked (git worktree lock)".to_owned()));
        }
        let shadow = Shadow::create(site, &self.repository)?;
        let revision = self.head.revision();
        let commit = shadow.call(args!["rev-parse", "--verify", "--quiet", &revision]);
        let commit = commit.ok();
        if let Head::Commit(commit) = &self.head
            && !is_held(&shadow, commit)?
        {
            return Ok(Some(format!("no branch holds its commit {commit}")));
        }
        let refused = |reason| WorktreeError::NotAWorktree {
            path: self.path.clone(),
            reason,
        };
        let index = shadow.copy_of(&git_dir.join("index")).map_err(refused)?;
        let files = shadow.files(&self.path, commit.as_deref(), index)?;
        let changes = files.changes()?;
        if !changes.is_empty() {
            let what = "files are changed or unknown to git";
            return Ok(Some(format!("{what}: {}", named(&changes))));
        }
        // In these git would have to be asked again, by their rules.
        let submodules = files.submodules()?;
        let what = "it has submodules, which are not looked into";
        Ok((!submodules.is_empty()).then(|| format!("{what}: {}", named(&submodules))))
    }
}

fn is_held(shadow: &Shadow, commit: &str) -> Result<bool, WorktreeError> {
    let contains = format!("--contains={commit}");
    let refs = shadow.call(args![
        "for-each-ref",
        "--count=1",
        &contains,
        "refs/heads",
        "refs/remotes",
        "refs/tags",
    ])?;
    Ok(!refs.is_empty())
}

fn named(entries: &[String]) -> String {
    let shown = entries.iter().take(MAX_NAMED);
    let shown: Vec<String> = shown
        .map(|entry| text::printable(&format!("{entry:?}")))
        .collect();
    let more = match entries.len().checked_sub(MAX_NAMED) {
        None | Some(0) => String::new(),
        Some(more) => format!(" and {more} more"),
    };
    shown.join(", ") + &more
}
