//! share/man is what scripts/roff.py makes of docs/man. `UMWELT_WRITE_GOLDEN=1`
//! writes it. It is committed, as the program carries it: a build needs no Python.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Output};

fn roff(args: &[&str]) -> Output {
    let mut roff = Command::new("python3");
    roff.arg("scripts/roff.py").args(args);
    roff.current_dir(super::root()).output().unwrap()
}

/// Of `umwelt-ctl.1`, `share/man/man1/umwelt-ctl.1`.
fn place(name: &str) -> PathBuf {
    let section = name.rsplit('.').next().unwrap();
    super::root().join(format!("share/man/man{section}/{name}"))
}

#[test]
fn committed_pages_are_those_of_their_sources() {
    let mut made = BTreeSet::new();
    for source in super::files_below(&super::root().join("docs/man"), "md") {
        let output = roff(&[source.to_str().unwrap(), env!("CARGO_PKG_VERSION")]);
        assert!(output.status.success(), "{source:?} {output:?}");
        let page = String::from_utf8(output.stdout).unwrap();
        let place = place(source.file_stem().unwrap().to_str().unwrap());
        if std::env::var_os("UMWELT_WRITE_GOLDEN").is_some() {
            std::fs::create_dir_all(place.parent().unwrap()).unwrap();
            std::fs::write(&place, &page).unwrap();
        }
        let found = std::fs::read_to_string(&place).unwrap_or_default();
        let is_same = found == page;
        assert!(
            is_same,
            "{place:?}: write it anew with UMWELT_WRITE_GOLDEN=1"
        );
        made.insert(place);
    }
    assert_eq!(made.len(), 8);
    let section = |number: &str| {
        let folder = super::root().join(format!("share/man/man{number}"));
        super::files_below(&folder, number)
    };
    let there: BTreeSet<_> = [section("1"), section("5")].into_iter().flatten().collect();
    assert_eq!(there, made, "a page without a source");
}

#[test]
fn it_says_how_it_is_called() {
    let said = |args: &[&str]| {
        let output = roff(args);
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    };
    let usage = "usage: roff.py SOURCE.md VERSION > PAGE.1\n";
    for (args, is_good) in [
        (&["--help"][..], true),
        (&["-h"], true),
        (&[], false),
        (&["docs/man/umwelt-ctl.1.md"], false),
    ] {
        let (success, text) = said(args);
        assert_eq!(success, is_good, "{text}");
        assert!(text.ends_with(usage), "{text}");
    }
}
