//! `umwelt-ctl config`: each value that holds, and the file that says so.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use serde_json::Value;

use crate::cli;
use crate::cli::args::{Args, Subcommand, WORKSPACE};
use crate::config::layers::{self, Layer, Setting};
use crate::config::{Config, load_file};
use crate::ctl::output::{self, Cell};
use crate::ctl::place::Place;
use crate::ctl::trust::directory_of;
use crate::error::Error;
use crate::text::printable;
use crate::trust::{self, TrustState, WorkspaceTrust};
use crate::workspace::Workspace;

pub(super) const SUBCOMMAND: Subcommand = Subcommand {
    name: "config",
    help: "\
Usage: umwelt-ctl config [--json] [WORKSPACE]

Shows every value that holds for a workspace, as it is written, with the layer
and the line it comes from: shipped (share/umwelt.toml), base (the user's
umwelt.toml) or workspace (.umwelt.toml, as far as it was accepted). Left out,
WORKSPACE is the current directory.

Options:
      --json     print one JSON object, which has the shipped masks one by one
  -h, --help     print this help and exit
  -V, --version  print the version and exit
",
    flags: &["json"],
    values: &[],
    operands: WORKSPACE,
    run,
};

#[derive(Debug, Serialize)]
struct Shown {
    base: PathBuf,
    workspace: PathBuf,
    /// Why the workspace file does not count.
    notice: Option<String>,
    settings: Vec<Setting>,
}

fn run(args: Args) -> Result<ExitCode, Error> {
    let place = Place::load()?;
    let target = place.target(args.workspace())?;
    let path = directory_of(&place, &target)?;
    // Where no sandbox can be, nothing holds for one.
    Workspace::select(Some(&path), None, &place.dirs)?;
    let shown = show(&place, &path, &target.sid)?;
    Ok(cli::print(&match args.has("json") {
        true => output::render_json(&shown)?,
        false => render(&shown),
    }))
}

fn show(place: &Place, path: &Path, sid: &crate::workspace::SessionId) -> Result<Shown, Error> {
    let dirs = &place.dirs;
    // What is wrong with the base config is said by those who go by it.
    let config = Config::load(dirs)?;
    let (base, workspace) = (dirs.base_config(), path.join(trust::FILE));
    let base_text = load_file(&base)?;
    let trust = WorkspaceTrust::of_path(path.to_str().unwrap_or_default(), sid, dirs);
    let own = trust.comparison().ok();
    let own = own.filter(|seen| matches!(seen.state, TrustState::Trusted));
    let own_text = own.map(|seen| seen.new_text);
    let mut settings = layers::settings(
        base_text.as_deref().map(|text| (base.as_path(), text)),
        own_text.as_deref().map(|text| (workspace.as_path(), text)),
        &dirs.home,
    )?;
    // The shipped limit is no more than the user's own bound.
    let timeout = settings.iter_mut().find(|one| one.key == "shell.timeout_s");
    if let Some(timeout) = timeout {
        timeout.value = config.shell.timeout_s.into();
    }
    Ok(Shown {
        base,
        workspace,
        notice: trust.load().notice(),
        settings,
    })
}

fn render(shown: &Shown) -> String {
    let mut out = String::new();
    for (name, path) in [("base", &shown.base), ("workspace", &shown.workspace)] {
        let absent = if path.exists() {
            ""
        } else {
            " (there is none)"
        };
        let path = printable(&path.to_string_lossy());
        out.push_str(&format!("{name:<9}  {path}{absent}\n"));
    }
    if let Some(notice) = &shown.notice {
        out.push_str(&format!("note: {}\n", printable(notice)));
    }
    let is_hidden = |one: &Setting| one.key == "mask" && one.layer == Layer::Shipped;
    let (masks, settings): (Vec<_>, Vec<_>) = shown.settings.iter().partition(|one| is_hidden(one));
    let mut rows: Vec<_> = settings.into_iter().map(row).collect();
    if !masks.is_empty() {
        let value = format!("{} places; see them with --json", masks.len());
        rows.push(["mask", &value, "shipped"].map(Cell::plain));
    }
    out.push('\n');
    out + &output::render_table(["KEY", "VALUE", "FROM"], &rows)
}

fn row(setting: &Setting) -> [Cell; 3] {
    let from = match setting.layer {
        Layer::Shipped => "shipped".to_owned(),
        Layer::Base => format!("base, line {}", setting.line),
        Layer::Workspace => format!("workspace, line {}", setting.line),
    };
    let value = written(&setting.value);
    [
        Cell::plain(&setting.key),
        Cell::plain(value),
        Cell::plain(from),
    ]
}

/// As it stands in a file: a table of a list without its braces.
fn written(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter();
            let fields: Vec<_> = fields
                .map(|(key, value)| format!("{key} = {value}"))
                .collect();
            fields.join(", ")
        }
        value => value.to_string(),
    }
}
