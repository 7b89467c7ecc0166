//! `umwelt-ctl audit`: no control plane is needed to read what was asked for.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::home::{Home, exists, finish, signal};

fn file(home: &Home) -> PathBuf {
    let dir = format!("data/umwelt/egress/audit-umwelt-{}", home.sid);
    let dir = home.path(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir.join("audit.jsonl")
}

fn kernel_file(home: &Home) -> PathBuf {
    file(home).with_file_name(format!("kernel-{}.jsonl", home.sid))
}

fn record(ts: u32, rest: &str) -> String {
    format!("{{\"type\":\"umwelt-egress\",\"ts\":{ts}.5,\"workspace\":\"0123abcd\",{rest}}}\n")
}

fn request(ts: u32, verdict: &str) -> String {
    let more = match verdict {
        "deny" => r#""why":"no rule for this host allows the path","status":403"#,
        _ => r#""status":200,"up":0,"down":2048,"ms":5"#,
    };
    let host = r#""kind":"https","method":"GET","host":"a.example.org","port":443"#;
    record(
        ts,
        &format!(r#"{host},"path":"/u/x\u001b[2J/{ts}","verdict":"{verdict}",{more}"#),
    )
}

fn packets(ts: u32) -> String {
    let target = r#""kind":"kernel","protocol":"udp","host":"203.0.113.1","port":53"#;
    record(
        ts,
        &format!(r#"{target},"verdict":"deny","count":3,"bytes":99"#),
    )
}

fn append(path: &PathBuf, text: &str) {
    let mut options = std::fs::File::options();
    let mut file = options.append(true).create(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

#[test]
fn records_of_gateway_and_kernel_are_shown_by_time() {
    let home = Home::new();
    let path = file(&home);
    append(&path.with_extension("jsonl.1"), &request(1, "allow"));
    append(&kernel_file(&home), &packets(2));
    append(&path, &request(3, "deny"));
    for name in [home.workspace.as_str(), home.sid.as_str()] {
        let ran = home.run(&["audit", name]);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
        assert_eq!(
            ran.text(),
            "TIME                  VERDICT  KIND        METHOD  HOST               PATH           STATUS  UP  DOWN  TOOK  WHY\n\
             1970-01-01T00:00:01Z  allow    https       GET     a.example.org:443  /u/x\\x1b[2J/1  200     0   2k    5ms   -\n\
             1970-01-01T00:00:02Z  deny     kernel udp  -       203.0.113.1:53     -              -       -   -     -     3 packets\n\
             1970-01-01T00:00:03Z  deny     https       GET     a.example.org:443  /u/x\\x1b[2J/3  403     -   -     -     no rule for this host allows the path\n"
        );
    }
    let denied = home.run(&["audit", "--denied", &home.workspace]);
    assert_eq!(denied.text().lines().count(), 3);
    assert!(!denied.text().contains("allow "));
    let last = home.run(&["audit", "--lines", "1", &home.workspace]);
    assert!(last.text().contains("01T00:00:03Z") && last.text().lines().count() == 2);
}

#[test]
fn json_is_the_records_as_they_are_and_harmless() {
    let home = Home::new();
    let path = file(&home);
    append(
        &path,
        &(request(1, "allow") + "no record\n" + &request(2, "deny") + "{\"cut"),
    );
    let ran = home.run(&["audit", "--json", &home.workspace]);
    assert_eq!(ran.code, Some(0));
    assert!(!ran.stdout.contains(&0x1b));
    let values = ran
        .text()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let values: Vec<Value> = values.collect();
    assert_eq!(values.len(), 3);
    let written: Value = serde_json::from_str(&request(1, "allow")).unwrap();
    assert_eq!(values[0], written);
    assert_eq!(values[1]["kind"], "unreadable");
    for told in ["not understood: 1", "the last line of the audit is not"] {
        assert!(ran.stderr.contains(told), "{}", ran.stderr);
    }
    let ran = home.run(&["audit", "--json", "--denied", &home.workspace]);
    assert_eq!(ran.text().lines().count(), 1);
}

#[test]
fn a_summary_counts_and_names_the_rule_to_add() {
    let home = Home::new();
    append(
        &file(&home),
        &(request(1, "allow") + &request(2, "deny") + &request(3, "deny")),
    );
    append(&kernel_file(&home), &packets(2));
    let ran = home.run(&["audit", "--summary", &home.workspace]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for expected in [
        "1 allowed, 2 denied and 3 packets refused by the kernel; 0 up, 2k down\n",
        "\n2 denied and 3 packets refused by the kernel\n\n2 x https",
        "a.example.org:443  1        2       0   2k",
        "2 x https a.example.org:443 /u/*: no rule for this host allows the path\n",
        "umwelt-ctl egress add https a.example.org --path '/u/*' ",
        "        paths = [\"/u/*\"]\n",
        "3 x kernel udp 203.0.113.1:53\n    no rule is suggested\n",
    ] {
        assert!(ran.text().contains(expected), "{expected}\n{}", ran.text());
    }
    let ran = home.run(&["audit", "--summary", "--json", &home.workspace]);
    let value: Value = serde_json::from_str(ran.text()).unwrap();
    assert_eq!(
        (&value["denied"], &value["packets"]),
        (&json!(5), &json!(3))
    );
    assert_eq!(value["sid"], home.sid.as_str());
    assert_eq!(value["denials"][1]["rule"], Value::Null);
}

#[test]
fn a_workspace_without_an_audit_is_told_how_to_get_one() {
    let home = Home::new();
    let ran = home.run(&["audit", &home.workspace]);
    assert_eq!(ran.code, Some(1));
    for told in [
        "there is no audit of",
        "hint: ",
        "enabled = true",
        "umwelt-ctl trust ",
    ] {
        assert!(ran.stderr.contains(told), "{}", ran.stderr);
    }
    // Advice is for what can be a workspace.
    for word in ["deadbeef", "/"] {
        let ran = home.run(&["audit", word]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(!ran.stderr.contains("umwelt-ctl trust"), "{ran:?}");
        assert!(ran.stderr.contains("umwelt-ctl audit DIR"), "{ran:?}");
    }
    for words in [
        ["--lines", "few"],
        ["--summary", "--follow"],
        ["--html=x", "--json"],
    ] {
        let ran = home.run(&["audit", words[0], words[1], &home.workspace]);
        assert_eq!(ran.code, Some(2), "{words:?}: {}", ran.stderr);
    }
}

#[test]
fn what_is_added_is_followed_and_an_interrupt_ends_it() {
    let home = Home::new();
    let path = file(&home);
    append(&path, &request(1, "allow"));
    let args = ["audit", "--follow", "--json", &home.workspace];
    let mut child = home.ctl(&args).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut next = || {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        serde_json::from_str::<Value>(&line).unwrap()["ts"].clone()
    };
    assert_eq!(next(), 1.5);
    append(&path, &request(2, "deny"));
    assert_eq!(next(), 2.5);
    std::fs::rename(&path, path.with_extension("jsonl.1")).unwrap();
    append(&path, &request(3, "allow"));
    assert_eq!(next(), 3.5);
    append(&kernel_file(&home), &packets(4));
    assert_eq!(next(), 4.5);
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
    append(&file(&home), &request(1, "allow"));
    let args = ["audit", "--follow", &home.workspace];
    let mut child = home.ctl(&args).spawn().unwrap();
    let mut first = [0; 4];
    let stdout = child.stdout.as_mut().unwrap();
    stdout.read_exact(&mut first).unwrap();
    drop(child.stdout.take());
    let ran = finish(child);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
}

#[test]
fn the_page_is_for_the_user_alone_and_goes_through_no_link() {
    let home = Home::new();
    append(&file(&home), &request(1, "deny"));
    let page = home.path("page.html");
    let ran = home.run(&["audit", "--html", page.to_str().unwrap(), &home.workspace]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.text().ends_with("page.html: 0 allowed, 1 denied\n"));
    let mode = page.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let ran = home.run(&["audit", "--html", "-", &home.workspace]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert!(ran.text().starts_with("<!DOCTYPE html>") && ran.text().ends_with("</html>\n"));
    let link = home.path("link.html");
    std::os::unix::fs::symlink(home.path("elsewhere"), &link).unwrap();
    let ran = home.run(&["audit", "--html", link.to_str().unwrap(), &home.workspace]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("is a symbolic link"), "{}", ran.stderr);
    assert!(!exists(&home.path("elsewhere")));
}

#[test]
fn a_hundred_thousand_records_make_a_small_page() {
    let home = Home::new();
    let path = file(&home);
    let half: String = (0..50_000).map(|ts| request(ts * 7, "allow")).collect();
    append(&path.with_extension("jsonl.1"), &half);
    append(&path, &half.replace("a.example.org", "b.example.org"));
    let page = home.path("page.html");
    let args = ["audit", "--html", page.to_str().unwrap(), &home.workspace];
    let ran = finish(home.ctl(&args).spawn().unwrap());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.contains("<dd>100,000</dd>"));
    assert!(text.len() < 60_000, "{}", text.len());
}
