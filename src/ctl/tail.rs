//! A file of lines, JSON as a rule, that somebody else writes: read to its end
//! and then further, also across a rotation.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use serde_json::Value;

use crate::ctl::output;
use crate::error::Error;
use crate::workspace::FileId;

const EVERY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000_000,
};
/// No line is longer; one that is, is not ours.
const MAX_LINE: u64 = 1 << 20;

/// Waits a moment; false as soon as nobody reads our output any more.
pub(super) fn is_read() -> bool {
    let stdout = rustix::stdio::stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    match rustix::event::poll(&mut fds, Some(&EVERY)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => true,
        // A terminal that hangs up, a pipe without a reader.
        Ok(_) => {
            let gone = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
            !fds.iter().any(|fd| fd.revents().intersects(gone))
        }
        Err(_) => {
            std::thread::sleep(Duration::from_millis(500));
            true
        }
    }
}

/// The files that there are of `places`, which name the newest first and each
/// older one after it; the oldest comes first in the result.
///
/// A rotation moves files on in just this order, so that one which happens
/// meanwhile hides none: it can only show the same file again.
pub(super) fn open_all(places: &[PathBuf]) -> Result<Vec<Tail>, Error> {
    let mut tails: Vec<Tail> = Vec::new();
    for path in places {
        if let Some(tail) = Tail::open(path)?
            && !tails.iter().any(|known| known.id == tail.id)
        {
            tails.push(tail);
        }
    }
    tails.reverse();
    Ok(tails)
}

/// One file, and how far it is read.
#[derive(Debug)]
pub(super) struct Tail {
    reader: BufReader<File>,
    id: FileId,
    path: PathBuf,
    /// The beginning of a line that is not written to its end yet.
    partial: Vec<u8>,
}

impl Tail {
    fn open(path: &Path) -> Result<Option<Tail>, Error> {
        let failed = |error| Error::io(format!("read {path:?}"), error);
        let mut options = File::options();
        // Never waits for the writer of a FIFO.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        options.read(true).custom_flags(
            i32::try_from(flags.bits()).map_err(|error| failed(std::io::Error::other(error)))?,
        );
        let file = match options.open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(failed(std::io::Error::other("it is not a regular file")));
        }
        Ok(Some(Tail {
            id: FileId::from_metadata(&metadata),
            reader: BufReader::new(file),
            path: path.to_owned(),
            partial: Vec::new(),
        }))
    }

    pub(super) fn next_line(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let room = MAX_LINE.saturating_sub(self.partial.len() as u64);
        (&mut self.reader)
            .take(room)
            .read_until(b'\n', &mut self.partial)
            .map_err(|error| Error::io(format!("read {:?}", self.path), error))?;
        if self.partial.last() == Some(&b'\n') {
            self.partial.pop();
            return Ok(Some(std::mem::take(&mut self.partial)));
        }
        if self.partial.len() as u64 >= MAX_LINE {
            return Ok(Some(std::mem::take(&mut self.partial)));
        }
        Ok(None)
    }

    /// What stands at the end without a line feed.
    pub(super) fn take_partial(&mut self) -> Option<Vec<u8>> {
        let partial = std::mem::take(&mut self.partial);
        (!partial.is_empty()).then_some(partial)
    }

    /// What was added since; also to the files that have come in the place of
    /// this one. `places` is as for `open_all`.
    pub(super) fn more(&mut self, places: &[PathBuf]) -> Result<Vec<Vec<u8>>, Error> {
        let mut lines = Vec::new();
        // Looked at first: what is written before the move is read below.
        let mut newer = Vec::new();
        for path in places {
            match Tail::open(path)? {
                Some(tail) if tail.id == self.id => break,
                Some(tail) => newer.push(tail),
                None => {}
            }
        }
        let mut last = None;
        self.read_all(&mut lines)?;
        for mut tail in newer.into_iter().rev() {
            tail.read_all(&mut lines)?;
            last = Some(tail);
        }
        if let Some(tail) = last {
            lines.extend(self.take_partial());
            *self = tail;
        }
        Ok(lines)
    }

    fn read_all(&mut self, lines: &mut Vec<Vec<u8>>) -> Result<(), Error> {
        while let Some(line) = self.next_line()? {
            lines.push(line);
        }
        Ok(())
    }
}

