//! Names -> addresses, for whoever asks: each question is asked once at a time,
//! and the answer is kept for as long as it is good.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use mio::{Registry, Token};
use rustls::crypto::CryptoProvider;

use crate::gateway::dns::Outcome;
use crate::gateway::dns::cache::Cache;
use crate::gateway::dns::lookup::{Lookup, Step, Way};

/// Questions on their way at once.
pub(crate) const MAX_LOOKUPS: usize = 256;

/// The lookups' own range of tokens.
pub(crate) const FIRST_TOKEN: usize = 1 << 32;

/// Who waits for an answer.
pub(crate) type Waiter = u64;

/// An answer for those who wait for it.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) waiters: Vec<Waiter>,
    pub(crate) outcome: Outcome,
}

#[derive(Debug)]
struct Pending {
    name: String,
    kind: u16,
    lookup: Lookup,
    waiters: Vec<Waiter>,
}

#[derive(Debug)]
pub(crate) struct Resolver {
    resolvers: Vec<SocketAddr>,
    provider: Arc<CryptoProvider>,
    registry: Registry,
    cache: Cache,
    pending: HashMap<usize, Pending>,
    next_token: usize,
    /// No resolver has answered the newest question that is over.
    is_silent: bool,
}

impl Resolver {
    pub(crate) fn new(
        resolvers: Vec<SocketAddr>,
        provider: Arc<CryptoProvider>,
        registry: Registry,
    ) -> Resolver {
        Resolver {
            resolvers,
            provider,
            registry,
            cache: Cache::default(),
            pending: HashMap::new(),
            next_token: FIRST_TOKEN,
            is_silent: false,
        }
    }

    pub(crate) fn has_resolvers(&self) -> bool {
        !self.resolvers.is_empty()
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// The answer, if it is there at once. Otherwise `on_event` or `expire`
    /// bring it.
    pub(crate) fn ask(
        &mut self,
        name: &str,
        kind: u16,
        waiter: Waiter,
        now: Instant,
    ) -> Option<Outcome> {
        if let Some(outcome) = self.cache.find(name, kind, now) {
            return Some(outcome);
        }
        let same = self
            .pending
            .values_mut()
            .find(|pending| pending.kind == kind && pending.name == name);
        if let Some(pending) = same {
            pending.waiters.push(waiter);
            return None;
        }
        if self.pending.len() >= MAX_LOOKUPS {
            return Some(Outcome::Failed);
        }
        let token = self.next_token;
        self.next_token += 1;
        let Some(random) = self.random() else {
            return Some(Outcome::Failed);
        };
        let (lookup, step) = Lookup::start(name, kind, self.way(token, random, now));
        match step {
            // Nothing could be sent at all.
            Step::Done(outcome) => {
                self.is_silent = true;
                Some(outcome)
            }
            Step::Wait => {
                let pending = Pending {
                    name: name.to_owned(),
                    kind,
                    lookup,
                    waiters: vec![waiter],
                };
                self.pending.insert(token, pending);
                None
            }
        }
    }

    fn random(&self) -> Option<u16> {
        let mut bytes = [0; 2];
        self.provider.secure_random.fill(&mut bytes).ok()?;
        Some(u16::from_be_bytes(bytes))
    }

    fn way(&self, token: usize, random: u16, now: Instant) -> Way<'_> {
        Way {
            resolvers: &self.resolvers,
            registry: &self.registry,
            token: Token(token),
            now,
            random,
        }
    }

    pub(crate) fn on_event(&mut self, token: usize, now: Instant) -> Option<Answer> {
        self.step(token, now, Lookup::on_event)
    }

    /// Goes on with lookups whose time is up.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<Answer> {
        let due: Vec<usize> = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.lookup.deadline <= now)
            .map(|(token, _)| *token)
            .collect();
        due.into_iter()
            .filter_map(|token| self.step(token, now, Lookup::expire))
            .collect()
    }

    fn step(
        &mut self,
        token: usize,
        now: Instant,
        act: impl FnOnce(&mut Lookup, Way<'_>) -> Step,
    ) -> Option<Answer> {
        let mut pending = self.pending.remove(&token)?;
        let step = match self.random() {
            Some(random) => act(&mut pending.lookup, self.way(token, random, now)),
            None => Step::Done(Outcome::Failed),
        };
        match step {
            Step::Wait => {
                self.pending.insert(token, pending);
                None
            }
            Step::Done(outcome) => {
                self.is_silent = !pending.lookup.is_heard;
                self.cache.keep(&pending.name, pending.kind, &outcome, now);
                Some(Answer {
                    waiters: pending.waiters,
                    outcome,
                })
            }
        }
    }

    /// When the next lookup is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.pending
            .values()
            .map(|pending| pending.lookup.deadline)
            .min()
    }
}
