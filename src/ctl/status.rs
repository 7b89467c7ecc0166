//! `umwelt-ctl status`: all sandboxes of this user, running and dead.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::process::ExitCode;

use serde::Serialize;

use crate::api::{ApiError, EgressStatus, State, StatusReply};
use crate::cli;
use crate::cli::args::{Args, Operands, Subcommand};
use crate::ctl::leftover;
use crate::ctl::output::{self, Cell, Colour, Widths};
use crate::ctl::peer::{self, Presence};
use crate::ctl::place::{Place, Target};
use crate::error::Error;
use crate::run::lock;
use crate::trust;
use crate::workspace::{Names, SessionId, Workspace};

pub(super) const SUBCOMMAND: Subcommand = Subcommand {
    name: "status",
    help: "\
Usage: umwelt-ctl status [--json]

Shows all sandboxes: the session id, the state, how long the control plane has
run, commands running and in all, clients, and the workspace. Running ones come
first.

A sandbox is dead when nobody answers on its socket, or when a container or a
network is left without a control plane; \"umwelt-ctl stop --hard\" removes what
is left.
One is hung when its control plane does not answer within 2 seconds.

Options:
      --json     print a JSON array, one object per sandbox
  -h, --help     print this help and exit
  -V, --version  print the version and exit
",
    flags: &["json"],
    values: &[],
    operands: Operands::None,
    run,
};

/// What is known of one session id.
#[derive(Debug)]
struct Sandbox {
    sid: SessionId,
    condition: Condition,
    /// Of one that cannot tell: from a label of what was left, or from a file.
    workspace: Option<String>,
    containers: Vec<String>,
    networks: Vec<String>,
}

#[derive(Debug)]
enum Condition {
    Live(Box<StatusReply>),
    /// Somebody listens, and says nothing that can be understood.
    Hung(ApiError),
    Dead,
}

fn run(args: Args) -> Result<ExitCode, Error> {
    let place = Place::load_despite_config()?;
    let mut sandboxes = with_sockets(&place)?;
    if args.has("json") {
        add_leftovers(&place, &mut sandboxes)?;
        let rows: Vec<Row<'_>> = sandboxes.values().map(Row::from).collect();
        return Ok(cli::print(&output::render_json(&rows)?));
    }
    sandboxes.values().for_each(Sandbox::warn);
    // podman can take long to say what else there is.
    let mut table = Table::new(output::wants_colour());
    let live: Vec<&Sandbox> = sandboxes.values().filter(|s| s.live().is_some()).collect();
    let shown: Vec<SessionId> = live.iter().map(|sandbox| sandbox.sid.clone()).collect();
    if !live.is_empty() {
        cli::print(&table.render(&live));
    }
    add_leftovers(&place, &mut sandboxes)?;
    let others = sandboxes.values().filter(|s| !shown.contains(&s.sid));
    let others: Vec<&Sandbox> = others.collect();
    Ok(cli::print(&match (shown.as_slice(), others.as_slice()) {
        ([], []) => "no sandboxes\n".to_owned(),
        (_, []) => String::new(),
        (_, others) => table.render(others),
    }))
}

/// Each sandbox that has a socket; with `leftovers` also those that podman alone
/// knows of.
pub(super) fn targets(place: &Place, leftovers: bool) -> Result<Vec<Target>, Error> {
    let mut sandboxes = with_sockets(place)?;
    if leftovers {
        add_leftovers(place, &mut sandboxes)?;
    }
    let target = |sandbox: Sandbox| {
        let known = sandbox.workspace().map(str::to_owned);
        let shown = known.unwrap_or_else(|| sandbox.sid.to_string());
        place.target_of(sandbox.sid, shown)
    };
    Ok(sandboxes.into_values().map(target).collect())
}

/// By session id.
type Sandboxes = BTreeMap<String, Sandbox>;

fn with_sockets(place: &Place) -> Result<Sandboxes, Error> {
    let mut sandboxes = Sandboxes::new();
    for sid in sids_with_a_socket(place)? {
        if let Some(condition) = ask(place, &sid)? {
            sandboxes.insert(sid.to_string(), Sandbox::new(sid, condition));
        }
    }
    Ok(sandboxes)
}

/// What has only a container or a network, and whose the dead ones were.
fn add_leftovers(place: &Place, sandboxes: &mut Sandboxes) -> Result<(), Error> {
    let left = leftover::find_all(&place.prefix)
        .and_then(|containers| Ok((containers, leftover::find_all_networks(&place.prefix)?)));
    let (containers, networks) = left.unwrap_or_else(|error| {
        log::warn!("what dead sandboxes have left is not shown: {error}");
        (Vec::new(), Vec::new())
    });
    for container in containers {
        let sandbox = of(place, sandboxes, container.sid)?;
        sandbox.workspace = sandbox.workspace.take().or(container.workspace);
        sandbox.containers.push(container.name);
    }
    for network in networks {
        let sandbox = of(place, sandboxes, network.sid)?;
        sandbox.networks.push(network.name);
    }
    for sandbox in sandboxes.values_mut() {
        if sandbox.workspace().is_none() {
            sandbox.workspace = recorded_workspace(place, &sandbox.sid);
        }
    }
    Ok(())
}

