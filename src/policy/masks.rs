//! Which mounts of a set show what is to be hidden, and what covers it. Pure.
//!
//! A mask names a host path; what it hides is the file or directory there, by
//! its real path. Every bind that shows it gets a cover in the place where it
//! would be seen, whatever way leads there: another bind, an alias, a link.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::policy::mounts::{Cover, Mount, MountKind, MountSet, Origin, depth};

/// Something on the host that no sandbox sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hidden {
    /// Without links.
    pub(crate) real: String,
    pub(crate) cover: Cover,
    pub(crate) reason: Option<String>,
}

/// What the host looks like just before a container is created.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MaskFacts {
    pub(crate) hidden: Vec<Hidden>,
    /// Sources of binds that are reached through links, with their real paths.
    pub(crate) real_sources: BTreeMap<String, String>,
}

impl MountSet {
    /// The set with covers over all that `facts` hides. A cover takes the
    /// place of a base mount of the same path, but not that of the workspace
    /// or of a granted file; mounts that were asked for below a cover stay
    /// visible.
    pub(crate) fn with_masks(&self, facts: &MaskFacts) -> MountSet {
        let candidates = self
            .iter()
            .flat_map(|mount| candidates(mount, facts).map(move |cover| (Some(mount), cover)));
        let mut steps: Vec<(Option<&Mount>, Mount)> = self
            .iter()
            .map(|mount| (None, mount.clone()))
            .chain(candidates)
            .collect();
        // Stable: for one path the mount comes before what may cover it.
        steps.sort_by_key(|(_, mount)| depth(&mount.path));
        let mut out: Vec<Mount> = Vec::with_capacity(steps.len());
        for (shown_by, mount) in steps {
            let above = nearest(&out, &mount.path);
            let Some(bind) = shown_by else {
                let is_hidden = above.is_some_and(|at| out.get(at).is_some_and(Mount::is_mask));
                if !(is_hidden && mount.is_submount()) {
                    out.push(mount);
                }
                continue;
            };
            // Only where nothing deeper hides it, or shows something else.
            match above.and_then(|at| out.get_mut(at)) {
                Some(above) if above == bind && above.path != mount.path => out.push(mount),
                Some(above) if above == bind && gives_way(above, &mount) => *above = mount,
                _ => {}
            }
        }
        MountSet::merge(out)
    }
}

/// Whether `mask` takes the place of a mount of the same path. A file that was
/// granted by its very name stays visible.
fn gives_way(mount: &Mount, mask: &Mount) -> bool {
    let is_file = matches!(
        mask.kind,
        MountKind::Mask {
            cover: Cover::File,
            ..
        }
    );
    mount.origin < Origin::Workspace && !(is_file && mount.is_granted())
}

/// The covers for what `mount` shows, leaving other mounts aside.
fn candidates<'a>(mount: &'a Mount, facts: &'a MaskFacts) -> impl Iterator<Item = Mount> + 'a {
    let source = match &mount.kind {
        MountKind::Bind { source, .. } if mount.origin != Origin::Umwelt => {
            Some(facts.real_sources.get(source).unwrap_or(source))
        }
        _ => None,
    };
    facts.hidden.iter().filter_map(move |hidden| {
        let below = Path::new(&hidden.real).strip_prefix(source?).ok()?;
        // Joining an empty path would add a slash.
        let path = if below.as_os_str().is_empty() {
            PathBuf::from(&mount.path)
        } else {
            Path::new(&mount.path).join(below)
        };
        Some(Mount {
            path: path.into_os_string().into_string().ok()?,
            kind: MountKind::Mask {
                cover: hidden.cover,
                reason: hidden.reason.clone(),
            },
            origin: Origin::Base,
        })
    })
}

