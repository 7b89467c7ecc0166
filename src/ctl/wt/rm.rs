//! `umwelt-ctl wt rm`: what would be lost is looked for first.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::git::{Repository, args};
use super::hook::{self, Told};
use super::shadow::Shadow;
use super::{Site, WorktreeError};
use crate::ctl::peer::{self, Presence};
use crate::error::Error;
use crate::gitdir;
use crate::text;

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
        branch: worktree.branch.as_deref().unwrap_or_default(),
    };
    hook::run("worktrees.pre_rm", &site.worktrees.pre_rm, &told)?;
    // Asked for the second time what it would ask itself: that would run what
    // the repository has configured.
    let main = Repository {
        git_dir: worktree.repository.common.clone(),
        ..worktree.repository
    };
    main.call(args!["worktree", "remove", "--force", "--", &worktree.path])?;
    Ok(ExitCode::SUCCESS)
}

struct Worktree {
    path: PathBuf,
    repository: Repository,
    /// None where a commit is checked out.
    branch: Option<String>,
}

impl Worktree {
    fn find(given: &Path) -> Result<Worktree, WorktreeError> {
        let refused = |reason: String| WorktreeError::NotAWorktree {
            path: given.to_owned(),
            reason,
        };
        let path = std::fs::canonicalize(given).map_err(|error| refused(error.to_string()))?;
        let (git_dir, common) = gitdir::linked(&path).map_err(refused)?;
        let head = gitdir::read(&git_dir.join("HEAD"), 4096).map_err(refused)?;
        let head = String::from_utf8_lossy(&head);
        let branch = head.trim_end().strip_prefix("ref: refs/heads/");
        Ok(Worktree {
            branch: branch.map(str::to_owned),
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
        let head = args!["rev-parse", "--verify", "--quiet", "HEAD^{commit}"];
        let commit = self.repository.call(head).ok();
        if self.branch.is_none()
            && let Some(commit) = &commit
            && !self.is_held(commit)?
        {
            return Ok(Some(format!("no branch holds its commit {commit}")));
        }
        let repository = &self.repository;
        let path = PathBuf::new();
        let mut shadow = Shadow::create(site, repository, &self.path, commit.as_deref(), path)?;
        shadow.copy_index(&repository.git_dir.join("index"))?;
        let changes = shadow.changes()?;
        if !changes.is_empty() {
            let what = "files are changed or unknown to git";
            return Ok(Some(format!("{what}: {}", named(&changes))));
        }
        // In these git would have to be asked again, by their rules.
        let submodules = shadow.submodules()?;
        let what = "it has submodules, which are not looked into";
        Ok((!submodules.is_empty()).then(|| format!("{what}: {}", named(&submodules))))
    }

    fn is_held(&self, commit: &str) -> Result<bool, WorktreeError> {
        let contains = format!("--contains={commit}");
        let refs = self.repository.call(args![
            "for-each-ref",
            "--count=1",
            &contains,
            "refs/heads",
            "refs/remotes",
            "refs/tags",
        ])?;
        Ok(!refs.is_empty())
    }
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
