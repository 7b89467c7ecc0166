//! The commands that a person has set for new worktrees and for those that go.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::process::Command;

use super::WorktreeError;
use super::git::Repository;
use crate::podman;

/// What a hook is told of, beside its working directory.
pub(super) struct Told<'a> {
    pub(super) repository: &'a Repository,
    pub(super) worktree: &'a Path,
    /// The same, held: by its path an agent could lead the command elsewhere.
    pub(super) dir: BorrowedFd<'a>,
    /// Empty where none is checked out.
    pub(super) branch: &'a str,
}

/// Runs `argv` in the worktree, with the caller's environment but for what
/// leads git elsewhere. What it prints goes to standard error: standard output
/// is for the path alone.
pub(super) fn run(
    key: &'static str,
    argv: &[String],
    told: &Told<'_>,
) -> Result<(), WorktreeError> {
    let Some((program, args)) = argv.split_first() else {
        return Ok(());
    };
    let failed = |problem: String| WorktreeError::Hook {
        key,
        program: program.clone(),
        problem,
        left: None,
    };
    let stderr = std::io::stderr();
    let output = rustix::io::dup(&stderr).map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new(program);
    command
        .args(args)
        .current_dir(super::place_of(told.dir))
        .stdout(output)
        .env("UMWELT_WORKTREE", told.worktree)
        .env("UMWELT_REPOSITORY", told.repository.common.path())
        .env("UMWELT_BRANCH", told.branch);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GIT_") {
            command.env_remove(name);
        }
    }
    // std looks for a bare name here; a file of the project is not meant.
    command.env("PATH", podman::search_path(told.worktree));
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(failed(status.to_string())),
        Err(error) => Err(failed(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gitdir::Directory;
    use crate::sys::open;
    use rustix::fs::OFlags;
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_hook_runs_in_the_directory_that_is_held() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        let (worktree, victim) = (base.join("w1"), base.join("victim"));
        std::fs::create_dir(&worktree).unwrap();
        std::fs::create_dir(&victim).unwrap();
        let held = open::absolute(&worktree, OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
        std::fs::rename(&worktree, base.join("aside")).unwrap();
        symlink(&victim, &worktree).unwrap();
        let repository = Repository {
            common: Directory::open(&base).unwrap(),
            admin: None,
            top: base.clone(),
            through: None,
        };
        let told = Told {
            repository: &repository,
            worktree: &worktree,
            dir: held.as_fd(),
            branch: "",
        };
        run("key", &["touch".to_owned(), "made".to_owned()], &told).unwrap();
        assert!(base.join("aside/made").exists());
        assert!(!victim.join("made").exists());
    }
}
