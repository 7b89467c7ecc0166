//! Drives the real umwelt-init over a socket pair, as an ordinary process: it
//! makes itself a subreaper, so orphans reach it as they would reach pid 1.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

mod peer;
mod pid1;
mod process;
mod spawn;
mod standby;
mod start;
mod terminal;
