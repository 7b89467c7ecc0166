//! `umwelt-install ca rotate`: another certificate authority in place of the
//! one that is there.

use std::process::ExitCode;

use crate::cli::args::{Action, Args, Operands, Subcommand};
use crate::error::Error;
use crate::install::layout::Layout;
use crate::install::setup::Held;
use crate::install::{egress, files, refuse_root, say};

pub(super) const SUBCOMMAND: Subcommand = Subcommand {
    name: "ca",
    help: "\
Usage: umwelt-install ca rotate

Makes another certificate authority for sandboxes with a network, and the
bundle that holds it. Sandboxes that run keep the former one until they are
started again.

Options:
  -h, --help     print this help and exit
  -V, --version  print the version and exit
",
    flags: &[],
    values: &[],
    operands: Operands::Actions(&[Action {
        name: "rotate",
        options: &[],
        operands: (0, 0, ""),
    }]),
    run,
};

fn run(_: Args) -> Result<ExitCode, Error> {
    refuse_root()?;
    let mut held = Held::take(Layout::load()?)?;
    let made = files::make_dir(&held.layout.egress, 0o700)?;
    held.record.add_created(made);
    egress::close(&held.layout.egress)?;
    egress::make_authority(&held.layout, &mut held.record)?;
    egress::write_bundle(&held.layout)?;
    say(
        "ca",
        &format!("made anew, {}", egress::good_until(&held.record)),
    );
    say(
        "",
        "sandboxes that run keep the former one until they are started again",
    );
    Ok(ExitCode::SUCCESS)
}
