//! All mutable state of a control plane, and the loop that changes it.
//!
//! The parts of the work are in the modules beside this one: `lifecycle` (the
//! container), `handler` (requests), `commands`, `reports`, `output` and
//! `ending` (what runs inside).

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mio::Events;
use rustix::net::sockopt;

use crate::api::{ApiError, ErrorKind, ListReply, State};
use crate::config::Config;
use crate::dirs::Dirs;
use crate::error::Error;
use crate::podman::PodmanError;
use crate::podman::argv::ContainerSpec;
use crate::policy::grants::GrantSet;
use crate::policy::mounts::{HostFacts, Mount};
use crate::run::change::Changes;
use crate::run::channel::Channel;
use crate::run::connection::{Connection, ReadState};
use crate::run::discard::Discards;
use crate::run::ending::Lingering;
use crate::run::environment::GitIdentity;
use crate::run::job::{EndReason, Job};
use crate::run::journal::Journal;
use crate::run::layout::Sources;
use crate::run::lifecycle::Phase;
use crate::run::network::Egress;
use crate::run::notices::Watched;
use crate::run::poller::{Poller, Source, Timer};
use crate::run::prepared::Prepared;
use crate::run::saved::SavedOutputs;
use crate::run::standing::StandingFile;
use crate::run::task::Task;

use crate::run::waiting::WaitingQueue;
use crate::run::watchdog::Backoff;
use crate::workspace::{Names, Workspace};

/// The regular look at what events should have told.
const BACKSTOP: Duration = Duration::from_secs(5);
/// A connection must say hello within this.
const HELLO: Duration = Duration::from_secs(10);
/// A launched control plane must get its first client within this.
const FIRST_CLIENT: Duration = Duration::from_secs(60);
/// How long the last answers may take to be read.
const LEAVE: Duration = Duration::from_secs(1);
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
const MAX_CONNECTIONS: usize = 256;
/// Most requests of one client before others get their turn: starting a
/// command takes a while.
const LINES: usize = 8;

/// What does not change while the control plane lives.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) workspace: Workspace,
    pub(crate) names: Names,
    pub(crate) spec: ContainerSpec,
    pub(crate) exe: PathBuf,
    pub(crate) user: String,
    pub(crate) home: String,
    pub(crate) seccomp: Vec<u8>,
    /// Where the rules of the network are written.
    pub(crate) ruleset_file: PathBuf,
    /// Files that a network needs inside.
    pub(crate) network_mounts: Vec<Mount>,
    /// Where podman and git are looked for.
    pub(crate) search_path: OsString,
    pub(crate) list: ListReply,
    /// Of a workspace that is a worktree: watched like its own `.git`.
    pub(crate) git_dirs: Vec<PathBuf>,
    pub(crate) host: HostFacts,
    /// Directories in which commands could write at some time: links there are
    /// not believed for as long as this lives.
    pub(crate) was_writable: BTreeSet<String>,
    /// What the sources of the base binds were at the start.
    pub(crate) sources: Sources,
    pub(crate) config: Config,
    pub(crate) dirs: Dirs,
    /// Started by a client: ends with its last client.
    pub(crate) launched: bool,
}

/// What the workspace asks for.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) workspace_file: StandingFile,
    pub(crate) egress: Option<Egress>,
}

/// How the loop ends.
#[derive(Debug)]
pub(crate) enum Ending {
    Clean,
    Failed(Error),
}

