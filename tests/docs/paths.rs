//! Files of the source that the documents name are there.

/// The first directories of the source, and what the pages leave out before the others.
const TOP: [&str; 6] = ["containerfiles", "docs", "scripts", "share", "src", "tests"];

fn is_there(path: &str) -> bool {
    let root = super::root();
    root.join(path).exists() || root.join("src").join(path).exists()
}

/// A path of a source file, in full or below src/.
fn is_path(text: &str, shortened: bool) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
    let Some((first, _)) = text.split_once('/') else {
        return false;
    };
    // In capitals stands what differs from case to case.
    let is_fixed = |part: &str| part.contains(|c: char| !c.is_ascii_uppercase());
    let is_name = text.chars().all(is_plain) && text.trim_end_matches('/').split('/').all(is_fixed);
    is_name && (TOP.contains(&first) || shortened && text.ends_with(".rs"))
}

#[test]
fn named_files_are_there() {
    let mut count = 0;
    for path in super::files_below(&super::root().join("docs"), "md") {
        let page = std::fs::read_to_string(&path).unwrap();
        let is_design = path.ends_with("design.md");
        for span in super::pages::code_spans(&super::pages::prose(&page)) {
            if is_path(&span, is_design) {
                count += 1;
                assert!(is_there(&span), "{}: {span}", path.display());
            }
        }
    }
    assert!(count > 80, "{count}");
}
