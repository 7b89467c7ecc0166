//! docs/security.md: each promise names where it is kept, and the tests that hold it.

use std::path::PathBuf;

struct Promise {
    text: String,
    places: Vec<String>,
    tests: Vec<String>,
}

fn promises() -> Vec<Promise> {
    let page = super::read("docs/security.md");
    let rows = super::pages::rows(&page, &["promise", "enforced in", "held by"]);
    let promise = |[text, places, tests]: [&str; 3]| Promise {
        text: text.to_owned(),
        places: super::pages::code_spans(places),
        tests: super::pages::code_spans(tests),
    };
    rows.into_iter().map(promise).collect()
}

/// A file below src/ or tests/, or in the place that it names.
fn files(path: &str) -> Vec<PathBuf> {
    let places = ["src", "tests", ""].map(|place| super::root().join(place).join(path));
    places.into_iter().filter(|path| path.exists()).collect()
}

fn has_test(file: &str, name: &str) -> bool {
    let start = format!("fn {name}(");
    let is_test = |text: &str| {
        let mut lines = text.lines();
        // Only other attributes stand between.
        while lines.by_ref().any(|line| line.trim() == "#[test]") {
            let after = lines.by_ref().find(|line| !line.trim().starts_with("#["));
            if after.is_some_and(|line| line.trim().starts_with(&start)) {
                return true;
            }
        }
        false
    };
    let mut files = files(file).into_iter();
    files.any(|path| is_test(&std::fs::read_to_string(path).unwrap()))
}

#[test]
fn promises_are_kept_in_places_that_there_are() {
    let promises = promises();
    assert!(promises.len() > 80, "{}", promises.len());
    for promise in &promises {
        for place in &promise.places {
            assert!(!files(place).is_empty(), "{place}: {}", promise.text);
        }
    }
}

#[test]
fn each_promise_is_held_by_tests_that_there_are() {
    for promise in promises() {
        assert!(!promise.tests.is_empty(), "{}", promise.text);
        for test in &promise.tests {
            let exists = match test.split_once("::") {
                Some((file, name)) => has_test(file, name),
                None => test.ends_with(".sh") && !files(test).is_empty(),
            };
            assert!(exists, "there is no {test}: {}", promise.text);
        }
    }
}

#[test]
fn a_function_that_is_no_test_holds_nothing() {
    assert!(has_test(
        "docs/promises.rs",
        "a_function_that_is_no_test_holds_nothing"
    ));
    assert!(!has_test("docs/promises.rs", "has_test"));
    assert!(!has_test("docs/promises.rs", "a_function"));
}
