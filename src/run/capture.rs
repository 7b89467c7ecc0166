//! The output of a command in bounded memory: head, tail, and a file with the
//! rest up to a cap.

use std::path::PathBuf;

use crate::run::saved::{SavedFile, SavedOutputs};
use crate::text::{self, Shown};

/// Longest text in a result. The clients cut at 50 KB and 2,000 lines, and
/// keep the head only.
const MAX_TEXT: usize = 40_000;
const MAX_LINES: usize = 1_500;
/// Raw bytes kept in memory at each end.
const KEEP: usize = MAX_TEXT;

/// Output as it comes in.
#[derive(Debug)]
pub(crate) struct Capture {
    head: Vec<u8>,
    /// The last bytes after the head; cut back to `KEEP` now and then.
    tail: Vec<u8>,
    total: u64,
    spool: Spool,
    outputs: SavedOutputs,
}

/// Where the whole output goes once it does not fit into the head.
#[derive(Debug)]
enum Spool {
    Unused(PathBuf),
    Open(SavedFile),
    Failed(String),
}

/// What is told of an output.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) text: String,
    pub(crate) total: u64,
    /// Bytes of the output that `text` leaves out.
    pub(crate) omitted: u64,
    pub(crate) invalid_bytes: u64,
    /// The saved output, where something was left out, and how many bytes of
    /// the whole it holds.
    pub(crate) file: Option<(PathBuf, u64)>,
    pub(crate) file_error: Option<String>,
}

