//! `umwelt-ctl list`: what a running sandbox may see and use.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::api::client::Client;
use crate::api::{Call, Egress, EgressOp, EgressReply, Empty, ListReply, MountEntry};
use crate::cli;
use crate::cli::args::{Args, Subcommand, WORKSPACE};
use crate::ctl::output::{self, Cell};
use crate::ctl::peer::{self, Presence};
use crate::ctl::place::Place;
use crate::ctl::{CLIENT, NAME};
use crate::error::Error;
use crate::text;

pub(super) const SUBCOMMAND: Subcommand = Subcommand {
    name: "list",
    help: "\
Usage: umwelt-ctl list [--json] [WORKSPACE]

Shows the mounts, caps, network and scratch sizes of a running sandbox. Left
out, WORKSPACE is the current directory.

Options:
      --json     print one JSON object
  -h, --help     print this help and exit
  -V, --version  print the version and exit
",
    flags: &["json"],
    values: &[],
    operands: WORKSPACE,
    run,
};

/// A sandbox that is starting answers when it is ready.
const LIST_WAIT: Duration = Duration::from_secs(60);

fn run(args: Args) -> Result<ExitCode, Error> {
    let target = Place::load()?.target(args.workspace())?;
    let socket = &target.names.socket;
    if !matches!(peer::presence(socket)?, Presence::Listening(_)) {
        return Err(target.not_running(false));
    }
    let deadline = Instant::now() + LIST_WAIT;
    let (mut client, _) = Client::connect_by(socket, CLIENT, false, deadline)?;
    let reply: ListReply = peer::ask(&mut client, Call::List(Empty {}), deadline)?;
    if args.has("json") {
        return Ok(cli::print(&output::render_json(&reply)?));
    }
    let rules = match reply.network.as_str() {
        "none" => None,
        _ => Some(count_rules(&mut client, deadline)?),
    };
    Ok(cli::print(&render(&reply, rules)))
}

fn count_rules(client: &mut Client, deadline: Instant) -> Result<usize, Error> {
    let call = Egress {
        op: EgressOp::List,
        kind: None,
        host: None,
        port: None,
        paths: None,
        methods: None,
        inspect: None,
        private: None,
    };
    let reply: EgressReply = peer::ask(client, Call::Egress(call), deadline)?;
    Ok(reply.rules.len())
}

fn network(reply: &ListReply, rules: Option<usize>) -> String {
    match rules {
        None => reply.network.clone(),
        Some(1) => format!("{}, 1 rule; see: {NAME} egress list", reply.network),
        Some(count) => format!("{}, {count} rules; see: {NAME} egress list", reply.network),
    }
}

pub(super) fn render(reply: &ListReply, rules: Option<usize>) -> String {
    let facts = [
        ("workspace", reply.workspace.clone()),
        ("network", network(reply, rules)),
        ("memory", output::render_size(reply.resources.memory)),
        ("cpus", reply.resources.cpus.to_string()),
        ("processes", reply.resources.pids_limit.to_string()),
        (
            "timeout",
            format!(
                "{} (at most {})",
                output::render_duration(reply.timeout_default_s),
                output::render_duration(reply.timeout_max_s)
            ),
        ),
    ];
    let mut out = String::new();
    for (name, value) in facts {
        out.push_str(&format!("{name:<9}  {}\n", text::printable(&value)));
    }
    let rows: Vec<_> = reply
        .mounts
        .iter()
        .map(|mount| {
            [
                Cell::plain(&mount.mode),
                Cell::plain(
                    mount
                        .size
                        .map_or_else(|| "-".to_owned(), output::render_size),
                ),
                Cell::plain(&mount.source),
                Cell::plain(with_reason(mount)),
            ]
        })
        .collect();
    out.push('\n');
    out.push_str(&output::render_table(
        ["MODE", "SIZE", "SOURCE", "PATH"],
        &rows,
    ));
    for notice in &reply.notices {
        out.push_str(&format!("note: {}\n", text::printable(notice)));
    }
    out
}

fn with_reason(mount: &MountEntry) -> String {
    match &mount.reason {
        Some(reason) => format!("{}  ({reason})", mount.path),
        None => mount.path.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_caps_mounts_and_notices() {
        let reply = serde_json::from_value(serde_json::json!({
            "workspace": "/w", "network": "none",
            "mounts": [
                {"path": "/w", "mode": "rw", "source": "workspace"},
                {"path": "/h/a", "mode": "masked", "source": "base", "reason": "x\ny"},
                {"path": "/tmp", "mode": "tmpfs", "source": "umwelt", "size": 1u64 << 30},
            ],
            "resources": {"memory": 4u64 << 30, "cpus": 1.5, "pids_limit": 1024},
            "timeout_default_s": 120, "timeout_max_s": 3600,
            "notices": ["a\nb"],
        }))
        .unwrap();
        assert_eq!(
            render(&reply, None),
            "workspace  /w\nnetwork    none\nmemory     4g\ncpus       1.5\n\
             processes  1024\ntimeout    2m 0s (at most 1h 0m)\n\n\
             MODE    SIZE  SOURCE     PATH\nrw      -     workspace  /w\n\
             masked  -     base       /h/a  (x\\ny)\n\
             tmpfs   1g    umwelt     /tmp\nnote: a\\nb\n"
        );
        let with_rules = render(&reply, Some(2));
        assert!(with_rules.contains("network    none, 2 rules; see: umwelt-ctl egress list\n"));
    }
}
