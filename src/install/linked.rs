//! Texts that others look for under a name of their own -> files beside the
//! program, and links to them where those look. So what is of umwelt can be told
//! from what is the user's.

use std::path::{Path, PathBuf};

use crate::install::layout::relative;
use crate::install::program::{self, Link};
use crate::install::record::Record;
use crate::install::{InstallError, files};

#[derive(Debug)]
pub(super) struct Linked {
    /// Beside the program.
    pub(super) dir: PathBuf,
    /// Names in it, and what is in them.
    pub(super) shipped: &'static [(&'static str, &'static str)],
    /// Each link, and the name of its file.
    pub(super) links: Vec<(PathBuf, &'static str)>,
}

/// What is not as it was installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    Current,
    /// So many links and files.
    Missing(usize),
    Old,
}

impl Linked {
    pub(super) fn standing(&self) -> Result<Standing, InstallError> {
        let mut missing = 0;
        let mut is_old = false;
        for (name, shipped) in self.shipped {
            match files::read(&self.dir.join(name))? {
                None => missing += 1,
                Some(there) => is_old |= there != shipped.as_bytes(),
            }
        }
        missing += self.links_that_are(Link::Missing).count();
        Ok(match missing {
            0 if is_old => Standing::Old,
            0 => Standing::Current,
            missing => Standing::Missing(missing),
        })
    }

    /// The links that stand in this way to their files, each with its file.
    fn links_that_are(&self, link: Link) -> impl Iterator<Item = (&Path, PathBuf)> {
        let links = self.links.iter();
        links
            .map(|(path, name)| (path.as_path(), self.dir.join(name)))
            .filter(move |(path, file)| program::look(path, file) == link)
    }

    /// Makes all of it anew; what is not of umwelt is left alone, and told.
    pub(super) fn install(&self, record: &mut Record) -> Result<Vec<PathBuf>, InstallError> {
        record.add_created(files::make_dir(&self.dir, 0o755)?);
        for (name, shipped) in self.shipped {
            files::replace(&self.dir.join(name), shipped.as_bytes(), 0o644)?;
        }
        for (link, file) in self.links_that_are(Link::Missing) {
            let parent = link.parent().unwrap_or(&self.dir);
            record.add_created(files::make_dir(parent, 0o755)?);
            make_link(parent, link, &file)?;
        }
        let foreign = self.links_that_are(Link::Foreign);
        Ok(foreign.map(|(link, _)| link.to_owned()).collect())
    }

    /// Removes the files, and the links that lead to them; whether there were any.
    pub(super) fn remove(&self) -> Result<bool, InstallError> {
        let mut is_removed = false;
        for (link, _) in self.links_that_are(Link::Ours) {
            is_removed |= files::remove_if_there(link)?;
        }
        for (name, _) in self.shipped {
            let file = self.dir.join(name);
            is_removed |= files::remove_if_there(&file)?;
            files::remove_if_there(&files::temporary(&file))?;
        }
        files::remove_dir_if_empty(&self.dir);
        Ok(is_removed)
    }
}

fn make_link(parent: &Path, link: &Path, file: &Path) -> Result<(), InstallError> {
    let target = relative(&crate::places::real(parent), &crate::places::real(file));
    std::os::unix::fs::symlink(&target, link)
        .map_err(|error| InstallError::file("make link", link, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linked(base: &Path) -> Linked {
        Linked {
            dir: base.join("lib/texts"),
            shipped: &[("one", "1\n"), ("two", "2\n")],
            links: vec![
                (base.join("share/a"), "one"),
                (base.join("share/b"), "one"),
                (base.join("other/c"), "two"),
            ],
        }
    }

    #[test]
    fn what_is_missing_or_old_is_seen_and_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let linked = linked(dir.path());
        let mut record = Record::empty();
        let standing = || linked.standing().unwrap();
        assert_eq!(standing(), Standing::Missing(5));
        assert!(linked.install(&mut record).unwrap().is_empty());
        assert_eq!(standing(), Standing::Current);
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(
            read("share/a") + &read("share/b") + &read("other/c"),
            "1\n1\n2\n"
        );
        std::fs::write(dir.path().join("lib/texts/two"), "old\n").unwrap();
        assert_eq!(standing(), Standing::Old);
        std::fs::remove_file(dir.path().join("share/b")).unwrap();
        assert_eq!(standing(), Standing::Missing(1));
        linked.install(&mut record).unwrap();
        assert_eq!(standing(), Standing::Current);
        assert!(linked.remove().unwrap());
        for dir in record.created.iter().rev() {
            files::remove_dir_if_empty(dir);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(!linked.remove().unwrap());
    }

    #[test]
    fn what_is_of_the_user_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let linked = linked(dir.path());
        let (own, own_link) = (dir.path().join("share/a"), dir.path().join("share/b"));
        std::fs::create_dir(dir.path().join("share")).unwrap();
        std::fs::write(&own, "mine\n").unwrap();
        std::os::unix::fs::symlink("a", &own_link).unwrap();
        let foreign = linked.install(&mut Record::empty()).unwrap();
        assert_eq!(foreign, [own.clone(), own_link.clone()]);
        assert_eq!(linked.standing().unwrap(), Standing::Current);
        linked.remove().unwrap();
        assert_eq!(std::fs::read_to_string(&own_link).unwrap(), "mine\n");
    }
}
