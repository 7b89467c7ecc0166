//! The list of all containers -> those that an earlier life has left. Pure.

use std::ffi::OsString;

use crate::podman::argv::{LABEL_PREFIX, LABEL_SID};

/// Whose containers are looked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner<'a> {
    pub(crate) prefix: &'a str,
    pub(crate) sid: &'a str,
    /// The name of the sandbox container.
    pub(crate) name: &'a str,
}

/// What of the list concerns us.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Leftovers {
    /// To be removed, by id.
    pub(crate) ours: Vec<String>,
    /// Somebody else's container has our name.
    pub(crate) is_name_taken: bool,
}

const SEPARATOR: char = '|';

/// Lists all containers, one a line, for [`parse`]. With those that podman
/// itself does not know: see [`is_half_made`].
pub(crate) fn list_args() -> Vec<OsString> {
    let format = format!(
        "--format={{{{.ID}}}}|{{{{.State}}}}|{{{{.Names}}}}|{{{{.Command}}}}|{{{{.Label {LABEL_PREFIX:?}}}}}|{{{{.Label {LABEL_SID:?}}}}}"
    );
    ["ps", "--all", "--external", "--no-trunc", &format]
        .map(OsString::from)
        .into()
}

/// Reads the lines that [`list_args`] asks for.
pub(crate) fn parse(output: &str, owner: Owner<'_>) -> Leftovers {
    let mut leftovers = Leftovers::default();
    for line in output.lines() {
        let fields: Vec<&str> = line.split(SEPARATOR).collect();
        let [id, state, name, rest @ ..] = fields.as_slice() else {
            continue;
        };
        if id.len() != 64 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            continue;
        }
        // The command of a foreign container may hold anything, separators
        // too; the labels are counted from the end.
        let labels = rest.split_last_chunk().map(|(_, labels)| labels);
        if labels == Some(&[owner.prefix, owner.sid]) || is_half_made(state, name, rest, owner) {
            leftovers.ours.push((*id).to_owned());
        } else if *name == owner.name {
            leftovers.is_name_taken = true;
        }
    }
    leftovers
}

/// A `podman run` that was killed may leave its container in the storage but
/// not in its own database, where the labels would be: then nothing but the
/// name tells whose it was. podman says `storage` of such a container, and
/// `buildah` of what belongs to that program.
fn is_half_made(state: &str, name: &str, rest: &[&str], owner: Owner<'_>) -> bool {
    name == owner.name && state == "storage" && rest.first() == Some(&"storage")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn found(line: &str) -> (usize, bool) {
        let owner = Owner {
            prefix: "umwelt",
            sid: "deadbeef",
            name: "umwelt-deadbeef",
        };
        let leftovers = parse(&format!("x\n{ID}|{line}\n"), owner);
        (leftovers.ours.len(), leftovers.is_name_taken)
    }

    #[test]
    fn both_labels_or_a_half_made_container_of_our_name_are_ours() {
        for line in [
            "running|umwelt-deadbeef||umwelt|deadbeef",
            "exited|renamed|sh -c a|b|umwelt|deadbeef",
            "storage|umwelt-deadbeef|storage||",
        ] {
            assert_eq!(found(line), (1, false), "{line}");
        }
    }

    #[test]
    fn a_container_of_our_name_without_our_labels_is_somebody_elses() {
        for line in [
            "running|umwelt-deadbeef|sh||",
            "exited|umwelt-deadbeef|sh|other|deadbeef",
            "exited|umwelt-deadbeef|sh|umwelt|01234567",
            "storage|umwelt-deadbeef|buildah||",
            "running|umwelt-deadbeef|storage||",
        ] {
            assert_eq!(found(line), (0, true), "{line}");
        }
    }

    #[test]
    fn others_and_what_is_not_a_container_are_passed_over() {
        for line in ["running|other|sh||", "storage|other|storage||", "running"] {
            assert_eq!(found(line), (0, false), "{line}");
        }
    }
}
