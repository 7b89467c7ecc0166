//! The systemd unit for sandboxes that stay up -> in place, or found to be so
//! already. systemd itself is not called: it looks at the file when it is asked
//! for the unit.

use std::path::{Path, PathBuf};

use crate::digest::sha256;
use crate::install::layout::Layout;
use crate::install::record::Record;
use crate::install::{InstallError, files, say};

pub(super) const FILE_NAME: &str = "umwelt-run@.service";
const SHIPPED: &str = include_str!("../../share/systemd/umwelt-run@.service");

/// How the unit that is there stands to the shipped one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Missing,
    Current,
    /// As shipped with an earlier program.
    Old,
    /// By its user, or a link.
    Edited,
}

pub(super) fn standing(layout: &Layout, record: Option<&Record>) -> Result<Unit, InstallError> {
    let path = &layout.unit;
    if !files::is_there(path) {
        return Ok(Unit::Missing);
    }
    if path.is_symlink() {
        return Ok(Unit::Edited);
    }
    let before = record.and_then(|record| record.unit_sha256.as_deref());
    let there = files::read(path)?.map(|bytes| sha256(&bytes));
    Ok(match there {
        Some(there) if there == sha256(SHIPPED.as_bytes()) => Unit::Current,
        Some(there) if Some(&*there) == before => Unit::Old,
        _ => Unit::Edited,
    })
}

pub(super) fn install(layout: &Layout, record: &mut Record) -> Result<(), InstallError> {
    let path = &layout.unit;
    let shown = path.display();
    let unit = standing(layout, Some(record))?;
    let text = match unit {
        Unit::Current => format!("is so already: {shown}"),
        Unit::Edited => format!("kept, as it was edited: {shown}"),
        Unit::Missing | Unit::Old => {
            let dir = path.parent().unwrap_or_else(|| Path::new("/"));
            record.add_created(files::make_dir(dir, 0o700)?);
            files::replace(path, SHIPPED.as_bytes(), 0o644)?;
            match unit {
                Unit::Old => format!("renewed, as nobody had edited it: {shown}"),
                _ => format!("written to {shown}"),
            }
        }
    };
    if unit != Unit::Edited {
        record.unit_sha256 = Some(sha256(SHIPPED.as_bytes()));
    }
    say("unit", &text);
    Ok(())
}

/// Removes the unit, and what `systemctl --user enable` has made for it.
pub(super) fn remove(layout: &Layout, record: &Record) -> Result<(), InstallError> {
    let path = &layout.unit;
    let shown = path.display();
    match standing(layout, Some(record))? {
        Unit::Missing => {}
        Unit::Edited => {
            say("unit", &format!("kept, as it was edited: {shown}"));
            return Ok(());
        }
        Unit::Current | Unit::Old => {
            files::remove_if_there(path)?;
            say("unit", &format!("removed: {shown}"));
        }
    }
    files::remove_if_there(&files::temporary(path))?;
    let user = enabled_in(layout);
    let mut disabled = 0;
    for (dir, link) in enabled(&user, path) {
        files::remove_if_there(&link)?;
        files::remove_dir_if_empty(&dir);
        disabled += 1;
    }
    if disabled > 0 {
        // systemctl makes them, and leaves them behind.
        for dir in user.ancestors().take(2) {
            files::remove_dir_if_empty(dir);
        }
        say("unit", &format!("{disabled} disabled, as it is gone"));
    }
    Ok(())
}

/// Where `systemctl --user enable` makes its links.
fn enabled_in(layout: &Layout) -> PathBuf {
    layout.dirs.config.with_file_name("systemd").join("user")
}

/// The links to the unit, each with its directory: `*.wants/umwelt-run@….service`.
fn enabled(user: &Path, unit: &Path) -> Vec<(PathBuf, PathBuf)> {
    let mut found = Vec::new();
    for dir in entries(user).filter(|dir| dir.is_dir() && !dir.is_symlink()) {
        let links = entries(&dir)
            .filter(|link| std::fs::read_link(link).is_ok_and(|target| dir.join(target) == unit));
        found.extend(links.map(|link| (dir.clone(), link)));
    }
    found
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The unit starts what the installation puts in place.
    #[test]
    fn the_unit_names_the_installed_program() {
        let home = Path::new("/home/u");
        let starts = SHIPPED.lines().find(|line| line.starts_with("ExecStart="));
        let words: Vec<&str> = starts.unwrap().split(' ').collect();
        let program = words
            .first()
            .unwrap()
            .strip_prefix("ExecStart=:@%h/")
            .unwrap();
        assert_eq!(home.join(program), home.join(".local/lib/umwelt/umwelt"));
        assert_eq!(
            words.get(1..),
            Some(&["umwelt-run", "--workspace", "%f"][..])
        );
    }

    #[test]
    fn links_to_the_unit_are_found_and_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let wants = dir.path().join("default.target.wants");
        std::fs::create_dir(&wants).unwrap();
        let unit = Path::new("/u/umwelt-run@.service");
        let ours = wants.join("umwelt-run@a.service");
        std::os::unix::fs::symlink(unit, &ours).unwrap();
        std::os::unix::fs::symlink("/u/other@.service", wants.join("other@b.service")).unwrap();
        std::fs::write(wants.join("umwelt-run@c.service"), "mine").unwrap();
        assert_eq!(enabled(dir.path(), unit), [(wants, ours)]);
        assert_eq!(enabled(&dir.path().join("none"), unit), []);
    }
}
