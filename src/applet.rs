//! argv -> the applet to run. Pure; the only list of the program names.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use crate::cli::program::Program;
use crate::cli::{self, usage};
use crate::error::Error;

/// One of the programs in this binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Applet {
    Mcp,
    Run,
    Ctl,
    NftHook,
    Install,
    Init,
    Gateway,
}

/// In the order of the man pages.
pub(crate) const ALL: [Applet; 7] = [
    Applet::Mcp,
    Applet::Run,
    Applet::Ctl,
    Applet::NftHook,
    Applet::Install,
    Applet::Init,
    Applet::Gateway,
];

impl Applet {
    /// The name of the link that starts this applet.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Applet::Mcp => "umwelt-mcp",
            Applet::Run => "umwelt-run",
            Applet::Ctl => "umwelt-ctl",
            Applet::NftHook => "umwelt-nft-hook",
            Applet::Install => "umwelt-install",
            Applet::Init => "umwelt-init",
            Applet::Gateway => "umwelt-gateway",
        }
    }

    fn from_name(name: &OsStr) -> Option<Applet> {
        let name = name.to_str()?;
        ALL.into_iter().find(|applet| {
            applet.name() == name || applet.name().strip_prefix("umwelt-") == Some(name)
        })
    }

    pub(crate) fn run(self, args: Vec<OsString>) -> Result<ExitCode, Error> {
        match self {
            Applet::Mcp => crate::mcp::main(args),
            Applet::Run => crate::run::main(args),
            Applet::Ctl => crate::ctl::PROGRAM.run(args),
            Applet::Init => crate::init::main(args),
            Applet::NftHook => crate::nft::hook::main(args),
            Applet::Install => crate::install::PROGRAM.run(args),
            Applet::Gateway => crate::gateway::main(args),
        }
    }
}

/// What `main` is asked for.
#[derive(Debug)]
pub(crate) enum Asked {
    Run(Applet, Vec<OsString>),
    /// Of the binary itself, not of one of its programs.
    Help,
    Version,
}

const HELP: &str = "\
Usage: umwelt NAME [ARG…]

umwelt is several programs in one file. A link to it that bears the name of a
program starts that one; so does the name as the first argument, also without
\"umwelt-\": \"umwelt ctl status\" is \"umwelt-ctl status\".

Programs:
  umwelt-mcp       the MCP server that a client starts: a shell in a sandbox
  umwelt-run       owns the sandbox of one project directory
  umwelt-ctl       shows sandboxes and works in them
  umwelt-nft-hook  seals the network of a sandbox; podman starts it
  umwelt-install   puts all of it in place, checks the host, removes it
  umwelt-init      the first process in a sandbox
  umwelt-gateway   the way out of sandboxes with a network

The links are made by: umwelt install install
Each program has --help and a manual page.

Options:
  -h, --help     print this help and exit; so does \"umwelt help\"
  -V, --version  print the version and exit
";

/// `umwelt help NAME` is `NAME --help`.
pub(crate) fn asked(argv: impl IntoIterator<Item = OsString>) -> Result<Asked, Error> {
    let argv: Vec<OsString> = argv.into_iter().collect();
    let error = match select(argv.iter().cloned()) {
        Ok((applet, args)) => return Ok(Asked::Run(applet, args)),
        Err(error) => error,
    };
    let words: Vec<&str> = argv.iter().skip(1).flat_map(|word| word.to_str()).collect();
    match words.as_slice() {
        ["-h" | "--help" | "help"] => Ok(Asked::Help),
        ["-V" | "--version"] => Ok(Asked::Version),
        ["help", name] => match Applet::from_name(OsStr::new(name)) {
            Some(applet) => Ok(Asked::Run(applet, vec!["--help".into()])),
            None => Err(Error::UnknownApplet(Some(name.into()))),
        },
        _ => Err(error),
    }
}

/// Picks the applet from the file name part of `argv[0]`, or else from the first
/// argument (`umwelt run …`), and returns the arguments that are left for it.
pub(crate) fn select(
    argv: impl IntoIterator<Item = OsString>,
) -> Result<(Applet, Vec<OsString>), Error> {
    let mut argv = argv.into_iter();
    let arg0 = argv.next().unwrap_or_default();
    let name = Path::new(&arg0).file_name().unwrap_or_default();
    // Only a full name counts here: a binary renamed to `run` is still `umwelt`.
    if name.as_encoded_bytes().starts_with(b"umwelt-")
        && let Some(applet) = Applet::from_name(name)
    {
        return Ok((applet, argv.collect()));
    }
    match argv.next() {
        Some(first) => match Applet::from_name(&first) {
            Some(applet) => Ok((applet, argv.collect())),
            None => Err(Error::UnknownApplet(Some(first))),
        },
        None => Err(Error::UnknownApplet(None)),
    }
}

