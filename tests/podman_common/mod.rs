//! For tests on a host with real rootless podman: is this one, sandboxes that
//! end with their guard, a client of the socket API, and a look from outside.

// Each test binary uses its own part of this.
#![allow(dead_code)]

pub(crate) mod client;
pub(crate) mod host;
pub(crate) mod sandbox;

pub(crate) use client::Client;
pub(crate) use sandbox::{Options, Sandbox};

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// Longer than anything takes that works, on a slow machine too.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The program under test, by the name of one of its applets.
pub(crate) fn applet(name: &str) -> Command {
    let binary = std::env::var_os("UMWELT_BINARY")
        .unwrap_or_else(|| OsString::from(env!("CARGO_BIN_EXE_umwelt")));
    let mut command = Command::new(binary);
    command.arg0(name);
    command
}

/// Looks again and again until `probe` gives something, or panics in the end.
/// The last look comes after the limit: the machine may have stood still.
pub(crate) fn wait_for<T>(what: &str, limit: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        let is_last = Instant::now() >= end;
        if let Some(found) = probe() {
            return found;
        }
        assert!(!is_last, "waited {limit:?} for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
