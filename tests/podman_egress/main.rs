//! Sandboxes with a network, under a real podman: what they reach, what they
//! do not, and what becomes of it when a part dies. Where podman cannot run,
//! nothing is tested.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

#[path = "../podman_common/mod.rs"]
mod podman_common;
#[path = "../podman_lifecycle/wrapper.rs"]
#[allow(dead_code)]
mod wrapper;

mod alone;
mod clients;
mod direct;
mod kernel;
mod life;
mod outside;
mod reach;
mod verify;
mod world;
