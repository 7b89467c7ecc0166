//! Drives the real umwelt-ctl against a stand-in control plane and podman.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test program: what goes wrong here shall stop it"
)]

mod audit;
#[path = "../common/control_plane.rs"]
mod control_plane;
mod egress;
mod exec;
mod grant;
mod home;
mod log;
mod shell;
mod status;
mod stop;
mod terminal;
mod trust;
mod wt;
