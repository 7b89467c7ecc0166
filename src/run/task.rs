//! A program of the host under way, podman mostly. It is awaited by the loop through its pidfd;
//! its output goes to memory files, so that nothing has to be read meanwhile.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, PidfdFlags};

use crate::subprocess::{contents, memory_file};

/// Most output that is looked at. Full counting sets come to 2 MiB.
const OUTPUT_LIMIT: u64 = 4 << 20;

#[derive(Debug)]
pub(crate) struct Task {
    child: Child,
    pidfd: OwnedFd,
    stdout: File,
    stderr: File,
    is_killed: bool,
}

/// How it ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    /// The line in which podman says what went wrong.
    pub(crate) fn last_words(&self) -> &str {
        let mut lines = self.stderr.lines().map(str::trim);
        lines.rfind(|line| !line.is_empty()).unwrap_or_default()
    }
}

impl Task {
    pub(crate) fn spawn(mut command: Command) -> io::Result<Task> {
        let (stdout, stderr) = (memory_file(b"")?, memory_file(b"")?);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::from(stdout.try_clone()?))
            .stderr(Stdio::from(stderr.try_clone()?))
            .spawn()?;
        match pidfd_of(&child) {
            Ok(pidfd) => Ok(Task {
                child,
                pidfd,
                stdout,
                stderr,
                is_killed: false,
            }),
            Err(error) => {
                child.kill()?;
                child.wait()?;
                Err(error)
            }
        }
    }

    /// Readable once the process has ended.
    pub(crate) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Whether this was the first time: what hangs in the kernel is killed again
    /// and again.
    pub(crate) fn kill(&mut self) -> bool {
        if let Err(error) = self.child.kill() {
            log::warn!("cannot kill a process of ours: {error}");
        }
        !std::mem::replace(&mut self.is_killed, true)
    }

    /// To be called when the pidfd is readable; `None` when it was not yet.
    pub(crate) fn finish(&mut self) -> io::Result<Option<Finished>> {
        let Some(status) = self.child.try_wait()? else {
            return Ok(None);
        };
        Ok(Some(Finished {
            status,
            stdout: read_back(&mut self.stdout)?,
            stderr: read_back(&mut self.stderr)?,
        }))
    }
}

fn pidfd_of(child: &Child) -> io::Result<OwnedFd> {
    let pid = Pid::from_child(child);
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

fn read_back(file: &mut File) -> io::Result<String> {
    let bytes = contents(file, OUTPUT_LIMIT)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags};

    #[test]
    fn output_and_status_of_a_finished_task() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let mut task = Task::spawn(command).unwrap();
        rustix::event::poll(&mut [PollFd::new(&task.pidfd(), PollFlags::IN)], None).unwrap();
        let finished = task.finish().unwrap().unwrap();
        assert_eq!(
            (finished.stdout.as_str(), finished.stderr.as_str()),
            ("out", "err")
        );
        assert_eq!(finished.status.code(), Some(3));
    }

    #[test]
    fn program_that_is_missing_is_an_error() {
        assert_eq!(
            Task::spawn(Command::new("/nonexistent"))
                .unwrap_err()
                .kind(),
            io::ErrorKind::NotFound
        );
    }
}
