//! The trust record of a workspace: which content of its file the user has
//! accepted. It stands where no sandbox reaches.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::digest::sha256;
use crate::dirs::{self, Dirs};
use crate::sys::lock;
use crate::trust::TrustError;
use crate::trust::directory::{Contents, Directory, ReplaceError};
use crate::workspace::SessionId;

const VERSION: u32 = 1;
/// A workspace file twice, each byte as the longest escape of JSON.
const MAX_RECORD: u64 = 4 << 20;
/// Whoever holds the lock writes two small files.
const LOCK_WAIT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    version: u32,
    /// The real path: a session id is short, and could be that of two.
    workspace: String,
    pub(super) accepted: Accepted,
    /// What umwelt itself is about to write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<Accepted>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Accepted {
    sha256: String,
    /// To show later what has changed.
    pub(super) text: String,
    /// Seconds since 1970.
    at: u64,
}

impl Accepted {
    pub(super) fn now(text: &str) -> Accepted {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Accepted {
            sha256: digest(text),
            text: text.to_owned(),
            at: now.map_or(0, |since| since.as_secs()),
        }
    }
}

impl Record {
    pub(super) fn new(workspace: &str, accepted: Accepted) -> Record {
        Record {
            version: VERSION,
            workspace: workspace.to_owned(),
            accepted,
            next: None,
        }
    }

    pub(super) fn with_next(mut self, next: Accepted) -> Record {
        self.next = Some(next);
        self
    }

    pub(super) fn accepts(&self, text: &str) -> bool {
        let digest = digest(text);
        let next = self.next.as_ref();
        std::iter::once(&self.accepted)
            .chain(next)
            .any(|accepted| accepted.sha256 == digest)
    }

    /// Nothing in it is believed that does not fit.
    fn parse(bytes: &[u8], workspace: &str) -> Result<Record, String> {
        let record: Record = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if record.version != VERSION {
            return Err(format!("it has version {}, not {VERSION}", record.version));
        }
        if record.workspace != workspace {
            return Err(format!("it is the one of {:?}", record.workspace));
        }
        let mut contents = std::iter::once(&record.accepted).chain(&record.next);
        if contents.any(|accepted| accepted.sha256 != digest(&accepted.text)) {
            return Err("its digest is not that of its text".to_owned());
        }
        Ok(record)
    }
}

pub(super) fn digest(text: &str) -> String {
    sha256(text.as_bytes())
}

/// Where the record of one workspace is kept.
#[derive(Debug)]
pub(super) struct Shelf {
    dir: PathBuf,
    sid: String,
    workspace: String,
}

/// Held while record and file are changed together.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Shelf {
    pub(super) fn new(dirs: &Dirs, sid: &SessionId, workspace: &str) -> Shelf {
        Shelf {
            dir: dirs.state.join("trust"),
            sid: sid.to_string(),
            workspace: workspace.to_owned(),
        }
    }

    fn name(&self) -> String {
        format!("{}.json", self.sid)
    }

    /// The record; the error says in a sentence why it cannot be believed.
    pub(super) fn load(&self) -> Result<Option<Record>, String> {
        match self.contents()? {
            None => Ok(None),
            Some(contents) => Record::parse(&contents.bytes, &self.workspace).map(Some),
        }
    }

    fn contents(&self) -> Result<Option<Contents>, String> {
        if !self.dir.exists() {
            return Ok(None);
        }
        dirs::check_private(&self.dir).map_err(|error| error.to_string())?;
        let directory = self.directory().map_err(|error| error.to_string())?;
        let contents = directory.read(&self.name(), MAX_RECORD);
        match contents.map_err(|error| error.to_string())? {
            Some(contents) if contents.mode & 0o077 != 0 => {
                Err(format!("it has mode {:03o}, not 600", contents.mode))
            }
            contents => Ok(contents),
        }
    }

    pub(super) fn save(&self, record: &Record) -> Result<(), TrustError> {
        dirs::create_private(&self.dir)?;
        let save =
            |error| TrustError::io(format!("save the trust record {:?}", self.path()), error);
        let bytes = serde_json::to_vec_pretty(record).map_err(|error| save(error.into()))?;
        let contents = Contents { bytes, mode: 0o600 };
        let put = self.directory()?.put(&self.name(), &contents);
        put.map_err(|error| match error {
            ReplaceError::Io(error) => save(error),
            ReplaceError::Changed => TrustError::Record(self.path()),
        })
    }

    /// Whether there was one.
    pub(super) fn remove(&self) -> Result<bool, TrustError> {
        if !self.dir.exists() {
            return Ok(false);
        }
        self.directory()?
            .remove(&self.name())
            .map_err(|error| TrustError::io(format!("remove {:?}", self.path()), error))
    }

    pub(super) fn path(&self) -> PathBuf {
        self.dir.join(self.name())
    }

    fn directory(&self) -> Result<Directory, TrustError> {
        let open = |error| TrustError::io(format!("open {:?}", self.dir), error);
        // Links on the way to it are the user's own.
        let real = self.dir.canonicalize().map_err(open)?;
        Directory::open(&real).map_err(open)
    }

    /// Keeps out every other process that wants to change record or file.
    pub(super) fn lock(&self) -> Result<Lock, TrustError> {
        dirs::create_private(&self.dir)?;
        let path = self.dir.join(format!("{}.lock", self.sid));
        let failed = |error| TrustError::io(format!("lock {path:?}"), error);
        match lock::take(&path, LOCK_WAIT).map_err(failed)? {
            Some(file) => Ok(Lock { _file: file }),
            None => Err(TrustError::Busy(path)),
        }
    }
}

/// The workspace that the record of a session id belongs to.
pub(crate) fn workspace_of(sid: &SessionId, dirs: &Dirs) -> Option<PathBuf> {
    let path = dirs.state.join("trust").join(format!("{sid}.json"));
    let metadata = path.symlink_metadata().ok()?;
    if !metadata.is_file() || metadata.size() > MAX_RECORD {
        return None;
    }
    let record: Record = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    Some(PathBuf::from(record.workspace))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn parse(value: &Value) -> Result<Record, String> {
        Record::parse(value.to_string().as_bytes(), "/w")
    }

    fn good() -> Value {
        let record = Record::new("/w", Accepted::now("a\n")).with_next(Accepted::now("b\n"));
        serde_json::to_value(record).unwrap()
    }

    #[test]
    fn record_accepts_its_own_texts_only() {
        let record = parse(&good()).unwrap();
        assert!(record.accepts("a\n") && record.accepts("b\n"));
        assert!(!record.accepts("a") && !record.accepts("") && !record.accepts("c\n"));
    }

    #[test]
    fn record_that_does_not_fit_is_not_believed() {
        let change = |path: &str, value: Value| {
            let mut record = good();
            *record.pointer_mut(path).unwrap() = value;
            record
        };
        let mut more = good();
        more["more"] = json!(1);
        for (record, wanted) in [
            (change("/version", json!(2)), "version 2"),
            (
                change("/workspace", json!("/other")),
                "the one of \"/other\"",
            ),
            (change("/accepted/sha256", json!(digest("x"))), "digest"),
            (change("/accepted/text", json!("x")), "digest"),
            (change("/next/text", json!("x")), "digest"),
            (change("/accepted/at", json!("now")), "invalid type"),
            (more, "unknown field"),
            (json!([]), "invalid"),
        ] {
            let problem = parse(&record).unwrap_err();
            assert!(problem.contains(wanted), "{record}: {problem}");
        }
    }
}