/// From the lock file, or from the record of trust.
fn recorded_workspace(place: &Place, sid: &SessionId) -> Option<String> {
    let lock = Names::new(&place.prefix, sid, &place.dirs).lock;
    let of_lock = lock::workspace_of(&lock, sid);
    let of_record = || {
        let path = trust::workspace_of(sid, &place.dirs)?;
        (Workspace::sid_of_path(&path).as_ref() == Some(sid)).then_some(path)
    };
    let path = of_lock.or_else(of_record)?;
    path.into_os_string().into_string().ok()
}

fn of<'a>(
    place: &Place,
    sandboxes: &'a mut Sandboxes,
    sid: SessionId,
) -> Result<&'a mut Sandbox, Error> {
    Ok(match sandboxes.entry(sid.to_string()) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(unknown) => {
            // It may have come up since the sockets were looked at.
            let condition = ask(place, &sid)?.unwrap_or(Condition::Dead);
            unknown.insert(Sandbox::new(sid, condition))
        }
    })
}

fn sids_with_a_socket(place: &Place) -> Result<Vec<SessionId>, Error> {
    let runtime = &place.dirs.runtime;
    let failed = |error| Error::io(format!("read {runtime:?}"), error);
    let mut sids = Vec::new();
    for entry in std::fs::read_dir(runtime).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let sid = entry
            .file_name()
            .to_str()
            .and_then(|name| sid_in(name, &place.prefix));
        if let Some(sid) = sid
            && peer::is_socket(&entry.path())
        {
            sids.push(sid);
        }
    }
    Ok(sids)
}

/// The session id in `PREFIX-SID.sock`.
fn sid_in(name: &str, prefix: &str) -> Option<SessionId> {
    let rest = name.strip_prefix(prefix)?.strip_prefix('-')?;
    SessionId::parse(rest.strip_suffix(".sock")?)
}

/// `None` where the socket has gone meanwhile.
fn ask(place: &Place, sid: &SessionId) -> Result<Option<Condition>, Error> {
    let socket = Names::new(&place.prefix, sid, &place.dirs).socket;
    Ok(match peer::presence(&socket)? {
        Presence::Absent => None,
        Presence::Dead => Some(Condition::Dead),
        Presence::Listening(_) => Some(match peer::status(&socket) {
            Ok(status) => Condition::Live(Box::new(status)),
            Err(error) => Condition::Hung(error),
        }),
    })
}

impl Sandbox {
    fn new(sid: SessionId, condition: Condition) -> Sandbox {
        Sandbox {
            sid,
            condition,
            workspace: None,
            containers: Vec::new(),
            networks: Vec::new(),
        }
    }

    fn warn(&self) {
        let sid = &self.sid;
        if let Condition::Hung(error) = &self.condition {
            log::warn!("no status of {sid}: {error}");
        }
        let egress = self.live().and_then(|live| live.egress.as_ref());
        for problem in egress.into_iter().flat_map(EgressStatus::problems) {
            log::warn!("the network of {sid}: {problem}");
        }
    }

    fn state(&self) -> &'static str {
        match &self.condition {
            Condition::Live(status) => status.state.as_str(),
            Condition::Hung(_) => "hung",
            Condition::Dead => "dead",
        }
    }

    fn colour(&self) -> Colour {
        match &self.condition {
            Condition::Live(status) if status.state == State::Ready => Colour::Green,
            Condition::Live(_) => Colour::Yellow,
            Condition::Hung(_) | Condition::Dead => Colour::Red,
        }
    }

    fn live(&self) -> Option<&StatusReply> {
        match &self.condition {
            Condition::Live(status) => Some(status),
            Condition::Hung(_) | Condition::Dead => None,
        }
    }

    fn workspace(&self) -> Option<&str> {
        match self.live() {
            Some(status) => Some(&status.workspace),
            None => self.workspace.as_deref(),
        }
    }
}

const HEADING: [&str; 6] = ["SID", "STATE", "UPTIME", "CMDS", "CLIENTS", "WORKSPACE"];

/// Rows that come in several parts, below one heading.
struct Table {
    colour: bool,
    widths: Option<Widths<6>>,
}

impl Table {
    fn new(colour: bool) -> Table {
        Table {
            colour,
            widths: None,
        }
    }

    fn render(&mut self, sandboxes: &[&Sandbox]) -> String {
        let rows: Vec<_> = sandboxes.iter().map(|s| row(s, self.colour)).collect();
        match &self.widths {
            Some(widths) => widths.render(&rows),
            None => {
                let widths = self.widths.insert(Widths::fitting(HEADING, &rows));
                widths.render_heading(HEADING) + &widths.render(&rows)
            }
        }
    }
}

