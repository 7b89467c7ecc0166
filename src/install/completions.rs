//! Completions for shells -> where bash and fish look for the name of a command.
//! zsh has no such place of the user's: it is told how to find them.

use std::path::PathBuf;

use crate::applet;
use crate::install::layout::Layout;
use crate::install::linked::{Linked, Standing};
use crate::install::record::Record;
use crate::install::{InstallError, say, say_foreign};
use crate::text::shell_word;

const BASH: &str = "umwelt.bash";
const FISH: &str = "umwelt.fish";
const SHIPPED: &[(&str, &str)] = &[
    (BASH, include_str!("../../share/completions/umwelt.bash")),
    (FISH, include_str!("../../share/completions/umwelt.fish")),
    ("_umwelt", include_str!("../../share/completions/_umwelt")),
];

fn places(layout: &Layout) -> [PathBuf; 2] {
    let near = |name| layout.dirs.data.with_file_name(name);
    [
        near("bash-completion").join("completions"),
        near("fish").join("vendor_completions.d"),
    ]
}

pub(super) fn linked(layout: &Layout) -> Linked {
    let [bash, fish] = places(layout);
    let names = applet::ALL.map(applet::Applet::name);
    let links = names.iter().flat_map(|name| {
        [
            (bash.join(name), BASH),
            (fish.join(format!("{name}.fish")), FISH),
        ]
    });
    Linked {
        dir: layout.program.with_file_name("completions"),
        shipped: SHIPPED,
        links: links.collect(),
    }
}

pub(super) fn install(layout: &Layout, record: &mut Record) -> Result<(), InstallError> {
    let linked = linked(layout);
    if linked.standing()? == Standing::Current {
        say(
            "shells",
            "are so already: completions for bash, fish and zsh",
        );
        return Ok(());
    }
    let foreign = linked.install(record)?;
    let [bash, fish] = places(layout).map(|place| place.display().to_string());
    say("shells", &format!("completions put in {bash} and {fish}"));
    say_foreign(&foreign);
    let line = format!(
        "fpath=({} $fpath)",
        shell_word(&linked.dir.to_string_lossy())
    );
    say(
        "",
        &format!("hint: for zsh, put this into ~/.zshrc before compinit: {line}"),
    );
    Ok(())
}

pub(super) fn remove(layout: &Layout) -> Result<(), InstallError> {
    if linked(layout).remove()? {
        say("shells", "completions removed");
    }
    Ok(())
}
