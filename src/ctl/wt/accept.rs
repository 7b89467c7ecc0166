//! `umwelt-ctl wt accept`: a person says that the sandbox of a worktree may
//! share its repository.

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use super::Site;
use super::rm::Worktree;
use crate::cli;
use crate::ctl::CtlError;
use crate::ctl::trust::ask;
use crate::error::Error;
use crate::text::printable;
use crate::trust::repository;

pub(super) fn run(site: &Site, path: &Path, yes: bool) -> Result<ExitCode, Error> {
    let worktree = Worktree::find(path)?;
    let common = &worktree.repository.common;
    cli::print(&printable(&format!(
        "{:?} is a worktree of the repository {common:?}. Its sandbox would read all of that, and add objects and refs to it.",
        worktree.path
    )));
    if !yes {
        if !std::io::stdin().is_terminal() {
            return Err(CtlError::NobodyToAsk.into());
        }
        if !ask("accept?")? {
            return Err(CtlError::NotAccepted.into());
        }
    }
    repository::accept(&site.place.dirs, &worktree.path, common)?;
    Ok(cli::print("\naccepted\n"))
}
