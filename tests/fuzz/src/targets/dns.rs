//! Questions of clients and answers of resolvers.

use std::net::IpAddr;

use crate::gateway::dns::message::{A, AAAA, Code, Query, parse_query, parse_response, question};

/// The name that the seeds are about.
const NAME: &str = "a.example.org";

pub(super) fn message(input: &[u8]) {
    if let Ok(query) = parse_query(input) {
        assert_eq!(input[..2], query.id.to_be_bytes());
        answers_read_back(&query);
        asks_again(&query);
    }
    let id = input.first_chunk().map_or(0, |id| u16::from_be_bytes(*id));
    for kind in [A, AAAA] {
        let Some(response) = parse_response(input, id, NAME, kind) else {
            continue;
        };
        assert!(
            response
                .addresses
                .iter()
                .all(|address| address.is_ipv4() == (kind == A))
        );
        if response.code != 0 || response.truncated {
            assert!(response.addresses.is_empty());
        }
        if !response.addresses.is_empty() {
            assert!(response.ttl <= u32::MAX >> 1);
        }
        // Only to the one who asked, and for what was asked.
        assert_eq!(parse_response(input, id ^ 1, NAME, kind), None);
        assert_eq!(parse_response(input, id, "b.example.org", kind), None);
        assert_eq!(parse_response(input, id, NAME, kind ^ (A ^ AAAA)), None);
    }
}

fn addresses(kind: u16, count: u8) -> Vec<IpAddr> {
    let address = |last: u8| match kind {
        A => IpAddr::from([192, 0, 2, last]),
        _ => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(last)]),
    };
    (0..count).map(address).collect()
}

fn answers_read_back(query: &Query) {
    for count in [0, 1, 12, 200] {
        for over_udp in [true, false] {
            let addresses = addresses(query.kind, count);
            let answer = query.answer(Code::NoError, &addresses, 60, over_udp);
            assert!(answer.len() <= if over_udp { 1232 } else { 65535 });
            let Some(name) = &query.name else { continue };
            let read = parse_response(&answer, query.id, name, query.kind);
            if !query.is_internet {
                assert_eq!(read, None);
                continue;
            }
            let read = read.expect("an answer reads back");
            assert!(over_udp || !read.truncated);
            if !read.truncated && matches!(query.kind, A | AAAA) {
                assert_eq!(read.addresses, addresses);
                assert!(addresses.is_empty() || read.ttl == 60);
            }
            let refused = query.answer(Code::Refused, &[], 0, over_udp);
            let read =
                parse_response(&refused, query.id, name, query.kind).expect("a refusal reads back");
            assert_eq!(
                (read.code, read.addresses),
                (Code::Refused as u8, Vec::new())
            );
        }
    }
}

/// A name that was read can be asked for, and is read the same again.
fn asks_again(query: &Query) {
    let Some(name) = &query.name else { return };
    assert_eq!(name.to_ascii_lowercase(), *name);
    let message = question(query.id, name, query.kind, true).expect("it can be asked for");
    let again = parse_query(&message).expect("what is asked is readable");
    assert_eq!(
        (again.name.as_ref(), again.kind, again.is_internet),
        (Some(name), query.kind, true)
    );
}
