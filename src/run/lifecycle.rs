//! The life of the container: create, verify, notice its death, create it
//! again, remove it. Every podman call is a task that the loop awaits.

mod removal;
mod stopping;

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::api::{ApiError, Outcome};
use crate::error::Error;
use crate::init::wire::{FromInit, VERSION};
use crate::podman::{self, PodmanError};
use crate::run::channel::{Channel, ChannelState, Packet};
use crate::run::control_plane::{ControlPlane, Ending};
use crate::run::environment::{GIT_ARGS, GitIdentity};
use crate::run::journal::Entry;
use crate::run::network::Then;
use crate::run::poller::{Source, Timer};
use crate::run::task::{Finished, Task};
use crate::run::verify::{self, Hello, Verified};
use crate::sys::{cgroup, process};

/// podman creates a container in one or two seconds; the first time that an
/// image is used its files are copied for the user's ids, which takes longer.
const CREATE_LIMIT: Duration = Duration::from_secs(300);
const REMOVE_LIMIT: Duration = Duration::from_secs(30);
/// How often a name that is taken is tried. A `podman run` may outlive its
/// control plane by seconds, and so hold the name for a few tries.
const MAX_ATTEMPTS: u32 = 20;
const OVERDUE_EVERY: Duration = Duration::from_millis(500);
const RESEND_AFTER: Duration = Duration::from_millis(100);
/// From the start of the container to the first packet of pid 1.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(15);

/// Where the container stands.
#[derive(Debug)]
pub(crate) enum Phase {
    /// What the container is to be connected to is being made.
    Connecting {
        attempt: u32,
    },
    /// `podman run` is under way, or pid 1 has not spoken yet.
    Creating {
        attempt: u32,
    },
    Running(Running),
    /// Containers of ours are being removed.
    Removing {
        next: AfterRemoval,
        /// Ids of what is or was removed.
        found: Vec<String>,
        /// Among them was one of an earlier life.
        in_the_way: bool,
        failures: u32,
    },
    /// Nothing exists; a timer or a request leads on.
    Waiting,
}

#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) verified: Verified,
    since: Instant,
}

/// What follows when everything of ours is removed.
#[derive(Debug)]
pub(crate) enum AfterRemoval {
    /// Create it once more, unless the removal found nothing that could have
    /// been in the way: then the error stands.
    Retry {
        error: Error,
        attempt: u32,
    },
    CreateAfter(Duration),
    Fail(Error),
}

/// What a task was started for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskKind {
    /// With the number of the container.
    Create(u64),
    /// Look for containers of an earlier life.
    FindLeftovers,
    Remove,
    GitIdentity,
    /// Change the mounts of the running container; with their number.
    Live(u64),
    /// A step towards the network, or away from it.
    Network,
    /// Read the rules of the network back, with the number of the container.
    ReadBack(u64),
    /// The same, for what they have counted.
    Counts(u64),
}

impl ControlPlane {
    /// The first container, and what else a command needs.
    pub(crate) fn start(&mut self) {
        if self.context.config.inject_git_identity {
            self.ask_git();
        } else {
            self.git = Some(GitIdentity::default());
        }
        self.create(0);
    }

