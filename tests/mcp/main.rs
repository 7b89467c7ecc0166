//! umwelt-mcp, driven by bytes on its stdin, before a stand-in control plane.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test program: what goes wrong here shall stop it"
)]

#[path = "../common/mod.rs"]
mod common;

mod calls;
mod driver;
mod end;
mod grants;
mod protocol;
mod sandbox;
