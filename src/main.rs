//! umwelt: a shell for LLM agents that cannot hurt the machine.
//!
//! One static binary, seven programs: `argv[0]` (or else the first argument)
//! names the applet. `main` parses, calls, reports and returns a code.

mod api;
mod applet;
mod attach;
mod cli;
mod config;
mod ctl;
mod digest;
mod dirs;
mod egress;
mod error;
mod gateway;
mod gitdir;
mod init;
mod install;
mod mcp;
mod nft;
mod places;
mod podman;
mod policy;
mod registries;
mod run;
mod subprocess;
mod sys;
mod text;
mod trust;
mod workspace;

use std::process::ExitCode;

use crate::applet::Asked;

fn main() -> ExitCode {
    let (applet, args) = match applet::asked(std::env::args_os()) {
        Ok(Asked::Run(applet, args)) => (applet, args),
        Ok(Asked::Help) => return applet::help(),
        Ok(Asked::Version) => return cli::version("umwelt"),
        Err(error) => return cli::report("umwelt", &error),
    };
    match applet.run(args) {
        Ok(code) => code,
        Err(error) => cli::report(applet.name(), &error.of_command(applet.name())),
    }
}
