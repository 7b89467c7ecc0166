//! Commands in a real sandbox: how they start, what of them is told, how they
//! end, what they are kept from. Where podman cannot run, nothing is tested.
//!
//! What only looks shares one sandbox; what reaches a limit or looks for
//! leftovers has one of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

#[path = "../podman_common/mod.rs"]
mod podman_common;

mod background;
mod changes;
mod clients;
mod descriptors;
mod ends;
mod environment;
mod journal;
mod limits;
mod mounts;
mod output;
mod probe;
mod seal;
mod workspaces;
mod worktrees;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use podman_common::{Client, Options, Sandbox};
use serde_json::Value;

/// In the environment of the control plane, and nowhere else.
const CANARY: &str = "canary-5c1f";

/// The sandbox of all tests that change nothing which others could notice.
/// It is a launched one: it ends when this process does.
fn shared() -> Option<&'static Sandbox> {
    static SHARED: OnceLock<Option<Sandbox>> = OnceLock::new();
    let start = || {
        Sandbox::start(Options {
            env: environment::hostile_variables(),
            files: vec![("config/git/config", environment::GIT_CONFIG.to_owned())],
            launched: true,
            ..Options::default()
        })
    };
    SHARED.get_or_init(start).as_ref()
}

/// A client of the shared sandbox.
fn client() -> Option<Client> {
    shared().map(Sandbox::client)
}

/// An argument of sleep(1) that no other process on this host has.
fn marker() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("86400.{}{count:03}", std::process::id())
}

/// A line of shell that starts `sleep MARKER` in the background, and goes on when it is that: a
/// child has the words of the shell before.
fn background_sleep(marker: &str) -> String {
    format!("sleep {marker} & until pgrep -fx 'sleep {marker}' >/dev/null; do :; done")
}

fn assert_next_command_works(client: &mut Client) {
    assert_eq!(client.output("echo next"), "next\n");
}

fn text(value: &Value) -> &str {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value} is no text"))
}

/// The notices of a result, one a line.
fn notices(result: &Value) -> String {
    let notices = result["notices"].as_array().expect("notices");
    notices.iter().map(text).collect::<Vec<_>>().join("\n")
}

fn assert_exited(result: &Value, code: i32) {
    assert_eq!(result["ended"], "exited", "{result}");
    assert_eq!(result["code"], code, "{result}");
}
