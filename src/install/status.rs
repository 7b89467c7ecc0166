//! `umwelt-install status`: what is there, what is missing or old, and the way
//! to repair it.

use std::process::ExitCode;

use serde::Serialize;

use crate::cli;
use crate::cli::args::{Args, Operands, Subcommand};
use crate::config::Config;
use crate::ctl::output::{self, Cell, Colour};
use crate::digest::sha256;
use crate::error::Error;
use crate::install::completions;
use crate::install::image::{self, Standing};
use crate::install::layout::Layout;
use crate::install::linked::{Linked, Standing as Texts};
use crate::install::manual;
use crate::install::program::{self, Base, Link};
use crate::install::record::Record;
use crate::install::unit::{self, Unit};
use crate::install::{InstallError, call, egress, files, refuse_root};

pub(super) const SUBCOMMAND: Subcommand = Subcommand {
    name: "status",
    help: "\
Usage: umwelt-install status [--json]

Shows what of umwelt is installed, what is missing or stale, and how to repair
it. The exit status is 1 if something is, or if podman cannot be asked.

Options:
      --json     print a JSON object
  -h, --help     print this help and exit
  -V, --version  print the version and exit
",
    flags: &["json"],
    values: &[],
    operands: Operands::None,
    run,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Ok,
    Missing,
    Stale,
    /// Something that its user wrote, and that cannot be understood.
    Invalid,
    /// Only podman could tell.
    Unknown,
    /// As its user asked for.
    LeftOut,
}

#[derive(Debug, Serialize)]
struct Part {
    name: &'static str,
    state: State,
    detail: String,
    /// The command that repairs it.
    fix: Option<&'static str>,
}

const INSTALL: &str = "umwelt-install install";
const IMAGE: &str = "umwelt-install image";

const DOCTOR: &str = "umwelt-install doctor";

const COMPLETIONS: &str = "completions for bash, fish and zsh";
const PAGES: &str = "manual pages";

impl Part {
    fn ok(name: &'static str, detail: impl Into<String>) -> Part {
        Part {
            name,
            state: State::Ok,
            detail: detail.into(),
            fix: None,
        }
    }

    fn missing(name: &'static str, detail: impl Into<String>) -> Part {
        Part {
            state: State::Missing,
            fix: Some(INSTALL),
            ..Part::ok(name, detail)
        }
    }

    fn stale(name: &'static str, detail: impl Into<String>) -> Part {
        Part {
            state: State::Stale,
            ..Part::missing(name, detail)
        }
    }

    fn unknown(name: &'static str, error: &dyn std::fmt::Display) -> Part {
        Part {
            state: State::Unknown,
            fix: Some(DOCTOR),
            ..Part::ok(name, error.to_string())
        }
    }
}

impl State {
    fn is_fine(self) -> bool {
        matches!(self, State::Ok | State::LeftOut)
    }
}

fn run(args: Args) -> Result<ExitCode, Error> {
    refuse_root()?;
    let layout = Layout::load()?;
    let record = Record::load(&layout.record);
    let layout = layout.with_recorded(record.as_ref().ok().and_then(Option::as_ref));
    let parts = look(&layout, record);
    let printed = match args.has("json") {
        true => cli::print(&output::render_json(&Report {
            version: env!("CARGO_PKG_VERSION"),
            parts: &parts,
        })?),
        false => cli::print(&render(&parts, output::wants_colour())),
    };
    match parts.iter().all(|part| part.state.is_fine()) {
        true => Ok(printed),
        false => Ok(ExitCode::FAILURE),
    }
}

#[derive(Serialize)]
struct Report<'a> {
    version: &'a str,
    parts: &'a [Part],
}

