//! Request targets: the canonical form is one, and nobody reads another place
//! in it.

use crate::gateway::path::Target;

pub(super) fn target(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let Ok(target) = Target::parse(text) else {
        return;
    };
    let path = &target.path;
    let sent = match &target.query {
        Some(query) => format!("{path}?{query}"),
        None => path.clone(),
    };
    assert_eq!(
        Target::parse(&sent).as_ref(),
        Ok(&target),
        "canonical twice"
    );
    assert!(
        sent.bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'#'),
        "{sent:?}"
    );
    assert!(
        path.starts_with('/') && !path.contains("//") && !path.contains(['?', '\\']),
        "{path:?}"
    );
    let query = text.split_once('?').map(|(_, query)| query);
    assert_eq!(
        target.query.as_deref(),
        query,
        "the query is kept as it came"
    );
    let mut reading = path.clone().into_bytes();
    loop {
        stays_in_place(&reading, path);
        let decoded = decode(&reading);
        if decoded == reading {
            return;
        }
        reading = decoded;
    }
}

/// However often it is decoded, and with parameters cut off or not.
fn stays_in_place(reading: &[u8], path: &str) {
    let text = std::str::from_utf8(reading).expect("each reading is UTF-8");
    assert!(
        !text.contains('\\') && !text.bytes().any(|byte| byte.is_ascii_control()),
        "{text:?}"
    );
    for segment in text.split('/') {
        let name = segment.split(';').next().unwrap_or_default();
        assert!(!matches!(name, "." | ".."), "{path:?} is also {text:?}");
    }
}

fn decode(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let pair = bytes
            .get(at + 1..at + 3)
            .and_then(|pair| std::str::from_utf8(pair).ok());
        let pair = pair
            .filter(|pair| bytes[at] == b'%' && pair.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    out
}
