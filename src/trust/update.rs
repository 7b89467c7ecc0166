//! Changes of a workspace file and of its record, together.
//!
//! The record is written before the file. After a crash between the two the
//! file is either as before or as it was meant to be, and nothing counts that
//! was taken back.

use std::path::Path;

use crate::config::{ConfigError, PersistedGrant, WorkspaceFile, edit, egress_edit};
use crate::egress::rules::RuleChange;
use crate::trust::directory::{Contents, ReplaceError};
use crate::trust::record::{Accepted, Record};
use crate::trust::{
    Comparison, FILE, Found, MAX_FILE, TrustError, TrustState, WorkspaceTrust, judge, meaning,
};

/// For a file that was not there. Others have no use for it.
const NEW_MODE: u32 = 0o600;

impl WorkspaceTrust {
    /// Writes a grant into the file, or another mode where its path has one.
    /// False when it was there already. Refused where the file is not trusted.
    pub(crate) fn add_grant(&self, grant: &PersistedGrant) -> Result<bool, TrustError> {
        self.change(|text| edit::add_grant(&self.path(), text, &self.home, grant).map(Some))
    }

    /// Takes the grant for `path` out of the file; false where there is none.
    pub(crate) fn remove_grant(&self, path: &Path) -> Result<bool, TrustError> {
        self.change(|text| edit::remove_grant(&self.path(), text, &self.home, path))
    }

    /// Writes a rule for the network at the end of the file, or takes rules out.
    pub(crate) fn change_rules(&self, change: &RuleChange) -> Result<bool, TrustError> {
        let path = self.path();
        self.change(|text| match change {
            RuleChange::Add(rule) => egress_edit::add(&path, text, rule).map(Some),
            RuleChange::Remove(rule) => egress_edit::remove(&path, text, rule),
        })
    }

    /// An error where something in the file does not count.
    pub(crate) fn check_counts(&self) -> Result<(), TrustError> {
        let found = self.find()?;
        match judge(&found, &self.shelf.load()) {
            TrustState::Absent | TrustState::Trusted => Ok(()),
            TrustState::Untrusted(why) => {
                let workspace = self.workspace.clone();
                Err(TrustError::NotTrusted { workspace, why })
            }
            TrustState::Broken(error) => Err(error.into()),
        }
    }

    /// Accepts what `seen` holds, if the file still holds it.
    pub(crate) fn accept(&self, seen: &Comparison) -> Result<(), TrustError> {
        let _lock = self.shelf.lock()?;
        if self.directory()?.read(FILE, MAX_FILE)? != seen.found {
            return Err(TrustError::Changed(self.path()));
        }
        let accepted = Accepted::now(&seen.new_text);
        self.shelf.save(&Record::new(&self.workspace, accepted))
    }

    /// Nothing of the file counts any more. Whether anything did.
    pub(crate) fn revoke(&self) -> Result<bool, TrustError> {
        let _lock = self.shelf.lock()?;
        self.shelf.remove()
    }

    fn change(
        &self,
        edit: impl FnOnce(&str) -> Result<Option<String>, ConfigError>,
    ) -> Result<bool, TrustError> {
        let _lock = self.shelf.lock()?;
        let found = self.find()?;
        let record = self.shelf.load();
        match judge(&found, &record) {
            TrustState::Absent | TrustState::Trusted => {}
            TrustState::Untrusted(why) => {
                let workspace = self.workspace.clone();
                return Err(TrustError::NotTrusted { workspace, why });
            }
            TrustState::Broken(error) => return Err(error.into()),
        }
        let Some(text) = edit(&found.text)?.filter(|text| *text != found.text) else {
            return Ok(false);
        };
        if text.len() as u64 > MAX_FILE {
            let (path, limit) = (self.path(), MAX_FILE);
            return Err(ConfigError::TooLarge { path, limit }.into());
        }
        let before = record.ok().flatten();
        let after = self.announce(&found, &text)?;
        if let Err(error) = self.write(&found, text) {
            self.restore(before);
            return Err(error);
        }
        self.shelf.save(&after).map(|()| true)
    }

    /// Records what is about to be written; the record to follow the write.
    fn announce(&self, found: &Found, text: &str) -> Result<Record, TrustError> {
        let file = WorkspaceFile::parse(&self.path(), text, &self.home)?;
        let changes = meaning::changes(&found.file, &file);
        let after = Record::new(&self.workspace, Accepted::now(text));
        if changes.iter().all(|change| change.widens) {
            // What is there now asks for less: it may count until it is gone.
            let old = Record::new(&self.workspace, Accepted::now(&found.text));
            self.shelf.save(&old.with_next(Accepted::now(text)))?;
        } else {
            self.shelf.save(&after)?;
        }
        Ok(after)
    }

