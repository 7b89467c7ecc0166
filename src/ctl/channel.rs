//! Bytes from one descriptor to another, as far as neither makes us wait.
//!
//! They are copied, not spliced: splice(2) would put pages of the host's page
//! cache into a pipe that the sandbox holds, and pages of the sandbox, which
//! it could still change, into whatever reads our output.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

const BUFFER: usize = 256 << 10;
/// What a pipe takes without waiting once poll(2) calls it writable: PIPE_BUF.
const ATOMIC: usize = 4096;

/// One end of a channel: closed by the channel, or only lent to it.
#[derive(Debug)]
pub(super) enum End<'a> {
    Own(OwnedFd),
    Lent(BorrowedFd<'a>),
}

impl AsFd for End<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            End::Own(fd) => fd.as_fd(),
            End::Lent(fd) => *fd,
        }
    }
}

/// Both ends are there until the source has ended or the sink has gone.
#[derive(Debug)]
pub(super) struct Channel<'a> {
    source: Option<End<'a>>,
    sink: Option<End<'a>>,
    buffer: Vec<u8>,
    /// The part of the buffer that the sink has not taken yet.
    start: usize,
    end: usize,
    /// Most bytes for one write.
    piece: usize,
    /// Bytes that are to be moved even after the time is over.
    owed: u64,
    /// Why the sink has gone, unless its reader just left.
    failure: Option<io::Error>,
}

impl<'a> Channel<'a> {
    pub(super) fn new(source: End<'a>, sink: End<'a>) -> Channel<'a> {
        Channel {
            piece: piece(sink.as_fd()),
            source: Some(source),
            sink: Some(sink),
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            owed: 0,
            failure: None,
        }
    }

    /// What poll(2) has to wait for, if anything is left to do.
    pub(super) fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let sink = self.sink.as_ref()?;
        if self.start < self.end {
            return Some((sink.as_fd(), PollFlags::OUT));
        }
        Some((self.source.as_ref()?.as_fd(), PollFlags::IN))
    }

    /// Does what poll(2) says can be done without waiting.
    pub(super) fn step(&mut self) {
        if self.start < self.end {
            self.write();
        } else {
            self.read();
        }
    }

    /// Whether bytes wait that must not be lost, though the time is over.
    pub(super) fn is_owing(&self) -> bool {
        self.interest().is_some() && (self.start < self.end || self.owed > 0)
    }

    /// Notes what is there to be read at this moment.
    pub(super) fn owe_what_is_there(&mut self) {
        if let Some(source) = &self.source {
            self.owed = rustix::io::ioctl_fionread(source).unwrap_or_default();
        }
    }

    /// Leaves off reading; what the sink holds by then is all that it gets.
    pub(super) fn close(&mut self) {
        self.source = None;
        self.sink = None;
    }

    pub(super) fn take_failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }

    fn read(&mut self) {
        let Some(source) = &self.source else {
            return;
        };
        match rustix::io::read(source, &mut self.buffer) {
            Ok(0) => self.close(),
            Ok(len) => {
                self.start = 0;
                self.end = len;
                self.owed = self.owed.saturating_sub(len as u64);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            // A terminal whose other side is closed says so with this error.
            Err(Errno::IO) if rustix::termios::isatty(source) => self.close(),
            Err(error) => {
                log::warn!("cannot read: {}", io::Error::from(error));
                self.close();
            }
        }
    }

    fn write(&mut self) {
        let Some(sink) = &self.sink else {
            return;
        };
        let end = self.end.min(self.start + self.piece);
        let bytes = self.buffer.get(self.start..end).unwrap_or_default();
        match rustix::io::write(sink, bytes) {
            Ok(len) => self.start += len,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => {
                // Closing the source lets the writer on its other side know.
                self.close();
                if error != Errno::PIPE {
                    self.failure = Some(error.into());
                }
            }
        }
    }
}

/// A file never makes the writer wait, so it gets all at once. What is lent to
/// us may be shared with others, so that it cannot be set to not waiting.
fn piece(sink: BorrowedFd<'_>) -> usize {
    let kind = rustix::fs::fstat(sink).map(|stat| FileType::from_raw_mode(stat.st_mode));
    let flags = rustix::fs::fcntl_getfl(sink).unwrap_or_else(|_| OFlags::empty());
    match kind {
        Ok(FileType::RegularFile | FileType::BlockDevice) => BUFFER,
        Ok(FileType::Fifo) if flags.contains(OFlags::NONBLOCK) => BUFFER,
        _ => ATOMIC,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, Timespec};
    use rustix::pipe::PipeFlags;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    fn pipe() -> (OwnedFd, OwnedFd) {
        rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap()
    }

    fn is_ready(channel: &Channel<'_>) -> bool {
        let Some((fd, events)) = channel.interest() else {
            return false;
        };
        let mut fds = [PollFd::from_borrowed_fd(fd, events)];
        rustix::event::poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
    }

    #[test]
    fn a_full_pipe_never_makes_it_wait() {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let (_read, write) = pipe();
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(&vec![b'x'; 1 << 20], 0).unwrap();
            let mut channel = Channel::new(End::Own(file.into()), End::Lent(write.as_fd()));
            for _ in 0..100 {
                if is_ready(&channel) {
                    channel.step();
                }
            }
            sender.send(channel.is_owing())
        });
        let limit = std::time::Duration::from_secs(60);
        assert_eq!(receiver.recv_timeout(limit), Ok(true));
    }

    #[test]
    fn a_reader_that_leaves_closes_the_source() {
        let (source, ours) = pipe();
        let (gone, sink) = pipe();
        drop(gone);
        let mut channel = Channel::new(End::Own(source), End::Own(sink));
        rustix::io::write(&ours, b"x").unwrap();
        channel.step();
        channel.step();
        assert!(channel.interest().is_none());
        assert!(channel.take_failure().is_none());
        assert_eq!(rustix::io::write(&ours, b"x"), Err(Errno::PIPE));
    }

    #[test]
    fn a_full_disk_is_told() {
        let (source, ours) = pipe();
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut channel = Channel::new(End::Own(source), End::Own(full.into()));
        rustix::io::write(&ours, b"x").unwrap();
        channel.step();
        channel.step();
        let failure = channel.take_failure().unwrap();
        assert_eq!(failure.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn what_is_there_is_owed_until_it_is_written() {
        let (source, ours) = pipe();
        let (_read, sink) = pipe();
        let mut channel = Channel::new(End::Own(source), End::Own(sink));
        rustix::io::write(&ours, b"abc").unwrap();
        assert!(!channel.is_owing());
        channel.owe_what_is_there();
        assert!(channel.is_owing());
        channel.step();
        assert!(channel.is_owing());
        channel.step();
        assert!(!channel.is_owing());
    }
}
