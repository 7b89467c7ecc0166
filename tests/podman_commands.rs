//! Commands in a real sandbox: how they start, what of them is told, how they
//! end, what they are kept from. Where podman cannot run, nothing is tested.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

mod podman_common;

use podman_common::{Options, Sandbox};

#[test]
fn exit_code_is_told() {
    let Some(sandbox) = Sandbox::start(Options::default()) else {
        return;
    };
    let result = sandbox.client().shell("exit 3");
    assert_eq!(result["code"], 3, "{result}");
    sandbox.end_and_check();
}
