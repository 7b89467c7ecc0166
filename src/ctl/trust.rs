//! `umwelt-ctl trust`: a person looks at a workspace file, and accepts it.

mod consequences;

use std::path::PathBuf;
use std::process::ExitCode;

use rustix::termios::QueueSelector;

use crate::cli;
use crate::cli::args::{Args, Subcommand, WORKSPACE};
use crate::ctl::peer::{self, Presence};
use crate::ctl::place::{Place, Target};
use crate::ctl::trust::consequences::Consequences;
use crate::ctl::{CLIENT, CtlError, NAME, diff};
use crate::error::{Error, exit_code};
use crate::run::journal::Entry;
use crate::text::{printable, shell_word};
use crate::trust::meaning;
use crate::trust::{self, Comparison, TrustError, TrustState, Untrusted, WorkspaceTrust};
use crate::workspace::{Workspace, WorkspaceError};

pub(super) const SUBCOMMAND: Subcommand = Subcommand {
    name: "trust",
    help: "\
Usage: umwelt-ctl trust [--diff | --yes | --revoke] [WORKSPACE]

Shows what .umwelt.toml in WORKSPACE would allow more or less than what was
accepted before, which grants in it are never given, all that its network would
reach, and the text that has changed; then asks whether to accept it.
Until then, and after each edit that is not umwelt's own, nothing in the file
counts. Left out, WORKSPACE is the current directory.

Options:
      --diff     show it and do not ask; exit with 1 if it is not accepted
  -y, --yes      accept it without a question
      --revoke   forget what was accepted: nothing in the file counts any more
  -h, --help     print this help and exit
  -V, --version  print the version and exit

Exit status: 0 all of the file counts, or it asks for nothing; 1 it does not
count; 2 wrong usage, or a file that cannot be accepted.
",
    flags: &["diff", "yes", "revoke"],
    values: &[],
    operands: WORKSPACE,
    run,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Ask,
    Diff,
    Yes,
    Revoke,
}

fn run(args: Args) -> Result<ExitCode, Error> {
    let way = way(&args)?;
    let place = Place::load()?;
    let target = place.target(args.workspace())?;
    let path = path_of(&place, &target)?;
    let shown = path.to_str().unwrap_or_default();
    let trust = WorkspaceTrust::of_path(shown, &target.sid, &place.dirs);
    if way == Way::Revoke {
        return revoke(&place, &trust, &target);
    }
    // Where no sandbox can be, nothing is to be accepted.
    Workspace::select(Some(&path), None, &place.dirs)?;
    let seen = trust.comparison()?;
    let name = printable(&format!("{:?}", trust.path()));
    let TrustState::Untrusted(why) = &seen.state else {
        let state = match seen.state {
            TrustState::Absent if trust.path().symlink_metadata().is_err() => {
                let none = format!("there is no {name}; nothing to accept\n");
                return Ok(cli::print(&none));
            }
            TrustState::Absent => "asks for nothing",
            _ => "is accepted as it is",
        };
        return Ok(cli::print(&format!("{name} {state}\n")));
    };
    if way == Way::Ask && !can_ask() {
        let word = shell_word(&target.shown);
        let hint = format!(
            "look at it with: {NAME} trust --diff {word}\n\
             accept it without a question with: {NAME} trust --yes {word}"
        );
        return Err(CtlError::NobodyToAsk { hint }.into());
    }
    let consequences = consequences::of(&place, &path, &seen.file)?;
    cli::print(&render(&name, why, &seen, &consequences));
    if way == Way::Ask {
        cli::print(&repeated(&seen, &consequences));
    }
    cli::print(&host_access(&seen));
    if way == Way::Diff {
        return Ok(ExitCode::from(exit_code::FAILURE));
    }
    if way == Way::Ask && !ask("accept?")? {
        return Err(CtlError::NotAccepted.into());
    }
    match trust.accept(&seen) {
        Ok(()) => {
            record(&place, &target, "trusted");
            Ok(cli::print(&format!("accepted\n{}", running(&target))))
        }
        Err(TrustError::Changed(_)) => Err(CtlError::ChangedMeanwhile.into()),
        Err(error) => Err(error.into()),
    }
}

fn way(args: &Args) -> Result<Way, Error> {
    args.check_one_of(&["diff", "yes", "revoke"])?;
    let ways = [
        ("diff", Way::Diff),
        ("yes", Way::Yes),
        ("revoke", Way::Revoke),
    ];
    let given = ways.into_iter().find(|(flag, _)| args.has(flag));
    Ok(given.map_or(Way::Ask, |(_, way)| way))
}

/// The directory of a session id is known where it runs, or by its record.
pub(super) fn path_of(place: &Place, target: &Target) -> Result<PathBuf, Error> {
    if target.shown.starts_with('/') {
        return Ok(PathBuf::from(&target.shown));
    }
    let of_record = trust::workspace_of(&target.sid, &place.dirs);
    let of_running = || {
        let status = peer::status(&target.names.socket).ok()?;
        Some(PathBuf::from(status.workspace))
    };
    of_record
        .or_else(of_running)
        .filter(|path| Workspace::sid_of_path(path).as_ref() == Some(&target.sid))
        .ok_or_else(|| target.not_running(false))
}

