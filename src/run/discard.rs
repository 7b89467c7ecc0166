//! Pipes that ended commands left open. They are read, so that who still writes
//! neither blocks nor gets SIGPIPE; but slowly, and not any number of them:
//! time and descriptors of the host are under none of the sandbox's limits.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use crate::run::control_plane::ControlPlane;
use crate::run::output::{Open, read_some};
use crate::run::poller::{Poller, Source, Timer};

/// Most pipes; the oldest is closed for one more.
const MAX_PIPES: usize = 256;
const READ_EVERY: Duration = Duration::from_millis(100);
/// Most bytes read each time from one pipe, and from all together.
const TURN: usize = 1 << 20;
const TURN_OF_ALL: usize = 4 << 20;

#[derive(Debug, Default)]
pub(crate) struct Discards {
    /// Oldest first.
    pipes: VecDeque<Discarded>,
    is_timer_set: bool,
}

#[derive(Debug)]
struct Discarded {
    /// Of the command.
    id: u64,
    pipe: OwnedFd,
    /// Empty when it was last read: the poller tells when there is more. Any
    /// other is read by the timer, and not watched meanwhile: each write to it
    /// would be an event.
    is_watched: bool,
}

impl ControlPlane {
    pub(crate) fn discard_due(&mut self) {
        self.discards.on_timer(&mut self.poller, &mut self.buffer);
    }
}

impl Discards {
    /// Takes over a pipe that the poller watches.
    pub(crate) fn add(&mut self, id: u64, pipe: OwnedFd, poller: &mut Poller) {
        poller.remove(Source::Output(id), pipe.as_fd());
        if self.pipes.len() >= MAX_PIPES
            && let Some(oldest) = self.pipes.pop_front()
        {
            poller.remove(Source::Output(oldest.id), oldest.pipe.as_fd());
        }
        self.pipes.push_back(Discarded {
            id,
            pipe,
            is_watched: false,
        });
        self.set_timer(poller);
    }

    pub(crate) fn on_ready(&mut self, id: u64, poller: &mut Poller) {
        let found = self.pipes.iter_mut().find(|discarded| discarded.id == id);
        if let Some(discarded) = found.filter(|discarded| discarded.is_watched) {
            poller.remove(Source::Output(id), discarded.pipe.as_fd());
            discarded.is_watched = false;
            self.set_timer(poller);
        }
    }

    fn on_timer(&mut self, poller: &mut Poller, buffer: &mut Vec<u8>) {
        self.is_timer_set = false;
        let is_unread = |discarded: &&Discarded| !discarded.is_watched;
        let unread = self.pipes.iter().filter(is_unread).count();
        let turn = TURN.min(TURN_OF_ALL / unread.max(1));
        self.pipes
            .retain_mut(|discarded| discarded.is_watched || discarded.read(turn, poller, buffer));
        if self.pipes.iter().any(|discarded| !discarded.is_watched) {
            self.set_timer(poller);
        }
    }

    /// One that is set already stays: set anew each time, it would never come.
    fn set_timer(&mut self, poller: &mut Poller) {
        if !std::mem::replace(&mut self.is_timer_set, true) {
            poller.set(Timer::Discard, READ_EVERY);
        }
    }
}

