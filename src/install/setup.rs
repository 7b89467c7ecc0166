//! `umwelt-install install`: every step says what it did, or that it was so
//! already. Run again, it repairs what is missing, half or old.

use std::process::ExitCode;

use crate::cli;
use crate::cli::args::{Args, Operands, Subcommand};
use crate::error::Error;
use crate::install::files::{self, Lock};
use crate::install::layout::Layout;
use crate::install::record::Record;
use crate::install::{
    InstallError, NAME, completions, egress, image, manual, path_of, program, refuse_root, say,
    unit,
};

pub(super) const SUBCOMMAND: Subcommand = Subcommand {
    name: "install",
    help: "\
Usage: umwelt-install install [OPTION…]

Installs umwelt for the user who calls it: the program, its links, the base
configuration, a systemd unit, completions for shells, manual pages, what
sandboxes with a network need, and the image. What is there and right stays as
it is; what is missing, half or old is repaired.

Options:
      --prefix-bin DIR   make the links in DIR (default: ~/.local/bin)
      --no-image         do not build the image that commands run in
      --image-from FILE  import it from a root file system, packed with tar
      --no-egress        leave out what sandboxes with a network need, also when
                         it is called again
      --egress           put it in, where it was left out
  -h, --help             print this help and exit
  -V, --version          print the version and exit
",
    flags: &["no-image", "no-egress", "egress"],
    values: &["prefix-bin", "image-from"],
    operands: Operands::None,
    run,
};

/// An installation that nobody else changes meanwhile.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) layout: Layout,
    pub(super) record: Record,
    _lock: Lock,
}

impl Held {
    /// Begins with what an earlier run has left.
    pub(super) fn take(layout: Layout) -> Result<Held, InstallError> {
        let made = files::make_dir(&layout.dirs.data, 0o700)?;
        egress::close(&layout.dirs.data)?;
        let lock = Lock::take(&layout.lock)?;
        let mut record = match Record::load(&layout.record) {
            Ok(record) => record.unwrap_or_else(Record::empty),
            Err(error @ InstallError::Record { .. }) => {
                say("record", &format!("written anew: {error}"));
                Record::empty()
            }
            Err(error) => return Err(error),
        };
        record.add_created(made);
        record.save(&layout.record)?;
        Ok(Held {
            layout,
            record,
            _lock: lock,
        })
    }

    pub(super) fn save(&mut self) -> Result<(), InstallError> {
        self.record.save(&self.layout.record)
    }
}

fn run(args: Args) -> Result<ExitCode, Error> {
    refuse_root()?;
    args.check_one_of(&["egress", "no-egress"])?;
    args.check_one_of(&["no-image", "image-from"])?;
    let layout = Layout::load()?;
    let image = path_of(&args, "image-from", &layout.dirs.home)?;
    let recorded = Record::load(&layout.record).ok().flatten();
    let layout = match path_of(&args, "prefix-bin", &layout.dirs.home)? {
        Some(bin) => layout.with_bin(bin)?,
        None => layout.with_recorded(recorded.as_ref()),
    };
    let mut held = Held::take(layout)?;
    // Where control planes write: a directory made now is one to remove later.
    let made = files::make_dir(&held.layout.dirs.state, 0o700)?;
    held.record.add_created(made);
    let sha256 = program::install(&held.layout, &mut held.record)?;
    held.save()?;
    program::link(&held.layout, &mut held.record)?;
    held.save()?;
    program::configure(&held.layout, &mut held.record)?;
    held.save()?;
    unit::install(&held.layout, &mut held.record)?;
    held.save()?;
    let mut problems = Vec::new();
    for step in [completions::install, manual::install] {
        let done = step(&held.layout, &mut held.record);
        problems.extend(done.err().map(Error::Install));
        held.save()?;
    }
    if args.has("egress") || args.has("no-egress") {
        held.record.without_egress = args.has("no-egress");
    }
    let done = egress::install(&held.layout, &mut held.record, &sha256);
    problems.extend(done.err().map(Error::Install));
    held.save()?;
    if !args.has("no-image") {
        problems.extend(image::ensure(&held.layout, &mut held.record, image).err());
        held.save()?;
    }
    Ok(report(problems))
}

/// What could not be done does not undo the rest.
fn report(problems: Vec<Error>) -> ExitCode {
    if problems.is_empty() {
        return ExitCode::SUCCESS;
    }
    let mut told = Vec::new();
    for problem in problems {
        // Without podman neither image can be made.
        if !told.contains(&problem.to_string()) {
            told.push(problem.to_string());
            cli::report(NAME, &problem);
        }
    }
    cli::write_stderr(
        format!("{NAME}: not everything is installed; run it again when that is repaired\n")
            .as_bytes(),
    );
    ExitCode::FAILURE
}
