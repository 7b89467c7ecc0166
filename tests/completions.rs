//! share/completions: made from the help texts, so that they name every option.
//! `UMWELT_WRITE_GOLDEN=1` writes them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test program: what goes wrong here shall stop it"
)]

use std::fmt::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const NAMES: [&str; 7] = [
    "umwelt-mcp",
    "umwelt-run",
    "umwelt-ctl",
    "umwelt-nft-hook",
    "umwelt-install",
    "umwelt-init",
    "umwelt-gateway",
];

struct Program {
    name: &'static str,
    options: Vec<Choice>,
    subcommands: Vec<Subcommand>,
}

struct Subcommand {
    name: String,
    options: Vec<Choice>,
    /// What can follow it, where that is one of a few words.
    words: Vec<String>,
    /// Those of these words that have options of their own.
    actions: Vec<Action>,
}

/// The second word, as in `egress add`.
struct Action {
    name: String,
    options: Vec<Choice>,
    /// What can follow it.
    words: Vec<String>,
}

/// One long option.
#[derive(Clone)]
struct Choice {
    name: String,
    takes_value: bool,
}

impl Program {
    fn actions(&self) -> impl Iterator<Item = (&Subcommand, &Action)> {
        let subcommands = self.subcommands.iter();
        subcommands.flat_map(|sub| sub.actions.iter().map(move |action| (sub, action)))
    }
}

impl Action {
    fn takes(&self, option: &Choice) -> bool {
        self.options.iter().any(|own| own.name == option.name)
    }
}

