//! Two snapshots of what the host's programs obey -> the lines of a result
//! that tell what has changed. A name in a line is quoted, so that it cannot
//! forge a second line.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::FileType;

use crate::run::control_plane::ControlPlane;
use crate::run::job::Job;
use crate::run::watch::{Seen, Snapshot, WORKSPACE_FILE, Watch};
use crate::text;

/// Most files that one result names.
const MAX_TOLD: usize = 10;
/// Longest name in a line, in characters.
const MAX_NAME: usize = 200;
/// The kernel's clock of files goes in steps: what is so much older than a
/// command is not of its time.
const STEP: Duration = Duration::from_millis(20);

/// What was there when the last command ended, or at the start.
#[derive(Debug)]
pub(crate) struct Watched {
    watch: Watch,
    last: Snapshot,
    /// What could not be watched whole from the start on is told once.
    is_told: bool,
}

impl Watched {
    /// `git_dirs`: of a workspace that is a worktree of a repository elsewhere.
    pub(crate) fn new(workspace: &Path, git_dirs: Vec<PathBuf>) -> Watched {
        let watch = Watch::new(workspace, git_dirs);
        Watched {
            last: watch.look(),
            watch,
            is_told: false,
        }
    }

    /// What has changed since it was asked last, for a command that began at
    /// `begun`. One look does for both its end and the beginning of the next.
    /// `meaning` tells what the workspace file says now.
    pub(crate) fn changes(
        &mut self,
        begun: SystemTime,
        meaning: impl Fn() -> String,
    ) -> Vec<String> {
        let now = self.watch.look();
        let mut last = std::mem::replace(&mut self.last, now);
        if !std::mem::replace(&mut self.is_told, true) {
            last.values_mut().for_each(|seen| seen.is_full = false);
        }
        if self.last == last {
            return Vec::new();
        }
        let mut changes = compare(&last, &self.last);
        for change in changes.iter_mut().take(MAX_TOLD) {
            change.gone_at = match change.after {
                None => self.watch.directory_changed_at(change.path),
                Some(_) => None,
            };
        }
        let mut lines: Vec<String> = changes
            .iter()
            .take(MAX_TOLD)
            .map(|change| line(change, begun, &meaning))
            .collect();
        if changes.len() > MAX_TOLD {
            lines.push(format!(
                "{} more files that programs on the host obey were changed",
                changes.len() - MAX_TOLD
            ));
        }
        lines
    }

    /// umwelt itself has just written the workspace file: no news.
    pub(crate) fn settle_workspace_file(&mut self) {
        let name = Path::new(WORKSPACE_FILE);
        match self.watch.look().remove(name) {
            Some(seen) => drop(self.last.insert(name.to_owned(), seen)),
            None => drop(self.last.remove(name)),
        }
    }
}

fn line(change: &Change<'_>, begun: SystemTime, meaning: impl Fn() -> String) -> String {
    let when = change.when(begun);
    let what = change.what();
    let line = if change.has_filled() {
        let (name, reader) = (quoted(change.path), change.reader());
        format!(
            "{name} has more in it than is watched: what changes there, and {reader} on the host may execute or obey, may not be told"
        )
    } else if change.path == Path::new(WORKSPACE_FILE) {
        format!("{WORKSPACE_FILE} {what} {when}; {}", meaning())
    } else {
        let name = quoted(change.path);
        let reader = change.reader();
        format!("{name}, which {reader} on the host may execute or obey, {what} {when}")
    };
    text::printable(&line)
}

#[derive(Debug)]
struct Change<'a> {
    path: &'a Path,
    before: Option<&'a Seen>,
    after: Option<&'a Seen>,
    /// Of what was removed: when its directory was changed last. It was gone
    /// by then.
    gone_at: Option<SystemTime>,
}

impl Change<'_> {
    fn reader(&self) -> &'static str {
        let seen = self.after.or(self.before);
        seen.map_or("a program", |seen| seen.reader)
    }

    fn has_filled(&self) -> bool {
        let is_full = |seen: Option<&Seen>| seen.is_some_and(|seen| seen.is_full);
        is_full(self.after) && !is_full(self.before)
    }

    fn what(&self) -> &'static str {
        let kind = |seen: &Seen| seen.stamp.file_type();
        match (self.before, self.after) {
            (None, None) | (Some(_), None) => "was removed",
            (before, Some(after)) => match kind(after) {
                FileType::Symlink => "was made a symbolic link",
                now if before.is_some_and(|before| kind(before) != now) => "was replaced",
                FileType::Directory if before.is_some() => "was replaced or changed",
                _ if before.is_none() => "was created",
                _ => "was changed",
            },
        }
    }

    /// Commands run at the same time, and background processes: whose change
    /// it was, nobody knows.
    fn when(&self, begun: SystemTime) -> &'static str {
        let gone = || self.gone_at.filter(|_| self.after.is_none());
        let changed = self.after.and_then(|seen| seen.stamp.changed_at());
        match changed.or_else(gone) {
            Some(changed) if changed + STEP < begun => "since the last command",
            _ => "during this command",
        }
    }
}

