//! The one mio loop's bookkeeping: which descriptor an event belongs to, what
//! has more to read, and what is due when.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

/// What a descriptor belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    Listener,
    Signals,
    /// Descriptor 3 of pid 1, our end; with the number of the container.
    Channel(u64),
    Connection(u64),
    /// The output of a command.
    Output(u64),
    Task(u64),
}

/// What is due at some time. Whoever it is for may be gone by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A command has run for as long as it may.
    Timeout(u64),
    /// Look whether a command that is being ended is gone, or must be killed.
    Settle(u64),
    /// A command's pipe stays open though it has ended.
    Drain(u64),
    /// A command that found no room for its process is tried again.
    Respawn(u64),
    /// New output may be told to the client.
    Flush(u64),
    /// A client has not said hello.
    Hello(u64),
    /// podman takes too long.
    Task(u64),
    /// pid 1 has not said hello, by number of the container.
    Handshake(u64),
    /// Time to create the container again.
    Restart,
    /// No client came to a launched control plane.
    FirstClient,
    /// The regular look at what events should have told.
    Backstop,
    /// Time to leave, whether or not the last answers were read.
    Leave,
}

#[derive(Debug)]
pub(crate) struct Poller {
    poll: Poll,
    sources: HashMap<usize, Source>,
    tokens: HashMap<Source, usize>,
    next_token: usize,
    /// Edge-triggered sources that were not read to the end.
    unfinished: VecDeque<Source>,
    timers: BTreeSet<(Instant, Timer)>,
    /// When each timer is due.
    due: HashMap<Timer, Instant>,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Poller> {
        Ok(Poller {
            poll: Poll::new()?,
            sources: HashMap::new(),
            tokens: HashMap::new(),
            next_token: 0,
            unfinished: VecDeque::new(),
            timers: BTreeSet::new(),
            due: HashMap::new(),
        })
    }

    /// Watches `fd` (edge-triggered) until [`Poller::remove`].
    pub(crate) fn add(
        &mut self,
        source: Source,
        fd: BorrowedFd<'_>,
        interest: Interest,
    ) -> io::Result<()> {
        let token = self.next_token;
        self.next_token += 1;
        self.poll
            .registry()
            .register(&mut SourceFd(&fd.as_raw_fd()), Token(token), interest)?;
        self.sources.insert(token, source);
        self.tokens.insert(source, token);
        Ok(())
    }

    /// To be called before `fd` is closed.
    pub(crate) fn remove(&mut self, source: Source, fd: BorrowedFd<'_>) {
        let Some(token) = self.tokens.remove(&source) else {
            return;
        };
        self.sources.remove(&token);
        if let Err(error) = self
            .poll
            .registry()
            .deregister(&mut SourceFd(&fd.as_raw_fd()))
        {
            log::warn!("cannot stop watching {source:?}: {error}");
        }
    }

    /// Has `source` come up again at once, after all others had their turn.
    pub(crate) fn again(&mut self, source: Source) {
        if !self.unfinished.contains(&source) {
            self.unfinished.push_back(source);
        }
    }

    /// Sets a timer, or sets it anew.
    pub(crate) fn set(&mut self, timer: Timer, after: Duration) {
        self.unset(timer);
        let at = Instant::now() + after;
        self.timers.insert((at, timer));
        self.due.insert(timer, at);
    }

    /// A timer that nobody waits for any more would wake an idle process.
    pub(crate) fn unset(&mut self, timer: Timer) {
        if let Some(at) = self.due.remove(&timer) {
            self.timers.remove(&(at, timer));
        }
    }

    /// Waits for something to do. Returns what is ready and what is due.
    pub(crate) fn wait(&mut self, events: &mut Events) -> io::Result<(Vec<Source>, Vec<Timer>)> {
        let timeout = if self.unfinished.is_empty() {
            self.timers
                .first()
                .map(|(at, _)| at.saturating_duration_since(Instant::now()))
        } else {
            Some(Duration::ZERO)
        };
        match self.poll.poll(events, timeout) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        let mut ready: Vec<Source> = Vec::new();
        let from_events = events
            .iter()
            .filter_map(|event| self.sources.get(&event.token().0).copied());
        for source in from_events.chain(self.unfinished.drain(..)) {
            if !ready.contains(&source) {
                ready.push(source);
            }
        }
        Ok((ready, self.take_due()))
    }

    fn take_due(&mut self) -> Vec<Timer> {
        let now = Instant::now();
        let mut due = Vec::new();
        while let Some((at, timer)) = self.timers.first().copied() {
            if at > now {
                break;
            }
            self.unset(timer);
            due.push(timer);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_come_in_order_once_and_not_when_unset() {
        let mut poller = Poller::new().unwrap();
        poller.set(Timer::Timeout(1), Duration::from_millis(20));
        poller.set(Timer::Timeout(2), Duration::ZERO);
        poller.set(Timer::Drain(3), Duration::ZERO);
        poller.unset(Timer::Drain(3));
        poller.set(Timer::Timeout(1), Duration::from_millis(5));
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(poller.take_due(), [Timer::Timeout(2), Timer::Timeout(1)]);
        assert!(poller.take_due().is_empty() && poller.due.is_empty());
    }
}
