//! Heads and chunked bodies. What is accepted is read a second time, by rules
//! simple enough to be right, and both must see the same.

use crate::gateway::http::body::{Body, BodyError, Chunked};
use crate::gateway::http::fields::{Framing, Kind, Meaning};
use crate::gateway::http::head::{HeadError, Scan, no_fields, parse_request, parse_response};
use crate::gateway::http::rewrite::{Delivery, Judged, write_request, write_response};
use crate::gateway::path::Target;
use httparse::Header;

/// Where the head ends, the same in one piece and byte by byte.
fn find_end(bytes: &[u8]) -> Result<Option<usize>, HeadError> {
    let whole = Scan::default().find_end(bytes);
    let mut scan = Scan::default();
    let pieces = (0..=bytes.len()).find_map(|cut| scan.find_end(&bytes[..cut]).transpose());
    assert_eq!(pieces.transpose(), whole, "in pieces and whole");
    for cut in 0..bytes.len() {
        let mut scan = Scan::default();
        if scan.find_end(&bytes[..cut]) == Ok(None) {
            assert_eq!(scan.find_end(bytes), whole, "cut at {cut}");
        }
    }
    whole
}

/// Names and values, as somebody reads them who cuts at CR LF and at ":".
fn plain_fields(head: &[u8]) -> Vec<(String, Vec<u8>)> {
    let text = head
        .strip_suffix(b"\r\n\r\n")
        .expect("a head ends in an empty line");
    assert!(text.iter().all(|byte| *byte != 0), "NUL in a head");
    let lines: Vec<&[u8]> = split(text, b"\r\n").collect();
    lines[1..]
        .iter()
        .map(|line| {
            assert!(
                !line.contains(&b'\n') && !line.contains(&b'\r'),
                "a line within a line"
            );
            let colon = line
                .iter()
                .position(|byte| *byte == b':')
                .expect("a field has a colon");
            let name = std::str::from_utf8(&line[..colon]).expect("a name is text");
            assert!(!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic()));
            (name.to_ascii_lowercase(), trim(&line[colon + 1..]).to_vec())
        })
        .collect()
}

fn split<'a>(text: &'a [u8], at: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let now = rest?;
        match now.windows(at.len()).position(|window| window == at) {
            Some(end) => {
                rest = Some(&now[end + at.len()..]);
                Some(&now[..end])
            }
            None => rest.take(),
        }
    })
}

fn trim(value: &[u8]) -> &[u8] {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = value
        .iter()
        .position(|byte| !is_blank(byte))
        .unwrap_or(value.len());
    let end = value
        .iter()
        .rposition(|byte| !is_blank(byte))
        .map_or(start, |at| at + 1);
    &value[start..end]
}

