//! `umwelt-ctl wt rm`: what would be lost is looked for first.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use super::git::{Head, Repository, args};
use super::hook::{self, Told};
use super::shadow::Shadow;
use super::tree::Tree;
use super::{Site, WorktreeError};
use crate::ctl::peer::{self, Presence};
use crate::error::Error;
use crate::gitdir::{self, Linked};
use crate::text;
use crate::trust::repository;

/// Most paths that a refusal names.
const MAX_NAMED: usize = 5;

pub(super) fn run(site: &Site, worktree: Worktree, force: bool) -> Result<ExitCode, Error> {
    let target = site.place.target(Some(worktree.path.as_os_str()))?;
    if matches!(
        peer::presence(&target.names.socket)?,
        Presence::Listening(_)
    ) {
        let path = worktree.path;
        return Err(WorktreeError::Running { path }.into());
    }
    if !force {
        let unsaved = worktree.unmoved_while(|| worktree.unsaved(site))?;
        if let Some(what) = unsaved {
            let path = worktree.path;
            return Err(WorktreeError::Unsaved { path, what }.into());
        }
    }
    let told = Told {
        repository: &worktree.repository,
        worktree: &worktree.path,
        dir: worktree.files.dir(),
        branch: worktree.head.branch().unwrap_or_default(),
    };
    hook::run("worktrees.pre_rm", &site.worktrees.pre_rm, &told)?;
    worktree.remove()?;
    repository::forget(&site.place.dirs, &worktree.path);
    Ok(ExitCode::SUCCESS)
}

pub(super) struct Worktree {
    pub(super) path: PathBuf,
    pub(super) repository: Repository,
    head: Head,
    /// Its files, and the administrative directory, as they were found. The
    /// agent of the repository may be at work, and swap what has their paths.
    files: Tree,
    admin_files: Tree,
}

impl Worktree {
    /// By its real path.
    pub(super) fn find(path: PathBuf) -> Result<Worktree, WorktreeError> {
        let refused = |reason: String| WorktreeError::NotAWorktree {
            path: path.clone(),
            reason,
        };
        let failed = |error: io::Error| refused(error.to_string());
        let files = Tree::at(&path).map_err(failed)?;
        let Linked {
            common,
            worktrees,
            admin,
        } = gitdir::linked(files.dir(), &path).map_err(refused)?;
        let name = admin.path().file_name().unwrap_or_default();
        Ok(Worktree {
            head: Head::load(&admin).map_err(refused)?,
            files,
            admin_files: Tree::of(worktrees, name, &admin).map_err(failed)?,
            repository: Repository {
                top: common.path().to_owned(),
                common,
                admin: Some(admin),
                through: Some(path.clone()),
            },
            path,
        })
    }

    /// git goes to its directory by the path that this has: an agent could lead it
    /// elsewhere for a moment, to have it find nothing.
    fn unmoved_while<T>(
        &self,
        look: impl FnOnce() -> Result<T, WorktreeError>,
    ) -> Result<T, Error> {
        let failed = |error| Error::io(format!("look at {:?}", self.path), error);
        let before = self.files.changed_at().map_err(failed)?;
        let found = look()?;
        if self.files.changed_at().map_err(failed)? != before {
            let (path, changed) = (self.path.clone(), self.path.clone());
            return Err(WorktreeError::Changed { path, changed }.into());
        }
        Ok(found)
    }

    fn remove(&self) -> Result<(), Error> {
        let trees = [
            (self.path.as_path(), &self.files),
            (self.repository.git_dir().path(), &self.admin_files),
        ];
        for (path, tree) in trees {
            let failed = |error| Error::io(format!("look at {path:?}"), error);
            if !tree.is_in_place().map_err(failed)? {
                let (path, changed) = (self.path.clone(), path.to_owned());
                return Err(WorktreeError::Changed { path, changed }.into());
            }
        }
        for (path, tree) in trees {
            let failed = |error| Error::io(format!("remove {path:?}"), error);
            tree.remove().map_err(failed)?;
        }
        Ok(())
    }

    /// What nobody else has, in words.
    fn unsaved(&self, site: &Site) -> Result<Option<String>, WorktreeError> {
        let refused = |reason| WorktreeError::NotAWorktree {
            path: self.path.clone(),
            reason,
        };
        let admin = self.repository.git_dir();
        if admin.has("locked").map_err(refused)? {
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
        shadow.load_index(admin).map_err(refused)?;
        let files = shadow.files(self.files.dir(), commit.as_deref())?;
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
