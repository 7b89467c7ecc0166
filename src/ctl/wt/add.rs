//! `umwelt-ctl wt add`: a new worktree, its files, and the hook.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::branch;
use super::git::{Head, Repository, args};
use super::hook::{self, Told};
use super::shadow::Shadow;
use super::staging::Staging;
use super::tree::Tree;
use super::{Site, WorktreeError};
use crate::cli;
use crate::dirs;
use crate::error::Error;
use crate::gitdir::{self, Directory};
use crate::sys::open;
use crate::trust::repository;
use crate::workspace;

/// Names that are tried where none is given.
const MAX_NUMBER: u32 = 9999;
const IN_THE_WAY: &str = "it exists already";

pub(super) fn run(
    site: &Site,
    repository: &Repository,
    name: Option<&str>,
    branch: Option<String>,
) -> Result<ExitCode, Error> {
    check_accepted(site, repository)?;
    let dir = site
        .worktrees
        .dir
        .as_ref()
        .map_or_else(|| beside(&repository.top), |dir| below(dir, repository));
    let shadow = Shadow::create(site, repository)?;
    let name = match name {
        Some(name) => checked(name)?,
        None => free_name(&shadow, &dir)?,
    };
    let path = dir.join(&name);
    let branch = branch.unwrap_or(name);
    check_branch(&shadow, repository, &branch)?;
    let start = start(&shadow, repository, &branch)?;
    let above = prepare(site, &dir, &path)?;
    if start.is_new {
        make_branch(&shadow, repository, &branch, &start.commit)?;
    }
    dirs::create_private(&site.place.dirs.data)?;
    let made = Made::create(repository, &site.place.dirs.data, &path)?;
    let filled = made.fill(&shadow, &branch, &start.commit);
    let top = match filled.and_then(|()| made.put(&above)) {
        Ok(top) => top,
        Err(error) => {
            made.remove();
            return Err(error.into());
        }
    };
    drop((shadow, made));
    repository::accept(&site.place.dirs, &path, repository.common.path())?;
    let told = Told {
        repository,
        worktree: &path,
        dir: top.as_fd(),
        branch: &branch,
    };
    call_hook(site, &told)?;
    Ok(cli::print(&format!("{}\n", path.display())))
}

/// A worktree stands for its repository only if a person has said so once.
fn check_accepted(site: &Site, repository: &Repository) -> Result<(), WorktreeError> {
    let common = repository.common.path();
    match &repository.through {
        Some(path) if !repository::is_accepted(&site.place.dirs, path, common) => {
            Err(WorktreeError::Elsewhere {
                path: path.clone(),
                common: common.to_owned(),
            })
        }
        _ => Ok(()),
    }
}

