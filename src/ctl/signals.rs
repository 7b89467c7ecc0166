//! Signals as something that poll(2) can wait for.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Caught signals; they stay caught until the process ends.
#[derive(Debug)]
pub(super) struct Signals {
    wakeup: UnixStream,
    caught: Vec<(i32, Arc<AtomicBool>)>,
}

impl Signals {
    /// Catches the signals, except those that whoever started us has set to be
    /// ignored (nohup(1) does that).
    pub(super) fn catch(signals: &[i32]) -> io::Result<Signals> {
        let (wakeup, write) = UnixStream::pair()?;
        wakeup.set_nonblocking(true)?;
        let ignored = ignored_mask();
        let mut caught = Vec::new();
        for signal in signals {
            if ignored & (1 << (signal - 1)) != 0 {
                continue;
            }
            // Actions run in this order: the flag is there when the byte is.
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(*signal, Arc::clone(&flag))?;
            signal_hook::low_level::pipe::register(*signal, write.try_clone()?)?;
            caught.push((*signal, flag));
        }
        Ok(Signals { wakeup, caught })
    }

    /// The signals that have come since the last call.
    pub(super) fn take(&mut self) -> Vec<i32> {
        let mut bytes = [0; 64];
        while self.wakeup.read(&mut bytes).is_ok_and(|len| len > 0) {}
        self.caught
            .iter()
            .filter(|(_, flag)| flag.swap(false, Ordering::SeqCst))
            .map(|(signal, _)| *signal)
            .collect()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
}

/// Bit N - 1 stands for signal N (proc_pid_status(5)).
fn ignored_mask() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caught_signal_is_told_once() {
        let mut signals = Signals::catch(&[signal_hook::consts::SIGWINCH]).unwrap();
        assert!(signals.take().is_empty());
        signal_hook::low_level::raise(signal_hook::consts::SIGWINCH).unwrap();
        assert_eq!(signals.take(), [signal_hook::consts::SIGWINCH]);
        assert!(signals.take().is_empty());
    }

    #[test]
    fn an_ignored_signal_stays_ignored() {
        // Rust's start code sets this one to be ignored.
        let mut signals = Signals::catch(&[signal_hook::consts::SIGPIPE]).unwrap();
        signal_hook::low_level::raise(signal_hook::consts::SIGPIPE).unwrap();
        assert!(signals.take().is_empty());
    }
}
