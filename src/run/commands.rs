//! Commands inside the sandbox: start, output, end, and what is told of them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, MemfdFlags};
use rustix::pipe::PipeFlags;

use crate::api::{
    ApiError, Call, ErrorKind, Event, Exec, ExecReply, MAX_COMMAND, Outcome, Process, Shell,
    ShellReply, Terminal,
};
use crate::init::wire::{ExitStatus, MAX_INLINE, Spawn, Stage, Stdio, ToInit};
use crate::policy::mounts::OUTPUT_PATH;
use crate::run::capture::{Capture, Summary};
use crate::run::control_plane::ControlPlane;
use crate::run::environment::{self, Setting};
use crate::run::job::{
    Captured, DRAIN, EndReason, Ending, GIVE_UP, GRACE, Job, JobStdio, Retry, SETTLE_EVERY, Stream,
};
use crate::run::journal::Record;
use crate::run::poller::{Source, Timer};
use crate::sys::cgroup::CommandCgroup;
use crate::sys::process;
use crate::text;

/// Most commands at once.
const MAX_JOBS: usize = 1024;
/// Bytes read from one command before others get their turn.
const TURN: usize = 1 << 20;
const READ_SIZE: usize = 256 << 10;
/// Pipes are made larger while few commands run. The kernel limits what all
/// pipes of a user may take (pipe(7), pipe-user-pages-soft).
const LARGE_PIPE: usize = 256 << 10;
const LARGE_PIPE_JOBS: usize = 16;
/// Between two output events of one command.
const FLUSH_EVERY: Duration = Duration::from_millis(100);
/// Most bytes in one output event.
const MAX_EVENT: usize = 16 << 10;
/// Most background processes that a result lists.
const MAX_LISTED: usize = 20;
/// Saved outputs together; the oldest go first.
const MAX_SAVED: u64 = 256 << 20;
const MAX_PATH: usize = 4096;
/// Killed processes need a moment until they no longer count.
const RESPAWN_AFTER: Duration = Duration::from_millis(300);

/// What an ended command left running.
#[derive(Debug)]
pub(crate) struct Lingering {
    pub(crate) cgroup: CommandCgroup,
}

/// A command as it was asked for, checked.
struct Asked {
    connection: u64,
    request: u64,
    argv: Vec<String>,
    /// What people see of it.
    shown: String,
    /// Relative to the workspace, or absolute.
    cwd: Option<String>,
    /// The value of `TERM`.
    term: String,
    timeout_s: Option<u64>,
}

/// The two sides of a command's descriptors.
struct Plumbing {
    ours: JobStdio,
    wire: Stdio,
    /// What pid 1 gets: stdin, stdout and stderr of pipes, then the script.
    theirs: Vec<OwnedFd>,
    has_script: bool,
}

impl ControlPlane {
    /// Starts what a `shell`, `exec` or `terminal` request asks for. It is
    /// answered when it has ended.
    pub(crate) fn start_command(
        &mut self,
        connection: u64,
        request: u64,
        call: Call,
        fds: Vec<OwnedFd>,
    ) -> Result<(), ApiError> {
        if self.jobs.len() >= MAX_JOBS {
            return Err(ApiError::new(
                ErrorKind::Limit,
                format!("{MAX_JOBS} commands are running already"),
            ));
        }
        let asked = Asked {
            connection,
            request,
            argv: Vec::new(),
            shown: String::new(),
            cwd: None,
            term: "dumb".to_owned(),
            timeout_s: None,
        };
        match call {
            Call::Shell(shell) => self.start_shell(asked, shell),
            Call::Exec(exec) => self.start_exec(asked, exec, fds),
            Call::Terminal(terminal) => self.start_terminal(asked, terminal),
            _ => Err(ApiError::bad_request("not a command")),
        }
    }

