//! What was asked for and what became of it -> one JSON line each, appended to
//! a file outside of the sandbox.
//!
//! Fails closed: while lines cannot be written, nothing new is allowed.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;
use serde::Serialize;

/// Most bytes that wait for a disk with room.
const MAX_BACKLOG: usize = 1 << 20;
/// Most of a text that is kept, in bytes.
const MAX_TEXT: usize = 1024;
/// How often a failing disk is tried again.
const RETRY: Duration = Duration::from_millis(100);

/// One line. Never a query string, never the value of a field.
#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct Record<'a> {
    #[serde(rename = "type")]
    pub(crate) r#type: Type,
    pub(crate) ts: Timestamp,
    pub(crate) workspace: &'a str,
    /// `https`, `tunnel`, `websocket`, `tcp`, `dns`, `policy` or `gateway`.
    pub(crate) kind: &'a str,
    /// `open` and `end` of what lasts; the other kinds have one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) event: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<&'a str>,
    /// `allow` or `deny`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) verdict: Option<&'a str>,
    /// Why it was denied, or how an allowed one failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<&'a str>,
    /// Where the rule comes from that allowed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rule: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<u16>,
    /// Bytes of bodies, or of the connection, from and to the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) up: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) down: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ms: Option<u64>,
}

/// Always `umwelt-egress`.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Type;

impl Serialize for Type {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str("umwelt-egress")
    }
}

/// Seconds since the epoch, to the millisecond.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timestamp(SystemTime);

impl Default for Timestamp {
    fn default() -> Timestamp {
        Timestamp(SystemTime::now())
    }
}

impl Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let since = self.0.duration_since(UNIX_EPOCH).unwrap_or_default();
        let ms = u32::try_from(since.as_millis() % 1000).unwrap_or_default();
        let seconds = Duration::from_secs(since.as_secs()).as_secs_f64();
        out.serialize_f64(seconds + f64::from(ms) / 1000.0)
    }
}

impl<'a> Record<'a> {
    pub(crate) fn denied(kind: &'a str, why: &'a str) -> Record<'a> {
        Record {
            kind,
            verdict: Some("deny"),
            why: Some(why),
            ..Record::default()
        }
    }

    /// Appends this record as a line.
    pub(crate) fn write_to(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let [method, path, why] = [self.method, self.path, self.why].map(|text| text.map(cut));
        let record = Record {
            method: method.as_deref(),
            path: path.as_deref(),
            why: why.as_deref(),
            ..self.clone()
        };
        match serde_json::to_writer(&mut *out, &record) {
            Ok(()) => out.push(b'\n'),
            Err(_) => out.truncate(start),
        }
    }
}

/// What a client has made up, as it is kept: who may ask for anything shall not
/// push the history out of the files with a few hundred requests.
fn cut(text: &str) -> Cow<'_, str> {
    if text.len() <= MAX_TEXT {
        return Cow::Borrowed(text);
    }
    let end = (0..=MAX_TEXT).rev().find(|end| text.is_char_boundary(*end));
    let front = text.get(..end.unwrap_or_default()).unwrap_or_default();
    Cow::Owned(format!("{front}…"))
}

/// Bounds of the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rotation {
    pub(crate) size: u64,
    /// How many old files are kept.
    pub(crate) keep: u32,
}

#[derive(Debug)]
pub(crate) struct Audit {
    writer: Mutex<Writer>,
    healthy: AtomicBool,
}

#[derive(Debug)]
struct Writer {
    path: PathBuf,
    rotation: Rotation,
    file: File,
    size: u64,
    /// Lines that are not written yet, whole but for the first.
    backlog: Vec<u8>,
    /// The file ends within a line, of which the backlog has the rest.
    is_within_line: bool,
    lost: u64,
    last_try: Instant,
    /// Said once.
    rotation_failed: bool,
}

