//! Completions: where shells look for them after an installation, and gone with
//! it, but for what is the user's own.

use crate::stage::Stage;

const BASH: &str = "home/.local/share/bash-completion/completions";
const FISH: &str = "home/.local/share/fish/vendor_completions.d";
const FILES: &str = "home/.local/lib/umwelt/completions";

#[test]
fn each_command_has_completions_where_its_shell_looks() {
    let stage = Stage::with_image();
    let said = stage.done(&["install"]);
    let zsh = format!("fpath=({} $fpath)", stage.path(FILES).display());
    assert!(said.contains(&zsh), "{said}");
    for name in ["umwelt-ctl", "umwelt-install", "umwelt-run", "umwelt-mcp"] {
        let bash = stage.read(&format!("{BASH}/{name}"));
        assert_eq!(
            bash,
            include_str!("../../share/completions/umwelt.bash"),
            "{name}"
        );
        let fish = stage.read(&format!("{FISH}/{name}.fish"));
        assert_eq!(
            fish,
            include_str!("../../share/completions/umwelt.fish"),
            "{name}"
        );
    }
    let zsh = stage.read(&format!("{FILES}/_umwelt"));
    assert!(zsh.starts_with("#compdef umwelt-mcp "), "{zsh}");
    let said = stage.done(&["install"]);
    assert!(said.contains("shells    are so already"), "{said}");
    assert!(!said.contains("fpath"), "{said}");
}

#[test]
fn what_is_missing_or_old_is_seen_and_repaired() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    let shells = |state: &str| {
        let ended = stage.run(&["status"]);
        let line = ended.stdout.lines().find(|line| line.starts_with("shells"));
        let line = line.unwrap();
        assert!(line.contains(&format!(" {state} ")), "{ended:?}");
    };
    shells("ok");
    std::fs::remove_file(stage.path(BASH).join("umwelt-ctl")).unwrap();
    shells("missing");
    stage.done(&["install"]);
    shells("ok");
    stage.write(&format!("{FILES}/umwelt.fish"), "# older\n");
    shells("stale");
    stage.done(&["install"]);
    shells("ok");
}

#[test]
fn completions_of_the_users_own_stay() {
    let stage = Stage::with_image();
    for name in [
        "home/.local",
        "home/.local/share",
        "home/.local/share/bash-completion",
        BASH,
    ] {
        stage.make_dir(name);
    }
    let own = format!("{BASH}/umwelt-ctl");
    stage.write(&own, "# mine\n");
    let linked = stage.path(BASH).join("umwelt-run");
    std::os::unix::fs::symlink("umwelt-ctl", &linked).unwrap();
    stage.own(&linked);
    let before = stage.listing("home/.local");
    let said = stage.done(&["install"]);
    assert!(
        said.contains("left alone, as it is not of umwelt"),
        "{said}"
    );
    assert_eq!(stage.run(&["status"]).code, Some(0));
    let said = stage.done(&["remove"]);
    assert!(said.contains("shells    completions removed"), "{said}");
    assert_eq!(stage.listing("home/.local"), before);
}
