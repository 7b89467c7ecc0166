//! The policy file -> the policy that holds, again whenever the file changes.
//!
//! What cannot be read as a whole policy changes nothing: the last good one
//! stays, and that is said.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::inotify;

use crate::policy::decide::Rules;

/// Longest policy, in bytes.
const MAX_POLICY: u64 = 16 << 20;

/// What the file looked like when it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// What a look at the file has brought.
#[derive(Debug)]
pub(crate) enum Change {
    None,
    Rules(Box<Rules>),
    /// Said once for each state of the file.
    Broken(String),
}

#[derive(Debug)]
pub(crate) struct PolicyFile {
    path: PathBuf,
    stamp: Option<Stamp>,
    broken: bool,
}

impl PolicyFile {
    pub(crate) fn new(path: PathBuf) -> PolicyFile {
        PolicyFile {
            path,
            stamp: None,
            broken: false,
        }
    }

    /// Reads the file if it is not what it was.
    pub(crate) fn look(&mut self) -> Change {
        match read(&self.path, self.stamp) {
            Ok(None) => Change::None,
            Ok(Some((stamp, text))) => {
                self.stamp = Some(stamp);
                match Rules::from_json(&text) {
                    Ok(rules) => {
                        self.broken = false;
                        Change::Rules(Box::new(rules))
                    }
                    Err(why) => {
                        self.broken = true;
                        Change::Broken(why)
                    }
                }
            }
            // A file that is gone is one state, however often it is looked at.
            Err(_) if self.stamp.is_none() && self.broken => Change::None,
            Err(error) => {
                self.stamp = None;
                self.broken = true;
                Change::Broken(error.to_string())
            }
        }
    }
}

fn read(path: &Path, known: Option<Stamp>) -> io::Result<Option<(Stamp, Vec<u8>)>> {
    let file = File::open(path)?;
    let stamp = Stamp::of(&file.metadata()?);
    if Some(stamp) == known {
        return Ok(None);
    }
    let mut text = Vec::new();
    file.take(MAX_POLICY + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_POLICY {
        return Err(io::Error::other("it is longer than 16 MiB"));
    }
    Ok(Some((stamp, text)))
}

/// Becomes readable when something in the file's directory changes.
pub(crate) fn watch(path: &Path) -> io::Result<OwnedFd> {
    use inotify::{CreateFlags, WatchFlags};
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let what = WatchFlags::CLOSE_WRITE
        | WatchFlags::MOVED_TO
        | WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::ATTRIB;
    inotify::add_watch(&watch, directory, what)?;
    Ok(watch)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"version":1,"workspace":"0123abcd","https":[],"tcp":[],"hosts":[]}"#;

    fn file() -> (tempfile::TempDir, PolicyFile, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy.json");
        (dir, PolicyFile::new(path.clone()), path)
    }

    #[test]
    fn a_policy_is_read_once_for_each_change() {
        let (_dir, mut file, path) = file();
        std::fs::write(&path, GOOD).unwrap();
        assert!(matches!(file.look(), Change::Rules(_)));
        assert!(matches!(file.look(), Change::None));
        // Of another length: the clock of files goes in steps.
        std::fs::write(&path, GOOD.replace("0123", "4567") + "\n").unwrap();
        assert!(
            matches!(file.look(), Change::Rules(rules) if rules.policy().workspace == "4567abcd")
        );
    }

    #[test]
    fn broken_files_are_told_once_and_recovered_from() {
        let (_dir, mut file, path) = file();
        assert!(matches!(file.look(), Change::Broken(_)));
        assert!(matches!(file.look(), Change::None));
        for text in ["", "{", &GOOD[..20], "null"] {
            std::fs::write(&path, text).unwrap();
            assert!(matches!(file.look(), Change::Broken(_)), "{text}");
            assert!(matches!(file.look(), Change::None));
        }
        std::fs::write(&path, GOOD).unwrap();
        assert!(matches!(file.look(), Change::Rules(_)));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(file.look(), Change::Broken(_)));
        assert!(matches!(file.look(), Change::None));
        std::fs::write(&path, GOOD).unwrap();
        assert!(matches!(file.look(), Change::Rules(_)));
    }
}