#[derive(Debug)]
pub(crate) struct ControlPlane {
    pub(crate) context: Context,
    pub(crate) poller: Poller,
    listener: Option<OwnedFd>,
    signals: OwnedFd,
    pub(crate) connections: HashMap<u64, Connection>,
    pub(crate) jobs: HashMap<u64, Job>,
    /// For the next command.
    pub(crate) prepared: Option<Prepared>,
    /// Background processes of ended commands, oldest first.
    pub(crate) lingering: Vec<Lingering>,
    /// Pipes that ended commands left open: read, so that nobody blocks.
    pub(crate) discards: Discards,
    pub(crate) saved: SavedOutputs,
    pub(crate) tasks: HashMap<u64, (Task, crate::run::lifecycle::TaskKind)>,
    pub(crate) phase: Phase,
    pub(crate) channel: Option<Channel>,
    /// Only where the workspace has turned the network on.
    pub(crate) egress: Option<Egress>,
    /// Counts containers, connections, commands and tasks.
    next_id: u64,
    pub(crate) container: u64,
    pub(crate) waiting: WaitingQueue,
    /// What is granted on top of the base mounts.
    pub(crate) grants: GrantSet,
    pub(crate) changes: Changes,
    pub(crate) workspace_file: StandingFile,
    /// For the next result: what happened that nobody asked for.
    pub(crate) pending_notices: Vec<String>,
    /// Who asked for the shutdown: connection and request.
    pub(crate) shutdown_asked: Vec<(u64, u64)>,
    pub(crate) stopping: bool,
    /// What could not be removed, for the report at the end.
    pub(crate) teardown_errors: Vec<PodmanError>,
    ending: Option<Ending>,
    pub(crate) git: Option<GitIdentity>,
    pub(crate) journal: Journal,
    pub(crate) watched: Watched,
    pub(crate) backoff: Backoff,
    /// A container has run before.
    pub(crate) was_ready: bool,
    pub(crate) restarts: u32,
    pub(crate) commands_total: u64,
    /// Kernel counters seen last, to tell what a command caused.
    pub(crate) oom_kills: u64,
    pub(crate) pids_denied: u64,
    pub(crate) since: Instant,
    /// A client that keeps a launched control plane alive has been there.
    pub(crate) was_held: bool,
    pub(crate) buffer: Vec<u8>,
}

impl ControlPlane {
    /// `listener` is the bound socket; `signals` becomes readable when the
    /// process is asked to end.
    pub(crate) fn new(
        context: Context,
        asked: Asked,
        listener: OwnedFd,
        signals: OwnedFd,
    ) -> io::Result<ControlPlane> {
        let mut poller = Poller::new()?;
        poller.add(Source::Listener, listener.as_fd())?;
        poller.add(Source::Signals, signals.as_fd())?;
        poller.set(Timer::Backstop, BACKSTOP);
        if context.launched {
            poller.set(Timer::FirstClient, FIRST_CLIENT);
        }
        Ok(ControlPlane {
            journal: Journal::new(context.names.journal.clone()),
            watched: Watched::new(context.workspace.path(), context.git_dirs.clone()),
            poller,
            listener: Some(listener),
            signals,
            connections: HashMap::new(),
            jobs: HashMap::new(),
            prepared: None,
            lingering: Vec::new(),
            discards: Discards::default(),
            saved: SavedOutputs::default(),
            tasks: HashMap::new(),
            phase: Phase::Waiting,
            channel: None,
            egress: asked.egress,
            next_id: 0,
            container: 0,
            waiting: WaitingQueue::default(),
            grants: GrantSet::default(),
            workspace_file: asked.workspace_file,
            changes: Changes::default(),
            pending_notices: Vec::new(),
            shutdown_asked: Vec::new(),
            stopping: false,
            teardown_errors: Vec::new(),
            ending: None,
            git: None,
            backoff: Backoff::default(),
            was_ready: false,
            restarts: 0,
            commands_total: 0,
            oom_kills: 0,
            pids_denied: 0,
            since: Instant::now(),
            was_held: false,
            buffer: Vec::new(),
            context,
        })
    }

    /// Runs until the sandbox is gone again.
    pub(crate) fn run(mut self) -> Result<(), Error> {
        self.take_persisted();
        self.start();
        let mut events = Events::with_capacity(256);
        loop {
            if self.ending.is_some() && self.is_flushed() {
                break;
            }
            let (ready, due) = self
                .poller
                .wait(&mut events)
                .map_err(|error| Error::io("wait for events", error))?;
            for source in ready {
                self.on_ready(source);
            }
            for timer in due {
                self.on_timer(timer);
            }
        }
        match self.ending {
            Some(Ending::Failed(error)) => Err(error),
            _ => Ok(()),
        }
    }

