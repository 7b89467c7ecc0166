//! The life of a sandbox: starts, ends, deaths of every process that takes
//! part, leftovers, refusals, and that verification finds what is not sealed.
//! Where podman cannot run, nothing is tested. `UMWELT_TEST_SEED` repeats the
//! random moments of an earlier run.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

#[path = "../podman_common/mod.rs"]
mod podman_common;

mod idle;
mod kill;
mod launch;
mod leftovers;
mod patience;
mod plan;
mod refusals;
mod run;
mod socket;
mod stop;
mod traces;
mod verify;
mod watchdog;
mod wrapper;