fn row(sandbox: &Sandbox, colour: bool) -> [Cell; 6] {
    let live = sandbox.live();
    let fact =
        |fact: fn(&StatusReply) -> String| Cell::plain(live.map_or_else(|| "-".to_owned(), fact));
    [
        Cell::plain(sandbox.sid.as_str()),
        Cell::coloured(sandbox.state(), colour.then(|| sandbox.colour())),
        fact(|live| output::render_duration(live.uptime_s)),
        fact(|live| format!("{}/{}", live.commands_running, live.commands_total)),
        fact(|live| live.clients.to_string()),
        Cell::plain(sandbox.workspace().unwrap_or("-")),
    ]
}

/// One sandbox as JSON; what a dead one cannot tell is null.
#[derive(Serialize)]
struct Row<'a> {
    sid: &'a str,
    state: &'a str,
    workspace: Option<&'a str>,
    containers: Vec<&'a str>,
    /// Of a sandbox with egress, or left by one.
    networks: Vec<&'a str>,
    pid: Option<u32>,
    uptime_s: Option<u64>,
    restarts: Option<u32>,
    clients: Option<u32>,
    commands_running: Option<u32>,
    commands_total: Option<u64>,
    network: Option<&'a str>,
    /// Of its gateway, with its problems.
    egress: Option<&'a EgressStatus>,
    image: Option<&'a str>,
    launched: Option<bool>,
    version: Option<&'a str>,
    /// Why a hung one is called hung.
    problem: Option<&'a str>,
}

impl<'a> From<&'a Sandbox> for Row<'a> {
    fn from(sandbox: &'a Sandbox) -> Row<'a> {
        let live = sandbox.live();
        let mut containers: Vec<&str> = sandbox.containers.iter().map(String::as_str).collect();
        if let Some(live) = live
            && !containers.contains(&live.container.as_str())
        {
            containers.push(&live.container);
        }
        Row {
            sid: sandbox.sid.as_str(),
            state: sandbox.state(),
            workspace: sandbox.workspace(),
            containers,
            networks: sandbox.networks.iter().map(String::as_str).collect(),
            pid: live.map(|live| live.pid),
            uptime_s: live.map(|live| live.uptime_s),
            restarts: live.map(|live| live.restarts),
            clients: live.map(|live| live.clients),
            commands_running: live.map(|live| live.commands_running),
            commands_total: live.map(|live| live.commands_total),
            network: live.map(|live| live.network.as_str()),
            egress: live.and_then(|live| live.egress.as_ref()),
            image: live.map(|live| live.image.as_str()),
            launched: live.map(|live| live.launched),
            version: live.map(|live| live.version.as_str()),
            problem: match &sandbox.condition {
                Condition::Hung(error) => Some(&error.message),
                Condition::Live(_) | Condition::Dead => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live() -> Sandbox {
        let status = serde_json::from_value(serde_json::json!({
            "version": "0.1.0", "sid": "00000001", "workspace": "/w\u{1b}[2J", "state": "ready",
            "pid": 7, "container": "umwelt-00000001", "image": "i", "init_pid": null,
            "uptime_s": 61, "restarts": 0, "clients": 2, "commands_running": 1,
            "commands_total": 12, "network": "none", "launched": true,
        }))
        .unwrap();
        Sandbox::new(
            SessionId::parse("00000001").unwrap(),
            Condition::Live(status),
        )
    }

    fn dead() -> Sandbox {
        Sandbox::new(SessionId::parse("00000002").unwrap(), Condition::Dead)
    }

    #[test]
    fn table_shows_live_and_dead() {
        let mut table = Table::new(false);
        assert_eq!(
            table.render(&[&live()]),
            "SID       STATE  UPTIME  CMDS  CLIENTS  WORKSPACE\n\
             00000001  ready  1m 1s   1/12  2        /w\\x1b[2J\n"
        );
        assert_eq!(
            table.render(&[&dead()]),
            "00000002  dead   -       -     -        -\n"
        );
    }

    #[test]
    fn colour_is_only_there_when_wanted() {
        let render = |colour| Table::new(colour).render(&[&dead()]);
        assert!(render(true).contains("\x1b[31mdead\x1b[0m"));
        assert!(!render(false).contains('\x1b'));
    }

    #[test]
    fn socket_names_are_matched_whole() {
        assert!(sid_in("umwelt-0123abcd.sock", "umwelt").is_some());
        for name in [
            "umwelt-0123abcd.sock2",
            "umwelt-0123abcd.lock",
            "umwelt2-0123abcd.sock",
            "umwelt-x-0123abcd.sock",
            "umwelt-0123abc.sock",
            "umwelt-0123ABCD.sock",
        ] {
            assert!(sid_in(name, "umwelt").is_none(), "{name}");
        }
    }
}