    fn start_shell(&mut self, mut asked: Asked, shell: Shell) -> Result<(), ApiError> {
        let timeout_s = checked_timeout(
            shell.timeout_s,
            self.context.list.timeout_default_s,
            self.context.list.timeout_max_s,
        )?;
        check_words(std::slice::from_ref(&shell.command))?;
        if shell.command.len() > MAX_COMMAND {
            return Err(ApiError::bad_request(format!(
                "\"command\" is longer than {MAX_COMMAND} bytes"
            )));
        }
        let (read, write) = output_pipe(self.jobs.len()).map_err(cannot("make a pipe"))?;
        let null = ControlPlane::open_null().map_err(cannot("open /dev/null"))?;
        let stderr = write.try_clone().map_err(cannot("make a pipe"))?;
        let mut theirs = vec![null, write, stderr];
        let script = long_script(&shell.command).map_err(cannot("hold the command"))?;
        let has_script = script.is_some();
        asked.argv = match script {
            None => vec![
                self.shell().to_owned(),
                "-c".to_owned(),
                shell.command.clone(),
            ],
            Some(_) => vec![self.shell().to_owned(), "/proc/self/fd/3".to_owned()],
        };
        theirs.extend(script);
        asked.shown = shell.command;
        asked.cwd = shell.cwd;
        asked.timeout_s = Some(timeout_s);
        let captured = Captured {
            capture: Capture::new(self.output_file()),
            pipe: Some(read),
            stream: shell.stream.then(Stream::default),
        };
        let ours = JobStdio::Captured(captured);
        self.spawn(
            asked,
            Plumbing {
                ours,
                wire: Stdio::Pipes,
                theirs,
                has_script,
            },
        )
    }

    fn start_exec(
        &mut self,
        mut asked: Asked,
        exec: Exec,
        theirs: Vec<OwnedFd>,
    ) -> Result<(), ApiError> {
        asked.shown = exec.argv.join(" ");
        asked.argv = checked_argv(exec.argv)?;
        asked.cwd = exec.cwd;
        self.spawn(
            asked,
            Plumbing {
                ours: JobStdio::Piped,
                wire: Stdio::Pipes,
                theirs,
                has_script: false,
            },
        )
    }

    fn start_terminal(&mut self, mut asked: Asked, terminal: Terminal) -> Result<(), ApiError> {
        let argv = if terminal.argv.is_empty() {
            vec![self.shell().to_owned()]
        } else {
            terminal.argv
        };
        asked.shown = argv.join(" ");
        asked.argv = checked_argv(argv)?;
        asked.cwd = terminal.cwd;
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-._+".contains(&b);
        if terminal.term.is_empty()
            || terminal.term.len() > 64
            || !terminal.term.bytes().all(is_plain)
        {
            return Err(ApiError::bad_request(
                "\"term\" is not the name of a terminal type",
            ));
        }
        asked.term = terminal.term;
        let wire = Stdio::Terminal {
            rows: terminal.rows.clamp(1, 1000),
            cols: terminal.cols.clamp(1, 1000),
        };
        self.spawn(
            asked,
            Plumbing {
                ours: JobStdio::Terminal,
                wire,
                theirs: Vec::new(),
                has_script: false,
            },
        )
    }

    /// Hands the command to pid 1, in a cgroup of its own.
    fn spawn(&mut self, asked: Asked, plumbing: Plumbing) -> Result<(), ApiError> {
        let (base, shell) = match self.verified() {
            Some(verified) => (verified.cgroup.clone(), verified.shell),
            None => {
                return Err(ApiError::new(
                    ErrorKind::CannotRun,
                    "the sandbox is not there",
                ));
            }
        };
        let cwd = self.absolute_cwd(asked.cwd.as_deref())?;
        let setting = Setting {
            home: self.context.home.clone(),
            user: self.context.user.clone(),
            shell,
            git: self.git.clone().unwrap_or_default(),
        };
        let id = self.new_id();
        let cgroup =
            CommandCgroup::create(&base, id).map_err(cannot("make a cgroup for the command"))?;
        let spawn = Spawn {
            id,
            argv: asked.argv,
            env: environment::variables(&setting, &asked.term),
            cwd: cwd.clone(),
            stdio: plumbing.wire,
            script: plumbing.has_script,
        };
        let job = Job {
            id,
            connection: asked.connection,
            request: asked.request,
            client: self.client_name(asked.connection),
            command: asked.shown,
            cwd,
            stdio: plumbing.ours,
            cgroup,
            started: Instant::now(),
            timeout_s: asked.timeout_s,
            reported: false,
            status: None,
            ending: None,
            retry: None,
            notices: Vec::new(),
        };
        let handed_over = self.hand_over(&job.cgroup, &spawn, &plumbing.theirs);
        if let Err(error) = handed_over {
            job.cgroup.remove();
            return Err(cannot("hand the command to pid 1")(error));
        }
        self.begin_job(
            job,
            Retry {
                spawn,
                fds: plumbing.theirs,
            },
        )
    }