    fn ask_git(&mut self) {
        let mut command = std::process::Command::new("git");
        command.args(GIT_ARGS).current_dir("/").env_clear();
        // Only what names the user's own files; a repository cannot speak.
        command.env("PATH", &self.context.search_path);
        for name in ["HOME", "XDG_CONFIG_HOME"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        match Task::spawn(command) {
            Ok(task) => self.add_task(task, TaskKind::GitIdentity, REMOVE_LIMIT),
            Err(error) => {
                log::info!("no git identity: {error}");
                self.git = Some(GitIdentity::default());
            }
        }
    }

    fn create(&mut self, attempt: u32) {
        match self.egress {
            None => self.create_container(attempt),
            Some(_) => self.connect_then_create(attempt),
        }
    }

    pub(crate) fn create_container(&mut self, attempt: u32) {
        self.container = self.new_id();
        self.phase = Phase::Creating { attempt };
        if let Err(error) = self.try_create() {
            self.create_impossible(error);
        }
    }

    /// No further try would help, unless the mounts were changed for it.
    pub(crate) fn create_impossible(&mut self, error: Error) {
        let next = match self.roll_back(&error) {
            true => AfterRemoval::CreateAfter(Duration::ZERO),
            false => AfterRemoval::Fail(error),
        };
        self.remove_then(next);
    }

    fn try_create(&mut self) -> Result<(), Error> {
        self.plan_mounts()?;
        self.write_runtime_files()?;
        let (channel, theirs) =
            Channel::pair().map_err(|error| Error::io("make the channel to pid 1", error))?;
        let mut command =
            podman::command(&self.context.search_path, self.context.spec.render_argv());
        crate::sys::inherit::pass_as_fd3(&mut command, theirs.as_fd());
        let task = Task::spawn(command).map_err(PodmanError::Spawn)?;
        drop(theirs);
        let source = Source::Channel(self.container);
        self.poller
            .add(source, channel.fd())
            .map_err(|error| Error::io("watch the channel to pid 1", error))?;
        self.channel = Some(channel);
        self.add_task(task, TaskKind::Create(self.container), CREATE_LIMIT);
        Ok(())
    }

    fn plan_mounts(&mut self) -> Result<(), Error> {
        self.changes.forget_attached();
        self.drop_changed_grants();
        let plan = self.context.plan(&self.grants)?;
        self.context.spec.sources = plan.sources;
        self.context.set_mounts(plan.mounts);
        Ok(())
    }

    /// The files that podman reads, or that are mounted: all of them written
    /// anew, as nobody knows what an earlier life has left.
    fn write_runtime_files(&mut self) -> Result<(), Error> {
        self.write_runtime_file("seccomp.json", &self.context.seccomp)?;
        self.prepare_network()?;
        let cid = self.cidfile();
        remove_if_there(&cid).map_err(|error| Error::io(format!("remove {cid:?}"), error))
    }

    /// Writable for nobody else, whatever the umask is.
    pub(crate) fn write_runtime_file(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let path = self.context.names.runtime.join(name);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o644);
        remove_if_there(&path)
            .and_then(|()| options.open(&path)?.write_all(bytes))
            .map_err(|error| Error::io(format!("write {path:?}"), error))
    }

    fn cidfile(&self) -> PathBuf {
        PathBuf::from(&self.context.spec.cidfile)
    }

    pub(crate) fn add_task(&mut self, task: Task, kind: TaskKind, limit: Duration) {
        let id = self.new_id();
        if let Err(error) = self.poller.add(Source::Task(id), task.pidfd()) {
            // Without events its end is seen when its time limit is up.
            log::error!("cannot watch {kind:?}: {error}");
        }
        self.poller.set(Timer::Task(id), limit);
        self.tasks.insert(id, (task, kind));
        // It may have ended before it was watched.
        self.poller.again(Source::Task(id));
    }

    pub(crate) fn task_overdue(&mut self, id: u64) {
        if let Some((task, kind)) = self.tasks.get_mut(&id) {
            if task.kill() {
                log::error!("{kind:?} takes too long, ending it");
            }
            let kind = *kind;
            // It is looked at again, whether or not an event tells of its end.
            self.poller.set(Timer::Task(id), OVERDUE_EVERY);
            self.poller.again(Source::Task(id));
            // What hangs in the kernel cannot be ended, nor waited for.
            if let TaskKind::Live(number) = kind {
                self.live_done(number, None);
            }
        }
    }

    pub(crate) fn on_task(&mut self, id: u64) {
        let Some((task, kind)) = self.tasks.get_mut(&id) else {
            return;
        };
        let kind = *kind;
        let finished = match task.finish() {
            Ok(None) => return,
            Ok(Some(finished)) => Some(finished),
            Err(error) => {
                log::error!("{kind:?}: {error}");
                None
            }
        };
        if let Some((task, _)) = self.tasks.remove(&id) {
            self.poller.remove(Source::Task(id), task.pidfd());
            self.poller.unset(Timer::Task(id));
        }
        match kind {
            TaskKind::Create(number) => self.created(number, finished),
            TaskKind::FindLeftovers => self.leftovers_found(finished),
            TaskKind::Remove => self.removed(finished),
            TaskKind::Live(number) => self.live_done(number, finished.as_ref()),
            TaskKind::Network => self.step_done(finished),
            TaskKind::ReadBack(number) => self.rules_read_back(number, finished.as_ref()),
            TaskKind::Counts(number) => self.counts_read(number, finished.as_ref()),
            TaskKind::GitIdentity => {
                let output = finished
                    .filter(|finished| finished.status.success())
                    .map(|finished| finished.stdout);
                self.git = Some(GitIdentity::parse(
                    &output.unwrap_or_default(),
                    &self.context.home,
                ));
                self.serve_waiting();
            }
        }
    }

