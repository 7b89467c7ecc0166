//! The seven names: help, version, usage errors, and the man pages that must
//! say the same.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test program: what goes wrong here shall stop it"
)]

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const NAMES: [&str; 7] = [
    "umwelt-mcp",
    "umwelt-run",
    "umwelt-ctl",
    "umwelt-nft-hook",
    "umwelt-install",
    "umwelt-init",
    "umwelt-gateway",
];
const SUBCOMMANDS: [&str; 12] = [
    "status", "stop", "exec", "shell", "list", "grant", "revoke", "trust", "egress", "log",
    "audit", "wt",
];

const INSTALL_SUBCOMMANDS: [&str; 7] = [
    "install", "status", "remove", "image", "ca", "client", "doctor",
];

/// What a program takes as its first word, where it takes one.
fn subcommands(name: &str) -> &'static [&'static str] {
    match name {
        "umwelt-ctl" => &SUBCOMMANDS,
        "umwelt-install" => &INSTALL_SUBCOMMANDS,
        _ => &[],
    }
}

fn run_as(arg0: &str, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_umwelt"))
        .arg0(arg0)
        .args(args)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn every_name_has_help_and_a_version() {
    for name in NAMES {
        let help = run_as(name, &["--help"]);
        assert_eq!(help.status.code(), Some(0), "{name}");
        assert!(stdout(&help).contains(&format!("sage: {name}")), "{name}");
        assert!(help.stderr.is_empty(), "{name}");
        let version = run_as(name, &["--version"]);
        assert_eq!(version.status.code(), Some(0), "{name}");
        let expected = format!("{name} {}\n", env!("CARGO_PKG_VERSION"));
        assert_eq!(stdout(&version), expected);
    }
}

#[test]
fn each_name_is_also_a_first_argument() {
    for name in NAMES {
        let help = run_as(name, &["--help"]).stdout;
        let short = name.strip_prefix("umwelt-").unwrap();
        for word in [name, short] {
            assert_eq!(run_as("umwelt", &[word, "--help"]).stdout, help, "{word}");
        }
    }
}

#[test]
fn unknown_names_exit_2_with_the_list() {
    let calls = [
        ("umwelt", &[][..]),
        ("umwelt", &["dance"]),
        ("umwelt", &["help", "dance"]),
        ("umwelt-dance", &[]),
        ("sh", &["\x1b[2J"]),
    ];
    for (arg0, args) in calls {
        let output = run_as(arg0, args);
        assert_eq!(output.status.code(), Some(2), "{arg0} {args:?}");
        assert!(output.stdout.is_empty());
        for name in NAMES {
            assert!(stderr(&output).contains(name), "{arg0} {args:?}: {name}");
        }
        assert!(!stderr(&output).contains('\x1b'));
    }
}

#[test]
fn binary_itself_has_help_with_its_names() {
    for word in ["--help", "-h", "help"] {
        let output = run_as("umwelt", &[word]);
        assert_eq!(output.status.code(), Some(0), "{word}");
        assert!(stdout(&output).contains("A link to it"), "{word}");
        for name in NAMES {
            assert!(stdout(&output).contains(name), "{word}: {name}");
        }
        assert!(
            stdout(&output)
                .lines()
                .all(|line| line.chars().count() <= 80)
        );
    }
    let version = run_as("umwelt", &["--version"]);
    let expected = format!("umwelt {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(stdout(&version), expected);
    let help = run_as("umwelt", &["help", "run"]);
    assert_eq!(help.stdout, run_as("umwelt-run", &["--help"]).stdout);
}

#[test]
fn help_is_also_a_first_word_of_ctl() {
    let help = |args: &[&str]| run_as("umwelt-ctl", args).stdout;
    assert_eq!(help(&["help"]), help(&["--help"]));
    for subcommand in SUBCOMMANDS {
        assert_eq!(help(&["help", subcommand]), help(&[subcommand, "--help"]));
    }
    for words in [["egress", "add"], ["wt", "rm"]] {
        let [subcommand, action] = words;
        assert_eq!(
            help(&["help", subcommand, action]),
            help(&[subcommand, "--help"])
        );
    }
    for args in [
        &["help", "dance"][..],
        &["help", "stop", "list"],
        &["help", "egress", "dance"],
        &["help", "egress", "add", "https"],
    ] {
        let output = run_as("umwelt-ctl", args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn unknown_options_exit_2() {
    for name in NAMES {
        let output = run_as(name, &["--no-such-option"]);
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert!(stderr(&output).contains("--no-such-option"), "{name}");
        let hint = format!("hint: see: {name} --help\n");
        assert!(stderr(&output).ends_with(&hint), "{name}");
        let valid = "valid are: ";
        assert!(stderr(&output).contains(valid), "{name}");
    }
}

#[test]
fn a_wrong_use_of_ctl_names_what_is_valid() {
    let cases = [
        (
            &[][..],
            "valid are: status, stop, exec, shell, list, config, plan, grant, revoke, trust, egress, log, audit, wt, help\nhint: see: umwelt-ctl --help\n",
        ),
        (
            &["dance"],
            "valid are: status, stop, exec, shell, list, config, plan, grant, revoke, trust, egress, log, audit, wt, help\nhint: see: umwelt-ctl --help\n",
        ),
        (
            &["statsu"],
            "hint: did you mean \"status\"?\nhint: see: umwelt-ctl --help\n",
        ),
        (&["--verison"], "hint: did you mean \"--version\"?\n"),
        (
            &["log", "--folow"],
            "hint: did you mean \"--follow\"?\nhint: see: umwelt-ctl log --help\n",
        ),
        (&["log", "-q"], "unknown option \"-q\" of umwelt-ctl log;"),
        (
            &["wt", "lst"],
            "hint: did you mean \"list\"?\nhint: see: umwelt-ctl wt --help\n",
        ),
        (
            &["egress", "ad", "tcp"],
            "unknown word \"ad\" of umwelt-ctl egress;",
        ),
        (
            &["egress", "add", "tpc", "a"],
            "hint: did you mean \"tcp\"?\n",
        ),
        (
            &["trust", "--dif"],
            "hint: did you mean \"--diff\"?\nhint: see: umwelt-ctl trust --help\n",
        ),
        (
            &["trust", "diff"],
            "unknown word \"diff\" of umwelt-ctl trust; valid are: --diff, --yes, --revoke\nhint: did you mean \"--diff\"?\n",
        ),
        (
            &["stop", "all"],
            "hint: did you mean \"--all\"?\nhint: see: umwelt-ctl stop --help\n",
        ),
        (&["ps"], "hint: did you mean \"status\"?\n"),
        (&["rm"], "hint: did you mean \"stop\"?\n"),
        (&["wt", "remove", "x"], "hint: did you mean \"rm\"?\n"),
        (&["egress", "rm"], "hint: did you mean \"remove\"?\n"),
        (
            &["exec", ".", "bash", "-c", "ls"],
            "hint: write the command after \"--\": umwelt-ctl exec . -- bash -c ls\n",
        ),
        (&["help", "stpo"], "hint: did you mean \"stop\"?\n"),
        (&["--json"], "valid are: --help, --version"),
        (
            &["status", "--hard"],
            "valid are: --json, --help, --version",
        ),
        (&["status", "x"], "\"status\" takes no argument: \"x\""),
        (
            &["stop", "a", "b"],
            "\"stop\" takes one workspace: \"b\" is one word too many\nhint: see: umwelt-ctl stop --help\n",
        ),
        (
            &["stop", "--all", "a"],
            "\"--all\" goes without a workspace: \"a\"",
        ),
        (
            &["exec", "ws", "ls"],
            "a command after \"--\": \"ls\" is one",
        ),
        (&["exec", "ws"], "no command given"),
        (&["exec", "-it", "ws"], "no command given"),
        (&["exec", "--cwd"], "the option \"--cwd\" needs a value"),
        (
            &["list", "--json=yes"],
            "the option \"--json\" takes no value: \"yes\"",
        ),
    ];
    for (args, expected) in cases {
        let output = run_as("umwelt-ctl", args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let message = stderr(&output);
        assert!(message.contains(expected), "{args:?} gave {message}");
    }
}

#[test]
fn a_slip_of_the_fingers_is_seen_in_each_program() {
    for (name, args, meant) in [
        ("umwelt", &["ctll"][..], "ctl"),
        ("umwelt", &["doctor"], "umwelt install doctor"),
        ("umwelt", &["status"], "umwelt ctl status"),
        ("umwelt-install", &["instal"], "install"),
        ("umwelt-install", &["remove", "--purg"], "--purge"),
        ("umwelt-install", &["ca", "rotat"], "rotate"),
        ("umwelt-install", &["client", "claud"], "claude"),
        ("umwelt-run", &["--worksapce", "x"], "--workspace"),
        ("umwelt-mcp", &["--worksapce", "x"], "--workspace"),
        ("umwelt-gateway", &["--polcy", "x"], "--policy"),
        ("umwelt-nft-hook", &["--rulset", "x"], "--ruleset"),
        ("umwelt-init", &["--check-egres"], "--check-egress"),
    ] {
        let output = run_as(name, args);
        assert_eq!(output.status.code(), Some(2), "{name} {args:?}");
        let hint = format!("hint: did you mean {meant:?}?\n");
        let said = stderr(&output);
        assert_eq!(said.contains(&hint), !meant.is_empty(), "{name}: {said}");
    }
}

#[test]
fn values_that_cannot_be_are_named_with_their_option() {
    for (name, args, expected) in [
        (
            "umwelt-gateway",
            &["--threads", "many"][..],
            "the option \"--threads\" cannot be \"many\": ",
        ),
        (
            "umwelt-gateway",
            &["--policy", "p"],
            "the option \"--ca-cert\" is missing\nhint: see: umwelt-gateway --help\n",
        ),
        (
            "umwelt-gateway",
            &["stray"],
            "\"umwelt-gateway\" takes no argument: \"stray\"",
        ),
        (
            "umwelt-nft-hook",
            &["--ruleset", "r", "--digest", "d"],
            "the option \"--nft\" is missing\nhint: see: umwelt-nft-hook --help\n",
        ),
    ] {
        let output = run_as(name, args);
        assert_eq!(output.status.code(), Some(2), "{name} {args:?}");
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
}

#[test]
fn each_subcommand_has_help_and_a_version() {
    for name in NAMES {
        for subcommand in subcommands(name) {
            let help = run_as(name, &[subcommand, "--help"]);
            assert_eq!(help.status.code(), Some(0));
            let usage = format!("Usage: {name} {subcommand}");
            assert!(stdout(&help).starts_with(&usage), "{subcommand}");
            assert!(stdout(&help).lines().all(|line| line.chars().count() <= 80));
            let version = run_as(name, &[subcommand, "-V"]);
            assert!(
                stdout(&version).starts_with(&format!("{name} ")),
                "{subcommand}"
            );
        }
    }
}

#[test]
fn help_and_man_page_name_the_same_options() {
    for name in NAMES {
        let mut help = options_in(stdout(&run_as(name, &["--help"])));
        for subcommand in subcommands(name) {
            help.extend(options_in(stdout(&run_as(name, &[subcommand, "--help"]))));
        }
        let page = man_page(name);
        assert!(
            help.contains("--help") && help.contains("--version"),
            "{name}"
        );
        assert_eq!(help, options_in(section(&page, "OPTIONS")), "{name}");
        for option in options_in(section(&page, "SYNOPSIS")) {
            assert!(help.contains(&option), "{name} {option}");
        }
    }
}

#[test]
fn man_pages_have_their_sections() {
    for name in NAMES {
        let page = man_page(name);
        let sections = page.lines().filter_map(|line| line.strip_prefix("# "));
        let sections: Vec<&str> = sections.collect();
        let expected = [
            "NAME",
            "SYNOPSIS",
            "DESCRIPTION",
            "OPTIONS",
            "EXIT STATUS",
            "FILES",
            "SEE ALSO",
        ];
        let mut found = sections.iter();
        for title in expected {
            assert!(
                found.any(|section| *section == title),
                "{name}: {title} in {sections:?}"
            );
        }
        assert!(
            section(&page, "NAME")
                .trim()
                .starts_with(&format!("{name} - "))
        );
    }
}

fn man_page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("docs/man/{name}.1.md"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn section<'a>(page: &'a str, title: &str) -> &'a str {
    let start = format!("\n# {title}\n");
    let (_, rest) = page.split_once(&start).unwrap();
    rest.split("\n# ").next().unwrap()
}

/// The long options in a text: `--word`, not a bare `--`.
fn options_in(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
        .filter(|word| word.len() > 2 && word.starts_with("--"))
        .map(str::to_owned)
        .collect()
}
