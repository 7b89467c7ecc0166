//! Words after the subcommand -> what it was asked. Pure.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lexopt::Arg::{Long, Short, Value};

use crate::error::Error;
use crate::install::NAME;
use crate::install::layout::meant;

/// One subcommand, told by its own file.
#[derive(Debug)]
pub(super) struct Subcommand {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    /// Long options that stand alone, beside `--help` and `--version`.
    pub(super) flags: &'static [&'static str],
    /// Long options with a value.
    pub(super) values: &'static [&'static str],
    /// What its one operand is, where it takes one.
    pub(super) operand: Option<&'static str>,
    pub(super) run: fn(Args) -> Result<ExitCode, Error>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Args {
    flags: Vec<&'static str>,
    values: BTreeMap<&'static str, OsString>,
    pub(super) operand: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Help,
    Version,
    Run(Args),
}

impl Subcommand {
    pub(super) fn parse(&self, words: Vec<OsString>) -> Result<Asked, Error> {
        let mut args = Args::default();
        let mut parser = lexopt::Parser::from_args(words);
        while let Some(arg) = parser.next()? {
            match arg {
                Short('h') | Long("help") => return Ok(Asked::Help),
                Short('V') | Long("version") => return Ok(Asked::Version),
                Long(name) => {
                    if let Some(flag) = self.flags.iter().find(|flag| **flag == name) {
                        args.flags.push(flag);
                    } else if let Some(value) = self.values.iter().find(|value| **value == name) {
                        args.values.insert(value, parser.value()?);
                    } else {
                        return Err(self.unknown(&format!("--{name}")));
                    }
                }
                Short(letter) => return Err(self.unknown(&format!("-{letter}"))),
                Value(word) => self.take_operand(&mut args, &word)?,
            }
        }
        match (self.operand, &args.operand) {
            (Some(what), None) => {
                let name = self.name;
                Err(Error::Usage(format!("{name:?} needs {what}")))
            }
            _ => Ok(Asked::Run(args)),
        }
    }

    fn take_operand(&self, args: &mut Args, word: &OsString) -> Result<(), Error> {
        let name = self.name;
        match self.operand {
            Some(_) if args.operand.is_none() => {
                args.operand = Some(word.to_string_lossy().into_owned());
                Ok(())
            }
            Some(what) => Err(Error::Usage(format!("{name:?} takes {what}: {word:?}"))),
            None => Err(Error::Usage(format!(
                "{name:?} takes no argument: {word:?}"
            ))),
        }
    }

    fn unknown(&self, option: &str) -> Error {
        let options = self.flags.iter().chain(self.values);
        let options = options.chain(&["help", "version"]);
        let options: Vec<String> = options.map(|name| format!("--{name}")).collect();
        Error::Usage(format!(
            "unknown option {option:?} of {NAME} {}; valid are: {}",
            self.name,
            options.join(", ")
        ))
    }
}

impl Args {
    pub(super) fn has(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    pub(super) fn value(&self, name: &str) -> Option<&OsString> {
        self.values.get(name)
    }

    /// A value that is a path, `~/` being `home`.
    pub(super) fn path(&self, name: &str, home: &Path) -> Result<Option<PathBuf>, Error> {
        let value = self.value(name).map(Path::new);
        value.map(|value| meant(value, home)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: Subcommand = Subcommand {
        name: "some",
        help: "",
        flags: &["json"],
        values: &["file"],
        operand: Some("one name"),
        run: |_| Ok(ExitCode::SUCCESS),
    };

    fn parse(words: &[&str]) -> Result<Args, String> {
        match SOME.parse(words.iter().map(OsString::from).collect()) {
            Ok(Asked::Run(args)) => Ok(args),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn flags_values_and_the_operand_come_in_any_order() {
        let args = parse(&["--file", "f", "name", "--json"]).unwrap();
        assert!(args.has("json") && !args.has("file"));
        assert_eq!(args.value("file").unwrap(), "f");
        assert_eq!(args.operand.as_deref(), Some("name"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (words, expected) in [
            (&[][..], "needs one name"),
            (&["a", "b"], "takes one name: \"b\""),
            (&["a", "--no"], "valid are: --json, --file, --help"),
            (&["a", "--file"], "--file"),
            (&["a", "-x"], "unknown option \"-x\""),
        ] {
            let error = parse(words).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
