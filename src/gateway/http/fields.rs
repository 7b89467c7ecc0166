//! The fields of a head -> what they say about framing and the connection.
//! Pure. Whatever two servers could take in two ways is an error.

use std::fmt;

use httparse::Header;

/// How long a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// No field says anything.
    Unsaid,
    Length(u64),
    Chunked,
}

impl Framing {
    /// Of a request: one without framing has none.
    pub(crate) fn has_body(self) -> bool {
        !matches!(self, Framing::Unsaid | Framing::Length(0))
    }
}

/// What a field is to the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Host,
    ContentLength,
    TransferEncoding,
    Connection,
    Upgrade,
    Expect,
    /// Between two neighbours only; not passed on.
    Hop,
    Other,
}

impl Kind {
    pub(crate) fn of(name: &str) -> Kind {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        match name.len() {
            2 if is("te") => Kind::Hop,
            4 if is("host") => Kind::Host,
            6 if is("expect") => Kind::Expect,
            7 if is("upgrade") => Kind::Upgrade,
            7 if is("trailer") => Kind::Hop,
            10 if is("connection") => Kind::Connection,
            10 if is("keep-alive") => Kind::Hop,
            14 if is("content-length") => Kind::ContentLength,
            14 if is("http2-settings") => Kind::Hop,
            16 if is("proxy-connection") => Kind::Hop,
            17 if is("transfer-encoding") => Kind::TransferEncoding,
            18 if is("proxy-authenticate") => Kind::Hop,
            19 if is("proxy-authorization") => Kind::Hop,
            _ => Kind::Other,
        }
    }
}

/// Why the fields of a head are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldError {
    TwoLengths,
    BadLength,
    LengthAndChunked,
    TransferCoding,
    Hosts,
    Lookalike,
    Connection,
    Expect,
    NotAscii,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FieldError::TwoLengths => "there is more than one Content-Length",
            FieldError::BadLength => "the Content-Length is not a number",
            FieldError::LengthAndChunked => "there are both Content-Length and Transfer-Encoding",
            FieldError::TransferCoding => "the only Transfer-Encoding can be \"chunked\", once",
            FieldError::Hosts => "there must be one Host field",
            FieldError::Lookalike => "a field looks like Host, Content-Length or Transfer-Encoding",
            FieldError::Connection => "the Connection field names a field that must stay",
            FieldError::Expect => "the only expectation can be \"100-continue\"",
            FieldError::NotAscii => "a field that must be text is not",
        })
    }
}

/// What the fields say, taken together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meaning<'a> {
    pub(crate) framing: Framing,
    pub(crate) host: Option<&'a str>,
    pub(crate) upgrade: Option<&'a str>,
    /// `Connection` has these options.
    pub(crate) close: bool,
    pub(crate) upgrades: bool,
    pub(crate) expects_continue: bool,
}

