//! A program of subcommands: its words -> the subcommand that is run. The first
//! of the two stages of parsing.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use lexopt::Arg::{Long, Short, Value};

use super::args::{Args, Asked, Subcommand};
use super::{print, start_log, usage, version};
use crate::error::Error;

#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) subcommands: &'static [&'static Subcommand],
}

impl Program {
    pub(crate) fn run(&self, words: Vec<OsString>) -> Result<ExitCode, Error> {
        start_log(self.name);
        let mut parser = lexopt::Parser::from_args(words);
        let name = match parser.next()? {
            Some(Value(name)) => name.to_string_lossy().into_owned(),
            Some(Short('h') | Long("help")) => return Ok(print(self.help)),
            Some(Short('V') | Long("version")) => return Ok(version(self.name)),
            Some(option) => return Err(usage::unexpected(&option, self.name, self.help)),
            None => {
                let valid = self.names().join(", ");
                return Err(Error::usage(format!(
                    "no subcommand given; valid are: {valid}"
                )));
            }
        };
        let words: Vec<OsString> = parser.raw_args()?.collect();
        if name == "help" {
            return self.tell(&words);
        }
        let subcommand = self.find(&name)?;
        let command = format!("{} {name}", self.name);
        let parsed = subcommand.parse(&command, words);
        let done = parsed.and_then(|asked| match asked {
            Asked::Help => Ok(print(subcommand.help)),
            Asked::Version => Ok(version(self.name)),
            Asked::Run(args) => {
                check_bare(subcommand, &command, &args)?;
                (subcommand.run)(args)
            }
        });
        done.map_err(|error| error.of_command(&command))
    }

    /// `help`, `help SUBCOMMAND` and `help SUBCOMMAND ACTION`, as people try it.
    fn tell(&self, words: &[OsString]) -> Result<ExitCode, Error> {
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        match words.as_slice() {
            [] | ["help" | "-h" | "--help"] => Ok(print(self.help)),
            ["-V" | "--version"] => Ok(version(self.name)),
            [name, words @ ..] => {
                let subcommand = self.find(name)?;
                let words = match words {
                    [action, more @ ..] if subcommand.has_action(action) => more,
                    words => words,
                };
                match words.first() {
                    None => Ok(print(subcommand.help)),
                    Some(word) => Err(Error::usage(format!(
                        "\"help\" takes one subcommand: {word:?} is one word too many"
                    ))),
                }
            }
        }
    }

    fn find(&self, name: &str) -> Result<&'static Subcommand, Error> {
        let known = self.subcommands.iter().find(|known| known.name == name);
        let unknown = || usage::unknown("subcommand", name, self.name, &self.names());
        known.copied().ok_or_else(unknown)
    }

    fn names(&self) -> Vec<String> {
        let names = self.subcommands.iter().map(|known| known.name);
        names.chain(["help"]).map(str::to_owned).collect()
    }
}

/// A word that names an option, and no file here, was meant as that option:
/// `stop all`, `trust diff`.
fn check_bare(subcommand: &Subcommand, command: &str, args: &Args) -> Result<(), Error> {
    let word = args.operand(0).and_then(OsStr::to_str).unwrap_or_default();
    let is_bare = args.action.is_empty() && subcommand.flags.contains(&word);
    if !is_bare || Path::new(word).exists() {
        return Ok(());
    }
    let valid = subcommand.flags.iter().map(|flag| format!("--{flag}"));
    let valid: Vec<String> = valid.collect();
    Err(usage::unknown("word", word, command, &valid))
}

#[cfg(test)]
mod tests {
    use crate::cli::args::{INTERNAL, Operands};
    use crate::{ctl, install};

    /// Completions are made from these lines.
    #[test]
    fn usage_of_an_action_names_the_options_that_it_takes() {
        for program in [&ctl::PROGRAM, &install::PROGRAM] {
            for subcommand in program.subcommands {
                let Operands::Actions(actions) = subcommand.operands else {
                    continue;
                };
                let usage = subcommand.help.split("\n\n").next().unwrap();
                let whole = format!("{} {} ", program.name, subcommand.name);
                for action in actions {
                    let lines: Vec<&str> = usage
                        .split(&whole)
                        .filter(|line| line.split_whitespace().next() == Some(action.name))
                        .collect();
                    for option in subcommand.flags.iter().chain(subcommand.values) {
                        let is_told = lines
                            .iter()
                            .any(|line| line.contains(&format!("--{option}")));
                        let takes = action.options.contains(option);
                        assert_eq!(is_told, takes, "{whole}{} {option}", action.name);
                    }
                }
            }
        }
    }

    #[test]
    fn every_subcommand_and_option_stands_in_its_help() {
        for program in [&ctl::PROGRAM, &install::PROGRAM] {
            for subcommand in program.subcommands {
                let name = subcommand.name;
                assert!(program.help.contains(&format!("\n  {name} ")), "{name}");
                let options = subcommand.flags.iter().chain(subcommand.values);
                for option in options.chain(&["help", "version"]) {
                    let is_told = subcommand.help.contains(&format!("--{option}"));
                    assert_eq!(is_told, !INTERNAL.contains(option), "{name} {option}");
                }
            }
        }
    }
}
