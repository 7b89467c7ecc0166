//! umwelt-install, with a home and a podman that are made up.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test program: what goes wrong here shall stop it"
)]

mod client;
mod completions;
mod doctor;
mod hosts;
mod image;
mod manual;
mod remove;
mod setup;
mod stage;
mod unit;
