//! SOCKS5: what is read from the front is not changed by what comes behind it.

use crate::gateway::proxy::socks5::{Asked, greeting, request};

pub(super) fn socks5(input: &[u8]) {
    for parse in [greeting, request] {
        let whole = parse(input);
        let first = (0..=input.len()).find_map(|cut| parse(&input[..cut]));
        assert_eq!(first, whole, "in pieces and whole");
        match whole {
            Some(Asked::Greeting { length, .. }) => exact(parse, input, length),
            Some(Asked::Connect { target, length }) => {
                exact(parse, input, length);
                assert_eq!(input[..3], [5, 1, 0]);
                assert_eq!(input[length - 2..length], target.port.to_be_bytes());
            }
            Some(Asked::Refused(..)) | None => {}
        }
    }
}

fn exact(parse: fn(&[u8]) -> Option<Asked>, input: &[u8], length: usize) {
    assert!(length <= input.len());
    assert!(parse(&input[..length]).is_some(), "its length is enough");
    assert_eq!(parse(&input[..length - 1]), None, "less is not");
}
