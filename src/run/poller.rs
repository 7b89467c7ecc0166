//! The one mio loop's bookkeeping: which descriptor an event belongs to, what
//! has more to read, and what is due when.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
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
    /// The socket of the gateway, with its number.
    Gateway(u64),
    /// What the checks of what can be reached print, with their number.
    Checks(u64),
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
    /// Pipes of ended commands are read on.
    Discard,
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
    /// The gateway is silent, or is to be started again.
    Gateway,
    /// Changes of the mounts were waited for long enough.
    Changes,
    /// No client came to a launched control plane.
    FirstClient,
    /// A client could not be accepted for a moment.
    Accept,
    /// A packet could not be sent to pid 1 for a moment.
    Channel,
    /// What the rules of the network have counted is read.
    Counts,
    /// The checks of what can be reached take too long.
    Checks,
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
    /// Sources of which is told when they can be written to.
    blocked: HashSet<Source>,
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
            blocked: HashSet::new(),
            unfinished: VecDeque::new(),
            timers: BTreeSet::new(),
            due: HashMap::new(),
        })
    }

    /// Watches `fd` (edge-triggered) for something to read until
    /// [`Poller::remove`].
    pub(crate) fn add(&mut self, source: Source, fd: BorrowedFd<'_>) -> io::Result<()> {
        let token = self.next_token;
        self.next_token += 1;
        self.poll.registry().register(
            &mut SourceFd(&fd.as_raw_fd()),
            Token(token),
            Interest::READABLE,
        )?;
        self.sources.insert(token, source);
        self.tokens.insert(source, token);
        Ok(())
    }

    /// Whether to tell when there is room again for what waits to be sent.
    /// Only then: all that the other side reads would be an event otherwise.
    pub(crate) fn watch_room(&mut self, source: Source, fd: BorrowedFd<'_>, is_blocked: bool) {
        let Some(token) = self.tokens.get(&source).copied() else {
            return;
        };
        let interest = match (is_blocked, self.blocked.contains(&source)) {
            (true, false) => Interest::READABLE | Interest::WRITABLE,
            (false, true) => Interest::READABLE,
            _ => return,
        };
        let fd = fd.as_raw_fd();
        let changed = self
            .poll
            .registry()
            .reregister(&mut SourceFd(&fd), Token(token), interest);
        match changed {
            Ok(()) if is_blocked => drop(self.blocked.insert(source)),
            Ok(()) => drop(self.blocked.remove(&source)),
            Err(error) => log::warn!("cannot watch {source:?} for room: {error}"),
        }
    }

    pub(crate) fn is_set(&self, timer: Timer) -> bool {
        self.due.contains_key(&timer)
    }

    /// To be called before `fd` is closed.
    pub(crate) fn remove(&mut self, source: Source, fd: BorrowedFd<'_>) {
        let Some(token) = self.tokens.remove(&source) else {
            return;
        };
        self.sources.remove(&token);
        self.blocked.remove(&source);
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
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

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

    #[test]
    fn room_is_told_only_to_who_waits_for_it() {
        let mut poller = Poller::new().unwrap();
        let mut events = Events::with_capacity(4);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        poller.add(Source::Connection(1), ours.as_fd()).unwrap();
        let mut read_by_peer = |poller: &mut Poller| {
            theirs.read_exact(&mut [0; 1000]).unwrap();
            poller.set(Timer::Restart, Duration::from_millis(50));
            poller.wait(&mut events).unwrap().0
        };
        rustix::io::write(&ours, &[0; 1000]).unwrap();
        assert_eq!(read_by_peer(&mut poller), []);
        while rustix::io::write(&ours, &[0; 1000]).is_ok() {}
        for _ in 0..2 {
            poller.watch_room(Source::Connection(1), ours.as_fd(), true);
        }
        while read_by_peer(&mut poller).is_empty() {}
        poller.watch_room(Source::Connection(1), ours.as_fd(), false);
        assert_eq!(read_by_peer(&mut poller), []);
    }
}
