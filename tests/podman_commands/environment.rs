//! What a command finds: variables, directory, descriptors, identity.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::podman_common::{Sandbox, host};
use crate::{CANARY, assert_exited, assert_next_command_works, client, shared, text};

pub(crate) const GIT_CONFIG: &str = "[user]
\tname = Test \"X\" Ünit
\temail = test@example.org
[core]
\thooksPath = ~/hooks
[alias]
\tevil = !echo evil
";

/// What umwelt-run is started with and must keep to itself.
pub(crate) fn hostile_variables() -> Vec<(&'static str, String)> {
    let names = [
        "UMWELT_TEST_CANARY",
        "SSH_AUTH_SOCK",
        "GPG_AGENT_INFO",
        "HTTP_PROXY",
        "http_proxy",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
        "AWS_SECRET_ACCESS_KEY",
        "GITHUB_TOKEN",
        "BASH_ENV",
        "ENV",
        "PROMPT_COMMAND",
        "PYTHONPATH",
        "EDITOR",
        "DISPLAY",
        "LC_ALL",
        "TZ",
        "container",
        "XDG_SESSION_ID",
    ];
    names.map(|name| (name, format!("/{CANARY}/{name}"))).into()
}

/// The environment that every command has, given the user and the identity.
fn expected(sandbox: &Sandbox) -> BTreeMap<String, String> {
    let home = host::home().to_string_lossy().into_owned();
    let user = Command::new("id").arg("-un").output().unwrap().stdout;
    let user = String::from_utf8(user).unwrap().trim().to_owned();
    let mut expected: BTreeMap<String, String> = [
        (
            "PATH",
            format!(
                "{home}/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
            )
            .as_str(),
        ),
        ("HOME", &home),
        ("USER", &user),
        ("LOGNAME", &user),
        ("SHELL", "/bin/bash"),
        ("TERM", "dumb"),
        ("LANG", "C.UTF-8"),
        ("TMPDIR", "/tmp"),
        ("PAGER", "cat"),
        ("GIT_PAGER", "cat"),
        ("MANPAGER", "cat"),
        ("SYSTEMD_PAGER", "cat"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("UMWELT", "1"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    let identity = ["user.name", "user.email", "core.hookspath"]
        .into_iter()
        .filter_map(|key| Some((key, git_value(sandbox, key)?)));
    for (index, (key, value)) in identity.enumerate() {
        expected.insert("GIT_CONFIG_COUNT".to_owned(), (index + 1).to_string());
        expected.insert(format!("GIT_CONFIG_KEY_{index}"), key.to_owned());
        expected.insert(
            format!("GIT_CONFIG_VALUE_{index}"),
            value.replace("~/", &format!("{home}/")),
        );
    }
    expected
}

/// What the user's own git says; on a developer's host that is not the file
/// which the tests have written.
fn git_value(sandbox: &Sandbox, key: &str) -> Option<String> {
    let output = Command::new("git")
        .args(["config", "--global", key])
        .env("XDG_CONFIG_HOME", sandbox.place.path().join("config"))
        .output()
        .unwrap();
    let value = String::from_utf8(output.stdout).unwrap();
    output.status.success().then(|| value.trim().to_owned())
}

fn variables(nul_separated: &str) -> BTreeMap<String, String> {
    nul_separated
        .split_terminator('\n')
        .map(|line| line.split_once('=').expect("NAME=value"))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[test]
fn environment_is_exactly_the_fixed_one() {
    let Some(sandbox) = shared() else { return };
    let mut client = sandbox.client();
    let output = client.output("tr '\\0' '\\n' </proc/$$/environ");
    assert_eq!(variables(&output), expected(sandbox));
    // Long commands take another way to the shell.
    let long = format!("tr '\\0' '\\n' </proc/$$/environ #{}", "x".repeat(100_000));
    assert_eq!(variables(&client.output(&long)), expected(sandbox));
    let run = crate::descriptors::exec(&mut client, &["env"], b"");
    let output = String::from_utf8(run.stdout).unwrap();
    assert_eq!(variables(&output), expected(sandbox));
}

#[test]
fn nothing_of_the_hosts_environment_is_inside() {
    let Some(sandbox) = shared() else { return };
    // It really is in the environment of the control plane.
    let environ = std::fs::read(format!("/proc/{}/environ", sandbox.pid)).unwrap();
    assert!(String::from_utf8_lossy(&environ).contains(CANARY));
    let mut client = sandbox.client();
    let output = client.output("env; cat /proc/[0-9]*/environ 2>/dev/null; set; declare -p");
    assert!(output.contains("UMWELT=1"), "{output}");
    assert!(!output.contains(CANARY), "{output}");
    assert!(!output.contains("XDG_"), "{output}");
    let pid1 = std::fs::read(format!("/proc/{}/cmdline", sandbox.init_pid())).unwrap();
    assert!(!String::from_utf8_lossy(&pid1).contains(CANARY));
}

#[test]
fn a_command_has_its_three_descriptors_and_default_signals() {
    let Some(mut client) = client() else { return };
    let program = r#"
import os
for n in os.listdir("/proc/self/fd"):
    try: print(n, os.readlink("/proc/self/fd/" + n))
    except OSError: pass  # the directory just listed
"#;
    let output = client.output(&format!("python3 -c '{program}'"));
    let numbers: Vec<&str> = output.lines().map(|line| &line[..1]).collect();
    assert_eq!(numbers, ["0", "1", "2"], "{output}");
    let output =
        client.output("cat /proc/self/status | grep -E '^Sig(Blk|Ign|Cgt)|^Umask'; ulimit -c");
    let zero = "0000000000000000";
    let wanted = format!("Umask:\t0022\nSigBlk:\t{zero}\nSigIgn:\t{zero}\nSigCgt:\t{zero}\n0\n");
    assert_eq!(output, wanted);
    // No terminal, and no way to one.
    assert_exited(&client.shell("tty"), 1);
    let result = client.shell(": </dev/tty");
    assert_ne!(result["code"], 0, "{result}");
}

#[test]
fn command_starts_in_the_workspace_or_where_it_is_told() {
    let Some(sandbox) = shared() else { return };
    let workspace = sandbox.workspace().to_str().unwrap().to_owned();
    let names = [
        "sub",
        "sub/deeper",
        "a b",
        "-dash",
        "ünï-漢字",
        "q'u\"ote",
        "back\\slash",
        "$HOME`x`",
        "%s%n",
        "new\nline",
        "tab\tand*?[x]",
        "com,ma:colon",
        "trailing ",
    ];
    for name in names {
        std::fs::create_dir_all(sandbox.workspace().join(name)).unwrap();
    }
    let mut client = sandbox.client();
    assert_eq!(client.output("pwd -P"), format!("{workspace}\n"));
    let mut pwd = |cwd: &str| {
        let result = client.shell_with(json!({"command": "pwd -P", "cwd": cwd}));
        assert_exited(&result, 0);
        text(&result["output"]).to_owned()
    };
    for name in names {
        let wanted = format!("{workspace}/{name}\n");
        // A tab and a newline are shown as they are in output.
        assert_eq!(pwd(name), wanted, "relative");
        assert_eq!(pwd(&format!("{workspace}/{name}")), wanted, "absolute");
    }
    for (cwd, wanted) in [
        ("", workspace.as_str()),
        (".", &workspace),
        ("sub/..", &workspace),
        ("/tmp", "/tmp"),
        ("/", "/"),
        ("/usr/../tmp", "/tmp"),
    ] {
        assert_eq!(pwd(cwd), format!("{wanted}\n"), "{cwd:?}");
    }
    assert_next_command_works(&mut client);
}

#[test]
fn directory_that_cannot_be_entered_is_named() {
    let Some(sandbox) = shared() else { return };
    std::fs::write(sandbox.workspace().join("a-file"), "").unwrap();
    let mut client = sandbox.client();
    let long = "x".repeat(300);
    for (cwd, kind, reason) in [
        ("no-such-dir", "cannot_run", "No such file"),
        ("a-file", "cannot_run", "Not a directory"),
        ("/root", "cannot_run", "Permission denied"),
        ("/proc/1/cwd", "cannot_run", "denied"),
        (&long, "cannot_run", "too long"),
        ("a\0b", "bad_request", "cwd"),
    ] {
        let params = json!({"command": "touch ran-anyway", "cwd": cwd});
        let error = client.call("shell", params).unwrap_err();
        assert_eq!(error["kind"], kind, "{cwd:?}: {error}");
        assert!(text(&error["message"]).contains(reason), "{cwd:?}: {error}");
        assert_next_command_works(&mut client);
    }
    assert!(!sandbox.workspace().join("ran-anyway").exists());
}

#[test]
fn files_made_inside_belong_to_the_user_outside() {
    let Some(sandbox) = shared() else { return };
    let mut client = sandbox.client();
    client.output("mkdir made && cd made && echo text >file && ln -s file link && mkfifo fifo");
    let made = sandbox.workspace().join("made");
    for (name, mode) in [
        ("", 0o755),
        ("file", 0o644),
        ("link", 0o777),
        ("fifo", 0o644),
    ] {
        let metadata = made.join(name).symlink_metadata().unwrap();
        assert_eq!(metadata.uid(), host::uid(), "{name}");
        assert_eq!(
            metadata.gid(),
            rustix::process::getegid().as_raw(),
            "{name}"
        );
        assert_eq!(metadata.mode() & 0o7777, mode, "{name}");
    }
    assert_eq!(std::fs::read(made.join("file")).unwrap(), b"text\n");
    // And the other way round.
    std::fs::write(made.join("from-outside"), "1").unwrap();
    assert_eq!(
        client.output("stat -c '%u %a' made/file"),
        format!("{} 644\n", host::uid())
    );
    client.output("echo 2 >>made/from-outside && rm -r made");
    assert!(!made.exists());
}

#[test]
fn scratch_places_can_be_written_and_executed() {
    let Some(mut client) = client() else { return };
    for place in ["$HOME", "/tmp", "$TMPDIR", "/dev/shm", "$PWD"] {
        let command = format!(
            "cd {place} && printf '#!/bin/sh\\necho ran\\n' >script-$$ && chmod +x script-$$ && ./script-$$ && rm script-$$"
        );
        assert_eq!(client.output(&command), "ran\n", "{place}");
    }
    // One that others can write is sticky, the home is private.
    let user = host::uid();
    assert_eq!(
        client.output("stat -c '%u %a' $HOME; stat -c '%a' /tmp /dev/shm"),
        format!("{user} 700\n1777\n1777\n")
    );
    assert_eq!(
        client.output("echo ~; cd; pwd"),
        client.output("echo $HOME; echo $HOME")
    );
}

#[test]
fn git_commits_under_the_users_identity() {
    let Some(sandbox) = shared() else { return };
    let (Some(name), Some(email)) = (
        git_value(sandbox, "user.name"),
        git_value(sandbox, "user.email"),
    ) else {
        panic!("git on this host has no identity");
    };
    let mut client = sandbox.client();
    let command = "mkdir repository && cd repository && git init -q && echo text >file &&
        git add file && git commit -q -m first && git log --format='%an <%ae> / %cn <%ce>'";
    assert_eq!(
        client.output(command),
        format!("{name} <{email}> / {name} <{email}>\n")
    );
    // Seen from the host it is an ordinary repository of the user.
    let head = Command::new("git")
        .args(["log", "--format=%s"])
        .current_dir(sandbox.workspace().join("repository"))
        .output()
        .unwrap();
    assert_eq!(head.stdout, b"first\n", "{head:?}");
    // Nothing else of the user's configuration gets in.
    assert_exited(&client.shell("cd repository && git evil"), 1);
    let hooks = client.output("cd repository && git config core.hooksPath");
    assert_eq!(
        Path::new(hooks.trim()).parent(),
        Some(host::home().as_path())
    );
    // It asks nobody for a password.
    let result = client.shell("cd repository && git fetch -q https://127.0.0.1:1/x");
    assert_exited(&result, 128);
}