    pub(crate) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Ends the loop once the last answers are written.
    pub(crate) fn leave(&mut self, ending: Ending) {
        self.close_listener();
        self.poller.set(Timer::Leave, LEAVE);
        self.ending.get_or_insert(ending);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.ending.is_some()
    }

    /// Why the end is not a clean one.
    pub(crate) fn failure(&self) -> Option<ApiError> {
        match &self.ending {
            Some(Ending::Failed(error)) => Some(error.into()),
            _ => None,
        }
    }

    fn is_flushed(&self) -> bool {
        self.connections.values().all(Connection::is_flushed)
    }

    pub(crate) fn state(&self) -> State {
        if self.stopping || self.ending.is_some() {
            return State::Stopping;
        }
        match self.phase {
            Phase::Running(_) => State::Ready,
            _ if self.was_ready => State::Restarting,
            _ => State::Starting,
        }
    }

    fn on_ready(&mut self, source: Source) {
        match source {
            Source::Listener => self.accept(),
            Source::Signals => self.on_signal(),
            Source::Channel(number) if number == self.container => self.on_channel(),
            // Of a container that is gone already.
            Source::Channel(_) => {}
            Source::Connection(id) => self.on_connection(id),
            Source::Output(id) => self.on_output(id),
            Source::Task(id) => self.on_task(id),
            Source::Gateway(number) => self.on_gateway(number),
            Source::Checks(number) => self.on_checks(number),
        }
    }

    fn on_timer(&mut self, timer: Timer) {
        match timer {
            Timer::Timeout(id) => self.end_job(id, EndReason::TimedOut),
            Timer::Settle(id) => self.settle_job(id),
            Timer::Drain(id) => self.finish_job(id),
            Timer::Respawn(id) => self.respawn(id),
            Timer::Discard => self.discard_due(),
            Timer::Flush(id) => self.flush_stream(id),
            Timer::Hello(id) => self.hello_overdue(id),
            Timer::Task(id) => self.task_overdue(id),
            Timer::Handshake(number) => self.handshake_overdue(number),
            Timer::Restart => self.restart_due(),
            Timer::Gateway => self.gateway_due(),
            Timer::Counts => self.read_counts(),
            Timer::Checks => self.checks_overdue(),
            Timer::Changes => self.begin_changes(),
            Timer::FirstClient => self.end_if_unused(),
            Timer::Backstop => self.backstop(),
            Timer::Accept => self.accept(),
            Timer::Channel => self.flush_channel(),
            Timer::Leave => self.connections.clear(),
        }
    }

    /// SIGTERM, SIGINT or SIGHUP. The second one does not wait for the commands.
    fn on_signal(&mut self) {
        if self.stopping {
            for job in self.jobs.values() {
                job.kill();
            }
        }
        self.begin_stop();
        // The pipe is emptied so that the next signal is an event again.
        let mut buffer = [0; 64];
        while rustix::io::read(&self.signals, &mut buffer).is_ok_and(|count| count > 0) {}
    }

    fn backstop(&mut self) {
        self.poller.set(Timer::Backstop, BACKSTOP);
        self.check_alive();
        self.keep_swap_forbidden();
        self.lingering
            .retain(|lingering| !lingering.cgroup.remove());
    }

    fn accept(&mut self) {
        // Connections are taken one a turn: a flood of them does not keep the
        // others from being served.
        let Some(listener) = &self.listener else {
            return;
        };
        let flags = rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK;
        match rustix::net::accept_with(listener, flags) {
            Ok(socket) => {
                self.poller.again(Source::Listener);
                if let Err(error) = self.admit(socket) {
                    log::warn!("cannot serve a client: {error}");
                }
            }
            Err(rustix::io::Errno::AGAIN) => {}
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {
                self.poller.again(Source::Listener);
            }
            // It still waits, and raises no second event: no descriptors, or no
            // memory, for the moment.
            Err(error) => {
                log::warn!("cannot accept a client: {error}");
                self.poller.set(Timer::Accept, ACCEPT_AGAIN);
            }
        }
    }