/// Directories that are listed come and go with their files, and are told of
/// only where another thing has taken their place.
fn compare<'a>(before: &'a Snapshot, after: &'a Snapshot) -> Vec<Change<'a>> {
    let gone = before
        .iter()
        .filter(|(path, _)| !after.contains_key(*path))
        .map(|(path, seen)| (path, Some(seen), None));
    let there = after
        .iter()
        .filter(|(path, seen)| before.get(*path) != Some(*seen))
        .map(|(path, seen)| (path, before.get(path), Some(seen)));
    let mut changes: Vec<Change<'a>> = gone
        .chain(there)
        .map(|(path, before, after)| Change {
            path,
            before,
            after,
            gone_at: None,
        })
        .filter(is_news)
        .collect();
    changes.sort_by_key(|change| change.path);
    changes
}

fn is_news(change: &Change<'_>) -> bool {
    let is_listed = |seen: Option<&Seen>| seen.is_some_and(|seen| seen.stamp.is_listed_directory());
    match (change.before, change.after) {
        _ if change.has_filled() => true,
        (Some(_), Some(_)) => true,
        (before, after) => !is_listed(before) && !is_listed(after),
    }
}

/// As Rust quotes it, with whatever is not UTF-8 escaped.
fn quoted(path: &Path) -> String {
    let whole = format!("{path:?}");
    match whole.char_indices().nth(MAX_NAME) {
        Some((end, _)) => format!("{}…\"", whole.get(..end).unwrap_or_default()),
        None => whole,
    }
}