impl Audit {
    pub(crate) fn open(path: &Path, rotation: Rotation) -> io::Result<Audit> {
        let (file, size) = open(path)?;
        // Whoever wrote it before may have been killed.
        let is_torn = size > 0 && last_byte(path) != Some(b'\n');
        Ok(Audit {
            healthy: AtomicBool::new(true),
            writer: Mutex::new(Writer {
                path: path.to_owned(),
                rotation,
                file,
                size,
                backlog: if is_torn { vec![b'\n'] } else { Vec::new() },
                is_within_line: is_torn,
                lost: 0,
                last_try: Instant::now(),
                rotation_failed: false,
            }),
        })
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends whole lines.
    pub(crate) fn write(&self, lines: &[u8]) {
        let mut writer = self.writer();
        writer.backlog.extend_from_slice(lines);
        self.flush(&mut writer);
        writer.bound();
    }

    /// Appends one line at once.
    pub(crate) fn record(&self, record: &Record<'_>) {
        let mut line = Vec::new();
        record.write_to(&mut line);
        self.write(&line);
    }

    /// Whether new requests may be allowed. While not, the disk is tried again
    /// now and then.
    pub(crate) fn is_ready(&self) -> bool {
        if self.healthy.load(Ordering::Acquire) {
            return true;
        }
        let mut writer = self.writer();
        if writer.last_try.elapsed() >= RETRY {
            self.flush(&mut writer);
        }
        self.healthy.load(Ordering::Acquire)
    }

    fn flush(&self, writer: &mut Writer) {
        let result = writer.flush();
        let was_healthy = self.healthy.swap(result.is_ok(), Ordering::AcqRel);
        match result {
            Err(error) if was_healthy => log::error!(
                "cannot write the audit {:?}: {error}; nothing new is allowed until it can be written",
                writer.path
            ),
            Ok(()) if !was_healthy => log::warn!("the audit {:?} is written again", writer.path),
            _ => {}
        }
    }
}

impl Writer {
    /// What the disk has not taken is kept up to a limit, in whole lines.
    fn bound(&mut self) {
        let Some(over) = self
            .backlog
            .get(MAX_BACKLOG..)
            .filter(|over| !over.is_empty())
        else {
            return;
        };
        let count = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count();
        let kept = self.backlog.get(..MAX_BACKLOG).unwrap_or_default();
        let end = kept.iter().rposition(|byte| *byte == b'\n');
        self.lost += count(over) as u64;
        self.backlog.truncate(end.map_or(0, |end| end + 1));
    }

    fn flush(&mut self) -> io::Result<()> {
        self.last_try = Instant::now();
        self.write_backlog()?;
        if self.lost == 0 {
            return Ok(());
        }
        // Not before there is room: it would be lost too, or be too much.
        let why = format!("{} lines were lost while the disk was full", self.lost);
        let record = Record {
            kind: "gateway",
            why: Some(&why),
            ..Record::default()
        };
        record.write_to(&mut self.backlog);
        self.lost = 0;
        self.write_backlog()
    }

    fn write_backlog(&mut self) -> io::Result<()> {
        let is_much = self.size + self.backlog.len() as u64 > self.rotation.size;
        if self.size > 0 && is_much && !self.is_within_line {
            self.rotate();
        }
        while !self.backlog.is_empty() {
            match self.file.write(&self.backlog) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.size += written as u64;
                    let last = self.backlog.get(written.saturating_sub(1));
                    self.is_within_line = last != Some(&b'\n');
                    self.backlog.drain(..written);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn rotate(&mut self) {
        match self.move_aside() {
            Ok((file, size)) => {
                self.file = file;
                self.size = size;
            }
            Err(error) if !self.rotation_failed => {
                self.rotation_failed = true;
                log::warn!(
                    "cannot rotate the audit {:?}: {error}; it grows on",
                    self.path
                );
            }
            Err(_) => {}
        }
    }

    /// The next file comes first: without one, nothing is moved.
    fn move_aside(&self) -> io::Result<(File, u64)> {
        let next = beside(&self.path, "new");
        let opened = open(&next)?;
        // It is gone where this was cut short before.
        if std::fs::symlink_metadata(&self.path).is_ok() {
            self.shift()?;
        }
        std::fs::rename(&next, &self.path)?;
        Ok(opened)
    }

    fn shift(&self) -> io::Result<()> {
        for number in (1..self.rotation.keep).rev() {
            match std::fs::rename(old(&self.path, number), old(&self.path, number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        std::fs::rename(&self.path, old(&self.path, 1))
    }
}

fn old(path: &Path, number: u32) -> PathBuf {
    beside(path, &number.to_string())
}

fn beside(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

fn last_byte(path: &Path) -> Option<u8> {
    let mut file = File::open(path).ok()?;
    file.seek(SeekFrom::End(-1)).ok()?;
    let mut last = [0];
    file.read_exact(&mut last).ok()?;
    last.first().copied()
}

fn open(path: &Path) -> io::Result<(File, u64)> {
    // Opening a FIFO would wait for whoever reads it.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(flags)
        .open(path)?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROTATION: Rotation = Rotation {
        size: 1000,
        keep: 2,
    };

    fn record(path: &str) -> Record<'_> {
        Record {
            workspace: "0123abcd",
            kind: "https",
            method: Some("GET"),
            host: Some("a.example.org"),
            port: Some(443),
            path: Some(path),
            verdict: Some("allow"),
            ..Record::default()
        }
    }

    #[test]
    fn a_record_is_a_line_with_the_known_keys() {
        let mut line = Vec::new();
        record("/a\nb").write_to(&mut line);
        let text = String::from_utf8(line).unwrap();
        assert_eq!(text.matches('\n').count(), 1);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["type"], "umwelt-egress");
        assert_eq!(value["workspace"], "0123abcd");
        assert!(value["ts"].as_f64().unwrap() > 1e9);
        assert_eq!(value["path"], "/a\nb");
        assert_eq!(value.get("status"), None);
    }

    #[test]
    fn files_are_rotated_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let audit = Audit::open(&path, ROTATION).unwrap();
        for _ in 0..60 {
            audit.record(&record("/x"));
        }
        let mut names: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]);
        for name in names {
            let text = std::fs::read_to_string(dir.path().join(name)).unwrap();
            assert!(text.len() <= 1000);
            assert!(
                text.lines()
                    .all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok())
            );
        }
    }

