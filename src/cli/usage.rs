//! Wrong words on a command line -> an error that says which, what was perhaps
//! meant, and which command tells the right ones. Pure.

use std::fmt;

use lexopt::Arg::{Long, Short, Value};

use crate::error::Error;

/// Longer words are not compared with others.
const MAX_COMPARED: usize = 64;

#[derive(Debug)]
pub(crate) struct UsageError {
    message: String,
    /// A word that is valid, and nearly the one that was given.
    meant: Option<String>,
    /// What to type instead, in a sentence.
    cure: Option<String>,
    /// Whose `--help` tells more.
    command: Option<String>,
}

impl UsageError {
    pub(crate) fn hint(&self) -> String {
        let meant = self.meant.as_ref();
        let meant = meant.map_or_else(String::new, |word| format!("did you mean {word:?}?\n"));
        let cure = self.cure.as_ref();
        let cure = cure.map_or_else(String::new, |cure| format!("{cure}\n"));
        let command = self.command.as_deref().unwrap_or("umwelt");
        format!("{meant}{cure}see: {command} --help")
    }

    pub(crate) fn cured_by(mut self, cure: String) -> UsageError {
        self.cure = Some(cure);
        self
    }

    /// What has named it first knows better.
    pub(crate) fn of_command(mut self, command: &str) -> UsageError {
        self.command.get_or_insert_with(|| command.to_owned());
        self
    }
}

impl From<String> for UsageError {
    fn from(message: String) -> UsageError {
        UsageError {
            message,
            meant: None,
            cure: None,
            command: None,
        }
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for UsageError {}

/// `what` is an option, a subcommand, or the like.
pub(crate) fn unknown(what: &str, word: &str, command: &str, valid: &[String]) -> Error {
    let list = valid.join(", ");
    let message = format!("unknown {what} {word:?} of {command}; valid are: {list}");
    Error::Usage(UsageError {
        message,
        meant: meant(word, valid).map(str::to_owned),
        cure: None,
        command: Some(command.to_owned()),
    })
}

/// Words of other programs, as people type them, and ours for the same.
const FOREIGN: [(&str, &[&str]); 22] = [
    ("ps", &["status"]),
    ("ls", &["status", "list"]),
    ("show", &["list"]),
    ("inspect", &["list"]),
    ("run", &["exec"]),
    ("start", &["exec"]),
    ("up", &["exec"]),
    ("attach", &["shell"]),
    ("enter", &["shell"]),
    ("bash", &["shell"]),
    ("kill", &["stop"]),
    ("down", &["stop"]),
    ("rm", &["remove", "stop"]),
    ("remove", &["rm", "stop"]),
    ("delete", &["rm", "remove", "stop"]),
    ("uninstall", &["remove"]),
    ("create", &["add"]),
    ("new", &["add"]),
    ("allow", &["add", "grant"]),
    ("accept", &["trust"]),
    ("check", &["verify"]),
    ("worktree", &["wt"]),
];

fn meant<'a>(word: &str, valid: &'a [String]) -> Option<&'a str> {
    let valid = || valid.iter().map(String::as_str);
    let ours = FOREIGN.iter().find(|(foreign, _)| *foreign == word);
    let mut ours = ours.into_iter().flat_map(|(_, ours)| ours.iter());
    ours.find_map(|ours| valid().find(|known| known == ours))
        .or_else(|| nearest(word, valid()))
}

/// For programs without subcommands: the options are those of the help text.
pub(crate) fn unexpected(arg: &lexopt::Arg<'_>, command: &str, help: &str) -> Error {
    let option = match arg {
        Long(name) => format!("--{name}"),
        Short(letter) => format!("-{letter}"),
        Value(word) => return Error::usage(format!("{command:?} takes no argument: {word:?}")),
    };
    unknown("option", &option, command, &listed(help))
}

/// An option that cannot be left out.
pub(crate) fn required<T>(option: &str, value: Option<T>) -> Result<T, Error> {
    value.ok_or_else(|| Error::usage(format!("the option \"--{option}\" is missing")))
}

/// The long options at the beginning of lines.
fn listed(help: &str) -> Vec<String> {
    let lines = help.lines().map(str::trim_start);
    let lines = lines.filter(|line| line.starts_with('-'));
    let long = lines.filter_map(|line| line.split(' ').find(|word| word.starts_with("--")));
    long.map(str::to_owned).collect()
}

impl From<lexopt::Error> for Error {
    fn from(error: lexopt::Error) -> Error {
        use lexopt::Error::{
            Custom, MissingValue, NonUnicodeValue, ParsingFailed, UnexpectedArgument,
            UnexpectedOption, UnexpectedValue,
        };
        Error::usage(match error {
            MissingValue { option } => {
                let option = option.unwrap_or_default();
                format!("the option {option:?} needs a value")
            }
            UnexpectedValue { option, value } => {
                format!("the option {option:?} takes no value: {value:?}")
            }
            UnexpectedOption(option) => format!("unknown option {option:?}"),
            UnexpectedArgument(word) => format!("one word too many: {word:?}"),
            ParsingFailed { value, error } => format!("cannot understand {value:?}: {error}"),
            NonUnicodeValue(word) => format!("{word:?} is not UTF-8"),
            Custom(error) => error.to_string(),
        })
    }
}

