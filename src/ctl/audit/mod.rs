//! `umwelt-ctl audit`: what a sandbox has asked for on the network, and what
//! became of it. It is in files, so it can be read whether or not a control
//! plane is there.

mod chart;
mod file;
mod html;
mod page;
mod paths;
mod record;
mod report;
mod row;
mod rule;
mod sources;
mod summary;
mod tally;
mod timeline;

use std::collections::VecDeque;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cli;
use crate::cli::args::{Args, Subcommand, WORKSPACE};
use crate::ctl::audit::report::{Limits, Report, Subject};
use crate::ctl::audit::row::COLUMNS;
use crate::ctl::audit::sources::{Line, Sources};
use crate::ctl::audit::tally::Counts;
use crate::ctl::output::{self, Widths};
use crate::ctl::place::{Place, Target};
use crate::ctl::trust::path_of;
use crate::ctl::{CtlError, NAME, tail};
use crate::error::Error;
use crate::text::shell_word;
use crate::workspace::Workspace;

pub(super) const SUBCOMMAND: Subcommand = Subcommand {
    name: "audit",
    help: "\
Usage: umwelt-ctl audit [OPTION…] [WORKSPACE]

Shows what a sandbox with a network has asked for, newest last, with the time
in UTC: what was allowed and what was denied, by the gateway and by the kernel.
The sandbox need not run, nor its directory exist. Left out, WORKSPACE is the
current directory.

Options:
  -f, --follow     go on, and show what is added, until interrupted
  -n, --lines N    begin with the last N records (default: all of them, or 50
                   with --follow)
      --denied     only what was denied
      --summary    counts by host and path, and the denials with the rule to add
      --json       print the records as they are, one JSON object a line; one
                   object in all with --summary
      --html FILE  write a page with a timeline and tables, which needs nothing
                   but a browser; \"-\" is standard output
  -h, --help       print this help and exit
  -V, --version    print the version and exit
",
    flags: &["follow", "denied", "summary", "json"],
    values: &["lines", "html"],
    operands: WORKSPACE,
    run,
};

/// Where following begins.
const LINES: usize = 50;
/// Rows that are put in columns together.
const BATCH: usize = 1000;

const IN_TERMINAL: Limits = Limits {
    hosts: 100,
    paths: 8,
    denials: 100,
};
const IN_JSON: Limits = Limits {
    hosts: 1000,
    paths: 50,
    denials: 1000,
};
const ON_PAGE: Limits = Limits {
    hosts: 100,
    paths: 6,
    denials: 100,
};

