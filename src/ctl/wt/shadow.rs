//! A repository of our own, in front of another one: its configuration is
//! ours, its objects and refs lead to the other's. git works in it and cannot
//! come across what the other configures, also not when that is changed at
//! the right moment.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, MemfdFlags};

use super::git::{self, Repository, args};
use super::{Site, WorktreeError};
use crate::gitdir;

/// What git finds in the other repository. All else, `info/attributes` among
/// it, stays out of sight.
const BORROWED: [(&str, FileType); 4] = [
    ("objects", FileType::Directory),
    ("refs", FileType::Directory),
    ("packed-refs", FileType::RegularFile),
    ("shallow", FileType::RegularFile),
];

const MAX_CONFIG: u64 = 1 << 20;

/// It is gone when this is dropped.
pub(super) struct Shadow {
    dir: PathBuf,
}

impl Shadow {
    pub(super) fn create(site: &Site, repository: &Repository) -> Result<Shadow, WorktreeError> {
        check_borrowed(repository)?;
        let config = config_for(repository)?;
        let name = format!("umwelt-wt-{}", std::process::id());
        let dir = site.place.dirs.runtime.join(name);
        let failed = |error: io::Error| WorktreeError::Place {
            path: dir.clone(),
            reason: error.to_string(),
        };
        DirBuilder::new().mode(0o700).create(&dir).map_err(failed)?;
        let shadow = Shadow { dir: dir.clone() };
        shadow.fill(&config, &repository.common).map_err(failed)?;
        Ok(shadow)
    }

    fn fill(&self, config: &str, common: &Path) -> io::Result<()> {
        for (name, _) in BORROWED {
            // One that is not there yet is made where the link leads.
            symlink(common.join(name), self.dir.join(name))?;
        }
        std::fs::write(self.dir.join("config"), config)?;
        self.set_head(None)
    }

    fn set_head(&self, commit: Option<&str>) -> io::Result<()> {
        let head = commit.unwrap_or("ref: refs/heads/umwelt/none");
        std::fs::write(self.dir.join("HEAD"), format!("{head}\n"))
    }

    pub(super) fn call(&self, args: &[&OsStr]) -> Result<String, WorktreeError> {
        let mut command = git::command(args);
        command.env("GIT_DIR", &self.dir);
        git::finish(command)
    }

    /// The files at `top`, as if `commit` were checked out there.
    pub(super) fn files<'a>(
        &'a self,
        top: &'a Path,
        commit: Option<&str>,
        index: PathBuf,
    ) -> Result<Files<'a>, WorktreeError> {
        self.set_head(commit)
            .map_err(|error| WorktreeError::Place {
                path: self.dir.clone(),
                reason: error.to_string(),
            })?;
        let shadow = self;
        Ok(Files { shadow, top, index })
    }

    /// A copy of an index: a look at the files may not change it.
    pub(super) fn copy_of(&self, index: &Path) -> Result<PathBuf, String> {
        let copy = self.dir.join("index");
        match gitdir::file_type(index) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            _ => {
                gitdir::check_ours(index, FileType::RegularFile)?;
                copy_with_time(index, &copy).map_err(|error| format!("{index:?}: {error}"))?;
            }
        }
        Ok(copy)
    }
}

/// git takes a file that is no younger than the index for one that may have
/// changed since, and reads it. A younger index would hide such a change.
fn copy_with_time(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::copy(from, to)?;
    let modified = from.metadata()?.modified()?;
    File::options().write(true).open(to)?.set_modified(modified)
}

impl Drop for Shadow {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            log::warn!("cannot remove {:?}: {error}", self.dir);
        }
    }
}

/// The hash that names objects is all that has to be known of the other's.
/// A link would be followed, and a FIFO be waited for.
fn check_borrowed(repository: &Repository) -> Result<(), WorktreeError> {
    for (name, kind) in BORROWED {
        let path = repository.common.join(name);
        match gitdir::file_type(&path) {
            Ok(found) if found == kind => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            _ => {
                return Err(WorktreeError::NotARepository {
                    path: repository.top.clone(),
                    reason: format!("{path:?} is not what git makes"),
                });
            }
        }
    }
    Ok(())
}

fn config_for(repository: &Repository) -> Result<String, WorktreeError> {
    let path = repository.common.join("config");
    let refused = |reason: String| WorktreeError::NotARepository {
        path: repository.top.clone(),
        reason,
    };
    // From a copy, which includes no other file.
    let text = gitdir::read(&path, MAX_CONFIG).map_err(refused)?;
    let value = |key: &str| -> Option<String> {
        let args = args!["config", "--file", "-", "--no-includes", "--get", key];
        let mut command = git::command(args);
        command.stdin(memory_file(&text).ok()?);
        git::finish(command).ok()
    };
    if value("extensions.refstorage").is_some_and(|storage| storage != "files") {
        return Err(refused("its refs are not stored in files".to_owned()));
    }
    let settings = "[core]\n\trepositoryformatversion = 1\n\tbare = false\n\tlogAllRefUpdates = false\n[extensions]\n";
    match value("extensions.objectformat").as_deref() {
        None | Some("sha1") => Ok(settings.to_owned()),
        Some("sha256") => Ok(format!("{settings}\tobjectFormat = sha256\n")),
        Some(other) => Err(refused(format!("its object format is {other:?}"))),
    }
}

fn memory_file(text: &[u8]) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("config", MemfdFlags::CLOEXEC)?);
    file.write_all(text)?;
    file.rewind()?;
    Ok(file)
}

/// The files of a worktree.
pub(super) struct Files<'a> {
    shadow: &'a Shadow,
    top: &'a Path,
    index: PathBuf,
}

impl Files<'_> {
    /// Writes all files of the commit.
    pub(super) fn check_out(&self) -> Result<(), WorktreeError> {
        let reset = args!["reset", "--hard", "--quiet", "--no-recurse-submodules"];
        self.call(reset).map(drop)
    }

    /// What is not in the commit, as `git status` has it.
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

    fn call(&self, args: &[&OsStr]) -> Result<String, WorktreeError> {
        let mut command = git::command(args);
        command
            .current_dir(self.top)
            .env("GIT_DIR", &self.shadow.dir)
            .env("GIT_WORK_TREE", self.top)
            .env("GIT_INDEX_FILE", &self.index);
        git::finish(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn a_copy_of_the_index_is_as_old_as_the_index() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("index"), dir.path().join("copy"));
        std::fs::write(&from, "x").unwrap();
        let time = UNIX_EPOCH + Duration::new(1_000_000, 123_000_000);
        let file = File::options().write(true).open(&from).unwrap();
        file.set_modified(time).unwrap();
        copy_with_time(&from, &to).unwrap();
        assert_eq!(to.metadata().unwrap().modified().unwrap(), time);
    }
}
