//! `umwelt-ctl log`: the journal of a sandbox. It is a file, so it can be read
//! whether or not a control plane is there.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::cli;
use crate::cli::args::{Args, Subcommand, WORKSPACE};
use crate::ctl::output::{Cell, Widths};
use crate::ctl::place::Place;
use crate::ctl::tail::{self, Tail};
use crate::ctl::{CtlError, event};
use crate::error::Error;
use crate::run::journal;

pub(super) const SUBCOMMAND: Subcommand = Subcommand {
    name: "log",
    help: "\
Usage: umwelt-ctl log [--follow] [--lines N] [--json] [WORKSPACE]

Shows the journal of a sandbox: its commands, grants and revokes, changed rules
of the network, starts and ends, newest last, with the time in UTC. The sandbox
need not run, nor its directory exist. Left out, WORKSPACE is the current
directory.

Options:
  -f, --follow   go on, and show what is added, until interrupted
  -n, --lines N  begin with the last N entries (default: 50)
      --json     print the entries as they are, one JSON object a line
  -h, --help     print this help and exit
  -V, --version  print the version and exit
",
    flags: &["follow", "json"],
    values: &["lines"],
    operands: WORKSPACE,
    run,
};

const LINES: usize = 50;

fn run(args: Args) -> Result<ExitCode, Error> {
    let lines = args.number("lines")?.unwrap_or(LINES);
    let target = Place::load()?.target(args.workspace())?;
    let path = &target.names.journal;
    let places = [path.clone(), journal::older(path)];
    let (first, mut tail) = last_lines(&places, lines)?;
    let Some(tail) = &mut tail else {
        let what = target.shown;
        return Err(CtlError::NoJournal { what }.into());
    };
    let mut printer = Printer::new(args.has("json"));
    let mut goes_on = printer.print(first);
    while args.has("follow") && goes_on {
        goes_on = printer.print(tail.more(&places)?) && tail::is_read();
    }
    Ok(ExitCode::SUCCESS)
}

/// The last entries of the journal and of the one before it, and where to go on.
fn last_lines(places: &[PathBuf], most: usize) -> Result<(Vec<Vec<u8>>, Option<Tail>), Error> {
    let mut kept = VecDeque::new();
    let mut last = None;
    for mut tail in tail::open_all(places)? {
        while let Some(line) = tail.next_line()? {
            kept.push_back(line);
            if kept.len() > most {
                kept.pop_front();
            }
        }
        last = Some(tail);
    }
    Ok((kept.into(), last))
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
            true => lines.iter().map(|line| tail::json_line(line)).collect(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_entries_come_from_both_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.jsonl");
        let places = [path.clone(), journal::older(&path)];
        std::fs::write(&places[1], "1\n2\n3\n").unwrap();
        std::fs::write(&path, "4\n5\n").unwrap();
        let (lines, tail) = last_lines(&places, 3).unwrap();
        assert_eq!(lines, [b"3", b"4", b"5"]);
        assert!(tail.is_some());
        let (lines, tail) = last_lines(&[dir.path().join("x")], 3).unwrap();
        assert!(lines.is_empty() && tail.is_none());
    }
}
