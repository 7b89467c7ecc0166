//! Words after a subcommand -> what it was asked. Pure; the second of the two
//! stages of parsing.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use lexopt::Arg::{Long, Short, Value};

use super::usage::{self, UsageError};
use crate::error::Error;
use crate::text::shell_word;

/// One subcommand, told by its own file.
#[derive(Debug)]
pub(crate) struct Subcommand {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    /// Long options that stand alone, beside `--help` and `--version`.
    pub(crate) flags: &'static [&'static str],
    /// Long options with a value.
    pub(crate) values: &'static [&'static str],
    pub(crate) operands: Operands,
    pub(crate) run: fn(Args) -> Result<ExitCode, Error>,
}

/// The words that are no options.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operands {
    None,
    /// From so many to so many, and what they are.
    Words(usize, usize, &'static str),
    /// `[WORKSPACE] -- CMD [ARG…]`
    WorkspaceAndCommand,
    /// The first is one of these, with what goes with it.
    Actions(&'static [Action]),
}

const WITH_COMMAND: &str = "one workspace, and a command after \"--\"";
/// Left out, it is the current directory.
pub(crate) const WORKSPACE: Operands = Operands::Words(0, 1, "one workspace");

/// The second word, of a subcommand that does several things.
#[derive(Debug)]
pub(crate) struct Action {
    pub(crate) name: &'static str,
    /// Those of the subcommand's that it takes.
    pub(crate) options: &'static [&'static str],
    /// From so many to so many, and what they are.
    pub(crate) operands: (usize, usize, &'static str),
}

/// What umwelt starts itself with: in no help text.
pub(super) const INTERNAL: [&str; 1] = ["from-inside"];

/// What letters stand for, in each subcommand that takes such an option.
const LETTERS: [(char, &str); 7] = [
    ('f', "follow"),
    ('f', "force"),
    ('n', "lines"),
    ('b', "branch"),
    ('i', "interactive"),
    ('t', "tty"),
    ('y', "yes"),
];

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Args {
    flags: Vec<&'static str>,
    /// In their order; each can be given again.
    values: Vec<(&'static str, OsString)>,
    /// Of `Operands::Actions`, the one that was named.
    pub(crate) action: &'static str,
    /// Without the action.
    pub(crate) operands: Vec<OsString>,
    /// What stood after `--`.
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Help,
    Version,
    Run(Args),
}

impl Subcommand {
    /// `command` is the whole one, as in `umwelt-ctl status`.
    pub(crate) fn parse(&self, command: &str, words: Vec<OsString>) -> Result<Asked, Error> {
        let has_command = words.iter().any(|word| word == OsStr::new("--"));
        let lacks_command = matches!(self.operands, Operands::WorkspaceAndCommand) && !has_command;
        let (words, of_command) = self.split_command(words);
        let mut args = Args {
            command: of_command,
            ..Args::default()
        };
        let mut parser = lexopt::Parser::from_args(words);
        while let Some(arg) = parser.next()? {
            let (name, shown) = match arg {
                Short('h') | Long("help") => return Ok(Asked::Help),
                Short('V') | Long("version") => return Ok(Asked::Version),
                Value(word) if lacks_command && !args.operands.is_empty() => {
                    let rest = parser.raw_args()?;
                    return Err(self.without_dashes(command, &args, &word, rest));
                }
                Value(word) => {
                    args.operands.push(word);
                    continue;
                }
                Long(name) => (Some(name), format!("--{name}")),
                Short(letter) => (self.of_letter(letter), format!("-{letter}")),
            };
            let known = |list: &'static [&str]| list.iter().find(|known| Some(**known) == name);
            if let Some(flag) = known(self.flags) {
                args.flags.push(flag);
            } else if let Some(option) = known(self.values) {
                args.values.push((option, parser.value()?));
            } else {
                return Err(self.unknown(command, &shown));
            }
        }
        self.check(command, &mut args)?;
        Ok(Asked::Run(args))
    }

    /// Whatever follows the first `--` is the command's, also what looks like
    /// an option of ours.
    fn split_command(&self, mut words: Vec<OsString>) -> (Vec<OsString>, Vec<OsString>) {
        let end = words.iter().position(|word| word == OsStr::new("--"));
        match (end, self.operands) {
            (Some(end), Operands::WorkspaceAndCommand) => {
                let command = words.split_off(end);
                (words, command.into_iter().skip(1).collect())
            }
            _ => (words, Vec::new()),
        }
    }

    /// A command that stands right after the workspace, as other programs have
    /// it.
    fn without_dashes(
        &self,
        command: &str,
        args: &Args,
        word: &OsStr,
        rest: impl Iterator<Item = OsString>,
    ) -> Error {
        let flags = args.flags.iter().map(|flag| format!("--{flag}"));
        let values = args
            .values
            .iter()
            .flat_map(|(name, value)| [format!("--{name}"), value.to_string_lossy().into_owned()]);
        let lossy = |word: &OsStr| word.to_string_lossy().into_owned();
        let workspace = args.operands.iter().map(|word| lossy(word));
        let rest = rest.map(|word| lossy(&word));
        let ours = flags.chain(values).chain(workspace);
        let all = ours.chain(["--".to_owned(), lossy(word)]).chain(rest);
        let all: Vec<String> = all.map(|word| shell_word(&word)).collect();
        let name = self.name;
        let error = UsageError::from(format!(
            "{name:?} takes {WITH_COMMAND}: {word:?} is one word too many"
        ));
        Error::Usage(error.cured_by(format!(
            "write the command after \"--\": {command} {}",
            all.join(" ")
        )))
    }

    pub(super) fn has_action(&self, word: &str) -> bool {
        match self.operands {
            Operands::Actions(actions) => actions.iter().any(|action| action.name == word),
            _ => false,
        }
    }

    fn options(&self) -> impl Iterator<Item = &'static str> {
        self.flags.iter().chain(self.values).copied()
    }

    fn of_letter(&self, letter: char) -> Option<&'static str> {
        let meanings = LETTERS.iter().filter(|(known, _)| *known == letter);
        let mut names = meanings.map(|(_, name)| *name);
        names.find(|name| self.options().any(|option| option == *name))
    }

    fn unknown(&self, command: &str, option: &str) -> Error {
        let told = self.options().filter(|option| !INTERNAL.contains(option));
        let valid = told.chain(["help", "version"]);
        let valid: Vec<String> = valid.map(|name| format!("--{name}")).collect();
        usage::unknown("option", option, command, &valid)
    }

    fn check(&self, command: &str, args: &mut Args) -> Result<(), Error> {
        match self.operands {
            Operands::None => check_count(self.name, (0, 0, ""), &args.operands),
            Operands::Words(least, most, what) => {
                check_count(self.name, (least, most, what), &args.operands)
            }
            Operands::WorkspaceAndCommand => {
                check_count(self.name, (0, 1, WITH_COMMAND), &args.operands)
            }
            Operands::Actions(actions) => self.check_action(command, actions, args),
        }
    }

    fn check_action(
        &self,
        command: &str,
        actions: &'static [Action],
        args: &mut Args,
    ) -> Result<(), Error> {
        let names = || actions.iter().map(|action| action.name.to_owned());
        let names: Vec<String> = names().collect();
        if args.operands.is_empty() {
            let (name, list) = (self.name, names.join(", "));
            return Err(Error::usage(format!("{name:?} needs one of: {list}")));
        }
        let word = args.operands.remove(0);
        let word = word.to_string_lossy();
        let Some(action) = actions.iter().find(|action| action.name == word) else {
            return Err(usage::unknown("word", &word, command, &names));
        };
        args.action = action.name;
        let name = format!("{} {}", self.name, action.name);
        let given = args.values.iter().map(|(name, _)| *name);
        let mut given = args.flags.iter().copied().chain(given);
        if let Some(other) = given.find(|option| !action.options.contains(option)) {
            let takers = actions
                .iter()
                .filter(|action| action.options.contains(&other));
            let takers: Vec<String> = takers
                .map(|action| format!("\"{} {}\"", self.name, action.name))
                .collect();
            let takers = takers.join(", ");
            return Err(Error::usage(format!(
                "the option \"--{other}\" belongs to {takers}, not to {name:?}"
            )));
        }
        check_count(&name, action.operands, &args.operands)
    }
}

