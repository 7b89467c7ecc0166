//! The page of `umwelt-ctl audit --html`, as Chromium shows it.
//!
//! Without Chromium the tests say so and pass, except where `CI` or
//! `UMWELT_REQUIRE_CHROMIUM` is set.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test program: what goes wrong here shall stop it"
)]

mod browser;
#[path = "../common/mod.rs"]
mod common;
mod looks;
mod page;
