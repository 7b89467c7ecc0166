//! Body bytes as they come -> which of them to pass on, and where the body
//! ends. Pure; nothing is held back.

use std::fmt;

/// Longest trailer section, in bytes.
const MAX_TRAILER: usize = 8 << 10;

/// A body that is being passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    Done,
    /// So many bytes are left.
    Length(u64),
    Chunked(Chunked),
    UntilClose,
}

/// What to do with the bytes at the front: leave out `skip`, pass on the next
/// `forward`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) skip: usize,
    pub(crate) forward: usize,
}

/// A chunked body that two parsers could read in two ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyError {
    ChunkSize,
    ChunkExtension,
    ChunkEnd,
    Trailer,
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BodyError::ChunkSize => "a chunk size is not a hexadecimal number",
            BodyError::ChunkExtension => "chunk extensions are not passed on",
            BodyError::ChunkEnd => "a chunk does not end in CR LF",
            BodyError::Trailer => "the trailer is malformed or longer than 8 KiB",
        })
    }
}

impl Body {
    pub(crate) fn is_done(&self) -> bool {
        matches!(self, Body::Done | Body::Length(0))
    }

    /// Looks at the next bytes. To be called again with what is left, until
    /// nothing is, or the body is done.
    pub(crate) fn step(&mut self, bytes: &[u8]) -> Result<Step, BodyError> {
        match self {
            Body::Done => Ok(Step {
                skip: 0,
                forward: 0,
            }),
            Body::UntilClose => Ok(Step {
                skip: 0,
                forward: bytes.len(),
            }),
            Body::Length(left) => {
                let forward =
                    usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left = left.saturating_sub(forward as u64);
                Ok(Step { skip: 0, forward })
            }
            Body::Chunked(chunked) => {
                let step = chunked.step(bytes)?;
                if chunked.state == State::End {
                    *self = Body::Done;
                }
                Ok(step)
            }
        }
    }
}

/// Where in a chunked body the next byte stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In a size, after so many digits.
    Size(u8),
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// At the start of a trailer line.
    Trailer,
    TrailerLine,
    TrailerLf,
    EndLf,
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunked {
    state: State,
    /// The size so far, then what is left of the chunk.
    left: u64,
    trailer: usize,
}

impl Chunked {
    pub(crate) fn new() -> Chunked {
        Chunked {
            state: State::Size(0),
            left: 0,
            trailer: 0,
        }
    }

    /// Trailers are left out: nobody here asks for them, and a server could
    /// merge them into the fields that were judged.
    fn step(&mut self, bytes: &[u8]) -> Result<Step, BodyError> {
        let skip = self.skip_trailer(bytes)?;
        let mut rest = bytes.get(skip..).unwrap_or_default();
        let whole = rest.len();
        while let Some(&byte) = rest.first() {
            if self.state == State::End || (self.state == State::Trailer && byte != b'\r') {
                break;
            }
            let taken = match self.state {
                State::Data => self.take_data(rest.len()),
                _ => {
                    self.take_byte(byte)?;
                    1
                }
            };
            rest = rest.get(taken..).unwrap_or_default();
        }
        Ok(Step {
            skip,
            forward: whole - rest.len(),
        })
    }

    fn take_data(&mut self, available: usize) -> usize {
        let taken = usize::try_from(self.left).map_or(available, |left| left.min(available));
        self.left -= taken as u64;
        if self.left == 0 {
            self.state = State::DataCr;
        }
        taken
    }

    fn take_byte(&mut self, byte: u8) -> Result<(), BodyError> {
        self.state = match (self.state, byte) {
            (State::Size(digits), byte) if byte.is_ascii_hexdigit() => {
                self.add_digit(digits, byte)?
            }
            (State::Size(1..), b'\r') => State::SizeLf,
            (State::Size(1..), b';' | b' ' | b'\t') => return Err(BodyError::ChunkExtension),
            (State::SizeLf, b'\n') if self.left == 0 => State::Trailer,
            (State::SizeLf, b'\n') => State::Data,
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => State::Size(0),
            (State::Trailer, b'\r') => State::EndLf,
            (State::EndLf, b'\n') => State::End,
            (State::Size(_) | State::SizeLf, _) => return Err(BodyError::ChunkSize),
            (State::DataCr | State::DataLf, _) => return Err(BodyError::ChunkEnd),
            _ => return Err(BodyError::Trailer),
        };
        Ok(())
    }

    fn add_digit(&mut self, digits: u8, byte: u8) -> Result<State, BodyError> {
        let digit = char::from(byte).to_digit(16).ok_or(BodyError::ChunkSize)?;
        // 15 digits are more than there is, and far from an overflow.
        if digits >= 15 {
            return Err(BodyError::ChunkSize);
        }
        self.left = (self.left << 4) | u64::from(digit);
        Ok(State::Size(digits + 1))
    }

