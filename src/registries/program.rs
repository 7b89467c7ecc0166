//! Runs a tool of the host and takes what it prints, within bounds.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::subprocess::{Limits, Running};

/// Most that a tool may print, in bytes.
const MAX_OUTPUT: u64 = 64 << 10;

/// What `command` prints on stdout, if it ends with success before `deadline`.
/// What it started is ended too.
pub(super) fn output(mut command: Command, deadline: Instant) -> Result<String, String> {
    let limits = Limits {
        time: deadline.saturating_duration_since(Instant::now()),
        bytes: MAX_OUTPUT,
    };
    let running = Running::start(command.stdin(Stdio::null()).process_group(0), limits);
    let mut running = running.map_err(|error| format!("cannot be started: {error}"))?;
    let ended = running.await_end(|| false);
    running.kill_group();
    let said = running.said().map_err(|error| error.to_string())?;
    ended.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => "did not answer in time".to_owned(),
        io::ErrorKind::FileTooLarge => format!("printed more than {MAX_OUTPUT} bytes"),
        _ => error.to_string(),
    })?;
    if !said.status.success() {
        return Err(format!("failed ({})", said.status));
    }
    String::from_utf8(said.stdout).map_err(|_| "printed what is not UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::time::Duration;

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
    fn a_tool_that_prints_too_much_is_ended() {
        let error = sh("head -c 100000 /dev/zero; sleep 1000", LONG).unwrap_err();
        assert!(error.contains("more than 65536 bytes"), "{error}");
    }

    #[test]
    fn what_hangs_is_ended_with_all_that_it_started() {
        let short = Duration::from_millis(200);
        for script in ["sleep 1000", "exec >&-; sleep 1000", "sleep 1000 & wait"] {
            let error = sh(script, short).unwrap_err();
            assert_eq!(error, "did not answer in time", "{script}");
        }
        // The child of the script must not live on, with what it has inherited.
        let (mut reader, writer) = io::pipe().unwrap();
        rustix::io::fcntl_setfd(&writer, rustix::io::FdFlags::empty()).unwrap();
        let error = sh("sleep 1000 & echo started; wait", short).unwrap_err();
        assert_eq!(error, "did not answer in time");
        drop(writer);
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
    }
}
