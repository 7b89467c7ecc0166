//! `umwelt-ctl log`: the journal of a sandbox. It is a file, so it can be read
//! whether or not a control plane is there.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use serde_json::Value;

use crate::cli;
use crate::ctl::args::{Args, Operands, Subcommand};
use crate::ctl::output::{self, Cell, Widths};
use crate::ctl::place::Place;
use crate::ctl::{CtlError, event};
use crate::error::Error;
use crate::run::journal;
use crate::workspace::FileId;

pub(super) const SUBCOMMAND: Subcommand = Subcommand {
    name: "log",
    help: "\
Usage: umwelt-ctl log [--follow] [--lines N] [--json] [WORKSPACE]

Shows the journal of a sandbox: its commands, grants and revokes, starts and
ends, newest last, with the time in UTC. The sandbox need not run, nor its
directory exist. Left out, WORKSPACE is the current directory.

Options:
      --follow   go on, and show what is added, until interrupted
      --lines N  begin with the last N entries (default: 50)
      --json     print the entries as they are, one JSON object a line
  -h, --help     print this help and exit
  -V, --version  print the version and exit
",
    options: &["follow", "lines", "json"],
    operands: Operands::Workspace,
    run,
};

const LINES: usize = 50;
const EVERY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000_000,
};
/// No entry is longer; one that is, is not ours.
const MAX_LINE: u64 = 1 << 20;

fn run(args: Args) -> Result<ExitCode, Error> {
    let lines = match &args.lines {
        None => LINES,
        Some(text) => text
            .parse()
            .map_err(|_| Error::Usage(format!("--lines: {text:?} is not a number")))?,
    };
    let target = Place::load()?.target(args.workspace.as_deref())?;
    let path = &target.names.journal;
    let (first, mut reader) = last_lines(path, lines)?;
    let Some(reader) = &mut reader else {
        let what = target.shown;
        return Err(CtlError::NoJournal { what }.into());
    };
    let mut printer = Printer::new(args.json);
    let mut goes_on = printer.print(first.into());
    while args.flags.contains(&"follow") && goes_on {
        goes_on = printer.print(reader.more(path)?) && is_read();
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits a moment; false as soon as nobody reads our output any more.
fn is_read() -> bool {
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

/// The last entries of the journal and of the one before it, and where to go on.
fn last_lines(path: &Path, most: usize) -> Result<(VecDeque<Vec<u8>>, Option<Tail>), Error> {
    let mut kept = VecDeque::new();
    let mut tail = None;
    for path in [journal::older(path), path.to_owned()] {
        if let Some(mut reader) = Tail::open(&path)? {
            while let Some(line) = reader.next_line()? {
                kept.push_back(line);
                if kept.len() > most {
                    kept.pop_front();
                }
            }
            tail = Some(reader);
        }
    }
    Ok((kept, tail))
}

/// A journal that is read to its end, and then further.
struct Tail {
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

    fn next_line(&mut self) -> Result<Option<Vec<u8>>, Error> {
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

    /// What was added since; also to the journal that has taken the place of
    /// this one at `path`.
    fn more(&mut self, path: &Path) -> Result<Vec<Vec<u8>>, Error> {
        let mut lines = Vec::new();
        loop {
            // Looked at first: what is written before the move is read below.
            let successor = Tail::open(path)?.filter(|other| other.id != self.id);
            while let Some(line) = self.next_line()? {
                lines.push(line);
            }
            match successor {
                Some(successor) => *self = successor,
                None => return Ok(lines),
            }
        }
    }
}

/// Entries -> stdout, in columns that stay where they are.
struct Printer {
    json: bool,
    widths: Option<Widths<6>>,
}

impl Printer {
    fn new(json: bool) -> Printer {
        Printer { json, widths: None }
    }

    /// False when nobody reads any more.
    fn print(&mut self, lines: Vec<Vec<u8>>) -> bool {
        let text = match self.json {
            true => lines.iter().map(|line| json_line(line)).collect(),
            false => self.render(&lines),
        };
        text.is_empty() || cli::write_stdout(&text)
    }

    fn render(&mut self, lines: &[Vec<u8>]) -> String {
        let rows: Vec<[Cell; 6]> = lines.iter().flat_map(|line| event::rows(line)).collect();
        match &self.widths {
            Some(widths) => widths.render(&rows),
            None => {
                let heading = ["TIME", "KIND", "CLIENT", "RESULT", "TOOK", "WHAT"];
                let widths = self.widths.insert(Widths::fitting(heading, &rows));
                widths.render_heading(heading) + &widths.render(&rows)
            }
        }
    }
}

/// Exact for a program and harmless for a terminal; what is not JSON, because
/// the disk was full for example, is told as text.
fn json_line(line: &[u8]) -> String {
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

    #[test]
    fn last_entries_come_from_both_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.jsonl");
        append(&journal::older(&path), "1\n2\n3\n");
        append(&path, "4\n5\n");
        let (lines, tail) = last_lines(&path, 3).unwrap();
        assert_eq!(texts(lines), ["3", "4", "5"]);
        assert!(tail.is_some());
        assert!(last_lines(&dir.path().join("x"), 3).unwrap().1.is_none());
    }

    #[test]
    fn follows_across_a_rotation_and_waits_for_whole_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.jsonl");
        append(&path, "1\n");
        let mut tail = last_lines(&path, 9).unwrap().1.unwrap();
        append(&path, "2\nha");
        assert_eq!(texts(tail.more(&path).unwrap()), ["2"]);
        append(&path, "lf\n");
        assert_eq!(texts(tail.more(&path).unwrap()), ["half"]);
        append(&path, "last\n");
        std::fs::rename(&path, journal::older(&path)).unwrap();
        append(&path, "new\n");
        assert_eq!(texts(tail.more(&path).unwrap()), ["last", "new"]);
        append(&path, "newer\n");
        assert_eq!(texts(tail.more(&path).unwrap()), ["newer"]);
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
