//! Words after the subcommand -> what it was asked. Pure; the second of the
//! two stages of parsing.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use lexopt::Arg::{Long, Short, Value};

use crate::ctl::NAME;
use crate::error::Error;

/// One subcommand, told by its own file.
#[derive(Debug)]
pub(super) struct Subcommand {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    /// Long options that it takes beside `--help` and `--version`.
    pub(super) options: &'static [&'static str],
    pub(super) operands: Operands,
    pub(super) run: fn(Args) -> Result<ExitCode, Error>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operands {
    None,
    Workspace,
    /// `WORKSPACE PATH`, both needed: with one left out, it would be easy to
    /// mean the other.
    WorkspaceAndPath,
    /// `[WORKSPACE] -- CMD [ARG…]`
    WorkspaceAndCommand,
    /// Any number of words, which the subcommand reads.
    Words,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Args {
    /// A path or a session id; `None` means the current directory.
    pub(super) workspace: Option<OsString>,
    pub(super) cwd: Option<String>,
    pub(super) json: bool,
    pub(super) hard: bool,
    pub(super) lines: Option<String>,
    pub(super) branch: Option<String>,
    pub(super) words: Vec<OsString>,
    /// The second operand of `WorkspaceAndPath`.
    pub(super) path: Option<OsString>,
    /// Options that can be given again, with their values.
    pub(super) values: Vec<(&'static str, String)>,
    /// The other options that stand alone, by their names.
    pub(super) flags: Vec<&'static str>,
    /// What stood after `--`.
    pub(super) command: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Help,
    Version,
    Run(Box<Args>),
}

impl Subcommand {
    pub(super) fn parse(&self, words: Vec<OsString>) -> Result<Asked, Error> {
        let (words, command) = self.split_command(words);
        let mut args = Args::default();
        let mut parser = lexopt::Parser::from_args(words);
        while let Some(arg) = parser.next()? {
            match arg {
                Short('h') | Long("help") => return Ok(Asked::Help),
                Short('V') | Long("version") => return Ok(Asked::Version),
                Long("json") if self.takes("json") => args.json = true,
                Long("hard") if self.takes("hard") => args.hard = true,
                Long("branch") if self.takes("branch") => {
                    args.branch = Some(text(parser.value()?)?);
                }
                Long("lines") if self.takes("lines") => args.lines = Some(text(parser.value()?)?),
                Long(name) if VALUED.contains(&name) && self.takes(name) => {
                    let name = VALUED.iter().find(|valued| **valued == name);
                    let value = text(parser.value()?)?;
                    args.values.extend(name.map(|name| (*name, value)));
                }
                Long("cwd") if self.takes("cwd") => args.cwd = Some(text(parser.value()?)?),
                Long(name) => match self.options.iter().find(|option| **option == name) {
                    Some(flag) => args.flags.push(flag),
                    None => return Err(self.unknown(&format!("--{name}"))),
                },
                Short(letter) => return Err(self.unknown(&format!("-{letter}"))),
                Value(value) => self.operand(&mut args, value)?,
            }
        }
        if self.operands == Operands::WorkspaceAndPath && args.path.is_none() {
            let name = self.name;
            return Err(Error::Usage(format!(
                "{name:?} needs a workspace and a path"
            )));
        }
        args.command = command.into_iter().map(text).collect::<Result<_, _>>()?;
        Ok(Asked::Run(Box::new(args)))
    }

    /// Whatever follows the first `--` is the command's, also what looks like
    /// an option of ours.
    fn split_command(&self, mut words: Vec<OsString>) -> (Vec<OsString>, Vec<OsString>) {
        let end = words.iter().position(|word| word == OsStr::new("--"));
        match end {
            Some(end) if self.operands == Operands::WorkspaceAndCommand => {
                let command = words.split_off(end);
                (words, command.into_iter().skip(1).collect())
            }
            _ => (words, Vec::new()),
        }
    }

    fn operand(&self, args: &mut Args, value: OsString) -> Result<(), Error> {
        if self.operands == Operands::None {
            return Err(Error::Usage(format!(
                "{:?} takes no argument: {value:?}",
                self.name
            )));
        }
        if self.operands == Operands::Words {
            args.words.push(value);
            return Ok(());
        }
        if self.operands == Operands::WorkspaceAndPath
            && args.workspace.is_some()
            && args.path.is_none()
        {
            args.path = Some(value);
            return Ok(());
        }
        if args.workspace.is_some() {
            let mut message = match self.operands {
                Operands::WorkspaceAndPath => {
                    format!(
                        "{:?} takes one workspace and one path: {value:?}",
                        self.name
                    )
                }
                _ => format!("{:?} takes one workspace: {value:?}", self.name),
            };
            if self.operands == Operands::WorkspaceAndCommand {
                message.push_str(" (a command stands after --)");
            }
            return Err(Error::Usage(message));
        }
        args.workspace = Some(value);
        Ok(())
    }

    fn takes(&self, option: &str) -> bool {
        self.options.contains(&option)
    }

    fn unknown(&self, option: &str) -> Error {
        let options = self.options.iter().chain(&["help", "version"]);
        let options: Vec<String> = options.map(|name| format!("--{name}")).collect();
        Error::Usage(format!(
            "unknown option {option:?} of {NAME} {}; valid are: {}",
            self.name,
            options.join(", ")
        ))
    }
}

/// Options with a value that can be given again.
const VALUED: [&str; 3] = ["port", "path", "method"];

impl Args {
    /// The last one counts.
    pub(super) fn value(&self, option: &str) -> Option<&str> {
        self.values(option).pop()
    }

    pub(super) fn values(&self, option: &str) -> Vec<&str> {
        let values = self.values.iter().filter(|(name, _)| *name == option);
        values.map(|(_, value)| value.as_str()).collect()
    }

    pub(super) fn has(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }
}

/// The socket API is JSON: what is not UTF-8 cannot be asked for.
pub(super) fn text(word: OsString) -> Result<String, Error> {
    word.into_string()
        .map_err(|word| Error::Usage(format!("{word:?} is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: Subcommand = Subcommand {
        name: "dance",
        help: "",
        options: &["cwd"],
        operands: Operands::WorkspaceAndCommand,
        run: |_| Ok(ExitCode::SUCCESS),
    };

    fn parse(words: &[&str]) -> Result<Asked, String> {
        RUN.parse(words.iter().map(OsString::from).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn options_after_the_dashes_are_the_commands() {
        let asked = parse(&["ws", "--cwd", "a", "--", "ls", "--help", "--", "-h"]).unwrap();
        let Asked::Run(args) = asked else {
            panic!("{asked:?}");
        };
        assert_eq!(args.workspace, Some("ws".into()));
        assert_eq!(args.cwd.as_deref(), Some("a"));
        assert_eq!(args.command, ["ls", "--help", "--", "-h"]);
    }

    #[test]
    fn workspace_may_be_left_out() {
        let asked = parse(&["--", "ls"]).unwrap();
        assert!(matches!(asked, Asked::Run(args) if args.workspace.is_none()));
    }

    #[test]
    fn options_of_other_subcommands_are_unknown_here() {
        for word in ["--json", "--hard", "--jso", "-x"] {
            let error = parse(&[word]).unwrap_err();
            assert!(
                error.contains("valid are: --cwd, --help, --version"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_command_without_dashes_is_told_where_it_belongs() {
        let error = parse(&["ws", "ls"]).unwrap_err();
        assert!(error.contains("stands after --"), "{error}");
    }

    #[test]
    fn words_that_json_cannot_carry_are_refused() {
        use std::os::unix::ffi::OsStringExt;
        let words = vec!["--".into(), OsString::from_vec(b"a\xff".to_vec())];
        assert!(matches!(RUN.parse(words), Err(Error::Usage(_))));
    }
}