/// The word of the list that was meant, if it is a slip of the fingers away, or
/// if the given one goes on after it: `claude-code`.
pub(crate) fn nearest<'a>(word: &str, valid: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let bare = word.trim_start_matches('-');
    let length = bare.chars().count();
    if length == 0 || length > MAX_COMPARED {
        return None;
    }
    let most = (length / 3).max(1);
    let valid: Vec<&str> = valid.into_iter().collect();
    let begun = || {
        let mut begun = valid.iter().copied();
        begun.find(|known| {
            let rest = bare.strip_prefix(known.trim_start_matches('-'));
            rest.is_some_and(|rest| rest.starts_with('-'))
        })
    };
    let measured = valid
        .iter()
        .copied()
        .map(|known| (distance(bare, known.trim_start_matches('-')), known));
    let near = measured.filter(|(distance, known)| *distance <= most && known.len() > *distance);
    let near = near.min_by_key(|(distance, _)| *distance);
    near.map(|(_, known)| known).or_else(begun)
}

/// How many letters have to be put in, left out, replaced, or swapped with the
/// next one.
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let at = |row: &[usize], index: usize| row.get(index).copied().unwrap_or(MAX_COMPARED);
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    let mut last = None;
    for (i, a) in from.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, b) in to.iter().enumerate() {
            let replaced = at(&row, j) + usize::from(a != b);
            let mut least = replaced.min(at(&row, j + 1) + 1).min(at(&next, j) + 1);
            if let Some(left) = j.checked_sub(1)
                && last == Some(b)
                && to.get(left) == Some(a)
            {
                least = least.min(at(&before, left) + 1);
            }
            next.push(least);
        }
        before = std::mem::replace(&mut row, next);
        last = Some(a);
    }
    at(&row, to.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_fingers_is_one_step() {
        for (from, to, steps) in [
            ("status", "status", 0),
            ("statsu", "status", 1),
            ("jsno", "json", 1),
            ("stats", "status", 1),
            ("lisst", "list", 1),
            ("lost", "list", 1),
            ("ca", "abc", 3),
            ("", "abc", 3),
            ("abc", "", 3),
        ] {
            assert_eq!(distance(from, to), steps, "{from} {to}");
        }
    }

    #[test]
    fn what_was_meant_is_near() {
        let valid = ["status", "stop", "list", "log", "wt", "--json", "--hard"];
        for (word, meant) in [
            ("statsu", Some("status")),
            ("logs", Some("log")),
            ("wr", Some("wt")),
            ("--jsno", Some("--json")),
            ("-hard", Some("--hard")),
            ("status-now", Some("status")),
            ("statuses-now", None),
            ("dance", None),
            ("ls", None),
            ("x", None),
            ("", None),
            ("--", None),
        ] {
            assert_eq!(nearest(word, valid), meant, "{word}");
        }
        assert_eq!(nearest(&"status".repeat(20), valid), None);
    }

    #[test]
    fn hint_names_the_nearest_word_and_the_whole_command() {
        let valid = ["--force".to_owned(), "--help".to_owned()];
        let Error::Usage(error) = unknown("option", "--forse", "umwelt-ctl wt", &valid) else {
            panic!();
        };
        let expected = "unknown option \"--forse\" of umwelt-ctl wt; valid are: --force, --help";
        assert_eq!(error.to_string(), expected);
        let hint = "did you mean \"--force\"?\nsee: umwelt-ctl wt --help";
        assert_eq!(error.of_command("umwelt-ctl").hint(), hint);
        let plain = UsageError::from("x".to_owned()).of_command("umwelt-ctl");
        assert_eq!(plain.hint(), "see: umwelt-ctl --help");
    }

    #[test]
    fn words_of_other_programs_lead_to_ours_where_there_is_one() {
        let valid = ["status", "exec", "stop", "list"].map(str::to_owned);
        for (word, ours) in [
            ("ps", Some("status")),
            ("run", Some("exec")),
            ("rm", Some("stop")),
            ("worktree", None),
        ] {
            assert_eq!(meant(word, &valid), ours, "{word}");
        }
        assert_eq!(meant("rm", &["remove".to_owned()]), Some("remove"));
    }

    #[test]
    fn options_are_read_from_a_help_text() {
        let help = "Usage: x [--not]\n\nOptions:\n      --workspace DIR  a\n                       --no\n  -h, --help           b --neither\n";
        assert_eq!(listed(help), ["--workspace", "--no", "--help"]);
        let error = unexpected(&Long("worksapce"), "umwelt-run", help);
        assert!(
            error
                .hint()
                .unwrap()
                .starts_with("did you mean \"--workspace\"?")
        );
        let error = unexpected(&Value("a\nb".into()), "umwelt-run", help);
        assert_eq!(
            error.to_string(),
            "\"umwelt-run\" takes no argument: \"a\\nb\""
        );
    }
}
