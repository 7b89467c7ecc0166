//! Bytes -> the head of a request or a response, strictly. Pure.
//!
//! `httparse` forgives line ends; here each line ends in CR LF and no line is
//! folded, so that no two parsers can see different fields.

use std::fmt;
use std::mem::MaybeUninit;

use httparse::{Header, ParserConfig};

/// Longest head, in bytes.
pub(crate) const MAX_HEAD: usize = 64 << 10;
const MAX_FIELDS: usize = 128;

/// Why a head is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadError {
    TooLarge,
    /// HTTP/2 without negotiation.
    Http2,
    LineEnd,
    Folded,
    Malformed(httparse::Error),
}

impl fmt::Display for HeadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeadError::TooLarge => f.write_str("the head has more than 64 KiB or 128 fields"),
            HeadError::Http2 => f.write_str("HTTP/2 is not spoken here"),
            HeadError::LineEnd => f.write_str("a line of the head does not end in CR LF"),
            HeadError::Folded => f.write_str("a field of the head is folded over lines"),
            HeadError::Malformed(error) => write!(f, "the head is malformed: {error}"),
        }
    }
}

/// A request line and its fields, borrowed from the buffer.
#[derive(Debug)]
pub(crate) struct RequestHead<'a> {
    pub(crate) method: &'a str,
    pub(crate) target: &'a str,
    /// 0 or 1, after `HTTP/1.`.
    pub(crate) version: u8,
}

#[derive(Debug)]
pub(crate) struct ResponseHead<'a> {
    pub(crate) status: u16,
    pub(crate) reason: &'a str,
    pub(crate) version: u8,
}

/// Room for the fields of one head.
pub(crate) type Fields<'a> = [MaybeUninit<Header<'a>>; MAX_FIELDS];

pub(crate) fn no_fields<'a>() -> Fields<'a> {
    [const { MaybeUninit::uninit() }; MAX_FIELDS]
}

/// Looks for the end of a head that comes in pieces, at each byte once.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Scan {
    /// Where the line begins that is not whole.
    line: usize,
    /// From where on its end is looked for.
    from: usize,
}

impl Scan {
    /// Where the head at the front of `bytes` ends, once all of it is there.
    /// Then the next head can be looked for.
    pub(crate) fn find_end(&mut self, bytes: &[u8]) -> Result<Option<usize>, HeadError> {
        let end = self.scan(bytes)?;
        if end.is_some() {
            *self = Scan::default();
        }
        Ok(end)
    }

    fn scan(&mut self, bytes: &[u8]) -> Result<Option<usize>, HeadError> {
        if bytes.starts_with(b"PRI * ") {
            return Err(HeadError::Http2);
        }
        while let Some(length) = bytes
            .get(self.from..)
            .and_then(|rest| memchr::memchr2(b'\r', b'\n', rest))
        {
            let last = self.from + length;
            let end = last + 2;
            match bytes.get(self.line..end) {
                // An empty line first is nobody's head.
                Some(b"\r\n") if self.line == 0 => return Err(HeadError::LineEnd),
                Some(b"\r\n") if end > MAX_HEAD => return Err(HeadError::TooLarge),
                Some(b"\r\n") => return Ok(Some(end)),
                Some([b' ' | b'\t', .., b'\r', b'\n']) => return Err(HeadError::Folded),
                Some([.., b'\r', b'\n']) => {}
                // The other half may come.
                None if bytes.ends_with(b"\r") => {
                    self.from = last;
                    return bounded(bytes);
                }
                _ => return Err(HeadError::LineEnd),
            }
            self.line = end;
            self.from = end;
        }
        self.from = bytes.len();
        bounded(bytes)
    }
}

fn bounded(bytes: &[u8]) -> Result<Option<usize>, HeadError> {
    match bytes.len() > MAX_HEAD {
        true => Err(HeadError::TooLarge),
        false => Ok(None),
    }
}

