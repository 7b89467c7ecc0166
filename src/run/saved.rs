//! Saved outputs: files on the host's disk, bounded one by one and together at
//! any time. Those of ended commands make room, the oldest first.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Most bytes in one saved output.
pub(crate) const MAX_FILE: u64 = 16 << 20;
/// Most bytes in all together.
const MAX_SAVED: u64 = 256 << 20;

/// The space for saved outputs, which all captures share.
#[derive(Debug, Clone)]
pub(crate) struct SavedOutputs(Rc<RefCell<Space>>);

#[derive(Debug)]
struct Space {
    limit: u64,
    used: u64,
    /// Files that are complete, oldest first.
    complete: VecDeque<(PathBuf, u64)>,
}

/// One output that is being saved. It is complete when this goes.
#[derive(Debug)]
pub(crate) struct SavedFile {
    pub(crate) path: PathBuf,
    pub(crate) written: u64,
    file: File,
    /// It ends here: what comes later would leave a gap.
    is_cut: bool,
    outputs: SavedOutputs,
}

impl Default for SavedOutputs {
    fn default() -> SavedOutputs {
        SavedOutputs::with_limit(MAX_SAVED)
    }
}

impl SavedOutputs {
    pub(crate) fn with_limit(limit: u64) -> SavedOutputs {
        SavedOutputs(Rc::new(RefCell::new(Space {
            limit,
            used: 0,
            complete: VecDeque::new(),
        })))
    }

    /// Begins a file with these bytes, or with as many as there is room for.
    pub(crate) fn create(&self, path: &Path, head: &[u8]) -> io::Result<SavedFile> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        let mut saved = SavedFile {
            path: path.to_owned(),
            written: 0,
            file,
            is_cut: false,
            outputs: self.clone(),
        };
        saved.write(head)?;
        if saved.is_cut && saved.written == 0 {
            return Err(io::Error::other(
                "the outputs of running commands take all the space",
            ));
        }
        Ok(saved)
    }
}

impl SavedFile {
    /// Appends what there is room for.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_cut {
            return Ok(());
        }
        let length = bytes.len() as u64;
        let wanted = length.min(MAX_FILE.saturating_sub(self.written));
        let claimed = self.outputs.0.borrow_mut().claim(wanted);
        self.is_cut = claimed < length;
        self.written += claimed;
        let piece = usize::try_from(claimed).unwrap_or(usize::MAX);
        self.file.write_all(bytes.get(..piece).unwrap_or(bytes))
    }
}

impl Drop for SavedFile {
    fn drop(&mut self) {
        if self.written == 0 {
            return remove(&self.path);
        }
        let file = (std::mem::take(&mut self.path), self.written);
        self.outputs.0.borrow_mut().complete.push_back(file);
    }
}

impl Space {
    /// Makes room for `wanted` bytes, and says for how many there is some.
    fn claim(&mut self, wanted: u64) -> u64 {
        while self.used + wanted > self.limit
            && let Some((path, length)) = self.complete.pop_front()
        {
            remove(&path);
            self.used -= length;
        }
        let claimed = wanted.min(self.limit - self.used);
        self.used += claimed;
        claimed
    }
}

/// The file is emptied first: who has it open inside would keep its bytes.
fn remove(path: &Path) {
    let emptied = File::options()
        .write(true)
        .open(path)
        .and_then(|file| file.set_len(0));
    for done in [emptied, std::fs::remove_file(path)] {
        if let Err(error) = done {
            log::warn!("cannot remove the saved output {path:?}: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Dir(tempfile::TempDir);

    impl Dir {
        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn size(&self) -> u64 {
            let files = std::fs::read_dir(self.0.path()).unwrap();
            files
                .map(|file| file.unwrap().metadata().unwrap().len())
                .sum()
        }
    }

    fn dir() -> Dir {
        Dir(tempfile::tempdir().unwrap())
    }

    #[test]
    fn running_outputs_stay_within_the_limit_together() {
        let (dir, outputs) = (dir(), SavedOutputs::with_limit(1000));
        let mut files: Vec<SavedFile> = (0..3)
            .map(|n| {
                outputs
                    .create(&dir.path(&n.to_string()), &[0; 100])
                    .unwrap()
            })
            .collect();
        for _ in 0..10 {
            for file in &mut files {
                file.write(&[0; 90]).unwrap();
                assert!(dir.size() <= 1000);
            }
        }
        assert_eq!(dir.size(), 1000);
        let total: u64 = files.iter().map(|file| file.written).sum();
        assert_eq!(total, 1000);
        // One more finds nothing, and leaves nothing.
        assert!(outputs.create(&dir.path("x"), b"x").is_err());
        assert!(!dir.path("x").exists());
    }

    #[test]
    fn a_saved_output_has_no_gap() {
        let (dir, outputs) = (dir(), SavedOutputs::with_limit(100));
        let mut first = outputs.create(&dir.path("first"), b"1").unwrap();
        let second = outputs.create(&dir.path("second"), &[0; 98]).unwrap();
        first.write(b"23").unwrap();
        drop(second);
        // There is room again, but not for the rest of this one.
        first.write(b"4").unwrap();
        assert_eq!(std::fs::read(dir.path("first")).unwrap(), b"12");
    }

    #[test]
    fn oldest_complete_outputs_make_room() {
        let (dir, outputs) = (dir(), SavedOutputs::with_limit(250));
        for name in ["a", "b"] {
            outputs.create(&dir.path(name), &[0; 100]).unwrap();
        }
        let held = File::open(dir.path("a")).unwrap();
        let mut file = outputs.create(&dir.path("c"), &[0; 100]).unwrap();
        assert_eq!(held.metadata().unwrap().len(), 0);
        assert!(!dir.path("a").exists() && dir.path("b").exists());
        file.write(&[0; 100]).unwrap();
        assert!(!dir.path("b").exists() && file.written == 200);
        assert_eq!(dir.size(), 200);
    }
}
