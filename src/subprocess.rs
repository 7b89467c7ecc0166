//! A program of the host -> what it has said, within limits of time and length.
//! Which program it may be, and with which environment, is for the caller.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};

/// How often it is looked whether a limit is reached.
const TICK: Duration = Duration::from_millis(10);

const MAX_WARNINGS: u64 = 1 << 20;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) time: Duration,
    /// Of stdout, give or take what is written in a moment. stderr may have
    /// more: programs warn there.
    pub(crate) bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Said {
    pub(crate) fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.stdout)
    }

    pub(crate) fn errors(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.stderr)
    }

    /// The last line of an error message, which is the one that counts.
    pub(crate) fn problem(&self) -> String {
        let errors = self.errors();
        let last = errors.lines().rfind(|line| !line.trim().is_empty());
        last.map_or_else(|| self.status.to_string(), |line| line.trim().to_owned())
    }
}

/// Runs it to its end; it is killed where it reaches a limit.
pub(crate) fn run(command: &mut Command, limits: Limits) -> io::Result<Said> {
    let mut running = Running::start(command, limits)?;
    match running.await_end(|| false) {
        Ok(()) => running.said(),
        Err(error) => {
            running.child.kill()?;
            running.child.wait()?;
            Err(error)
        }
    }
}

/// One that has been started. It is the caller's to end it.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) child: Child,
    stdout: File,
    stderr: File,
    limits: Limits,
}

impl Running {
    /// Output goes to memory rather than to a pipe, which somebody would have
    /// to empty while waiting, and which a process left behind would hold open.
    pub(crate) fn start(command: &mut Command, limits: Limits) -> io::Result<Running> {
        let (stdout, stderr) = (memory_file(b"")?, memory_file(b"")?);
        command
            .stdout(stdout.try_clone()?)
            .stderr(stderr.try_clone()?);
        Ok(Running {
            child: command.spawn()?,
            stdout,
            stderr,
            limits,
        })
    }

    /// An error is of kind `TimedOut`, `FileTooLarge`,
    /// or `Interrupted` where `is_over` says that it is not to be waited for.
    /// Until [`Running::said`] its number is not given to another process.
    pub(crate) fn await_end(&mut self, is_over: impl Fn() -> bool) -> io::Result<()> {
        let is_due = || Ok(self.is_too_large()? || is_over());
        let has_ended = wait_unless(&self.child, self.limits.time, is_due)?;
        if has_ended && !self.is_too_large()? {
            return Ok(());
        }
        let Limits { time, bytes } = self.limits;
        Err(if self.is_too_large()? {
            let message = format!("it printed more than {bytes} bytes");
            io::Error::new(io::ErrorKind::FileTooLarge, message)
        } else if is_over() {
            io::Error::from(io::ErrorKind::Interrupted)
        } else {
            let message = format!("it took more than {} s", time.as_secs());
            io::Error::new(io::ErrorKind::TimedOut, message)
        })
    }

    fn is_too_large(&self) -> io::Result<bool> {
        let len = |file: &File| file.metadata().map(|metadata| metadata.len());
        let most = self.limits.bytes;
        Ok(len(&self.stdout)? > most || len(&self.stderr)? > most.max(MAX_WARNINGS))
    }

    /// Of one that was made a process group: all that is left of it.
    pub(crate) fn kill_group(&self) {
        // Nothing left to kill is as good.
        let _none = rustix::process::kill_process_group(Pid::from_child(&self.child), Signal::KILL);
    }

    /// Waits for its end.
    pub(crate) fn said(mut self) -> io::Result<Said> {
        Ok(Said {
            status: self.child.wait()?,
            stdout: contents(&mut self.stdout, u64::MAX)?,
            stderr: contents(&mut self.stderr, u64::MAX)?,
        })
    }
}

/// Whether it has ended; if not, it takes too long, or is not to be waited for.
pub(crate) fn wait_unless(
    child: &Child,
    limit: Duration,
    is_over: impl Fn() -> io::Result<bool>,
) -> io::Result<bool> {
    let deadline = Instant::now() + limit;
    let pid = Pid::from_child(child);
    // A kernel without these does with looking again and again.
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok();
    // It stays a zombie, whose number nobody else gets.
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    loop {
        if rustix::process::waitid(WaitId::Pid(pid), look)?.is_some() {
            return Ok(true);
        }
        if Instant::now() >= deadline || is_over()? {
            return Ok(false);
        }
        match &pidfd {
            Some(pidfd) => {
                let mut ended = [PollFd::new(pidfd, PollFlags::IN)];
                let tick = Timespec::try_from(TICK).map_err(io::Error::other)?;
                match rustix::event::poll(&mut ended, Some(&tick)) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            None => std::thread::sleep(TICK),
        }
    }
}

/// A file in memory that is read from its start.
pub(crate) fn memory_file(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("umwelt", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

/// What such a file holds, up to `most` bytes.
pub(crate) fn contents(file: &mut File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    // What is left of the program may still write.
    let len = file.metadata()?.len().min(most);
    file.take(len).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Stdio;

    use super::*;

    const LIMITS: Limits = Limits {
        time: Duration::from_secs(60),
        bytes: 1 << 20,
    };

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdin(Stdio::null());
        command
    }

    #[test]
    fn what_it_says_is_kept_with_its_status() {
        let mut command = shell("cat; echo one >&2; echo >&2; exit 3");
        command.stdin(memory_file(b"in").unwrap());
        let said = run(&mut command, LIMITS).unwrap();
        assert_eq!((said.status.code(), &*said.text()), (Some(3), "in"));
        assert_eq!((said.problem(), &*said.errors()), ("one".into(), "one\n\n"));
        let silent = run(&mut shell("exit 4"), LIMITS).unwrap();
        assert!(silent.problem().contains('4'));
        let error = run(&mut Command::new("/none"), LIMITS).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn one_that_reaches_a_limit_is_ended() {
        let time = Duration::ZERO;
        let limits = Limits { time, ..LIMITS };
        let error = run(&mut shell("exec sleep 1000"), limits).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "it took more than 0 s");
        let much = "head -c 2000000 /dev/zero";
        for script in ["; exec sleep 1000", " >&2; exec sleep 1000", ""] {
            let error = run(&mut shell(&format!("{much}{script}")), LIMITS).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::FileTooLarge, "{script}");
        }
    }

    #[test]
    fn what_it_leaves_behind_holds_nothing_up() {
        let mut command = shell("sleep 1000 & echo started");
        let mut running = Running::start(command.process_group(0), LIMITS).unwrap();
        running.await_end(|| false).unwrap();
        running.kill_group();
        assert_eq!(running.said().unwrap().text(), "started\n");
    }

    #[test]
    fn nobody_has_to_wait_for_it() {
        let mut running = Running::start(&mut shell("exec sleep 1000"), LIMITS).unwrap();
        let error = running.await_end(|| true).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted);
        running.child.kill().unwrap();
        assert!(!running.said().unwrap().status.success());
    }
}