    /// Only this very user is served: the socket's mode says so, and this
    /// holds also where the mode is not looked at.
    fn admit(&mut self, socket: OwnedFd) -> io::Result<()> {
        let peer = sockopt::socket_peercred(&socket)?;
        if peer.uid != rustix::process::geteuid() {
            return Err(io::Error::other(format!(
                "it belongs to uid {}",
                peer.uid.as_raw()
            )));
        }
        let mut connection = Connection::new(socket);
        if self.connections.len() >= MAX_CONNECTIONS {
            let message = format!("there are {MAX_CONNECTIONS} clients already");
            connection.error(None, ApiError::new(ErrorKind::Limit, message));
            return connection.flush();
        }
        let id = self.new_id();
        self.poller.add(Source::Connection(id), connection.fd())?;
        self.poller.set(Timer::Hello(id), HELLO);
        self.connections.insert(id, connection);
        // Whatever came before the registration raises no event.
        self.poller.again(Source::Connection(id));
        Ok(())
    }

    fn hello_overdue(&mut self, id: u64) {
        if self
            .connections
            .get(&id)
            .is_some_and(|connection| connection.client.is_none())
        {
            self.close_connection(id);
        }
    }

    fn on_connection(&mut self, id: u64) {
        // First out, then in: both may have been put off until then.
        self.flush_connection(id);
        if self.serve_lines(id) {
            self.read_connection(id);
        } else {
            self.poller.again(Source::Connection(id));
        }
        self.flush_connection(id);
    }

    fn read_connection(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let state = connection.read();
        let is_served = self.serve_lines(id);
        match state {
            ReadState::Closed => self.close_connection(id),
            ReadState::Drained if is_served => {}
            _ => self.poller.again(Source::Connection(id)),
        }
    }

    /// Serves the requests of one turn; returns whether no more can be served.
    fn serve_lines(&mut self, id: u64) -> bool {
        for _ in 0..LINES {
            let line = match self.connections.get_mut(&id) {
                Some(connection) => connection.next_line(),
                None => None,
            };
            match line {
                Some(line) => self.on_line(id, line),
                None => return true,
            }
        }
        false
    }

    pub(crate) fn flush_connection(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let was_slow = connection.is_slow();
        if let Err(error) = connection.flush() {
            log::debug!("client {id}: {error}");
            return self.close_connection(id);
        }
        let source = Source::Connection(id);
        let is_blocked = !connection.is_flushed();
        self.poller.watch_room(source, connection.fd(), is_blocked);
        if was_slow && !connection.is_slow() {
            self.poller.again(source);
        }
    }

    /// A client has left: its commands end, and maybe the sandbox does.
    pub(crate) fn close_connection(&mut self, id: u64) {
        let Some(connection) = self.connections.remove(&id) else {
            return;
        };
        self.poller.remove(Source::Connection(id), connection.fd());
        self.poller.unset(Timer::Hello(id));
        self.waiting.remove_client(id);
        self.changes.remove_client(id);
        let orphans: Vec<u64> = self
            .jobs
            .values()
            .filter(|job| job.connection == id)
            .map(|job| job.id)
            .collect();
        for job in orphans {
            self.end_job(job, EndReason::ClientGone);
        }
        if self.was_held {
            self.end_if_unused();
        }
    }

    fn end_if_unused(&mut self) {
        let is_held = self.connections.values().any(|connection| {
            connection
                .client
                .as_ref()
                .is_some_and(|client| client.holds)
        });
        if self.context.launched && !is_held {
            self.begin_stop();
        }
    }

    /// Nobody new is served: the next control plane may bind the name.
    pub(crate) fn close_listener(&mut self) {
        let Some(listener) = self.listener.take() else {
            return;
        };
        self.poller.remove(Source::Listener, listener.as_fd());
        if let Err(error) = std::fs::remove_file(&self.context.names.socket) {
            log::warn!("cannot remove {:?}: {error}", self.context.names.socket);
        }
    }
}
