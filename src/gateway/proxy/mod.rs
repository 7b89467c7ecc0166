//! The workers: the first accepts clients, and each serves its own with one
//! event loop. A busy one gives some to another.

pub(crate) mod balance;
mod connection;
pub(crate) mod context;
mod opening;
mod relay;
pub(crate) mod socket;
pub(crate) mod socks5;
mod worker;

pub(crate) use worker::{Mail, Worker};
