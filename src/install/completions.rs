//! Completions for shells -> files beside the program, and links to them where
//! bash and fish look for the name of a command. zsh has no such place of the
//! user's: it is told how to find them.

use std::path::{Path, PathBuf};

use crate::applet;
use crate::install::layout::{Layout, relative};
use crate::install::program::{self, Link};
use crate::install::record::Record;
use crate::install::{InstallError, files, say};

const BASH: &str = "umwelt.bash";
const FISH: &str = "umwelt.fish";
const SHIPPED: [(&str, &str); 3] = [
    (BASH, include_str!("../../share/completions/umwelt.bash")),
    (FISH, include_str!("../../share/completions/umwelt.fish")),
    ("_umwelt", include_str!("../../share/completions/_umwelt")),
];

/// What is not as it was installed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Current,
    /// So many links and files.
    Missing(usize),
    Old,
}

/// Beside the program.
pub(super) fn dir(layout: &Layout) -> PathBuf {
    layout.program.with_file_name("completions")
}

fn places(layout: &Layout) -> [PathBuf; 2] {
    let near = |name| layout.dirs.data.with_file_name(name);
    [
        near("bash-completion").join("completions"),
        near("fish").join("vendor_completions.d"),
    ]
}

/// Each link, and the file that it leads to.
fn links(layout: &Layout) -> Vec<(PathBuf, PathBuf)> {
    let [bash, fish] = places(layout);
    let dir = dir(layout);
    let names = applet::ALL.map(applet::Applet::name);
    let links = names.iter().flat_map(|name| {
        [
            (bash.join(name), dir.join(BASH)),
            (fish.join(format!("{name}.fish")), dir.join(FISH)),
        ]
    });
    links.collect()
}

pub(super) fn standing(layout: &Layout) -> Result<Standing, InstallError> {
    let dir = dir(layout);
    let mut missing = 0;
    let mut is_old = false;
    for (name, shipped) in SHIPPED {
        match files::read(&dir.join(name))? {
            None => missing += 1,
            Some(there) => is_old |= there != shipped.as_bytes(),
        }
    }
    let links = links(layout).into_iter();
    missing += links
        .filter(|(link, file)| program::look(link, file) == Link::Missing)
        .count();
    Ok(match missing {
        0 if is_old => Standing::Old,
        0 => Standing::Current,
        missing => Standing::Missing(missing),
    })
}

pub(super) fn install(layout: &Layout, record: &mut Record) -> Result<(), InstallError> {
    let standing = standing(layout)?;
    if standing == Standing::Current {
        say(
            "shells",
            "are so already: completions for bash, fish and zsh",
        );
        return Ok(());
    }
    let dir = dir(layout);
    record.add_created(files::make_dir(&dir, 0o755)?);
    for (name, shipped) in SHIPPED {
        files::replace(&dir.join(name), shipped.as_bytes(), 0o644)?;
    }
    let mut foreign = Vec::new();
    for (link, file) in links(layout) {
        let parent = link.parent().unwrap_or(&dir);
        record.add_created(files::make_dir(parent, 0o755)?);
        match program::look(&link, &file) {
            Link::Ours => {}
            Link::Foreign => foreign.push(link),
            Link::Missing => make_link(parent, &link, &file)?,
        }
    }
    let [bash, fish] = places(layout).map(|place| place.display().to_string());
    say("shells", &format!("completions put in {bash} and {fish}"));
    for link in foreign {
        say(
            "",
            &format!("left alone, as it is not of umwelt: {}", link.display()),
        );
    }
    let line = format!(
        "fpath=({} $fpath)",
        crate::text::shell_word(&dir.to_string_lossy())
    );
    say(
        "",
        &format!("hint: for zsh, put this into ~/.zshrc before compinit: {line}"),
    );
    Ok(())
}

fn make_link(parent: &Path, link: &Path, file: &Path) -> Result<(), InstallError> {
    let target = relative(&crate::places::real(parent), &crate::places::real(file));
    std::os::unix::fs::symlink(&target, link)
        .map_err(|error| InstallError::file("make link", link, error))
}

/// Removes the files, and the links that lead to them.
pub(super) fn remove(layout: &Layout) -> Result<(), InstallError> {
    let mut is_removed = false;
    for (link, file) in links(layout) {
        if program::look(&link, &file) == Link::Ours {
            is_removed |= files::remove_if_there(&link)?;
        }
    }
    let dir = dir(layout);
    for (name, _) in SHIPPED {
        is_removed |= files::remove_if_there(&dir.join(name))?;
        files::remove_if_there(&files::temporary(&dir.join(name)))?;
    }
    files::remove_dir_if_empty(&dir);
    if is_removed {
        say("shells", "completions removed");
    }
    Ok(())
}