fn help(name: &str, args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_umwelt"));
    let output = command.arg0(name).args(args).env_clear().output().unwrap();
    assert!(output.status.success(), "{name} {args:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn programs() -> Vec<Program> {
    let program = |name| {
        let text = help(name, &["--help"]);
        let names = subcommands(&text).into_iter();
        Program {
            name,
            options: options(&text),
            subcommands: names
                .map(|sub| {
                    let text = help(name, &[&sub, "--help"]);
                    Subcommand {
                        options: options(&text),
                        words: next_words(name, &sub, &text),
                        actions: actions(name, &sub, &text),
                        name: sub,
                    }
                })
                .collect(),
        }
    };
    NAMES.map(program).into()
}

/// The lines below "Subcommands:".
fn subcommands(text: &str) -> Vec<String> {
    let lines = text.lines().skip_while(|line| *line != "Subcommands:");
    let lines = lines.skip(1).take_while(|line| !line.is_empty());
    let starts = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    starts
        .map(|line| line.split_whitespace().next().unwrap().to_owned())
        .collect()
}

/// `add` of "Usage: umwelt-ctl wt add REPO", in each line of the usage; the
/// names of "CLIENT is one of a, b."; and for help the subcommands.
fn next_words(program: &str, sub: &str, text: &str) -> Vec<String> {
    let begin = format!("{program} {sub} ");
    let usage = text.lines().take_while(|line| !line.is_empty());
    let usage = usage.filter_map(|line| line.split_once(&begin)?.1.split(' ').next());
    let list = text
        .lines()
        .filter_map(|line| line.split_once(" is one of "));
    let list = list.flat_map(|(_, names)| names.trim_end_matches('.').split(", "));
    let mut words = match sub {
        "help" => subcommands(text),
        _ => usage.chain(list).map(str::to_owned).collect(),
    };
    words.retain(|word| word != sub && word.starts_with(|first: char| first.is_ascii_lowercase()));
    words.dedup();
    words
}

/// Of a usage with lines such as `umwelt-ctl wt add [--branch B]`, which may go
/// on in the next one.
fn actions(program: &str, sub: &str, text: &str) -> Vec<Action> {
    let usage = text.split("\n\n").next().unwrap();
    let options = options(text);
    let mut actions: Vec<Action> = Vec::new();
    for form in usage.split(&format!("{program} {sub} ")).skip(1) {
        let is_plain = |word: &&str| word.bytes().all(|byte| byte.is_ascii_lowercase());
        let mut words = form.split_whitespace();
        let Some(name) = words.next().filter(is_plain) else {
            continue;
        };
        let next = words.next().filter(is_plain).map(str::to_owned);
        let named = |option: &&Choice| {
            let is_general = ["help", "version"].contains(&option.name.as_str());
            is_general || form.contains(&format!("--{}", option.name))
        };
        let of_form: Vec<Choice> = options.iter().filter(named).cloned().collect();
        match actions.iter_mut().find(|action| action.name == name) {
            Some(action) => action.words.extend(next),
            None => actions.push(Action {
                name: name.to_owned(),
                options: of_form,
                words: next.into_iter().collect(),
            }),
        }
    }
    actions
}

/// The lines below "Options:" that begin with one: `-n, --name VALUE  what`.
fn options(text: &str) -> Vec<Choice> {
    let lines = text
        .lines()
        .skip_while(|line| !line.eq_ignore_ascii_case("options:"));
    let choice = |line: &str| {
        let (_, option) = line
            .split("  ")
            .find(|part| !part.is_empty())?
            .split_once("--")?;
        let mut words = option.split(' ');
        Some(Choice {
            name: words.next()?.to_owned(),
            takes_value: words.next().is_some(),
        })
    };
    let lines = lines.filter(|line| line.trim_start().starts_with('-'));
    lines.filter_map(choice).collect()
}

fn long(options: &[Choice]) -> String {
    let options: Vec<_> = options
        .iter()
        .map(|option| format!("--{}", option.name))
        .collect();
    options.join(" ")
}

fn first_words(program: &Program) -> String {
    let mut words: Vec<_> = program
        .subcommands
        .iter()
        .map(|sub| sub.name.clone())
        .collect();
    words.push(long(&program.options));
    words.join(" ")
}

const MADE: &str = "made from the help texts by tests/completions.rs";

fn bash(programs: &[Program]) -> String {
    let mut out = format!("# shellcheck shell=bash\n# Completions of umwelt for bash, {MADE}.\n\n");
    out.push_str(
        "_umwelt() {\n    local program=${1##*/} word=${COMP_WORDS[COMP_CWORD]} at\n    \
         local first='' second='' third='' words='' next=''\n    \
         for ((at = 1; at < COMP_CWORD; at++)); do\n        \
         [[ ${COMP_WORDS[at]} != -* ]] || continue\n        \
         if [[ -z $first ]]; then first=${COMP_WORDS[at]}\n        \
         elif [[ -z $second ]]; then second=${COMP_WORDS[at]}\n        \
         else third=${COMP_WORDS[at]} && break; fi\n    done\n    \
         case \"$program $first\" in\n",
    );
    for program in programs {
        let name = program.name;
        for sub in &program.subcommands {
            let name = format!("{name} {}", sub.name);
            push_bash(&mut out, &name, &sub.options, &sub.words);
        }
        let end = if program.subcommands.is_empty() {
            "*"
        } else {
            ""
        };
        writeln!(
            out,
            "        '{name} '{end}) words='{}' ;;",
            first_words(program)
        )
        .unwrap();
    }
    out.push_str("    esac\n    [[ -z $second ]] || next=''\n");
    out.push_str("    case \"$program $first $second\" in\n");
    for program in programs {
        for (sub, action) in program.actions() {
            let name = format!("{} {} {}", program.name, sub.name, action.name);
            push_bash(&mut out, &name, &action.options, &action.words);
        }
    }
    out.push_str(
        "    esac\n    COMPREPLY=()\n    \
         # Other words are files, or workspaces, by -o default.\n    \
         if [[ $word == -* || -z $first ]]; then\n        \
         mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n    \
         elif [[ -z $third ]]; then\n        \
         mapfile -t COMPREPLY < <(compgen -W \"$next\" -- \"$word\")\n    fi\n}\n\n",
    );
    writeln!(out, "complete -o default -F _umwelt {}", NAMES.join(" ")).unwrap();
    out
}

fn push_bash(out: &mut String, name: &str, options: &[Choice], words: &[String]) {
    let next = match words.is_empty() {
        true => String::new(),
        false => format!(" next='{}'", words.join(" ")),
    };
    let options = long(options);
    writeln!(out, "        '{name}') words='{options}'{next} ;;").unwrap();
}

fn zsh(programs: &[Program]) -> String {
    let mut out = format!(
        "#compdef {}\n# Completions of umwelt for zsh, {MADE}.\n\n",
        NAMES.join(" ")
    );
    out.push_str("case \"$service ${words[2]} ${words[3]}\" in\n");
    for program in programs {
        let name = program.name;
        for (sub, action) in program.actions() {
            let mut first = format!("'1: :' '2:word:({})' ", sub.words.join(" "));
            if !action.words.is_empty() {
                write!(first, "'3:word:({})' ", action.words.join(" ")).unwrap();
            }
            let specs = zsh_specs(&action.options, &first);
            let words = format!("{name} {} {}", sub.name, action.name);
            writeln!(out, "    ('{words}') _arguments {specs} ;;").unwrap();
        }
        for sub in &program.subcommands {
            let mut first = "'1: :' ".to_owned();
            if !sub.words.is_empty() {
                write!(first, "'2:word:({})' ", sub.words.join(" ")).unwrap();
            }
            let specs = zsh_specs(&sub.options, &first);
            writeln!(out, "    ('{name} {} '*) _arguments {specs} ;;", sub.name).unwrap();
        }
        let words = first_words(program);
        match program.subcommands.is_empty() {
            true => writeln!(
                out,
                "    ('{name} '*) _arguments {} ;;",
                zsh_specs(&program.options, "")
            ),
            false => writeln!(out, "    ('{name} '*) compadd -- {words} ;;"),
        }
        .unwrap();
    }
    out.push_str("esac\n");
    out
}

fn zsh_specs(options: &[Choice], first: &str) -> String {
    let mut specs = first.to_owned();
    for option in options {
        let value = if option.takes_value {
            ":value:_files"
        } else {
            ""
        };
        write!(specs, "'--{}{value}' ", option.name).unwrap();
    }
    specs + "'*:file:_files'"
}

fn fish(programs: &[Program]) -> String {
    let mut out = format!("# Completions of umwelt for fish, {MADE}.\n");
    for program in programs {
        let name = program.name;
        out.push('\n');
        let condition = match program.subcommands.is_empty() {
            true => "",
            false => " -n __fish_use_subcommand",
        };
        if !program.subcommands.is_empty() {
            let subs: Vec<_> = program
                .subcommands
                .iter()
                .map(|sub| sub.name.as_str())
                .collect();
            writeln!(
                out,
                "complete -c {name} -f{condition} -a '{}'",
                subs.join(" ")
            )
            .unwrap();
        }
        for option in &program.options {
            push_fish(&mut out, name, condition, option);
        }
        for sub in &program.subcommands {
            let seen = format!("__fish_seen_subcommand_from {}", sub.name);
            if !sub.words.is_empty() {
                let words = sub.words.join(" ");
                let unseen = format!("not __fish_seen_subcommand_from {words}");
                writeln!(
                    out,
                    "complete -c {name} -f -n '{seen}; and {unseen}' -a '{words}'"
                )
                .unwrap();
            }
            for action in sub.actions.iter().filter(|action| !action.words.is_empty()) {
                let (of, words) = (&action.name, action.words.join(" "));
                writeln!(
                    out,
                    "complete -c {name} -f -n '{seen}; and __fish_seen_subcommand_from {of}; \
                     and not __fish_seen_subcommand_from {words}' -a '{words}'"
                )
                .unwrap();
            }
            for option in &sub.options {
                let others = sub.actions.iter().filter(|action| !action.takes(option));
                let others: Vec<_> = others.map(|action| action.name.as_str()).collect();
                let unless = match others.is_empty() {
                    true => String::new(),
                    false => format!("; and not __fish_seen_subcommand_from {}", others.join(" ")),
                };
                push_fish(&mut out, name, &format!(" -n '{seen}{unless}'"), option);
            }
        }
    }
    out
}

fn push_fish(out: &mut String, name: &str, condition: &str, option: &Choice) {
    let value = if option.takes_value { " -r" } else { "" };
    writeln!(
        out,
        "complete -c {name}{condition} -l {}{value}",
        option.name
    )
    .unwrap();
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("share/completions")
        .join(name)
}

#[test]
fn completions_are_those_of_the_help_texts() {
    let programs = programs();
    for (name, expected) in [
        ("umwelt.bash", bash(&programs)),
        ("_umwelt", zsh(&programs)),
        ("umwelt.fish", fish(&programs)),
    ] {
        let path = path(name);
        if std::env::var_os("UMWELT_WRITE_GOLDEN").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &expected).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        let different = found.lines().zip(expected.lines()).find(|(a, b)| a != b);
        assert_eq!(
            different, None,
            "{name}: write it anew with UMWELT_WRITE_GOLDEN=1"
        );
        assert_eq!(found.len(), expected.len(), "{name}");
    }
}

