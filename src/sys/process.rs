//! What `/proc` tells of a process in the sandbox, seen from the host.

use rustix::process::Pid;

/// Longest command line that is shown, in bytes.
const MAX_COMMAND: usize = 120;

/// The number of a process inside its own pid namespace, and its command
/// line; `None` when it is gone. The command line is under its control.
pub(crate) fn describe(pid: Pid) -> Option<(u32, String)> {
    let pid = pid.as_raw_nonzero();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .map(str::trim)
    };
    let inside = field("NSpid:")?
        .split_ascii_whitespace()
        .next_back()?
        .parse()
        .ok()?;
    let mut line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    line.truncate(MAX_COMMAND);
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    let command = match line.trim() {
        // A zombie, or a process between fork and exec.
        "" => format!("[{}]", field("Name:")?),
        line => line.to_owned(),
    };
    Some((inside, command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_can_be_described() {
        let (pid, command) = describe(rustix::process::getpid()).unwrap();
        assert!(pid > 0 && !command.is_empty());
    }
}