fn check_count(
    name: &str,
    (least, most, what): (usize, usize, &str),
    operands: &[OsString],
) -> Result<(), Error> {
    match operands.get(most) {
        Some(word) if most == 0 => Err(Error::usage(format!(
            "{name:?} takes no argument: {word:?}"
        ))),
        Some(word) => Err(Error::usage(format!(
            "{name:?} takes {what}: {word:?} is one word too many"
        ))),
        None if operands.len() < least => Err(Error::usage(format!("{name:?} needs {what}"))),
        None => Ok(()),
    }
}

impl Args {
    pub(crate) fn has(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    pub(crate) fn gives(&self, option: &str) -> bool {
        self.has(option) || self.value(option).is_some()
    }

    /// Of these options one at most can be given.
    pub(crate) fn check_one_of(&self, options: &[&str]) -> Result<(), Error> {
        let mut given = options.iter().filter(|option| self.gives(option));
        match (given.next(), given.next()) {
            (Some(one), Some(other)) => Err(Error::usage(format!(
                "the options \"--{one}\" and \"--{other}\" exclude each other"
            ))),
            _ => Ok(()),
        }
    }

    /// The last one counts.
    pub(crate) fn value(&self, option: &str) -> Option<&OsStr> {
        let mut values = self.values.iter().rev();
        let found = values.find(|(name, _)| *name == option);
        found.map(|(_, value)| value.as_os_str())
    }

    pub(crate) fn text(&self, option: &str) -> Result<Option<String>, Error> {
        self.value(option).map(text).transpose()
    }

    pub(crate) fn texts(&self, option: &str) -> Result<Vec<String>, Error> {
        let values = self.values.iter().filter(|(name, _)| *name == option);
        values.map(|(_, value)| text(value)).collect()
    }

    pub(crate) fn number(&self, option: &str) -> Result<Option<usize>, Error> {
        let number = |text: String| {
            let parsed = text.parse();
            parsed.map_err(|_| Error::usage(format!("\"--{option}\": {text:?} is not a number")))
        };
        self.text(option)?.map(number).transpose()
    }

    pub(crate) fn operand(&self, at: usize) -> Option<&OsStr> {
        self.operands.get(at).map(OsString::as_os_str)
    }

    /// A path or a session id; `None` means the current directory.
    pub(crate) fn workspace(&self) -> Option<&OsStr> {
        self.operand(0)
    }

    pub(crate) fn command_texts(&self) -> Result<Vec<String>, Error> {
        self.command.iter().map(|word| text(word)).collect()
    }
}

/// The socket API is JSON: what is not UTF-8 cannot be asked for.
pub(crate) fn text(word: &OsStr) -> Result<String, Error> {
    let text = word.to_str().map(str::to_owned);
    text.ok_or_else(|| Error::usage(format!("{word:?} is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: Subcommand = Subcommand {
        name: "dance",
        help: "",
        flags: &["json", "follow", "tty"],
        values: &["cwd", "lines"],
        operands: Operands::WorkspaceAndCommand,
        run: |_| Ok(ExitCode::SUCCESS),
    };

    const ACTS: Subcommand = Subcommand {
        flags: &["force", "json"],
        values: &["branch"],
        operands: Operands::Actions(&[
            Action {
                name: "add",
                options: &["branch"],
                operands: (1, 2, "a repository and a name"),
            },
            Action {
                name: "rm",
                options: &["force"],
                operands: (1, 1, "one path"),
            },
        ]),
        ..RUN
    };

    fn parse_as(subcommand: &Subcommand, words: &[&str]) -> Result<Args, String> {
        let words = words.iter().map(OsString::from).collect();
        match subcommand.parse("umwelt-ctl dance", words) {
            Ok(Asked::Run(args)) => Ok(args),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(format!("{error}\n{}", error.hint().unwrap_or_default())),
        }
    }

    fn parse(words: &[&str]) -> Result<Args, String> {
        parse_as(&RUN, words)
    }

    #[test]
    fn options_and_operands_come_in_any_order_and_the_rest_is_the_commands() {
        let words = [
            "ws", "--cwd", "a", "--json", "--", "ls", "--help", "--", "-h",
        ];
        let args = parse(&words).unwrap();
        assert_eq!(args.workspace(), Some(OsStr::new("ws")));
        assert_eq!(args.text("cwd").unwrap().as_deref(), Some("a"));
        assert!(args.has("json") && !args.has("cwd"));
        assert_eq!(args.command, ["ls", "--help", "--", "-h"]);
        let args = parse(&["--cwd=a", "--cwd", "b", "--", "ls"]).unwrap();
        assert!(args.workspace().is_none());
        assert_eq!(args.value("cwd"), Some(OsStr::new("b")));
        assert_eq!(args.texts("cwd").unwrap(), ["a", "b"]);
    }

    #[test]
    fn letters_stand_for_the_options_that_there_are() {
        let args = parse(&["-tf", "-n5"]).unwrap();
        assert!(args.has("tty") && args.has("follow"));
        assert_eq!(args.number("lines").unwrap(), Some(5));
        assert!(parse_as(&ACTS, &["rm", "-f", "w1"]).unwrap().has("force"));
        for word in ["-q", "-i", "-b", "-j"] {
            let error = parse(&[word]).unwrap_err();
            assert!(
                error.contains(&format!("unknown option {word:?}")),
                "{error}"
            );
        }
        let error = parse(&["-n", "x"]).unwrap().number("lines").unwrap_err();
        assert_eq!(error.to_string(), "\"--lines\": \"x\" is not a number");
    }

    #[test]
    fn what_is_wrong_is_named_with_what_was_meant_and_the_whole_command() {
        for (words, expected) in [
            (
                &["--jsno"][..],
                "unknown option \"--jsno\" of umwelt-ctl dance; valid are: --json, --follow, --tty, --cwd, --lines, --help, --version\ndid you mean \"--json\"?\nsee: umwelt-ctl dance --help",
            ),
            (
                &["--json=yes"],
                "the option \"--json\" takes no value: \"yes\"",
            ),
            (&["--cwd"], "the option \"--cwd\" needs a value"),
            (
                &["ws", "ls"],
                "\"dance\" takes one workspace, and a command after \"--\": \"ls\" is one word too many",
            ),
        ] {
            let error = parse(words).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn a_command_without_the_dashes_is_told_with_them() {
        for (words, cure) in [
            (&[".", "ls"][..], "umwelt-ctl dance . -- ls"),
            (
                &["--cwd=a b", "-t", ".", "bash", "-c", "ls; id"],
                "umwelt-ctl dance --tty --cwd 'a b' . -- bash -c 'ls; id'",
            ),
        ] {
            let error = parse(words).unwrap_err();
            let cure = format!("\nwrite the command after \"--\": {cure}\nsee: ");
            assert!(error.contains(&cure), "{error}");
        }
        let error = parse(&["a", "b", "--", "ls"]).unwrap_err();
        assert!(!error.contains("write the command"), "{error}");
    }

    #[test]
    fn an_action_takes_its_own_options_and_words() {
        let args = parse_as(&ACTS, &["--branch", "b", "add", "repo"]).unwrap();
        assert_eq!(
            (args.action, args.operand(0)),
            ("add", Some(OsStr::new("repo")))
        );
        for (words, expected) in [
            (&[][..], "\"dance\" needs one of: add, rm"),
            (
                &["ad", "repo"],
                "unknown word \"ad\" of umwelt-ctl dance; valid are: add, rm\ndid you mean \"add\"?",
            ),
            (&["add"], "\"dance add\" needs a repository and a name"),
            (
                &["rm", "a", "b"],
                "\"dance rm\" takes one path: \"b\" is one word too many",
            ),
            (
                &["add", "repo", "--force"],
                "the option \"--force\" belongs to \"dance rm\", not to \"dance add\"",
            ),
        ] {
            let error = parse_as(&ACTS, words).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn words_that_json_cannot_carry_are_refused() {
        use std::os::unix::ffi::OsStringExt;
        let words = vec!["--".into(), OsString::from_vec(b"a\xff".to_vec())];
        let Ok(Asked::Run(args)) = RUN.parse("x", words) else {
            panic!();
        };
        assert!(matches!(args.command_texts(), Err(Error::Usage(_))));
    }
}
