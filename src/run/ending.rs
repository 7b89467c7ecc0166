//! The end of a command: asked for or not, and what is told of it.

use std::os::fd::OwnedFd;
use std::time::Instant;

use crate::api::{ExecReply, Outcome, Process, ShellReply};
use crate::policy::mounts::OUTPUT_PATH;
use crate::run::capture::Summary;
use crate::run::control_plane::ControlPlane;
use crate::run::job::{EndReason, Ending, GIVE_UP, GRACE, Job, JobStdio, SETTLE_EVERY};
use crate::run::journal::{End, Record};
use crate::run::poller::Timer;
use crate::sys::cgroup::CommandCgroup;
use crate::sys::process;
use crate::text;

/// Most background processes that a result lists.
const MAX_LISTED: usize = 20;

/// What an ended command left running.
#[derive(Debug)]
pub(crate) struct Lingering {
    pub(crate) cgroup: CommandCgroup,
}

impl ControlPlane {
    /// Asks a command to end: SIGTERM for its whole tree, then `settle_job`.
    pub(crate) fn end_job(&mut self, id: u64, reason: EndReason) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        // Of one that has ended only its pipe is still waited for.
        if job.ending.is_some() || job.status.is_some() {
            return;
        }
        job.ending = Some(Ending {
            reason,
            since: Instant::now(),
            killed: None,
        });
        if !job.reported && job.cgroup.remove() {
            // pid 1 has not come to it yet. Without its cgroup it cannot
            // begin; the failure of that finds nobody.
            return self.finish_job(id);
        }
        job.cgroup.terminate();
        self.poller.set(Timer::Settle(id), SETTLE_EVERY);
    }

    /// An ending command is done when nothing of its tree is left. After a
    /// while that is seen to; only what was killed is ever given up.
    pub(crate) fn settle_job(&mut self, id: u64) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let Some(ending) = &mut job.ending else {
            return;
        };
        let is_reported = job.reported;
        if is_reported && !job.cgroup.is_populated() {
            return self.finish_job(id);
        }
        if ending.since.elapsed() >= GRACE {
            let killed = *ending.killed.get_or_insert_with(Instant::now);
            // Again and again: a process may join the cgroup late.
            job.kill();
            if killed.elapsed() >= GIVE_UP {
                return self.give_up_job(id, is_reported);
            }
        }
        self.poller.set(Timer::Settle(id), SETTLE_EVERY);
    }

    fn give_up_job(&mut self, id: u64, is_reported: bool) {
        log::error!("command {id} is still there after it was killed");
        self.finish_job(id);
        if !is_reported {
            // Between fork and exec any process of the user can stop it,
            // before it is in its cgroup. Then only this ends it for certain.
            self.container_gone("pid 1 did not answer for a command that was ended");
        }
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
            self.discards.add(job.id, pipe, &mut self.poller);
        }
        self.notice_limits(&mut job);
        self.notice_changes(&mut job);
        let (connection, request) = (job.connection, job.request);
        let mut record = Record {
            client: &job.client,
            kind: job.kind(),
            command: &job.command,
            cwd: &job.cwd,
            end: End::Ran(&outcome),
            duration_ms: job.duration_ms(),
            bytes: None,
            changes: &job.changes,
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
                let duration_ms = record.duration_ms;
                let mut notices = job.notices;
                notices.extend(self.lasting_notices());
                let reply = ExecReply {
                    outcome: outcome.clone(),
                    duration_ms,
                    notices,
                };
                self.keep_lingering(job.cgroup);
                self.reply(connection, request, &reply);
            }
        }
        self.flush_connection(connection);
    }

    pub(crate) fn unset_timers(&mut self, id: u64) {
        let timers: [fn(u64) -> Timer; 5] = [
            Timer::Timeout,
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
        notices.extend(self.standing_notices());
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
        if verified.memory_events.is_gone() {
            job.notices.push(SANDBOX_ENDED.to_owned());
            return;
        }
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
}

/// What was counted for the sandbox is gone with it.
const SANDBOX_ENDED: &str = "the sandbox ended at the same time, maybe because what filled its memory were files in its scratch places; it is created again without them";

fn is_full(fd: &OwnedFd) -> bool {
    rustix::fs::fstatvfs(fd)
        .is_ok_and(|fs| fs.f_blocks > 0 && (fs.f_bavail == 0 || fs.f_ffree == 0))
}
