//! The page -> a file of the user's, whole or not at all, for nobody else to
//! read. An agent may write where a person has it made, so no link is followed.

use std::io;
use std::path::{Path, PathBuf};

use crate::ctl::audit::AuditError;
use crate::trust::directory::{Contents, Directory, ReplaceError};

pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), AuditError> {
    let failed = |error| AuditError::Write(path.to_owned(), error);
    let (parent, name) = split(path).map_err(failed)?;
    if let Some(what) = in_the_way(&parent.join(name)) {
        let path = path.to_owned();
        return Err(AuditError::NotPlain { path, what });
    }
    let directory = Directory::open(&parent).map_err(failed)?;
    let contents = Contents {
        bytes: bytes.to_owned(),
        mode: 0o600,
    };
    directory.put(name, &contents).map_err(|error| match error {
        ReplaceError::Changed => failed(io::Error::other("it was changed meanwhile")),
        ReplaceError::Io(error) => failed(error),
    })
}

/// The directory without links on the way, and the name in it.
fn split(path: &Path) -> io::Result<(PathBuf, &str)> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.filter(|_| !path.as_os_str().to_string_lossy().ends_with('/'));
    let name = name.ok_or_else(|| io::Error::other("it does not end in the name of a file"))?;
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    Ok((parent.canonicalize()?, name))
}

/// What is there that is no regular file.
fn in_the_way(path: &Path) -> Option<&'static str> {
    let kind = path.symlink_metadata().ok()?.file_type();
    match () {
        () if kind.is_file() => None,
        () if kind.is_symlink() => Some("a symbolic link"),
        () if kind.is_dir() => Some("a directory"),
        () => Some("no regular file"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_page_is_made_and_replaced_for_the_user_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.html");
        for text in ["one", "two"] {
            write(&path, text.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            let mode = path.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_plain_file_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let other = dir.path().join("other");
        std::fs::write(&other, "mine").unwrap();
        let link = dir.path().join("link");
        symlink(&other, &link).unwrap();
        symlink(dir.path().join("new"), dir.path().join("dangling")).unwrap();
        for path in [&link, &dir.path().join("dangling"), dir.path()] {
            let error = write(path, b"page").unwrap_err();
            assert!(matches!(error, AuditError::NotPlain { .. }), "{error}");
        }
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "mine");
        assert!(!dir.path().join("new").exists());
        for path in ["..", "/", "", "no/such/dir/x.html"] {
            assert!(write(Path::new(path), b"page").is_err(), "{path}");
        }
        let slash = format!("{}/", dir.path().join("x").display());
        assert!(write(Path::new(&slash), b"page").is_err());
    }
}
