//! `umwelt-ctl stop`: ends a sandbox; with `--hard` also one whose control
//! plane is dead or hangs. What does not carry our labels is never touched.

use std::fs::File;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::api::client::Client;
use crate::api::{Call, Empty, ErrorKind};
use crate::cli;
use crate::cli::args::{Args, Subcommand, WORKSPACE};
use crate::ctl::leftover::{self, Container, Network};
use crate::ctl::peer::{self, Peer, Presence};
use crate::ctl::place::{Place, Target};
use crate::ctl::{CLIENT, CtlError, NAME, status};
use crate::error::Error;
use crate::sys::lock;
use crate::text;

pub(super) const SUBCOMMAND: Subcommand = Subcommand {
    name: "stop",
    help: "\
Usage: umwelt-ctl stop [--hard] [--all | WORKSPACE]

Ends a sandbox and all that runs in it, and waits until it is gone: up to 60
seconds while its control plane still answers. Left out, WORKSPACE is the
current directory; it may be a directory that is gone.

Options:
      --all      end each sandbox of the user that runs, one after the other;
                 with --hard those that are dead, too
      --hard     kill a control plane that does not answer within 2 seconds or
                 end within 10, and remove the containers, the networks and the
                 socket that a dead one has left
  -h, --help     print this help and exit
  -V, --version  print the version and exit
",
    flags: &["hard", "all"],
    values: &[],
    operands: WORKSPACE,
    run,
};

/// How long each step of an end may take.
#[derive(Clone, Copy)]
struct Wait {
    /// Then the control plane is asked whether it still lives.
    quiet: Duration,
    /// A sign of life must come until then.
    alive: Duration,
    /// For one that lives, until all of it is gone.
    gone: Duration,
}

const WAIT: Wait = Wait {
    quiet: Duration::from_secs(10),
    alive: Duration::from_secs(30),
    gone: Duration::from_secs(60),
};
/// With `--hard`, before the control plane is killed.
const HARD_WAIT: Wait = Wait {
    quiet: Duration::from_secs(8),
    alive: Duration::from_secs(10),
    gone: Duration::from_secs(10),
};
/// A killed process is gone at once, unless the kernel is busy with it.
const KILL_WAIT: Duration = Duration::from_secs(5);
/// A control plane shakes hands at once, whatever else it does.
const HELLO_WAIT: Duration = Duration::from_secs(5);
/// A process that has closed its socket may still be ending.
const END_WAIT: Duration = Duration::from_secs(1);
/// The lock goes with its holder.
const LOCK_WAIT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(50);

fn run(args: Args) -> Result<ExitCode, Error> {
    let hard = args.has("hard");
    match (args.workspace(), args.has("all")) {
        (Some(word), true) => Err(Error::usage(format!(
            "the option \"--all\" goes without a workspace: {word:?}"
        ))),
        (None, true) => stop_all(&Place::load_despite_config()?, hard),
        (given, false) => {
            let place = Place::load_despite_config()?;
            Ok(cli::print(&stop(&place, &place.target(given)?, hard)?))
        }
    }
}

/// What goes wrong with one sandbox keeps none of the others.
fn stop_all(place: &Place, hard: bool) -> Result<ExitCode, Error> {
    let (mut code, mut is_any) = (ExitCode::SUCCESS, false);
    for target in status::targets(place, hard)? {
        match stop(place, &target, hard) {
            Ok(done) => {
                is_any = true;
                cli::print(&done);
            }
            Err(Error::Ctl(CtlError::NotRunning {
                leftovers: true,
                what,
            })) => {
                let what = text::printable(&what);
                let line = format!(
                    "{NAME}: note: the sandbox of {what} is dead; remove what it left with: {NAME} stop --hard --all\n"
                );
                cli::write_stderr(line.as_bytes());
            }
            // It has ended by itself meanwhile.
            Err(Error::Ctl(CtlError::NotRunning { .. })) => {}
            Err(error) => code = cli::report(NAME, &error),
        }
    }
    if !is_any && code == ExitCode::SUCCESS {
        cli::print("no sandboxes to stop\n");
    }
    Ok(code)
}

