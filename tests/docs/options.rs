//! What the parsers take, the help texts, and the manual pages: the same words in each.
//! The completions are made from the help texts, by tests/completions.rs.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

type Words = BTreeSet<String>;

const WITH_SUBCOMMANDS: [&str; 2] = ["umwelt-ctl", "umwelt-install"];

/// The others, and the files that parse their options.
const WITHOUT: [(&str, &str); 5] = [
    ("umwelt-mcp", "src/mcp/mod.rs"),
    ("umwelt-run", "src/run/mod.rs"),
    ("umwelt-init", "src/init/mod.rs"),
    ("umwelt-gateway", "src/gateway/options.rs"),
    ("umwelt-nft-hook", "src/nft/hook.rs"),
];

/// What `umwelt-run` starts itself with. In its manual page, and in no help text.
const INTERNAL: [&str; 2] = ["--launched", "--mount-helper"];

/// A subcommand about subcommands, which has no options of its own.
const HELP: &str = "help";

/// What is in no SYNOPSIS.
const NOT_IN_SYNOPSIS: [&str; 2] = ["--help", "--version"];

fn run(name: &str, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_umwelt"));
    command.arg0(name).args(args).env_clear().output().unwrap()
}

fn help(name: &str, args: &[&str]) -> String {
    let args = [args, &["--help"]].concat();
    String::from_utf8(run(name, &args).stdout).unwrap()
}

/// What a parser says that it takes, when it is given another word.
fn taken(name: &str, args: &[&str]) -> Words {
    let said = String::from_utf8(run(name, args).stderr).unwrap();
    let (_, rest) = said.split_once("valid are: ").unwrap();
    let list = rest.lines().next().unwrap();
    list.split(", ").map(str::to_owned).collect()
}

fn subcommands(name: &str) -> Words {
    let mut names = taken(name, &["no-subcommand"]);
    names.remove(HELP);
    names
}

/// The long options at the beginning of lines.
fn listed(help: &str) -> Words {
    let lines = help
        .lines()
        .filter(|line| line.trim_start().starts_with('-'));
    lines
        .flat_map(|line| options(line).into_iter().take(1))
        .collect()
}

/// The long options in a text, in their order.
fn options(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    let long = words.filter(|word| word.len() > 2 && word.starts_with("--"));
    long.map(str::to_owned).collect()
}

/// For each subcommand and the word after it, if that is one as well, the options.
fn forms(paragraphs: &str) -> BTreeMap<Vec<String>, Words> {
    let mut forms: BTreeMap<_, Words> = BTreeMap::new();
    for paragraph in paragraphs.split("umwelt-").skip(1) {
        let words = paragraph.split_whitespace().skip(1);
        let is_name = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase());
        let name = words.take_while(is_name).map(str::to_owned).collect();
        forms.entry(name).or_default().extend(options(paragraph));
    }
    forms
}

fn synopsis(name: &str) -> String {
    let page = super::read(&format!("docs/man/{name}.1.md"));
    let (_, rest) = page.split_once("\n# SYNOPSIS\n").unwrap();
    rest.split("\n# ").next().unwrap().replace('*', "")
}

#[test]
fn parsers_take_what_the_help_texts_list() {
    for name in WITH_SUBCOMMANDS {
        let text = help(name, &[]);
        assert_eq!(taken(name, &["--no-option"]), listed(&text), "{name}");
        let lines = text.lines().skip_while(|line| *line != "Subcommands:");
        let lines = lines.skip(1).take_while(|line| !line.is_empty());
        let starts = lines.filter_map(|line| line.strip_prefix("  "));
        let starts = starts.filter(|line| !line.starts_with(' '));
        let mut names: Words = starts
            .map(|line| line.split(' ').next().unwrap().to_owned())
            .collect();
        assert!(names.remove(HELP), "{name}");
        assert_eq!(subcommands(name), names, "{name}");
        for sub in subcommands(name) {
            let taken = taken(name, &[&sub, "--no-option"]);
            assert_eq!(taken, listed(&help(name, &[&sub])), "{name} {sub}");
        }
    }
}