    /// How much of the front is trailer lines.
    fn skip_trailer(&mut self, bytes: &[u8]) -> Result<usize, BodyError> {
        let mut skipped = 0;
        for &byte in bytes {
            self.state = match (self.state, byte) {
                (State::Trailer, b'\r') => break,
                (State::Trailer, b'\n' | b' ' | b'\t' | 0) => return Err(BodyError::Trailer),
                (State::Trailer, _) => State::TrailerLine,
                (State::TrailerLine, b'\r') => State::TrailerLf,
                (State::TrailerLine, b'\n' | 0) => return Err(BodyError::Trailer),
                (State::TrailerLine, _) => State::TrailerLine,
                (State::TrailerLf, b'\n') => State::Trailer,
                (State::TrailerLf, _) => return Err(BodyError::Trailer),
                _ => break,
            };
            skipped += 1;
            self.trailer += 1;
            if self.trailer > MAX_TRAILER {
                return Err(BodyError::Trailer);
            }
        }
        Ok(skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};

    /// Feeds `bytes` in pieces; returns what was passed on and what was left.
    fn feed(
        mut body: Body,
        bytes: &[u8],
        piece: usize,
    ) -> Result<(Vec<u8>, usize, bool), BodyError> {
        let mut out = Vec::new();
        let mut taken = 0;
        for part in bytes.chunks(piece) {
            let mut rest = part;
            while !rest.is_empty() && !body.is_done() {
                let step = body.step(rest)?;
                assert!(step.skip + step.forward > 0, "no progress at {rest:?}");
                out.extend_from_slice(&rest[step.skip..step.skip + step.forward]);
                taken += step.skip + step.forward;
                rest = &rest[step.skip + step.forward..];
            }
        }
        Ok((out, taken, body.is_done()))
    }

    fn chunked(bytes: &[u8], piece: usize) -> Result<(Vec<u8>, usize, bool), BodyError> {
        feed(Body::Chunked(Chunked::new()), bytes, piece)
    }

    #[test]
    fn bodies_end_where_their_framing_says() {
        assert_eq!(
            feed(Body::Length(3), b"abcdef", 2),
            Ok((b"abc".to_vec(), 3, true))
        );
        assert_eq!(
            feed(Body::UntilClose, b"abc", 2),
            Ok((b"abc".to_vec(), 3, false))
        );
        let text = b"3\r\nabc\r\n0A\r\n0123456789\r\n0\r\n\r\nNEXT";
        for piece in 1..=text.len() {
            let (out, taken, done) = chunked(text, piece).unwrap();
            assert_eq!(
                (&out[..], taken, done),
                (&text[..text.len() - 4], text.len() - 4, true)
            );
        }
    }

    #[test]
    fn trailers_are_left_out() {
        let text = b"1\r\na\r\n0\r\nHost: b\r\nX: y\r\n\r\nNEXT";
        for piece in 1..=text.len() {
            let (out, taken, done) = chunked(text, piece).unwrap();
            assert_eq!(
                (&out[..], taken, done),
                (&b"1\r\na\r\n0\r\n\r\n"[..], text.len() - 4, true)
            );
        }
    }

    #[test]
    fn bad_chunks_are_refused() {
        for (text, error) in [
            ("x\r\n", BodyError::ChunkSize),
            ("\r\n", BodyError::ChunkSize),
            ("0x3\r\nabc", BodyError::ChunkSize),
            ("-3\r\nabc", BodyError::ChunkSize),
            ("+3\r\nabc", BodyError::ChunkSize),
            ("3\nabc\n", BodyError::ChunkSize),
            ("3\rabc", BodyError::ChunkSize),
            ("1000000000000000\r\n", BodyError::ChunkSize),
            ("ffffffffffffffff\r\n", BodyError::ChunkSize),
            ("3;a=b\r\nabc\r\n", BodyError::ChunkExtension),
            ("3 \r\nabc\r\n", BodyError::ChunkExtension),
            ("3\r\nabcd\r\n", BodyError::ChunkEnd),
            ("3\r\nabc\n", BodyError::ChunkEnd),
            ("0\r\n\n", BodyError::Trailer),
            ("0\r\nX: a\n\r\n", BodyError::Trailer),
            ("0\r\n\rX", BodyError::Trailer),
            ("0\r\n X: a\r\n\r\n", BodyError::Trailer),
        ] {
            for piece in 1..=text.len() {
                assert_eq!(
                    chunked(text.as_bytes(), piece),
                    Err(error),
                    "{text:?} by {piece}"
                );
            }
        }
        let long = format!("0\r\nX: {}", "a".repeat(MAX_TRAILER));
        assert_eq!(chunked(long.as_bytes(), 64), Err(BodyError::Trailer));
    }

    proptest! {
        #[test]
        fn what_is_passed_on_reads_back_as_the_same_data(
            chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..6),
            piece in 1usize..50,
        ) {
            let mut text = Vec::new();
            for chunk in &chunks {
                text.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                text.extend_from_slice(chunk);
                text.extend_from_slice(b"\r\n");
            }
            text.extend_from_slice(b"0\r\n\r\n");
            let (out, _, done) = chunked(&text, piece).unwrap();
            prop_assert!(done);
            prop_assert_eq!(out, text);
        }

        #[test]
        fn any_bytes_end_in_an_answer(
            bytes in proptest::collection::vec("[0-9a-f;\r\n X:]".prop_map(|s| s.as_bytes()[0]), 0..80),
            piece in 1usize..20,
        ) {
            let whole = chunked(&bytes, bytes.len().max(1));
            prop_assert_eq!(chunked(&bytes, piece), whole);
        }
    }
}