    /// `podman run` has ended. pid 1 may have spoken long before.
    fn created(&mut self, number: u64, finished: Option<Finished>) {
        if number != self.container {
            return;
        }
        let attempt = match self.phase {
            Phase::Creating { attempt } => attempt,
            Phase::Removing { .. } => return self.start_removal(),
            Phase::Running(_) | Phase::Waiting | Phase::Connecting { .. } => {
                if let Some(finished) = finished.filter(|finished| !finished.status.success()) {
                    log::warn!(
                        "podman run ended with {}: {}",
                        finished.status,
                        finished.stderr
                    );
                }
                return;
            }
        };
        let error = match finished {
            Some(finished) if finished.status.success() && self.channel.is_some() => {
                return self.poller.set(Timer::Handshake(number), HANDSHAKE_LIMIT);
            }
            Some(finished) if finished.status.success() => PodmanError::NoHandshake {
                detail: "pid 1 ended at once".to_owned(),
            },
            Some(finished) => self.create_error(&finished),
            None => PodmanError::NoHandshake {
                detail: "podman's end was not seen".to_owned(),
            },
        };
        self.create_failed(Error::Podman(error), attempt);
    }

    fn create_error(&self, finished: &Finished) -> PodmanError {
        // The one case with a remedy of its own. `--pull=never` says so with
        // these words since podman 4.
        if finished.stderr.contains("image not known") {
            return PodmanError::MissingImage {
                image: self.context.spec.image.clone(),
            };
        }
        if finished.stderr.contains("is already in use") {
            return PodmanError::NameTaken {
                name: self.context.spec.name.clone(),
            };
        }
        if let Some(why) = self.hook_failure(finished) {
            return PodmanError::Hook { why };
        }
        PodmanError::Failed {
            what: "create the sandbox",
            status: finished.status,
            stderr: finished.last_words().to_owned(),
        }
    }

    pub(crate) fn create_failed(&mut self, error: Error, attempt: u32) {
        if self.roll_back(&error) {
            self.remove_then(AfterRemoval::CreateAfter(Duration::ZERO));
        } else if self.was_ready {
            log::error!("cannot create the sandbox again: {error}");
            self.fail_waiting(&error);
            let wait = self.backoff.after_failure();
            self.remove_then(AfterRemoval::CreateAfter(wait));
        } else {
            // A container of an earlier life may be in the way.
            self.remove_then(AfterRemoval::Retry { error, attempt });
        }
    }

    pub(crate) fn handshake_overdue(&mut self, number: u64) {
        if let Phase::Creating { attempt } = self.phase
            && number == self.container
        {
            let detail = format!("pid 1 was silent for {} seconds", HANDSHAKE_LIMIT.as_secs());
            self.create_failed(Error::Podman(PodmanError::NoHandshake { detail }), attempt);
        }
    }

    pub(crate) fn on_channel(&mut self) {
        self.flush_channel();
        let Some(channel) = &mut self.channel else {
            return;
        };
        let turn = channel.receive();
        for packet in turn.packets {
            self.on_packet(packet);
        }
        match turn.state {
            ChannelState::Drained => {}
            ChannelState::MoreToRead => self.poller.again(Source::Channel(self.container)),
            ChannelState::Closed(reason) => self.container_gone(&reason),
        }
    }