#[test]
fn programs_without_subcommands_take_what_their_help_texts_list() {
    for (name, file) in WITHOUT {
        let source = super::read(file);
        let source = source.split("#[cfg(test)]").next().unwrap();
        let names = source
            .split("Long(\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap());
        let mut taken: Words = names.map(|name| format!("--{name}")).collect();
        if name == "umwelt-run" {
            let page = super::read("docs/man/umwelt-run.1.md");
            for option in INTERNAL {
                assert!(taken.remove(option) && page.contains(&format!("**{option}**")));
            }
        }
        assert_eq!(taken, listed(&help(name, &[])), "{name}");
    }
}

/// As for `umwelt-run`: `doctor` calls itself with it in its sandbox.
#[test]
fn what_doctor_starts_itself_with_is_in_its_manual_page_alone() {
    let option = "--from-inside";
    let page = super::read("docs/man/umwelt-install.1.md");
    assert!(page.contains(&format!("**{option}**")));
    assert!(!help("umwelt-install", &["doctor"]).contains(option));
    assert!(!taken("umwelt-install", &["doctor", "--no-option"]).contains(option));
    let output = run("umwelt-install", &["doctor", option, "{"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(&format!("{option}: ")), "{said}");
}

#[test]
fn synopses_have_each_subcommand_with_its_options() {
    for name in WITH_SUBCOMMANDS {
        let mut page = forms(&synopsis(name));
        assert_eq!(page.remove(&vec![HELP.to_owned()]), Some(Words::new()));
        let mut usage = BTreeMap::new();
        for sub in subcommands(name) {
            let text = help(name, &[&sub]);
            let text = text.split("\n\n").next().unwrap();
            let of_help = forms(text);
            let of_page = page.iter().filter(|(words, _)| words[0] == sub);
            let both: Words = of_page.flat_map(|(_, options)| options.clone()).collect();
            let mut listed = listed(&help(name, &[&sub]));
            listed.retain(|option| !NOT_IN_SYNOPSIS.contains(&option.as_str()));
            assert_eq!(both, listed, "the SYNOPSIS of {name}, {sub}");
            if !text.contains("[OPTION…]") {
                usage.extend(of_help);
            } else {
                usage.extend(
                    of_help
                        .into_keys()
                        .map(|words| (words.clone(), page[&words].clone())),
                );
            }
        }
        assert_eq!(page, usage, "{name}");
    }
    for (name, _) in WITHOUT {
        let listed = listed(&help(name, &[]));
        let text = synopsis(name);
        let named: Words = options(&text).into_iter().collect();
        let missing: Vec<_> = listed.difference(&named).collect();
        let is_whole = missing == ["--help", "--version"];
        assert!(
            is_whole || text.contains("[OPTION]..."),
            "{name} {missing:?}"
        );
        assert!(named.is_subset(&listed), "{name} {named:?}");
    }
}

#[test]
fn manual_pages_tell_for_which_subcommand_an_option_is() {
    for name in WITH_SUBCOMMANDS {
        let page = super::read(&format!("docs/man/{name}.1.md")).replace('*', "");
        let (_, rest) = page.split_once("\n# OPTIONS\n").unwrap();
        let entries: Vec<_> = rest.split("\n\n").collect();
        for sub in subcommands(name) {
            let of_all = ["--help", "--version"].map(str::to_owned);
            for option in listed(&help(name, &[&sub])).difference(&Words::from(of_all)) {
                let mut of_this = entries.iter();
                let entry = of_this.find(|entry| options(entry).first() == Some(option));
                let entry = entry.unwrap_or_else(|| panic!("{name} {option}"));
                let mut words = entry.split(|c: char| !c.is_alphanumeric());
                assert!(words.any(|word| word == sub), "{name} {sub} {option}");
            }
        }
    }
}

#[test]
fn other_pages_name_every_subcommand() {
    let readme = super::read("README.md");
    let design = super::read("docs/design.md");
    for name in WITH_SUBCOMMANDS {
        let row = format!("| `{name}` |");
        let row = design.lines().find(|line| line.starts_with(&row)).unwrap();
        for sub in subcommands(name) {
            assert!(
                readme.contains(&format!("`{name} {sub}")) || name != "umwelt-ctl",
                "{sub}"
            );
            let mut words = row.split(|c: char| !c.is_alphanumeric());
            assert!(words.any(|word| word == sub), "design.md, {name}: {sub}");
        }
    }
}

#[test]
fn readme_shows_options_that_the_parsers_take() {
    let readme = super::read("README.md");
    let mut count = 0;
    for [call, _] in super::pages::rows(&readme, &["command", "what it does"]) {
        let call = call.trim_matches('`').replace("\\|", " ");
        let mut words = call.split(' ');
        let (name, sub) = (words.next().unwrap(), words.next().unwrap());
        for option in options(&call) {
            count += 1;
            let taken = taken(name, &[sub, "--no-option"]);
            assert!(taken.contains(&option), "{call}");
        }
    }
    assert!(count > 10, "{count}");
}
