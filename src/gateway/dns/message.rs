//! DNS messages (RFC 1035), as far as questions for addresses need them. Pure.
//!
//! Strict: one question, no compression in it, pointers only backwards.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(crate) const A: u16 = 1;
pub(crate) const AAAA: u16 = 28;
const CNAME: u16 = 5;
const OPT: u16 = 41;
const IN: u16 = 1;
const HEADER: usize = 12;
const MAX_NAME: usize = 255;
/// Records of a response that are looked at, and links of a chain.
const MAX_RECORDS: u16 = 256;
const MAX_CHAIN: usize = 16;
/// What we say that we take over UDP.
const UDP_SIZE: u16 = 1232;

/// What becomes of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    NoError = 0,
    FormatError = 1,
    ServerFailure = 2,
    NoSuchName = 3,
    NotImplemented = 4,
    Refused = 5,
}

/// A question, as a client has put it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Query {
    pub(crate) id: u16,
    /// In lower case. None where it cannot be the name of a host.
    pub(crate) name: Option<String>,
    pub(crate) kind: u16,
    pub(crate) is_internet: bool,
    /// The question section as it came.
    question: Vec<u8>,
    wants_recursion: bool,
    /// What it takes over UDP.
    size: u16,
    edns: bool,
}

/// A message that gets no answer, or the bare answer that it is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueryError {
    Ignore,
    Answer { id: u16, code: Code },
}

/// The bytes that are left of a message.
#[derive(Debug, Clone, Copy)]
struct Reader<'a> {
    message: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(length)?;
        let bytes = self.message.get(self.at..end)?;
        self.at = end;
        Some(bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        let bytes = self.bytes(2)?;
        Some(u16::from_be_bytes(bytes.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        let bytes = self.bytes(4)?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?))
    }

    /// A name in wire form and lower case, without pointers.
    fn name(&mut self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let mut reader = *self;
        // Where reading goes on after the first pointer.
        let mut resume = None;
        // Each pointer leads further back, so there is no way in circles.
        let mut lowest = self.at;
        loop {
            let length = *reader.bytes(1)?.first()?;
            match length {
                0 => break,
                1..=63 => {
                    let label = reader.bytes(usize::from(length))?;
                    out.push(length);
                    out.extend(label.iter().map(u8::to_ascii_lowercase));
                    if out.len() >= MAX_NAME {
                        return None;
                    }
                }
                0xc0.. => {
                    let low = *reader.bytes(1)?.first()?;
                    let target = (usize::from(length & 0x3f) << 8) | usize::from(low);
                    if target >= lowest {
                        return None;
                    }
                    resume.get_or_insert(reader.at);
                    lowest = target;
                    reader.at = target;
                }
                _ => return None,
            }
        }
        self.at = resume.unwrap_or(reader.at);
        out.push(0);
        Some(out)
    }
}

/// The text form, for names that hosts can have.
fn text_of(name: &[u8]) -> Option<String> {
    let mut out = String::new();
    let mut rest = name;
    while let Some((&length, after)) = rest.split_first() {
        if length == 0 {
            break;
        }
        let (label, after) = after.split_at_checked(usize::from(length))?;
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if !label.iter().all(is_plain) {
            return None;
        }
        if !out.is_empty() {
            out.push('.');
        }
        out.extend(label.iter().map(|byte| char::from(*byte)));
        rest = after;
    }
    (!out.is_empty()).then_some(out)
}

pub(crate) fn parse_query(message: &[u8]) -> Result<Query, QueryError> {
    let mut reader = Reader { message, at: 0 };
    let (Some(id), Some(flags)) = (reader.u16(), reader.u16()) else {
        return Err(QueryError::Ignore);
    };
    if flags & 0x8000 != 0 {
        return Err(QueryError::Ignore);
    }
    let answer = |code| QueryError::Answer { id, code };
    if flags & 0x7800 != 0 {
        return Err(answer(Code::NotImplemented));
    }
    parse_question(reader, id, flags).ok_or_else(|| answer(Code::FormatError))
}

fn parse_question(mut reader: Reader<'_>, id: u16, flags: u16) -> Option<Query> {
    let counts = [reader.u16()?, reader.u16()?, reader.u16()?, reader.u16()?];
    let [1, 0, 0, additional @ 0..=2] = counts else {
        return None;
    };
    let message = reader.message;
    let name = reader.name()?;
    let name_end = reader.at;
    // A pointer in the only name there is would lead into the header.
    if name_end - HEADER != name.len() {
        return None;
    }
    let kind = reader.u16()?;
    let class = reader.u16()?;
    let question = message.get(HEADER..reader.at)?.to_vec();
    let mut size = 512;
    let mut edns = false;
    for _ in 0..additional {
        let owner = reader.name()?;
        let record = reader.u16()?;
        let payload = reader.u16()?;
        reader.u32()?;
        let length = reader.u16()?;
        reader.bytes(usize::from(length))?;
        if record == OPT {
            if edns || owner != [0] {
                return None;
            }
            edns = true;
            size = payload.clamp(512, UDP_SIZE);
        }
    }
    Some(Query {
        id,
        name: text_of(&name),
        kind,
        is_internet: class == IN,
        question,
        wants_recursion: flags & 0x0100 != 0,
        size,
        edns,
    })
}

