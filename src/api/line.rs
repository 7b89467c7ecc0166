//! Bytes of a stream -> lines of bounded length. Pure.

/// Collects a stream into lines that end with LF; no other byte separates.
#[derive(Debug)]
pub(crate) struct LineBuffer {
    pending: Vec<u8>,
    /// Where in `pending` the next line begins: what is before it was taken.
    start: usize,
    /// How much of `pending` is known to hold no LF after `start`.
    scanned: usize,
    limit: usize,
    /// Inside a line that is too long: its bytes are thrown away until the LF.
    skipping: bool,
}

/// One line, or the news that one was longer than the limit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Complete(Vec<u8>),
    TooLong,
}

impl LineBuffer {
    pub(crate) fn new(limit: usize) -> LineBuffer {
        LineBuffer {
            pending: Vec::new(),
            start: 0,
            scanned: 0,
            limit,
            skipping: false,
        }
    }

    /// Takes in bytes as they came; memory stays below the limit plus one read.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.pending.drain(..self.start);
        self.scanned -= self.start;
        self.start = 0;
        self.pending.extend_from_slice(bytes);
    }

    /// Whether no part of a further line has come yet.
    pub(crate) fn is_at_start(&self) -> bool {
        self.start == self.pending.len() && !self.skipping
    }

    /// The next line without its LF (and without a CR before it), if one is
    /// complete.
    pub(crate) fn next_line(&mut self) -> Option<Line> {
        let rest = self.pending.get(self.scanned..).unwrap_or_default();
        let Some(found) = rest.iter().position(|byte| *byte == b'\n') else {
            self.scanned = self.pending.len();
            if self.skipping || self.pending.len() - self.start > self.limit {
                self.skipping = true;
                self.clear();
            }
            return None;
        };
        let end = self.scanned + found;
        let line = self.pending.get(self.start..end).unwrap_or_default();
        let mut line = line.to_vec();
        self.start = end + 1;
        self.scanned = self.start;
        if self.start == self.pending.len() {
            self.clear();
        }
        if std::mem::take(&mut self.skipping) || line.len() > self.limit {
            return Some(Line::TooLong);
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Some(Line::Complete(line))
    }

    /// Gives the memory back too: a long line is rare.
    fn clear(&mut self) {
        self.pending = Vec::new();
        (self.start, self.scanned) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(buffer: &mut LineBuffer) -> Vec<Line> {
        std::iter::from_fn(|| buffer.next_line()).collect()
    }

    #[test]
    fn long_line_is_reported_once_and_survived() {
        let mut buffer = LineBuffer::new(4);
        buffer.push(b"123456");
        assert_eq!(lines(&mut buffer), []);
        buffer.push(b"789\nok\n");
        assert_eq!(
            lines(&mut buffer),
            [Line::TooLong, Line::Complete(b"ok".to_vec())]
        );
    }

    #[test]
    fn memory_of_an_endless_line_is_bounded() {
        let mut buffer = LineBuffer::new(16);
        for _ in 0..1000 {
            buffer.push(&[b'x'; 64]);
            assert_eq!(buffer.next_line(), None);
            assert!(buffer.pending.capacity() <= 256);
        }
    }

    #[test]
    fn start_of_a_line_is_told_from_its_middle() {
        let mut buffer = LineBuffer::new(4);
        assert!(buffer.is_at_start());
        for (bytes, at_start) in [
            ("a", false),
            ("\nb\n", true),
            ("123456", false),
            ("\n", true),
        ] {
            buffer.push(bytes.as_bytes());
            lines(&mut buffer);
            assert_eq!(buffer.is_at_start(), at_start, "{bytes:?}");
        }
    }

    #[test]
    fn only_lf_separates() {
        let mut buffer = LineBuffer::new(64);
        buffer.push("a\u{2028}b\rc\r\n".as_bytes());
        assert_eq!(lines(&mut buffer), [Line::Complete("a\u{2028}b\rc".into())]);
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(text in "[ab\n]{0,200}", cut in 1usize..20) {
            let mut whole = LineBuffer::new(8);
            whole.push(text.as_bytes());
            let mut pieces = LineBuffer::new(8);
            let mut seen = Vec::new();
            for piece in text.as_bytes().chunks(cut) {
                pieces.push(piece);
                seen.extend(lines(&mut pieces));
            }
            prop_assert_eq!(lines(&mut whole), seen);
        }
    }
}
