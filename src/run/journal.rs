//! The record of all commands and of what else becomes of a sandbox, on the
//! host's side, out of the sandbox's sight.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, OFlags};
use serde::{Serialize, Serializer};

use crate::api::Outcome;

/// At this size the journal is moved aside (one old one is kept).
const ROTATE_AT: u64 = 8 << 20;
/// Longest command text in an entry, in bytes.
const MAX_COMMAND: usize = 16 << 10;

#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    /// Entries that could not be written since the last one that could.
    missing: Cell<u64>,
    /// A part of the last of those was written.
    is_cut: Cell<bool>,
}

/// What happens to a sandbox beside its commands. One variant is one `kind`.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Entry<'a> {
    /// A container is there, verified. `restarts` counts those that died before.
    Started { image: &'a str, restarts: u32 },
    /// It is gone: asked for, or by itself.
    Ended { reason: &'a str },
    Grant {
        path: &'a str,
        /// `ro` or `rw`.
        mode: &'a str,
        persist: bool,
        client: &'a str,
        /// `live`, `recreated` or `unchanged`.
        applied: &'a str,
        /// That a mask hides the file otherwise, and why.
        #[serde(skip_serializing_if = "Option::is_none")]
        mask: Option<&'a str>,
    },
    /// A grant that was asked for and not given.
    Refused {
        path: &'a str,
        mode: &'a str,
        client: &'a str,
        reason: &'a str,
    },
    Revoke {
        path: &'a str,
        client: &'a str,
        applied: &'a str,
    },
    /// A new container took the place of one that ran, on purpose.
    Recreated {
        reason: &'a str,
        /// The commands that ended with it.
        lost: &'a [String],
    },
    /// A rule of the network was to be added or removed.
    Egress {
        /// `add` or `remove`.
        op: &'a str,
        rule: &'a str,
        client: &'a str,
        /// `live`, `relayed`, `pending_removal`, `next_start`, `unchanged` or
        /// `refused`.
        applied: &'a str,
        /// Why it was refused.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<&'a str>,
    },
    /// The record of trust in the workspace file has changed.
    Trust {
        /// `trusted` or `revoked`.
        change: &'a str,
        client: &'a str,
    },
    /// So many entries before this one could not be written.
    Gap { missing: u64 },
}

/// One line: when, and what.
#[derive(Serialize)]
struct Line<T> {
    /// Seconds since the epoch; of a command, at its end.
    ts: f64,
    #[serde(flatten)]
    what: T,
}

/// What became of a command.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(untagged)]
pub(crate) enum End<'a> {
    Ran(&'a Outcome),
    /// It could not be started, for this reason.
    NotStarted {
        not_started: &'a str,
    },
}

/// One command that has ended, or could not begin.
#[derive(Debug, Serialize)]
pub(crate) struct Record<'a> {
    pub(crate) client: &'a str,
    /// `shell`, `exec` or `terminal`.
    pub(crate) kind: &'static str,
    #[serde(serialize_with = "serialize_cut")]
    pub(crate) command: &'a str,
    pub(crate) cwd: &'a str,
    #[serde(flatten)]
    pub(crate) end: End<'a>,
    pub(crate) duration_ms: u64,
    /// What it printed; not known where the client has the pipes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<u64>,
    /// What the result says of files that the host obeys.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(crate) changes: &'a [String],
}

impl Journal {
    pub(crate) fn new(path: PathBuf) -> Journal {
        Journal {
            path,
            missing: Cell::new(0),
            is_cut: Cell::new(false),
        }
    }

    /// Appends a command.
    pub(crate) fn append(&self, record: &Record<'_>) {
        self.append_line(record);
    }

    /// Appends anything else.
    pub(crate) fn record(&self, entry: &Entry<'_>) {
        self.append_line(entry);
    }

