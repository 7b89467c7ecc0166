//! Bytes that wait to be written. Pure.

use std::collections::VecDeque;

/// Memory that an empty queue may keep.
const KEEP: usize = 256 << 10;

#[derive(Debug, Default)]
pub(crate) struct Queue {
    bytes: VecDeque<u8>,
}

impl Queue {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    pub(crate) fn push_line(&mut self, line: &str) {
        self.push(line.as_bytes());
        self.push(b"\n");
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next bytes, at most `limit`; not empty unless the queue is.
    pub(crate) fn front(&self, limit: usize) -> &[u8] {
        let (front, _) = self.bytes.as_slices();
        front.get(..limit).unwrap_or(front)
    }

    pub(crate) fn consume(&mut self, count: usize) {
        self.bytes.drain(..count.min(self.bytes.len()));
        if self.bytes.is_empty() && self.bytes.capacity() > KEEP {
            self.bytes = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_order_and_memory_with_them() {
        let mut queue = Queue::default();
        queue.push_line(&"x".repeat(KEEP));
        queue.push_line("end");
        let mut seen = Vec::new();
        while !queue.is_empty() {
            let piece = queue.front(1000).to_vec();
            assert!(!piece.is_empty() && piece.len() <= 1000);
            queue.consume(piece.len());
            seen.extend(piece);
        }
        assert!(seen.ends_with(b"x\nend\n"));
        assert_eq!(seen.len(), KEEP + 5);
        assert_eq!(queue.bytes.capacity(), 0);
    }
}