fn call_hook(site: &Site, told: &Told<'_>) -> Result<(), WorktreeError> {
    let ran = hook::run("worktrees.post_add", &site.worktrees.post_add, told);
    ran.map_err(|mut error| {
        if let WorktreeError::Hook { left, .. } = &mut error {
            *left = Some(told.worktree.to_owned());
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
    let is_taken = |dir: &Directory| {
        let head = Head::load(dir);
        head.is_ok_and(|head| head.branch() == Some(branch))
    };
    let by = match is_taken(&repository.common) {
        true => Some(repository.common.path().to_owned()),
        false => {
            let other = repository.worktrees().find(is_taken);
            other.map(|dir| dir.path().to_owned())
        }
    };
    match by {
        Some(git_dir) => Err(WorktreeError::Taken {
            branch: branch.to_owned(),
            git_dir,
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
    let head = Head::load(repository.git_dir()).map_err(refused)?;
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
    let common = &repository.common;
    match common.create_dir("logs") {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(refused(error.to_string()));
        }
        _ => {}
    }
    branch::create(shadow, common, branch, commit)
}

/// The worktree and its administrative directory. The agent of the repository
/// can put links in their place at any time: what is written goes where they
/// were made, into files that are new. The worktree is out of its reach until
/// it is whole.
#[derive(Debug)]
struct Made {
    path: PathBuf,
    staging: Staging,
    admin: Directory,
    admin_files: Tree,
}

impl Made {
    fn create(repository: &Repository, data: &Path, path: &Path) -> Result<Made, WorktreeError> {
        let failed = |error: io::Error| place_error(path, error.to_string());
        let refused = |reason| WorktreeError::NotARepository {
            path: repository.top.clone(),
            reason,
        };
        let common = &repository.common;
        match common.create_dir("worktrees") {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed(error));
            }
            _ => {}
        }
        let worktrees = common.dir("worktrees").map_err(refused)?;
        let staging = Staging::create(data).map_err(|reason| place_error(path, reason))?;
        let name = path.file_name().unwrap_or_default();
        let name = create_admin(&worktrees, &name.to_string_lossy()).map_err(failed)?;
        let admin = worktrees.dir(&name).map_err(refused)?;
        Ok(Made {
            path: path.to_owned(),
            staging,
            admin_files: Tree::of(worktrees, name.as_ref(), &admin).map_err(failed)?,
            admin,
        })
    }

    fn fill(&self, shadow: &Shadow, branch: &str, commit: &str) -> Result<(), WorktreeError> {
        let failed = |error: io::Error| place_error(&self.path, error.to_string());
        self.link(branch).map_err(failed)?;
        let top = self.staging.files().as_fd();
        shadow.files(top, Some(commit))?.check_out()?;
        shadow.save_index(&self.admin).map_err(failed)
    }

    /// The worktree as it is then, held.
    fn put(&self, above: &Directory) -> Result<OwnedFd, WorktreeError> {
        let name = self.path.file_name().unwrap_or_default();
        let put = self.staging.put(above, name);
        put.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => place_error(&self.path, IN_THE_WAY.to_owned()),
            _ => place_error(&self.path, error.to_string()),
        })
    }

    /// The few files by which the two find each other. Left out is what git
    /// adds by itself.
    fn link(&self, branch: &str) -> io::Result<()> {
        let (dot_git, admin) = (self.path.join(".git"), self.admin.path());
        for (dir, name, text) in [
            (
                self.staging.files(),
                ".git",
                format!("gitdir: {}\n", admin.display()),
            ),
            (&self.admin, "gitdir", format!("{}\n", dot_git.display())),
            (&self.admin, "commondir", "../..\n".to_owned()),
            (&self.admin, "HEAD", format!("ref: refs/heads/{branch}\n")),
        ] {
            dir.create(name)?.write_all(text.as_bytes())?;
        }
        Ok(())
    }

    /// As far as it can be: what has failed before is told.
    fn remove(&self) {
        drop(self.admin_files.remove());
    }
}

/// By the name of the worktree, with a number where that is taken.
fn create_admin(worktrees: &Directory, name: &str) -> io::Result<String> {
    let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
    for number in 0..MAX_NUMBER {
        let name = match number {
            0 => name.to_owned(),
            number => format!("{name}{number}"),
        };
        match worktrees.create_dir(&name) {
            Ok(()) => return Ok(name),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

fn place_error(path: &Path, reason: String) -> WorktreeError {
    WorktreeError::Place {
        path: path.to_owned(),
        reason,
    }
}

/// What is made must not end up where a link leads.
fn make_dir(dir: &Path) -> Result<(), String> {
    let failed = |error: io::Error| error.to_string();
    let check_real = |path: &Path| match std::fs::canonicalize(path).map_err(failed)? {
        real if real == path => Ok(()),
        real => Err(format!("{path:?} leads to {real:?}")),
    };
    let (Some(above), Some(name)) = (dir.parent(), dir.file_name()) else {
        return check_real(dir);
    };
    std::fs::create_dir_all(above).map_err(failed)?;
    check_real(above)?;
    let made = open::absolute(above, OFlags::PATH | OFlags::DIRECTORY)
        .and_then(|above| rustix::fs::mkdirat(above, name, Mode::from_raw_mode(0o775)));
    match made {
        Err(error) if error != Errno::EXIST => Err(failed(error.into())),
        _ => check_real(dir),
    }
}

/// The directory above, by its real path, and nothing in the way.
fn prepare(site: &Site, dir: &Path, path: &Path) -> Result<Directory, WorktreeError> {
    let refused = |reason: String| place_error(path, reason);
    if let Some(reason) = workspace::refusal(path, &site.place.dirs) {
        return Err(refused(reason));
    }
    make_dir(dir).map_err(refused)?;
    let above = Directory::open(dir).map_err(refused)?;
    gitdir::one_line(path).map_err(refused)?;
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(above),
        Err(error) => Err(refused(error.to_string())),
        Ok(_) => Err(refused(IN_THE_WAY.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::AtFlags;
    use std::os::unix::fs::symlink;

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

    /// A repository, what is made in it, and a file that is nobody's business.
    fn made(base: &Path) -> Made {
        for dir in ["repo/.git", "repo.worktrees", "data"] {
            std::fs::create_dir_all(base.join(dir)).unwrap();
        }
        std::fs::write(base.join("victim"), "kept").unwrap();
        let repository = Repository {
            common: Directory::open(&base.join("repo/.git")).unwrap(),
            admin: None,
            top: base.join("repo"),
            through: None,
        };
        let path = base.join("repo.worktrees/w1");
        Made::create(&repository, &base.join("data"), &path).unwrap()
    }

    #[test]
    fn links_that_are_planted_while_it_is_made_lead_nowhere() {
        for name in [
            "repo.worktrees/w1",
            "repo/.git/worktrees/w1/gitdir",
            "repo/.git/worktrees/w1/commondir",
            "repo/.git/worktrees/w1/HEAD",
        ] {
            let temp = tempfile::tempdir().unwrap();
            let base = temp.path().canonicalize().unwrap();
            let made = made(&base);
            symlink(base.join("victim"), base.join(name)).unwrap();
            let above = Directory::open(&base.join("repo.worktrees")).unwrap();
            let done = made.link("w1").is_ok() && made.put(&above).is_ok();
            assert!(!done, "{name}");
            let victim = base.join("victim");
            assert_eq!(std::fs::read(&victim).unwrap(), b"kept", "{name}");
            made.remove();
            drop(made);
            assert!(victim.exists());
            assert_eq!(base.join("data").read_dir().unwrap().count(), 0);
            assert!(!base.join("repo/.git/worktrees/w1").exists());
        }
    }

    #[test]
    fn directories_that_are_swapped_while_it_is_made_stay_as_they_are() {
        for name in [
            "repo.worktrees",
            "repo/.git",
            "repo/.git/worktrees",
            "repo/.git/worktrees/w1",
        ] {
            let temp = tempfile::tempdir().unwrap();
            let base = temp.path().canonicalize().unwrap();
            let made = made(&base);
            let above = Directory::open(&base.join("repo.worktrees")).unwrap();
            std::fs::create_dir_all(base.join("other/worktrees/w1")).unwrap();
            std::fs::rename(base.join(name), base.join("aside")).unwrap();
            symlink(base.join("other"), base.join(name)).unwrap();
            made.link("w1").unwrap();
            let top = made.put(&above).unwrap();
            assert!(rustix::fs::statat(&top, ".git", AtFlags::empty()).is_ok());
            made.remove();
            for (dir, count) in [("other", 1), ("other/worktrees/w1", 0)] {
                let found = base.join(dir).read_dir().unwrap().count();
                assert_eq!(found, count, "{dir} after {name}");
            }
        }
    }
}
