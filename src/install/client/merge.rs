//! A settings file of the user: edited with a look at the difference, a
//! question, and a copy of what was there.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::known::COPY;
use crate::cli;
use crate::ctl::{diff, trust};
use crate::error::Error;
use crate::install::{InstallError, files};
use crate::text::printable;
use crate::trust::directory::{Contents, Directory, ReplaceError};

/// Settings are a few kilobytes.
const LIMIT: u64 = 4 << 20;

const CHANGED: &str = "it changed while you were looking; run it again";

#[derive(Debug)]
pub(super) struct Done {
    /// For the person who asked for it.
    pub(super) text: String,
    /// Where it really is.
    pub(super) file: PathBuf,
    /// What the file holds now.
    pub(super) after: Option<String>,
}

/// `edit` gives the new text, or says why there is none.
pub(super) fn into_file(
    named: &Path,
    edit: impl Fn(&str) -> Result<String, String>,
    yes: bool,
) -> Result<Done, Error> {
    let file = real(named)?;
    let shown = printable(&file.display().to_string());
    // The directory is made when the answer is there.
    let place = match file.parent().is_some_and(Path::is_dir) {
        true => Some(Place::open(&file)?),
        false => None,
    };
    let before = match &place {
        Some(place) => place.read()?,
        None => None,
    };
    let old = before.as_ref().map_or("", |(text, _)| text.as_str());
    let new = edit(old).map_err(|why| refused(&file, why))?;
    if new == old {
        return Ok(Done {
            text: format!("{shown} is so already\n"),
            file,
            after: Some(new),
        });
    }
    cli::print(&format!(
        "--- {shown}\n+++ new\n{}",
        diff::render(old, &new)
    ));
    if !yes {
        confirm()?;
    }
    // A person takes a while to look, and clients write their settings too.
    let place = place.map_or_else(|| Place::open(&file), Ok)?;
    if place.read()? != before {
        return Err(refused(&file, CHANGED.to_owned()).into());
    }
    let before = before.map(|(_, contents)| contents);
    let copy = match &before {
        Some(contents) => Some(place.keep_copy(contents)?),
        None => None,
    };
    place.write(&new, before.as_ref())?;
    let copy = copy.map_or_else(String::new, |copy| {
        format!("; as it was: {}", printable(&copy.display().to_string()))
    });
    Ok(Done {
        text: format!("changed {shown}{copy}\n"),
        file,
        after: Some(new),
    })
}

fn refused(path: &Path, why: String) -> InstallError {
    InstallError::Merge {
        path: path.to_owned(),
        why,
        client: "CLIENT",
    }
}

/// People link their settings: what a link leads to is edited.
fn real(named: &Path) -> Result<PathBuf, InstallError> {
    let absolute =
        std::path::absolute(named).map_err(|error| InstallError::file("find", named, error))?;
    Ok(crate::places::real(&absolute))
}

fn confirm() -> Result<(), Error> {
    let is_terminal = |fd| rustix::termios::isatty(fd);
    if !is_terminal(rustix::stdio::stdin()) || !is_terminal(rustix::stdio::stdout()) {
        return Err(InstallError::NobodyToAsk.into());
    }
    match trust::ask("write it?")? {
        true => Ok(()),
        false => Err(InstallError::NotAccepted.into()),
    }
}

/// The directory of a file, held: an agent may work there, and could put a link
/// to another directory in its place.
struct Place {
    dir: Directory,
    file: PathBuf,
    name: String,
}

impl Place {
    fn open(file: &Path) -> Result<Place, InstallError> {
        let parts = file.parent().zip(file.file_name().and_then(OsStr::to_str));
        let Some((parent, name)) = parts else {
            return Err(refused(file, "it is no name of a file in UTF-8".to_owned()));
        };
        files::make_dir(parent, 0o700)?;
        let dir =
            Directory::open(parent).map_err(|error| InstallError::file("open", parent, error))?;
        Ok(Place {
            dir,
            file: file.to_owned(),
            name: name.to_owned(),
        })
    }

    fn read(&self) -> Result<Option<(String, Contents)>, InstallError> {
        let found = self.dir.read(&self.name, LIMIT);
        let found = found.map_err(|error| refused(&self.file, error.to_string()))?;
        let Some(contents) = found else {
            return Ok(None);
        };
        match String::from_utf8(contents.bytes.clone()) {
            Ok(text) => Ok(Some((text, contents))),
            Err(_) => Err(refused(&self.file, "it is not UTF-8".to_owned())),
        }
    }

    fn write(&self, text: &str, before: Option<&Contents>) -> Result<(), InstallError> {
        let contents = Contents {
            bytes: text.as_bytes().to_vec(),
            mode: before.map_or(0o600, |before| before.mode),
        };
        let is_expected = |now: Option<&Contents>| now == before;
        let put = self.dir.replace(&self.name, &contents, is_expected, LIMIT);
        put.map_err(|error| match error {
            ReplaceError::Changed => refused(&self.file, CHANGED.to_owned()),
            ReplaceError::Io(error) => InstallError::file("write", &self.file, error),
        })
    }

    /// Beside the file, under a name that is free.
    fn keep_copy(&self, contents: &Contents) -> Result<PathBuf, InstallError> {
        for number in 1..1000 {
            let name = format!("{}{COPY}{number}", self.name);
            match self
                .dir
                .replace(&name, contents, |there| there.is_none(), LIMIT)
            {
                Ok(()) => return Ok(self.file.with_file_name(name)),
                Err(ReplaceError::Changed) => {}
                Err(ReplaceError::Io(error)) => {
                    return Err(InstallError::file(
                        "write",
                        &self.file.with_file_name(name),
                        error,
                    ));
                }
            }
        }
        Err(refused(
            &self.file,
            "there are too many copies of it".to_owned(),
        ))
    }
}
