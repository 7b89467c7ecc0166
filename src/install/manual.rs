//! Manual pages -> where man(1) looks for those of a user, whose programs are in
//! `~/.local/bin`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::install::layout::Layout;
use crate::install::linked::{Linked, Standing};
use crate::install::record::Record;
use crate::install::{InstallError, say, say_foreign};
use crate::text::shell_word;

macro_rules! page {
    ($folder:literal, $name:literal) => {
        (
            $name,
            include_str!(concat!("../../share/man/", $folder, "/", $name)),
        )
    };
}

const SHIPPED: &[(&str, &str)] = &[
    page!("man1", "umwelt-mcp.1"),
    page!("man1", "umwelt-run.1"),
    page!("man1", "umwelt-ctl.1"),
    page!("man1", "umwelt-nft-hook.1"),
    page!("man1", "umwelt-install.1"),
    page!("man1", "umwelt-init.1"),
    page!("man1", "umwelt-gateway.1"),
    page!("man5", "umwelt.toml.5"),
];

fn place(layout: &Layout) -> PathBuf {
    layout.dirs.data.with_file_name("man")
}

pub(super) fn linked(layout: &Layout) -> Linked {
    let place = place(layout);
    let links = SHIPPED.iter().map(|(name, _)| {
        let section = Path::new(name).extension().and_then(OsStr::to_str);
        let folder = format!("man{}", section.unwrap_or_default());
        (place.join(folder).join(name), *name)
    });
    Linked {
        dir: layout.program.with_file_name("man"),
        shipped: SHIPPED,
        links: links.collect(),
    }
}

pub(super) fn install(layout: &Layout, record: &mut Record) -> Result<(), InstallError> {
    let linked = linked(layout);
    let place = place(layout);
    if linked.standing()? == Standing::Current {
        say(
            "man",
            &format!("pages are so already: in {}", place.display()),
        );
        return Ok(());
    }
    let foreign = linked.install(record)?;
    say("man", &format!("pages put in {}", place.display()));
    say_foreign(&foreign);
    // A directory of links that is not on PATH has been told of.
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !is_beside(&place, &layout.bin) && !is_searched(&place, &path) {
        let place = shell_word(&place.to_string_lossy());
        say(
            "",
            &format!("hint: man looks there only if it is told to: man -M {place} umwelt-install"),
        );
    }
    Ok(())
}

/// Where man-db and mandoc look: beside the directories of programs.
fn is_searched(place: &Path, path: &OsStr) -> bool {
    std::env::split_paths(path).any(|bin| is_beside(place, &bin))
}

fn is_beside(place: &Path, bin: &Path) -> bool {
    bin.parent()
        .is_some_and(|above| above.join("share/man") == place)
}

pub(super) fn remove(layout: &Layout) -> Result<(), InstallError> {
    if linked(layout).remove()? {
        say("man", "pages removed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_a_page_and_so_has_the_configuration() {
        let has = |page: &str| SHIPPED.iter().any(|(name, _)| *name == page);
        for applet in crate::applet::ALL {
            assert!(has(&format!("{}.1", applet.name())), "{}", applet.name());
        }
        assert!(has("umwelt.toml.5"));
        for (name, text) in SHIPPED {
            assert!(text.starts_with(".TH UMWELT"), "{name}");
        }
    }

    #[test]
    fn man_looks_beside_the_directories_of_programs() {
        let place = Path::new("/h/.local/share/man");
        for (path, is_so) in [
            ("/usr/bin:/h/.local/bin", true),
            ("/h/.local/bin/", true),
            ("/usr/bin:/h/bin", false),
            ("", false),
        ] {
            assert_eq!(is_searched(place, OsStr::new(path)), is_so, "{path}");
        }
    }
}