impl<'a> Meaning<'a> {
    pub(crate) fn of(fields: &[Header<'a>]) -> Result<Meaning<'a>, FieldError> {
        let mut meaning = Meaning {
            framing: Framing::Unsaid,
            host: None,
            upgrade: None,
            close: false,
            upgrades: false,
            expects_continue: false,
        };
        for field in fields {
            meaning.add(field)?;
        }
        Ok(meaning)
    }

    fn add(&mut self, field: &Header<'a>) -> Result<(), FieldError> {
        match Kind::of(field.name) {
            Kind::Host if self.host.is_some() => return Err(FieldError::Hosts),
            Kind::Host => self.host = Some(text(field)?),
            Kind::ContentLength => self.add_length(text(field)?)?,
            Kind::TransferEncoding => self.add_coding(text(field)?)?,
            Kind::Connection => self.add_options(text(field)?)?,
            Kind::Upgrade if self.upgrade.is_some() => return Err(FieldError::Connection),
            Kind::Upgrade => self.upgrade = Some(text(field)?),
            Kind::Expect if text(field)?.eq_ignore_ascii_case("100-continue") => {
                self.expects_continue = true;
            }
            Kind::Expect => return Err(FieldError::Expect),
            Kind::Hop => {}
            Kind::Other if is_lookalike(field.name) => return Err(FieldError::Lookalike),
            Kind::Other => {}
        }
        Ok(())
    }

    fn add_length(&mut self, value: &str) -> Result<(), FieldError> {
        match self.framing {
            Framing::Length(_) => return Err(FieldError::TwoLengths),
            Framing::Chunked => return Err(FieldError::LengthAndChunked),
            Framing::Unsaid => {}
        }
        if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(FieldError::BadLength);
        }
        let length: u64 = value.parse().map_err(|_| FieldError::BadLength)?;
        self.framing = Framing::Length(length);
        Ok(())
    }

    fn add_coding(&mut self, value: &str) -> Result<(), FieldError> {
        match self.framing {
            Framing::Length(_) => Err(FieldError::LengthAndChunked),
            Framing::Unsaid if value.eq_ignore_ascii_case("chunked") => {
                self.framing = Framing::Chunked;
                Ok(())
            }
            _ => Err(FieldError::TransferCoding),
        }
    }

    fn add_options(&mut self, value: &str) -> Result<(), FieldError> {
        for option in options(value) {
            match Kind::of(option) {
                Kind::Host | Kind::ContentLength | Kind::TransferEncoding | Kind::Expect => {
                    return Err(FieldError::Connection);
                }
                Kind::Upgrade => self.upgrades = true,
                _ if option.eq_ignore_ascii_case("close") => self.close = true,
                _ => {}
            }
        }
        Ok(())
    }
}

/// The comma-separated options of a `Connection` field.
pub(crate) fn options(value: &str) -> impl Iterator<Item = &str> {
    value
        .split(',')
        .map(|option| option.trim_matches([' ', '\t']))
        .filter(|option| !option.is_empty())
}

/// Gateways to CGI and the like take "_" for "-".
fn is_lookalike(name: &str) -> bool {
    name.contains('_')
        && matches!(
            Kind::of(&name.replace('_', "-")),
            Kind::Host | Kind::ContentLength | Kind::TransferEncoding
        )
}

fn text<'a>(field: &Header<'a>) -> Result<&'a str, FieldError> {
    match std::str::from_utf8(field.value) {
        Ok(value) if value.is_ascii() => Ok(value.trim_matches([' ', '\t'])),
        _ => Err(FieldError::NotAscii),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framing(fields: &[(&'static str, &'static str)]) -> Result<Framing, FieldError> {
        let fields: Vec<Header<'_>> = fields
            .iter()
            .map(|(name, value)| Header {
                name,
                value: value.as_bytes(),
            })
            .collect();
        Meaning::of(&fields).map(|meaning| meaning.framing)
    }

    #[test]
    fn one_length_or_chunked_frames_a_body() {
        assert_eq!(framing(&[]), Ok(Framing::Unsaid));
        assert_eq!(
            framing(&[("content-LENGTH", "12")]),
            Ok(Framing::Length(12))
        );
        assert_eq!(
            framing(&[("Transfer-Encoding", "Chunked")]),
            Ok(Framing::Chunked)
        );
    }

    #[test]
    fn ambiguous_framing_is_refused() {
        const CL: &str = "Content-Length";
        const TE: &str = "Transfer-Encoding";
        for (fields, error) in [
            (
                vec![(CL, "5"), (TE, "chunked")],
                FieldError::LengthAndChunked,
            ),
            (
                vec![(TE, "chunked"), (CL, "5")],
                FieldError::LengthAndChunked,
            ),
            (vec![(CL, "5"), (CL, "5")], FieldError::TwoLengths),
            (vec![(CL, "5"), (CL, "6")], FieldError::TwoLengths),
            (vec![(CL, "5, 5")], FieldError::BadLength),
            (vec![(CL, "+5")], FieldError::BadLength),
            (vec![(CL, "-5")], FieldError::BadLength),
            (vec![(CL, "0x5")], FieldError::BadLength),
            (vec![(CL, "5 5")], FieldError::BadLength),
            (vec![(CL, "")], FieldError::BadLength),
            (vec![(CL, "18446744073709551616")], FieldError::BadLength),
            (vec![(TE, "gzip, chunked")], FieldError::TransferCoding),
            (
                vec![(TE, "chunked"), (TE, "chunked")],
                FieldError::TransferCoding,
            ),
            (vec![(TE, "identity")], FieldError::TransferCoding),
            (vec![(TE, "xchunked")], FieldError::TransferCoding),
            (vec![(TE, "chunked;q=1")], FieldError::TransferCoding),
            (vec![(TE, "\u{b}chunked")], FieldError::TransferCoding),
            (vec![(TE, "")], FieldError::TransferCoding),
            (
                vec![("Transfer_Encoding", "chunked")],
                FieldError::Lookalike,
            ),
            (vec![("Content_Length", "5")], FieldError::Lookalike),
            (vec![("Host", "a"), ("Host", "a")], FieldError::Hosts),
            (vec![("Connection", "close, Host")], FieldError::Connection),
            (
                vec![("Connection", "content-length")],
                FieldError::Connection,
            ),
            (vec![("Expect", "200-ok")], FieldError::Expect),
            (vec![("Host", "ä")], FieldError::NotAscii),
        ] {
            assert_eq!(framing(&fields), Err(error), "{fields:?}");
        }
    }

    #[test]
    fn connection_options_are_told_apart() {
        let fields = [
            Header {
                name: "Connection",
                value: b"keep-alive, Upgrade",
            },
            Header {
                name: "Upgrade",
                value: b"websocket",
            },
        ];
        let meaning = Meaning::of(&fields).unwrap();
        assert!(meaning.upgrades && !meaning.close);
        assert_eq!(meaning.upgrade, Some("websocket"));
        assert_eq!(options(" a , b,,c ").collect::<Vec<_>>(), ["a", "b", "c"]);
    }
}