fn stop(place: &Place, target: &Target, hard: bool) -> Result<String, Error> {
    let stop = Stop {
        target,
        prefix: &place.prefix,
    };
    let done = match (peer::presence(&target.names.socket)?, hard) {
        (Presence::Listening(peer), false) => stop.gracefully(peer.as_ref(), WAIT)?,
        (Presence::Listening(peer), true) => stop.by_force(peer.as_ref())?,
        (Presence::Dead | Presence::Absent, true) => stop.clear()?,
        (Presence::Dead, false) => return Err(target.not_running(true)),
        (Presence::Absent, false) => {
            let is_left =
                !stop.containers_or_none().is_empty() || !stop.networks_or_none().is_empty();
            return Err(target.not_running(is_left));
        }
    };
    Ok(done)
}

struct Stop<'a> {
    target: &'a Target,
    prefix: &'a str,
}

impl Stop<'_> {
    /// Asks the control plane to end, and waits until nothing is left of it.
    fn gracefully(&self, peer: Option<&Peer>, wait: Wait) -> Result<String, Error> {
        let containers = self.containers_or_none();
        let start = Instant::now();
        self.ask_to_end(peer, start, wait)?;
        let deadline = start + wait.gone;
        if !self.is_gone(peer, deadline)? || !self.are_gone(&containers, deadline) {
            return Err(self.still_there(wait.gone));
        }
        Ok(self.line("stopped the sandbox"))
    }

    fn ask_to_end(&self, peer: Option<&Peer>, start: Instant, wait: Wait) -> Result<(), Error> {
        let socket = &self.target.names.socket;
        let shutdown = || {
            let hello = (start + wait.alive).min(Instant::now() + HELLO_WAIT);
            let (mut client, _) = Client::connect_by(socket, CLIENT, false, hello)?;
            let shutdown = Call::Shutdown(Empty {});
            let asked: Result<Value, _> = peer::ask(&mut client, shutdown, start + wait.quiet);
            // It answers at its end, which can be far. A ping is answered at once.
            match asked {
                Err(error) if error.kind == ErrorKind::Unreachable => {
                    let ping = Call::Ping(Empty {});
                    let alive: Result<Value, _> = peer::ask(&mut client, ping, start + wait.alive);
                    alive.map(|_| self.tell_of_waiting(wait))
                }
                other => other.map(drop),
            }
        };
        match (shutdown(), peer) {
            (Ok(()), _) => Ok(()),
            // It may go before its answer does. Whether it has is seen next.
            (Err(error), _) if error.kind == ErrorKind::Stopping => Ok(()),
            (Err(error), Some(peer))
                if error.kind == ErrorKind::Unreachable
                    && peer.ended_by(Instant::now() + END_WAIT) =>
            {
                Ok(())
            }
            // A control plane of another version has no other common language.
            (Err(error), Some(peer)) if error.kind == ErrorKind::Version => {
                peer.signal(Signal::TERM)
            }
            (Err(error), _) => Err(error
                .with_hint(CtlError::hard_hint(&self.target.shown))
                .into()),
        }
    }

    fn tell_of_waiting(&self, wait: Wait) {
        if wait.gone > wait.quiet {
            let line = format!(
                "{NAME}: note: the sandbox of {} is still stopping; waiting up to {} s\n",
                text::printable(&self.target.shown),
                wait.gone.as_secs()
            );
            cli::write_stderr(line.as_bytes());
        }
    }

    /// Waits for the end of the process, which removes its socket before. The
    /// socket of a successor that a client has launched does not count.
    fn is_gone(&self, peer: Option<&Peer>, deadline: Instant) -> Result<bool, Error> {
        if peer.is_some_and(|peer| !peer.ended_by(deadline)) {
            return Ok(false);
        }
        loop {
            let gone = match (peer::presence(&self.target.names.socket)?, peer) {
                (Presence::Absent, _) => true,
                (Presence::Dead, _) => return Err(self.target.not_running(true)),
                (Presence::Listening(Some(now)), Some(peer)) => now.pid() != peer.pid(),
                _ => false,
            };
            if gone || Instant::now() >= deadline {
                return Ok(gone);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits for the containers that were there before.
    fn are_gone(&self, containers: &[Container], deadline: Instant) -> bool {
        while !containers.is_empty() {
            let now = self.containers_or_none();
            let left = containers.iter().any(|container| now.contains(container));
            if !left || Instant::now() >= deadline {
                return !left;
            }
            std::thread::sleep(PAUSE);
        }
        true
    }

    /// Gracefully if that works; else kills the control plane, and then
    /// removes what it has left.
    fn by_force(&self, peer: Option<&Peer>) -> Result<String, Error> {
        let answers = match peer::status(&self.target.names.socket) {
            Err(error) if error.kind == ErrorKind::Unreachable => Err(error.into()),
            _ => Ok(()),
        };
        let problem = match answers.and_then(|()| self.gracefully(peer, HARD_WAIT)) {
            Ok(done) => return Ok(done),
            Err(problem) => problem,
        };
        let Some(peer) = peer else {
            return Err(problem);
        };
        if peer.ended_by(Instant::now() + END_WAIT) {
            return self.clear();
        }
        log::warn!(
            "killing the control plane, process {}: {problem}",
            peer.pid().as_raw_pid()
        );
        peer.signal(Signal::KILL)?;
        if !peer.ended_by(Instant::now() + KILL_WAIT) {
            return Err(self.still_there(KILL_WAIT));
        }
        let mut done = self.line("killed the control plane");
        match self.clear() {
            Ok(cleared) => done.push_str(&cleared),
            Err(Error::Ctl(CtlError::NotRunning { .. })) => {}
            Err(error) => return Err(error),
        }
        Ok(done)
    }

    /// Removes what a dead control plane has left. The lock keeps a new one
    /// from starting meanwhile, whose container would carry the same labels.
    fn clear(&self) -> Result<String, Error> {
        let socket = peer::presence(&self.target.names.socket)?;
        let is_empty = self.containers_or_none().is_empty() && self.networks_or_none().is_empty();
        if matches!(socket, Presence::Absent) && is_empty {
            return Err(self.target.not_running(false));
        }
        let _lock = self.lock()?;
        let mut done = String::new();
        let mut problems = Vec::new();
        for container in self.containers_or_none() {
            match leftover::remove(&container) {
                Ok(()) => done.push_str(&removed("container", &container.name)),
                Err(error) => problems.push(error.to_string()),
            }
        }
        // With nothing on them any more.
        for network in self.networks_or_none() {
            match leftover::remove_network(&network) {
                Ok(()) => done.push_str(&removed("network", &network.name)),
                Err(error) => problems.push(error.to_string()),
            }
        }
        match self.remove_socket() {
            Ok(Some(line)) => done.push_str(&line),
            Ok(None) => {}
            Err(error) => problems.push(error.to_string()),
        }
        if problems.is_empty() {
            return Ok(done);
        }
        cli::print(&done);
        Err(CtlError::Teardown(problems).into())
    }

    /// Takes the lock that a control plane holds for life, as it does: flock(2).
    fn lock(&self) -> Result<File, Error> {
        let path = &self.target.names.lock;
        let failed = |error| Error::io(format!("lock {path:?}"), error);
        lock::take(path, LOCK_WAIT).map_err(failed)?.ok_or_else(|| {
            let what = self.target.shown.clone();
            CtlError::Held { what }.into()
        })
    }

    /// Only the socket itself, and only while nobody listens on it.
    fn remove_socket(&self) -> Result<Option<String>, Error> {
        let socket = &self.target.names.socket;
        if !matches!(peer::presence(socket)?, Presence::Dead) || !peer::is_socket(socket) {
            return Ok(None);
        }
        std::fs::remove_file(socket)
            .map_err(|error| Error::io(format!("remove {socket:?}"), error))?;
        Ok(Some(removed("socket", &socket.to_string_lossy())))
    }

    /// Where podman cannot tell, the control plane's word must do.
    fn containers_or_none(&self) -> Vec<Container> {
        leftover::find(self.prefix, &self.target.sid).unwrap_or_else(|error| {
            log::warn!("containers are not looked at: {error}");
            Vec::new()
        })
    }

    fn networks_or_none(&self) -> Vec<Network> {
        match leftover::find_networks(self.prefix, &self.target.sid) {
            Ok(networks) => networks,
            // Said of the containers already.
            Err(CtlError::NoPodman) => Vec::new(),
            Err(error) => {
                log::warn!("networks are not looked at: {error}");
                Vec::new()
            }
        }
    }

    fn still_there(&self, wait: Duration) -> Error {
        CtlError::StillThere {
            what: self.target.shown.clone(),
            after_s: wait.as_secs(),
        }
        .into()
    }

    fn line(&self, what: &str) -> String {
        format!("{what} of {}\n", text::printable(&self.target.shown))
    }
}

fn removed(what: &str, name: &str) -> String {
    format!("removed {what} {}\n", text::printable(name))
}
