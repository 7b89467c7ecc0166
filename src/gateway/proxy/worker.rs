//! One event loop: events, messages and time -> the connections they concern.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, TcpListener as StdListener};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use crate::gateway::dns::ResolveError;
use crate::gateway::inspected::inspection::Next;
use crate::gateway::proxy::balance::Meter;
use crate::gateway::proxy::connection::Connection;
use crate::gateway::proxy::context::{Context, Owner};
use crate::gateway::shared::{Mailbox, Shared};
use crate::gateway::upstream::dial::Caller;
use crate::gateway::upstream::pool;

const EVENTS: usize = 256;
/// Connections of one worker.
const MAX_CONNECTIONS: usize = 32 << 10;
/// Connections taken in one turn.
const ACCEPTS: usize = 64;
/// How often deadlines are looked at, while there are any.
const SWEEP: Duration = Duration::from_secs(1);
/// Why one is closed that was open before a change of the policy.
const NOT_ALLOWED: &str = "the policy does not allow it any more";
/// Bytes that all connections of all workers may hold.
const MAX_HELD: usize = 128 << 20;

/// What other threads tell a worker.
#[derive(Debug)]
pub(crate) enum Mail {
    Resolved {
        caller: Caller,
        answer: Result<Vec<IpAddr>, ResolveError>,
    },
    /// A client that was accepted elsewhere.
    Accepted {
        stream: TcpStream,
        is_socks: bool,
    },
    /// One of another worker, with all that it has.
    Moved(Box<Connection>),
    PolicyChanged,
    Stop,
}

/// When a listener has to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Now,
    OnEvent,
    /// After a failure, which has no event of its own.
    Later,
}

#[derive(Debug)]
pub(crate) struct Worker {
    poll: Poll,
    context: Context,
    mail: Receiver<Mail>,
    /// For HTTP and for SOCKS5; of the first worker.
    listeners: Option<(TcpListener, TcpListener)>,
    /// All workers, this one too.
    peers: Vec<Mailbox<Mail>>,
    meter: Meter,
    connections: Vec<Option<Box<Connection>>>,
    free: Vec<usize>,
    count: usize,
    serial: u64,
    /// Those with more to do at once.
    again: VecDeque<Caller>,
    http_due: Due,
    socks_due: Due,
    next_sweep: Instant,
    /// Of connections that could not be taken, since there were none.
    warned: bool,
    stopping: bool,
}

impl Worker {
    pub(crate) const MAIL: Token = Token(0);

    /// `poll` has a waker registered for `Worker::MAIL`.
    pub(crate) fn new(
        shared: Arc<Shared>,
        poll: Poll,
        mail: Receiver<Mail>,
        listeners: Option<(StdListener, StdListener)>,
        index: usize,
    ) -> io::Result<Worker> {
        let mut context = Context::new(shared, poll.registry().try_clone()?, index);
        let mail_slot = context.slots.take(Owner::Mail);
        debug_assert_eq!(Token(mail_slot), Worker::MAIL);
        let mut listen = |listener, owner| {
            let mut listener = TcpListener::from_std(listener);
            let slot = context.slots.take(owner);
            poll.registry()
                .register(&mut listener, Token(slot), Interest::READABLE)?;
            io::Result::Ok(listener)
        };
        let listeners = match listeners {
            Some((http, socks)) => Some((
                listen(http, Owner::HttpListener)?,
                listen(socks, Owner::SocksListener)?,
            )),
            None => None,
        };
        Ok(Worker {
            poll,
            meter: Meter::new(index, context.now),
            peers: Vec::new(),
            next_sweep: context.now + SWEEP,
            context,
            mail,
            listeners,
            connections: Vec::new(),
            free: Vec::new(),
            count: 0,
            serial: 0,
            again: VecDeque::new(),
            http_due: Due::Now,
            socks_due: Due::Now,
            warned: false,
            stopping: false,
        })
    }

