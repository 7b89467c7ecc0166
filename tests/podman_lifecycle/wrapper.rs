//! A wrapper in the place of podman.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::podman_common::sandbox::Place;
use crate::podman_common::{Options, applet};

/// Where podman really is.
fn podman() -> PathBuf {
    let path = std::env::var_os("PATH").expect("PATH");
    std::env::split_paths(&path)
        .map(|dir| dir.join("podman"))
        .find(|file| file.exists())
        .expect("podman")
}

/// Copies a program that is to be run. Not by this process: while it has one open for writing, a
/// child that another thread starts has so too, and then nobody can run it.
pub(crate) fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").args([from, to]).status();
    assert!(copied.unwrap().success(), "{from:?}");
}

/// A place where podman means a wrapper. It changes the arguments of one call:
/// `change` are the lines of a bash `case` on each word. A word that no pattern
/// matches is kept; `keep WORD…` keeps others in its place. In `$here` lie the
/// directory `other` and the file `program`, a copy of umwelt.
pub(crate) fn place_with(call: &str, change: &str) -> Place {
    let mut place = Place::new(Options::default());
    wrap(&mut place, call, change);
    place
}

/// The same for a place that there is.
pub(crate) fn wrap(place: &mut Place, call: &str, change: &str) {
    let bin = place.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::fs::create_dir(place.path().join("other")).unwrap();
    let program = place.path().join("program");
    copy_program(applet("").get_program().as_ref(), &program);
    let text = format!(
        r#"#!/bin/bash
real={real}
here={here}
[[ $1 == {call} ]] || exec "$real" "$@"
words=()
keep() {{ words+=("$@"); }}
# keep_with SED: the word, edited.
keep_with() {{ keep "$(sed "$1" <<<"$word")"; }}
for word in "$@"; do
    case $word in
        {change}
        *) keep "$word" ;;
    esac
done
exec "$real" "${{words[@]}}"
"#,
        real = podman().display(),
        here = place.path().display(),
    );
    let written = place.path().join("wrapper");
    std::fs::write(&written, text).unwrap();
    std::fs::set_permissions(&written, std::fs::Permissions::from_mode(0o755)).unwrap();
    copy_program(&written, &bin.join("podman"));
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", bin.display());
    place.options.env.push(("PATH", path));
}
