//! ClientHello: the decision does not depend on how the bytes come.

use crate::gateway::http::authority::Authority;
use crate::gateway::tls::hello::{Hello, HelloError, parse};

/// Each cut parses everything before it.
const CUTS: usize = 48;

pub(super) fn client_hello(input: &[u8]) {
    let whole = parse(input);
    let step = input.len() / CUTS + 1;
    for cut in (0..input.len()).step_by(step) {
        agrees(&parse(&input[..cut]), &whole, cut);
    }
    if let Ok(Some(hello)) = &whole {
        assert_eq!(input[..2], [0x16, 3]);
        let target = Authority::from_connect("a.example.org:443").expect("a target");
        let agrees = target.agrees_with_sni(hello.sni.as_deref());
        let named = hello.sni.as_deref().map(str::to_ascii_lowercase);
        let named = named
            .as_deref()
            .map(|name| name.strip_suffix('.').unwrap_or(name));
        assert_eq!(agrees, named == Some("a.example.org"));
    }
}

fn agrees(
    front: &Result<Option<Hello>, HelloError>,
    whole: &Result<Option<Hello>, HelloError>,
    cut: usize,
) {
    match (front, whole) {
        (Ok(None), _) | (Err(_), Err(_)) => {}
        (front, whole) => assert_eq!(front, whole, "cut at {cut}"),
    }
}
