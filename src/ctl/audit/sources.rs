//! The files of an audit, that of the gateway and that of the kernel -> their
//! lines in the order of time, and then what is added to them.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use crate::ctl::audit::record::Record;
use crate::ctl::tail::{self, Tail};
use crate::error::Error;
use crate::podman::gateway::AUDIT_FILE;
use crate::workspace::{Names, SessionId};

/// Old files that are looked for; there are three, unless the gateway was told
/// otherwise.
const MAX_OLD: usize = 9;

/// A line, and what it means if it means anything.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) bytes: Vec<u8>,
    pub(super) record: Option<Record>,
}

impl Line {
    fn new(bytes: Vec<u8>) -> Line {
        Line {
            record: Record::parse(&bytes),
            bytes,
        }
    }

    /// What has no time stays where it is.
    fn time(&self) -> f64 {
        self.record.as_ref().map_or(0.0, |record| record.ts)
    }
}

/// One file with its older ones.
#[derive(Debug)]
struct Source {
    /// The newest first.
    places: Vec<PathBuf>,
    /// The oldest first; the last of them stays, to be followed.
    tails: VecDeque<Tail>,
    head: Option<Line>,
}

/// All that is read, merged by time.
#[derive(Debug)]
pub(super) struct Sources(Vec<Source>);

impl Sources {
    /// `None` where nothing was ever recorded.
    pub(super) fn open(names: &Names, sid: &SessionId) -> Result<Option<Sources>, Error> {
        let sources = files(names, sid)
            .into_iter()
            .map(|file| Source::open(&file));
        let sources = Sources(sources.collect::<Result<_, _>>()?);
        let is_there = sources.0.iter().any(|source| !source.tails.is_empty());
        Ok(is_there.then_some(sources))
    }

    /// The next line of those that are there now.
    pub(super) fn next(&mut self) -> Result<Option<Line>, Error> {
        let mut first: Option<(f64, &mut Source)> = None;
        for source in &mut self.0 {
            source.fill()?;
            let Some(time) = source.head.as_ref().map(Line::time) else {
                continue;
            };
            if first.as_ref().is_none_or(|(earliest, _)| time < *earliest) {
                first = Some((time, source));
            }
        }
        Ok(first.and_then(|(_, source)| source.head.take()))
    }

    /// What was added since.
    pub(super) fn more(&mut self) -> Result<Vec<Line>, Error> {
        let mut lines = Vec::new();
        for source in &mut self.0 {
            lines.extend(source.more()?.into_iter().map(Line::new));
        }
        lines.sort_by(|a, b| a.time().total_cmp(&b.time()));
        Ok(lines)
    }

    /// Whether a last line is not, or not yet, written to its end.
    pub(super) fn is_cut(&mut self) -> bool {
        let tails = self
            .0
            .iter_mut()
            .filter_map(|source| source.tails.back_mut());
        tails.filter_map(Tail::take_partial).count() > 0
    }
}

/// Those that are written to. The counters of the kernel have a file of their
/// own, as the gateway alone rotates its own.
fn files(names: &Names, sid: &SessionId) -> Vec<PathBuf> {
    let kernel = format!("kernel-{sid}.jsonl");
    vec![names.audit.join(AUDIT_FILE), names.audit.join(kernel)]
}

impl Source {
    fn open(file: &Path) -> Result<Source, Error> {
        let old = (1..=MAX_OLD).map(|number| {
            let mut name = file.as_os_str().to_owned();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        });
        let places: Vec<PathBuf> = std::iter::once(file.to_owned()).chain(old).collect();
        Ok(Source {
            tails: tail::open_all(&places)?.into(),
            places,
            head: None,
        })
    }

    fn fill(&mut self) -> Result<(), Error> {
        while self.head.is_none() {
            let Some(tail) = self.tails.front_mut() else {
                return Ok(());
            };
            if let Some(line) = tail.next_line()? {
                self.head = Some(Line::new(line));
            } else if self.tails.len() > 1 {
                // Nothing is added to an old file.
                let mut done = self.tails.pop_front();
                let rest = done.as_mut().and_then(Tail::take_partial);
                self.head = rest.map(Line::new);
            } else {
                return Ok(());
            }
        }
        Ok(())
    }

