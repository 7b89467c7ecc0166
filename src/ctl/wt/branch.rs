//! A new branch, as git writes it, but below directories that are held: git
//! would follow a link that an agent has put in the place of `refs/heads`.

use std::io::{self, Write};

use rustix::fs::AtFlags;

use super::WorktreeError;
use super::git::args;
use super::shadow::Shadow;
use crate::gitdir::Directory;

/// `commit` is one of the repository. There must be no such branch yet.
pub(super) fn create(
    shadow: &Shadow,
    common: &Directory,
    branch: &str,
    commit: &str,
) -> Result<(), WorktreeError> {
    let failed = |reason: String| WorktreeError::Branch {
        branch: branch.to_owned(),
        reason,
    };
    if let Some(other) = in_the_way(shadow, branch)? {
        return Err(failed(format!("there is {other:?}")));
    }
    let heads = subdirectory(&common.dir("refs").map_err(failed)?, "heads").map_err(failed)?;
    write(heads, branch, commit).map_err(failed)
}

/// One name cannot be a branch and hold branches.
fn in_the_way(shadow: &Shadow, branch: &str) -> Result<Option<String>, WorktreeError> {
    let prefixes = branch
        .match_indices('/')
        .map(|(end, _)| branch.split_at(end).0);
    let mut others: Vec<String> = prefixes.map(|name| format!("refs/heads/{name}")).collect();
    others.push(format!("refs/heads/{branch}/"));
    for other in others {
        let found = shadow.call(args![
            "for-each-ref",
            "--count=1",
            "--format=%(refname)",
            &other
        ])?;
        if found == other || (other.ends_with('/') && !found.is_empty()) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn write(heads: Directory, branch: &str, commit: &str) -> Result<(), String> {
    let (mut dir, mut name) = (heads, branch);
    while let Some((first, rest)) = name.split_once('/') {
        dir = subdirectory(&dir, first)?;
        name = rest;
    }
    // What branches that are gone have left.
    let _gone = rustix::fs::unlinkat(&dir, name, AtFlags::REMOVEDIR);
    let lock = format!("{name}.lock");
    let failed = |error: io::Error| format!("{:?}: {error}", dir.path().join(&lock));
    let mut file = dir.create(&lock).map_err(failed)?;
    let written =
        file.write_all(format!("{commit}\n").as_bytes())
            .and_then(|()| file.sync_all())
            .map_err(failed)
            .and_then(|()| match dir.has(name)? {
                true => Err(format!("{:?} is there already", dir.path().join(name))),
                false => rustix::fs::renameat(&dir, &lock, &dir, name)
                    .map_err(|error| failed(error.into())),
            });
    if written.is_err() {
        let _gone = rustix::fs::unlinkat(&dir, &lock, AtFlags::empty());
    }
    written
}

fn subdirectory(dir: &Directory, name: &str) -> Result<Directory, String> {
    match dir.create_dir(name) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(format!("{:?}: {error}", dir.path().join(name)))
        }
        _ => dir.dir(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};

    fn place() -> (tempfile::TempDir, PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        std::fs::create_dir_all(base.join("heads")).unwrap();
        std::fs::create_dir_all(base.join("other")).unwrap();
        (temp, base)
    }

    fn write_in(base: &Path, branch: &str) -> Result<(), String> {
        write(
            Directory::open(&base.join("heads")).unwrap(),
            branch,
            "c0ffee",
        )
    }

    #[test]
    fn a_branch_is_a_new_file_and_no_lock_is_left() {
        let (_temp, base) = place();
        for branch in ["w1", "a/b/c"] {
            write_in(&base, branch).unwrap();
            let text = std::fs::read(base.join("heads").join(branch)).unwrap();
            assert_eq!(text, b"c0ffee\n");
            let error = write_in(&base, branch).unwrap_err();
            assert!(error.contains("there already"), "{error}");
        }
        assert!(write_in(&base, "w1/x").is_err());
        assert!(write_in(&base, "a/b").is_err());
        std::fs::remove_file(base.join("heads/a/b/c")).unwrap();
        assert!(
            write_in(&base, "a/b").is_ok(),
            "an empty directory is in the way"
        );
        assert_eq!(base.join("heads").read_dir().unwrap().count(), 2);
    }

    #[test]
    fn links_in_the_place_of_a_branch_or_above_it_lead_nowhere() {
        let (_temp, base) = place();
        std::fs::write(base.join("other/w1"), "kept").unwrap();
        symlink(base.join("other"), base.join("heads/dir")).unwrap();
        symlink(base.join("other/w1"), base.join("heads/w1")).unwrap();
        symlink(base.join("other/none"), base.join("heads/w2.lock")).unwrap();
        for branch in ["dir/w1", "dir/w3", "w1", "w2"] {
            assert!(write_in(&base, branch).is_err(), "{branch}");
        }
        assert_eq!(base.join("other").read_dir().unwrap().count(), 1);
        assert_eq!(std::fs::read(base.join("other/w1")).unwrap(), b"kept");
    }
}