/// The same, of one that is there.
pub(super) fn directory_of(place: &Place, target: &Target) -> Result<PathBuf, Error> {
    let path = path_of(place, target)?;
    match path.metadata() {
        Ok(found) if found.is_dir() => Ok(path),
        Ok(_) => Err(WorkspaceError::NotADirectory(path).into()),
        Err(error) => Err(WorkspaceError::Gone(path, error).into()),
    }
}

fn revoke(place: &Place, trust: &WorkspaceTrust, target: &Target) -> Result<ExitCode, Error> {
    let done = match trust.revoke()? {
        true => {
            record(place, target, "revoked");
            format!("revoked\n{}", running(target))
        }
        false => "nothing was accepted\n".to_owned(),
    };
    Ok(cli::print(&done))
}

/// In the journal of the sandbox, where its grants stand too.
fn record(place: &Place, target: &Target, change: &str) {
    let client = CLIENT;
    place.record(target, &Entry::Trust { change, client });
}

/// What fits a screen, with the meaning above it.
const MAX_DIFF: usize = 15;
/// More than these are no longer read to the last one.
const MAX_CHANGES: usize = 15;

/// The meaning first: a text can be long, and look harmless.
fn render(name: &str, why: &Untrusted, seen: &Comparison, more: &Consequences) -> String {
    let mut out = format!("{name} does not count: {}\n", printable(&why.to_string()));
    out.push_str(&format!("\nAccepting it\n{}", told(seen, more)));
    let diff = diff::render(&seen.old_text, &seen.new_text);
    match diff.is_empty() {
        true => out.push_str("\nThe text is the one that was accepted.\n"),
        false => out.push_str(&format!("\n--- accepted\n+++ now\n{diff}")),
    }
    out
}

/// For the question: the beginning of a long text has left the screen by now.
fn repeated(seen: &Comparison, more: &Consequences) -> String {
    let diff = diff::render(&seen.old_text, &seen.new_text);
    match diff.lines().count() > MAX_DIFF {
        true => format!("\nAccepting it\n{}", told(seen, more)),
        false => String::new(),
    }
}

/// Right above the question: thousands of rules could push this off the screen.
fn host_access(seen: &Comparison) -> String {
    if seen.changes.len() <= MAX_CHANGES {
        return String::new();
    }
    let starts = ["adds read-", "changes read-"];
    let is_access = |text: &str| starts.iter().any(|start| text.starts_with(start));
    let grants = seen.changes.iter();
    let grants = grants.filter(|change| change.widens && is_access(&change.text));
    let lines: String = grants
        .map(|change| format!("  + {}\n", change.text))
        .collect();
    let count = seen.changes.len();
    match lines.is_empty() {
        true => format!("\nOf {count} changes, none opens files of the host\n"),
        false => format!("\nOf {count} changes, these open files of the host\n{lines}"),
    }
}

fn told(seen: &Comparison, more: &Consequences) -> String {
    let mut out = String::new();
    for change in &seen.changes {
        let mut refused = more.never.iter();
        let refused = refused.find(|(grant, _)| meaning::opens(change, grant));
        let why = refused.map_or_else(String::new, |(_, why)| format!(", {why}"));
        let mark = match (change.widens, change.is_unnamed) {
            _ if refused.is_some() => '!',
            // Which hosts these are stands not in the file.
            (true, true) => '!',
            (true, false) => '+',
            (false, _) => '-',
        };
        out.push_str(&format!("  {mark} {}{why}\n", change.text));
    }
    if seen.changes.is_empty() {
        out.push_str("  = changes nothing that is allowed\n");
    }
    let is_told = |grant| seen.changes.iter().any(|seen| meaning::opens(seen, grant));
    for (_, line) in more.never.iter().filter(|(grant, _)| !is_told(grant)) {
        out.push_str(&format!("  ! {line}\n"));
    }
    if !more.reached.is_empty() {
        out.push_str("\nThe sandbox then reaches\n");
    }
    for line in &more.reached {
        out.push_str(&format!("  {line}\n"));
    }
    if !more.notes.is_empty() {
        out.push('\n');
    }
    for line in &more.notes {
        out.push_str(&format!("note: {line}\n"));
    }
    out
}

/// Whether a person sees the question and can answer it.
pub(super) fn can_ask() -> bool {
    let is_terminal = |fd| rustix::termios::isatty(fd);
    is_terminal(rustix::stdio::stdin()) && is_terminal(rustix::stdio::stdout())
}

/// A question to a person at the terminal.
pub(crate) fn ask(question: &str) -> Result<bool, Error> {
    // What was typed before the question is no answer to it.
    let _any = rustix::termios::tcflush(rustix::stdio::stdin(), QueueSelector::IFlush);
    cli::print(&format!("\n{question} [y/N] "));
    let mut answer = String::new();
    std::io::stdin()
        .read_line(&mut answer)
        .map_err(|error| Error::io("read the answer", error))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// A control plane keeps what it has read at its start.
fn running(target: &Target) -> String {
    match peer::presence(&target.names.socket) {
        Ok(Presence::Listening(_)) => format!(
            "takes effect at the next start; end the running sandbox with: {NAME} stop {}\n",
            shell_word(&printable(&target.shown))
        ),
        _ => String::new(),
    }
}
