//! A head that was judged -> the head that is sent on. Pure.
//!
//! The target is the one that was matched. What belongs between two neighbours
//! ends here; all other fields go on as they came, in their order.

use httparse::Header;

use crate::gateway::http::fields::{self, Framing, Kind, Meaning};
use crate::gateway::http::head::{RequestHead, ResponseHead};
use crate::gateway::path::Target;

/// A request whose parts have been judged.
#[derive(Debug)]
pub(crate) struct Judged<'a> {
    pub(crate) head: &'a RequestHead<'a>,
    pub(crate) fields: &'a [Header<'a>],
    pub(crate) meaning: &'a Meaning<'a>,
    pub(crate) target: &'a Target,
    /// For the `Host` field.
    pub(crate) host: &'a str,
    pub(crate) websocket: bool,
}

pub(crate) fn write_request(out: &mut Vec<u8>, request: &Judged<'_>) {
    for part in [request.head.method, " ", &request.target.path] {
        out.extend_from_slice(part.as_bytes());
    }
    if let Some(query) = &request.target.query {
        out.push(b'?');
        out.extend_from_slice(query.as_bytes());
    }
    for part in [" HTTP/1.1\r\nHost: ", request.host, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    write_fields(out, request.fields);
    write_framing(out, request.meaning.framing);
    if request.meaning.expects_continue {
        out.extend_from_slice(b"Expect: 100-continue\r\n");
    }
    if request.websocket {
        out.extend_from_slice(b"Connection: Upgrade\r\nUpgrade: websocket\r\n");
    } else if request.meaning.framing.has_body() {
        out.extend_from_slice(b"Connection: close\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// How a response goes to the client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delivery {
    /// What its length fields say, where they may stand.
    pub(crate) framing: Framing,
    pub(crate) close: bool,
    pub(crate) websocket: bool,
}

pub(crate) fn write_response(
    out: &mut Vec<u8>,
    head: &ResponseHead<'_>,
    fields: &[Header<'_>],
    delivery: Delivery,
) {
    out.extend_from_slice(format!("HTTP/1.1 {:03} ", head.status).as_bytes());
    out.extend_from_slice(head.reason.as_bytes());
    out.extend_from_slice(b"\r\n");
    write_fields(out, fields);
    write_framing(out, delivery.framing);
    match (delivery.websocket, delivery.close) {
        (true, _) => out.extend_from_slice(b"Connection: Upgrade\r\nUpgrade: websocket\r\n"),
        (false, true) => out.extend_from_slice(b"Connection: close\r\n"),
        (false, false) => {}
    }
    out.extend_from_slice(b"\r\n");
}

fn write_framing(out: &mut Vec<u8>, framing: Framing) {
    match framing {
        Framing::Unsaid => {}
        Framing::Length(length) => {
            out.extend_from_slice(format!("Content-Length: {length}\r\n").as_bytes());
        }
        Framing::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
    }
}

fn write_fields(out: &mut Vec<u8>, all: &[Header<'_>]) {
    let names_others = all.iter().any(|field| {
        Kind::of(field.name) == Kind::Connection
            && connection_options(field).any(|option| Kind::of(option) == Kind::Other)
    });
    for field in all {
        let goes_on =
            Kind::of(field.name) == Kind::Other && !(names_others && is_named(all, field.name));
        if goes_on {
            out.extend_from_slice(field.name.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(field.value);
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// Whether a `Connection` field names this one as meant for the neighbour.
fn is_named(all: &[Header<'_>], name: &str) -> bool {
    all.iter()
        .filter(|field| Kind::of(field.name) == Kind::Connection)
        .flat_map(connection_options)
        .any(|option| option.eq_ignore_ascii_case(name))
}

fn connection_options<'a>(field: &Header<'a>) -> impl Iterator<Item = &'a str> {
    fields::options(std::str::from_utf8(field.value).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::http::head::{no_fields, parse_request, parse_response};

    fn forwarded(text: &str, websocket: bool) -> String {
        let mut fields = no_fields();
        let (head, fields) = parse_request(text.as_bytes(), &mut fields).unwrap();
        let meaning = Meaning::of(fields).unwrap();
        let target = Target::parse(head.target).unwrap();
        let mut out = Vec::new();
        let judged = Judged {
            head: &head,
            fields,
            meaning: &meaning,
            target: &target,
            host: "a.example.org",
            websocket,
        };
        write_request(&mut out, &judged);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_canonical_target_and_the_judged_host_are_sent() {
        let text = "GET //x/../%61?q=%2e HTTP/1.1\r\nhOST: A.example.org.:443\r\nAccept: */*\r\nX-Empty:\r\n\r\n";
        assert_eq!(
            forwarded(text, false),
            "GET /a?q=%2e HTTP/1.1\r\nHost: a.example.org\r\nAccept: */*\r\nX-Empty: \r\n\r\n"
        );
    }

    #[test]
    fn fields_between_neighbours_end_here() {
        let text = "POST / HTTP/1.1\r\nHost: a.example.org\r\nConnection: keep-alive, x-hop\r\nKeep-Alive: 5\r\n\
            Proxy-Authorization: secret\r\nProxy-Connection: x\r\nTE: trailers\r\nTrailer: X\r\nX-Hop: 1\r\n\
            Upgrade: h2c\r\nHTTP2-Settings: x\r\nX-Stays: 1\r\ncontent-length: 3\r\nExpect: 100-Continue\r\n\r\n";
        assert_eq!(
            forwarded(text, false),
            "POST / HTTP/1.1\r\nHost: a.example.org\r\nX-Stays: 1\r\nContent-Length: 3\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
        );
    }

    #[test]
    fn a_websocket_keeps_its_upgrade() {
        let text = "GET /ws HTTP/1.1\r\nHost: a.example.org\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Key: x\r\n\r\n";
        assert_eq!(
            forwarded(text, true),
            "GET /ws HTTP/1.1\r\nHost: a.example.org\r\nSec-WebSocket-Key: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        );
    }

    #[test]
    fn responses_carry_the_framing_that_was_understood() {
        let text = "HTTP/1.1 200 Fine\r\nServer: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n";
        let mut fields = no_fields();
        let (head, fields) = parse_response(text.as_bytes(), &mut fields).unwrap();
        let mut out = Vec::new();
        let delivery = Delivery {
            framing: Framing::Chunked,
            close: false,
            websocket: false,
        };
        write_response(&mut out, &head, fields, delivery);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "HTTP/1.1 200 Fine\r\nServer: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
    }
}