#[test]
fn help_texts_are_understood() {
    let programs = programs();
    let install = programs
        .iter()
        .find(|program| program.name == "umwelt-install")
        .unwrap();
    let sub = |program: &Program, name: &str| {
        let found = program.subcommands.iter().position(|sub| sub.name == name);
        found.unwrap()
    };
    let options = &install.subcommands[sub(install, "install")].options;
    let prefix = options
        .iter()
        .find(|option| option.name == "prefix-bin")
        .unwrap();
    assert!(prefix.takes_value);
    assert!(
        options
            .iter()
            .any(|option| option.name == "no-image" && !option.takes_value)
    );
    let ctl = programs
        .iter()
        .find(|program| program.name == "umwelt-ctl")
        .unwrap();
    assert!(ctl.subcommands.len() >= 8);
    let words = |program, name| program_words(program, sub(program, name));
    assert_eq!(words(ctl, "wt"), "add rm list accept");
    assert_eq!(words(ctl, "egress"), "list add remove verify");
    assert_eq!(words(ctl, "exec"), "");
    assert_eq!(words(install, "ca"), "rotate");
    assert_eq!(
        words(install, "client"),
        "opencode claude codex goose vscode generic"
    );
    assert!(words(install, "help").starts_with("install status"));
    for program in &programs {
        assert!(
            program.options.iter().any(|option| option.name == "help"),
            "{}",
            program.name
        );
    }
}

