//! The output of commands: from the pipe into the capture, and on to a client
//! that wants to see it as it comes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::pipe::PipeFlags;

use crate::api::Event;
use crate::run::control_plane::ControlPlane;
use crate::run::job::{Captured, Job, Stream};
use crate::run::poller::{Source, Timer};
use crate::text;

/// Bytes read from one command before others get their turn.
const TURN: usize = 1 << 20;
const READ_SIZE: usize = 256 << 10;
/// Pipes are made larger while few commands run. The kernel limits what all
/// pipes of a user may take (pipe(7), pipe-user-pages-soft).
const LARGE_PIPE: usize = 256 << 10;
const LARGE_PIPE_JOBS: usize = 16;
/// Between two output events of one command.
const FLUSH_EVERY: Duration = Duration::from_millis(100);
/// Most bytes in one output event.
const MAX_EVENT: usize = 16 << 10;

impl ControlPlane {
    pub(crate) fn on_output(&mut self, id: u64) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return self.discards.on_ready(id, &mut self.poller);
        };
        let Some(Captured {
            capture,
            pipe: Some(pipe),
            stream,
        }) = job.captured()
        else {
            return;
        };
        let (count, open) = read_some(pipe, &mut self.buffer, TURN, |bytes| {
            capture.push(bytes);
            if let Some(stream) = stream {
                stream.take(bytes);
            }
        });
        let flush = stream
            .as_mut()
            .is_some_and(|stream| count > 0 && !std::mem::replace(&mut stream.flush_set, true));
        if flush {
            self.poller.set(Timer::Flush(id), FLUSH_EVERY);
        }
        match open {
            Open::MoreToRead => self.poller.again(Source::Output(id)),
            Open::Drained => {}
            Open::Ended => self.output_ended(id),
        }
    }

    fn output_ended(&mut self, id: u64) {
        let Some(mut job) = self.jobs.remove(&id) else {
            return;
        };
        self.close_output(&mut job);
        let is_done = job.status.is_some() && job.ending.is_none();
        self.jobs.insert(id, job);
        if is_done {
            self.finish_job(id);
        }
    }

    pub(crate) fn close_output(&mut self, job: &mut Job) {
        if let Some(pipe) = job.captured().and_then(|captured| captured.pipe.take()) {
            self.poller.remove(Source::Output(job.id), pipe.as_fd());
        }
    }

    /// Sends what has come since the last event, or counts it where the
    /// client does not keep up.
    pub(crate) fn flush_stream(&mut self, id: u64) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let (connection, request) = (job.connection, job.request);
        let Some(Captured {
            stream: Some(stream),
            ..
        }) = job.captured()
        else {
            return;
        };
        stream.flush_set = false;
        let Some(client) = self.connections.get_mut(&connection) else {
            return;
        };
        if client.is_slow() {
            stream.skipped += stream.pending.len() as u64;
            stream.pending.clear();
            return;
        }
        let pending = std::mem::take(&mut stream.pending);
        if !pending.is_empty() {
            let event = Event::Output {
                text: text::show(&pending).text,
                skipped: std::mem::take(&mut stream.skipped),
            };
            client.event(request, event, Vec::new());
            self.flush_connection(connection);
        }
    }
}

impl Stream {
    fn take(&mut self, bytes: &[u8]) {
        let room = MAX_EVENT
            .saturating_sub(self.pending.len())
            .min(bytes.len());
        let (kept, skipped) = bytes.split_at(room);
        self.pending.extend_from_slice(kept);
        self.skipped += skipped.len() as u64;
    }
}

/// What is left of a pipe after a turn of reading.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Open {
    Drained,
    MoreToRead,
    Ended,
}

/// Reads one turn of at most `turn` bytes from a non-blocking pipe.
pub(crate) fn read_some(
    pipe: &OwnedFd,
    buffer: &mut Vec<u8>,
    turn: usize,
    mut take: impl FnMut(&[u8]),
) -> (usize, Open) {
    buffer.resize(READ_SIZE, 0);
    let mut total = 0;
    while total < turn {
        let size = READ_SIZE.min(turn - total);
        match rustix::io::read(pipe, buffer.get_mut(..size).unwrap_or_default()) {
            Ok(0) => return (total, Open::Ended),
            Ok(count) => {
                total += count;
                take(buffer.get(..count).unwrap_or_default());
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => return (total, Open::Drained),
            Err(error) => {
                log::warn!("cannot read the output of a command: {error}");
                return (total, Open::Ended);
            }
        }
    }
    (total, Open::MoreToRead)
}

/// A pipe whose read end does not block; stdout and stderr share the write
/// end, so what is read is in the order in which it was written.
pub(crate) fn output_pipe(jobs: usize) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&read, true)?;
    if jobs < LARGE_PIPE_JOBS {
        // A smaller pipe works too, so a refusal does not matter.
        let _ = rustix::pipe::fcntl_setpipe_size(&read, LARGE_PIPE);
    }
    Ok((read, write))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_gives_others_their_turn() {
        // Never drained and never at its end.
        let flood = std::fs::File::open("/dev/zero").unwrap().into();
        for turn in [1, READ_SIZE + 1, TURN] {
            let mut taken = 0;
            let read = read_some(&flood, &mut Vec::new(), turn, |bytes| taken += bytes.len());
            assert_eq!(read, (turn, Open::MoreToRead));
            assert_eq!(taken, turn);
        }
    }

    #[test]
    fn stream_counts_what_it_leaves_out() {
        let mut stream = Stream::default();
        stream.take(&vec![b'x'; MAX_EVENT - 1]);
        stream.take(b"abc");
        assert_eq!((stream.pending.len(), stream.skipped), (MAX_EVENT, 2));
    }
}
