//! A command under way: what is known of it, and how it is ended.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::api::Outcome;
use crate::init::wire::{ExitStatus, Spawn};
use crate::run::capture::Capture;
use crate::sys::cgroup::CommandCgroup;

/// Between SIGTERM and SIGKILL.
pub(crate) const GRACE: Duration = Duration::from_secs(2);
/// How often an ending command is looked at.
pub(crate) const SETTLE_EVERY: Duration = Duration::from_millis(50);
/// A killed command that is still not reported gone after this is given up.
pub(crate) const GIVE_UP: Duration = Duration::from_secs(10);
/// How long the pipe of an ended command is waited for.
pub(crate) const DRAIN: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: u64,
    pub(crate) connection: u64,
    /// The id that the client gave its request.
    pub(crate) request: u64,
    pub(crate) client: String,
    pub(crate) command: String,
    pub(crate) cwd: String,
    pub(crate) stdio: JobStdio,
    pub(crate) cgroup: CommandCgroup,
    pub(crate) started: Instant,
    /// Seconds; none for what a person runs.
    pub(crate) timeout_s: Option<u64>,
    /// pid 1 has answered the request to spawn it.
    pub(crate) reported: bool,
    pub(crate) status: Option<ExitStatus>,
    pub(crate) ending: Option<Ending>,
    /// What to send to pid 1 once more, if the process cap was in the way.
    pub(crate) retry: Option<Retry>,
    pub(crate) notices: Vec<String>,
    /// Those of them that tell of changed files, for the journal too.
    pub(crate) changes: Vec<String>,
}

/// A request to pid 1, kept until it is answered.
#[derive(Debug)]
pub(crate) struct Retry {
    pub(crate) spawn: Spawn,
    pub(crate) fds: Vec<OwnedFd>,
    pub(crate) tries: u32,
}

#[derive(Debug)]
pub(crate) enum JobStdio {
    /// Output comes to us.
    Captured(Captured),
    /// The client has the other ends of the pipes.
    Piped,
    /// The client has the master of the terminal.
    Terminal,
}

#[derive(Debug)]
pub(crate) struct Captured {
    pub(crate) capture: Capture,
    /// Our end of the pipe; none once it has ended.
    pub(crate) pipe: Option<OwnedFd>,
    pub(crate) stream: Option<Stream>,
}

/// Output on its way to a client that wants to see it as it comes.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub(crate) pending: Vec<u8>,
    pub(crate) skipped: u64,
    pub(crate) flush_set: bool,
}

/// Why a command is being ended before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndReason {
    TimedOut,
    Cancelled,
    ClientGone,
    Stopping,
}

#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) reason: EndReason,
    pub(crate) since: Instant,
    /// When it was first sent SIGKILL.
    pub(crate) killed: Option<Instant>,
}

impl Job {
    pub(crate) fn kind(&self) -> &'static str {
        match self.stdio {
            JobStdio::Captured(_) => "shell",
            JobStdio::Piped => "exec",
            JobStdio::Terminal => "terminal",
        }
    }

    pub(crate) fn captured(&mut self) -> Option<&mut Captured> {
        match &mut self.stdio {
            JobStdio::Captured(captured) => Some(captured),
            _ => None,
        }
    }

    /// SIGKILL for its whole tree.
    pub(crate) fn kill(&self) {
        if let Err(error) = self.cgroup.kill() {
            log::warn!("cannot kill command {}: {error}", self.id);
        }
    }

    pub(crate) fn has_open_pipe(&self) -> bool {
        matches!(
            &self.stdio,
            JobStdio::Captured(Captured { pipe: Some(_), .. })
        )
    }

    pub(crate) fn duration_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// How it ended. A command that is ended for a reason has that reason as
    /// its outcome, whatever status its process left.
    pub(crate) fn outcome(&self) -> Outcome {
        match (&self.ending, self.status) {
            (
                Some(Ending {
                    reason: EndReason::TimedOut,
                    ..
                }),
                _,
            ) => Outcome::TimedOut {
                after_s: self.timeout_s.unwrap_or_default(),
            },
            (
                Some(Ending {
                    reason: EndReason::Cancelled | EndReason::ClientGone,
                    ..
                }),
                _,
            ) => Outcome::Cancelled,
            (
                Some(Ending {
                    reason: EndReason::Stopping,
                    ..
                }),
                _,
            ) => Outcome::Lost {
                reason: "the sandbox was stopped".to_owned(),
            },
            (None, Some(ExitStatus::Code(code))) => Outcome::Exited { code },
            (None, Some(ExitStatus::Signal(signal))) => Outcome::Signaled { signal },
            (None, None) => Outcome::Lost {
                reason: "its end was not reported".to_owned(),
            },
        }
    }
}