fn program_words(program: &Program, sub: usize) -> String {
    program.subcommands[sub].words.join(" ")
}

/// What bash offers for the last of these words.
fn completed(words: &[&str]) -> Vec<String> {
    let script = ". \"$1\"; shift; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _umwelt \"$1\"; \
        printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["-uc", script, "bash"])
        .arg(path("umwelt.bash"))
        .args(words);
    let output = bash.output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn bash_offers_subcommands_and_their_options() {
    assert_eq!(completed(&["umwelt-ctl", "sto"]), ["stop"]);
    assert_eq!(completed(&["/home/u/bin/umwelt-install", "re"]), ["remove"]);
    assert_eq!(completed(&["umwelt-install", "remove", "--p"]), ["--purge"]);
    assert_eq!(completed(&["umwelt-run", "--wo"]), ["--workspace"]);
    assert_eq!(completed(&["umwelt-ctl", "wt", "a"]), ["add", "accept"]);
    assert_eq!(completed(&["umwelt-ctl", "egress", "ver"]), ["verify"]);
    assert_eq!(completed(&["umwelt-ctl", "wt", "--force", "r"]), ["rm"]);
    assert_eq!(completed(&["umwelt-ctl", "wt", "--f"]), ["--force"]);
    assert_eq!(completed(&["umwelt-install", "ca", ""]), ["rotate"]);
    assert_eq!(completed(&["umwelt-install", "client", "cl"]), ["claude"]);
    let egress = |words: &[&str]| completed(&[&["umwelt-ctl", "egress"], words].concat());
    assert_eq!(egress(&["add", ""]), ["https", "tcp"]);
    assert_eq!(egress(&["remove", "--json", "t"]), ["tcp"]);
    assert_eq!(egress(&["list", "--"]), ["--json", "--help", "--version"]);
    assert_eq!(egress(&["remove", "--p"]), ["--port", "--path"]);
    assert_eq!(egress(&["--pr"]), ["--private"]);
    let rm = completed(&["umwelt-ctl", "wt", "rm", "--"]);
    assert_eq!(rm, ["--force", "--help", "--version"]);
    // A file, or a workspace.
    assert_eq!(egress(&["add", "https", ""]), [""; 0]);
    assert_eq!(egress(&["verify", ""]), [""; 0]);
    assert_eq!(completed(&["umwelt-ctl", "wt", "add", "a"]), [""; 0]);
    assert_eq!(completed(&["umwelt-ctl", "stop", "x"]), [""; 0]);
    assert_eq!(completed(&["umwelt-ctl", "status", "--hard"]), [""; 0]);
}
