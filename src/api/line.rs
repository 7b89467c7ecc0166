//! Bytes of a stream -> lines of bounded length. Pure.

/// Memory that is kept for the next lines; more goes once it is not needed.
const KEEP: usize = 64 << 10;

/// Collects a stream into lines that end with LF; no other byte separates.
#[derive(Debug)]
pub(crate) struct LineBuffer {
    pending: Vec<u8>,
    /// Where the first line begins that was not handed out yet. What is before
    /// it goes all at once: to move the rest for each line would take time in
    /// the square of the number of lines.
    start: usize,
    /// How much of `pending` is known to hold no further LF.
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

    /// Takes in bytes as they came; memory stays below the limit plus one read
    /// where all lines are taken out after each.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.start > self.pending.len() / 2 {
            self.compact();
        }
        self.pending.extend_from_slice(bytes);
    }

    /// The next line without its LF (and without a CR before it), if one is
    /// complete.
    pub(crate) fn next_line(&mut self) -> Option<Line> {
        let rest = self.pending.get(self.scanned..).unwrap_or_default();
        let Some(found) = rest.iter().position(|byte| *byte == b'\n') else {
            self.scanned = self.pending.len();
            self.compact();
            if self.skipping || self.pending.len() > self.limit {
                self.skipping = true;
                self.pending = Vec::new();
                self.scanned = 0;
            }
            return None;
        };
        let end = self.scanned + found;
        let line = self.pending.get(self.start..end).unwrap_or_default();
        self.start = end + 1;
        self.scanned = self.start;
        if std::mem::take(&mut self.skipping) || line.len() > self.limit {
            return Some(Line::TooLong);
        }
        Some(Line::Complete(
            line.strip_suffix(b"\r").unwrap_or(line).to_vec(),
        ))
    }

    /// Whether a line has begun that is not complete. All complete ones must
    /// have been taken out.
    pub(crate) fn is_mid_line(&self) -> bool {
        self.skipping || self.start < self.pending.len()
    }

    /// Lets go of the lines that were handed out, and of their memory.
    fn compact(&mut self) {
        if self.start == 0 {
            return;
        }
        self.pending.drain(..self.start);
        self.scanned -= self.start;
        self.start = 0;
        if self.pending.capacity() > KEEP {
            self.pending.shrink_to(KEEP);
        }
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
    fn lines_are_taken_out_without_moving_the_rest() {
        let mut buffer = LineBuffer::new(16);
        buffer.push(&[b'\n'; 1 << 20]);
        let place = |buffer: &LineBuffer| (buffer.pending.as_ptr(), buffer.pending.len());
        let before = place(&buffer);
        for _ in 0..1 << 20 {
            assert_eq!(buffer.next_line(), Some(Line::Complete(Vec::new())));
            assert_eq!(place(&buffer), before);
        }
        assert_eq!(buffer.next_line(), None);
    }

    #[test]
    fn memory_of_a_line_goes_with_it() {
        let mut buffer = LineBuffer::new(4 << 20);
        buffer.push(&[b'x'; 4 << 20]);
        buffer.push(b"\nrest");
        assert_eq!(lines(&mut buffer).len(), 1);
        assert!(buffer.is_mid_line() && buffer.pending.capacity() <= KEEP);
        buffer.push(b"\n");
        assert_eq!(lines(&mut buffer), [Line::Complete(b"rest".to_vec())]);
        assert!(!buffer.is_mid_line());
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