    /// A journal that cannot be written is told in the log, once, and how much
    /// is missing in the journal itself; what it should tell of has happened
    /// already.
    fn append_line(&self, what: impl Serialize) {
        let missing = self.missing.get();
        match self.write(&what, missing) {
            Ok(()) if missing == 0 => {}
            Ok(()) => {
                self.missing.set(0);
                self.is_cut.set(false);
                log::info!("the journal {:?} is written again", self.path);
            }
            Err(error) => {
                if missing == 0 {
                    log::error!("cannot write the journal {:?}: {error}", self.path);
                }
                self.missing.set(missing.saturating_add(1));
            }
        }
    }

    /// Opens the file each time, which costs a few microseconds: it may have
    /// been moved aside, by another process too.
    fn write(&self, what: &impl Serialize, missing: u64) -> io::Result<()> {
        let mut lines = Vec::new();
        if self.is_cut.get() {
            lines.push(b'\n');
        }
        if missing > 0 {
            push_line(&mut lines, &Entry::Gap { missing })?;
        }
        push_line(&mut lines, what)?;
        let mut file = self.open()?;
        if file.metadata()?.len() > ROTATE_AT && self.rotate(&file)? {
            file = self.open()?;
        }
        // One write, so that lines of several processes do not mix; on a full
        // disk it takes a part.
        let written = file.write(&lines)?;
        let rest = lines.get(written..).unwrap_or_default();
        file.write_all(rest).inspect_err(|_| self.is_cut.set(true))
    }

    /// Whether there is a new file to be opened. Of two processes that find it
    /// large at once, the second must not move the first one's new file.
    fn rotate(&self, file: &File) -> io::Result<bool> {
        if rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(false);
        }
        let (held, named) = (file.metadata()?, self.path.symlink_metadata()?);
        if (held.dev(), held.ino()) == (named.dev(), named.ino()) {
            std::fs::rename(&self.path, older(&self.path))?;
        }
        Ok(true)
    }

    fn open(&self) -> io::Result<File> {
        let flags = i32::try_from(OFlags::NOFOLLOW.bits()).map_err(io::Error::other)?;
        OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(flags)
            .open(&self.path)
    }
}

fn push_line(lines: &mut Vec<u8>, what: &impl Serialize) -> io::Result<()> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let line = Line {
        ts: now.as_secs_f64(),
        what,
    };
    serde_json::to_writer(&mut *lines, &line)?;
    lines.push(b'\n');
    Ok(())
}

/// Where a journal is moved when it has become large.
pub(crate) fn older(path: &Path) -> PathBuf {
    path.with_extension("jsonl.1")
}

fn serialize_cut<S: Serializer>(command: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(cut(command))
}