/// Reads a whole head, as `find_end` has cut it.
pub(crate) fn parse_request<'h, 'a>(
    head: &'a [u8],
    fields: &'h mut Fields<'a>,
) -> Result<(RequestHead<'a>, &'h [Header<'a>]), HeadError> {
    let mut request = httparse::Request::new(&mut []);
    let parsed = ParserConfig::default()
        .parse_request_with_uninit_headers(&mut request, head, fields)
        .map_err(malformed)?;
    match (parsed, request.method, request.path, request.version) {
        (httparse::Status::Complete(end), Some(method), Some(target), Some(version))
            if end == head.len() =>
        {
            let head = RequestHead {
                method,
                target,
                version,
            };
            Ok((head, request.headers))
        }
        _ => Err(HeadError::LineEnd),
    }
}

pub(crate) fn parse_response<'h, 'a>(
    head: &'a [u8],
    fields: &'h mut Fields<'a>,
) -> Result<(ResponseHead<'a>, &'h [Header<'a>]), HeadError> {
    let mut response = httparse::Response::new(&mut []);
    let parsed = ParserConfig::default()
        .parse_response_with_uninit_headers(&mut response, head, fields)
        .map_err(malformed)?;
    match (parsed, response.code, response.version) {
        (httparse::Status::Complete(end), Some(status), Some(version)) if end == head.len() => {
            let head = ResponseHead {
                status,
                reason: response.reason.unwrap_or_default(),
                version,
            };
            Ok((head, response.headers))
        }
        _ => Err(HeadError::LineEnd),
    }
}

fn malformed(error: httparse::Error) -> HeadError {
    match error {
        httparse::Error::TooManyHeaders => HeadError::TooLarge,
        error => HeadError::Malformed(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{prop_assert_eq, proptest};

    fn request(text: &str) -> Result<String, HeadError> {
        let Some(end) = Scan::default().find_end(text.as_bytes())? else {
            return Ok("incomplete".to_owned());
        };
        let mut fields = no_fields();
        let (head, fields) = parse_request(&text.as_bytes()[..end], &mut fields)?;
        Ok(format!(
            "{} {} {} {}",
            head.method,
            head.target,
            head.version,
            fields.len()
        ))
    }

    #[test]
    fn a_head_is_read_when_it_is_whole() {
        let text = "GET /a?b HTTP/1.1\r\nHost: a.example.org\r\nX: \r\n\r\n";
        assert_eq!(request(text), Ok("GET /a?b 1 2".into()));
        assert_eq!(request(&format!("{text}rest\n")), Ok("GET /a?b 1 2".into()));
        for cut in 0..text.len() {
            assert_eq!(request(&text[..cut]), Ok("incomplete".into()), "{cut}");
        }
    }

    #[test]
    fn heads_that_parsers_disagree_about_are_refused() {
        for wrong in [
            "GET / HTTP/1.1\nHost: a\n\n",
            "GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n\tb\r\n\r\n",
            "GET / HTTP/1.1\r\nX: a\rContent-Length: 5\r\n\r\n",
            "GET / HTTP/1.1\r\nX: a\r\r\n\r\n",
            "\r\nGET / HTTP/1.1\r\n\r\n",
            "\nGET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
            "GET / HTTP/1.1\r\n: a\r\n\r\n",
            "GET / HTTP/1.1\r\nX\r\n\r\n",
            "GET / HTTP/1.1\r\nX: a\u{0}b\r\n\r\n",
            "GET / HTTP/1.1\r\nX(: a\r\n\r\n",
            "GET  / HTTP/1.1\r\n\r\n",
            "GET / HTTP/2.0\r\n\r\n",
            "GET /\r\n\r\n",
            "GET / a HTTP/1.1\r\n\r\n",
            "G(T / HTTP/1.1\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ] {
            assert!(request(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(request("PRI * HTTP/2.0\r\n"), Err(HeadError::Http2));
    }

    #[test]
    fn heads_are_bounded() {
        let long = format!("GET / HTTP/1.1\r\nX: {}", "a".repeat(MAX_HEAD));
        assert_eq!(request(&long), Err(HeadError::TooLarge));
        assert_eq!(
            request(&format!("{long}\r\n\r\n")),
            Err(HeadError::TooLarge)
        );
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "X: a\r\n".repeat(129));
        assert_eq!(request(&many), Err(HeadError::TooLarge));
    }

    #[test]
    fn responses_are_read_the_same_way() {
        let read = |text: &str| {
            let end = Scan::default().find_end(text.as_bytes()).ok()??;
            let mut fields = no_fields();
            let (head, _) = parse_response(&text.as_bytes()[..end], &mut fields).ok()?;
            Some((head.status, head.reason.to_owned()))
        };
        assert_eq!(
            read("HTTP/1.1 404 Not Found\r\n\r\n"),
            Some((404, "Not Found".into()))
        );
        assert_eq!(read("HTTP/1.1 200\r\n\r\n"), Some((200, String::new())));
        for wrong in [
            "HTTP/1.1 2000 OK\r\n\r\n",
            "HTTP/1.1 2 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nX : a\r\n\r\n",
            "ICY 200 OK\r\n\r\n",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_head_in_pieces_is_the_same_head() {
        let text = b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\n\r\n";
        let mut scan = Scan::default();
        let first = (0..=text.len()).find_map(|cut| scan.find_end(&text[..cut]).unwrap());
        assert_eq!(first, Some(27));
        assert_eq!(scan.find_end(&text[27..]), Ok(Some(19)));
        let mut scan = Scan::default();
        assert_eq!(scan.find_end(b"GET / HTTP/1.1\r\nHost: a"), Ok(None));
        assert_eq!((scan.line, scan.from), (16, 23));
        for rest in ["", "x"] {
            let text = format!(" o\n{rest}");
            let end = Scan::default().find_end(text.as_bytes());
            assert_eq!(end, Err(HeadError::LineEnd));
        }
        assert_eq!(
            scan.find_end(b"GET / HTTP/1.1\r\nHost: a\n"),
            Err(HeadError::LineEnd)
        );
    }

    proptest! {
        #[test]
        fn any_bytes_end_in_an_answer(
            bytes in "(GET|PRI|[A-Z]|[ :/\r\n\t]|HTTP/1.1|\r\n|Host|[\\x00-\\x7f]){0,20}",
            cut in 0usize..60,
        ) {
            let bytes = bytes.as_bytes();
            let whole = Scan::default().find_end(bytes);
            let mut scan = Scan::default();
            let front = scan.find_end(bytes.get(..cut).unwrap_or(bytes));
            if front == Ok(None) {
                prop_assert_eq!(scan.find_end(bytes), whole);
            }
            if let Ok(Some(end)) = whole {
                let mut fields = no_fields();
                let _ = parse_request(&bytes[..end], &mut fields);
                let mut fields = no_fields();
                let _ = parse_response(&bytes[..end], &mut fields);
            }
        }
    }
}
