//! Reads a configuration file without trusting what it is.

use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::config::ConfigError;
use crate::sys;

/// Longest configuration file, in bytes.
const LIMIT: u64 = 256 << 10;

/// The text of the file, or `None` where there is none. A link is followed
/// (people link their dotfiles), but what it leads to must be a regular file
/// that only this user or root can write.
pub(crate) fn load(path: &Path) -> Result<Option<String>, ConfigError> {
    let read = |error| ConfigError::Read(path.to_owned(), error);
    // Without O_NONBLOCK the open of a FIFO would wait for a writer.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let file = match std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
    {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !is_link(path) => {
            return Ok(None);
        }
        Err(error) => return Err(read(error)),
    };
    let metadata = file.metadata().map_err(read)?;
    if !metadata.is_file() {
        return Err(ConfigError::NotAFile(path.to_owned()));
    }
    let not_ours = |reason| ConfigError::NotOurs {
        path: path.to_owned(),
        reason,
    };
    let owner = metadata.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(not_ours(format!("it belongs to uid {owner}")));
    }
    if sys::user::others_can_write(&metadata) {
        return Err(not_ours(format!(
            "others can write it (mode {:03o})",
            metadata.mode() & 0o777
        )));
    }
    let mut bytes = Vec::new();
    file.take(LIMIT + 1).read_to_end(&mut bytes).map_err(read)?;
    if bytes.len() as u64 > LIMIT {
        return Err(ConfigError::TooLarge {
            path: path.to_owned(),
            limit: LIMIT,
        });
    }
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|_| ConfigError::NotUtf8(path.to_owned()))
}

/// A dangling link is an error, not a missing file.
fn is_link(path: &Path) -> bool {
    path.symlink_metadata()
        .is_ok_and(|metadata| metadata.is_symlink())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn missing_is_none_and_dangling_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(load(&dir.path().join("none")).unwrap().is_none());
        std::os::unix::fs::symlink("nowhere", dir.path().join("link")).unwrap();
        assert!(matches!(
            load(&dir.path().join("link")),
            Err(ConfigError::Read(..))
        ));
    }

    #[test]
    fn fifo_directory_and_large_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        assert!(matches!(load(&fifo), Err(ConfigError::NotAFile(_))));
        assert!(matches!(load(dir.path()), Err(ConfigError::NotAFile(_))));
        let large = dir.path().join("large");
        std::fs::write(&large, vec![b'#'; 300 << 10]).unwrap();
        assert!(matches!(load(&large), Err(ConfigError::TooLarge { .. })));
    }

    #[test]
    fn writable_by_everybody_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c");
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(matches!(load(&path), Err(ConfigError::NotOurs { .. })));
    }
}
