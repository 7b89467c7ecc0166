//! umwelt-ctl

use std::ffi::OsString;
use std::process::ExitCode;

use crate::error::Error;

pub(crate) fn main(_args: Vec<OsString>) -> Result<ExitCode, Error> {
    Err(Error::NotBuilt("umwelt-ctl"))
}
