//! `umwelt-install doctor`: measures on this very host what umwelt relies on,
//! and says how to repair what is not so.

mod attack;
mod checks;
mod facts;
mod finding;
mod holes;
mod packages;
mod probe;
mod probes;
#[cfg(test)]
mod tests;
mod throwaway;

use std::process::ExitCode;

use crate::cli;
use crate::cli::args::{Args, Operands, Subcommand};
use crate::ctl::output::{self, Cell, Colour};
use crate::error::Error;
use crate::install::layout::Layout;
use crate::install::{NAME, interrupt, refuse_root};
use crate::text::printable;
use finding::{Finding, Verdict};

pub(super) const SUBCOMMAND: Subcommand = Subcommand {
    name: "doctor",
    help: "\
Usage: umwelt-install doctor [--json | --fix-commands] [--quick]

Measures on this host what umwelt relies on: podman, the OCI runtime, the
kernel, cgroup delegation, ids, seccomp, the image, nft, room on the disk. Then
throwaway containers show what nothing else does: a sandbox is attacked from
inside, without a network and, where that is installed, with one. All of it is
gone afterwards. The exit status is 1 if no sandbox can be started, or if one
does not hold.

Options:
      --json             print a JSON array, one object for each check
      --fix-commands     print the commands that repair what can be repaired by
                         commands, and the rest as comments; nothing is run, and
                         no container is started
      --quick            start no container
  -h, --help             print this help and exit
  -V, --version          print the version and exit
",
    flags: &["json", "fix-commands", "quick"],
    // What it calls itself with in its sandbox: in no help text.
    values: &["from-inside"],
    operands: Operands::None,
    run,
};

fn run(args: Args) -> Result<ExitCode, Error> {
    if let Some(task) = args.value("from-inside") {
        return attack::run(&task.to_string_lossy());
    }
    args.check_one_of(&["json", "fix-commands"])?;
    refuse_root()?;
    interrupt::catch().map_err(|error| Error::io("catch signals", error))?;
    let layout = Layout::load()?;
    let facts = facts::gather(&layout);
    let mut findings = checks::all(&facts);
    if !args.has("quick") && !args.has("fix-commands") {
        findings.extend(probes::all(&layout, &facts, &findings));
    }
    if let Some(signal) = interrupt::caught() {
        cli::write_stderr(format!("{NAME}: interrupted; nothing is left behind\n").as_bytes());
        return Ok(ExitCode::from(signal.saturating_add(128)));
    }
    let text = if args.has("json") {
        output::render_json(&findings)?
    } else if args.has("fix-commands") {
        render_commands(&findings)
    } else {
        render(&findings, output::wants_colour())
    };
    let printed = cli::print(&text);
    let worst = findings.iter().map(|finding| finding.verdict).max();
    Ok(match worst {
        Some(Verdict::Fail) => ExitCode::FAILURE,
        _ => printed,
    })
}

fn render(findings: &[Finding], colour: bool) -> String {
    let rows: Vec<_> = findings
        .iter()
        .map(|finding| {
            let (word, paint) = match finding.verdict {
                Verdict::Ok => ("ok", Colour::Green),
                Verdict::Warn => ("warn", Colour::Yellow),
                Verdict::Fail => ("fail", Colour::Red),
            };
            [
                Cell::plain(&*finding.check),
                Cell::coloured(word, colour.then_some(paint)),
                Cell::plain(&finding.evidence),
            ]
        })
        .collect();
    let mut out = output::render_table(["CHECK", "VERDICT", "EVIDENCE"], &rows);
    for finding in findings {
        let Some(fix) = &finding.fix else { continue };
        out.push_str(&format!("\nfix for {}:\n", finding.check));
        for line in fix.lines() {
            out.push_str(&format!("  {}\n", printable(line)));
        }
    }
    out
}

/// For a shell, to be looked at first. What no command repairs is a comment.
fn render_commands(findings: &[Finding]) -> String {
    let mut out = String::new();
    let broken = findings
        .iter()
        .filter(|finding| finding.verdict != Verdict::Ok || finding.is_command);
    for finding in broken {
        let evidence = printable(&finding.evidence);
        out.push_str(&format!("# {}: {evidence}\n", finding.check));
        let begin = match finding.is_command {
            true => "",
            false => "#   ",
        };
        for line in finding.fix.iter().flat_map(|fix| fix.lines()) {
            out.push_str(&format!("{begin}{}\n", printable(line)));
        }
    }
    out
}