    fn hand_over(
        &mut self,
        cgroup: &CommandCgroup,
        spawn: &Spawn,
        theirs: &[OwnedFd],
    ) -> io::Result<()> {
        let mut fds = vec![cgroup.open_procs()?];
        for fd in theirs {
            fds.push(fd.try_clone()?);
        }
        match &mut self.channel {
            Some(channel) => channel.push(&ToInit::Spawn(spawn.clone()), fds),
            None => Err(io::Error::from(io::ErrorKind::NotConnected)),
        }
    }

    fn begin_job(&mut self, mut job: Job, retry: Retry) -> Result<(), ApiError> {
        let id = job.id;
        job.retry = Some(retry);
        self.commands_total += 1;
        if let Some(timeout_s) = job.timeout_s {
            self.poller
                .set(Timer::Timeout(id), Duration::from_secs(timeout_s));
        }
        if let JobStdio::Captured(Captured {
            pipe: Some(pipe), ..
        }) = &job.stdio
        {
            self.poller
                .add(Source::Output(id), pipe.as_fd(), mio::Interest::READABLE)
                .map_err(cannot("watch the output"))?;
        }
        self.jobs.insert(id, job);
        Ok(())
    }

    fn shell(&self) -> &'static str {
        self.verified().map_or("/bin/sh", |verified| verified.shell)
    }

    fn client_name(&self, connection: u64) -> String {
        let client = self
            .connections
            .get(&connection)
            .and_then(|connection| connection.client.as_ref());
        client.map(|client| client.name.clone()).unwrap_or_default()
    }

    fn absolute_cwd(&self, cwd: Option<&str>) -> Result<String, ApiError> {
        let workspace = self.context.workspace.as_str();
        let Some(cwd) = cwd else {
            return Ok(workspace.to_owned());
        };
        if cwd.contains('\0') || cwd.len() > MAX_PATH {
            return Err(ApiError::bad_request("\"cwd\" is not a path"));
        }
        // Only put together here; it is resolved inside, by pid 1.
        Ok(Path::new(workspace)
            .join(cwd)
            .to_string_lossy()
            .into_owned())
    }

    /// Where the next long output is saved. The directory is mounted inside,
    /// read-only; the oldest outputs make room.
    fn output_file(&mut self) -> PathBuf {
        let dir = self.context.names.state.join("output");
        dir.join(format!("{}.txt", self.new_id()))
    }

    // ---- what pid 1 reports ----

    pub(crate) fn job_started(&mut self, id: u64, mut fds: Vec<OwnedFd>) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        job.reported = true;
        job.retry = None;
        let (connection, request) = (job.connection, job.request);
        if !matches!(job.stdio, JobStdio::Terminal) {
            return;
        }
        match fds.pop().filter(is_terminal_master) {
            Some(master) => {
                if let Some(connection) = self.connections.get_mut(&connection) {
                    connection.event(request, Event::Terminal, vec![master]);
                }
                self.flush_connection(connection);
            }
            None => {
                log::error!("pid 1 sent no terminal");
                self.end_job(id, EndReason::Cancelled);
            }
        }
    }

    pub(crate) fn job_failed(&mut self, id: u64, stage: Stage, errno: i32) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        if errno == rustix::io::Errno::AGAIN.raw_os_error()
            && job.retry.is_some()
            && job.ending.is_none()
            && !self.lingering.is_empty()
        {
            return self.make_room_for(id);
        }
        let Some(mut job) = self.jobs.remove(&id) else {
            return;
        };
        self.unset_timers(id);
        self.close_output(&mut job);
        job.cgroup.remove();
        let error = self.spawn_error(&job, stage, errno);
        self.refuse(job.connection, job.request, error);
        self.flush_connection(job.connection);
        self.stop_when_idle();
    }

    /// The process cap is reached. What earlier commands left running is
    /// ended, or no command could run any more.
    fn make_room_for(&mut self, id: u64) {
        let count: usize = self
            .lingering
            .iter()
            .map(|lingering| lingering.cgroup.pids().len())
            .sum();
        for lingering in &self.lingering {
            if let Err(error) = lingering.cgroup.kill() {
                log::warn!("cannot end background processes: {error}");
            }
        }
        let limit = self.context.spec.resources.pids_limit;
        if let Some(job) = self.jobs.get_mut(&id) {
            job.notices.push(format!(
                "the process limit ({limit}) was reached: {count} background processes of earlier commands were ended"
            ));
        }
        self.poller.set(Timer::Respawn(id), RESPAWN_AFTER);
    }

    pub(crate) fn respawn(&mut self, id: u64) {
        let Some(Retry { spawn, fds }) = self.jobs.get_mut(&id).and_then(|job| job.retry.take())
        else {
            return;
        };
        let Some(job) = self.jobs.remove(&id) else {
            return;
        };
        let handed_over = self.hand_over(&job.cgroup, &spawn, &fds);
        self.jobs.insert(id, job);
        if let Err(error) = handed_over {
            log::warn!("cannot start command {id} again: {error}");
            self.job_failed(id, Stage::Message, rustix::io::Errno::IO.raw_os_error());
        }
        self.flush_channel();
    }

    fn spawn_error(&self, job: &Job, stage: Stage, errno: i32) -> ApiError {
        let reason = io::Error::from_raw_os_error(errno);
        let message = match stage {
            Stage::Cwd => format!("cannot enter the directory {:?}: {reason}", job.cwd),
            Stage::Terminal => format!("cannot open a terminal: {reason}"),
            Stage::Message => format!("pid 1 refused the request: {reason}"),
            Stage::Exec if errno == rustix::io::Errno::AGAIN.raw_os_error() => {
                let limit = self.context.spec.resources.pids_limit;
                return ApiError::new(
                    ErrorKind::CannotRun,
                    format!("the process limit of the sandbox ({limit}) is reached"),
                )
                .with_hint("wait for commands that are running, or cancel them");
            }
            Stage::Exec => {
                let program =
                    text::printable(job.command.split_whitespace().next().unwrap_or_default());
                format!("cannot start {program:?}: {reason}")
            }
        };
        ApiError::new(ErrorKind::CannotRun, message)
    }

    pub(crate) fn job_exited(&mut self, id: u64, status: ExitStatus) {
        self.on_output(id);
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        job.status = Some(status);
        if job.ending.is_some() {
            // Settled when nothing of the tree is left.
            return;
        }
        if job.has_open_pipe() && job.cgroup.is_populated() {
            self.poller.set(Timer::Drain(id), DRAIN);
        } else {
            self.finish_job(id);
        }
    }

    // ---- output ----

    pub(crate) fn on_output(&mut self, id: u64) {
        if let Some(pipe) = self.discarded.get(&id) {
            let (_, open) = read_some(pipe, &mut self.buffer, |_| {});
            return self.after_discard(id, open);
        }
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let Some(Captured {
            capture,
            pipe: Some(pipe),
            stream,
        }) = job.captured()
        else {
            return;
        };
        let (count, open) = read_some(pipe, &mut self.buffer, |bytes| {
            capture.push(bytes);
            if let Some(stream) = stream {
                stream.take(bytes);
            }
        });
        let flush = stream
            .as_mut()
            .is_some_and(|stream| count > 0 && !std::mem::replace(&mut stream.flush_set, true));
        if flush {
            self.poller.set(Timer::Flush(id), FLUSH_EVERY);
        }
        match open {
            Open::MoreToRead => self.poller.again(Source::Output(id)),
            Open::Drained => {}
            Open::Ended => self.output_ended(id),
        }
    }

    fn after_discard(&mut self, id: u64, open: Open) {
        match open {
            Open::MoreToRead => self.poller.again(Source::Output(id)),
            Open::Drained => {}
            Open::Ended => {
                if let Some(pipe) = self.discarded.remove(&id) {
                    self.poller.remove(Source::Output(id), pipe.as_fd());
                }
            }
        }
    }

    fn output_ended(&mut self, id: u64) {
        let Some(mut job) = self.jobs.remove(&id) else {
            return;
        };
        self.close_output(&mut job);
        let is_done = job.status.is_some() && job.ending.is_none();
        self.jobs.insert(id, job);
        if is_done {
            self.finish_job(id);
        }
    }

    fn close_output(&mut self, job: &mut Job) {
        if let Some(pipe) = job.captured().and_then(|captured| captured.pipe.take()) {
            self.poller.remove(Source::Output(job.id), pipe.as_fd());
        }
    }

    /// Sends what has come since the last event, or counts it where the
    /// client does not keep up.
    pub(crate) fn flush_stream(&mut self, id: u64) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let (connection, request) = (job.connection, job.request);
        let Some(Captured {
            stream: Some(stream),
            ..
        }) = job.captured()
        else {
            return;
        };
        stream.flush_set = false;
        let Some(client) = self.connections.get_mut(&connection) else {
            return;
        };
        if client.is_slow() {
            stream.skipped += stream.pending.len() as u64;
            stream.pending.clear();
            return;
        }
        let pending = std::mem::take(&mut stream.pending);
        if !pending.is_empty() {
            let event = Event::Output {
                text: text::show(&pending).text,
                skipped: std::mem::take(&mut stream.skipped),
            };
            client.event(request, event, Vec::new());
            self.flush_connection(connection);
        }
    }

    // ---- the end ----

    /// Asks a command to end: SIGTERM for its whole tree, SIGKILL later.
    pub(crate) fn end_job(&mut self, id: u64, reason: EndReason) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        if job.ending.is_some() {
            return;
        }
        job.ending = Some(Ending {
            reason,
            since: Instant::now(),
        });
        job.cgroup.terminate();
        self.poller.set(Timer::Kill(id), GRACE);
        self.poller.set(Timer::Settle(id), SETTLE_EVERY);
    }

    pub(crate) fn kill_job(&mut self, id: u64) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        if let Err(error) = job.cgroup.kill() {
            log::warn!("cannot kill command {id}: {error}");
        }
    }

    /// An ending command is done when nothing of its tree is left.
    pub(crate) fn settle_job(&mut self, id: u64) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let Some(ending) = &job.ending else { return };
        let is_gone = job.reported && !job.cgroup.is_populated();
        if !is_gone && ending.since.elapsed() < GIVE_UP {
            return self.poller.set(Timer::Settle(id), SETTLE_EVERY);
        }
        if !is_gone {
            log::error!("command {id} is still there after it was killed");
        }
        self.on_output(id);
        self.finish_job(id);
    }

    /// The sandbox is gone, and the command with it.
    pub(crate) fn lose_job(&mut self, id: u64, outcome: Outcome) {
        if let Some(job) = self.jobs.remove(&id) {
            self.conclude(job, outcome);
        }
    }

    pub(crate) fn finish_job(&mut self, id: u64) {
        self.on_output(id);
        let Some(job) = self.jobs.remove(&id) else {
            return;
        };
        let outcome = job.outcome();
        self.conclude(job, outcome);
        self.stop_when_idle();
    }

    /// Answers the request, and keeps what must outlive the command.
    fn conclude(&mut self, mut job: Job, outcome: Outcome) {
        self.unset_timers(job.id);
        let pipe = job.captured().and_then(|captured| captured.pipe.take());
        if let Some(pipe) = pipe {
            // What still holds the other end must not block, or be killed by
            // SIGPIPE, just because nobody listens any more.
            self.discarded.insert(job.id, pipe);
            self.poller.again(Source::Output(job.id));
        }
        self.notice_limits(&mut job);
        let (connection, request) = (job.connection, job.request);
        let mut record = Record {
            client: &job.client,
            kind: job.kind(),
            command: &job.command,
            cwd: &job.cwd,
            outcome: &outcome,
            duration_ms: job.duration_ms(),
            bytes: None,
        };
        match job.stdio {
            JobStdio::Captured(captured) => {
                record.bytes = Some(captured.capture.total());
                self.journal.append(&record);
                let duration_ms = record.duration_ms;
                self.keep_lingering(job.cgroup);
                let reply =
                    self.shell_reply(outcome, captured.capture.finish(), duration_ms, job.notices);
                self.reply(connection, request, &reply);
            }
            JobStdio::Piped | JobStdio::Terminal => {
                self.journal.append(&record);
                let reply = ExecReply {
                    outcome: outcome.clone(),
                    duration_ms: record.duration_ms,
                };
                self.keep_lingering(job.cgroup);
                self.reply(connection, request, &reply);
            }
        }
        self.flush_connection(connection);
    }

    fn unset_timers(&mut self, id: u64) {
        let timers: [fn(u64) -> Timer; 6] = [
            Timer::Timeout,
            Timer::Kill,
            Timer::Settle,
            Timer::Drain,
            Timer::Respawn,
            Timer::Flush,
        ];
        for timer in timers {
            self.poller.unset(timer(id));
        }
    }

    fn keep_lingering(&mut self, cgroup: CommandCgroup) {
        if !cgroup.remove() {
            self.lingering.push(Lingering { cgroup });
        }
    }

    fn shell_reply(
        &mut self,
        outcome: Outcome,
        summary: Summary,
        duration_ms: u64,
        mut notices: Vec<String>,
    ) -> ShellReply {
        if let Some(error) = &summary.file_error {
            notices.push(format!("the whole output could not be saved: {error}"));
        }
        let full_output = summary.file.as_ref().and_then(|(path, saved)| {
            if *saved < summary.total {
                notices.push(format!(
                    "only the first {saved} bytes of the output were saved"
                ));
            }
            Some(format!("{OUTPUT_PATH}/{}", path.file_name()?.to_str()?))
        });
        if full_output.is_some() {
            self.trim_saved();
        }
        ShellReply {
            outcome,
            output: summary.text,
            bytes: summary.total,
            omitted_bytes: summary.omitted,
            full_output,
            invalid_bytes: summary.invalid_bytes,
            duration_ms,
            background: self.background(),
            notices,
        }
    }

    /// What ended commands have left running, newest command first.
    fn background(&mut self) -> Vec<Process> {
        self.lingering
            .retain(|lingering| !lingering.cgroup.remove());
        let pids = self
            .lingering
            .iter()
            .rev()
            .flat_map(|lingering| lingering.cgroup.pids());
        pids.filter_map(process::describe)
            .take(MAX_LISTED)
            .map(|(pid, command)| Process {
                pid,
                command: text::printable(&command),
            })
            .collect()
    }

    /// Tells which limit of the sandbox a command ran into.
    fn notice_limits(&mut self, job: &mut Job) {
        let Some(verified) = self.verified() else {
            return;
        };
        let oom_kills = verified.memory_events.count("oom_kill");
        let pids_denied = verified.pids_events.count("max");
        let full: Vec<String> = verified
            .scratch
            .iter()
            .filter(|(_, fd)| is_full(fd))
            .map(|(path, _)| path.clone())
            .collect();
        let resources = &self.context.spec.resources;
        if oom_kills > self.oom_kills {
            job.notices.push(format!(
                "the memory limit of the sandbox ({} MiB) was reached: the kernel ended a process",
                resources.memory >> 20
            ));
        }
        if pids_denied > self.pids_denied {
            job.notices.push(format!(
                "the process limit of the sandbox ({}) was reached",
                resources.pids_limit
            ));
        }
        for path in full {
            job.notices.push(format!(
                "the scratch space {} is full",
                text::printable(&path)
            ));
        }
        (self.oom_kills, self.pids_denied) = (oom_kills, pids_denied);
    }

    /// Removes the oldest saved outputs when all together are too large.
    fn trim_saved(&self) {
        if let Err(error) = trim_directory(&self.context.names.state.join("output"), MAX_SAVED) {
            log::warn!("cannot trim the saved outputs: {error}");
        }
    }
}

