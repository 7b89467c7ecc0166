//! trust: the question, its answers, and what happens meanwhile.

use std::path::PathBuf;

use serde_json::Value;

use crate::home::{Home, Ran, finish};
use crate::terminal::Session;

const TEXT: &str = "# mine\n[[grants]]\npath = \"/srv/a\"\nmode = \"rw\"\n";

fn file(home: &Home) -> PathBuf {
    PathBuf::from(&home.workspace).join(".umwelt.toml")
}

fn write(home: &Home, text: &str) {
    std::fs::write(file(home), text).unwrap();
}

fn record(home: &Home) -> PathBuf {
    home.path(&format!("state/umwelt/trust/{}.json", home.sid))
}

/// The text that counts.
fn accepted(home: &Home) -> Option<String> {
    let record = std::fs::read(record(home)).ok()?;
    let record: Value = serde_json::from_slice(&record).unwrap();
    Some(record["accepted"]["text"].as_str().unwrap().to_owned())
}

fn ask(home: &Home) -> Session {
    let session = Session::start(home, &["trust", &home.workspace]);
    session.wait_for("accept? [y/N] ");
    session
}

fn answer(home: &Home, keys: &str) -> Ran {
    let mut session = ask(home);
    session.type_keys(keys);
    session.finish()
}

fn trust(home: &Home, option: &str) -> Ran {
    home.run(&["trust", option, &home.workspace])
}

#[test]
fn meaning_is_shown_before_the_text_and_the_answer_counts() {
    let home = Home::new();
    write(&home, TEXT);
    let mut session = ask(&home);
    let shown = session.shown();
    let meaning = shown
        .find("! adds read-write access to \"/srv/a\"")
        .unwrap();
    let text = shown.find("+path = \"/srv/a\"").unwrap();
    assert!(meaning < text, "{shown}");
    session.type_keys("y\r");
    session.wait_for("accepted\r\n");
    assert_eq!(session.finish().code, Some(0));
    assert_eq!(accepted(&home).as_deref(), Some(TEXT));
    let ran = trust(&home, "--diff");
    assert_eq!(ran.code, Some(0));
    assert!(ran.text().contains("is accepted as it is"), "{ran:?}");
}

#[test]
fn any_other_answer_is_no() {
    let home = Home::new();
    write(&home, TEXT);
    for keys in ["\r", "n\r", "no\r", "yy\r", "\u{4}"] {
        let ran = answer(&home, keys);
        assert_eq!(ran.code, Some(1), "{keys:?} {ran:?}");
        assert!(ran.stderr.contains("not accepted"), "{ran:?}");
        assert_eq!(accepted(&home), None);
    }
}

#[test]
fn file_that_is_swapped_during_the_question_is_not_accepted() {
    let home = Home::new();
    for swap in [
        &|home: &Home| write(home, &TEXT.replace("/srv/a", "/etc")) as (),
        &|home: &Home| std::fs::remove_file(file(home)).unwrap(),
        &|home: &Home| {
            std::fs::write(home.path("other"), TEXT).unwrap();
            std::fs::remove_file(file(home)).unwrap();
            std::os::unix::fs::symlink(home.path("other"), file(home)).unwrap();
        },
    ] as [&dyn Fn(&Home); 3]
    {
        let _any = std::fs::remove_file(file(&home));
        write(&home, TEXT);
        let mut session = ask(&home);
        swap(&home);
        session.type_keys("y\r");
        let ran = session.finish();
        assert_ne!(ran.code, Some(0), "{ran:?}");
        assert!(!ran.stderr.is_empty());
        assert_eq!(accepted(&home), None);
    }
    let _any = std::fs::remove_file(file(&home));
    write(&home, TEXT);
    let mut session = ask(&home);
    write(&home, &format!("{TEXT}# more\n"));
    session.type_keys("y\r");
    let ran = session.finish();
    let wanted = "not accepted: the file changed while you were reading; run it again";
    assert!(ran.stderr.contains(wanted), "{ran:?}");
    assert_eq!(ran.code, Some(1));
}

#[test]
fn what_was_typed_before_the_question_is_no_answer() {
    let home = Home::new();
    write(&home, TEXT);
    let args = ["trust", &home.workspace];
    let mut session = Session::start_with(&home, &args, "xterm", "y\r");
    session.wait_for("accept? [y/N] ");
    session.type_keys("\r");
    assert_eq!(session.finish().code, Some(1));
    assert_eq!(accepted(&home), None);
}

