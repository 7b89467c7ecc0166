//! `umwelt-install remove`: everything that was put in place goes; what the
//! user wrote, and what records what agents did, stays unless it is purged.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use crate::cli;
use crate::cli::args::{Args, Operands, Subcommand};
use crate::ctl::CtlError;
use crate::ctl::leftover;
use crate::error::Error;
use crate::install::layout::Layout;
use crate::install::program::{self, Base};
use crate::install::record::Record;
use crate::install::setup::Held;
use crate::install::{
    InstallError, NAME, call, completions, files, kept, manual, refuse_root, say, unit,
};
use crate::sys::lock;
use crate::workspace::SessionId;

pub(super) const SUBCOMMAND: Subcommand = Subcommand {
    name: "remove",
    help: "\
Usage: umwelt-install remove [--purge]

Removes what was installed: links, program, completions, manual pages, images,
the certificate authority, the systemd unit, logs, and the base configuration if
it was not edited. What stays is named, and so are settings of clients in which
umwelt still is, and the copies that client --merge has kept. Nothing is removed
while sandboxes run.

Options:
      --purge    remove the edited configuration, the journals, the audits and
                 the trust records as well
  -h, --help     print this help and exit
  -V, --version  print the version and exit
",
    flags: &["purge"],
    values: &[],
    operands: Operands::None,
    run,
};

fn run(args: Args) -> Result<ExitCode, Error> {
    refuse_root()?;
    let layout = Layout::load()?;
    refuse_running(&layout)?;
    let recorded = Record::load(&layout.record).ok().flatten();
    let layout = layout.with_recorded(recorded.as_ref());
    let mut created = Vec::new();
    let mut problems = Vec::new();
    if layout.dirs.data.is_dir() {
        let held = Held::take(layout.clone())?;
        created.clone_from(&held.record.created);
        problems = take_away(&held.layout, &held.record);
        if problems.is_empty() {
            files::remove_if_there(&held.layout.record)?;
        }
    } else {
        problems.extend(remove_program(&layout).err());
    }
    if args.has("purge") {
        purge(&layout)?;
    }
    for dir in created.iter().rev() {
        files::remove_dir_if_empty(dir);
    }
    kept::tell(&layout);
    kept::tell_clients(&layout, recorded.as_ref());
    let code = match problems.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    };
    for problem in problems {
        cli::report(NAME, &Error::Install(problem));
    }
    Ok(code)
}

/// A sandbox needs its program, and would leave its container behind.
fn refuse_running(layout: &Layout) -> Result<(), Error> {
    let containers = match leftover::find_of_all_prefixes() {
        // Without podman nothing runs.
        Err(CtlError::NoPodman) => Vec::new(),
        found => found?,
    };
    // One sandbox may have two containers and a socket.
    let mut running = BTreeMap::new();
    for container in containers {
        let sid = container.sid.to_string();
        let name = running.entry(sid.clone()).or_insert(sid);
        if let Some(workspace) = container.workspace {
            *name = workspace;
        }
    }
    let entries = std::fs::read_dir(&layout.dirs.runtime)
        .into_iter()
        .flatten();
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let sid = name.strip_suffix(".sock").and_then(sid_of);
        if let Some(sid) = sid
            && UnixStream::connect(entry.path()).is_ok()
        {
            let sid = sid.to_string();
            running.entry(sid.clone()).or_insert(sid);
        }
    }
    match running.is_empty() {
        true => Ok(()),
        false => Err(InstallError::Running(running.into_values().collect()).into()),
    }
}

/// Of `PREFIX-SID`, whatever the prefix was when it was made.
fn sid_of(name: &str) -> Option<SessionId> {
    let (_, sid) = name.rsplit_once('-')?;
    SessionId::parse(sid)
}

/// Goes on after an error, and tells all of them.
fn take_away(layout: &Layout, record: &Record) -> Vec<InstallError> {
    let mut problems = Vec::new();
    problems.extend(remove_images(record).err());
    problems.extend(remove_egress(layout).err());
    problems.extend(remove_config(layout, record).err());
    problems.extend(remove_logs(layout).err());
    problems.extend(remove_locks(layout).err());
    problems.extend(unit::remove(layout, record).err());
    // Last: as long as it is there, all of this can be tried again.
    if problems.is_empty() {
        problems.extend(remove_program(layout).err());
    }
    problems
}