/// What `umwelt` says of itself.
pub(crate) fn help() -> ExitCode {
    cli::print(HELP)
}

/// The way out, for a name that is none of ours.
pub(crate) fn hint(name: Option<&OsStr>) -> String {
    let names = ALL.map(Applet::name);
    let given = name.and_then(OsStr::to_str).unwrap_or_default();
    let bare = |name: &'static str| name.trim_start_matches("umwelt-");
    let nearest = usage::nearest(given, names.into_iter().chain(names.map(bare)));
    let meant = subcommand(given).or_else(|| nearest.map(str::to_owned));
    let meant = meant.map_or_else(String::new, |word| format!("did you mean {word:?}?\n"));
    format!(
        "{meant}start it through one of its names: {}\nsee what they are with: umwelt --help",
        names.join(", ")
    )
}

/// `umwelt ctl status`, where somebody has left out the program.
fn subcommand(given: &str) -> Option<String> {
    let programs = [&crate::ctl::PROGRAM, &crate::install::PROGRAM];
    let has = |program: &&&Program| program.subcommands.iter().any(|known| known.name == given);
    let program = programs.iter().find(has)?;
    let name = program.name.trim_start_matches("umwelt-");
    Some(format!("umwelt {name} {given}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select_words(words: &[&str]) -> Result<(Applet, Vec<OsString>), Error> {
        select(words.iter().map(OsString::from))
    }

    #[test]
    fn link_name_selects_the_applet() {
        let (applet, args) = select_words(&["/home/u/.local/bin/umwelt-ctl", "status"]).unwrap();
        assert_eq!(applet, Applet::Ctl);
        assert_eq!(args, ["status"]);
    }

    #[test]
    fn first_argument_selects_the_applet_with_and_without_prefix() {
        for word in ["run", "umwelt-run"] {
            let (applet, args) = select_words(&["umwelt", word, "--help"]).unwrap();
            assert_eq!(applet, Applet::Run);
            assert_eq!(args, ["--help"]);
        }
    }

    #[test]
    fn unknown_names_are_refused() {
        assert!(select_words(&["umwelt"]).is_err());
        assert!(select_words(&["umwelt", "dance"]).is_err());
        assert!(select_words(&["umwelt-dance", "--help"]).is_err());
        assert!(select(std::iter::empty()).is_err());
    }

    #[test]
    fn help_is_for_the_binary_itself_where_no_program_is_named() {
        let asked = |words: &[&str]| asked(words.iter().map(OsString::from));
        for words in [&["umwelt", "--help"], &["x", "-h"], &["umwelt", "help"]] {
            assert!(matches!(asked(words), Ok(Asked::Help)), "{words:?}");
        }
        assert!(matches!(asked(&["umwelt", "-V"]), Ok(Asked::Version)));
        let Ok(Asked::Run(Applet::Ctl, args)) = asked(&["umwelt", "help", "ctl"]) else {
            panic!();
        };
        assert_eq!(args, ["--help"]);
        let link = asked(&["umwelt-ctl", "--help"]);
        assert!(matches!(link, Ok(Asked::Run(Applet::Ctl, _))));
        for words in [
            &["umwelt"][..],
            &["umwelt", "help", "dance"],
            &["umwelt", "-h", "x"],
        ] {
            assert!(
                matches!(asked(words), Err(Error::UnknownApplet(_))),
                "{words:?}"
            );
        }
        for applet in ALL {
            assert!(HELP.contains(&format!("\n  {} ", applet.name())));
        }
    }

    #[test]
    fn a_subcommand_alone_is_told_with_its_program() {
        for (word, meant) in [
            ("status", "did you mean \"umwelt ctl status\"?\n"),
            ("exec", "did you mean \"umwelt ctl exec\"?\n"),
            ("doctor", "did you mean \"umwelt install doctor\"?\n"),
            ("dance", "start it through"),
        ] {
            let hint = hint(Some(OsStr::new(word)));
            assert!(hint.starts_with(meant), "{hint}");
        }
    }

    #[test]
    fn a_binary_renamed_to_a_short_name_still_reads_its_first_argument() {
        let (applet, _) = select_words(&["run", "ctl"]).unwrap();
        assert_eq!(applet, Applet::Ctl);
    }
}
