//! scripts/record makes a picture of a session of scripts/demo.

use std::io::Write;
use std::process::{Command, Output, Stdio};

fn picture(transcript: &str, part: &str) -> Output {
    let mut record = Command::new(super::root().join("scripts/record.py"));
    record.arg(part).stdin(Stdio::piped());
    record.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut record = record.spawn().unwrap();
    let mut stdin = record.stdin.take().unwrap();
    stdin.write_all(transcript.as_bytes()).unwrap();
    drop(stdin);
    record.wait_with_output().unwrap()
}

#[test]
fn part_of_a_transcript_becomes_text_in_a_picture() {
    let transcript = "== first\n\nhost > no\n\n== second\n\nagent > echo '<b>' \u{1b}[31m\n    <b>\n  ✓ it holds\n";
    let made = picture(transcript, "second");
    assert!(made.status.success(), "{made:?}");
    let svg = String::from_utf8(made.stdout).unwrap();
    assert!(
        svg.starts_with("<svg ") && svg.ends_with("</svg>\n"),
        "{svg}"
    );
    for text in [
        "== second<",
        " class=\"who\">agent &gt; echo '&lt;b&gt;' \\x1b[31m<",
        " class=\"holds\">  ✓ it holds<",
    ] {
        assert!(svg.contains(text), "{text}: {svg}");
    }
    assert!(!svg.contains("host &gt; no") && !svg.contains("<script"));
    let texts = svg.matches("<text ").count();
    assert_eq!(texts, 5);
}

#[test]
fn part_that_is_not_there_makes_no_picture() {
    let made = picture("== first\n", "second");
    assert!(!made.status.success() && made.stdout.is_empty());
    assert!(
        String::from_utf8(made.stderr)
            .unwrap()
            .contains("there are: first")
    );
}

#[test]
fn parts_that_are_recorded_are_parts_of_the_demo() {
    let record = super::read("scripts/record");
    let demo = super::read("scripts/demo_client.py");
    let (_, parts) = record.split_once("|| set -- ").unwrap();
    let parts = parts.lines().next().unwrap().split('\'');
    let parts: Vec<_> = parts.skip(1).step_by(2).collect();
    assert_eq!(parts.len(), 3);
    for part in parts {
        assert!(demo.contains(&format!("title(\"{part}\")")), "{part}");
    }
}