/// Exact for a program and harmless for a terminal; what is not JSON, because
/// the disk was full for example, is told as text.
pub(super) fn json_line(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let mut out = match serde_json::from_slice::<Value>(line) {
        Ok(_) => output::escape_json(&text),
        Err(_) => {
            let value = serde_json::json!({"kind": "unreadable", "text": text});
            output::escape_json(&value.to_string())
        }
    };
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn append(path: &Path, text: &str) {
        let mut file = File::options()
            .append(true)
            .create(true)
            .open(path)
            .unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn texts(lines: impl IntoIterator<Item = Vec<u8>>) -> Vec<String> {
        let text = |line| String::from_utf8(line).unwrap();
        lines.into_iter().map(text).collect()
    }

    fn places(dir: &Path) -> Vec<PathBuf> {
        ["j", "j.1", "j.2", "j.3"]
            .map(|name| dir.join(name))
            .to_vec()
    }

    fn rotate(places: &[PathBuf]) {
        for pair in places.windows(2).rev() {
            if pair[0].exists() {
                std::fs::rename(&pair[0], &pair[1]).unwrap();
            }
        }
    }

    #[test]
    fn files_are_read_from_the_oldest_on() {
        let dir = tempfile::tempdir().unwrap();
        let places = places(dir.path());
        for (place, text) in places.iter().zip(["4\n", "3\n", "2\n", "1\n"]) {
            append(place, text);
        }
        let mut lines = Vec::new();
        for mut tail in open_all(&places).unwrap() {
            tail.read_all(&mut lines).unwrap();
        }
        assert_eq!(texts(lines), ["1", "2", "3", "4"]);
        assert!(open_all(&[dir.path().join("x")]).unwrap().is_empty());
    }

    #[test]
    fn a_file_that_is_seen_under_two_names_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let places = places(dir.path());
        append(&places[0], "1\n");
        std::fs::hard_link(&places[0], &places[1]).unwrap();
        assert_eq!(open_all(&places).unwrap().len(), 1);
    }

    #[test]
    fn follows_across_a_rotation_and_waits_for_whole_lines() {
        let dir = tempfile::tempdir().unwrap();
        let places = places(dir.path());
        append(&places[0], "1\n");
        let mut tail = open_all(&places).unwrap().pop().unwrap();
        assert_eq!(texts(tail.more(&places).unwrap()), ["1"]);
        append(&places[0], "2\nha");
        assert_eq!(texts(tail.more(&places).unwrap()), ["2"]);
        append(&places[0], "lf\n");
        assert_eq!(texts(tail.more(&places).unwrap()), ["half"]);
        append(&places[0], "last\n");
        rotate(&places);
        append(&places[0], "new\n");
        assert_eq!(texts(tail.more(&places).unwrap()), ["last", "new"]);
        append(&places[0], "newer\n");
        assert_eq!(texts(tail.more(&places).unwrap()), ["newer"]);
    }

    #[test]
    fn two_rotations_between_two_looks_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let places = places(dir.path());
        append(&places[0], "1\n");
        let mut tail = open_all(&places).unwrap().pop().unwrap();
        rotate(&places);
        append(&places[0], "2\ncut");
        rotate(&places);
        append(&places[0], "3\n");
        assert_eq!(texts(tail.more(&places).unwrap()), ["1", "2", "3"]);
        append(&places[0], "4\n");
        assert_eq!(texts(tail.more(&places).unwrap()), ["4"]);
    }

    #[test]
    fn a_fifo_in_its_place_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.jsonl");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert!(Tail::open(&path).is_err());
    }

    #[test]
    fn json_is_harmless_and_what_is_none_is_told() {
        let line = json_line("{\"command\":\"\u{9b}2J\"}".as_bytes());
        assert_eq!(line, "{\"command\":\"\\u009b2J\"}\n");
        let line = json_line(b"{\"cut");
        assert_eq!(line, "{\"kind\":\"unreadable\",\"text\":\"{\\\"cut\"}\n");
    }
}