fn look(layout: &Layout, record: Result<Option<Record>, InstallError>) -> Vec<Part> {
    let known = record.as_ref().ok().and_then(Option::as_ref);
    let empty = Record::empty();
    let mut parts = vec![
        of_program(layout, known),
        links(layout),
        config(layout, known),
        unit(layout, known),
        texts("shells", COMPLETIONS, &completions::linked(layout)),
        texts("man", PAGES, &manual::linked(layout)),
    ];
    parts.extend(
        record
            .as_ref()
            .err()
            .map(|error| Part::stale("record", error.to_string())),
    );
    match known {
        Some(known) if known.without_egress => parts.push(Part {
            state: State::LeftOut,
            fix: Some(egress::PUT_IN),
            ..Part::ok("egress", egress::LEFT_OUT)
        }),
        _ => parts.extend([
            authority(layout, known.unwrap_or(&empty)),
            bundle(layout, known),
            nft(known),
            gateway(known),
        ]),
    }
    parts.push(sandbox(layout));
    parts
}

fn of_program(layout: &Layout, record: Option<&Record>) -> Part {
    let name = "program";
    let there = match files::read(&layout.program) {
        Ok(Some(bytes)) => sha256(&bytes),
        Ok(None) => return Part::missing(name, layout.program.display().to_string()),
        Err(error) => return Part::stale(name, error.to_string()),
    };
    let known = record.and_then(|record| record.program.as_ref());
    if known.is_none_or(|known| known.sha256 != there) {
        return Part::stale(name, "it is not the one that was installed");
    }
    match program::running() {
        Ok(running) if sha256(&running) != there => {
            Part::stale(name, "another one than this, which you are running")
        }
        _ => Part::ok(name, layout.program.display().to_string()),
    }
}

fn links(layout: &Layout) -> Part {
    let links = program::links(layout);
    let bin = layout.bin.display();
    if let Some((path, _)) = links.iter().find(|(_, link)| *link == Link::Foreign) {
        let detail = format!("{} belongs to something else", path.display());
        return Part::stale("links", detail);
    }
    let missing = links.iter().filter(|(_, link)| *link == Link::Missing);
    match missing.count() {
        0 if program::is_on_path(&layout.bin) => Part::ok("links", bin.to_string()),
        0 => Part::ok("links", format!("{bin}, which is not on PATH")),
        count => Part::missing("links", format!("{count} of {} in {bin}", links.len())),
    }
}

fn config(layout: &Layout, record: Option<&Record>) -> Part {
    let path = layout.dirs.base_config();
    let shown = path.display();
    match program::base(layout, record) {
        Err(error) => Part::stale("config", error.to_string()),
        Ok(Base::Missing) => Part::missing("config", shown.to_string()),
        Ok(Base::Old) => Part::stale("config", "as an earlier version shipped it"),
        Ok(Base::Current) => Part::ok("config", shown.to_string()),
        Ok(Base::Edited { is_shipped_newer }) => {
            if let Err(error) = Config::load(&layout.dirs) {
                return Part {
                    state: State::Invalid,
                    fix: Some("correct it"),
                    ..Part::stale("config", error.to_string())
                };
            }
            let newer = match is_shipped_newer {
                true => ", while the shipped one has changed",
                false => "",
            };
            Part::ok("config", format!("{shown}, edited{newer}"))
        }
    }
}

fn unit(layout: &Layout, record: Option<&Record>) -> Part {
    let shown = layout.unit.display().to_string();
    match unit::standing(layout, record) {
        Err(error) => Part::stale("unit", error.to_string()),
        Ok(Unit::Missing) => Part::missing("unit", shown),
        Ok(Unit::Old) => Part::stale("unit", "as an earlier version shipped it"),
        Ok(Unit::Current) => Part::ok("unit", shown),
        Ok(Unit::Edited) => Part::ok("unit", format!("{shown}, edited")),
    }
}

fn texts(name: &'static str, shown: &str, linked: &Linked) -> Part {
    match linked.standing() {
        Err(error) => Part::stale(name, error.to_string()),
        Ok(Texts::Missing(count)) => Part::missing(name, format!("{count} files of {shown}")),
        Ok(Texts::Old) => Part::stale(name, format!("{shown}, of another version")),
        Ok(Texts::Current) => Part::ok(name, shown),
    }
}

