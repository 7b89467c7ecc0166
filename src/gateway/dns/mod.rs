//! Names: a server that answers what the policy names and nothing else, and
//! the resolver that it shares with dialling. One thread.

mod cache;
mod lookup;
pub(crate) mod message;
mod resolver;
mod server;
mod service;

use std::fmt;
use std::net::IpAddr;

use crate::gateway::upstream::dial::Caller;

pub(crate) use resolver::MAX_LOOKUPS;
pub(crate) use service::{Bound, MAX_CLIENTS, Service};

/// A worker needs the addresses of a name.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) name: String,
    pub(crate) worker: usize,
    pub(crate) caller: Caller,
}

/// What is known of a name in one of the two families.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// None where the name exists and has no such address.
    Addresses {
        addresses: Vec<IpAddr>,
        ttl: u32,
    },
    NoSuchName,
    Failed,
}

/// Why a name has no address to dial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResolveError {
    NotFound(String),
    Failed(String),
    NoResolver(String),
}

impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResolveError::NotFound(name) => write!(f, "the name {name:?} has no address"),
            ResolveError::Failed(name) => {
                write!(f, "no resolver could tell the address of {name:?}")
            }
            ResolveError::NoResolver(name) => {
                write!(f, "the gateway was given no resolver to ask for {name:?}")
            }
        }
    }
}
