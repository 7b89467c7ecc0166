//! The program, its links, and the base configuration: put in place, or found
//! to be so already.

use std::path::{Path, PathBuf};

use crate::applet;
use crate::config::{Config, SHIPPED};
use crate::digest::sha256;
use crate::install::layout::{Layout, relative};
use crate::install::record::{Program, Record};
use crate::install::{InstallError, files, say};

/// The program that runs, whatever became of its file.
pub(super) fn running() -> Result<Vec<u8>, InstallError> {
    let exe = Path::new("/proc/self/exe");
    files::read(exe)?.ok_or_else(|| {
        let gone = std::io::Error::from(std::io::ErrorKind::NotFound);
        InstallError::file("read", exe, gone)
    })
}

/// Copies the running program. Its digest.
pub(super) fn install(layout: &Layout, record: &mut Record) -> Result<String, InstallError> {
    let bytes = running()?;
    let sha256 = sha256(&bytes);
    let (path, lib) = (&layout.program, parent(&layout.program));
    record.add_created(files::make_dir(lib, 0o755)?);
    let before = files::read(path)?;
    let is_update = before.is_some();
    let shown = path.display();
    if before.is_some_and(|before| before == bytes) && files::mode_of(path) == Some(0o755) {
        say("program", &format!("is so already: {shown}"));
    } else {
        files::replace(path, &bytes, 0o755)?;
        let note = match is_update {
            true => "; end sandboxes that run, they have the former one",
            false => "",
        };
        say("program", &format!("copied to {shown}{note}"));
    }
    if files::read(&layout.shipped_config)?.as_deref() != Some(SHIPPED.as_bytes()) {
        files::replace(&layout.shipped_config, SHIPPED.as_bytes(), 0o644)?;
    }
    record.program = Some(Program {
        path: path.clone(),
        sha256: sha256.clone(),
    });
    Ok(sha256)
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or_else(|| Path::new("/"))
}

/// What stands at the place of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    Ours,
    Missing,
    Foreign,
}

/// The places of all links, and what stands there.
pub(super) fn links(layout: &Layout) -> Vec<(PathBuf, Link)> {
    let names = applet::ALL.map(applet::Applet::name);
    let place = |name: &str| {
        let path = layout.bin.join(name);
        let link = look(&path, &layout.program);
        (path, link)
    };
    names.map(place).to_vec()
}

/// What stands at the place of a link to a file of ours.
pub(super) fn look(path: &Path, file: &Path) -> Link {
    match std::fs::read_link(path) {
        Ok(_) if leads_to(path, file) => Link::Ours,
        Err(_) if !files::is_there(path) => Link::Missing,
        _ => Link::Foreign,
    }
}

/// Also where the program is gone, so that the link dangles.
fn leads_to(link: &Path, program: &Path) -> bool {
    crate::places::real(link) == crate::places::real(program)
}

pub(super) fn link(layout: &Layout, record: &mut Record) -> Result<(), InstallError> {
    record.add_created(files::make_dir(&layout.bin, 0o755)?);
    if let Some(old) = record.bin.clone().filter(|old| *old != layout.bin) {
        let before = Layout {
            bin: old,
            ..layout.clone()
        };
        remove_links(&before)?;
    }
    let links = links(layout);
    // Before any is made, so that nothing is left half done.
    if let Some((path, _)) = links.iter().find(|(_, link)| *link == Link::Foreign) {
        return Err(InstallError::Foreign(path.clone()));
    }
    let real = |path: &Path| crate::places::real(path);
    let target = relative(&real(&layout.bin), &real(&layout.program));
    let missing = links.iter().filter(|(_, link)| *link == Link::Missing);
    let mut made = 0;
    for (path, _) in missing {
        std::os::unix::fs::symlink(&target, path)
            .map_err(|error| InstallError::file("make link", path, error))?;
        made += 1;
    }
    record.bin = Some(layout.bin.clone());
    let bin = layout.bin.display();
    match made {
        0 => say("links", &format!("are so already: in {bin}")),
        made => say("links", &format!("{made} made in {bin}")),
    }
    if !is_on_path(&layout.bin) {
        let line = format!("put it on your PATH: export PATH=\"{bin}:$PATH\"");
        say(
            "",
            &format!("hint: {bin} is not searched for programs; {line}"),
        );
    }
    Ok(())
}

pub(super) fn is_on_path(bin: &Path) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir == bin || same_dir(&dir, bin))
}

fn same_dir(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// Removes those that lead to our program. How many there were.
pub(super) fn remove_links(layout: &Layout) -> Result<usize, InstallError> {
    let mut removed = 0;
    for (path, link) in links(layout) {
        if link == Link::Ours && files::remove_if_there(&path)? {
            removed += 1;
        }
    }
    Ok(removed)
}

/// How the user's base configuration stands to the shipped one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    Missing,
    /// As shipped with this program.
    Current,
    /// As shipped with an earlier one.
    Old,
    /// By its user; whether the shipped one has changed since.
    Edited {
        is_shipped_newer: bool,
    },
}

pub(super) fn base(layout: &Layout, record: Option<&Record>) -> Result<Base, InstallError> {
    let path = layout.dirs.base_config();
    if !files::is_there(&path) {
        return Ok(Base::Missing);
    }
    let before = record.and_then(|record| record.config_sha256.as_deref());
    let shipped = sha256(SHIPPED.as_bytes());
    // A link is the user's doing, whatever it leads to.
    let is_link = path.is_symlink();
    let there = match is_link {
        true => None,
        false => files::read(&path)?.map(|bytes| sha256(&bytes)),
    };
    Ok(match there {
        Some(there) if there == shipped => Base::Current,
        Some(there) if Some(&*there) == before => Base::Old,
        _ => Base::Edited {
            is_shipped_newer: before.is_some_and(|before| before != shipped),
        },
    })
}

pub(super) fn configure(layout: &Layout, record: &mut Record) -> Result<(), InstallError> {
    let path = layout.dirs.base_config();
    record.add_created(files::make_dir(&layout.dirs.config, 0o700)?);
    let shown = path.display();
    let base = base(layout, Some(record))?;
    let text = match base {
        Base::Missing => {
            files::replace(&path, SHIPPED.as_bytes(), 0o644)?;
            format!("written to {shown}")
        }
        Base::Current => format!("is so already: {shown}"),
        Base::Old => {
            files::replace(&path, SHIPPED.as_bytes(), 0o644)?;
            format!("renewed, as nobody had edited it: {shown}")
        }
        Base::Edited { is_shipped_newer } => {
            let kept = format!("kept, as it was edited: {shown}");
            // The message names the file and the line.
            match Config::load(&layout.dirs) {
                Err(error) => format!("kept, as it was edited, but not valid: {error}"),
                Ok(_) if is_shipped_newer => format!(
                    "{kept}; the shipped one is newer: diff {} {shown}",
                    layout.shipped_config.display()
                ),
                Ok(_) => kept,
            }
        }
    };
    // What an edited file began as is kept: it tells when the shipped one changes.
    if !matches!(base, Base::Edited { .. }) {
        record.config_sha256 = Some(sha256(SHIPPED.as_bytes()));
    }
    say("config", &text);
    Ok(())
}
