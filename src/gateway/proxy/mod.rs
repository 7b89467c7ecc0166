//! The workers: each accepts clients on the same ports, and serves its own to
//! the end with one event loop.

mod connection;
pub(crate) mod context;
mod opening;
mod relay;
pub(crate) mod socket;
pub(crate) mod socks5;
mod worker;

pub(crate) use worker::{Mail, Place, Worker};
