//! The workers: each accepts clients on the same ports, and serves its own to
//! the end with one event loop.

mod connection;
pub(crate) mod context;
mod exchange;
pub(crate) mod inspect;
mod judge;
mod opening;
mod relay;
mod response;
pub(crate) mod socket;
mod worker;

pub(crate) use worker::{Mail, Worker};
