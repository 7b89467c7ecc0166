//! What pid 1 reports of a command. All of it is untrusted input: ids that
//! nobody knows are passed over, descriptors are looked at.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::FileType;

use crate::api::{ApiError, ErrorKind, Event};
use crate::init::wire::{ExitStatus, Stage};
use crate::run::commands::packet_fds;
use crate::run::control_plane::ControlPlane;
use crate::run::job::{DRAIN, EndReason, Job, JobStdio, Retry};
use crate::run::journal::{End, Record};
use crate::run::poller::Timer;
use crate::text;

/// Killed processes need a moment until they no longer count; many of them on
/// a busy machine need seconds.
const RESPAWN_AFTER: Duration = Duration::from_millis(200);
const MAX_TRIES: u32 = 25;

impl ControlPlane {
    pub(crate) fn job_started(&mut self, id: u64, mut fds: Vec<OwnedFd>) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        job.reported = true;
        job.retry = None;
        if job.ending.is_some() {
            // What was asked to end had not begun then.
            return job.kill();
        }
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
            && job.ending.is_none()
            && let Some(retry) = &mut job.retry
            && retry.tries < MAX_TRIES
            && (retry.tries > 0 || !self.lingering.is_empty())
        {
            retry.tries += 1;
            return self.make_room_for(id);
        }
        let Some(job) = self.drop_job(id) else { return };
        let error = self.spawn_error(&job, stage, errno);
        self.journal.append(&Record {
            client: &job.client,
            kind: job.kind(),
            command: &job.command,
            cwd: &job.cwd,
            end: End::NotStarted {
                not_started: &error.message,
            },
            duration_ms: job.duration_ms(),
            bytes: None,
            changes: &[],
        });
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
        if let Some(job) = self.jobs.get_mut(&id)
            && count > 0
        {
            job.notices.push(format!(
                "the process limit ({limit}) was reached: {count} background processes of earlier commands were ended"
            ));
        }
        self.poller.set(Timer::Respawn(id), RESPAWN_AFTER);
    }

    pub(crate) fn respawn(&mut self, id: u64) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        if job.ending.is_some() {
            // Nothing of it runs, and nothing needs to.
            return self.finish_job(id);
        }
        let Some(Retry { spawn, fds, .. }) = &job.retry else {
            return;
        };
        let spawn = spawn.clone();
        let handed_over = packet_fds(&job.cgroup, fds).and_then(|fds| self.hand_over(spawn, fds));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_terminal_master_is_handed_on() {
        assert!(!is_terminal_master(&ControlPlane::open_null().unwrap()));
        let file = std::fs::File::open("/proc/self/status").unwrap();
        assert!(!is_terminal_master(&file.into()));
    }
}
