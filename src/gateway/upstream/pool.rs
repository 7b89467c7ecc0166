//! Connections that wait for the next request to the same server.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::gateway::http::authority::Authority;
use crate::gateway::proxy::context::Context;
use crate::gateway::proxy::socket::Received;
use crate::gateway::upstream::link::Link;

const MAX_A_HOST: usize = 64;
const MAX_ALL: usize = 256;
const IDLE_LIMIT: Duration = Duration::from_secs(60);
/// How often a server may say something on an idle connection, and how many
/// bytes in all: a few session tickets.
const MAX_MESSAGES: u8 = 4;
const MAX_SAID: usize = 16 << 10;

/// Connections are shared by requests only where their rules allow the same
/// addresses.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) target: Arc<Authority>,
    pub(crate) private: bool,
    /// Of the policy: a new one may lead the name to another address.
    pub(crate) generation: u64,
}

#[derive(Debug)]
struct Idle {
    /// It is large, and goes in and out with every request.
    link: Box<Link>,
    since: Instant,
    messages: u8,
}

#[derive(Debug, Default)]
pub(crate) struct Pool {
    idle: HashMap<Key, Vec<Idle>>,
    count: usize,
}

impl Pool {
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The connection used last: it is the least likely to be closed soon.
    pub(crate) fn take(&mut self, key: &Key) -> Option<Box<Link>> {
        let link = self.idle.get_mut(key)?.pop()?.link;
        self.count -= 1;
        Some(link)
    }

    /// Keeps a link, or returns one for which there is no room.
    pub(crate) fn put(
        &mut self,
        key: &Key,
        mut link: Box<Link>,
        now: Instant,
    ) -> Option<Box<Link>> {
        link.reused = true;
        self.keep(
            key,
            Idle {
                link,
                since: now,
                messages: 0,
            },
        )
    }

    fn keep(&mut self, key: &Key, idle: Idle) -> Option<Box<Link>> {
        if self.count >= MAX_ALL {
            return Some(idle.link);
        }
        match self.idle.get_mut(key) {
            Some(links) if links.len() >= MAX_A_HOST => return Some(idle.link),
            Some(links) => links.push(idle),
            None => {
                self.idle.insert(key.clone(), vec![idle]);
            }
        }
        self.count += 1;
        None
    }

    fn take_slot(&mut self, slot: usize) -> Option<(Key, Idle)> {
        let (key, links) = self
            .idle
            .iter_mut()
            .find(|(_, links)| links.iter().any(|idle| idle.link.socket.slot() == slot))?;
        let position = links
            .iter()
            .position(|idle| idle.link.socket.slot() == slot)?;
        let idle = links.remove(position);
        self.count -= 1;
        Some((key.clone(), idle))
    }

    /// Takes out what has waited since before `since`.
    fn take_older(&mut self, since: Option<Instant>) -> Vec<Idle> {
        let mut gone = Vec::new();
        for links in self.idle.values_mut() {
            let old = links.extract_if(.., |idle| since.is_none_or(|since| idle.since < since));
            gone.extend(old);
        }
        self.idle.retain(|_, links| !links.is_empty());
        self.count -= gone.len();
        gone
    }
}

/// Lets connections go that have waited for long.
pub(crate) fn expire(context: &mut Context) {
    let since = context.now.checked_sub(IDLE_LIMIT);
    if since.is_some() {
        for idle in context.pool.take_older(since) {
            context.close(idle.link.socket);
        }
    }
}

/// Lets all go: the policy may lead names to other addresses now.
pub(crate) fn clear(context: &mut Context) {
    for idle in context.pool.take_older(None) {
        context.close(idle.link.socket);
    }
}

/// Something has happened on an idle connection: it was closed, or the server
/// says something. Only TLS's own messages are no reason to let it go.
pub(crate) fn on_event(context: &mut Context, slot: usize, event: &mio::event::Event) {
    let Some((key, mut idle)) = context.pool.take_slot(slot) else {
        return;
    };
    idle.link.socket.note(event);
    idle.messages += 1;
    let is_kept = idle.messages <= MAX_MESSAGES && is_good(&mut idle.link, context);
    let link = match is_kept {
        true => context.pool.keep(&key, idle),
        false => Some(idle.link),
    };
    if let Some(link) = link {
        context.close(link.socket);
    }
}

fn is_good(link: &mut Link, context: &mut Context) -> bool {
    let mut is_silent = true;
    let mut said = 0;
    loop {
        match link.read(context, |_| is_silent = false) {
            Ok(Received::Nothing) => break,
            Ok(Received::Data(length)) if is_silent && said + length <= MAX_SAID => said += length,
            _ => return false,
        }
    }
    link.flush();
    is_silent && !link.deaf && !link.tls.is_closed()
}
