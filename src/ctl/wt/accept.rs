//! `umwelt-ctl wt accept`: a person says that the sandbox of a worktree may
//! share its repository.

use std::process::ExitCode;

use super::Site;
use super::rm::Worktree;
use crate::cli;
use crate::ctl::trust::{ask, can_ask};
use crate::ctl::{CtlError, NAME};
use crate::error::Error;
use crate::text::{printable, shell_word};
use crate::trust::repository;

pub(super) fn run(site: &Site, worktree: &Worktree, yes: bool) -> Result<ExitCode, Error> {
    let common = worktree.repository.common.path();
    if !yes && !can_ask() {
        let word = shell_word(&worktree.path.to_string_lossy());
        let hint = format!("accept it without a question with: {NAME} wt accept --yes {word}");
        return Err(CtlError::NobodyToAsk { hint }.into());
    }
    let question = format!(
        "{:?} is a worktree of the repository {common:?}. Its sandbox would read all of that, and add objects and refs to it.",
        worktree.path
    );
    cli::print(&format!("{}\n", printable(&question)));
    if !yes && !ask("accept?")? {
        return Err(CtlError::NotAccepted.into());
    }
    repository::accept(&site.place.dirs, &worktree.path, common)?;
    Ok(cli::print("accepted\n"))
}