impl Stream {
    fn take(&mut self, bytes: &[u8]) {
        let room = MAX_EVENT
            .saturating_sub(self.pending.len())
            .min(bytes.len());
        let (kept, skipped) = bytes.split_at(room);
        self.pending.extend_from_slice(kept);
        self.skipped += skipped.len() as u64;
    }
}

/// What is left of a pipe after a turn of reading.
#[derive(Debug, PartialEq, Eq)]
enum Open {
    Drained,
    MoreToRead,
    Ended,
}

/// Reads one turn from a non-blocking pipe.
fn read_some(pipe: &OwnedFd, buffer: &mut Vec<u8>, mut take: impl FnMut(&[u8])) -> (usize, Open) {
    buffer.resize(READ_SIZE, 0);
    let mut total = 0;
    while total < TURN {
        match rustix::io::read(pipe, buffer.as_mut_slice()) {
            Ok(0) => return (total, Open::Ended),
            Ok(count) => {
                total += count;
                take(buffer.get(..count).unwrap_or_default());
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => return (total, Open::Drained),
            Err(error) => {
                log::warn!("cannot read the output of a command: {error}");
                return (total, Open::Ended);
            }
        }
    }
    (total, Open::MoreToRead)
}

/// A pipe whose read end does not block; stdout and stderr share the write
/// end, so what is read is in the order in which it was written.
fn output_pipe(jobs: usize) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&read, true)?;
    if jobs < LARGE_PIPE_JOBS {
        // A smaller pipe works too, so a refusal does not matter.
        let _ = rustix::pipe::fcntl_setpipe_size(&read, LARGE_PIPE);
    }
    Ok((read, write))
}