impl Query {
    /// An answer with these addresses, cut to what UDP takes if `over_udp`.
    pub(crate) fn answer(
        &self,
        code: Code,
        addresses: &[IpAddr],
        ttl: u32,
        over_udp: bool,
    ) -> Vec<u8> {
        let limit = if over_udp {
            usize::from(self.size)
        } else {
            usize::from(u16::MAX)
        };
        let record = if self.kind == A { 16 } else { 28 };
        let fits = HEADER + self.question.len() + addresses.len() * record + 11 <= limit;
        let addresses = if fits { addresses } else { &[] };
        let mut flags = 0x8080 | code as u16;
        flags |= u16::from(self.wants_recursion) << 8;
        flags |= u16::from(!fits) << 9;
        let count = u16::try_from(addresses.len()).unwrap_or_default();
        let mut out = header(self.id, flags, [1, count, 0, u16::from(self.edns)]);
        out.extend_from_slice(&self.question);
        for address in addresses {
            push_record(&mut out, *address, ttl);
        }
        if self.edns {
            push_opt(&mut out);
        }
        out
    }
}

/// An answer to what could not be read.
pub(crate) fn bare_answer(id: u16, code: Code) -> Vec<u8> {
    header(id, 0x8080 | code as u16, [0; 4])
}

fn header(id: u16, flags: u16, counts: [u16; 4]) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    for field in [id, flags].into_iter().chain(counts) {
        out.extend_from_slice(&field.to_be_bytes());
    }
    out
}

/// The owner is the name of the question, whatever chain led to the address.
fn push_record(out: &mut Vec<u8>, address: IpAddr, ttl: u32) {
    out.extend_from_slice(&[0xc0, 12]);
    let (kind, octets) = match address {
        IpAddr::V4(address) => (A, address.octets().to_vec()),
        IpAddr::V6(address) => (AAAA, address.octets().to_vec()),
    };
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&IN.to_be_bytes());
    out.extend_from_slice(&ttl.to_be_bytes());
    out.extend_from_slice(&[0, if kind == A { 4 } else { 16 }]);
    out.extend_from_slice(&octets);
}

fn push_opt(out: &mut Vec<u8>) {
    out.push(0);
    out.extend_from_slice(&OPT.to_be_bytes());
    out.extend_from_slice(&UDP_SIZE.to_be_bytes());
    out.extend_from_slice(&[0; 6]);
}

/// A question to a resolver. None for what is not a host name.
pub(crate) fn question(id: u16, name: &str, kind: u16, edns: bool) -> Option<Vec<u8>> {
    let mut out = header(id, 0x0100, [1, 0, 0, u16::from(edns)]);
    out.extend_from_slice(&wire_of(name)?);
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&IN.to_be_bytes());
    if edns {
        push_opt(&mut out);
    }
    Some(out)
}

fn wire_of(name: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(name.len() + 2);
    for label in name.split('.') {
        let length = u8::try_from(label.len())
            .ok()
            .filter(|length| (1..=63).contains(length))?;
        out.push(length);
        out.extend(label.bytes().map(|byte| byte.to_ascii_lowercase()));
    }
    out.push(0);
    (out.len() <= MAX_NAME).then_some(out)
}

/// What a resolver has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) code: u8,
    pub(crate) truncated: bool,
    /// Of the asked kind, at the end of the chain of aliases.
    pub(crate) addresses: Vec<IpAddr>,
    /// The shortest one on the way.
    pub(crate) ttl: u32,
}

/// Reads the answer to a question. None for whatever is not that.
pub(crate) fn parse_response(message: &[u8], id: u16, name: &str, kind: u16) -> Option<Response> {
    let mut reader = Reader { message, at: 0 };
    if reader.u16()? != id {
        return None;
    }
    let flags = reader.u16()?;
    if flags & 0xf800 != 0x8000 {
        return None;
    }
    let questions = reader.u16()?;
    let answers = reader.u16()?;
    reader.bytes(4)?;
    let asked = wire_of(name)?;
    if questions != 1 || reader.name()? != asked || reader.u16()? != kind || reader.u16()? != IN {
        return None;
    }
    let code = u8::try_from(flags & 0xf).ok()?;
    let truncated = flags & 0x0200 != 0;
    let mut response = Response {
        code,
        truncated,
        addresses: Vec::new(),
        ttl: u32::MAX,
    };
    if code == 0 && !truncated {
        let records = read_records(&mut reader, answers.min(MAX_RECORDS))?;
        follow(&records, asked, kind, &mut response);
    }
    Some(response)
}

