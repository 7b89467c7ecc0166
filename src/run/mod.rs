//! umwelt-run: the control plane of one workspace.

pub(crate) mod preflight;
pub(crate) mod verify;

use std::ffi::OsString;
use std::process::ExitCode;

use crate::error::Error;

pub(crate) fn main(_args: Vec<OsString>) -> Result<ExitCode, Error> {
    Err(Error::NotBuilt("umwelt-run"))
}