/// The deepest mount at or above `path`; of two for one path the later one.
fn nearest(mounts: &[Mount], path: &str) -> Option<usize> {
    mounts
        .iter()
        .enumerate()
        .filter(|(_, mount)| Path::new(path).starts_with(&mount.path))
        .max_by_key(|(_, mount)| depth(&mount.path))
        .map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::mounts::Access;
    use proptest::prelude::*;

    fn bind(path: &str, source: &str, origin: Origin) -> Mount {
        let access = match origin {
            Origin::WorkspaceSubmount | Origin::Workspace => Access::ReadWrite,
            _ => Access::ReadOnly,
        };
        Mount::bind(path, source, access, origin)
    }

    fn base(path: &str) -> Mount {
        bind(path, path, Origin::Base)
    }

    fn facts(hidden: &[&str]) -> MaskFacts {
        let hidden = hidden.iter().map(|path| Hidden {
            real: (*path).to_owned(),
            cover: Cover::Directory,
            reason: None,
        });
        MaskFacts {
            hidden: hidden.collect(),
            ..MaskFacts::default()
        }
    }

    /// Paths in order, masks with a mark.
    fn shown(mounts: Vec<Mount>, facts: &MaskFacts) -> Vec<String> {
        let set = MountSet::merge(mounts).with_masks(facts);
        let mark = |mount: &Mount| match mount.is_mask() {
            true => format!("!{}", mount.path),
            false => mount.path.clone(),
        };
        set.iter().map(mark).collect()
    }

    #[test]
    fn what_no_bind_shows_needs_no_cover() {
        let home = Mount::tmpfs("/h", 1, Origin::Scratch);
        let mounts = vec![home, base("/h/dev")];
        assert_eq!(
            shown(mounts, &facts(&["/h/.ssh", "/h/device"])),
            ["/h", "/h/dev"]
        );
    }

    #[test]
    fn every_bind_that_shows_it_gets_a_cover() {
        let mounts = vec![
            base("/h/dev"),
            bind("/h/dev/p", "/h/dev/p", Origin::Workspace),
            bind("/link/p", "/h/dev/p", Origin::Workspace),
        ];
        assert_eq!(
            shown(mounts, &facts(&["/h/dev/p/.key"])),
            [
                "/h/dev",
                "/link/p",
                "/h/dev/p",
                "!/link/p/.key",
                "!/h/dev/p/.key"
            ]
        );
    }

    #[test]
    fn source_behind_a_link_is_compared_by_its_real_path() {
        let mut facts = facts(&["/data/dev/secret"]);
        facts
            .real_sources
            .insert("/h/dev".into(), "/data/dev".into());
        assert_eq!(
            shown(vec![base("/h/dev")], &facts),
            ["/h/dev", "!/h/dev/secret"]
        );
    }

    #[test]
    fn mask_wins_over_a_base_bind_of_its_path_and_loses_to_one_below() {
        let mounts = vec![base("/h"), base("/h/.ssh"), base("/h/.ssh/pub")];
        assert_eq!(
            shown(mounts, &facts(&["/h/.ssh", "/h/.ssh/id", "/h/.ssh/pub/x"])),
            ["/h", "!/h/.ssh", "/h/.ssh/pub", "!/h/.ssh/pub/x"]
        );
    }

    #[test]
    fn the_workspace_itself_is_never_hidden() {
        let workspace = bind("/h/.claude/p", "/h/.claude/p", Origin::Workspace);
        assert_eq!(
            shown(vec![workspace.clone()], &facts(&["/h/.claude/p"])),
            ["/h/.claude/p"]
        );
        assert_eq!(
            shown(vec![base("/h"), workspace], &facts(&["/h/.claude"])),
            ["/h", "!/h/.claude", "/h/.claude/p"]
        );
    }

    #[test]
    fn submount_below_a_mask_is_not_shown_by_its_own_bind() {
        let mounts = vec![
            base("/h"),
            bind("/h/s/sub", "/h/s/sub", Origin::Submount),
            bind("/h/t/sub", "/h/t/sub", Origin::Submount),
            bind("/h/u", "/h/u", Origin::WorkspaceSubmount),
            bind("/h/v/w", "/h/v/w", Origin::WorkspaceSubmount),
        ];
        assert_eq!(
            shown(mounts, &facts(&["/h/s", "/h/u", "/h/v"])),
            ["/h", "!/h/s", "!/h/u", "!/h/v", "/h/t/sub"]
        );
    }

    #[test]
    fn scratch_over_the_place_needs_no_cover() {
        let mounts = vec![base("/h"), Mount::tmpfs("/h/tmp", 1, Origin::Base)];
        assert_eq!(shown(mounts, &facts(&["/h/tmp/x"])), ["/h", "/h/tmp"]);
    }

    const PATHS: [&str; 8] = [
        "/a", "/a/b", "/a/b/c", "/ab", "/a/bc", "/d", "/d/b", "/d/b/c",
    ];

    /// What a process sees at `path`: the host path behind it, or nothing.
    /// Naive: the deepest mount decides, covers count like any other.
    fn seen(set: &MountSet, path: &str) -> Option<String> {
        let above = set
            .iter()
            .filter(|mount| Path::new(path).starts_with(&mount.path))
            .max_by_key(|mount| depth(&mount.path))?;
        match &above.kind {
            MountKind::Bind { source, .. } => {
                let below = Path::new(path).strip_prefix(&above.path).unwrap();
                Some(Path::new(source).join(below).to_str().unwrap().to_owned())
            }
            _ => None,
        }
    }

    proptest! {
        /// Below any path of any set, something hidden is seen only through a
        /// bind whose source lies below it, or through the workspace itself;
        /// and whatever is not hidden is seen as before.
        #[test]
        fn hidden_is_not_seen_and_all_else_is(
            picks in prop::collection::vec((0usize..8, 0usize..8, 0usize..5), 0..8),
            hidden in prop::collection::vec(0usize..8, 0..4),
        ) {
            const ORIGINS: [Origin; 5] = [
                Origin::Scratch, Origin::Submount, Origin::Base, Origin::WorkspaceSubmount, Origin::Workspace,
            ];
            let mounts = picks.iter().map(|(path, source, origin)| match ORIGINS[*origin] {
                Origin::Scratch => Mount::tmpfs(PATHS[*path], 1, Origin::Scratch),
                // These are found below a bind, at their own paths.
                origin @ (Origin::Submount | Origin::WorkspaceSubmount) => {
                    bind(PATHS[*path], PATHS[*path], origin)
                }
                origin => bind(PATHS[*path], PATHS[*source], origin),
            });
            let before = MountSet::merge(mounts.collect());
            let hidden: Vec<&str> = hidden.iter().map(|at| PATHS[*at]).collect();
            let after = before.with_masks(&facts(&hidden));
            for path in PATHS.iter().flat_map(|path| [format!("{path}/leaf"), (*path).to_owned()]) {
                let (was, is) = (seen(&before, &path), seen(&after, &path));
                let hiding = |real: &str| hidden.iter().any(|mask| Path::new(real).starts_with(mask));
                let through = before
                    .iter()
                    .filter(|mount| Path::new(&path).starts_with(&mount.path))
                    .max_by_key(|mount| depth(&mount.path));
                match (&was, through.map(|mount| (&mount.kind, mount.origin))) {
                    (Some(real), Some((MountKind::Bind { source, .. }, origin))) if hiding(real) => {
                        let named = hidden.iter().any(|mask| {
                            let source = Path::new(source);
                            source.starts_with(mask)
                                && (source != Path::new(mask) || origin == Origin::Workspace)
                        });
                        prop_assert!(is.is_none() || named, "{path}: {real} is seen");
                    }
                    // A submount's bind goes when it lies below a cover.
                    (_, Some((_, Origin::Submount | Origin::WorkspaceSubmount))) => {}
                    _ => prop_assert_eq!(&is, &was, "{}", path),
                }
            }
        }
    }
}
