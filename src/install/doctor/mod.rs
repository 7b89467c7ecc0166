//! `umwelt-install doctor`: measures on this very host what umwelt relies on,
//! and says how to repair what is not so.

mod checks;
mod facts;
mod packages;
mod probe;
#[cfg(test)]
mod tests;

use std::process::ExitCode;

use crate::cli;
use crate::ctl::output::{self, Cell, Colour};
use crate::error::Error;
use crate::install::args::{Args, Subcommand};
use crate::install::image::Standing;
use crate::install::layout::Layout;
use crate::text::printable;
use checks::{Finding, Verdict};
use facts::Facts;

pub(super) const SUBCOMMAND: Subcommand = Subcommand {
    name: "doctor",
    help: "\
Usage: umwelt-install doctor [--json | --fix-commands]

Measures on this host what umwelt relies on, with throwaway containers where
that is the only way: podman, the OCI runtime, the kernel, cgroup delegation,
ids, seccomp, the image, nft, hooks, room on the disk. The exit status is 1 if
no sandbox can be started.

Options:
      --json          print a JSON array, one object for each check
      --fix-commands  print the commands that repair what can be repaired by
                      commands; nothing is run
  -h, --help          print this help and exit
  -V, --version       print the version and exit
",
    flags: &["json", "fix-commands"],
    values: &[],
    operand: None,
    run,
};

fn run(args: Args) -> Result<ExitCode, Error> {
    if args.has("json") && args.has("fix-commands") {
        let message = "--json and --fix-commands exclude each other";
        return Err(Error::Usage(message.to_owned()));
    }
    let layout = Layout::load(None)?;
    let facts = facts::gather(&layout);
    let mut findings = checks::all(&facts);
    findings.extend(probes(&layout, &facts, &findings));
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

/// They need what was found so far.
fn probes(layout: &Layout, facts: &Facts, findings: &[Finding]) -> Vec<Finding> {
    let needed = ["user", "podman", "subids", "image"];
    let is_broken = findings
        .iter()
        .any(|finding| needed.contains(&finding.check) && finding.verdict == Verdict::Fail);
    let image = match &facts.image {
        Ok((name, standing)) if *standing != Standing::Missing && !is_broken => name,
        _ => {
            let why = "not tried, as something above is missing";
            return vec![Finding::warn("keep-id", why), Finding::warn("hook", why)];
        }
    };
    let keep_id = match probe::keep_id(image, facts.uid) {
        Ok(evidence) => Finding::ok("keep-id", evidence),
        Err(why) => Finding::fail("keep-id", why).hint(format!(
            "see: podman run --rm --pull=never --userns=keep-id --network=none {image} id"
        )),
    };
    let hook = match &facts.nft {
        None => Finding::warn("hook", "not tried, as there is no nft"),
        Some((nft, _)) => match probe::hook(layout, image, nft) {
            Ok(evidence) => Finding::ok("hook", evidence),
            // Sandboxes without a network need no hook.
            Err(why) => {
                Finding::warn("hook", why).hint("without it, no sandbox with a network is started")
            }
        },
    };
    vec![keep_id, hook]
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
                Cell::plain(finding.check),
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

/// For a shell, to be looked at first.
fn render_commands(findings: &[Finding]) -> String {
    let mut out = String::new();
    for finding in findings.iter().filter(|finding| finding.is_command) {
        let evidence = printable(&finding.evidence);
        out.push_str(&format!("# {}: {evidence}\n", finding.check));
        for line in finding.fix.iter().flat_map(|fix| fix.lines()) {
            out.push_str(&format!("{}\n", printable(line)));
        }
    }
    out
}
