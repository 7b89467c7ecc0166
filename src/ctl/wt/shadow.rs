//! A bare-bones repository of our own that borrows the objects of another: in
//! it files can be written to a worktree, and compared with it, while nothing
//! of the other's configuration or attributes is read.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::git::{self, Repository, args};
use super::{Site, WorktreeError};
use crate::gitdir;

/// It is gone when this is dropped.
pub(super) struct Shadow {
    dir: PathBuf,
    top: PathBuf,
    index: PathBuf,
}

impl Shadow {
    /// For the worktree at `top`, as if `commit` were checked out there, with
    /// this index. Without a commit there is none yet.
    pub(super) fn create(
        site: &Site,
        repository: &Repository,
        top: &Path,
        commit: Option<&str>,
        index: PathBuf,
    ) -> Result<Shadow, WorktreeError> {
        let name = format!("umwelt-wt-{}", std::process::id());
        let shadow = Shadow {
            dir: site.place.dirs.runtime.join(name),
            top: top.to_owned(),
            index,
        };
        let format = repository.call(args!["rev-parse", "--show-object-format"])?;
        let config = match format.as_str() {
            "sha1" => "[core]\n\trepositoryformatversion = 0\n\tbare = false\n",
            _ => {
                "[core]\n\trepositoryformatversion = 1\n\tbare = false\n[extensions]\n\tobjectFormat = sha256\n"
            }
        };
        let head = commit.map_or_else(
            || "ref: refs/heads/none\n".to_owned(),
            |commit| format!("{commit}\n"),
        );
        let objects = repository.common.join("objects");
        shadow
            .write(config, &head, &objects)
            .map_err(|error| WorktreeError::Place {
                path: shadow.dir.clone(),
                reason: error.to_string(),
            })?;
        Ok(shadow)
    }

    fn write(&self, config: &str, head: &str, objects: &Path) -> std::io::Result<()> {
        DirBuilder::new().mode(0o700).create(&self.dir)?;
        for dir in ["refs", "objects", "objects/info"] {
            std::fs::create_dir(self.dir.join(dir))?;
        }
        std::fs::write(self.dir.join("config"), config)?;
        std::fs::write(self.dir.join("HEAD"), head)?;
        let mut line = objects.as_os_str().to_owned();
        line.push("\n");
        let line = line.into_encoded_bytes();
        std::fs::write(self.dir.join("objects/info/alternates"), line)
    }

    /// Writes all files of the commit.
    pub(super) fn check_out(&self) -> Result<(), WorktreeError> {
        let reset = args!["reset", "--hard", "--quiet", "--no-recurse-submodules"];
        self.call(reset).map(drop)
    }

    /// What is not in the commit, one path an entry, as `git status` has it.
    pub(super) fn changes(&self) -> Result<Vec<String>, WorktreeError> {
        let status = self.call(args![
            "status",
            "--porcelain=v1",
            "-z",
            "--no-renames",
            "--untracked-files=all",
            // In a submodule its own configuration would be obeyed.
            "--ignore-submodules=all",
        ])?;
        let entries = status.split('\0').filter(|entry| !entry.is_empty());
        Ok(entries.map(str::to_owned).collect())
    }

    /// Submodules with something in their directory.
    pub(super) fn submodules(&self) -> Result<Vec<String>, WorktreeError> {
        let files = self.call(args!["ls-files", "--stage", "-z"])?;
        let links = files
            .split('\0')
            .filter(|entry| entry.starts_with("160000 "))
            .filter_map(|entry| entry.split_once('\t'));
        let is_full = |path: &str| {
            let mut entries = self.top.join(path).read_dir().into_iter().flatten();
            entries.next().is_some()
        };
        Ok(links
            .map(|(_, path)| path.to_owned())
            .filter(|path| is_full(path))
            .collect())
    }

    fn call(&self, args: &[&std::ffi::OsStr]) -> Result<String, WorktreeError> {
        let mut command = git::command(args);
        command
            .current_dir(&self.top)
            .env("GIT_DIR", &self.dir)
            .env("GIT_WORK_TREE", &self.top)
            .env("GIT_INDEX_FILE", &self.index);
        git::finish(command)
    }

    /// A copy of the index: a look at the files may not change it.
    pub(super) fn copy_index(&mut self, index: &Path) -> Result<(), WorktreeError> {
        let copy = self.dir.join("index");
        let refused = |reason: String| WorktreeError::NotAWorktree {
            path: self.top.clone(),
            reason,
        };
        match gitdir::file_type(index) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            _ => {
                gitdir::check_ours(index, FileType::RegularFile).map_err(refused)?;
                std::fs::copy(index, &copy).map_err(|error| refused(error.to_string()))?;
            }
        }
        self.index = copy;
        Ok(())
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.dir)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            log::warn!("cannot remove {:?}: {error}", self.dir);
        }
    }
}