/// A command text that is too long for an argument or for a packet, in a
/// memory file.
fn long_script(command: &str) -> io::Result<Option<OwnedFd>> {
    if encoded_len(command) <= MAX_INLINE {
        return Ok(None);
    }
    let memory = rustix::fs::memfd_create("command", MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(memory.try_clone()?);
    io::Write::write_all(&mut file, command.as_bytes())?;
    rustix::fs::seek(&memory, rustix::fs::SeekFrom::Start(0))?;
    Ok(Some(memory))
}

fn checked_timeout(asked: Option<u64>, default_s: u64, max_s: u64) -> Result<u64, ApiError> {
    match asked {
        None => Ok(default_s),
        Some(0) => Err(ApiError::bad_request("\"timeout_s\" must be at least 1")),
        Some(asked) if asked > max_s => Err(ApiError::bad_request(format!(
            "\"timeout_s\" is {asked}, but the most is {max_s}"
        ))
        .with_hint("start long work in the background, with its output in a file")),
        Some(asked) => Ok(asked),
    }
}

fn checked_argv(argv: Vec<String>) -> Result<Vec<String>, ApiError> {
    if argv.first().is_none_or(String::is_empty) {
        return Err(ApiError::bad_request("\"argv\" names no program"));
    }
    check_words(&argv)?;
    let length: usize = argv.iter().map(|word| encoded_len(word)).sum();
    if length > MAX_INLINE {
        return Err(ApiError::bad_request(format!(
            "\"argv\" is longer than {MAX_INLINE} bytes in all"
        )));
    }
    Ok(argv)
}

/// Length in a packet: JSON writes a control character as six bytes.
fn encoded_len(text: &str) -> usize {
    text.bytes()
        .map(|byte| match byte {
            0..=0x1f | 0x7f => 6,
            b'"' | b'\\' => 2,
            _ => 1,
        })
        .sum::<usize>()
        + "\"\",".len()
}

fn check_words(words: &[String]) -> Result<(), ApiError> {
    if words.iter().any(|word| word.contains('\0')) {
        return Err(ApiError::bad_request("a command cannot contain NUL"));
    }
    Ok(())
}

fn cannot(what: &'static str) -> impl Fn(io::Error) -> ApiError {
    move |error| ApiError::new(ErrorKind::CannotRun, format!("cannot {what}: {error}"))
}

/// Whether a descriptor from pid 1 is the master of a Unix 98 terminal:
/// nothing else may be handed on to a client.
fn is_terminal_master(fd: &OwnedFd) -> bool {
    /// The device number of /dev/ptmx (Linux Documentation/admin-guide/devices.txt).
    const PTMX: (u32, u32) = (5, 2);
    rustix::fs::fstat(fd).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
            && (
                rustix::fs::major(stat.st_rdev),
                rustix::fs::minor(stat.st_rdev),
            ) == PTMX
    })
}