    fn more(&mut self) -> Result<Vec<Vec<u8>>, Error> {
        if self.tails.is_empty() {
            self.tails = tail::open_all(&self.places)?.into();
        }
        let mut lines = Vec::new();
        while let Some(mut tail) = self.tails.pop_front() {
            lines.extend(tail.more(&self.places)?);
            // It has gone on to the newest itself.
            if self.tails.is_empty() {
                self.tails.push_back(tail);
                break;
            }
        }
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dirs::Dirs;

    struct Stage {
        dir: tempfile::TempDir,
        names: Names,
        sid: SessionId,
    }

    impl Stage {
        fn new() -> Stage {
            let dir = tempfile::tempdir().unwrap();
            let home = dir.path();
            let dirs = Dirs {
                home: home.to_owned(),
                config: home.join("c"),
                data: home.join("d"),
                state: home.join("s"),
                runtime: home.join("r"),
            };
            let sid = SessionId::parse("0123abcd").unwrap();
            let names = Names::new("umwelt", &sid, &dirs);
            std::fs::create_dir_all(&names.audit).unwrap();
            Stage { dir, names, sid }
        }

        fn append(&self, name: &str, text: &str) {
            use std::io::Write;
            let path = self
                .dir
                .path()
                .join("d/egress/audit-umwelt-0123abcd")
                .join(name);
            let mut options = std::fs::File::options();
            let mut file = options.append(true).create(true).open(path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        }

        fn open(&self) -> Option<Sources> {
            Sources::open(&self.names, &self.sid).unwrap()
        }
    }

    fn line(ts: u32) -> String {
        format!("{{\"type\":\"umwelt-egress\",\"ts\":{ts},\"kind\":\"dns\"}}\n")
    }

    fn all(sources: &mut Sources) -> Vec<f64> {
        let mut times = Vec::new();
        while let Some(line) = sources.next().unwrap() {
            times.push(line.time());
        }
        times
    }

    const AUDIT: &str = "audit.jsonl";

    #[test]
    fn both_files_are_merged_by_time_with_their_older_ones() {
        let stage = Stage::new();
        assert!(stage.open().is_none());
        stage.append(&format!("{AUDIT}.2"), &line(1));
        stage.append(&format!("{AUDIT}.1"), &(line(3) + &line(5)));
        stage.append(AUDIT, &(line(7) + "{\"cut"));
        stage.append("kernel-0123abcd.jsonl.1", &(line(2) + &line(4)));
        stage.append("kernel-0123abcd.jsonl", &line(6));
        let mut sources = stage.open().unwrap();
        assert_eq!(all(&mut sources), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        assert!(sources.is_cut());
        assert!(!sources.is_cut());
    }

    #[test]
    fn what_is_no_record_is_handed_on() {
        let stage = Stage::new();
        // The gateway was killed while it wrote, and then began a new file.
        stage.append(&format!("{AUDIT}.1"), "{\"half");
        stage.append(AUDIT, &("what?\n".to_owned() + &line(2)));
        let mut sources = stage.open().unwrap();
        let mut unreadable = Vec::new();
        while let Some(line) = sources.next().unwrap() {
            if line.record.is_none() {
                unreadable.push(line.bytes);
            }
        }
        assert_eq!(unreadable, [&b"{\"half"[..], b"what?"]);
    }

    #[test]
    fn files_that_come_later_are_followed_too() {
        let stage = Stage::new();
        stage.append(AUDIT, &line(1));
        let mut sources = stage.open().unwrap();
        assert_eq!(all(&mut sources), [1.0]);
        stage.append("kernel-0123abcd.jsonl", &line(2));
        stage.append(AUDIT, &line(3));
        let times: Vec<f64> = sources.more().unwrap().iter().map(Line::time).collect();
        assert_eq!(times, [2.0, 3.0]);
        assert!(sources.more().unwrap().is_empty());
    }
}
