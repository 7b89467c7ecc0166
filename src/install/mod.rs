//! umwelt-install: puts umwelt in place for one user, and takes it away again.
//! Each subcommand is a file. Nothing here needs, or asks for, privileges.

mod ca;
mod call;
mod client;
mod completions;
mod doctor;
mod egress;
mod error;
mod files;
mod image;
mod interrupt;
mod kept;
mod layout;
mod linked;
mod manual;
mod program;
mod record;
mod remove;
mod setup;
mod status;
mod tar;
mod unit;

pub(crate) use error::InstallError;

use std::path::{Path, PathBuf};

use crate::cli;
use crate::cli::args::Args;
use crate::cli::program::Program;
use crate::error::Error;
use crate::text;

pub(crate) const NAME: &str = "umwelt-install";

pub(crate) const PROGRAM: Program = Program {
    name: NAME,
    help: HELP,
    subcommands: &[
        &setup::SUBCOMMAND,
        &status::SUBCOMMAND,
        &remove::SUBCOMMAND,
        &image::SUBCOMMAND,
        &ca::SUBCOMMAND,
        &client::SUBCOMMAND,
        &doctor::SUBCOMMAND,
    ],
};

const HELP: &str = "\
Usage: umwelt-install SUBCOMMAND [OPTION…]

Puts umwelt in place for the user who calls it. No privileges are needed, and
nothing outside of the home directory is changed.

Subcommands:
  install  install umwelt, or bring an installation up to date
  status   show what is installed, and what is missing or stale
  remove   remove what was installed
  image    build the image that commands run in
  ca       make another certificate authority
  client   print the settings for an MCP client, or merge them into its own
  doctor   measure what umwelt relies on, and say how to repair it
  help     print this help, or that of a subcommand

Options:
  -h, --help     print this help, or that of the subcommand, and exit
  -V, --version  print the version and exit

Exit status: 0 done, 1 failed, or something is missing, 2 wrong usage.
";

/// Everything here belongs to a user, and to rootless podman.
fn refuse_root() -> Result<(), InstallError> {
    match rustix::process::geteuid().is_root() {
        true => Err(InstallError::Root),
        false => Ok(()),
    }
}

/// A value that is a path, `~/` being `home`.
fn path_of(args: &Args, option: &str, home: &Path) -> Result<Option<PathBuf>, Error> {
    let value = args.value(option).map(Path::new);
    value.map(|value| layout::meant(value, home)).transpose()
}

/// Tells what a step has done, on one line.
fn say(step: &str, what: &str) {
    cli::print(&format!("{step:<9} {}\n", text::printable(what)));
}

/// What has the name of something that is installed, and is the user's.
fn say_foreign(paths: &[PathBuf]) {
    for path in paths {
        let path = path.display();
        say("", &format!("left alone, as it is not of umwelt: {path}"));
    }
}
