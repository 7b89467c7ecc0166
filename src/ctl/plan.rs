//! `umwelt-ctl plan`: what the next start of a sandbox would make.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::cli;
use crate::cli::args::{Args, Subcommand, WORKSPACE};
use crate::ctl::egress::render as rules;
use crate::ctl::place::{self, Place};
use crate::ctl::trust::path_of;
use crate::ctl::{NAME, list, output};
use crate::error::Error;
use crate::run::planned::{self, Planned};
use crate::text::{printable, shell_word};

pub(super) const SUBCOMMAND: Subcommand = Subcommand {
    name: "plan",
    help: "\
Usage: umwelt-ctl plan [--json] [WORKSPACE]

Shows what the next start of a sandbox would make, and makes nothing: mounts
with the layer that asks for each, caps, the rules of the network, and the call
of podman. What would refuse the start is the error here too; where the host
lacks something, all of that is named, and the rest is shown. podman is not
asked, so it may still lack the image. Left out, WORKSPACE is the current
directory.

As at each start, cgroup controllers are enabled at the levels that belong to
the user. Grants of a session end with it, so none of them is here; see:
umwelt-ctl list.

Options:
      --json     print one JSON object
  -h, --help     print this help and exit
  -V, --version  print the version and exit

Exit status: as that of umwelt-run.
",
    flags: &["json"],
    values: &[],
    operands: WORKSPACE,
    run,
};

fn run(args: Args) -> Result<ExitCode, Error> {
    // A session id is none to a start; everything else is understood there.
    let workspace = match args.workspace() {
        Some(word) if place::as_sid(Some(word)).is_some() => {
            let place = Place::load()?;
            Some(path_of(&place, &place.target(Some(word))?)?)
        }
        word => word.map(PathBuf::from),
    };
    let (planned, missing) = planned::plan(workspace.as_deref())?;
    let printed = cli::print(&match args.has("json") {
        true => output::render_json(&planned)?,
        false => render(&planned),
    });
    // As a start would end.
    let codes: Vec<ExitCode> = missing
        .iter()
        .map(|error| cli::report(NAME, error))
        .collect();
    Ok(codes.into_iter().next().unwrap_or(printed))
}

fn render(planned: &Planned) -> String {
    let mut out = list::render(&planned.list, None);
    out.push_str(&rules::tables(&planned.rules, &planned.hosts));
    if !planned.missing.is_empty() {
        out.push_str("\nThe call of podman is left out: this host lacks what a start needs.\n");
        return out;
    }
    // One option a line, as a shell reads it.
    let words = planned.argv.iter();
    let words: Vec<_> = words.map(|word| shell_word(&printable(word))).collect();
    out.push_str(&format!("\n{}\n", words.join(" \\\n    ")));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_can_be_copied_into_a_shell() {
        let planned = serde_json::json!({
            "argv": ["podman", "run", "--label=umwelt.workspace=/a b", "umwelt:latest"],
            "workspace": "/a b", "network": "egress", "mounts": [],
            "resources": {"memory": 1u64 << 30, "cpus": 2.0, "pids_limit": 64},
            "timeout_default_s": 1, "timeout_max_s": 2, "notices": ["a\nb"],
            "rules": [{"kind": "https", "host": "a.example.org", "port": 443, "inspect": true,
                "private": false, "source": "base"}],
            "hosts": [], "missing": [],
        });
        let mut planned: Planned = serde_json::from_value(planned).unwrap();
        let out = render(&planned);
        assert!(out.starts_with("workspace  /a b\n"), "{out}");
        assert!(out.contains("note: a\\nb\n"), "{out}");
        assert!(out.contains("https  a.example.org"), "{out}");
        let call =
            "podman \\\n    run \\\n    '--label=umwelt.workspace=/a b' \\\n    umwelt:latest\n";
        assert!(out.ends_with(call), "{out}");
        planned.missing.push("x".to_owned());
        let out = render(&planned);
        assert!(out.ends_with("what a start needs.\n"), "{out}");
        assert!(out.contains("https  a.example.org"), "{out}");
    }
}
