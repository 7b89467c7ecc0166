//! The thread of the resolver: questions from the sandbox over UDP and TCP, and
//! from workers that dial.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream, UdpSocket};
use mio::{Events, Interest, Poll, Token, Waker};
use rustls::crypto::CryptoProvider;

use crate::gateway::audit::Record;
use crate::gateway::dns::lookup::{framed, unframed};
use crate::gateway::dns::message::{A, AAAA, Query};
use crate::gateway::dns::resolver::{Answer, FIRST_TOKEN, Resolver, Waiter};
use crate::gateway::dns::server::{self, Folding, Verdict};
use crate::gateway::dns::{Ask, Outcome, ResolveError};
use crate::gateway::proxy::Mail;
use crate::gateway::shared::{Mailbox, Shared};

const MAIL: Token = Token(0);
const UDP: Token = Token(1);
const LISTENER: Token = Token(2);
const FIRST_CLIENT: usize = 3;

/// Packets taken in one turn.
const BATCH: usize = 64;
pub(crate) const MAX_CLIENTS: usize = 64;
/// Answers that are waited for.
const MAX_WAITING: usize = 4096;
const CLIENT_LIMIT: Duration = Duration::from_secs(10);
/// What a client over TCP may have sent, or not yet read.
const MAX_BUFFERED: usize = 128 << 10;

/// The sockets of the server.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) udp: std::net::UdpSocket,
    pub(crate) tcp: std::net::TcpListener,
}

#[derive(Debug)]
enum Waiting {
    Dial { ask: Ask, known: Vec<Outcome> },
    Client { query: Query, way: Way },
}

/// How an answer gets back to the sandbox.
#[derive(Debug, Clone, Copy)]
enum Way {
    Udp(SocketAddr),
    /// To the connection with this token.
    Tcp(usize),
}

#[derive(Debug)]
struct Client {
    stream: TcpStream,
    incoming: Vec<u8>,
    out: Vec<u8>,
    deadline: Instant,
    ended: bool,
    /// It sends nothing more, but may wait for answers (RFC 7766, 6.2.4).
    is_read: bool,
    /// Questions that wait for the resolver.
    asked: usize,
}

#[derive(Debug)]
pub(crate) struct Service {
    poll: Poll,
    asks: Receiver<Ask>,
    udp: UdpSocket,
    listener: TcpListener,
    clients: HashMap<usize, Client>,
    next_client: usize,
    resolver: Resolver,
    waiting: HashMap<Waiter, Waiting>,
    next_waiter: Waiter,
    folding: Folding,
    udp_due: bool,
    now: Instant,
}

