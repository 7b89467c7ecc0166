//! Runs a tool of the host and takes what it prints, within bounds.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

/// Most that a tool may print, in bytes.
const MAX_OUTPUT: usize = 64 << 10;

/// What `command` prints on stdout, if it ends with success before `deadline`.
/// What it started is ended too.
pub(super) fn output(mut command: Command, deadline: Instant) -> Result<String, String> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
    let mut child = child.map_err(|error| format!("cannot be started: {error}"))?;
    let result = read(&mut child, deadline);
    // It is not reaped yet, so the number still means its group.
    if let Some(group) = pid(&child) {
        // Nothing left to kill is as good.
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    let bytes = result?;
    if !status.success() {
        return Err(format!("failed ({status})"));
    }
    String::from_utf8(bytes).map_err(|_| "printed what is not UTF-8".to_owned())
}

fn read(child: &mut Child, deadline: Instant) -> Result<Vec<u8>, String> {
    let mut stdout = child.stdout.take().ok_or("has no output")?;
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        wait_for(stdout.as_fd(), deadline)?;
        match stdout.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => bytes.extend(buffer.iter().take(count)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.to_string()),
        }
        if bytes.len() > MAX_OUTPUT {
            return Err(format!("printed more than {MAX_OUTPUT} bytes"));
        }
    }
    let pid = pid(child).ok_or("has no pid")?;
    let pidfd =
        rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(|error| error.to_string())?;
    wait_for(pidfd.as_fd(), deadline)?;
    Ok(bytes)
}

fn pid(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()).ok()?)
}

/// Waits until there is something to read, or the end.
fn wait_for(fd: BorrowedFd<'_>, deadline: Instant) -> Result<(), String> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let wait = Timespec::try_from(left).map_err(|error| error.to_string())?;
        match rustix::event::poll(&mut fds, Some(&wait)) {
            Ok(0) if left > Duration::ZERO => {}
            Ok(0) => return Err("did not answer in time".to_owned()),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: Duration) -> Result<String, String> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        output(command, Instant::now() + limit)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn output_counts_only_with_success() {
        assert_eq!(sh("echo a; echo b >&2", LONG), Ok("a\n".to_owned()));
        let failed = sh("echo a; exit 3", LONG).unwrap_err();
        assert!(failed.contains("exit status: 3"), "{failed}");
        assert!(sh("printf '\\377'", LONG).unwrap_err().contains("UTF-8"));
        assert!(output(Command::new("/none"), Instant::now() + LONG).is_err());
    }

    #[test]
    fn endless_output_is_cut_off() {
        let error = sh("yes", LONG).unwrap_err();
        assert!(error.contains("more than 65536 bytes"), "{error}");
    }

    #[test]
    fn what_hangs_is_ended_with_all_that_it_started() {
        let short = Duration::from_millis(200);
        for script in ["sleep 1000", "exec >&-; sleep 1000", "sleep 1000 & wait"] {
            let error = sh(script, short).unwrap_err();
            assert_eq!(error, "did not answer in time", "{script}");
        }
        // The child of the script has the pipe and must not hold the answer up.
        let (mut reader, writer) = io::pipe().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 1000 >&2 & echo started; wait"]);
        command.stderr(writer);
        assert!(output(command, Instant::now() + short).is_err());
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
    }
}
