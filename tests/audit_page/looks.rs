//! What is seen: numbers, the picture of the time, both widths, both shades,
//! and nothing that the sandbox has put there.

use crate::browser::{Browser, Colour, NARROW, Picture, View, WIDE};
use crate::page::{ALLOWED, DENIED, Page, record, request};

const PAPER: Colour = [0xf6, 0xf6, 0xf4];
const DARK_PAPER: Colour = [0x12, 0x14, 0x18];
const ALLOW: Colour = [0x3a, 0x91, 0x82];
const DENY: Colour = [0xd0, 0x50, 0x3e];
/// The axis between the two.
const AXIS: Colour = [0x8b, 0x91, 0x9b];

/// Three moments of 100 minutes: at the beginning and the end all is allowed,
/// in the middle nothing.
fn three_moments() -> String {
    let mut records = String::new();
    for number in 0..30 {
        records += &request(number, "a.example.org", "/u/x/y", ALLOWED);
        records += &request(5990 + number % 9, "b.example.org", "/v", ALLOWED);
    }
    for number in 0..7 {
        records += &request(3000 + number, "b.example.org", "/private/x", DENIED);
    }
    records
}

/// Texts that are as long and as nasty as they can be.
fn hostile() -> String {
    let long = "a".repeat(253);
    let path = format!(
        "/{}/{}/{}",
        "b".repeat(3000),
        "c".repeat(3000),
        "d".repeat(3000)
    );
    let markup = "<img src=http://192.0.2.1/i><script>document.title='gone'</script>";
    let mut records = String::new();
    for (seconds, host, path) in [
        (0, long.as_str(), path.as_str()),
        (60, markup, "/</style><style>body{display:none}/x/y"),
        (
            90,
            "x\\\" onload=\\\"document.title='gone'",
            "/'><svg/onload=document.title='gone'>",
        ),
    ] {
        records += &request(seconds, host, path, ALLOWED);
        records += &request(seconds, host, path, DENIED);
    }
    let many = u64::MAX / 2;
    for verdict in ["allow", "deny"] {
        records += &record(
            120,
            &format!(
                "\"kind\":\"kernel\",\"protocol\":\"tcp\",\"host\":\"203.0.113.9\",\"port\":22,\
                 \"verdict\":\"{verdict}\",\"count\":{many},\"bytes\":{many}"
            ),
        );
    }
    records += &record(
        130,
        "\"kind\":\"policy\",\"event\":\"broken\",\"why\":\"<b>half</b>\"",
    );
    records
}

/// Where the timeline is: the columns of its axis, and its row.
fn axis(picture: &Picture) -> (u32, u32, u32) {
    let row = picture.row_with(AXIS, picture.width / 2).expect("no axis");
    let columns: Vec<u32> = (0..picture.width)
        .filter(|x| picture.at(*x, row) == AXIS)
        .collect();
    (columns[0], columns[columns.len() - 1], row)
}

/// Which hundredths of the axis have a bar of this colour beside it.
fn ink(picture: &Picture, colour: Colour, rows: std::ops::Range<i64>) -> Vec<u32> {
    let (left, right, axis) = axis(picture);
    let row = |offset: i64| u32::try_from(i64::from(axis) + offset).unwrap();
    let has_ink = |x: u32| {
        rows.clone()
            .any(|offset| picture.at(x, row(offset)) == colour)
    };
    let mut hundredths: Vec<u32> = (left..=right)
        .filter(|x| has_ink(*x))
        .map(|x| (x - left) * 100 / (right - left + 1))
        .collect();
    hundredths.dedup();
    hundredths
}

#[test]
fn ink_of_the_timeline_is_where_records_are() {
    let Some(browser) = Browser::new() else {
        return;
    };
    let page = Page::of(&three_moments());
    for view in [WIDE, NARROW] {
        let picture = browser.picture(&page.file(), view);
        // The style counts, so its hash is right.
        assert_eq!(picture.at(1, 1), PAPER);
        let allowed = ink(&picture, ALLOW, -100..0);
        let (first, last) = (allowed[0], allowed[allowed.len() - 1]);
        assert!(first <= 1 && last >= 97, "{allowed:?}");
        assert!(
            allowed.iter().all(|at| !(4..96).contains(at)),
            "{allowed:?}"
        );
        let denied = ink(&picture, DENY, 1..60);
        assert!(
            !denied.is_empty() && denied.iter().all(|at| (48..54).contains(at)),
            "{denied:?}"
        );
    }
    assert_eq!(browser.asked(), [""; 0]);
}

#[test]
fn a_dark_desktop_gets_a_dark_page() {
    let Some(browser) = Browser::new() else {
        return;
    };
    let view = View { dark: true, ..WIDE };
    let picture = browser.picture(&Page::of(&three_moments()).file(), view);
    assert_eq!(picture.at(1, 1), DARK_PAPER);
}

#[test]
fn numbers_and_rules_are_in_the_document() {
    let Some(browser) = Browser::new() else {
        return;
    };
    let dom = browser.dom(&Page::of(&three_moments()).file(), WIDE);
    for expected in [
        "<dt>Allowed</dt><dd>60</dd>",
        "<dt>Denied</dt><dd>7</dd>",
        "<dt>Hosts</dt><dd>2</dd>",
        "<dt>Sent</dt><dd>5.8 KiB</dd>",
        "<dt>Received</dt><dd>120 KiB</dd>",
        "2026-01-01 00:00:00 to 2026-01-01 01:39:58 UTC",
        "b.example.org:443</span>",
        "<span>--path</span> <span>'/private/*'</span>",
    ] {
        assert!(dom.contains(expected), "{expected}\n{dom}");
    }
}

#[test]
fn nothing_reaches_beyond_the_edge_and_hostile_names_are_text() {
    let Some(browser) = Browser::new() else {
        return;
    };
    let page = Page::of(&hostile());
    let widths = [1280, 861, 420, 320];
    let outer = page.measured(&widths);
    let look = || {
        let dom = browser.dom(&outer, WIDE);
        let seen = dom.split("data-seen=\"").nth(1).unwrap();
        let seen = seen.split('"').next().unwrap().split(';');
        seen.map(str::to_owned).collect::<Vec<String>>()
    };
    let mut seen = look();
    // A busy machine may print the document before all frames have spoken.
    for _ in 0..4 {
        if seen.len() <= widths.len() {
            seen = look();
        }
    }
    seen.sort_unstable();
    let mut expected = widths.map(|width| format!("{width} {width} [] Egress"));
    expected.sort_unstable();
    assert_eq!(seen.split_off(1), expected);
    let dom = browser.dom(&page.file(), WIDE);
    for markup in ["<img", "<script", "<svg onload", "<title>gone", "<b>half"] {
        assert!(!dom.contains(markup), "{markup}");
    }
    assert_eq!(dom.matches("<style").count(), 1);
    assert_eq!(browser.asked(), [""; 0]);
}

/// What the tests above rely on: a picture from elsewhere would be asked for.
#[test]
fn a_page_that_asks_for_something_is_noticed() {
    let Some(browser) = Browser::new() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("other.html");
    std::fs::write(&file, "<body><img src=\"http://192.0.2.1/i\"></body>").unwrap();
    browser.dom(&file, NARROW);
    let asked = browser.asked();
    assert!(
        asked.len() == 1 && asked[0].contains("192.0.2.1/i"),
        "{asked:?}"
    );
}
