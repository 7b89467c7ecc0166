//! What all threads of the gateway have in common.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::Sender;
use std::sync::{Arc, PoisonError, RwLock};

use mio::Waker;
use rustls::ClientConfig;

use crate::gateway::audit::{Audit, Record};
use crate::gateway::dns;
use crate::gateway::proxy::balance::Loads;
use crate::gateway::tls::leaf::Leaves;
use crate::policy::decide::Rules;

#[derive(Debug)]
pub(crate) struct Shared {
    /// With a number that grows with each new policy.
    rules: RwLock<(Arc<Rules>, u64)>,
    pub(crate) leaves: Leaves,
    pub(crate) upstream: Arc<ClientConfig>,
    pub(crate) audit: Audit,
    /// Session id, for the audit.
    pub(crate) workspace: String,
    pub(crate) dns: Mailbox<dns::Ask>,
    /// None of the resolvers answers.
    pub(crate) is_resolver_silent: AtomicBool,
    pub(crate) loads: Loads,
    /// Bytes in the buffers of all connections.
    pub(crate) held: AtomicUsize,
}

impl Shared {
    pub(crate) fn new(
        rules: Rules,
        leaves: Leaves,
        upstream: ClientConfig,
        audit: Audit,
        dns: Mailbox<dns::Ask>,
        workspace: Option<String>,
        loads: Loads,
    ) -> Shared {
        Shared {
            workspace: workspace.unwrap_or_else(|| rules.policy().workspace.clone()),
            rules: RwLock::new((Arc::new(rules), 0)),
            leaves,
            upstream: Arc::new(upstream),
            audit,
            dns,
            is_resolver_silent: AtomicBool::new(false),
            loads,
            held: AtomicUsize::new(0),
        }
    }

    /// The policy, and which one it is.
    pub(crate) fn rules(&self) -> (Arc<Rules>, u64) {
        // What a panicking thread has left there is a whole policy.
        self.rules
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn replace_rules(&self, rules: Rules) {
        let mut present = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        *present = (Arc::new(rules), present.1 + 1);
    }

    /// A record of the gateway itself, written at once.
    pub(crate) fn note(&self, kind: &str, event: &str, why: Option<&str>) {
        self.audit.record(&Record {
            workspace: &self.workspace,
            kind,
            event: Some(event),
            why,
            ..Record::default()
        });
    }
}

/// A way to another thread, which is woken for each message.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    sender: Sender<T>,
    waker: Arc<Waker>,
}

impl<T> Mailbox<T> {
    pub(crate) fn new(sender: Sender<T>, waker: Arc<Waker>) -> Mailbox<T> {
        Mailbox { sender, waker }
    }

    /// A thread that has ended needs no messages.
    pub(crate) fn send(&self, message: T) {
        if self.sender.send(message).is_ok()
            && let Err(error) = self.waker.wake()
        {
            log::error!("cannot wake a thread: {error}");
        }
    }
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Mailbox<T> {
        Mailbox {
            sender: self.sender.clone(),
            waker: self.waker.clone(),
        }
    }
}