impl Service {
    /// Also returns what wakes the service for an `Ask`.
    pub(crate) fn new(
        bound: Bound,
        asks: Receiver<Ask>,
        resolvers: Vec<SocketAddr>,
        provider: Arc<CryptoProvider>,
    ) -> io::Result<(Service, Arc<Waker>)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), MAIL)?);
        let mut udp = UdpSocket::from_std(bound.udp);
        let mut listener = TcpListener::from_std(bound.tcp);
        let registry = poll.registry();
        registry.register(&mut udp, UDP, Interest::READABLE)?;
        registry.register(&mut listener, LISTENER, Interest::READABLE)?;
        let resolver = Resolver::new(resolvers, provider, registry.try_clone()?);
        let service = Service {
            poll,
            asks,
            udp,
            listener,
            clients: HashMap::new(),
            next_client: FIRST_CLIENT,
            resolver,
            waiting: HashMap::new(),
            next_waiter: 0,
            folding: Folding::default(),
            udp_due: true,
            now: Instant::now(),
        };
        Ok((service, waker))
    }

    /// Serves for as long as the process lives.
    pub(crate) fn run(mut self, shared: &Shared, workers: &[Mailbox<Mail>]) -> io::Result<()> {
        let mut events = Events::with_capacity(BATCH);
        loop {
            match self.poll.poll(&mut events, self.timeout()) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            self.now = Instant::now();
            for event in &events {
                match event.token() {
                    MAIL => {}
                    UDP => self.udp_due = true,
                    LISTENER => self.accept(),
                    Token(token) if token >= FIRST_TOKEN => {
                        let answer = self.resolver.on_event(token, self.now);
                        self.deliver(answer, workers);
                    }
                    Token(token) => self.on_client(token, shared),
                }
            }
            self.take_asks(workers);
            self.take_packets(shared);
            for answer in self.resolver.expire(self.now) {
                self.deliver(Some(answer), workers);
            }
            shared
                .is_resolver_silent
                .store(self.resolver.is_silent(), Ordering::Relaxed);
            let now = self.now;
            self.clients
                .retain(|_, client| client.deadline > now && !client.is_done());
        }
    }

    fn timeout(&self) -> Option<Duration> {
        if self.udp_due {
            return Some(Duration::ZERO);
        }
        let clients = self.clients.values().map(|client| client.deadline).min();
        let next = self.resolver.deadline().into_iter().chain(clients).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn take_asks(&mut self, workers: &[Mailbox<Mail>]) {
        while let Ok(ask) = self.asks.try_recv() {
            if !self.resolver.has_resolvers() || self.waiting.len() >= MAX_WAITING {
                let error = match self.resolver.has_resolvers() {
                    true => ResolveError::Failed(ask.name.clone()),
                    false => ResolveError::NoResolver(ask.name.clone()),
                };
                tell(&ask, Err(error), workers);
                continue;
            }
            let name = ask.name.clone();
            let waiter = self.wait(Waiting::Dial {
                ask,
                known: Vec::new(),
            });
            for kind in [A, AAAA] {
                if let Some(outcome) = self.resolver.ask(&name, kind, waiter, self.now) {
                    let waiters = vec![waiter];
                    let answer = Answer { waiters, outcome };
                    self.deliver(Some(answer), workers);
                }
            }
        }
    }

    fn wait(&mut self, waiting: Waiting) -> Waiter {
        let waiter = self.next_waiter;
        self.next_waiter += 1;
        self.waiting.insert(waiter, waiting);
        waiter
    }

    fn take_packets(&mut self, shared: &Shared) {
        let mut buffer = [0; 4096];
        for _ in 0..BATCH {
            match self.udp.recv_from(&mut buffer) {
                Ok((length, from)) => {
                    let message = buffer.get(..length).unwrap_or_default();
                    let answer = self.take_question(message, shared, Way::Udp(from));
                    if let Some(answer) = answer {
                        self.send_packet(&answer, from);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // Other errors are those of packets sent before.
                    self.udp_due = error.kind() != io::ErrorKind::WouldBlock;
                    return;
                }
            }
        }
        self.udp_due = true;
    }

    fn send_packet(&self, answer: &[u8], to: SocketAddr) {
        // A client that gets no answer asks again.
        if let Err(error) = self.udp.send_to(answer, to) {
            log::debug!("cannot answer {to}: {error}");
        }
    }

    /// The answer, if it is there at once.
    fn take_question(&mut self, message: &[u8], shared: &Shared, way: Way) -> Option<Vec<u8>> {
        let over_udp = matches!(way, Way::Udp(_));
        let (rules, _) = shared.rules();
        match server::judge(message, &rules, over_udp) {
            Verdict::Ignore => None,
            Verdict::Answer(answer, denied) => {
                if let Some(name) = denied {
                    self.record(&name, false, shared);
                }
                Some(answer)
            }
            Verdict::Resolve(query, name) => {
                self.record(&name, true, shared);
                if !shared.audit.is_ready() || self.waiting.len() >= MAX_WAITING {
                    return Some(server::answer(&query, &Outcome::Failed, over_udp));
                }
                let kind = query.kind;
                let waiter = self.wait(Waiting::Client {
                    query: query.clone(),
                    way,
                });
                let Some(outcome) = self.resolver.ask(&name, kind, waiter, self.now) else {
                    if let Way::Tcp(token) = way
                        && let Some(client) = self.clients.get_mut(&token)
                    {
                        client.asked += 1;
                    }
                    return None;
                };
                self.waiting.remove(&waiter);
                Some(server::answer(&query, &outcome, over_udp))
            }
        }
    }

    fn record(&mut self, name: &str, allowed: bool, shared: &Shared) {
        if self.folding.is_new(name, allowed, self.now) {
            shared.audit.record(&Record {
                workspace: &shared.workspace,
                kind: "dns",
                host: Some(name),
                verdict: Some(if allowed { "allow" } else { "deny" }),
                why: (!allowed).then_some("no rule names this host"),
                ..Record::default()
            });
        }
    }

    fn deliver(&mut self, answer: Option<Answer>, workers: &[Mailbox<Mail>]) {
        let Some(Answer { waiters, outcome }) = answer else {
            return;
        };
        for waiter in waiters {
            match self.waiting.remove(&waiter) {
                Some(Waiting::Dial { ask, mut known }) => {
                    known.push(outcome.clone());
                    match known.len() {
                        2.. => tell(&ask, sum_up(&ask.name, &known), workers),
                        _ => drop(self.waiting.insert(waiter, Waiting::Dial { ask, known })),
                    }
                }
                Some(Waiting::Client {
                    query,
                    way: Way::Udp(from),
                }) => {
                    self.send_packet(&server::answer(&query, &outcome, true), from);
                }
                Some(Waiting::Client {
                    query,
                    way: Way::Tcp(token),
                }) => {
                    let answer = server::answer(&query, &outcome, false);
                    if let Some(client) = self.clients.get_mut(&token) {
                        client.asked = client.asked.saturating_sub(1);
                        client.out.extend_from_slice(&framed(&answer));
                        client.flush();
                    }
                }
                None => {}
            }
        }
    }

    fn accept(&mut self) {
        while let Ok((mut stream, _)) = self.listener.accept() {
            let token = self.next_client;
            let interest = Interest::READABLE | Interest::WRITABLE;
            let registered = self
                .poll
                .registry()
                .register(&mut stream, Token(token), interest);
            if self.clients.len() >= MAX_CLIENTS || registered.is_err() {
                continue;
            }
            self.next_client += 1;
            self.clients.insert(
                token,
                Client {
                    stream,
                    incoming: Vec::new(),
                    out: Vec::new(),
                    deadline: self.now + CLIENT_LIMIT,
                    ended: false,
                    is_read: false,
                    asked: 0,
                },
            );
        }
    }

    fn on_client(&mut self, token: usize, shared: &Shared) {
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        client.flush();
        client.read();
        let mut incoming = std::mem::take(&mut client.incoming);
        let (mut answers, mut taken) = (Vec::new(), 0);
        while let Some(message) = incoming.get(taken..).and_then(unframed) {
            taken += message.len() + 2;
            answers.extend(self.take_question(message, shared, Way::Tcp(token)));
        }
        incoming.drain(..taken);
        if let Some(client) = self.clients.get_mut(&token) {
            for answer in answers {
                client.out.extend_from_slice(&framed(&answer));
                client.deadline = self.now + CLIENT_LIMIT;
            }
            client.incoming = incoming;
            client.flush();
        }
    }
}

impl Client {
    fn is_done(&self) -> bool {
        self.ended || (self.is_read && self.asked == 0 && self.out.is_empty())
    }

    fn flush(&mut self) {
        while !self.out.is_empty() {
            match self.stream.write(&self.out) {
                Ok(length) => drop(self.out.drain(..length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.ended = true;
                    break;
                }
            }
        }
        self.ended |= self.out.len() > MAX_BUFFERED;
    }

    fn read(&mut self) {
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.is_read = true,
                Ok(length) => {
                    self.incoming
                        .extend_from_slice(buffer.get(..length).unwrap_or_default());
                    if self.incoming.len() <= MAX_BUFFERED {
                        continue;
                    }
                    self.ended = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => self.ended = true,
            }
            return;
        }
    }
}

fn tell(ask: &Ask, answer: Result<Vec<IpAddr>, ResolveError>, workers: &[Mailbox<Mail>]) {
    if let Some(worker) = workers.get(ask.worker) {
        worker.send(Mail::Resolved {
            caller: ask.caller,
            answer,
        });
    }
}

/// Both families together: all addresses count.
fn sum_up(name: &str, known: &[Outcome]) -> Result<Vec<IpAddr>, ResolveError> {
    let addresses: Vec<IpAddr> = known
        .iter()
        .flat_map(|outcome| match outcome {
            Outcome::Addresses { addresses, .. } => addresses.clone(),
            _ => Vec::new(),
        })
        .collect();
    if !addresses.is_empty() {
        return Ok(addresses);
    }
    Err(match known.contains(&Outcome::Failed) {
        true => ResolveError::Failed(name.to_owned()),
        false => ResolveError::NotFound(name.to_owned()),
    })
}
