//! A settings file of the user: edited with a look at the difference, a
//! question, and a copy of what was there.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::known::COPY;
use crate::cli;
use crate::ctl::{diff, trust};
use crate::error::Error;
use crate::install::{InstallError, files};
use crate::text::printable;

/// Settings are a few kilobytes.
const LIMIT: usize = 4 << 20;

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
    let before = read(&file)?;
    let old = before.as_deref().unwrap_or_default();
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
    if read(&file)? != before {
        let why = "it changed while you were looking; run it again".to_owned();
        return Err(refused(&file, why).into());
    }
    let copy = match &before {
        Some(text) => Some(keep_copy(&file, text)?),
        None => None,
    };
    if let Some(parent) = file.parent() {
        files::make_dir(parent, 0o700)?;
    }
    let mode = files::mode_of(&file).unwrap_or(0o600);
    files::replace(&file, new.as_bytes(), mode & 0o777)?;
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
    }
}

/// People link their settings: what a link leads to is edited.
fn real(named: &Path) -> Result<PathBuf, InstallError> {
    let absolute =
        std::path::absolute(named).map_err(|error| InstallError::file("find", named, error))?;
    Ok(crate::places::real(&absolute))
}

fn read(file: &Path) -> Result<Option<String>, InstallError> {
    let Some(bytes) = files::read(file)? else {
        return Ok(None);
    };
    let owner = std::fs::metadata(file)
        .map_err(|error| InstallError::file("look at", file, error))?
        .uid();
    if owner != rustix::process::geteuid().as_raw() {
        return Err(refused(file, format!("it belongs to uid {owner}")));
    }
    if bytes.len() > LIMIT {
        return Err(refused(file, format!("it is larger than {LIMIT} bytes")));
    }
    let text = String::from_utf8(bytes);
    text.map(Some)
        .map_err(|_| refused(file, "it is not UTF-8".to_owned()))
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

/// Beside the file, under a name that is free.
fn keep_copy(file: &Path, text: &str) -> Result<PathBuf, InstallError> {
    let name = file.file_name().unwrap_or_default();
    let names = (1..1000).map(|number| {
        let mut name = name.to_owned();
        name.push(format!("{COPY}{number}"));
        file.with_file_name(name)
    });
    let copy = names
        .into_iter()
        .find(|copy| !files::is_there(copy))
        .ok_or_else(|| refused(file, "there are too many copies of it".to_owned()))?;
    let mode = files::mode_of(file).unwrap_or(0o600);
    files::replace(&copy, text.as_bytes(), mode & 0o777)?;
    Ok(copy)
}
