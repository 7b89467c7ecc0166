//! Inside of a throwaway sandbox: tries what must be refused there, and tells
//! on standard output what came of it, in one line of JSON.

mod reach;
mod seal;

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use super::finding::Finding;
use crate::cli;
use crate::error::Error;

/// What is to be tried, and what the sandbox was asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Task {
    Attack(Target),
    /// From another network: prints whether it was reached.
    Connect(SocketAddr),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Target {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Bytes.
    pub(super) memory: u64,
    pub(super) pids: u64,
    /// Of the control plane.
    pub(super) socket: PathBuf,
    /// What is there on the host, and must not be seen.
    pub(super) hidden: Vec<PathBuf>,
    /// Whether it has a network by policy.
    pub(super) network: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) findings: Vec<Finding>,
    /// Of a sandbox with a network.
    pub(super) gateway: Option<Ipv4Addr>,
}

pub(super) fn run(task: &str) -> Result<ExitCode, Error> {
    let task = serde_json::from_str(task)
        .map_err(|error| Error::usage(format!("--from-inside: {error}")))?;
    let target = match task {
        Task::Attack(target) => target,
        Task::Connect(address) => return Ok(cli::print(&reach::connect(address))),
    };
    let gateway = reach::gateway().filter(|_| target.network);
    let mut findings = Vec::new();
    if target.network {
        findings.extend(reach::findings(&reach::Reached::try_all(gateway)));
    }
    // The last one: what is not refused changes this process.
    findings.extend(seal::findings(&seal::Seen::try_all(&target), &target));
    let report = Report { findings, gateway };
    let mut line = serde_json::to_string(&report)
        .map_err(|error| Error::io("render JSON", std::io::Error::other(error)))?;
    line.push('\n');
    let printed = cli::print(&line);
    // The sandbox lives for as long as somebody uses it.
    let _end = std::io::stdin().read_to_end(&mut Vec::new());
    Ok(printed)
}
