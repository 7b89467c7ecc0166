//! One client from accept to end: which stage it is in, how long that may
//! last, and how it goes on.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use mio::event::Event;

use crate::gateway::dns::ResolveError;
use crate::gateway::http::head::{MAX_HEAD, Scan};
use crate::gateway::inspected::inspection::{CLOSE_LIMIT, HEAD_LIMIT, Inspection, Next};
use crate::gateway::proxy::context::{Context, Owner, READ};
use crate::gateway::proxy::opening::{self, Hello, Turn};
use crate::gateway::proxy::relay::Relay;
use crate::gateway::proxy::socket::{Received, Socket};
use crate::gateway::upstream::dial::Caller;

/// How long one that carries much stays where it was moved to.
const STAY: Duration = Duration::from_millis(250);
/// Bytes of a client that are read before its verdict.
const MAX_OPENING: usize = MAX_HEAD + READ;

#[derive(Debug)]
enum Stage {
    Connect(Scan),
    Hello(Hello),
    SocksGreeting,
    SocksRequest,
    Inspect(Box<Inspection>),
    Relay(Box<Relay>),
    /// The last words are said; the client may read them before the end.
    Linger,
}

#[derive(Debug)]
pub(crate) struct Connection {
    caller: Caller,
    client: Socket,
    stage: Stage,
    /// What was read before the verdict.
    opening: Vec<u8>,
    limit: (Duration, bool),
    deadline: Instant,
    held: usize,
    /// When it came from another worker.
    arrived: Option<Instant>,
    /// For the meter of the worker.
    pub(crate) seen: u64,
    /// It is among those of its worker that have more to do.
    pub(crate) queued: bool,
}

impl Connection {
    pub(crate) fn new(client: Socket, is_socks: bool, caller: Caller, now: Instant) -> Connection {
        Connection {
            caller,
            client,
            stage: match is_socks {
                true => Stage::SocksGreeting,
                false => Stage::Connect(Scan::default()),
            },
            opening: Vec::new(),
            limit: (HEAD_LIMIT, false),
            deadline: now + HEAD_LIMIT,
            held: 0,
            arrived: None,
            seen: 0,
            queued: false,
        }
    }

    pub(crate) fn caller(&self) -> Caller {
        self.caller
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// How much memory it held when it last did something.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    pub(crate) fn note_client(&mut self, event: &Event) {
        self.client.note(event);
    }

    pub(crate) fn note_upstream(&mut self, event: &Event) {
        match &mut self.stage {
            Stage::Inspect(inspection) => inspection.note_upstream(event),
            Stage::Relay(relay) => relay.note_upstream(event),
            _ => {}
        }
    }

    /// Does what can be done now.
    pub(crate) fn drive(&mut self, context: &mut Context) -> Next {
        let next = match &mut self.stage {
            Stage::Inspect(inspection) => inspection.drive(&mut self.client, context),
            Stage::Relay(relay) => relay.drive(&mut self.client, context),
            Stage::Linger => {
                let next = linger(&mut self.client, context);
                return self.settle(next, context);
            }
            _ => self.open(context),
        };
        self.go_on(next, context)
    }

    fn go_on(&mut self, next: Next, context: &mut Context) -> Next {
        let next = match next {
            Next::Linger => {
                let stage = std::mem::replace(&mut self.stage, Stage::Linger);
                end_stage(stage, None, context);
                self.opening.clear();
                linger(&mut self.client, context)
            }
            next => next,
        };
        self.settle(next, context)
    }

    /// Keeps only what must be kept, and sets the deadline.
    fn settle(&mut self, next: Next, context: &mut Context) -> Next {
        self.held = context.settle(&mut self.client.out) + context.settle(&mut self.opening);
        let limit = match &mut self.stage {
            Stage::Inspect(inspection) => {
                self.held += inspection.settle(context);
                inspection.limit()
            }
            Stage::Relay(relay) => {
                self.held += relay.settle(context);
                relay.limit()
            }
            Stage::Linger => (CLOSE_LIMIT, false),
            _ => (HEAD_LIMIT, false),
        };
        if limit != self.limit || limit.1 {
            self.limit = limit;
            self.deadline = context.now + limit.0;
        }
        next
    }

    /// The stages before the verdict.
    fn open(&mut self, context: &mut Context) -> Next {
        loop {
            if self.client.flush().is_err() {
                return Next::Close;
            }
            match self.turn(context) {
                Turn::Stay => {}
                Turn::Hello(hello) => {
                    self.stage = Stage::Hello(hello);
                    continue;
                }
                Turn::SocksRequest => {
                    self.stage = Stage::SocksRequest;
                    continue;
                }
                Turn::Inspect(inspection, next) => {
                    self.stage = Stage::Inspect(inspection);
                    return next;
                }
                Turn::Relay(mut relay) => {
                    let next = relay.drive(&mut self.client, context);
                    self.stage = Stage::Relay(relay);
                    return next;
                }
                Turn::Over(next) => return next,
            }
            match self.read(context) {
                Ok(true) => {}
                Ok(false) => return Next::Wait,
                Err(next) => return next,
            }
        }
    }

