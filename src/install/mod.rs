//! umwelt-install: puts umwelt in place for one user, and takes it away again.
//! Each subcommand is a file. Nothing here needs, or asks for, privileges.

mod args;
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

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use lexopt::Arg::{Long, Short, Value};

use crate::cli;
use crate::error::Error;
use crate::install::args::{Asked, Subcommand};
use crate::text;

pub(crate) const NAME: &str = "umwelt-install";

const SUBCOMMANDS: &[&Subcommand] = &[
    &setup::SUBCOMMAND,
    &status::SUBCOMMAND,
    &remove::SUBCOMMAND,
    &image::SUBCOMMAND,
    &ca::SUBCOMMAND,
    &client::SUBCOMMAND,
    &doctor::SUBCOMMAND,
];

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

pub(crate) fn main(args: Vec<OsString>) -> Result<ExitCode, Error> {
    cli::start_log(NAME);
    let mut parser = lexopt::Parser::from_args(args);
    let name = match parser.next()? {
        Some(Short('h') | Long("help")) => return Ok(cli::print(HELP)),
        Some(Short('V') | Long("version")) => return Ok(cli::version(NAME)),
        Some(Long(name)) => return Err(unknown("option", &format!("--{name}"))),
        Some(Short(letter)) => return Err(unknown("option", &format!("-{letter}"))),
        Some(Value(name)) => name.to_string_lossy().into_owned(),
        None => {
            return Err(Error::Usage(format!(
                "no subcommand given; valid are: {}",
                subcommand_names()
            )));
        }
    };
    if name == "help" {
        return help(parser);
    }
    let subcommand = find(&name)?;
    match subcommand.parse(parser.raw_args()?.collect())? {
        Asked::Help => Ok(cli::print(subcommand.help)),
        Asked::Version => Ok(cli::version(NAME)),
        Asked::Run(args) => (subcommand.run)(args),
    }
}

/// `help` and `help SUBCOMMAND`, as with `--help`.
fn help(mut parser: lexopt::Parser) -> Result<ExitCode, Error> {
    match parser.next()? {
        None | Some(Short('h') | Long("help")) => Ok(cli::print(HELP)),
        Some(Value(name)) => match parser.next()? {
            None => Ok(cli::print(find(&name.to_string_lossy())?.help)),
            Some(_) => Err(Error::Usage("\"help\" takes one subcommand".to_owned())),
        },
        Some(other) => Err(other.unexpected().into()),
    }
}

fn find(name: &str) -> Result<&'static Subcommand, Error> {
    let subcommands = SUBCOMMANDS.iter();
    let mut found = subcommands.filter(|subcommand| subcommand.name == name);
    found
        .next()
        .copied()
        .ok_or_else(|| unknown("subcommand", name))
}

fn unknown(what: &str, word: &str) -> Error {
    let valid = match what {
        "option" => "--help, --version".to_owned(),
        _ => subcommand_names(),
    };
    Error::Usage(format!("unknown {what} {word:?}; valid are: {valid}"))
}

fn subcommand_names() -> String {
    let names = SUBCOMMANDS.iter().map(|known| known.name);
    let names: Vec<&str> = names.chain(["help"]).collect();
    names.join(", ")
}

/// Everything here belongs to a user, and to rootless podman.
fn refuse_root() -> Result<(), InstallError> {
    match rustix::process::geteuid().is_root() {
        true => Err(InstallError::Root),
        false => Ok(()),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subcommand_and_option_stands_in_its_help() {
        for subcommand in SUBCOMMANDS {
            assert!(HELP.contains(&format!("\n  {} ", subcommand.name)));
            let options = subcommand.flags.iter().chain(subcommand.values);
            for option in options.chain(&["help", "version"]) {
                let option = format!("--{option}");
                assert!(
                    subcommand.help.contains(&option),
                    "{} {option}",
                    subcommand.name
                );
            }
        }
    }
}
