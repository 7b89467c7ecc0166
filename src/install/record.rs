//! install.json: what was installed, for those who have to rely on it.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::install::InstallError;
use crate::install::files;

pub(super) const FILE_NAME: &str = "install.json";
/// Raised when an older umwelt could misread the file.
const SCHEMA: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    schema: u32,
    /// Of the program that wrote this.
    pub(super) version: String,
    /// Seconds since 1970.
    pub(super) time: u64,
    pub(super) program: Option<Program>,
    /// Where the links are.
    pub(super) bin: Option<PathBuf>,
    /// Of the shipped base configuration, when it was looked at last.
    pub(super) config_sha256: Option<String>,
    /// Of the shipped systemd unit, when it was written last.
    pub(super) unit_sha256: Option<String>,
    /// Asked for once, and so until it is asked for otherwise.
    #[serde(default)]
    pub(super) without_egress: bool,
    pub(super) nft: Option<PathBuf>,
    pub(super) authority: Option<AuthorityRecord>,
    pub(super) gateway_image: Option<Image>,
    pub(super) sandbox_image: Option<SandboxImage>,
    /// Settings of clients that umwelt was put into.
    #[serde(default)]
    pub(super) merged: Vec<PathBuf>,
    /// Directories that were not there before, the outermost first.
    #[serde(default)]
    pub(super) created: Vec<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) sha256: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AuthorityRecord {
    pub(super) sha256: String,
    /// Seconds since 1970.
    pub(super) expires: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Image {
    pub(super) name: String,
    pub(super) id: String,
    /// Of the program in it.
    pub(super) program_sha256: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SandboxImage {
    pub(super) name: String,
    pub(super) id: String,
    /// Of the files it is made by.
    pub(super) recipe_sha256: String,
    pub(super) with_build: bool,
    /// Those that were asked for on top of the recipe's.
    pub(super) packages: Vec<String>,
}

impl Record {
    pub(super) fn empty() -> Record {
        Record {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            time: now(),
            program: None,
            bin: None,
            config_sha256: None,
            unit_sha256: None,
            without_egress: false,
            nft: None,
            authority: None,
            gateway_image: None,
            sandbox_image: None,
            merged: Vec::new(),
            created: Vec::new(),
        }
    }

    /// `None` where nothing is installed.
    pub(super) fn load(path: &Path) -> Result<Option<Record>, InstallError> {
        let Some(bytes) = files::read(path)? else {
            return Ok(None);
        };
        let bad = |why: String| InstallError::Record {
            path: path.to_owned(),
            why,
        };
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let Version { schema } =
            serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
        if schema > SCHEMA {
            return Err(InstallError::Newer {
                path: path.to_owned(),
                schema,
            });
        }
        let record = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
        Ok(Some(record))
    }

    pub(super) fn save(&mut self, path: &Path) -> Result<(), InstallError> {
        self.version = env!("CARGO_PKG_VERSION").to_owned();
        self.time = now();
        let mut json = serde_json::to_string_pretty(self)
            .map_err(|error| InstallError::file("write", path, error.into()))?;
        json.push('\n');
        files::replace(path, json.as_bytes(), 0o600)
    }

    pub(super) fn add_created(&mut self, made: Vec<PathBuf>) {
        for dir in made {
            if !self.created.contains(&dir) {
                self.created.push(dir);
            }
        }
    }
}

pub(super) fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        assert_eq!(Record::load(&path).unwrap(), None);
        let mut record = Record::empty();
        record.nft = Some("/usr/sbin/nft".into());
        record.add_created(vec!["/a".into(), "/a/b".into()]);
        record.add_created(vec!["/a/b".into()]);
        record.save(&path).unwrap();
        let read = Record::load(&path).unwrap().unwrap();
        assert_eq!(read, record);
        assert_eq!(read.created.len(), 2);
        assert_eq!(files::mode_of(&path), Some(0o600));
    }

    #[test]
    fn what_is_half_or_from_the_future_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        for text in ["", "{", "[]", r#"{"schema":1}"#] {
            std::fs::write(&path, text).unwrap();
            let error = Record::load(&path).unwrap_err();
            assert!(matches!(error, InstallError::Record { .. }), "{text}");
        }
        std::fs::write(&path, r#"{"schema":2,"new":true}"#).unwrap();
        let error = Record::load(&path).unwrap_err();
        assert!(matches!(error, InstallError::Newer { schema: 2, .. }));
    }
}