fn is_full(fd: &OwnedFd) -> bool {
    rustix::fs::fstatvfs(fd)
        .is_ok_and(|fs| fs.f_blocks > 0 && (fs.f_bavail == 0 || fs.f_ffree == 0))
}

fn trim_directory(dir: &Path, limit: u64) -> io::Result<()> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        files.push((metadata.modified()?, metadata.len(), entry.path()));
    }
    files.sort();
    let mut total: u64 = files.iter().map(|(_, len, _)| len).sum();
    // The newest one is what the agent was just told of.
    files.pop();
    for (_, len, path) in files {
        if total <= limit {
            break;
        }
        std::fs::remove_file(path)?;
        total -= len;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_a_default_and_a_maximum() {
        assert_eq!(checked_timeout(None, 5, 10).unwrap(), 5);
        assert_eq!(checked_timeout(Some(10), 5, 10).unwrap(), 10);
        assert!(checked_timeout(Some(11), 5, 10).is_err());
        assert!(checked_timeout(Some(0), 5, 10).is_err());
    }

    #[test]
    fn oldest_saved_outputs_make_room() {
        let dir = tempfile::tempdir().unwrap();
        for (name, age) in [("a", 30), ("b", 20), ("c", 10)] {
            let path = dir.path().join(name);
            std::fs::write(&path, [0; 100]).unwrap();
            let time = std::time::SystemTime::now() - Duration::from_secs(age);
            std::fs::File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_modified(time)
                .unwrap();
        }
        trim_directory(dir.path(), 250).unwrap();
        assert!(!dir.path().join("a").exists() && dir.path().join("b").exists());
        trim_directory(dir.path(), 50).unwrap();
        assert!(!dir.path().join("b").exists() && dir.path().join("c").exists());
    }

    #[test]
    fn only_a_terminal_master_is_handed_on() {
        assert!(!is_terminal_master(&ControlPlane::open_null().unwrap()));
        let file = std::fs::File::open("/proc/self/status").unwrap();
        assert!(!is_terminal_master(&file.into()));
    }

    #[test]
    fn long_commands_travel_in_a_memory_file() {
        assert!(long_script("echo").unwrap().is_none());
        assert!(
            long_script(&"\x01".repeat(MAX_INLINE / 5))
                .unwrap()
                .is_some()
        );
        let text = "x".repeat(MAX_INLINE + 1);
        let file = std::fs::File::from(long_script(&text).unwrap().unwrap());
        assert_eq!(io::read_to_string(file).unwrap(), text);
    }

    #[test]
    fn stream_counts_what_it_leaves_out() {
        let mut stream = Stream::default();
        stream.take(&vec![b'x'; MAX_EVENT - 1]);
        stream.take(b"abc");
        assert_eq!((stream.pending.len(), stream.skipped), (MAX_EVENT, 2));
    }
}
