//! client: settings are printed, and merged without losing anything.

use std::io::Write;
use std::process::Stdio;

use crate::stage::{Ended, Stage, is_root};

const OPENCODE: &str = "\
{
  // the look
  \"theme\": \"dark\",
  \"mcp\": {
    \"other\": { \"type\": \"local\", \"command\": [\"o\"] }, // mine
  },
  \"permission\": {
    \"bash\": \"ask\" // never without
  }
}
";

fn file(stage: &Stage) -> String {
    stage
        .path("home/settings.json")
        .to_str()
        .unwrap()
        .to_owned()
}

#[test]
fn every_client_gets_the_absolute_command() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    let command = stage.path("home/.local/bin/umwelt-mcp");
    for client in ["opencode", "claude", "codex", "goose", "vscode", "generic"] {
        let said = stage.done(&["client", client]);
        assert!(said.contains(command.to_str().unwrap()), "{client}: {said}");
    }
    let ended = stage.run(&["client", "emacs"]);
    assert_eq!(ended.code, Some(2));
    assert!(
        ended.stderr.contains("valid are: opencode, claude"),
        "{ended:?}"
    );
    let ended = stage.run(&["client"]);
    assert_eq!(ended.code, Some(2));
    assert!(
        ended
            .stderr
            .contains("needs one of opencode, claude, codex, goose, vscode, generic"),
        "{ended:?}"
    );
}

#[test]
fn before_an_installation_the_missing_command_is_told() {
    let stage = Stage::new();
    let ended = stage.run(&["client", "generic"]);
    assert_eq!(ended.code, Some(0));
    assert!(
        ended
            .stderr
            .contains("does not exist yet; run: umwelt-install install"),
        "{ended:?}"
    );
}

#[test]
fn the_skill_is_printed_alone() {
    let stage = Stage::new();
    let said = stage.done(&["client", "opencode", "--skill"]);
    assert!(
        said.starts_with("# Working in an umwelt sandbox\n"),
        "{said}"
    );
    let ended = stage.run(&["client", "opencode", "--skill", "--merge", &file(&stage)]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(!stage.path("home/settings.json").exists());
}

#[test]
fn settings_are_merged_with_a_copy_of_what_was_there() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    stage.write("home/settings.json", OPENCODE);
    stage.set_mode("home/settings.json", 0o640);
    let said = stage.done(&["client", "opencode", "--merge", &file(&stage), "--yes"]);
    assert!(said.contains("+    \"umwelt_grant\": \"ask\""), "{said}");
    let (_, left) = said.split_once("\nwhat is left to do:\n").unwrap();
    assert!(left.contains("  Choose the agent \"umwelt\""), "{said}");
    let after = stage.read("home/settings.json");
    for line in OPENCODE.lines().filter(|line| line.contains("//")) {
        let comment = line.split("//").last().unwrap();
        assert!(after.contains(comment), "{comment}: {after}");
    }
    assert!(
        after.contains("\"bash\": \"ask\", // never without\n    \"umwelt_shell\": \"allow\","),
        "{after}"
    );
    assert_eq!(stage.read("home/settings.json.before-umwelt-1"), OPENCODE);
    for name in ["home/settings.json", "home/settings.json.before-umwelt-1"] {
        assert_eq!(stage.mode(name), 0o640);
    }
    // Once more changes nothing, and keeps no further copy.
    let said = stage.done(&["client", "opencode", "--merge", &file(&stage), "--yes"]);
    assert!(said.contains("is so already\n"), "{said}");
    assert!(!stage.path("home/settings.json.before-umwelt-2").exists());
    let without: String = strip_comments(&after);
    let value: serde_json::Value = serde_json::from_str(&without).unwrap();
    assert_eq!(value["mcp"]["umwelt"]["type"], "local");
    assert_eq!(value["mcp"]["other"]["command"][0], "o");
    assert_eq!(value["agent"]["umwelt"]["permission"]["*"], "deny");
}

/// Good enough for the file above.
fn strip_comments(text: &str) -> String {
    text.lines()
        .map(|line| line.split(" //").next().unwrap())
        .collect()
}

