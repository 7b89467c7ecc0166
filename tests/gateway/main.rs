//! Drives the real umwelt-gateway: a test authority, servers on the loopback
//! interface, and clients that come through it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    clippy::cast_possible_truncation
)]

mod authority;
mod client;
mod disagreement;
mod framing;
mod fuzz;
mod gateway;
mod inspected;
mod live;
mod moves;
mod names;
mod node;
mod prober;
mod quiet;
mod relays;
mod server;
mod sharing;
mod streams;