fn same_fields(head: &[u8], fields: &[Header<'_>]) -> Vec<(String, Vec<u8>)> {
    let plain = plain_fields(head);
    let ours: Vec<(String, Vec<u8>)> = fields
        .iter()
        .map(|field| (field.name.to_ascii_lowercase(), trim(field.value).to_vec()))
        .collect();
    assert_eq!(ours, plain, "fields");
    plain
}

/// Two readings of the length would let a request hide in the body of another.
fn one_framing(plain: &[(String, Vec<u8>)], framing: Framing) {
    let values = |wanted: &str| -> Vec<&[u8]> {
        let found = plain
            .iter()
            .filter(|(name, _)| name.replace('_', "-") == wanted);
        found.map(|(_, value)| value.as_slice()).collect()
    };
    match (
        values("content-length").as_slice(),
        values("transfer-encoding").as_slice(),
    ) {
        ([], []) => assert_eq!(framing, Framing::Unsaid),
        ([length], []) => {
            let length = std::str::from_utf8(length).expect("a length is text");
            assert!(
                length.bytes().all(|byte| byte.is_ascii_digit()),
                "{length:?}"
            );
            assert_eq!(
                framing,
                Framing::Length(length.parse().expect("a length is a number"))
            );
        }
        ([], [coding]) => {
            assert!(coding.eq_ignore_ascii_case(b"chunked"));
            assert_eq!(framing, Framing::Chunked);
        }
        both => panic!("framed in two ways: {both:?}"),
    }
}

pub(super) fn request(input: &[u8]) {
    let Ok(Some(end)) = find_end(input) else {
        return;
    };
    let head_bytes = &input[..end];
    let mut room = no_fields();
    let Ok((head, fields)) = parse_request(head_bytes, &mut room) else {
        return;
    };
    let plain = same_fields(head_bytes, fields);
    let line = format!(
        "{} {} HTTP/1.{}\r\n",
        head.method, head.target, head.version
    );
    assert!(head_bytes.starts_with(line.as_bytes()), "request line");
    let Ok(meaning) = Meaning::of(fields) else {
        return;
    };
    one_framing(&plain, meaning.framing);
    let hosts = plain.iter().filter(|(name, _)| name == "host").count();
    assert_eq!(hosts, usize::from(meaning.host.is_some()));
    let Ok(target) = Target::parse(head.target) else {
        return;
    };
    for websocket in [false, true] {
        let host = "a.example.org";
        let mut out = Vec::new();
        write_request(
            &mut out,
            &Judged {
                head: &head,
                fields,
                meaning: &meaning,
                target: &target,
                host,
                websocket,
            },
        );
        sent_is_judged(&out, head.method, &target, &meaning, websocket);
    }
}

/// The server reads what was judged, and nothing besides it.
fn sent_is_judged(
    out: &[u8],
    method: &str,
    target: &Target,
    judged: &Meaning<'_>,
    websocket: bool,
) {
    assert_eq!(
        Scan::default().find_end(out),
        Ok(Some(out.len())),
        "one head is sent"
    );
    let mut room = no_fields();
    // A head with the most fields that there can be may get one more.
    let (head, fields) = match parse_request(out, &mut room) {
        Err(HeadError::TooLarge) => return,
        read => read.expect("what is sent is readable"),
    };
    let plain = same_fields(out, fields);
    let meaning = Meaning::of(fields).expect("what is sent has a meaning");
    one_framing(&plain, judged.framing);
    assert_eq!((head.method, head.version), (method, 1));
    assert_eq!(
        Target::parse(head.target).as_ref(),
        Ok(target),
        "what is sent is what was matched"
    );
    assert_eq!(meaning.host, Some("a.example.org"));
    assert_eq!(meaning.expects_continue, judged.expects_continue);
    // What a server does not read of a body would be its next request.
    let has_body = !matches!(judged.framing, Framing::Unsaid | Framing::Length(0));
    assert_eq!(
        (meaning.upgrades, meaning.upgrade.is_some(), meaning.close),
        (websocket, websocket, has_body && !websocket)
    );
    assert!(
        fields.iter().all(|field| Kind::of(field.name) != Kind::Hop),
        "a field of the hop before"
    );
}

pub(super) fn response(input: &[u8]) {
    let Ok(Some(end)) = find_end(input) else {
        return;
    };
    let mut room = no_fields();
    let Ok((head, fields)) = parse_response(&input[..end], &mut room) else {
        return;
    };
    let plain = same_fields(&input[..end], fields);
    assert!((0..1000).contains(&head.status) && head.version <= 1);
    let Ok(meaning) = Meaning::of(fields) else {
        return;
    };
    one_framing(&plain, meaning.framing);
    let mut out = Vec::new();
    let delivery = Delivery {
        framing: meaning.framing,
        close: meaning.close,
        websocket: false,
    };
    write_response(&mut out, &head, fields, delivery);
    assert_eq!(
        Scan::default().find_end(&out),
        Ok(Some(out.len())),
        "one head is sent"
    );
    let mut room = no_fields();
    let (again, fields) = match parse_response(&out, &mut room) {
        Err(HeadError::TooLarge) => return,
        read => read.expect("what is sent is readable"),
    };
    let plain = same_fields(&out, fields);
    one_framing(&plain, meaning.framing);
    assert_eq!((again.status, again.reason), (head.status, head.reason));
    assert_eq!(
        Meaning::of(fields).expect("it has a meaning").close,
        meaning.close
    );
}

/// What goes on of a body that comes in these pieces, and how much is used up.
fn pass_on(pieces: &[&[u8]]) -> Result<(Vec<u8>, usize, bool), BodyError> {
    let mut body = Body::Chunked(Chunked::new());
    let (mut out, mut used) = (Vec::new(), 0);
    for piece in pieces {
        let mut rest = *piece;
        while !rest.is_empty() && !body.is_done() {
            let step = body.step(rest)?;
            let taken = step.skip + step.forward;
            assert!(taken > 0, "no progress");
            out.extend_from_slice(&rest[step.skip..taken]);
            rest = &rest[taken..];
            used += taken;
        }
    }
    Ok((out, used, body.is_done()))
}

pub(super) fn chunked(input: &[u8]) {
    let whole = pass_on(&[input]);
    let bytes: Vec<&[u8]> = input.chunks(1).collect();
    assert_eq!(pass_on(&bytes), whole, "byte by byte");
    for cut in 0..input.len().min(512) {
        let (front, back) = input.split_at(cut);
        assert_eq!(pass_on(&[front, back]), whole, "cut at {cut}");
    }
    if let Ok((out, used, true)) = whole {
        assert!(used <= input.len());
        only_chunks(&out);
    }
}

/// Sizes, data, and the end without a trailer, to the last byte.
fn only_chunks(mut rest: &[u8]) {
    loop {
        let end = rest
            .windows(2)
            .position(|two| two == b"\r\n")
            .expect("a size ends in CR LF");
        let size = std::str::from_utf8(&rest[..end]).expect("a size is text");
        assert!(
            size.bytes().all(|byte| byte.is_ascii_hexdigit()),
            "{size:?}"
        );
        let size = usize::from_str_radix(size, 16).expect("a size is a number");
        rest = &rest[end + 2..];
        assert_eq!(&rest[size..size + 2], b"\r\n", "a chunk ends in CR LF");
        rest = &rest[size + 2..];
        if size == 0 {
            assert!(rest.is_empty(), "bytes after the end");
            return;
        }
    }
}