#[test]
fn nothing_is_written_without_an_answer() {
    let stage = Stage::new();
    stage.write("home/settings.json", OPENCODE);
    let before = stage.listing("home");
    let mut command = stage.install_command(&["client", "opencode", "--merge", &file(&stage)]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // It may have left without reading.
    drop(child.stdin.take().unwrap().write_all(b"y\n"));
    let ended = Ended::from(child.wait_with_output().unwrap());
    ended.failed(&["not a terminal", "hint: ", "--yes"]);
    assert!(ended.stdout.contains("+    \"umwelt_shell\""), "{ended:?}");
    assert_eq!(stage.listing("home"), before);
}

/// Answers the question on a terminal; what was shown, and the exit code.
fn answer(stage: &Stage, answer: &str) -> (String, Option<i32>) {
    answer_after(stage, &file(stage), || {}, answer)
}

/// The same for any file, with something that happens before the answer.
fn answer_after(
    stage: &Stage,
    file: &str,
    happens: impl Fn(),
    answer: &str,
) -> (String, Option<i32>) {
    use rustix::pty::OpenptFlags;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags).unwrap();
    rustix::pty::unlockpt(&master).unwrap();
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags).unwrap();
    let mut command = stage.install_command(&["client", "generic", "--merge", file]);
    command
        .stdin(slave.try_clone().unwrap())
        .stdout(slave.try_clone().unwrap())
        .stderr(slave);
    let mut child = command.spawn().unwrap();
    // With it go the ends that it keeps for a further child.
    drop(command);
    let mut master = std::fs::File::from(master);
    let mut shown = String::new();
    let mut buffer = [0; 4096];
    let mut is_answered = false;
    // The end of a terminal is an error.
    while let Ok(len @ 1..) = std::io::Read::read(&mut master, &mut buffer) {
        shown.push_str(&String::from_utf8_lossy(&buffer[..len]));
        if shown.contains("[y/N] ") && !is_answered {
            is_answered = true;
            happens();
            master.write_all(answer.as_bytes()).unwrap();
        }
    }
    (shown, child.wait().unwrap().code())
}

#[test]
fn a_person_is_asked_and_the_answer_counts() {
    let stage = Stage::new();
    stage.write("home/settings.json", "{}\n");
    let (shown, code) = answer(&stage, "n\n");
    assert_eq!(code, Some(1), "{shown}");
    assert!(shown.contains("+  \"mcpServers\": {"), "{shown}");
    assert!(shown.contains("nothing is changed"), "{shown}");
    assert_eq!(stage.read("home/settings.json"), "{}\n");
    let (shown, code) = answer(&stage, "y\n");
    assert_eq!(code, Some(0), "{shown}");
    assert!(stage.read("home/settings.json").contains("mcpServers"));
    assert_eq!(stage.read("home/settings.json.before-umwelt-1"), "{}\n");
}

#[test]
fn link_in_the_place_of_the_directory_leads_to_no_other_file() {
    let stage = Stage::new();
    for dir in ["home/.x", "home/.p", "home/.p/.x"] {
        stage.make_dir(dir);
        if dir.ends_with(".x") {
            stage.write(&format!("{dir}/settings.json"), "{}\n");
        }
    }
    let file = stage.path("home/.p/.x/settings.json");
    let swap = || {
        std::fs::rename(stage.path("home/.p/.x"), stage.path("home/.p/y")).unwrap();
        std::os::unix::fs::symlink(stage.path("home/.x"), stage.path("home/.p/.x")).unwrap();
    };
    let (shown, code) = answer_after(&stage, file.to_str().unwrap(), swap, "y\n");
    assert_eq!(code, Some(0), "{shown}");
    assert_eq!(stage.read("home/.x/settings.json"), "{}\n");
    assert_eq!(std::fs::read_dir(stage.path("home/.x")).unwrap().count(), 1);
    assert!(stage.read("home/.p/y/settings.json").contains("mcpServers"));
    assert_eq!(
        stage.read("home/.p/y/settings.json.before-umwelt-1"),
        "{}\n"
    );
}

