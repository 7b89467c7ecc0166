//! `umwelt-install client`: the settings by which a client starts umwelt-mcp,
//! shown, or merged into the client's own file.

mod codex;
mod json_edit;
mod jsonc;
mod known;
mod merge;
mod place;
mod settings;
mod skill;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cli::args::{Args, Operands, Subcommand};
use crate::cli::{self, usage};
use crate::error::Error;
use crate::install::layout::Layout;
use crate::install::record::Record;
use crate::install::setup::Held;
use crate::install::{InstallError, NAME, path_of};
pub(super) use known::left_behind;
use place::Around;
use settings::Client;

pub(super) const SUBCOMMAND: Subcommand = Subcommand {
    name: "client",
    help: "\
Usage: umwelt-install client CLIENT [--skill | --merge FILE [--yes]]

Prints the settings by which an MCP client starts umwelt: the command, which
tools may be called without a question, and how to switch off the client's own.

CLIENT is one of opencode, claude, codex, goose, vscode, generic.

Options:
      --merge FILE  put them into FILE, after showing the difference and asking;
                    what is there stays, and so do comments; a copy is kept.
                    It is a file of your home, such as ~/.claude.json, and none
                    of a project: what runs in the sandbox could write that
  -y, --yes         do not ask
      --skill       print a text that teaches an agent to live in the sandbox
  -h, --help        print this help and exit
  -V, --version     print the version and exit
",
    flags: &["yes", "skill"],
    values: &["merge"],
    operands: Operands::Words(
        1,
        1,
        "one of opencode, claude, codex, goose, vscode, generic",
    ),
    run,
};

fn run(args: Args) -> Result<ExitCode, Error> {
    let name = args.operand(0).unwrap_or_default().to_string_lossy();
    let client = Client::from_name(&name).ok_or_else(|| {
        let valid = Client::ALL.map(|client| client.name().to_owned());
        usage::unknown("client", &name, &format!("{NAME} client"), &valid)
    })?;
    if args.has("skill") {
        return match args.value("merge").is_some() || args.has("yes") {
            true => Err(Error::usage("--skill goes alone".to_owned())),
            false => Ok(cli::print(skill::TEXT)),
        };
    }
    let layout = Layout::load()?;
    let file = path_of(&args, "merge", &layout.dirs.home)?;
    match file {
        Some(file) => merge(client, &layout, &file, args.has("yes")),
        None if args.has("yes") => Err(Error::usage("--yes goes with --merge".to_owned())),
        None => Ok(cli::print(&client.page(&command(&layout)?))),
    }
}

fn merge(client: Client, layout: &Layout, file: &Path, yes: bool) -> Result<ExitCode, Error> {
    let named = std::path::absolute(file);
    let named = named.map_err(|error| InstallError::file("find", file, error))?;
    let around = place::around(&named, &layout.dirs);
    if let Around::Workspace(dir) = around {
        return Err(InstallError::OfProject {
            path: named,
            dir,
            instead: client.of_user(file),
        }
        .into());
    }
    let command = command(layout)?;
    let edit = |text: &str| client.merge(&command, file, text);
    let done = merge::into_file(file, edit, yes);
    let done = done.map_err(|error| match error {
        Error::Install(error) => Error::Install(error.of_client(client.name())),
        other => other,
    })?;
    if let Err(error) = remember(layout, done.file) {
        log::warn!("umwelt-install remove will not know of it: {error}");
    }
    cli::print(&done.text);
    if let Around::Linked(dir) = around {
        cli::print(&format!(
            "note: a link leads it into {dir:?}: never make that a workspace\n"
        ));
    }
    if let Some(note) = done.after.as_deref().and_then(|text| client.note(text)) {
        cli::print(&format!("note: {note}\n"));
    }
    let left = client.left(&command, Some(file));
    let left: String = left.lines().map(|line| format!("  {line}\n")).collect();
    Ok(cli::print(&format!("what is left to do:\n{left}")))
}

/// Whoever removes umwelt is told of the file, wherever it is.
fn remember(layout: &Layout, file: PathBuf) -> Result<(), InstallError> {
    match Record::load(&layout.record)? {
        Some(record) if !record.merged.contains(&file) => {
            let mut held = Held::take(layout.clone())?;
            held.record.merged.push(file);
            held.save()
        }
        _ => Ok(()),
    }
}

/// The absolute path of umwelt-mcp: clients expand nothing.
fn command(layout: &Layout) -> Result<String, Error> {
    let record = Record::load(&layout.record)?;
    let path = layout
        .clone()
        .with_recorded(record.as_ref())
        .bin
        .join("umwelt-mcp");
    if !path.exists() {
        log::warn!("{path:?} does not exist yet; run: {NAME} install");
    }
    match path.to_str() {
        Some(text) if !text.contains(char::is_control) => Ok(text.to_owned()),
        _ => Err(InstallError::Merge {
            path,
            why: "its path is not plain UTF-8".to_owned(),
            client: "CLIENT",
        }
        .into()),
    }
}