    fn on_packet(&mut self, packet: Packet) {
        let Packet { message, fds, pid } = packet;
        match message {
            FromInit::Hello {
                version,
                setns_errno,
            } => {
                let hello = pid.map(|pid| Hello { pid, setns_errno });
                self.on_hello(version, hello);
            }
            FromInit::Probed { errnos } => self.on_probed(errnos),
            FromInit::Failed { id, stage, errno } if self.is_check(id) => {
                self.checks_not_started(stage, errno);
            }
            FromInit::Exited { id, .. } if self.is_check(id) => self.checks_ended(),
            FromInit::Started { id, pid: _ } => self.job_started(id, fds),
            FromInit::Failed { id, stage, errno } => self.job_failed(id, stage, errno),
            FromInit::Exited { id, status } => self.job_exited(id, status),
        }
    }

    fn on_hello(&mut self, version: u32, hello: Option<Hello>) {
        if !matches!(self.phase, Phase::Creating { .. }) || self.stopping {
            return;
        }
        self.poller.unset(Timer::Handshake(self.container));
        let checked = match hello {
            Some(hello) if version == VERSION => {
                verify::verify(&self.context.spec, &self.context.exe, hello).map_err(Error::Verify)
            }
            Some(_) => Err(Error::Podman(PodmanError::NoHandshake {
                detail: format!("pid 1 speaks version {version}, not {VERSION}"),
            })),
            None => Err(Error::Podman(PodmanError::NoHandshake {
                detail: "the kernel does not tell who pid 1 is".to_owned(),
            })),
        };
        match checked {
            Ok(verified) => {
                if let Some(verified) = self.probe_network(verified) {
                    self.begin_serving(verified);
                }
            }
            // A seal that does not hold is not tried again.
            Err(error) => self.create_impossible(error),
        }
    }

    /// All of the sandbox is what it should be.
    pub(crate) fn begin_serving(&mut self, verified: Verified) {
        self.oom_kills = verified.memory_events.count("oom_kill");
        self.pids_denied = verified.pids_events.count("max");
        self.phase = Phase::Running(Running {
            verified,
            since: Instant::now(),
        });
        self.journal.record(&Entry::Started {
            image: &self.context.spec.image,
            restarts: self.restarts,
        });
        self.announce_ready();
        self.was_ready = true;
        self.recreated();
        self.serve_waiting();
        self.prepare_next();
    }

    fn announce_ready(&self) {
        if !self.context.launched {
            let line = format!(
                "umwelt-run: sandbox {} is ready for {}\n",
                self.context.names.container,
                crate::text::printable(self.context.workspace.as_str())
            );
            crate::cli::write_stderr(line.as_bytes());
        }
    }

    /// The descriptor of pid 1 has closed, or pid 1 was found dead.
    pub(crate) fn container_gone(&mut self, reason: &str) {
        self.drop_channel();
        match &self.phase {
            // `podman run` knows why, and has not ended yet; or it has, and
            // its end was taken for success.
            Phase::Creating { attempt } => {
                let attempt = *attempt;
                if !self.is_task_running(TaskKind::Create(self.container)) {
                    let error = PodmanError::NoHandshake {
                        detail: reason.to_owned(),
                    };
                    self.create_failed(Error::Podman(error), attempt);
                }
            }
            Phase::Running(running) => {
                let lived = running.since.elapsed();
                log::error!("the sandbox has ended by itself: {reason}; creating it again");
                self.lose_jobs("the sandbox ended while the command ran; it is created again");
                self.journal.record(&Entry::Ended { reason });
                self.restarts += 1;
                let wait = self.backoff.after_death(lived);
                self.remove_then(AfterRemoval::CreateAfter(wait));
            }
            Phase::Connecting { .. } | Phase::Removing { .. } | Phase::Waiting => {}
        }
    }

    fn is_task_running(&self, kind: TaskKind) -> bool {
        self.tasks.values().any(|(_, running)| *running == kind)
    }

    /// The backstop of the channel's end of file.
    pub(crate) fn check_alive(&mut self) {
        let Phase::Running(Running { verified, .. }) = &self.phase else {
            return;
        };
        // systemd removes an empty cgroup before the kernel tells of the end
        // of the last process in it.
        if process::has_ended(&verified.pidfd) || !verified.cgroup.exists() {
            self.container_gone("pid 1 has ended");
        }
    }