fn remove_images(record: &Record) -> Result<(), InstallError> {
    let gateway = record.gateway_image.as_ref();
    let sandbox = record.sandbox_image.as_ref();
    let images = [
        gateway.map(|image| (&image.name, &image.id)),
        sandbox.map(|image| (&image.name, &image.id)),
    ];
    for (name, id) in images.into_iter().flatten() {
        match call::find_image(name, "") {
            Ok(Some(found)) if found.id == *id => {
                let done = match call::remove_image(id)? {
                    true => "removed",
                    false => "kept, as something uses it",
                };
                say("image", &format!("{done}: {name}"));
            }
            // Gone, or another one by now.
            Ok(_) => {}
            Err(InstallError::NoPodman) => {
                say("image", &format!("kept, as there is no podman: {name}"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn remove_egress(layout: &Layout) -> Result<(), InstallError> {
    let mut removed = false;
    for path in [
        layout.authority_key(),
        layout.authority_certificate(),
        layout.bundle(),
        layout.roots(),
    ] {
        removed |= files::remove_if_there(&path)?;
        // What a killed run has left.
        files::remove_if_there(&files::temporary(&path))?;
    }
    files::remove_dir_if_empty(&layout.egress);
    if removed {
        say("ca", "removed, with its key and its bundle");
    }
    Ok(())
}

fn remove_config(layout: &Layout, record: &Record) -> Result<(), InstallError> {
    let path = layout.dirs.base_config();
    if matches!(
        program::base(layout, Some(record))?,
        Base::Current | Base::Old
    ) {
        files::remove_if_there(&path)?;
        say(
            "config",
            &format!("removed, as nobody had edited it: {}", path.display()),
        );
    }
    files::remove_dir_if_empty(&layout.dirs.config);
    Ok(())
}

/// Logs of control planes, and long outputs of commands.
fn remove_logs(layout: &Layout) -> Result<(), InstallError> {
    let state = &layout.dirs.state;
    for entry in std::fs::read_dir(state).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_ours = sid_of(&entry.file_name().to_string_lossy()).is_some();
        if is_ours && path.is_dir() && !path.is_symlink() {
            std::fs::remove_dir_all(&path)
                .map_err(|error| InstallError::file("remove", &path, error))?;
        }
    }
    files::remove_dir_if_empty(state);
    Ok(())
}

/// Of sandboxes that have ended. The lock of one that just starts is held.
fn remove_locks(layout: &Layout) -> Result<(), InstallError> {
    let dir = std::fs::read_dir(&layout.dirs.runtime);
    for entry in dir.into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let sid = name.strip_suffix(".lock").and_then(sid_of);
        if sid.is_some()
            && let Ok(Some(_held)) = lock::take(&path, Duration::ZERO)
        {
            std::fs::remove_file(&path)
                .map_err(|error| InstallError::file("remove", &path, error))?;
        }
    }
    Ok(())
}

fn remove_program(layout: &Layout) -> Result<(), InstallError> {
    completions::remove(layout)?;
    manual::remove(layout)?;
    let links = program::remove_links(layout)?;
    if links > 0 {
        say(
            "links",
            &format!("{links} removed from {}", layout.bin.display()),
        );
    }
    let is_removed = files::remove_if_there(&layout.program)?;
    for path in [&layout.program, &layout.shipped_config] {
        files::remove_if_there(path)?;
        files::remove_if_there(&files::temporary(path))?;
    }
    if let Some(lib) = layout.program.parent() {
        files::remove_dir_if_empty(lib);
    }
    if is_removed {
        say("program", &format!("removed: {}", layout.program.display()));
    }
    Ok(())
}

fn purge(layout: &Layout) -> Result<(), InstallError> {
    for dir in kept::own_dirs(layout) {
        match std::fs::remove_dir_all(dir) {
            Ok(()) => say("purged", &dir.display().to_string()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(InstallError::file("remove", dir, error)),
        }
    }
    Ok(())
}
