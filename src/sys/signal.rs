//! Signals as bytes in a pipe, for a loop that waits on descriptors.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// A descriptor that becomes readable when one of `signals` arrives. It does
/// not block; reading it empty arms it again.
pub(crate) fn readable_on(signals: &[i32]) -> io::Result<OwnedFd> {
    let (read, write) = UnixStream::pair()?;
    read.set_nonblocking(true)?;
    for signal in signals {
        signal_hook::low_level::pipe::register(*signal, write.try_clone()?)?;
    }
    Ok(read.into())
}

/// The signals that ask a process to end.
pub(crate) const END: [i32; 3] = [
    signal_hook::consts::SIGTERM,
    signal_hook::consts::SIGINT,
    signal_hook::consts::SIGHUP,
];
