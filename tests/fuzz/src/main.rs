//! Inputs that are made up as coverage grows -> the parsers of umwelt, and what
//! must hold of what they make of them. One program for all targets, so that it
//! is built once; `UMWELT_FUZZ_TARGET` says which one is meant.
//!
//! umwelt is a program without a library: its modules are compiled into this.
#![no_main]
#![allow(dead_code, unused_imports)]

#[path = "../../../src/api/mod.rs"]
mod api;
#[path = "../../../src/applet.rs"]
mod applet;
#[path = "../../../src/attach/mod.rs"]
mod attach;
#[path = "../../../src/cli/mod.rs"]
mod cli;
#[path = "../../../src/config/mod.rs"]
mod config;
#[path = "../../../src/ctl/mod.rs"]
mod ctl;
#[path = "../../../src/digest.rs"]
mod digest;
#[path = "../../../src/dirs.rs"]
mod dirs;
#[path = "../../../src/egress/mod.rs"]
mod egress;
#[path = "../../../src/error.rs"]
mod error;
#[path = "../../../src/gateway/mod.rs"]
mod gateway;
#[path = "../../../src/gitdir/mod.rs"]
mod gitdir;
#[path = "../../../src/init/mod.rs"]
mod init;
#[path = "../../../src/install/mod.rs"]
mod install;
#[path = "../../../src/mcp/mod.rs"]
mod mcp;
#[path = "../../../src/nft/mod.rs"]
mod nft;
#[path = "../../../src/places.rs"]
mod places;
#[path = "../../../src/podman/mod.rs"]
mod podman;
#[path = "../../../src/policy/mod.rs"]
mod policy;
#[path = "../../../src/registries/mod.rs"]
mod registries;
#[path = "../../../src/run/mod.rs"]
mod run;
#[path = "../../../src/subprocess.rs"]
mod subprocess;
#[path = "../../../src/sys/mod.rs"]
mod sys;
mod targets;
#[path = "../../../src/text.rs"]
mod text;
#[path = "../../../src/trust/mod.rs"]
mod trust;
#[path = "../../../src/workspace.rs"]
mod workspace;

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

use crate::targets::Target;

fuzz_target!(|input: &[u8]| {
    static TARGET: OnceLock<Target> = OnceLock::new();
    TARGET.get_or_init(targets::chosen)(input);
});
