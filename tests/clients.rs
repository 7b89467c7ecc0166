//! The scripts in clients/, which drive umwelt-mcp with the official SDKs,
//! before the stand-in control plane.
//!
//! They run where `UMWELT_CLIENTS` names a directory with the SDKs, made by:
//! `python3 -m venv DIR/venv && DIR/venv/bin/pip install mcp` and
//! `cp tests/clients/package.json DIR && npm install --prefix DIR --no-package-lock`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test program: what goes wrong here shall stop it"
)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::home::Home;
use common::stand_in::{ControlPlane, host_shell};

fn sdks() -> Option<PathBuf> {
    let dir = std::env::var_os("UMWELT_CLIENTS").map(PathBuf::from);
    if dir.is_none() {
        println!("skipped: UMWELT_CLIENTS does not name a directory with the SDKs");
    }
    dir
}

/// Runs `program SCRIPT umwelt-mcp`, with all that the host has in its PATH.
fn run(program: &Path, script: &Path) {
    let home = Home::new();
    let _plane = ControlPlane::start(&home, host_shell);
    let server = home.path("bin/umwelt-mcp");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_umwelt"), &server).unwrap();
    let model = home.command("client");
    let mut command = Command::new(program);
    command
        .arg(script)
        .arg(server)
        .current_dir(home.workspace());
    for (name, value) in model.get_envs().filter(|(name, _)| *name != "PATH") {
        command.env(name, value.unwrap());
    }
    let output = command.output().unwrap();
    let transcript = String::from_utf8_lossy(&output.stdout);
    println!("{transcript}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success());
    assert!(transcript.ends_with("all well\n"));
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/clients")
        .join(name)
}

#[test]
fn python_sdk_is_served() {
    if let Some(dir) = sdks() {
        run(&dir.join("venv/bin/python"), &script("mcp_client.py"));
    }
}

#[test]
fn typescript_sdk_is_served() {
    if let Some(dir) = sdks() {
        // Modules are looked for beside the script.
        let copy = dir.join("mcp_client.mjs");
        std::fs::copy(script("mcp_client.mjs"), &copy).unwrap();
        run(Path::new("node"), &copy);
    }
}