#[test]
fn without_a_terminal_only_yes_accepts() {
    let home = Home::new();
    write(&home, TEXT);
    let ran = home.run(&["trust", &home.workspace]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("not a terminal"), "{ran:?}");
    let way_out = format!("with: umwelt-ctl trust --yes {}\n", home.workspace);
    assert!(ran.stderr.ends_with(&way_out), "{ran:?}");
    assert_eq!((ran.text(), accepted(&home)), ("", None));
    let ran = trust(&home, "--diff");
    assert_eq!(ran.code, Some(1));
    assert!(ran.text().contains("it was never accepted"), "{ran:?}");
    assert_eq!(accepted(&home), None);
    let ran = trust(&home, "--yes");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.text().ends_with("\naccepted\n"), "{ran:?}");
    assert_eq!(accepted(&home).as_deref(), Some(TEXT));
}

#[test]
fn edit_is_shown_against_what_was_accepted() {
    let home = Home::new();
    write(&home, TEXT);
    assert_eq!(trust(&home, "--yes").code, Some(0));
    write(
        &home,
        &TEXT.replace("\"rw\"", "\"ro\"  # \u{202e}\u{9b}less"),
    );
    let ran = trust(&home, "--diff");
    assert_eq!(ran.code, Some(1));
    let name = format!("{:?}", file(&home));
    let roots = home.path("home");
    assert_eq!(
        ran.text(),
        format!(
            "{name} does not count: it has changed since it was accepted\n\nAccepting it\n  \
             - changes read-write access to \"/srv/a\" to read-only access to \"/srv/a\"\n  \
             ! not granted: \"/srv/a\", with its links resolved, lies outside of what can be granted: [{roots:?}]\n\n\
             --- accepted\n+++ now\n@@ -1,4 +1,4 @@\n # mine\n [[grants]]\n path = \"/srv/a\"\n\
             -mode = \"rw\"\n+mode = \"ro\"  # \\u{{202e}}\\x9bless\n"
        )
    );
}

#[test]
fn revoked_trust_is_gone_also_for_a_directory_that_is_gone() {
    let home = Home::new();
    write(&home, TEXT);
    assert_eq!(trust(&home, "--yes").code, Some(0));
    assert_eq!(trust(&home, "--revoke").text(), "revoked\n");
    assert_eq!(accepted(&home), None);
    assert_eq!(trust(&home, "--revoke").text(), "nothing was accepted\n");
    assert_eq!(trust(&home, "--yes").code, Some(0));
    std::fs::remove_dir_all(&home.workspace).unwrap();
    assert_eq!(trust(&home, "--revoke").text(), "revoked\n");
}

