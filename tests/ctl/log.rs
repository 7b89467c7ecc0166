//! `umwelt-ctl log`: no control plane is needed to read what has happened.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::Value;

use crate::home::{Home, finish, signal};

fn journal(home: &Home) -> PathBuf {
    let dir = home.path("data/umwelt");
    std::fs::create_dir_all(&dir).unwrap();
    dir.join(format!("journal-umwelt-{}.jsonl", home.sid))
}

fn entry(number: u32) -> String {
    format!(
        "{{\"ts\":{number}.5,\"client\":\"c/1\",\"kind\":\"shell\",\"command\":\"echo {number}\\u001b[2J\",\
         \"cwd\":\"/w\",\"ended\":\"exited\",\"code\":0,\"duration_ms\":5}}\n"
    )
}

fn append(path: &PathBuf, text: &str) {
    let mut options = std::fs::File::options();
    let mut file = options.append(true).create(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

#[test]
fn a_dead_sandbox_has_a_log() {
    let home = Home::new();
    let path = journal(&home);
    append(&path.with_extension("jsonl.1"), &entry(1));
    append(&path, &entry(2));
    for name in [home.workspace.as_str(), home.sid.as_str()] {
        let ran = home.run(&["log", name]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert_eq!(
            ran.text(),
            "TIME                  KIND   CLIENT  RESULT  TOOK  WHAT\n\
             1970-01-01T00:00:01Z  shell  c/1     exit 0  5ms   echo 1\\x1b[2J\n\
             1970-01-01T00:00:02Z  shell  c/1     exit 0  5ms   echo 2\\x1b[2J\n"
        );
    }
    let ran = home.run(&["log", "--json", "--lines", "1", &home.workspace]);
    let value: Value = serde_json::from_str(ran.text()).unwrap();
    assert_eq!(value["command"], "echo 2\u{1b}[2J");
    assert!(!ran.stdout.contains(&0x1b));
}

#[test]
fn a_workspace_without_a_journal_is_told() {
    let home = Home::new();
    let ran = home.run(&["log", &home.workspace]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("there is no journal of"),
        "{}",
        ran.stderr
    );
    let ran = home.run(&["log", "--lines", "few", &home.workspace]);
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.stderr.contains("\"few\" is not a number"),
        "{}",
        ran.stderr
    );
}

#[test]
fn what_is_added_is_followed_and_an_interrupt_ends_it() {
    let home = Home::new();
    let path = journal(&home);
    append(&path, &entry(1));
    let args = ["log", "--follow", "--json", &home.workspace];
    let mut child = home.ctl(&args).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut next = || {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        serde_json::from_str::<Value>(&line).unwrap()["ts"].clone()
    };
    assert_eq!(next(), 1.5);
    append(&path, &entry(2));
    assert_eq!(next(), 2.5);
    std::fs::rename(&path, path.with_extension("jsonl.1")).unwrap();
    append(&path, &entry(3));
    assert_eq!(next(), 3.5);
    signal(&child, Signal::INT);
    let mut stderr = String::new();
    let mut errors = child.stderr.take().unwrap();
    errors.read_to_string(&mut stderr).unwrap();
    assert_eq!(stderr, "");
    child.wait().unwrap();
}

#[test]
fn it_ends_quietly_with_its_reader() {
    let home = Home::new();
    let path = journal(&home);
    append(&path, &entry(1));
    let args = ["log", "--follow", &home.workspace];
    let mut child = home.ctl(&args).spawn().unwrap();
    let mut first = [0; 4];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    drop(child.stdout.take());
    let ran = finish(child);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
}
