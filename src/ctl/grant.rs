//! `umwelt-ctl grant` and `revoke`: paths of the host in a running sandbox.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::api::client::Client;
use crate::api::{Applied, Call, ChangeReply, Grant, GrantMode, Revoke};
use crate::cli;
use crate::cli::args::{self, Args, Operands, Subcommand};
use crate::ctl::output;
use crate::ctl::peer::{self, Presence};
use crate::ctl::place::Place;
use crate::ctl::{CLIENT, CtlError};
use crate::error::Error;
use crate::text::printable;
use crate::workspace;

pub(super) const SUBCOMMAND: Subcommand = Subcommand {
    name: "grant",
    help: "\
Usage: umwelt-ctl grant [--ro | --rw | --file] [--persist] [--json]
                        WORKSPACE PATH

Shows PATH, a directory of the host, in the running sandbox of WORKSPACE, under
the same path and read-only. It lasts until the control plane ends. Where the
sandbox has to be created anew for it, what runs inside is ended and named.

Options:
      --ro       only let it be read (the default)
      --rw       let the sandbox write there, too
      --file     PATH is a single file; it can only be read
      --persist  write it to .umwelt.toml as well, for later starts
      --json     print one JSON object
  -h, --help     print this help and exit
  -V, --version  print the version and exit
",
    flags: &["ro", "rw", "file", "persist", "json"],
    values: &[],
    operands: Operands::Words(2, 2, "a workspace and a path"),
    run: run_grant,
};

pub(super) const REVOKE: Subcommand = Subcommand {
    name: "revoke",
    help: "\
Usage: umwelt-ctl revoke [--json] WORKSPACE PATH

Takes back what was granted for PATH in the running sandbox of WORKSPACE, in its
.umwelt.toml as well. Base mounts and the workspace itself stay.

Options:
      --json     print one JSON object
  -h, --help     print this help and exit
  -V, --version  print the version and exit
",
    flags: &["json"],
    values: &[],
    operands: Operands::Words(2, 2, "a workspace and a path"),
    run: run_revoke,
};

/// Time to create a sandbox anew, and for one that is just starting.
const CHANGE_WAIT: Duration = Duration::from_secs(120);

fn run_grant(args: Args) -> Result<ExitCode, Error> {
    args.check_one_of(&["ro", "rw"])?;
    if args.has("rw") && args.has("file") {
        return Err(Error::usage(
            "the options \"--rw\" and \"--file\" exclude each other: a single file can only be read",
        ));
    }
    let place = Place::load()?;
    let call = Call::Grant(Grant {
        path: path_of(&args, &place)?,
        mode: match args.has("rw") {
            true => GrantMode::Rw,
            false => GrantMode::Ro,
        },
        persist: args.has("persist"),
        file: args.has("file"),
    });
    change(&args, &place, call)
}

fn run_revoke(args: Args) -> Result<ExitCode, Error> {
    let place = Place::load()?;
    let path = path_of(&args, &place)?;
    change(&args, &place, Call::Revoke(Revoke { path }))
}

/// For a person, a relative path starts where he is; the control plane would
/// take it from the workspace.
fn path_of(args: &Args, place: &Place) -> Result<String, Error> {
    let given = Path::new(args.operand(1).unwrap_or_default());
    let given = workspace::expand_tilde(given, &place.dirs.home);
    let path: PathBuf = std::path::absolute(&given)
        .map_err(|error| Error::io(format!("resolve the path {given:?}"), error))?;
    args::text(path.as_os_str())
}

fn change(args: &Args, place: &Place, call: Call) -> Result<ExitCode, Error> {
    let target = place.target(args.workspace())?;
    let socket = &target.names.socket;
    if !matches!(peer::presence(socket)?, Presence::Listening(_)) {
        return Err(match call {
            Call::Grant(_) => CtlError::NoneToGrant { what: target.shown }.into(),
            _ => target.not_running(false),
        });
    }
    let deadline = Instant::now() + CHANGE_WAIT;
    let (mut client, _) = Client::connect_by(socket, CLIENT, false, deadline)?;
    let reply: ChangeReply = peer::ask(&mut client, call, deadline)?;
    Ok(cli::print(&match args.has("json") {
        true => output::render_json(&reply)?,
        false => render(&reply),
    }))
}

fn render(reply: &ChangeReply) -> String {
    let path = printable(&reply.path);
    let mut out = match &reply.mode {
        Some(mode) => format!("{}  {path}\n", printable(mode)),
        None => format!("not shown  {path}\n"),
    };
    out.push_str(match reply.applied {
        Applied::Unchanged => "it was so before\n",
        Applied::Live => "changed in the running sandbox\n",
        Applied::Recreated => "the sandbox was created anew\n",
    });
    if reply.persisted {
        out.push_str(".umwelt.toml was changed as well\n");
    }
    for lost in &reply.lost {
        out.push_str(&format!("ended: {}\n", printable(lost)));
    }
    for notice in &reply.notices {
        out.push_str(&format!("note: {}\n", printable(notice)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_what_is_there_now_and_what_it_has_cost() {
        let reply = ChangeReply {
            path: "/a\n".to_owned(),
            mode: Some("rw".to_owned()),
            applied: Applied::Recreated,
            persisted: true,
            lost: vec!["sleep\n9".to_owned()],
            mounts: Vec::new(),
            notices: vec!["n".to_owned()],
        };
        assert_eq!(
            render(&reply),
            "rw  /a\\n\nthe sandbox was created anew\n.umwelt.toml was changed as well\n\
             ended: sleep\\n9\nnote: n\n"
        );
        let reply = ChangeReply {
            mode: None,
            applied: Applied::Live,
            persisted: false,
            lost: Vec::new(),
            notices: Vec::new(),
            ..reply
        };
        assert_eq!(
            render(&reply),
            "not shown  /a\\n\nchanged in the running sandbox\n"
        );
    }
}
