//! Which repository a workspace that is a git worktree may share: only one
//! that a person has accepted. A repository that names the workspace is not
//! enough, as another agent may have written it.

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::dirs::{self, Dirs};
use crate::error::Error;
use crate::workspace::{FileId, Workspace};

const VERSION: u32 = 1;
const MAX_RECORD: u64 = 64 << 10;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    version: u32,
    workspace: PathBuf,
    /// The common directory of the repository, and what it was.
    common: PathBuf,
    device: u64,
    inode: u64,
}

impl Record {
    fn of(workspace: &Path, common: &Path) -> io::Result<Record> {
        let id = FileId::from_metadata(&common.symlink_metadata()?);
        Ok(Record {
            version: VERSION,
            workspace: workspace.to_owned(),
            common: common.to_owned(),
            device: id.device,
            inode: id.inode,
        })
    }
}

/// Both are real paths.
pub(crate) fn accept(dirs: &Dirs, workspace: &Path, common: &Path) -> Result<(), Error> {
    let path = path_of(dirs, workspace);
    let failed = |error: io::Error| Error::io(format!("write {path:?}"), error);
    let record = Record::of(workspace, common).map_err(failed)?;
    let text = serde_json::to_vec(&record).map_err(|error| failed(error.into()))?;
    dirs::create_private(&dirs.state)?;
    dirs::create_private(&dirs.state.join("trust"))?;
    let temporary = path.with_extension(format!("{}.new", std::process::id()));
    let written = std::fs::File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&temporary, &path));
    written.map_err(|error| {
        drop(std::fs::remove_file(&temporary));
        failed(error)
    })
}

/// Whether exactly this directory was accepted for this workspace.
pub(crate) fn is_accepted(dirs: &Dirs, workspace: &Path, common: &Path) -> bool {
    let path = path_of(dirs, workspace);
    let is_small = path
        .symlink_metadata()
        .is_ok_and(|found| found.is_file() && found.len() <= MAX_RECORD);
    let record = is_small.then(|| std::fs::read(&path).ok()).flatten();
    let record = record.and_then(|bytes| serde_json::from_slice::<Record>(&bytes).ok());
    record.is_some_and(|record| Record::of(workspace, common).is_ok_and(|now| now == record))
}

/// Nothing is shared from the next container on.
pub(crate) fn forget(dirs: &Dirs, workspace: &Path) {
    let path = path_of(dirs, workspace);
    if let Err(error) = std::fs::remove_file(&path)
        && error.kind() != io::ErrorKind::NotFound
    {
        log::warn!("cannot remove {path:?}: {error}");
    }
}

fn path_of(dirs: &Dirs, workspace: &Path) -> PathBuf {
    // A path that is not UTF-8 is no workspace, and has no record.
    let sid = Workspace::sid_of_path(workspace);
    let name = sid.map_or_else(|| "none".to_owned(), |sid| sid.to_string());
    dirs.state.join("trust").join(format!("{name}-git.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_accepted_counts_and_only_while_it_is_the_same() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        let dirs = Dirs {
            home: base.clone(),
            config: base.join("c"),
            data: base.join("d"),
            state: base.join("s"),
            runtime: base.join("r"),
        };
        let (workspace, common) = (base.join("w"), base.join("repo"));
        std::fs::create_dir(&common).unwrap();
        assert!(!is_accepted(&dirs, &workspace, &common));
        accept(&dirs, &workspace, &common).unwrap();
        assert!(is_accepted(&dirs, &workspace, &common));
        assert!(!is_accepted(&dirs, &base.join("other"), &common));
        assert!(!is_accepted(&dirs, &workspace, &base));
        // Something else in its place.
        std::fs::rename(&common, base.join("aside")).unwrap();
        std::fs::create_dir(&common).unwrap();
        assert!(!is_accepted(&dirs, &workspace, &common));
        accept(&dirs, &workspace, &common).unwrap();
        forget(&dirs, &workspace);
        assert!(!is_accepted(&dirs, &workspace, &common));
    }
}
