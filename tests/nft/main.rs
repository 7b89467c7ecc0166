//! umwelt-nft-hook with the real nft and a real kernel: two network namespaces
//! with a cable between them, one as a sandbox has it and one for what is
//! outside.
//!
//! Needs root, for threads that enter the namespaces, and nftables. Without,
//! the tests say so and pass, except where `CI` or `UMWELT_REQUIRE_NFT` is set.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test program: what goes wrong here shall stop it"
)]

mod attack;
#[allow(dead_code, reason = "the gateway is given its files, and no more")]
#[path = "../gateway/authority.rs"]
mod authority;
mod closed;
mod network;
mod rules;
mod tamper;
mod world;
