//! Manual pages: where man(1) looks after an installation, and gone with it.

use crate::stage::Stage;

const PAGES: &str = "home/.local/share/man";

/// What man shows as the user, of a page that it finds by itself.
fn shown(stage: &Stage, words: &[&str]) -> Result<String, String> {
    let mut man = stage.command("man");
    let path = format!("{}:/usr/bin:/bin", stage.path("home/.local/bin").display());
    man.args(words).env("PATH", path).env("LC_ALL", "C.UTF-8");
    let output = man.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    }
}

fn is_there(program: &str) -> bool {
    let mut path = std::env::split_paths("/usr/bin:/bin");
    path.any(|dir| dir.join(program).is_file())
}

#[test]
fn man_finds_the_pages_while_umwelt_is_installed() {
    let stage = Stage::with_image();
    let said = stage.done(&["install"]);
    let place = stage.path(PAGES).display().to_string();
    assert!(
        said.contains(&format!("man       pages put in {place}\n")),
        "{said}"
    );
    assert!(!said.contains("man -M"), "{said}");
    let page = stage.read(&format!("{PAGES}/man1/umwelt-install.1"));
    assert_eq!(page, include_str!("../../share/man/man1/umwelt-install.1"));
    if is_there("man") {
        let page = shown(&stage, &["umwelt-install"]).unwrap();
        assert!(page.contains("UMWELT-INSTALL(1)"), "{page}");
        let page = shown(&stage, &["umwelt.toml"]).unwrap();
        assert!(page.contains("max_timeout_s"), "{page}");
    }
    let said = stage.done(&["install"]);
    assert!(said.contains("man       pages are so already"), "{said}");
    let said = stage.done(&["remove"]);
    assert!(said.contains("man       pages removed"), "{said}");
    assert!(!stage.path("home/.local").exists());
    if is_there("man") {
        assert!(shown(&stage, &["umwelt-install"]).is_err());
    }
}

#[test]
fn where_man_does_not_look_by_itself_it_is_told_how_to() {
    let stage = Stage::with_image();
    let data = stage.path("home/data");
    let mut command = stage.install_command(&["install"]);
    let output = command.env("XDG_DATA_HOME", &data).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let hint = format!("man -M {}/man umwelt-install", data.display());
    assert!(said.contains(&hint), "{said}");
    assert!(data.join("man/man5/umwelt.toml.5").is_file());
}

#[test]
fn a_page_that_is_missing_or_old_is_seen_and_repaired() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    let man = |state: &str| {
        let ended = stage.run(&["status"]);
        let line = ended.stdout.lines().find(|line| line.starts_with("man "));
        let line = line.unwrap();
        assert!(line.contains(&format!(" {state} ")), "{ended:?}");
    };
    man("ok");
    std::fs::remove_file(stage.path(PAGES).join("man5/umwelt.toml.5")).unwrap();
    man("missing");
    stage.done(&["install"]);
    man("ok");
    stage.write("home/.local/lib/umwelt/man/umwelt-ctl.1", ".TH OLD 1\n");
    man("stale");
    stage.done(&["install"]);
    man("ok");
}

#[test]
fn pages_of_the_users_own_stay() {
    let stage = Stage::with_image();
    for name in ["home/.local", "home/.local/share", PAGES] {
        stage.make_dir(name);
    }
    stage.make_dir(&format!("{PAGES}/man1"));
    stage.write(&format!("{PAGES}/man1/umwelt-ctl.1"), ".TH MINE 1\n");
    let before = stage.listing("home/.local");
    let said = stage.done(&["install"]);
    assert!(
        said.contains("left alone, as it is not of umwelt"),
        "{said}"
    );
    assert_eq!(stage.run(&["status"]).code, Some(0));
    stage.done(&["remove"]);
    assert_eq!(stage.listing("home/.local"), before);
}
