//! Two workspace files -> what the second allows more or less than the first,
//! in words for a person who decides. Pure.

use crate::config::{GrantMode, PersistedGrant, WorkspaceFile};
use crate::text::printable;
use crate::trust::network_meaning;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    /// Whether the sandbox can do more than before.
    pub(crate) widens: bool,
    /// Whether it opens what the file itself does not name.
    pub(crate) is_unnamed: bool,
    /// One line, safe to show.
    pub(crate) text: String,
}

/// What widens comes first.
pub(crate) fn changes(old: &WorkspaceFile, new: &WorkspaceFile) -> Vec<Change> {
    let mut changes = grants(&old.grants, &new.grants);
    changes.extend(network_meaning::changes(&old.egress, &new.egress));
    changes.sort_by_key(|change| !change.widens);
    changes
}

fn grants(old: &[PersistedGrant], new: &[PersistedGrant]) -> Vec<Change> {
    let same_path = |among: &[PersistedGrant], grant: &PersistedGrant| {
        among.iter().find(|other| other.path == grant.path).cloned()
    };
    let removed = old.iter().filter(|grant| same_path(new, grant).is_none());
    let removed = removed.map(|grant| change(false, format!("removes {}", access(grant))));
    let kept_or_added = new.iter().filter_map(|grant| match same_path(old, grant) {
        None => Some(change(true, format!("adds {}", access(grant)))),
        Some(known) if known == *grant => None,
        Some(known) => {
            // From a file to all of a directory is more, whatever the mode.
            let widens = (known.mode == GrantMode::Ro && grant.mode == GrantMode::Rw)
                || (known.file && !grant.file);
            let text = format!("changes {} to {}", access(&known), access(grant));
            Some(change(widens, text))
        }
    });
    kept_or_added.chain(removed).collect()
}

pub(super) fn change(widens: bool, text: String) -> Change {
    Change {
        widens,
        is_unnamed: false,
        text: printable(&text),
    }
}

/// Whether the change is more of what this grant opens.
pub(crate) fn opens(change: &Change, grant: &PersistedGrant) -> bool {
    let access = printable(&access(grant));
    let added = format!("adds {access}");
    let is_changed = || change.text.starts_with("changes ") && change.text.ends_with(&access);
    change.widens && (change.text == added || is_changed())
}

fn access(grant: &PersistedGrant) -> String {
    let mode = match grant.mode {
        GrantMode::Ro => "read-only",
        GrantMode::Rw => "read-write",
    };
    let what = match grant.file {
        true => "the file ",
        false => "",
    };
    format!("{mode} access to {what}{:?}", grant.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(grants: &[(&str, GrantMode, bool)]) -> WorkspaceFile {
        let grants = grants.iter().map(|(path, mode, file)| PersistedGrant {
            path: path.into(),
            mode: *mode,
            file: *file,
        });
        WorkspaceFile {
            grants: grants.collect(),
            ..WorkspaceFile::default()
        }
    }

    fn words(old: &WorkspaceFile, new: &WorkspaceFile) -> Vec<(bool, String)> {
        let changes = changes(old, new).into_iter();
        changes.map(|change| (change.widens, change.text)).collect()
    }

    #[test]
    fn what_is_wider_is_told_before_what_is_narrower() {
        use GrantMode::{Ro, Rw};
        let old = file(&[
            ("/gone", Rw, false),
            ("/same", Ro, false),
            ("/up", Ro, false),
            ("/down", Rw, false),
            ("/f", Ro, true),
        ]);
        let new = file(&[
            ("/down", Ro, false),
            ("/same", Ro, false),
            ("/up", Rw, false),
            ("/new", Ro, true),
            ("/f", Ro, false),
        ]);
        let told = words(&old, &new);
        let wanted = [
            (
                true,
                "changes read-only access to \"/up\" to read-write access to \"/up\"",
            ),
            (true, "adds read-only access to the file \"/new\""),
            (
                true,
                "changes read-only access to the file \"/f\" to read-only access to \"/f\"",
            ),
            (
                false,
                "changes read-write access to \"/down\" to read-only access to \"/down\"",
            ),
            (false, "removes read-write access to \"/gone\""),
        ];
        assert_eq!(told, wanted.map(|(widens, text)| (widens, text.to_owned())));
        assert_eq!(words(&new, &new), []);
    }

    #[test]
    fn a_path_cannot_forge_a_line_or_hide() {
        let new = file(&[("/a\x1b[2K\u{202e}\nx", GrantMode::Ro, false)]);
        let told = words(&WorkspaceFile::default(), &new);
        assert_eq!(told.len(), 1);
        let text = &told[0].1;
        assert!(!text.chars().any(crate::text::is_unsafe), "{text}");
    }
}