    /// systemd was told another cap on swap by the OCI runtime, and may go back to
    /// that one when it reads its units again.
    pub(crate) fn keep_swap_forbidden(&self) {
        let Phase::Running(Running { verified, .. }) = &self.phase else {
            return;
        };
        let is_kept = verified.swap_max.value() == Some(0);
        if is_kept || cgroup::is_swap_forbidden(&verified.cgroup) {
            return;
        }
        match cgroup::forbid_swap(&verified.cgroup) {
            Ok(()) => log::warn!("the cap on swap had been taken back; it is set again"),
            Err(error) => log::error!("the cap on swap was taken back: {error}"),
        }
    }

    fn drop_channel(&mut self) {
        self.prepared = None;
        self.drop_checks();
        if let Some(egress) = &mut self.egress {
            egress.checking = None;
        }
        if let Some(channel) = self.channel.take() {
            self.poller
                .remove(Source::Channel(self.container), channel.fd());
        }
    }

    pub(crate) fn lose_jobs(&mut self, reason: &str) {
        let ids: Vec<u64> = self.jobs.keys().copied().collect();
        for id in ids {
            self.lose_job(
                id,
                Outcome::Lost {
                    reason: reason.to_owned(),
                },
            );
        }
        self.lingering.clear();
    }

    /// Nothing of the sandbox is left.
    pub(crate) fn went_down(&mut self, then: Then) {
        match then {
            Then::Stopped => self.leave_stopped(),
            Then::Failed(error) => self.fail(error),
        }
        self.answer_shutdown();
    }

    pub(crate) fn restart_due(&mut self) {
        if matches!(self.phase, Phase::Waiting) && !self.stopping && !self.is_leaving() {
            self.create(0);
        }
    }

    /// The start failed for good: whoever waits is told.
    fn fail(&mut self, error: Error) {
        self.fail_waiting(&error);
        self.leave(Ending::Failed(error));
    }

    fn fail_waiting(&mut self, error: &Error) {
        let reply = ApiError::from(error);
        let mut waiting = self.changes.take_waiting();
        let requests = std::mem::take(&mut self.waiting).into_iter();
        waiting.extend(requests.map(|waiting| (waiting.connection, waiting.request)));
        for (connection, request) in waiting {
            self.refuse(connection, request, reply.clone());
            self.flush_connection(connection);
        }
    }

    /// Sends what is queued for pid 1.
    pub(crate) fn flush_channel(&mut self) {
        let Some(channel) = &mut self.channel else {
            return;
        };
        match channel.flush() {
            Ok(is_flushed) => {
                let source = Source::Channel(self.container);
                self.poller.watch_room(source, channel.fd(), !is_flushed);
            }
            // Its end of file follows and says the rest.
            Err(error) if is_closed(&error) => log::info!("channel to pid 1: {error}"),
            // For a time only: too many descriptors under way, or no memory.
            Err(error) => {
                log::warn!("channel to pid 1: {error}");
                self.poller.set(Timer::Channel, RESEND_AFTER);
            }
        }
    }

    pub(crate) fn verified(&self) -> Option<&Verified> {
        match &self.phase {
            Phase::Running(running) => Some(&running.verified),
            _ => None,
        }
    }

    /// The descriptor of the null device, as stdin of commands. A pipe would
    /// do too, but then programs like ripgrep read it in place of the tree.
    pub(crate) fn open_null() -> io::Result<OwnedFd> {
        std::fs::File::open("/dev/null").map(OwnedFd::from)
    }
}

fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected
    )
}

/// Whether to create the container once more: something of an earlier life
/// was in the way, or podman was killed.
fn is_worth_a_retry(error: &Error, attempt: u32, in_the_way: bool) -> bool {
    match error {
        // Whoever had the name may have gone just now, or be about to go.
        Error::Podman(PodmanError::NameTaken { .. }) => attempt < MAX_ATTEMPTS,
        Error::Podman(PodmanError::Failed { status, .. }) if status.signal().is_some() => {
            attempt == 0
        }
        _ => attempt == 0 && in_the_way,
    }
}

/// The id that podman has written.
pub(crate) fn read_id(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let id = text.trim();
    (id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| id.to_owned())
}

pub(crate) fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