impl Discarded {
    /// Reads one turn; false at the end.
    fn read(&mut self, turn: usize, poller: &mut Poller, buffer: &mut Vec<u8>) -> bool {
        match read_some(&self.pipe, buffer, turn, |_| {}).1 {
            Open::MoreToRead => true,
            Open::Ended => false,
            Open::Drained => {
                match poller.add(Source::Output(self.id), self.pipe.as_fd()) {
                    Ok(()) => self.is_watched = true,
                    Err(error) => log::warn!("cannot watch the pipe of a command: {error}"),
                }
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::output::output_pipe;
    use mio::Events;
    use std::time::Instant;

    const PATIENCE: Duration = Duration::from_secs(60);

    struct Loop {
        poller: Poller,
        discards: Discards,
        buffer: Vec<u8>,
        turns: usize,
    }

    impl Loop {
        fn new() -> Loop {
            Loop {
                poller: Poller::new().unwrap(),
                discards: Discards::default(),
                buffer: Vec::new(),
                turns: 0,
            }
        }

        /// A discarded pipe; its other end.
        fn add(&mut self, id: u64) -> OwnedFd {
            let (read, write) = output_pipe(0).unwrap();
            self.poller.add(Source::Output(id), read.as_fd()).unwrap();
            self.discards.add(id, read, &mut self.poller);
            rustix::io::ioctl_fionbio(&write, true).unwrap();
            write
        }

        fn run(&mut self, time: Duration) {
            let end = Instant::now() + time;
            self.poller.set(Timer::Leave, time);
            while Instant::now() < end {
                self.turn();
            }
        }

        fn run_until(&mut self, is_so: impl Fn(&Discards) -> bool) {
            let end = Instant::now() + PATIENCE;
            self.poller.set(Timer::Leave, PATIENCE);
            while !is_so(&self.discards) {
                assert!(Instant::now() < end);
                self.turn();
            }
        }

        fn turn(&mut self) {
            let mut events = Events::with_capacity(16);
            let (ready, due) = self.poller.wait(&mut events).unwrap();
            self.turns += 1;
            for source in ready {
                if let Source::Output(id) = source {
                    self.discards.on_ready(id, &mut self.poller);
                }
            }
            if due.contains(&Timer::Discard) {
                self.discards.on_timer(&mut self.poller, &mut self.buffer);
            }
        }
    }

    #[test]
    fn a_flood_is_read_slowly_and_costs_few_turns() {
        let mut test = Loop::new();
        let begin = Instant::now();
        let write = test.add(1);
        let by_itself = rustix::pipe::fcntl_getpipe_size(&write).unwrap();
        let writer = std::thread::spawn(move || {
            let mut total = 0;
            // For a second, and more where nobody has come to read by then.
            while begin.elapsed() < Duration::from_secs(1)
                || (total <= by_itself && begin.elapsed() < PATIENCE)
            {
                match rustix::io::write(&write, &[b'y'; 4096]) {
                    Ok(count) => total += count,
                    Err(_) => std::thread::yield_now(),
                }
            }
            total
        });
        // Its end is that of the pipe.
        test.run_until(|discards| discards.pipes.is_empty());
        let total = writer.join().unwrap();
        assert!(total > by_itself, "{total} bytes: nobody read");
        let times = begin.elapsed().as_millis() / READ_EVERY.as_millis();
        let times = usize::try_from(times).unwrap();
        assert!(total <= (times + 2) * TURN, "{total} bytes");
        assert!(test.turns <= 3 * times + 10, "{} turns", test.turns);
    }

    #[test]
    fn an_idle_pipe_costs_nothing_and_is_read_again() {
        let mut test = Loop::new();
        let write = test.add(1);
        test.run_until(|discards| discards.pipes[0].is_watched);
        let before = test.turns;
        test.run(READ_EVERY * 3);
        assert!(test.turns <= before + 1, "the timer goes on");
        while rustix::io::write(&write, &[0; 4096]).is_ok() {}
        test.run_until(|_| rustix::io::write(&write, &[0; 4096]).is_ok());
        drop(write);
        test.run_until(|discards| discards.pipes.is_empty());
    }

    #[test]
    fn the_oldest_pipe_is_closed_when_there_are_too_many() {
        let mut test = Loop::new();
        let ends: Vec<OwnedFd> = (0..300).map(|id| test.add(id)).collect();
        assert_eq!(test.discards.pipes.len(), MAX_PIPES);
        let is_open = |end: &OwnedFd| rustix::io::write(end, b"x").is_ok();
        let closed = ends.len() - MAX_PIPES;
        assert!(!ends.iter().take(closed).any(is_open));
        assert!(ends.iter().skip(closed).all(is_open));
    }
}