fn authority(layout: &Layout, record: &Record) -> Part {
    match egress::authority_problem(layout, record) {
        None => Part::ok("ca", egress::good_until(record)),
        Some(why) if !files::is_there(&layout.authority_certificate()) => Part::missing("ca", why),
        Some(why) => Part::stale("ca", why),
    }
}

fn bundle(layout: &Layout, record: Option<&Record>) -> Part {
    if record.is_none() && !files::is_there(&layout.bundle()) {
        return Part::missing("bundle", "not made yet");
    }
    match egress::bundle_problem(layout) {
        Ok(None) => Part::ok("bundle", layout.bundle().display().to_string()),
        Ok(Some(why)) if !files::is_there(&layout.bundle()) => Part::missing("bundle", why),
        Ok(Some(why)) => Part::stale("bundle", why),
        Err(error) => Part::stale("bundle", error.to_string()),
    }
}

fn nft(record: Option<&Record>) -> Part {
    match record.and_then(|record| record.nft.as_ref()) {
        Some(nft) if nft.is_file() => Part::ok("nft", nft.display().to_string()),
        Some(nft) => Part::stale("nft", format!("{} is gone", nft.display())),
        None if record.is_none_or(|record| record.program.is_none()) => {
            Part::missing("nft", "not looked for yet")
        }
        None => match call::find("nft") {
            Some(nft) => Part::missing("nft", format!("there since: {}", nft.display())),
            None => Part::missing(
                "nft",
                "not found at the installation; install nftables first",
            ),
        },
    }
}

fn gateway(record: Option<&Record>) -> Part {
    let name = "gateway";
    let Some(known) = record.and_then(|record| record.gateway_image.as_ref()) else {
        return Part::missing(name, egress::GATEWAY_IMAGE);
    };
    match call::find_image(&known.name, egress::PROGRAM_LABEL) {
        Err(error) => Part::unknown(name, &error),
        Ok(None) => Part::missing(name, known.name.clone()),
        Ok(Some(found)) if found.id != known.id => {
            Part::stale(name, "the image is not the one that was made")
        }
        Ok(Some(_)) if !is_of_program(record, &known.program_sha256) => {
            Part::stale(name, "it holds an older program")
        }
        Ok(Some(_)) => Part::ok(name, known.name.clone()),
    }
}

fn is_of_program(record: Option<&Record>, sha256: &str) -> bool {
    let program = record.and_then(|record| record.program.as_ref());
    program.is_some_and(|program| program.sha256 == sha256)
}

fn sandbox(layout: &Layout) -> Part {
    let part = match image::standing(layout) {
        Err(error) => return Part::unknown("image", &error),
        Ok((name, Standing::Missing)) if !image::is_ours(&name) => {
            let detail =
                format!("{name}, which the configuration names, and which is yours to make");
            return Part {
                fix: None,
                ..Part::missing("image", detail)
            };
        }
        Ok((name, Standing::Missing)) => Part::missing("image", name),
        Ok((name, Standing::Old)) => {
            Part::stale("image", format!("{name} is older than its recipe"))
        }
        Ok((name, Standing::Current)) => return Part::ok("image", name),
        Ok((name, Standing::Foreign)) => {
            return Part::ok("image", format!("{name}, made by other means"));
        }
    };
    Part {
        fix: Some(IMAGE),
        ..part
    }
}

fn render(parts: &[Part], colour: bool) -> String {
    let rows: Vec<_> = parts
        .iter()
        .map(|part| {
            let (word, paint) = match part.state {
                State::Ok => ("ok", Colour::Green),
                State::Missing => ("missing", Colour::Red),
                State::Stale => ("stale", Colour::Yellow),
                State::Invalid => ("invalid", Colour::Red),
                State::Unknown => ("unknown", Colour::Yellow),
                State::LeftOut => ("left out", Colour::Green),
            };
            [
                Cell::plain(part.name),
                Cell::coloured(word, colour.then_some(paint)),
                Cell::plain(&part.detail),
                Cell::plain(part.fix.map(|fix| format!("-> {fix}")).unwrap_or_default()),
            ]
        })
        .collect();
    output::render_table(["PART", "STATE", "WHAT", ""], &rows)
}