#[test]
fn many_at_once_leave_one_record_and_nothing_else() {
    let home = Home::new();
    write(&home, TEXT);
    let start = |option: &str| {
        let mut command = home.ctl(&["trust", option, &home.workspace]);
        command.spawn().unwrap()
    };
    let options = ["--yes", "--revoke"].into_iter().cycle().take(12);
    let children: Vec<_> = options.map(start).collect();
    for child in children {
        let ran = finish(child);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    assert_eq!(trust(&home, "--yes").code, Some(0));
    assert_eq!(accepted(&home).as_deref(), Some(TEXT));
    let left = home.path("state/umwelt/trust").read_dir().unwrap();
    assert_eq!(left.count(), 2, "more than record and lock");
}

#[test]
fn session_id_names_a_workspace_that_was_accepted_or_runs() {
    let home = Home::new();
    write(&home, TEXT);
    let ran = home.run(&["trust", "--yes", &home.sid]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let control_plane = home.control_plane();
    let ran = home.run(&["trust", "--yes", &home.sid]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let later = format!(
        "accepted\ntakes effect at the next start; end the running sandbox with: \
         umwelt-ctl stop {}\n",
        home.sid
    );
    assert!(ran.text().ends_with(&later), "{ran:?}");
    drop(control_plane);
    std::fs::remove_file(home.socket()).unwrap();
    write(&home, &TEXT.replace("srv", "opt"));
    assert_eq!(home.run(&["trust", "--diff", &home.sid]).code, Some(1));
}

#[test]
fn what_a_file_cannot_be_is_named_and_not_accepted() {
    let home = Home::new();
    let path = file(&home);
    let refused = |wanted: &str| {
        for option in ["--diff", "--yes"] {
            let ran = trust(&home, option);
            assert_eq!(ran.code, Some(2), "{ran:?}");
            assert!(ran.stderr.contains(wanted), "{wanted}: {ran:?}");
        }
        assert_eq!(accepted(&home), None);
    };
    write(&home, &TEXT.replace("rw", "all"));
    refused("line 4: grants.mode: \"");
    write(&home, &format!("{TEXT}mode = \"ro\"\n"));
    refused("line 5: mode stands there twice");
    write(&home, &TEXT[..30]);
    refused("line 3");
    std::fs::write(&path, vec![b'\n'; 50 << 20]).unwrap();
    refused("larger than 262144 bytes");
    std::fs::write(home.path("other"), TEXT).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::hard_link(home.path("other"), &path).unwrap();
    refused("2 names");
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(home.path("other"), &path).unwrap();
    refused("a symbolic link");
    std::fs::remove_file(&path).unwrap();
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
    refused("a FIFO");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    refused("a directory");
}

#[test]
fn nothing_to_accept_is_no_failure() {
    let home = Home::new();
    for option in ["--diff", "--yes"] {
        let ran = trust(&home, option);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let none = format!("there is no {:?}; nothing to accept\n", file(&home));
        assert_eq!(ran.text(), none);
    }
    write(&home, "# words\n");
    let ran = home.run(&["trust", &home.workspace]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.text().contains("asks for nothing"), "{ran:?}");
    assert_eq!(accepted(&home), None);
    let ran = home.run(&["trust", "--diff", "--yes", &home.workspace]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
}

/// Where the transcript stands in docs/configuration.md.
const DOCS: &str = include_str!("../../docs/configuration.md");
const BEGIN: &str = "<!-- transcript of umwelt-ctl trust: begin -->\n";
const END: &str = "<!-- transcript of umwelt-ctl trust: end -->";

/// The way of an edit from the notice to its acceptance, as it is shown in the
/// documents, typed here by a person's hands.
#[test]
fn transcript_in_the_documents_is_what_a_person_sees() {
    let home = Home::new();
    let dev = home.path("home/dev");
    let (shared, other) = (dev.join("shared"), dev.join("other"));
    for dir in [&shared, &other] {
        std::fs::create_dir_all(dir).unwrap();
    }
    let shared = format!("[[grants]]\npath = {shared:?}\nmode = \"ro\"\n");
    write(&home, &shared);
    assert_eq!(trust(&home, "--yes").code, Some(0));
    write(
        &home,
        &format!("{shared}\n[[grants]]\npath = {other:?}\nmode = \"rw\"\n"),
    );
    let _running = home.control_plane();
    let mut session = Session::start_as(&home, &["trust", &home.workspace], "dumb");
    session.wait_for("accept? [y/N] ");
    session.type_keys("y\r");
    // To the end of its last line.
    session.wait_for(&format!("umwelt-ctl stop {}\r\n", home.workspace));
    let shown = session.shown();
    assert_eq!(session.finish().code, Some(0));
    let shown = shown
        .replace("\r\n", "\n")
        .replace(&home.workspace, "/home/you/dev/project")
        .replace(dev.to_str().unwrap(), "/home/you/dev");
    let transcript = format!(
        "```text\n$ umwelt-ctl trust ~/dev/project\n{}\n```\n",
        shown.trim_end()
    );
    let documented = DOCS.split(BEGIN).nth(1).unwrap().split(END).next().unwrap();
    assert_eq!(
        documented, transcript,
        "this belongs in the documents:\n{transcript}"
    );
}

#[test]
fn grants_stand_right_above_the_question_whatever_else_is_asked_for() {
    let home = Home::new();
    let good = home.path("home/good");
    std::fs::create_dir_all(&good).unwrap();
    let rules: String = (0..40)
        .map(|number| format!("[[egress.https]]\nhost = \"a{number}.example.org\"\n"))
        .collect();
    let grant = format!("[[grants]]\npath = {good:?}\nmode = \"rw\"\n");
    write(&home, &format!("{grant}[egress]\nenabled = true\n{rules}"));
    let ran = trust(&home, "--diff");
    let shown = ran.text();
    let end = format!("these open files of the host\n  + adds read-write access to {good:?}\n");
    assert!(shown.ends_with(&end), "{shown}");
    write(&home, &format!("[egress]\nenabled = true\n{rules}"));
    let ran = trust(&home, "--diff");
    assert!(ran.text().ends_with("none opens files of the host\n"));
}

#[test]
fn question_tells_what_is_never_granted_and_all_that_the_network_opens() {
    let home = Home::new();
    let good = home.path("home/good");
    std::fs::create_dir_all(&good).unwrap();
    std::fs::create_dir_all(home.path("home/.ssh")).unwrap();
    let grants = [
        (home.path("home"), "rw"),
        (home.path("home/.ssh"), "rw"),
        (home.path("home/missing"), "ro"),
        (good.clone(), "ro"),
    ];
    let mut text: String = grants
        .iter()
        .map(|(path, mode)| format!("[[grants]]\npath = {path:?}\nmode = \"{mode}\"\n"))
        .collect();
    write(&home, &text);
    let ran = trust(&home, "--diff");
    let shown = ran.text();
    // Once each, with what it would open.
    assert_eq!(shown.matches(", not granted: ").count(), 3, "{shown}");
    let refused = format!("  ! adds read-write access to {:?}, not", home.path("home"));
    assert!(shown.contains(&refused), "{shown}");
    assert_eq!(shown.matches("  + adds read-").count(), 1, "{shown}");
    for why in ["the home directory itself", "No such file"] {
        assert!(shown.contains(why), "{shown}");
    }
    assert!(!shown.contains("The sandbox then reaches"), "{shown}");
    text.push_str("[egress]\nenabled = true\n[[egress.https]]\nhost = \"a.example.org\"\n");
    write(&home, &text);
    std::fs::create_dir_all(home.path("config/umwelt")).unwrap();
    let mut base =
        std::fs::read_to_string(home.path("config/umwelt/umwelt.toml")).unwrap_or_default();
    base.push_str("\n[[egress.https]]\nhost = \"base.example.org\"\nprivate = true\n");
    std::fs::write(home.path("config/umwelt/umwelt.toml"), base).unwrap();
    let ran = trust(&home, "--diff");
    let shown = ran.text();
    for line in [
        "The sandbox then reaches",
        "https://a.example.org/*  (this file)",
        "https://base.example.org/*, also at a private address  (base config)",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
}

#[test]
fn what_the_gateway_refuses_is_not_promised() {
    let home = Home::new();
    std::fs::create_dir_all(home.path("config/umwelt")).unwrap();
    let base = "[egress]\nregistries = []\n";
    std::fs::write(home.path("config/umwelt/umwelt.toml"), base).unwrap();
    let text = "[egress]\nenabled = true\n[[egress.https]]\nhost = \"git.example.org\"\n\
        [[hosts]]\nname = \"git.example.org\"\naddress = \"127.0.0.1\"\n";
    write(&home, text);
    let ran = trust(&home, "--diff");
    let told = "The sandbox then reaches\n  nothing\n\n\
        note: https://git.example.org/* is refused: git.example.org has the address 127.0.0.1 (loopback), \
        which takes private = true in the rule; it is a rule of the workspace file\n";
    assert!(ran.text().contains(told), "{ran:?}");
    let private = "host = \"git.example.org\"\nprivate = true\n";
    write(
        &home,
        &text.replace("host = \"git.example.org\"\n", private),
    );
    let ran = trust(&home, "--diff");
    assert!(
        ran.text()
            .contains("  https://git.example.org/*, also at a private address  (this file)\n\n---"),
        "{ran:?}"
    );
}

#[test]
fn rules_without_a_network_are_told_to_lack_it() {
    let home = Home::new();
    let note = "note: the network stays off, and nothing that the file says of it counts: \
        write enabled = true below [egress] in .umwelt.toml\n";
    for text in [
        "[[egress.https]]\nhost = \"a.example.org\"\n",
        "[egress]\nregistries = [\"pip\"]\n",
    ] {
        write(&home, text);
        let ran = trust(&home, "--diff");
        assert!(ran.text().contains(note), "{ran:?}");
        write(
            &home,
            &format!("egress.enabled = true\n{text}").replace("[egress]\n", "egress."),
        );
        let ran = trust(&home, "--diff");
        assert!(!ran.text().contains("stays off"), "{ran:?}");
    }
    write(&home, TEXT);
    assert!(!trust(&home, "--diff").text().contains("stays off"));
}

#[test]
fn what_a_registry_lacks_is_a_note_after_the_list() {
    let home = Home::new();
    std::fs::create_dir_all(home.path("home/.pip")).unwrap();
    let plain = "[global]\nindex-url = http://mirror.example.org/simple\n";
    std::fs::write(home.path("home/.pip/pip.conf"), plain).unwrap();
    write(&home, "[egress]\nenabled = true\nregistries = [\"pip\"]\n");
    let ran = trust(&home, "--diff");
    assert!(ran.text().contains("\nnote: registries: pip: "), "{ran:?}");
    assert!(!ran.text().contains("\n  registries"), "{ran:?}");
}

#[test]
fn registries_whose_hosts_the_file_does_not_name_are_marked() {
    let home = Home::new();
    let text = "[egress]\nenabled = true\nregistries = [\"pip\"]\n[[egress.https]]\nhost = \"a.example.org\"\n";
    write(&home, text);
    let ran = home.run(&["trust", "--diff", &home.workspace]);
    for line in [
        "  ! adds egress to the registries that pip uses on this host\n",
        "  + adds egress to https://a.example.org/*\n",
    ] {
        assert!(ran.text().contains(line), "{ran:?}");
    }
    // Taking them away opens nothing.
    assert_eq!(home.run(&["trust", "--yes", &home.workspace]).code, Some(0));
    write(&home, &text.replace("\"pip\"", ""));
    let ran = home.run(&["trust", "--diff", &home.workspace]);
    let line = "  - removes egress to the registries that pip uses on this host\n";
    assert!(ran.text().contains(line), "{ran:?}");
}