    #[test]
    fn a_full_disk_is_not_ready_and_its_lines_wait_bounded() {
        let audit = Audit::open(Path::new("/dev/full"), ROTATION).unwrap();
        assert!(audit.is_ready());
        for _ in 0..20_000 {
            audit.record(&record("/x"));
        }
        assert!(!audit.is_ready());
        let mut writer = audit.writer();
        assert!(writer.backlog.len() <= MAX_BACKLOG);
        let waiting = writer.backlog.iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(waiting as u64 + writer.lost, 20_000);
        // What could not wait is told once there is room.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        writer.file = open(&path).unwrap().0;
        writer.rotation.size = u64::MAX;
        let lost = format!("{} lines were lost", writer.lost);
        writer.flush().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), waiting + 1);
        assert!(text.lines().last().unwrap().contains(&lost));
    }

    #[test]
    fn a_turn_with_much_to_tell_is_told_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let rotation = Rotation {
            size: u64::MAX,
            keep: 1,
        };
        let audit = Audit::open(&path, rotation).unwrap();
        let mut lines = Vec::new();
        while lines.len() < 2 * MAX_BACKLOG {
            record("/x").write_to(&mut lines);
        }
        audit.write(&lines);
        assert!(audit.is_ready());
        assert_eq!(std::fs::read(&path).unwrap(), lines);
    }

    #[test]
    fn long_texts_are_kept_in_part() {
        let written = |text: &str| {
            let record = Record {
                method: Some(text),
                why: Some(text),
                ..record(text)
            };
            let mut line = Vec::new();
            record.write_to(&mut line);
            let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
            let texts = ["method", "path", "why"].map(|key| line[key].as_str().unwrap().to_owned());
            assert!(texts.iter().all(|text| *text == texts[0]));
            texts[0].clone()
        };
        let whole = format!("/{}", "x".repeat(MAX_TEXT - 1));
        assert_eq!(written(&whole), whole);
        assert_eq!(written(&format!("{whole}y")), format!("{whole}…"));
        let end = format!("/{}", "é".repeat(MAX_TEXT));
        assert!(written(&end).len() < MAX_TEXT + 4);
    }

    #[test]
    fn rotation_that_fails_moves_nothing_and_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let audit = Audit::open(&path, ROTATION).unwrap();
        let lines = |path: PathBuf| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.lines().count()
        };
        // What is in the way cannot be opened.
        std::fs::create_dir(beside(&path, "new")).unwrap();
        for _ in 0..60 {
            audit.record(&record("/x"));
        }
        assert_eq!((lines(path.clone()), lines(old(&path, 1))), (60, 0));
        std::fs::remove_dir(beside(&path, "new")).unwrap();
        audit.record(&record("/x"));
        assert_eq!((lines(path.clone()), lines(old(&path, 1))), (1, 60));
        // As if it had been cut short when the old file was moved.
        std::fs::rename(&path, old(&path, 2)).unwrap();
        audit.writer().size = ROTATION.size;
        audit.record(&record("/x"));
        assert_eq!((lines(path.clone()), lines(old(&path, 1))), (1, 60));
    }

    #[test]
    fn line_that_somebody_else_has_torn_stays_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        std::fs::write(&path, "{\"torn").unwrap();
        for _ in 0..2 {
            let audit = Audit::open(&path, ROTATION).unwrap();
            audit.record(&record("/x"));
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines[0], lines.len()), ("{\"torn", 3));
        let is_whole = |line: &&str| serde_json::from_str::<serde_json::Value>(line).is_ok();
        assert!(lines[1..].iter().all(is_whole), "{text}");
    }

    #[test]
    fn line_that_is_written_in_part_is_not_torn_by_a_rotation() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let audit = Audit::open(&path, ROTATION).unwrap();
        let mut writer = audit.writer();
        writer.size = ROTATION.size;
        writer.is_within_line = true;
        writer.backlog.extend_from_slice(b"rest\n");
        writer.flush().unwrap();
        writer.backlog.extend_from_slice(b"whole\n");
        writer.flush().unwrap();
        assert_eq!(std::fs::read(old(&path, 1)).unwrap(), b"rest\n");
        assert_eq!(std::fs::read(&path).unwrap(), b"whole\n");
    }

    #[test]
    fn what_waited_is_written_when_there_is_room_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let audit = Audit::open(Path::new("/dev/full"), ROTATION).unwrap();
        audit.record(&record("/waits"));
        assert!(!audit.is_ready());
        let (file, _) = open(&path).unwrap();
        audit.writer().file = file;
        audit.writer().last_try = Instant::now().checked_sub(RETRY).unwrap();
        assert!(audit.is_ready());
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("/waits") && text.ends_with('\n'));
    }

    #[test]
    fn a_link_in_the_way_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("audit.jsonl");
        std::os::unix::fs::symlink(dir.path().join("else"), &link).unwrap();
        assert!(Audit::open(&link, ROTATION).is_err());
    }
}
