//! The record of all commands, on the host's side, out of the sandbox's sight.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;
use serde::Serialize;

use crate::api::Outcome;

/// At this size the journal is moved aside (one old one is kept).
const ROTATE_AT: u64 = 16 << 20;
/// Longest command text in an entry, in bytes.
const MAX_COMMAND: usize = 16 << 10;

#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
}

/// One command that has ended.
#[derive(Debug, Serialize)]
pub(crate) struct Entry<'a> {
    /// Seconds since the epoch, at the end of the command.
    ts: f64,
    client: &'a str,
    /// `shell`, `exec` or `terminal`.
    kind: &'static str,
    command: &'a str,
    cwd: &'a str,
    #[serde(flatten)]
    end: End<'a>,
    duration_ms: u64,
    /// What it printed; not known where the client has the pipes.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
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

/// What is known of a command for its entry.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    pub(crate) client: &'a str,
    pub(crate) kind: &'static str,
    pub(crate) command: &'a str,
    pub(crate) cwd: &'a str,
    pub(crate) end: End<'a>,
    pub(crate) duration_ms: u64,
    pub(crate) bytes: Option<u64>,
}

impl Journal {
    pub(crate) fn new(path: PathBuf) -> Journal {
        Journal { path }
    }

    /// Appends one line. A journal that cannot be written is told in the log;
    /// the command has run already.
    pub(crate) fn append(&self, record: &Record<'_>) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let entry = Entry {
            ts: now.as_secs_f64(),
            client: record.client,
            kind: record.kind,
            command: cut(record.command),
            cwd: record.cwd,
            end: record.end,
            duration_ms: record.duration_ms,
            bytes: record.bytes,
        };
        if let Err(error) = self.write(&entry) {
            log::error!("cannot write the journal {:?}: {error}", self.path);
        }
    }

    fn write(&self, entry: &Entry<'_>) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        let flags = i32::try_from(OFlags::NOFOLLOW.bits()).map_err(io::Error::other)?;
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(flags)
            .open(&self.path)?;
        if file.metadata()?.len() > ROTATE_AT {
            let old = self.path.with_extension("jsonl.1");
            std::fs::rename(&self.path, old)?;
            file = OpenOptions::new()
                .append(true)
                .create_new(true)
                .mode(0o600)
                .open(&self.path)?;
        }
        file.write_all(&line)
    }
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
    fn large_journal_is_moved_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.jsonl");
        std::fs::File::create(&path)
            .unwrap()
            .set_len(ROTATE_AT + 1)
            .unwrap();
        Journal::new(path.clone()).append(&record("x", &Outcome::Cancelled));
        assert!(path.metadata().unwrap().len() < 1000);
        assert!(dir.path().join("j.jsonl.1").exists());
    }

    #[test]
    fn long_command_is_cut_at_a_character() {
        let text = "é".repeat(MAX_COMMAND);
        assert_eq!(cut(&text).len(), MAX_COMMAND);
        assert_eq!(cut(&format!("a{text}")).len(), MAX_COMMAND - 1);
    }
}