#[derive(Debug)]
struct Record {
    owner: Vec<u8>,
    ttl: u32,
    data: Data,
}

#[derive(Debug)]
enum Data {
    Address(u16, IpAddr),
    Alias(Vec<u8>),
    Other,
}

fn read_records(reader: &mut Reader<'_>, count: u16) -> Option<Vec<Record>> {
    (0..count).map(|_| read_record(reader)).collect()
}

fn read_record(reader: &mut Reader<'_>) -> Option<Record> {
    let owner = reader.name()?;
    let kind = reader.u16()?;
    let class = reader.u16()?;
    let ttl = reader.u32()?;
    let length = usize::from(reader.u16()?);
    let start = reader.at;
    let bytes = reader.bytes(length)?;
    let data = match (class, kind) {
        (IN, A) => Data::Address(A, Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        (IN, AAAA) => Data::Address(
            AAAA,
            Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into(),
        ),
        (IN, CNAME) => {
            let mut inner = Reader {
                at: start,
                ..*reader
            };
            let alias = inner.name()?;
            if inner.at != start + length {
                return None;
            }
            Data::Alias(alias)
        }
        _ => Data::Other,
    };
    // RFC 2181: a set top bit means zero.
    let ttl = if ttl > u32::MAX >> 1 { 0 } else { ttl };
    Some(Record { owner, ttl, data })
}

/// From alias to alias to the addresses.
fn follow(records: &[Record], asked: Vec<u8>, kind: u16, response: &mut Response) {
    let mut name = asked;
    for _ in 0..MAX_CHAIN {
        for record in records.iter().filter(|record| record.owner == name) {
            if let Data::Address(found, address) = record.data
                && found == kind
            {
                response.addresses.push(address);
                response.ttl = response.ttl.min(record.ttl);
            }
        }
        let alias = records.iter().find_map(|record| match &record.data {
            Data::Alias(alias) if record.owner == name => Some((alias, record.ttl)),
            _ => None,
        });
        match alias {
            Some((alias, ttl)) if response.addresses.is_empty() => {
                response.ttl = response.ttl.min(ttl);
                name.clone_from(alias);
            }
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert_eq, proptest};

    fn query(name: &str, kind: u16, edns: bool) -> Vec<u8> {
        question(7, name, kind, edns).unwrap()
    }

    #[test]
    fn a_question_is_read_and_answered() {
        let read = parse_query(&query("A.Example.org", A, true)).unwrap();
        assert_eq!(read.name.as_deref(), Some("a.example.org"));
        assert!(read.is_internet && read.edns && read.wants_recursion);
        let addresses = ["192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap()];
        let answer = read.answer(Code::NoError, &addresses, 60, true);
        let response = parse_response(&answer, 7, "a.example.org", A).unwrap();
        assert_eq!(response.addresses, addresses);
        assert_eq!(
            (response.code, response.ttl, response.truncated),
            (0, 60, false)
        );
    }

    #[test]
    fn the_case_of_a_question_comes_back() {
        let mut message = query("a.example.org", A, false);
        message[13] = b'A';
        let answer = parse_query(&message)
            .unwrap()
            .answer(Code::NoSuchName, &[], 0, true);
        assert_eq!(&answer[12..], &message[12..]);
        assert_eq!(answer[3] & 0xf, 3);
    }

    #[test]
    fn what_does_not_fit_is_truncated_over_udp_only() {
        let read = parse_query(&query("a.example.org", AAAA, false)).unwrap();
        let many: Vec<IpAddr> = (0..40)
            .map(|n| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, n]))
            .collect();
        let answer = read.answer(Code::NoError, &many, 60, true);
        assert!(answer.len() <= 512);
        assert!(
            parse_response(&answer, 7, "a.example.org", AAAA)
                .unwrap()
                .truncated
        );
        let whole = read.answer(Code::NoError, &many, 60, false);
        assert_eq!(
            parse_response(&whole, 7, "a.example.org", AAAA)
                .unwrap()
                .addresses,
            many
        );
    }

    #[test]
    fn odd_questions_are_refused_or_ignored() {
        assert_eq!(parse_query(&[]), Err(QueryError::Ignore));
        assert_eq!(parse_query(&[0, 1, 0x80, 0]), Err(QueryError::Ignore));
        let format = |message: &[u8]| {
            assert_eq!(
                parse_query(message),
                Err(QueryError::Answer {
                    id: 7,
                    code: Code::FormatError
                })
            );
        };
        let good = query("a.example.org", A, false);
        for cut in 4..good.len() {
            format(&good[..cut]);
        }
        let mut two = good.clone();
        two[5] = 2;
        format(&two);
        let mut loops = good[..12].to_vec();
        loops.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1]);
        format(&loops);
        let mut update = good.clone();
        update[2] = 0x28;
        assert!(matches!(
            parse_query(&update),
            Err(QueryError::Answer {
                code: Code::NotImplemented,
                ..
            })
        ));
        let mut odd = good;
        odd[13] = b' ';
        assert_eq!(parse_query(&odd).unwrap().name, None);
    }

    fn response(records: &[(&str, u16, Vec<u8>)]) -> Vec<u8> {
        let mut out = query("a.example.org", A, false);
        out[2] = 0x81;
        out[3] = 0x80;
        out[7] = u8::try_from(records.len()).unwrap();
        for (owner, kind, data) in records {
            out.extend_from_slice(&wire_of(owner).unwrap());
            out.extend_from_slice(&kind.to_be_bytes());
            out.extend_from_slice(&[0, 1, 0, 0, 0, 30, 0, u8::try_from(data.len()).unwrap()]);
            out.extend_from_slice(data);
        }
        out
    }

    #[test]
    fn aliases_are_followed_and_strangers_left_out() {
        let message = response(&[
            ("b.example.org", A, vec![192, 0, 2, 2]),
            ("a.example.org", CNAME, wire_of("b.example.org").unwrap()),
            ("c.example.org", A, vec![192, 0, 2, 3]),
            ("b.example.org", AAAA, vec![0; 16]),
        ]);
        let read = parse_response(&message, 7, "a.example.org", A).unwrap();
        assert_eq!(read.addresses, ["192.0.2.2".parse::<IpAddr>().unwrap()]);
        let circle = response(&[
            ("a.example.org", CNAME, wire_of("b.example.org").unwrap()),
            ("b.example.org", CNAME, wire_of("a.example.org").unwrap()),
        ]);
        let read = parse_response(&circle, 7, "a.example.org", A).unwrap();
        assert!(read.addresses.is_empty());
    }

    #[test]
    fn answers_to_something_else_are_no_answers() {
        let message = response(&[("a.example.org", A, vec![192, 0, 2, 2])]);
        assert!(parse_response(&message, 7, "a.example.org", A).is_some());
        assert_eq!(parse_response(&message, 8, "a.example.org", A), None);
        assert_eq!(parse_response(&message, 7, "b.example.org", A), None);
        assert_eq!(parse_response(&message, 7, "a.example.org", AAAA), None);
        assert_eq!(
            parse_response(&query("a.example.org", A, false), 7, "a.example.org", A),
            None
        );
        let short = response(&[("a.example.org", A, vec![192, 0, 2])]);
        assert_eq!(parse_response(&short, 7, "a.example.org", A), None);
        for cut in 0..message.len() {
            assert_eq!(
                parse_response(&message[..cut], 7, "a.example.org", A),
                None,
                "{cut}"
            );
        }
    }

    #[test]
    fn pointers_lead_backwards_only() {
        let mut message = query("a.example.org", A, false);
        message[2] = 0x80;
        message[7] = 1;
        let at = u8::try_from(message.len()).unwrap();
        for target in [at, at + 2, 0xff] {
            let mut looping = message.clone();
            looping.extend_from_slice(&[0xc0, target, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 192, 0, 2, 1]);
            assert_eq!(parse_response(&looping, 7, "a.example.org", A), None);
        }
        message.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 192, 0, 2, 1]);
        assert_eq!(
            parse_response(&message, 7, "a.example.org", A)
                .unwrap()
                .addresses
                .len(),
            1
        );
    }

    proptest! {
        #[test]
        fn any_bytes_end_in_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = parse_query(&bytes);
            let _ = parse_response(&bytes, 7, "a.example.org", A);
        }

        #[test]
        fn changed_responses_never_panic(position in 0usize..90, value in any::<u8>()) {
            let mut message = response(&[
                ("a.example.org", CNAME, wire_of("b.example.org").unwrap()),
                ("b.example.org", A, vec![192, 0, 2, 2]),
            ]);
            if let Some(byte) = message.get_mut(position) { *byte = value; }
            let _ = parse_response(&message, 7, "a.example.org", A);
        }

        #[test]
        fn names_come_back_as_they_were_asked(name in "[a-z0-9]{1,20}(\\.[a-z0-9]{1,20}){0,5}") {
            let read = parse_query(&query(&name, AAAA, true)).unwrap();
            prop_assert_eq!(read.name, Some(name));
        }
    }
}