    fn turn(&mut self, context: &mut Context) -> Turn {
        let (bytes, client) = (&mut self.opening, &mut self.client);
        if bytes.is_empty() {
            return Turn::Stay;
        }
        match &mut self.stage {
            Stage::Connect(scan) => opening::connect(scan, bytes, client, context),
            Stage::Hello(hello) => opening::hello(hello, bytes, self.caller, client, context),
            Stage::SocksGreeting => opening::socks_greeting(bytes, client),
            Stage::SocksRequest => opening::socks_request(bytes, self.caller, client, context),
            _ => Turn::Over(Next::Close),
        }
    }

    fn read(&mut self, context: &mut Context) -> Result<bool, Next> {
        if self.opening.len() > MAX_OPENING {
            return Err(Next::Close);
        }
        let room = context.input.get_mut(..READ).unwrap_or_default();
        match self.client.read(room).map_err(|_| Next::Close)? {
            Received::Nothing => Ok(false),
            Received::Data(length) => {
                self.opening
                    .extend_from_slice(room.get(..length).unwrap_or_default());
                Ok(true)
            }
            Received::End => Err(Next::Close),
        }
    }

    pub(crate) fn resolved(
        &mut self,
        answer: Result<Vec<IpAddr>, ResolveError>,
        context: &mut Context,
    ) -> Next {
        let next = match &mut self.stage {
            Stage::Inspect(inspection) => inspection.resolved(answer, &mut self.client, context),
            Stage::Relay(relay) => relay.resolved(answer, &mut self.client, context),
            _ => Next::Wait,
        };
        self.go_on(next, context)
    }

    /// Time is up.
    pub(crate) fn expire(&mut self, context: &mut Context) -> Next {
        self.deadline = context.now + CLOSE_LIMIT;
        let next = match &mut self.stage {
            Stage::Inspect(inspection) => inspection.expire(&mut self.client, context),
            Stage::Relay(relay) => relay.expire(&mut self.client, context),
            _ => Next::Close,
        };
        self.limit = (Duration::ZERO, false);
        self.go_on(next, context)
    }

    /// Both ends, if another worker could go on with it.
    fn movable(&mut self) -> Option<(&mut Socket, Option<&mut Socket>)> {
        let server = match &mut self.stage {
            Stage::Inspect(inspection) => inspection.movable()?,
            Stage::Relay(relay) => relay.movable()?,
            _ => return None,
        };
        Some((&mut self.client, server))
    }

    pub(crate) fn is_movable(&mut self) -> bool {
        self.movable().is_some()
    }

    /// Whether it has been here for long enough to move on: two workers shall
    /// not hand it to and fro.
    pub(crate) fn has_settled(&self, now: Instant) -> bool {
        self.arrived
            .is_none_or(|arrived| now.saturating_duration_since(arrived) >= STAY)
    }

    /// Takes it out of its worker's event loop.
    pub(crate) fn leave(&mut self, context: &mut Context) -> std::io::Result<()> {
        let Some((client, server)) = self.movable() else {
            return Ok(());
        };
        let left = context.leave(client);
        let server = server.map_or(Ok(()), |server| context.leave(server));
        left.and(server)
    }

    /// Puts it into the event loop of another worker, where it has another
    /// number.
    pub(crate) fn enter(&mut self, caller: Caller, context: &mut Context) -> std::io::Result<()> {
        self.caller = caller;
        self.arrived = Some(context.now);
        self.seen = 0;
        self.queued = false;
        if let Stage::Inspect(inspection) = &mut self.stage {
            inspection.set_caller(caller);
        }
        let Some((client, server)) = self.movable() else {
            return Ok(());
        };
        let entered = context.enter(client, Owner::Client(caller.connection));
        let owner = Owner::Upstream(caller.connection);
        let server = server.map_or(Ok(()), |server| context.enter(server, owner));
        entered.and(server)
    }

    pub(crate) fn is_still_allowed(&self, context: &Context) -> bool {
        match &self.stage {
            Stage::Inspect(inspection) => inspection.is_still_allowed(context),
            Stage::Relay(relay) => relay.is_still_allowed(context),
            _ => true,
        }
    }

    /// Lets everything go. `why` is for the record of what is not complete.
    pub(crate) fn end(self, why: Option<&str>, context: &mut Context) {
        end_stage(self.stage, why, context);
        context.close(self.client);
    }
}

fn end_stage(stage: Stage, why: Option<&str>, context: &mut Context) {
    match stage {
        Stage::Inspect(inspection) => {
            inspection.end(why.unwrap_or("the connection was closed"), context);
        }
        Stage::Relay(relay) => relay.end(why, context),
        _ => {}
    }
}

/// Sends the last words and reads on without looking: an end with unread bytes
/// would be a reset, and the client would never see the answer.
fn linger(client: &mut Socket, context: &mut Context) -> Next {
    if client.flush().is_err() {
        return Next::Close;
    }
    if client.is_flushed() {
        client.end_sending();
    }
    let room = context.input.get_mut(..READ).unwrap_or_default();
    for _ in 0..16 {
        match client.read(room) {
            Ok(Received::Data(_)) => {}
            Ok(Received::Nothing) => return Next::Wait,
            Ok(Received::End) if client.is_flushed() => return Next::Close,
            Ok(Received::End) => return Next::Wait,
            Err(_) => return Next::Close,
        }
    }
    Next::Again
}