    fn write(&self, found: &Found, text: String) -> Result<(), TrustError> {
        let mode = found.contents.as_ref().map_or(NEW_MODE, |old| old.mode);
        let new = Contents {
            bytes: text.into_bytes(),
            mode,
        };
        let is_expected = |now: Option<&Contents>| now == found.contents.as_ref();
        let replaced = self.directory()?.replace(FILE, &new, is_expected, MAX_FILE);
        replaced.map_err(|error| match error {
            ReplaceError::Changed => TrustError::Changed(self.path()),
            ReplaceError::Io(error) => TrustError::io(format!("write {:?}", self.path()), error),
        })
    }

    /// The file could not be written: what was accepted before still is.
    fn restore(&self, before: Option<Record>) {
        let restored = match before {
            Some(record) => self.shelf.save(&record),
            None => self.shelf.remove().map(|_| ()),
        };
        if let Err(error) = restored {
            log::warn!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::GrantMode;
    use crate::dirs::Dirs;
    use crate::trust::Untrusted;
    use crate::workspace::Workspace;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    struct Place {
        base: PathBuf,
        dirs: Dirs,
        _temp: tempfile::TempDir,
    }

    impl Place {
        fn new() -> Place {
            let temp = tempfile::tempdir().unwrap();
            let base = temp.path().canonicalize().unwrap();
            std::fs::create_dir(base.join("w")).unwrap();
            let dirs = Dirs {
                home: base.join("h"),
                config: base.join("config"),
                data: base.join("data"),
                state: base.join("state"),
                runtime: base.join("run"),
            };
            Place {
                base,
                dirs,
                _temp: temp,
            }
        }

        fn trust(&self) -> WorkspaceTrust {
            let workspace = self.base.join("w");
            let sid = Workspace::sid_of_path(&workspace).unwrap();
            WorkspaceTrust::of_path(workspace.to_str().unwrap(), &sid, &self.dirs)
        }

        fn file(&self) -> PathBuf {
            self.base.join("w").join(FILE)
        }

        fn write(&self, text: &str) {
            std::fs::write(self.file(), text).unwrap();
        }

        fn text(&self) -> String {
            std::fs::read_to_string(self.file()).unwrap()
        }

        fn accept(&self) {
            let trust = self.trust();
            trust.accept(&trust.comparison().unwrap()).unwrap();
        }

        /// The paths that count, and what is said to be wrong.
        fn counts(&self) -> (Vec<String>, Option<String>) {
            let settings = self.trust().load();
            let paths = settings.file.grants.iter();
            let paths = paths.map(|grant| grant.path.to_str().unwrap().to_owned());
            (paths.collect(), settings.notice())
        }

        fn is_untrusted(&self, part: &str) -> bool {
            let (paths, notice) = self.counts();
            let notice = notice.unwrap_or_default();
            paths.is_empty() && notice.contains(part) && notice.contains("umwelt-ctl trust /")
        }
    }

    fn grant(path: &str) -> PersistedGrant {
        PersistedGrant {
            path: path.into(),
            mode: GrantMode::Rw,
            file: false,
        }
    }

    const TEXT: &str = "# mine\n[[grants]]\npath = \"/a\"\nmode = \"ro\"\n";

    #[test]
    fn file_that_nobody_accepted_counts_for_nothing() {
        let place = Place::new();
        assert_eq!(place.counts(), (vec![], None));
        place.write("# only words\n");
        assert_eq!(place.counts(), (vec![], None));
        place.write(TEXT);
        assert!(place.is_untrusted("never accepted"));
        place.accept();
        assert_eq!(place.counts(), (vec!["/a".to_owned()], None));
    }

    #[test]
    fn any_edit_ends_the_trust_and_the_accepted_text_brings_it_back() {
        let place = Place::new();
        place.write(TEXT);
        place.accept();
        for edit in [
            TEXT.replace("ro", "rw"),
            TEXT.trim_end().to_owned(),
            format!("{TEXT}#"),
        ] {
            place.write(&edit);
            assert!(place.is_untrusted("has changed"), "{edit}");
        }
        place.write("");
        assert_eq!(place.counts(), (vec![], None));
        place.write(TEXT);
        assert_eq!(place.counts(), (vec!["/a".to_owned()], None));
        assert!(place.trust().revoke().unwrap());
        assert!(place.is_untrusted("never accepted"));
        assert!(!place.trust().revoke().unwrap());
    }

    #[test]
    fn file_that_cannot_be_read_counts_for_nothing_and_is_named() {
        let place = Place::new();
        place.write(TEXT);
        place.accept();
        place.write(&TEXT[..TEXT.len() - 3]);
        assert!(place.is_untrusted("line 4"));
        std::fs::write(place.file(), b"[[grants]]\xff").unwrap();
        assert!(place.is_untrusted("not UTF-8"));
        std::fs::write(place.file(), vec![b'#'; 50 << 20]).unwrap();
        assert!(place.is_untrusted("larger than"));
        std::fs::rename(place.file(), place.base.join("w/other")).unwrap();
        std::fs::write(place.base.join("w/other"), TEXT).unwrap();
        std::os::unix::fs::symlink("other", place.file()).unwrap();
        assert!(place.is_untrusted("symbolic link"));
        assert!(place.trust().comparison().is_err());
        assert!(place.trust().add_grant(&grant("/b")).is_err());
        std::fs::remove_file(place.file()).unwrap();
        std::fs::hard_link(place.base.join("w/other"), place.file()).unwrap();
        assert!(place.is_untrusted("2 names"));
        std::fs::remove_file(place.base.join("w/other")).unwrap();
        assert_eq!(place.counts().0, ["/a"]);
    }

    #[test]
    fn own_writes_are_trusted_and_keep_text_and_mode() {
        let place = Place::new();
        let trust = place.trust();
        assert!(trust.add_grant(&grant("/a")).unwrap());
        let mode = place.file().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::remove_file(place.file()).unwrap();
        place.write(TEXT);
        place.accept();
        let shared = std::fs::Permissions::from_mode(0o664);
        std::fs::set_permissions(place.file(), shared).unwrap();
        assert!(trust.add_grant(&grant("/b")).unwrap());
        assert!(!trust.add_grant(&grant("/b")).unwrap());
        assert_eq!(
            place.counts(),
            (vec!["/a".to_owned(), "/b".to_owned()], None)
        );
        assert!(place.text().starts_with(TEXT));
        assert!(trust.remove_grant(Path::new("/b")).unwrap());
        assert!(!trust.remove_grant(Path::new("/b")).unwrap());
        assert_eq!(place.text(), TEXT);
        assert_eq!(place.counts().0, ["/a"]);
        let mode = place.file().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o664);
        assert_eq!(place.base.join("w").read_dir().unwrap().count(), 1);
    }

    #[test]
    fn what_was_taken_back_does_not_count_again() {
        let place = Place::new();
        place.trust().add_grant(&grant("/a")).unwrap();
        let with = place.text();
        place.trust().remove_grant(Path::new("/a")).unwrap();
        place.write(&with);
        assert!(place.is_untrusted("has changed"));
    }

    #[test]
    fn file_that_could_not_be_read_any_more_is_not_written() {
        let place = Place::new();
        let text = format!("{TEXT}#{}\n", "x".repeat((256 << 10) - TEXT.len() - 2));
        place.write(&text);
        place.accept();
        let changed = place.trust().add_grant(&grant("/b"));
        let too_large = ConfigError::TooLarge {
            path: place.file(),
            limit: MAX_FILE,
        };
        assert_eq!(changed.unwrap_err().to_string(), too_large.to_string());
        assert_eq!(place.counts(), (vec!["/a".to_owned()], None));
    }

    #[test]
    fn only_the_newest_content_counts() {
        let place = Place::new();
        place.write(TEXT);
        place.accept();
        place.trust().add_grant(&grant("/b")).unwrap();
        place.write(TEXT);
        assert!(place.is_untrusted("has changed"));
    }

    #[test]
    fn file_that_is_not_trusted_is_not_written() {
        let place = Place::new();
        place.write(TEXT);
        for changed in [
            place.trust().add_grant(&grant("/b")),
            place.trust().remove_grant(Path::new("/a")),
        ] {
            let error = changed.unwrap_err();
            assert!(matches!(
                error,
                TrustError::NotTrusted {
                    why: Untrusted::NeverAccepted,
                    ..
                }
            ));
            assert!(error.hint().unwrap().contains("umwelt-ctl trust /"));
        }
        assert_eq!(place.text(), TEXT);
        assert!(place.is_untrusted("never accepted"));
    }

    #[test]
    fn file_that_changed_since_it_was_seen_is_not_accepted() {
        let place = Place::new();
        place.write(TEXT);
        let seen = place.trust().comparison().unwrap();
        place.write(&TEXT.replace("ro", "rw"));
        let accepted = place.trust().accept(&seen);
        assert!(matches!(accepted, Err(TrustError::Changed(_))));
        assert!(place.is_untrusted("never accepted"));
    }

    #[test]
    fn record_that_was_tampered_with_or_is_of_another_workspace_counts_for_nothing() {
        let place = Place::new();
        place.write(TEXT);
        place.accept();
        let path = place.trust().shelf.path();
        let good = std::fs::read_to_string(&path).unwrap();
        let other = good.replace("/w\"", "/x\"");
        for bad in [
            "",
            "{}",
            &good[..good.len() / 2],
            &other,
            &good.replace("/a", "/b"),
        ] {
            std::fs::write(&path, bad).unwrap();
            assert!(place.is_untrusted("cannot be used"), "{bad}");
        }
        std::fs::write(&path, &good).unwrap();
        assert_eq!(place.counts().0, ["/a"]);
        for open in [0o640, 0o602] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(open)).unwrap();
            assert!(place.is_untrusted("has mode"));
        }
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(place.file(), &path).unwrap();
        assert!(place.is_untrusted("symbolic link"));
        place.accept();
        assert_eq!(place.counts().0, ["/a"]);
    }

    #[test]
    fn crash_between_record_and_file_is_safe() {
        let place = Place::new();
        let trust = place.trust();
        let wider = format!("{TEXT}{}", TEXT.replace("/a", "/b"));
        place.write(TEXT);
        place.accept();
        trust.announce(&trust.find().unwrap(), &wider).unwrap();
        assert_eq!(place.counts(), (vec!["/a".to_owned()], None));
        place.write(&wider);
        assert_eq!(place.counts().0, ["/a", "/b"]);
        // What is taken back counts no more, even if it is still there.
        trust.announce(&trust.find().unwrap(), TEXT).unwrap();
        assert!(place.is_untrusted("has changed"));
        place.write(TEXT);
        assert_eq!(place.counts(), (vec!["/a".to_owned()], None));
    }

    #[test]
    fn edit_in_the_middle_of_a_write_is_not_lost_and_not_trusted() {
        let place = Place::new();
        place.write(TEXT);
        place.accept();
        let trust = place.trust();
        let changed = trust.change(|_| {
            place.write("# theirs\n[[grants]]\npath = \"/etc\"\nmode = \"ro\"\n");
            Ok(Some("# ours\n".to_owned()))
        });
        assert!(matches!(changed, Err(TrustError::Changed(_))));
        assert!(place.text().starts_with("# theirs"));
        assert!(place.is_untrusted("has changed"));
        place.write(TEXT);
        assert_eq!(place.counts().0, ["/a"]);
    }

    #[test]
    fn directory_that_cannot_be_written_changes_nothing() {
        let place = Place::new();
        place.write(TEXT);
        place.accept();
        let dir = place.base.join("w");
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o500)).unwrap();
        let changed = place.trust().add_grant(&grant("/b"));
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700)).unwrap();
        if rustix::process::geteuid().is_root() {
            assert!(changed.unwrap());
        } else {
            assert!(matches!(changed, Err(TrustError::Io { .. })));
            assert_eq!(
                (place.text(), place.counts().0),
                (TEXT.to_owned(), vec!["/a".to_owned()])
            );
        }
    }

    /// The lock is nobody's turn, and a slow disk keeps each of them long.
    fn until_free(change: impl Fn() -> Result<bool, TrustError>) -> bool {
        loop {
            match change() {
                Err(TrustError::Busy(_)) => {}
                other => return other.unwrap(),
            }
        }
    }

    #[test]
    fn concurrent_writers_lose_nothing() {
        let place = Place::new();
        place.write(TEXT);
        place.accept();
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let place = &place;
                scope.spawn(move || {
                    let trust = place.trust();
                    for step in 0..5 {
                        let path = format!("/w{writer}/{step}");
                        assert!(until_free(|| trust.add_grant(&grant(&path))));
                        if step % 2 == 1 {
                            assert!(until_free(|| trust.remove_grant(Path::new(&path))));
                        }
                    }
                });
                // Readers see the one or the other, never something untrusted.
                scope.spawn(move || {
                    for _ in 0..10 {
                        let (paths, notice) = place.counts();
                        assert_eq!((paths[0].as_str(), notice), ("/a", None));
                    }
                });
            }
        });
        let (mut paths, notice) = place.counts();
        paths.sort();
        let mut wanted = vec!["/a".to_owned()];
        wanted.extend((0..4).flat_map(|w| [0, 2, 4].map(|step| format!("/w{w}/{step}"))));
        assert_eq!((paths, notice), (wanted, None));
    }
}