/// What is kept of a command text.
pub(crate) fn cut(command: &str) -> &str {
    let mut end = command.len().min(MAX_COMMAND);
    while !command.is_char_boundary(end) {
        end -= 1;
    }
    command.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record<'a>(command: &'a str, outcome: &'a Outcome) -> Record<'a> {
        Record {
            client: "c",
            kind: "shell",
            command,
            cwd: "/w",
            end: End::Ran(outcome),
            duration_ms: 5,
            bytes: Some(3),
            changes: &[],
        }
    }

    #[test]
    fn entries_are_lines_of_json() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::new(dir.path().join("j.jsonl"));
        journal.append(&record("echo a\necho b", &Outcome::Exited { code: 0 }));
        journal.append(&record("x", &Outcome::TimedOut { after_s: 2 }));
        let end = End::NotStarted {
            not_started: "no such file",
        };
        journal.append(&Record {
            end,
            ..record("y", &Outcome::Cancelled)
        });
        let text = std::fs::read_to_string(dir.path().join("j.jsonl")).unwrap();
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines[0]["command"], "echo a\necho b");
        assert_eq!(lines[1]["ended"], "timed_out");
        assert_eq!(lines[2]["not_started"], "no such file");
    }

    #[test]
    fn each_entry_has_its_kind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.jsonl");
        let journal = Journal::new(path.clone());
        journal.record(&Entry::Grant {
            path: "/h/x\n{}",
            mode: "ro",
            persist: false,
            client: "c",
            applied: "live",
            mask: None,
        });
        journal.record(&Entry::Recreated {
            reason: "grant",
            lost: &["make".to_owned()],
        });
        let changes = ["\".envrc\" was changed".to_owned()];
        journal.append(&Record {
            changes: &changes,
            ..record("x", &Outcome::Exited { code: 0 })
        });
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let lines: Vec<serde_json::Value> = lines.collect();
        let kinds = ["grant", "recreated", "shell"];
        assert_eq!(lines.len(), kinds.len());
        for (line, kind) in lines.iter().zip(kinds) {
            assert_eq!(line["kind"], kind);
            assert!(line["ts"].as_f64().unwrap() > 0.0);
        }
        assert_eq!(lines[1]["lost"][0], "make");
        assert_eq!(lines[2]["changes"][0], changes[0]);
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_link_in_its_place_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.jsonl");
        std::os::unix::fs::symlink(dir.path().join("other"), &path).unwrap();
        Journal::new(path).append(&record("x", &Outcome::Cancelled));
        assert!(!dir.path().join("other").exists());
    }

    #[test]
    fn large_journal_is_moved_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.jsonl");
        File::create(&path).unwrap().set_len(ROTATE_AT + 1).unwrap();
        Journal::new(path.clone()).append(&record("x", &Outcome::Cancelled));
        assert!(path.metadata().unwrap().len() < 1000);
        assert!(dir.path().join("j.jsonl.1").exists());
    }

    #[test]
    fn what_could_not_be_written_is_counted_in_the_journal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gone").join("j.jsonl");
        let journal = Journal::new(path.clone());
        for _ in 0..3 {
            journal.append(&record("lost", &Outcome::Cancelled));
        }
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        for _ in 0..2 {
            journal.append(&record("kept", &Outcome::Cancelled));
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let lines: Vec<serde_json::Value> = lines.collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!(
            (&lines[0]["kind"], &lines[0]["missing"]),
            (&"gap".into(), &3.into())
        );
        assert_eq!(
            (&lines[1]["command"], &lines[2]["command"]),
            (&"kept".into(), &"kept".into())
        );
    }

    #[test]
    fn line_that_was_cut_by_a_full_disk_is_ended_before_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.jsonl");
        std::fs::write(&path, r#"{"ts":1.0,"ki"#).unwrap();
        let journal = Journal::new(path.clone());
        journal.missing.set(1);
        journal.is_cut.set(true);
        journal.append(&record("kept", &Outcome::Cancelled));
        let text = std::fs::read_to_string(&path).unwrap();
        let kinds: Vec<Option<serde_json::Value>> = text
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
            .map(|line| line.map(|line| line["kind"].clone()))
            .collect();
        assert_eq!(kinds, [None, Some("gap".into()), Some("shell".into())]);
    }

    #[test]
    fn second_of_two_that_find_it_large_does_not_move_the_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.jsonl");
        File::create(&path).unwrap().set_len(ROTATE_AT + 1).unwrap();
        let journal = Journal::new(path.clone());
        let seen_large = journal.open().unwrap();
        journal.append(&record("first", &Outcome::Cancelled));
        assert!(journal.rotate(&seen_large).unwrap());
        assert!(std::fs::read_to_string(&path).unwrap().contains("first"));
        assert!(older(&path).metadata().unwrap().len() > ROTATE_AT);
    }

    #[test]
    fn long_command_is_cut_at_a_character() {
        let text = "é".repeat(MAX_COMMAND);
        assert_eq!(cut(&text).len(), MAX_COMMAND);
        assert_eq!(cut(&format!("a{text}")).len(), MAX_COMMAND - 1);
    }
}