    /// Serves until it is told to stop; `peers` are all workers, which meet at
    /// `end`.
    pub(crate) fn run(mut self, peers: Vec<Mailbox<Mail>>, end: &Barrier) -> io::Result<()> {
        self.peers = peers;
        let mut events = Events::with_capacity(EVENTS);
        while !self.stopping {
            let timeout = self.timeout();
            self.set_asleep(timeout != Some(Duration::ZERO));
            let polled = self.poll.poll(&mut events, timeout);
            self.set_asleep(false);
            match polled {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            self.context.now = Instant::now();
            self.take_mail();
            for event in &events {
                self.on_event(event);
            }
            self.go_on();
            self.accept();
            if self.context.now >= self.next_sweep {
                self.sweep();
            }
            self.context.end_turn();
            // Who was told to stop keeps what it has: the others may be gone.
            if !self.stopping {
                self.share();
            }
        }
        self.end_all();
        end.wait();
        // What was on its way here when this one was told; nobody gives any more.
        self.take_last_mail();
        self.end_all();
        Ok(())
    }

    fn set_asleep(&self, asleep: bool) {
        let loads = &self.context.shared.loads;
        loads.set_asleep(self.context.worker, asleep);
    }

    fn timeout(&self) -> Option<Duration> {
        let due = [self.http_due, self.socks_due];
        if !self.again.is_empty() || due.contains(&Due::Now) {
            return Some(Duration::ZERO);
        }
        let is_idle = self.count == 0 && self.context.pool.is_empty();
        (!is_idle || due.contains(&Due::Later))
            .then(|| self.next_sweep.saturating_duration_since(Instant::now()))
    }

    fn take_mail(&mut self) {
        loop {
            match self.mail.try_recv() {
                Ok(Mail::Resolved { caller, answer }) => {
                    self.with(caller.connection, |connection, context| {
                        match connection.caller() == caller {
                            true => connection.resolved(answer, context),
                            // It was for somebody who is gone.
                            false => Next::Wait,
                        }
                    });
                }
                Ok(Mail::Accepted { stream, is_socks }) => self.add(stream, is_socks),
                Ok(Mail::Moved(connection)) => self.take_moved(connection),
                Ok(Mail::PolicyChanged) => self.change_policy(),
                Ok(Mail::Stop) | Err(TryRecvError::Disconnected) => {
                    self.stopping = true;
                    return;
                }
                Err(TryRecvError::Empty) => return,
            }
        }
    }

    /// What is open and has no end of its own is closed, if the new policy
    /// does not allow it.
    fn change_policy(&mut self) {
        (self.context.rules, self.context.generation) = self.context.shared.rules();
        pool::clear(&mut self.context);
        for index in 0..self.connections.len() {
            let is_allowed = match self.connections.get(index) {
                Some(Some(connection)) => connection.is_still_allowed(&self.context),
                _ => true,
            };
            if !is_allowed {
                self.remove(index, Some(NOT_ALLOWED));
            }
        }
    }

    fn on_event(&mut self, event: &mio::event::Event) {
        let slot = event.token().0;
        match self.context.slots.owner(slot) {
            Owner::Nobody | Owner::Mail => {}
            Owner::HttpListener => self.http_due = Due::Now,
            Owner::SocksListener => self.socks_due = Due::Now,
            Owner::Idle => pool::on_event(&mut self.context, slot, event),
            Owner::Client(index) => self.with(index, |connection, context| {
                connection.note_client(event);
                connection.drive(context)
            }),
            Owner::Upstream(index) => self.with(index, |connection, context| {
                connection.note_upstream(event);
                connection.drive(context)
            }),
        }
    }

    /// Lets a connection do something, and sees to what follows.
    fn with(&mut self, index: usize, act: impl FnOnce(&mut Connection, &mut Context) -> Next) {
        let Some(Some(connection)) = self.connections.get_mut(index) else {
            return;
        };
        self.meter.note(index, &mut connection.seen);
        let before = connection.held();
        let full_reads = self.context.full_reads;
        let next = act(connection, &mut self.context);
        let after = connection.held();
        if self.context.full_reads != full_reads && connection.has_settled(self.context.now) {
            self.meter.note_laden(index);
        }
        match next {
            // The others have a right to room, too.
            _ if self.holds_too_much(before, after) => {
                self.remove(index, Some("the gateway is out of memory for buffers"));
            }
            Next::Wait | Next::Linger => {}
            Next::Again => self.queue(index),
            Next::Close => self.remove(index, None),
        }
    }

    /// Counts what a connection holds, and whether it took more than there is.
    fn holds_too_much(&self, before: usize, after: usize) -> bool {
        let held = &self.context.shared.held;
        match after.checked_sub(before) {
            None => {
                held.fetch_sub(before - after, Ordering::Relaxed);
                false
            }
            Some(0) => false,
            Some(more) => held.fetch_add(more, Ordering::Relaxed) + more > MAX_HELD,
        }
    }

    fn remove(&mut self, index: usize, why: Option<&str>) {
        if let Some(connection) = self.connections.get_mut(index).and_then(Option::take) {
            self.forget(index, connection.held());
            connection.end(why, &mut self.context);
        }
    }

    fn forget(&mut self, index: usize, held: usize) {
        self.context.shared.held.fetch_sub(held, Ordering::Relaxed);
        self.count -= 1;
        self.warned &= self.count > 0;
        self.free.push(index);
    }

    /// Once, however many events it has had: the others have their turn, too.
    fn queue(&mut self, index: usize) {
        if let Some(Some(connection)) = self.connections.get_mut(index)
            && !std::mem::replace(&mut connection.queued, true)
        {
            self.again.push_back(connection.caller());
        }
    }

    fn go_on(&mut self) {
        for _ in 0..self.again.len() {
            let Some(caller) = self.again.pop_front() else {
                return;
            };
            self.with(caller.connection, |connection, context| {
                match connection.caller() == caller {
                    true => {
                        connection.queued = false;
                        connection.drive(context)
                    }
                    // It has moved, and this is its successor.
                    false => Next::Wait,
                }
            });
        }
    }

    fn accept(&mut self) {
        if self.http_due == Due::Now {
            self.http_due = self.accept_from(false);
        }
        if self.socks_due == Due::Now {
            self.socks_due = self.accept_from(true);
        }
    }

    /// When to accept again.
    fn accept_from(&mut self, is_socks: bool) -> Due {
        let Some((http, socks)) = self.listeners.take() else {
            return Due::OnEvent;
        };
        let due = self.accept_some(if is_socks { &socks } else { &http }, is_socks);
        self.listeners = Some((http, socks));
        due
    }

    fn accept_some(&mut self, listener: &TcpListener, is_socks: bool) -> Due {
        for _ in 0..ACCEPTS {
            match listener.accept() {
                Ok((stream, _)) => self.place(stream, is_socks),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Due::OnEvent,
                Err(error) => {
                    self.warn(&error);
                    return Due::Later;
                }
            }
        }
        Due::Now
    }

    /// Serves a new client here, or has a worker do it that has more time.
    fn place(&mut self, stream: TcpStream, is_socks: bool) {
        let taker = self
            .meter
            .taker(&self.context.shared.loads, self.context.now);
        match taker.and_then(|taker| self.peers.get(taker)) {
            // One that waits for its worker has a descriptor, too.
            Some(peer) if self.context.has_room(&stream) => {
                peer.send(Mail::Accepted { stream, is_socks });
            }
            _ => self.add(stream, is_socks),
        }
    }

    fn add(&mut self, stream: TcpStream, is_socks: bool) {
        if self.count >= MAX_CONNECTIONS {
            // Dropped; there is no room to say more.
            return;
        }
        let index = self.free.pop().unwrap_or(self.connections.len());
        let socket = match self.context.adopt(stream, Owner::Client(index)) {
            Ok(socket) => socket,
            Err(error) => {
                self.warn(&error);
                self.free.push(index);
                return;
            }
        };
        let caller = self.next_caller(index);
        let connection = Connection::new(socket, is_socks, caller, self.context.now);
        self.insert(index, Box::new(connection));
        self.with(index, Connection::drive);
    }

    fn next_caller(&mut self, connection: usize) -> Caller {
        self.serial += 1;
        Caller {
            connection,
            serial: self.serial,
        }
    }

    fn insert(&mut self, index: usize, connection: Box<Connection>) {
        match self.connections.get_mut(index) {
            Some(entry) => *entry = Some(connection),
            None => self.connections.push(Some(connection)),
        }
        self.count += 1;
    }

    /// Looks at the load, and gives a connection away if there is too much.
    fn share(&mut self) {
        // The time that the turn has taken counts.
        let shared = &self.context.shared;
        let Some((index, helper)) = self.meter.end_window(&shared.loads, Instant::now()) else {
            return;
        };
        let Some(peer) = self.peers.get(helper).cloned() else {
            return;
        };
        let Some(entry) = self.connections.get_mut(index) else {
            return;
        };
        let Some(mut connection) = entry.take_if(|connection| connection.is_movable()) else {
            return;
        };
        self.forget(index, connection.held());
        match connection.leave(&mut self.context) {
            Ok(()) => peer.send(Mail::Moved(connection)),
            Err(error) => {
                log::warn!("a connection cannot be moved, so it ends: {error}");
                connection.end(
                    Some("the gateway could not go on with it"),
                    &mut self.context,
                );
            }
        }
    }

    fn take_moved(&mut self, mut connection: Box<Connection>) {
        // Whoever gave it away may know a newer policy already.
        if self.context.shared.rules().1 != self.context.generation {
            self.change_policy();
        }
        let index = self.free.pop().unwrap_or(self.connections.len());
        let caller = self.next_caller(index);
        let entered = connection.enter(caller, &mut self.context);
        let is_allowed = connection.is_still_allowed(&self.context);
        let held = connection.held();
        self.context.shared.held.fetch_add(held, Ordering::Relaxed);
        self.insert(index, connection);
        match entered {
            Err(error) => {
                log::warn!("a connection cannot be moved, so it ends: {error}");
                self.remove(index, Some("the gateway could not go on with it"));
            }
            // The policy may have changed on the way.
            Ok(()) if !is_allowed => self.remove(index, Some(NOT_ALLOWED)),
            Ok(()) => self.with(index, Connection::drive),
        }
    }

    /// Once in a while: whoever opens connections could fill the log.
    fn warn(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.warned, true) {
            log::warn!("cannot take connections: {error}");
        }
    }

    fn sweep(&mut self) {
        self.next_sweep = self.context.now + SWEEP;
        pool::expire(&mut self.context);
        for due in [&mut self.http_due, &mut self.socks_due] {
            if *due == Due::Later {
                *due = Due::Now;
            }
        }
        for index in 0..self.connections.len() {
            let is_due = matches!(
                self.connections.get(index),
                Some(Some(connection)) if connection.deadline() <= self.context.now
            );
            if is_due {
                self.with(index, Connection::expire);
            }
        }
    }

    fn take_last_mail(&mut self) {
        while let Ok(mail) = self.mail.try_recv() {
            if let Mail::Moved(connection) = mail {
                self.take_moved(connection);
            }
        }
    }

    fn end_all(&mut self) {
        for index in 0..self.connections.len() {
            self.remove(index, Some("the gateway has ended"));
        }
        self.context.end_turn();
    }
}
