//! The end of a command: asked for or not, and what is told of it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use crate::api::{ExecReply, Outcome, Process, ShellReply};
use crate::policy::mounts::OUTPUT_PATH;
use crate::run::capture::Summary;
use crate::run::control_plane::ControlPlane;
use crate::run::job::{EndReason, Ending, GIVE_UP, GRACE, Job, JobStdio, SETTLE_EVERY};
use crate::run::journal::{End, Record};
use crate::run::poller::{Source, Timer};
use crate::sys::cgroup::CommandCgroup;
use crate::sys::process;
use crate::text;

/// Most background processes that a result lists.
const MAX_LISTED: usize = 20;
/// Saved outputs together; the oldest go first.
const MAX_SAVED: u64 = 256 << 20;

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
        if job.ending.is_some() {
            return;
        }
        job.ending = Some(Ending {
            reason,
            since: Instant::now(),
            killed: None,
        });
        if !job.reported && job.cgroup.remove() {
            // pid 1 has not come to it yet. Without its cgroup it cannot
            // start any more: a process that fails to join it ends.
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
        let is_gone = job.reported && !job.cgroup.is_populated();
        let is_given_up = ending
            .killed
            .is_some_and(|killed| killed.elapsed() >= GIVE_UP);
        if is_gone || is_given_up {
            if !is_gone {
                log::error!("command {id} is still there after it was killed");
            }
            self.on_output(id);
            return self.finish_job(id);
        }
        if ending.killed.is_none() && ending.since.elapsed() >= GRACE {
            ending.killed = Some(Instant::now());
            if let Err(error) = job.cgroup.kill() {
                log::warn!("cannot kill command {id}: {error}");
            }
        }
        self.poller.set(Timer::Settle(id), SETTLE_EVERY);
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
            end: End::Ran(&outcome),
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
    fn oldest_saved_outputs_make_room() {
        let dir = tempfile::tempdir().unwrap();
        for (name, age) in [("a", 30), ("b", 20), ("c", 10)] {
            let path = dir.path().join(name);
            std::fs::write(&path, [0; 100]).unwrap();
            let time = std::time::SystemTime::now() - std::time::Duration::from_secs(age);
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
}