impl Capture {
    /// `file` is where the whole output goes if it is long.
    pub(crate) fn new(file: PathBuf, outputs: &SavedOutputs) -> Capture {
        Capture {
            head: Vec::new(),
            tail: Vec::new(),
            total: 0,
            spool: Spool::Unused(file),
            outputs: outputs.clone(),
        }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let room = KEEP - self.head.len();
        let (to_head, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(to_head);
        if rest.is_empty() {
            return;
        }
        self.save(rest);
        let rest = rest
            .get(rest.len().saturating_sub(KEEP)..)
            .unwrap_or_default();
        self.tail.extend_from_slice(rest);
        if self.tail.len() > 2 * KEEP {
            self.tail.drain(..self.tail.len() - KEEP);
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Writes what came after the head; the head goes first.
    fn save(&mut self, rest: &[u8]) {
        if let Spool::Unused(path) = &self.spool {
            self.spool = match self.outputs.create(path, &self.head) {
                Ok(file) => Spool::Open(file),
                Err(error) => Spool::Failed(error.to_string()),
            };
        }
        if let Spool::Open(file) = &mut self.spool
            && let Err(error) = file.write(rest)
        {
            self.spool = Spool::Failed(error.to_string());
        }
    }

    /// The text of the result. A long output that still fits into the head is
    /// cut by its lines or its escapes, so it is saved only now.
    pub(crate) fn finish(mut self) -> Summary {
        let whole = text::show(&self.head);
        if self.tail.is_empty() && fits(&whole.text) {
            return Summary {
                text: whole.text,
                total: self.total,
                omitted: 0,
                invalid_bytes: whole.invalid_bytes,
                file: None,
                file_error: None,
            };
        }
        if self.tail.is_empty() {
            self.save(&[]);
        }
        self.cut()
    }

    fn cut(self) -> Summary {
        let mut last = self.tail;
        if last.len() < KEEP {
            // The tail begins in what is kept as head.
            let from_head = KEEP - last.len();
            let missing = self
                .head
                .get(self.head.len().saturating_sub(from_head)..)
                .unwrap_or_default();
            last.splice(0..0, missing.iter().copied());
        }
        let (head, head_bytes) = take_head(&self.head);
        let after_head = self.total.saturating_sub(head_bytes);
        let reach = usize::try_from(after_head)
            .unwrap_or(usize::MAX)
            .min(last.len());
        let last = last.get(last.len() - reach..).unwrap_or_default();
        let (tail, tail_bytes) = take_tail(last);
        let omitted = self.total.saturating_sub(head_bytes + tail_bytes);
        let (file, file_error) = match self.spool {
            Spool::Open(file) => (Some((file.path.clone(), file.written)), None),
            Spool::Failed(error) => (None, Some(error)),
            Spool::Unused(_) => (None, None),
        };
        let newline = if head.text.ends_with('\n') { "" } else { "\n" };
        Summary {
            text: format!(
                "{}{newline}[… {omitted} bytes left out …]\n{}",
                head.text, tail.text
            ),
            total: self.total,
            omitted,
            invalid_bytes: head.invalid_bytes + tail.invalid_bytes,
            file,
            file_error,
        }
    }
}

fn fits(text: &str) -> bool {
    text.len() <= MAX_TEXT && text.bytes().filter(|byte| *byte == b'\n').count() <= MAX_LINES
}

/// Whether a piece takes no more than its half of the result.
fn fits_half(text: &str) -> bool {
    text.len() <= MAX_TEXT / 2
        && text.bytes().filter(|byte| *byte == b'\n').count() <= MAX_LINES / 2
}

/// The longest run of whole lines from the start (or else of bytes, for one
/// long line) whose shown form fits; and how many bytes it took.
fn take_head(bytes: &[u8]) -> (Shown, u64) {
    let fitting = longest_fitting(bytes.len(), |len| {
        fits_half(&text::show(bytes.get(..len).unwrap_or_default()).text)
    });
    let at_line = bytes
        .get(..fitting)
        .and_then(|piece| piece.iter().rposition(|byte| *byte == b'\n'))
        .map(|at| at + 1);
    // A last line of its own that is most of the text is not thrown away.
    let len = at_line.filter(|len| *len > fitting / 2).unwrap_or(fitting);
    (text::show(bytes.get(..len).unwrap_or_default()), len as u64)
}

fn take_tail(bytes: &[u8]) -> (Shown, u64) {
    let from = |len: usize| bytes.get(bytes.len() - len..).unwrap_or_default();
    let fitting = longest_fitting(bytes.len(), |len| fits_half(&text::show(from(len)).text));
    let piece = from(fitting);
    let at_line = piece
        .iter()
        .position(|byte| *byte == b'\n')
        .map(|at| fitting - at - 1);
    let len = at_line.filter(|len| *len > fitting / 2).unwrap_or(fitting);
    (text::show(from(len)), len as u64)
}

/// The largest length up to `max` for which `fits` holds. It is monotonous
/// but for a character cut in two, which changes a few bytes only.
fn longest_fitting(max: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, max);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::saved::MAX_FILE;

    fn capture(pieces: &[&[u8]]) -> (Summary, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let mut capture = Capture::new(dir.path().join("1.txt"), &SavedOutputs::default());
        for piece in pieces {
            capture.push(piece);
        }
        (capture.finish(), dir)
    }

    #[test]
    fn short_output_is_whole_and_saves_nothing() {
        let (summary, dir) = capture(&[b"one\n", b"two\n"]);
        assert_eq!(summary.text, "one\ntwo\n");
        assert_eq!((summary.total, summary.omitted), (8, 0));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn long_output_keeps_head_and_tail_and_is_saved_whole() {
        let text: String = (0..100_000).map(|n| format!("line {n}\n")).collect();
        let pieces: Vec<&[u8]> = text.as_bytes().chunks(7919).collect();
        let (summary, _dir) = capture(&pieces);
        assert!(summary.text.starts_with("line 0\nline 1\n"));
        assert!(summary.text.ends_with("line 99998\nline 99999\n"));
        assert!(
            summary.text.len() < MAX_TEXT + 100 && summary.text.lines().count() <= MAX_LINES + 2
        );
        let shown = summary.text.len() - "[… ".len();
        assert!(summary.omitted > (text.len() - shown) as u64);
        let (file, bytes) = summary.file.unwrap();
        assert_eq!(bytes, text.len() as u64);
        assert_eq!(std::fs::read(file).unwrap(), text.as_bytes());
    }

    #[test]
    fn head_tail_and_omitted_add_up() {
        for length in [
            KEEP - 1,
            KEEP,
            KEEP + 1,
            2 * KEEP,
            2 * KEEP + 1,
            5 * KEEP + 17,
        ] {
            let bytes: Vec<u8> = (0..length)
                .map(|n| if n % 50 == 49 { b'\n' } else { b'a' })
                .collect();
            let (summary, _dir) = capture(&[&bytes]);
            let marker = format!("[… {} bytes left out …]\n", summary.omitted);
            let shown = summary.text.replace(&marker, "").len() as u64;
            assert_eq!(shown + summary.omitted, length as u64, "length {length}");
        }
    }

    #[test]
    fn many_short_lines_are_cut_by_their_number() {
        let text = "x\n".repeat(3000);
        let (summary, _dir) = capture(&[text.as_bytes()]);
        assert!(summary.text.lines().count() <= MAX_LINES + 1);
        assert_eq!(summary.file.unwrap().1, 6000);
    }

    #[test]
    fn one_long_line_keeps_both_ends() {
        let mut bytes = vec![b'a'; 300_000];
        bytes.extend_from_slice(b"END");
        let (summary, _dir) = capture(&[&bytes]);
        assert!(summary.text.starts_with("aaa") && summary.text.ends_with("END"));
        assert!(summary.text.len() > MAX_TEXT / 2);
    }

    #[test]
    fn random_bytes_stay_within_the_limit() {
        let bytes: Vec<u8> = (0u32..200_000)
            .map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[1])
            .collect();
        let (summary, _dir) = capture(&[&bytes]);
        assert!(summary.text.len() < MAX_TEXT + 200);
        assert!(summary.invalid_bytes > 0);
    }

    #[test]
    fn saved_output_has_a_cap() {
        let dir = tempfile::tempdir().unwrap();
        let mut capture = Capture::new(dir.path().join("1.txt"), &SavedOutputs::default());
        let piece = vec![b'x'; 1 << 20];
        for _ in 0..20 {
            capture.push(&piece);
        }
        let summary = capture.finish();
        assert_eq!(summary.total, 20 << 20);
        assert_eq!(summary.file.unwrap().1, MAX_FILE);
    }

    #[test]
    fn output_that_found_no_more_room_says_how_much_was_saved() {
        let dir = tempfile::tempdir().unwrap();
        let outputs = SavedOutputs::with_limit(300_000);
        let new = |name| Capture::new(dir.path().join(name), &outputs);
        let mut captures = [new("1"), new("2"), new("3")];
        for _ in 0..3 {
            for capture in &mut captures {
                capture.push(&[b'x'; 50_000]);
            }
        }
        let saved: u64 = captures
            .map(|capture| {
                let summary = capture.finish();
                assert_eq!(summary.total, 150_000);
                let (path, saved) = summary.file.unwrap();
                assert_eq!(path.metadata().unwrap().len(), saved);
                saved
            })
            .iter()
            .sum();
        assert_eq!(saved, 300_000);
    }

    #[test]
    fn unwritable_place_is_told() {
        let mut capture = Capture::new("/nonexistent/1.txt".into(), &SavedOutputs::default());
        capture.push(&vec![b'x'; 100_000]);
        let summary = capture.finish();
        assert!(summary.file.is_none() && summary.file_error.is_some());
    }
}