fn run(args: Args) -> Result<ExitCode, Error> {
    check(&args)?;
    let followed = args.has("follow").then_some(LINES);
    let lines = args.number("lines")?.or(followed);
    let place = Place::load()?;
    let target = place.target(args.workspace())?;
    let Some(mut sources) = Sources::open(&target.names, &target.sid)? else {
        return Err(none_of(&place, target).into());
    };
    if let Some(file) = args.value("html") {
        return write_page(Path::new(file), &mut sources, target);
    }
    if args.has("summary") {
        return summarise(&args, &mut sources, target);
    }
    let mut printer = Printer::new(&args);
    let goes_on = printer.print_all(&mut sources, lines)?;
    printer.warn(&mut sources);
    while args.has("follow") && goes_on {
        if !printer.print(sources.more()?) || !tail::is_read() {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn none_of(place: &Place, target: Target) -> AuditError {
    let workspace = path_of(place, &target).ok();
    let can_be_one = |path: &PathBuf| Workspace::select(Some(path), None, &place.dirs).is_ok();
    AuditError::NoAudit {
        workspace: workspace.filter(can_be_one),
        what: target.shown,
    }
}

fn check(args: &Args) -> Result<(), Error> {
    for other in ["follow", "lines", "denied", "summary", "json"] {
        args.check_one_of(&["html", other])?;
    }
    args.check_one_of(&["summary", "follow"])?;
    args.check_one_of(&["summary", "lines"])
}

fn count(sources: &mut Sources, denied_only: bool) -> Result<Counts, Error> {
    let mut counts = Counts::new();
    while let Some(line) = sources.next()? {
        let is_denied = line.record.as_ref().map(record::Record::is_denied);
        if !denied_only || is_denied != Some(false) {
            counts.add(line.record.as_ref());
        }
    }
    Ok(counts)
}

fn summarise(args: &Args, sources: &mut Sources, target: Target) -> Result<ExitCode, Error> {
    let counts = count(sources, args.has("denied"))?;
    warn_of(counts.unreadable, sources.is_cut());
    let limits = if args.has("json") {
        IN_JSON
    } else {
        IN_TERMINAL
    };
    let report = Report::new(counts, subject(target), limits);
    Ok(cli::print(&match args.has("json") {
        true => output::render_json(&report)?,
        false => summary::render(&report, output::wants_colour()),
    }))
}

fn write_page(file: &Path, sources: &mut Sources, target: Target) -> Result<ExitCode, Error> {
    let counts = count(sources, false)?;
    warn_of(counts.unreadable, sources.is_cut());
    let report = Report::new(counts, subject(target), ON_PAGE);
    let page = page::render(&report, &page::now());
    if file == Path::new("-") {
        return Ok(cli::print(&page));
    }
    file::write(file, page.as_bytes())?;
    Ok(cli::print(&format!(
        "{}: {} allowed, {}\n",
        crate::text::printable(&file.to_string_lossy()),
        report.total.allowed,
        report.total.told_denied()
    )))
}

fn subject(target: Target) -> Subject {
    Subject {
        workspace: target.shown,
        sid: target.sid.to_string(),
    }
}

/// What is in the files and can be no record.
fn warn_of(unreadable: u64, is_cut: bool) {
    if unreadable > 0 {
        log::warn!(
            "lines of the audit that are not understood: {unreadable}; they are of another version of umwelt, or damaged"
        );
    }
    if is_cut {
        log::warn!("the last line of the audit is not, or not yet, whole; it is left out");
    }
}

/// Lines -> stdout, in columns that stay where they are.
struct Printer {
    json: bool,
    denied_only: bool,
    colour: bool,
    widths: Option<Widths<COLUMNS>>,
    unreadable: u64,
}

impl Printer {
    fn new(args: &Args) -> Printer {
        Printer {
            json: args.has("json"),
            denied_only: args.has("denied"),
            colour: output::wants_colour(),
            widths: None,
            unreadable: 0,
        }
    }

    /// What is there, or the last of it; false when nobody reads any more.
    fn print_all(&mut self, sources: &mut Sources, last: Option<usize>) -> Result<bool, Error> {
        let mut batch = VecDeque::new();
        while let Some(line) = sources.next()? {
            if self.is_wanted(&line) {
                batch.push_back(line);
            }
            if last.is_some_and(|most| batch.len() > most) {
                batch.pop_front();
            } else if last.is_none() && batch.len() == BATCH {
                if !self.write(batch.make_contiguous()) {
                    return Ok(false);
                }
                batch.clear();
            }
        }
        Ok(self.write(batch.make_contiguous()))
    }

    /// False when nobody reads any more.
    fn print(&mut self, lines: Vec<Line>) -> bool {
        let wanted = lines.into_iter().filter(|line| self.is_wanted(line));
        let wanted: Vec<Line> = wanted.collect();
        self.write(&wanted)
    }

    fn is_wanted(&mut self, line: &Line) -> bool {
        match &line.record {
            Some(record) => !self.denied_only || record.is_denied(),
            None => {
                self.unreadable += 1;
                !self.denied_only
            }
        }
    }

    fn write(&mut self, lines: &[Line]) -> bool {
        let text = match self.json {
            true => lines
                .iter()
                .map(|line| tail::json_line(&line.bytes))
                .collect(),
            false => self.render(lines),
        };
        text.is_empty() || cli::write_stdout(&text)
    }

    fn render(&mut self, lines: &[Line]) -> String {
        let rows: Vec<_> = lines
            .iter()
            .map(|line| row::row(line, self.colour))
            .collect();
        match &self.widths {
            Some(widths) => widths.render(&rows),
            None => {
                let widths = self.widths.insert(Widths::fitting(row::HEADING, &rows));
                widths.render_heading(row::HEADING) + &widths.render(&rows)
            }
        }
    }

    fn warn(&self, sources: &mut Sources) {
        warn_of(self.unreadable, sources.is_cut());
    }
}

/// Why there is nothing to show, or nowhere to write it.
#[derive(Debug)]
pub(crate) enum AuditError {
    /// The sandbox never had a network.
    NoAudit {
        what: String,
        /// Where one could run, if that is known.
        workspace: Option<PathBuf>,
    },
    /// What stands in the place of the page is not replaced.
    NotPlain {
        path: PathBuf,
        what: &'static str,
    },
    Write(PathBuf, std::io::Error),
}

impl AuditError {
    pub(crate) fn hint(&self) -> Option<String> {
        Some(match self {
            AuditError::NoAudit {
                workspace: None, ..
            } => format!(
                "name a project directory, as in: {NAME} audit DIR; see those that run with: {NAME} status"
            ),
            AuditError::NoAudit {
                workspace: Some(path),
                ..
            } => format!(
                "to give a project a network, write \"[egress]\" and below it \"enabled = true\" into its .umwelt.toml, \
                 then run: {NAME} trust {}",
                shell_word(&path.to_string_lossy())
            ),
            AuditError::NotPlain { path, .. } => format!(
                "name another file, or remove this one: rm {}",
                shell_word(&path.to_string_lossy())
            ),
            AuditError::Write(..) => "name a file in a directory of yours: --html FILE".to_owned(),
        })
    }
}

impl fmt::Display for AuditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AuditError::NoAudit { what, .. } => write!(
                f,
                "there is no audit of {what:?}: no sandbox with a network has run there"
            ),
            AuditError::NotPlain { path, what } => {
                write!(f, "{path:?} is {what}, and is left alone")
            }
            AuditError::Write(path, error) => write!(f, "cannot write {path:?}: {error}"),
        }
    }
}

impl std::error::Error for AuditError {}

impl From<AuditError> for Error {
    fn from(error: AuditError) -> Error {
        Error::Ctl(CtlError::Audit(error))
    }
}