#[test]
fn a_new_file_is_made_with_its_directory() {
    let stage = Stage::new();
    let path = stage.path("home/.codex/config.toml");
    let ended = stage.run(&[
        "client",
        "codex",
        "--merge",
        path.to_str().unwrap(),
        "--yes",
    ]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(
        stage
            .read("home/.codex/config.toml")
            .starts_with("[mcp_servers.umwelt]\n")
    );
    assert_eq!(
        std::fs::read_dir(stage.path("home/.codex"))
            .unwrap()
            .count(),
        1
    );
}

/// In quotes, and after `--merge=`, no shell expands a tilde.
#[test]
fn a_tilde_is_the_home_and_never_a_directory() {
    let stage = Stage::new();
    stage.make_dir("home/.p");
    let merge = |word: &str| {
        let mut command = stage.install_command(&["client", "codex", word, "--yes"]);
        command.current_dir(stage.path("home/.p"));
        Ended::from(command.output().unwrap())
    };
    let ended = merge("--merge=~/.codex/config.toml");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(stage.path("home/.codex/config.toml").exists());
    assert_eq!(merge("--merge=~other/config.toml").code, Some(2));
    assert!(!stage.path("home/.p/~").exists());
    assert!(!stage.path("home/.p/~other").exists());
    assert_eq!(merge("--merge=./~other.toml").code, Some(0));
    assert!(stage.path("home/.p/~other.toml").exists());
    let ended = stage.run(&[
        "install",
        "--no-image",
        "--no-egress",
        "--prefix-bin=~/mine",
    ]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(stage.path("home/mine/umwelt-ctl").is_symlink());
}

/// What runs in the sandbox could write them, and clients run what they name.
#[test]
fn settings_of_a_project_are_refused_and_the_right_file_is_named() {
    let stage = Stage::new();
    for dir in ["home/p", "home/p/.vscode", "home/p/.claude"] {
        stage.make_dir(dir);
    }
    stage.write("home/p/.mcp.json", "{}\n");
    let before = stage.listing("home");
    for (client, file, right) in [
        ("vscode", ".vscode/mcp.json", "~/.config/Code/User/mcp.json"),
        ("claude", ".mcp.json", "--merge ~/.claude.json"),
        (
            "claude",
            ".claude/settings.json",
            "--merge ~/.claude/settings.json",
        ),
        (
            "opencode",
            "opencode.json",
            "~/.config/opencode/opencode.jsonc",
        ),
        ("codex", ".codex/config.toml", "~/.codex/config.toml"),
        ("generic", "new/mcp.json", "in your home"),
        ("goose", "config.yaml", "client goose"),
    ] {
        let mut command = stage.install_command(&["client", client, "--merge", file, "--yes"]);
        command.current_dir(stage.path("home/p"));
        let ended = Ended::from(command.output().unwrap());
        let named = stage.path("home/p").join(file);
        let named = format!("{named:?} is not changed: ");
        ended.failed(&[&named, "can be a workspace", "hint: ", right]);
        assert_eq!(stage.listing("home"), before);
    }
    // So that nobody is sent to the file of a project.
    let ended = stage.run(&["client", "claude", "--merge", "~/x.json", "--yes"]);
    ended.failed(&["~/.claude.json", "client claude\n"]);
    assert!(!ended.stderr.contains(".mcp.json"), "{ended:?}");
    let ended = stage.run(&["client", "claude", "--merge", "~/.claude.json", "--yes"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn the_clients_name_is_told_where_it_was_nearly_given() {
    let ended = Stage::new().run(&["client", "claude-code"]);
    assert_eq!(ended.code, Some(2));
    assert!(
        ended.stderr.contains("did you mean \"claude\"?"),
        "{ended:?}"
    );
}

#[test]
fn a_linked_file_is_edited_where_it_is() {
    let stage = Stage::new();
    stage.make_dir("home/dotfiles");
    stage.write("home/dotfiles/s.json", "{}\n");
    let link = stage.path("home/settings.json");
    std::os::unix::fs::symlink("dotfiles/s.json", &link).unwrap();
    let ended = stage.run(&["client", "generic", "--merge", &file(&stage), "--yes"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(link.is_symlink());
    assert!(stage.read("home/dotfiles/s.json").contains("mcpServers"));
    assert!(
        ended.stdout.contains("never make that a workspace"),
        "{ended:?}"
    );
}

/// What is written by other editors, other systems, and older versions.
#[test]
fn odd_files_are_edited_with_their_oddities() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    let own = stage.path("home/.local/bin/umwelt-mcp");
    let own = own.to_str().unwrap();
    let odd = [
        (
            "generic",
            "\u{feff}{\r\n  // mine\r\n  \"a\": [1,],\r\n}\r\n",
        ),
        ("generic", "// mine"),
        (
            "generic",
            "{\"mcpServers\": {\"umwelt\": {\"command\": \"/old\", \"env\": {\"mine\": \"\"}}}}",
        ),
        (
            "opencode",
            "{\"agent\": {\"umwelt\": {\"tools\": {\"bash\": false}}}} // mine\n",
        ),
        ("codex", "\u{feff}model = \"m\" # mine\r\n"),
        (
            "codex",
            "[mcp_servers.'umwelt']\ncommand = '/old' # mine\n[tools]\nx = 1",
        ),
    ];
    for (client, text) in odd {
        stage.write("home/settings.json", text);
        let said = stage.done(&["client", client, "--merge", &file(&stage), "--yes"]);
        let after = stage.read("home/settings.json");
        assert!(after.contains(own) && !after.contains("/old"), "{after}");
        assert!(after.contains("mine"), "{after}");
        assert_eq!(after.starts_with('\u{feff}'), text.starts_with('\u{feff}'));
        if text.contains('\r') {
            assert_eq!(after.matches('\n').count(), after.matches("\r\n").count());
        }
        let (_, copy) = said.split_once("; as it was: ").unwrap();
        let copy = copy.lines().next().unwrap();
        assert_eq!(std::fs::read_to_string(copy).unwrap(), text);
        let said = stage.done(&["client", client, "--merge", &file(&stage), "--yes"]);
        assert!(said.contains("is so already"), "{said}");
    }
}

#[test]
fn places_that_cannot_be_written_stay_as_they_are() {
    let stage = Stage::new();
    stage.make_dir("home/closed");
    stage.write("home/closed/settings.json", "{}\n");
    std::os::unix::fs::symlink("closed/settings.json", stage.path("home/settings.json")).unwrap();
    stage.set_mode("home/closed", 0o555);
    let before = stage.listing("home");
    let ended = stage.run(&["client", "generic", "--merge", &file(&stage), "--yes"]);
    ended.failed(&["cannot write", "Permission denied", "hint: "]);
    assert_eq!(stage.listing("home"), before);
    for (link, to) in [("home/a.json", "b.json"), ("home/b.json", "a.json")] {
        std::os::unix::fs::symlink(to, stage.path(link)).unwrap();
    }
    let looped = stage.path("home/a.json");
    let ended = stage.run(&[
        "client",
        "generic",
        "--merge",
        looped.to_str().unwrap(),
        "--yes",
    ]);
    ended.failed(&["is not changed", "symbolic link"]);
}

#[test]
fn odd_files_are_refused_and_stay_as_they_are() {
    let stage = Stage::new();
    let deep = "[".repeat(5000);
    let long = format!("{{\"a\": \"{}\"}}", "x".repeat(5 << 20));
    let odd: [(&[u8], &str); 7] = [
        (b"{ not json", "line 1"),
        (b"{\n\"a\": 1,\n\"b\" 2}", "line 3"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b"{\"mcpServers\": []}", "an object"),
        (
            b"{\"mcpServers\": {\"umwelt\": {\"command\": {}}}}",
            "should be none",
        ),
        (deep.as_bytes(), "too deeply"),
        (long.as_bytes(), "larger than"),
    ];
    for (bytes, why) in odd {
        stage.write("home/settings.json", bytes);
        let before = stage.listing("home");
        let ended = stage.run(&["client", "generic", "--merge", &file(&stage), "--yes"]);
        ended.failed(&["is not changed", why, "hint: "]);
        assert_eq!(stage.listing("home"), before);
    }
    for path in ["/dev/zero", "/proc/self/environ/x", "/"] {
        let ended = stage.run(&["client", "generic", "--merge", path, "--yes"]);
        // The warning about the program that is not there yet is no answer.
        let told = ended.stderr.lines().filter(|line| !line.contains("warn: "));
        assert!(told.count() > 0, "{ended:?}");
        ended.failed(&[]);
    }
}

#[test]
fn a_file_of_another_user_is_left_alone() {
    if !is_root() {
        eprintln!("skipped: only root can make a file of another user");
        return;
    }
    let stage = Stage::new();
    std::fs::write(stage.path("home/settings.json"), "{}\n").unwrap();
    let ended = stage.run(&["client", "generic", "--merge", &file(&stage), "--yes"]);
    ended.failed(&["belongs to uid 0"]);
    assert_eq!(stage.read("home/settings.json"), "{}\n");
}