impl ControlPlane {
    /// Tells which files that the host's programs obey have changed.
    pub(crate) fn notice_changes(&mut self, job: &mut Job) {
        let begun = SystemTime::now().checked_sub(job.started.elapsed());
        let begun = begun.unwrap_or(SystemTime::UNIX_EPOCH);
        let file = &self.workspace_file;
        job.changes = self.watched.changes(begun, || file.meaning());
        job.notices.extend(job.changes.iter().cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};

    struct Place {
        dir: tempfile::TempDir,
        watched: Watched,
    }

    impl Place {
        fn new(files: &[&str]) -> Place {
            let dir = tempfile::tempdir().unwrap();
            for file in files {
                let path = dir.path().join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "x").unwrap();
            }
            let watched = Watched::new(dir.path(), Vec::new());
            Place { dir, watched }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        /// The lines, as of a command that began long ago.
        fn lines(&mut self) -> Vec<String> {
            self.watched
                .changes(SystemTime::UNIX_EPOCH, || "it means it".to_owned())
        }
    }

    #[test]
    fn a_change_is_told_once() {
        let mut place = Place::new(&[".git/config"]);
        assert_eq!(place.lines(), Vec::<String>::new());
        std::fs::write(place.path(".git/config"), "longer").unwrap();
        let expected = "\".git/config\", which git on the host may execute or obey, was changed during this command";
        assert_eq!(place.lines(), [expected]);
        assert_eq!(place.lines(), Vec::<String>::new());
    }

    #[test]
    fn every_way_of_changing_is_seen() {
        let mut place = Place::new(&[".envrc", ".git/hooks/old", ".git/HEAD", ".claude/a"]);
        std::fs::create_dir(place.path("other")).unwrap();
        let told = |place: &mut Place, words: &[&str]| {
            let lines = place.lines();
            let all = lines.join("\n");
            assert_eq!(lines.len(), words.len(), "{all}");
            for (line, word) in lines.iter().zip(words) {
                assert!(line.contains(word), "{all}");
            }
        };
        std::fs::write(place.path(".git/hooks/new"), "").unwrap();
        told(
            &mut place,
            &["new\", which git on the host may execute or obey, was created"],
        );
        std::fs::remove_file(place.path(".git/hooks/old")).unwrap();
        told(&mut place, &["was removed"]);
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(place.path(".envrc"), mode).unwrap();
        told(&mut place, &["was changed"]);
        std::fs::remove_file(place.path(".envrc")).unwrap();
        symlink("x", place.path(".envrc")).unwrap();
        told(&mut place, &["made a symbolic link"]);
        std::fs::rename(place.path(".git/hooks"), place.path("hooks")).unwrap();
        std::fs::rename(place.path("other"), place.path(".git/hooks")).unwrap();
        told(&mut place, &["hooks\", which", "hooks/new"]);
        std::fs::remove_dir_all(place.path(".git")).unwrap();
        std::fs::write(place.path(".git"), "gitdir: /x").unwrap();
        told(
            &mut place,
            &["\".git\", which git on the host may execute or obey, was replaced"],
        );
    }

    #[test]
    fn times_set_back_hide_nothing() {
        let mut place = Place::new(&[".envrc"]);
        let path = place.path(".envrc");
        let before = path.metadata().unwrap();
        // A tick of the file clock, without which no time could have passed.
        while path.metadata().unwrap().modified().unwrap() == before.modified().unwrap() {
            std::fs::write(&path, "y").unwrap();
        }
        let file = std::fs::File::open(&path).unwrap();
        file.set_modified(before.modified().unwrap()).unwrap();
        assert_eq!(path.metadata().unwrap().len(), before.len());
        assert_eq!(place.lines().len(), 1);
    }

    #[test]
    fn what_is_not_watched_whole_is_told_once() {
        let flood = |place: &Place, dir: &str| {
            for number in 0..300 {
                std::fs::write(place.path(&format!("{dir}/{number}")), "").unwrap();
            }
        };
        let mut place = Place::new(&[".claude/a", ".git/hooks/a"]);
        flood(&place, ".git/hooks");
        // There from the start on.
        place.watched = Watched::new(place.dir.path(), Vec::new());
        let lines = place.lines();
        let begins = "\".git/hooks\" has more in it than is watched";
        assert!(
            lines.len() == 1 && lines[0].starts_with(begins),
            "{lines:?}"
        );
        assert_eq!(place.lines(), Vec::<String>::new());
        flood(&place, ".claude");
        let lines = place.lines();
        assert!(
            lines
                .iter()
                .any(|line| line.starts_with("\".claude\" has more in it")),
            "{lines:?}"
        );
        assert_eq!(place.lines(), Vec::<String>::new());
    }

    #[test]
    fn what_was_changed_before_the_command_began_is_not_laid_to_it() {
        let mut place = Place::new(&[".envrc"]);
        std::fs::write(place.path(".envrc"), "longer").unwrap();
        let later = SystemTime::now() + Duration::from_secs(1);
        let lines = place.watched.changes(later, String::new);
        assert!(lines[0].ends_with("was changed since the last command"));
    }

    #[test]
    fn what_was_removed_before_the_command_began_is_not_laid_to_it() {
        for (file, is_later) in [
            (".umwelt.toml", true),
            (".git/hooks/a", true),
            (".envrc", false),
        ] {
            let mut place = Place::new(&[file]);
            std::fs::remove_file(place.path(file)).unwrap();
            let later = SystemTime::now() + Duration::from_secs(1);
            let begun = if is_later {
                later
            } else {
                SystemTime::UNIX_EPOCH
            };
            let lines = place.watched.changes(begun, String::new);
            let when = [
                "was removed during this command",
                "was removed since the last command",
            ];
            assert!(lines[0].contains(when[usize::from(is_later)]), "{lines:?}");
        }
    }

    #[test]
    fn names_cannot_forge_a_line() {
        let mut place = Place::new(&[".git/hooks/a"]);
        let bytes = b"x\nnote: all is well\x1b[2J\xff\"";
        let name = std::ffi::OsStr::from_bytes(bytes);
        std::fs::write(place.path(".git/hooks").join(name), "").unwrap();
        let lines = place.lines();
        assert_eq!(lines.len(), 1);
        assert!(
            lines[0].starts_with(r#"".git/hooks/x\nnote: all is well\u{1b}[2J\xFF\"", which git"#),
            "{lines:?}"
        );
        let long = "x".repeat(250);
        std::fs::write(place.path(".git/hooks").join(long), "").unwrap();
        assert!(place.lines()[0].len() < 300);
    }

    #[test]
    fn a_flood_of_changes_is_counted() {
        let mut place = Place::new(&[".git/hooks/a"]);
        for number in 0..MAX_TOLD + 5 {
            std::fs::write(place.path(&format!(".git/hooks/{number}")), "").unwrap();
        }
        let lines = place.lines();
        assert_eq!(lines.len(), MAX_TOLD + 1);
        assert!(lines[MAX_TOLD].starts_with("5 more files"));
    }

    #[test]
    fn the_workspace_file_is_told_with_what_it_means() {
        let mut place = Place::new(&[]);
        std::fs::write(place.path(WORKSPACE_FILE), "").unwrap();
        let expected = ".umwelt.toml was created during this command; it means it";
        assert_eq!(place.lines(), [expected]);
        std::fs::write(place.path(WORKSPACE_FILE), "ours").unwrap();
        place.watched.settle_workspace_file();
        assert_eq!(place.lines(), Vec::<String>::new());
    }
}
