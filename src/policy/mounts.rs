//! What a sandbox sees of the host, and where it can write. Pure.

use std::collections::BTreeMap;
use std::path::Path;

use crate::config::{BaseMount, Config};
use crate::policy::grants::GrantSet;
use crate::workspace::Workspace;

/// Where the binary stands inside, as pid 1.
pub(crate) const INIT_PATH: &str = "/run/umwelt/umwelt-init";
/// Where whole outputs can be read inside.
pub(crate) const OUTPUT_PATH: &str = "/run/umwelt/output";

/// One mount, at its path inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) path: String,
    pub(crate) kind: MountKind,
    pub(crate) origin: Origin,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MountKind {
    Bind {
        source: String,
        access: Access,
    },
    /// `size` in bytes. A private one belongs to the user and to nobody else
    /// (a home directory); others are for everybody, as /tmp is.
    Tmpfs {
        size: u64,
        private: bool,
    },
    /// Hides what a mount above would show.
    Mask {
        cover: Cover,
        reason: Option<String>,
    },
}

/// What stands in the place of something hidden.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cover {
    /// An empty directory, for a directory.
    Directory,
    /// The null device, for anything else.
    File,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    ReadOnly,
    ReadWrite,
}

/// Which layer asked for a mount; later ones win for the same path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    Scratch,
    /// What the host has mounted below a base bind.
    Submount,
    /// What the host has mounted below something granted.
    GrantSubmount,
    Base,
    /// A grant of the workspace file.
    Persisted,
    /// A grant that ends with the control plane.
    Session,
    /// What the host has mounted below the workspace.
    WorkspaceSubmount,
    Workspace,
    /// Git directories: what a worktree needs, and what other worktrees need.
    Worktree,
    /// What the sandbox itself stands on.
    Umwelt,
}

impl Origin {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Origin::Scratch => "scratch",
            Origin::Submount | Origin::Base => "base",
            Origin::Persisted => "persisted",
            Origin::GrantSubmount | Origin::Session => "session",
            Origin::WorkspaceSubmount | Origin::Workspace => "workspace",
            Origin::Worktree => "worktree",
            Origin::Umwelt => "umwelt",
        }
    }
}

impl Mount {
    pub(crate) fn bind(path: &str, source: &str, access: Access, origin: Origin) -> Mount {
        Mount {
            path: path.to_owned(),
            kind: MountKind::Bind {
                source: source.to_owned(),
                access,
            },
            origin,
        }
    }

    pub(crate) fn tmpfs(path: &str, size: u64, origin: Origin) -> Mount {
        Mount {
            path: path.to_owned(),
            kind: MountKind::Tmpfs {
                size,
                private: false,
            },
            origin,
        }
    }

    /// The same mount in another place, if it lies strictly below `from`.
    fn moved(&self, from: &str, to: &str) -> Option<Mount> {
        let rest = Path::new(&self.path).strip_prefix(from).ok()?.to_str()?;
        (!rest.is_empty()).then(|| Mount {
            path: format!("{to}/{rest}"),
            ..self.clone()
        })
    }

    pub(crate) fn is_writable(&self) -> bool {
        match &self.kind {
            MountKind::Bind { access, .. } => *access == Access::ReadWrite,
            MountKind::Tmpfs { .. } => true,
            MountKind::Mask { .. } => false,
        }
    }

    /// Where a bind comes from on the host.
    pub(crate) fn source(&self) -> Option<&str> {
        match &self.kind {
            MountKind::Bind { source, .. } => Some(source),
            _ => None,
        }
    }

    /// Nobody asked for it by name.
    pub(crate) fn is_submount(&self) -> bool {
        matches!(
            self.origin,
            Origin::Submount | Origin::GrantSubmount | Origin::WorkspaceSubmount
        )
    }

    pub(crate) fn is_granted(&self) -> bool {
        matches!(self.origin, Origin::Persisted | Origin::Session)
    }

    pub(crate) fn is_mask(&self) -> bool {
        matches!(self.kind, MountKind::Mask { .. })
    }
}

/// Facts about the host that the mount set depends on, gathered beforehand.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostFacts {
    pub(crate) home: String,
    /// The base binds that are directories on this host, by path, with their
    /// real paths. Others are left out.
    pub(crate) real_binds: BTreeMap<String, String>,
    pub(crate) mount_points: Vec<MountPoint>,
}

/// A mount point of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountPoint {
    pub(crate) path: String,
    pub(crate) read_only: bool,
}

/// Mounts in the order in which they are made: parents before children, one
/// for each path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MountSet {
    mounts: Vec<Mount>,
}

impl MountSet {
    /// The mounts of a workspace: scratch < base < persisted < session <
    /// workspace, by path.
    pub(crate) fn from_config(
        config: &Config,
        workspace: &Workspace,
        host: &HostFacts,
        grants: &GrantSet,
    ) -> MountSet {
        let home = MountKind::Tmpfs {
            size: config.scratch.home,
            private: true,
        };
        let mut layers = vec![
            Mount {
                path: host.home.clone(),
                kind: home,
                origin: Origin::Scratch,
            },
            Mount::tmpfs("/tmp", config.scratch.tmp, Origin::Scratch),
            Mount::tmpfs("/dev/shm", config.scratch.shm, Origin::Scratch),
        ];
        for base in &config.mounts {
            layers.extend(base_mounts(base, host));
        }
        layers.extend(grants.render_mounts(&host.mount_points));
        layers.extend(workspace_layers(
            workspace.as_str(),
            workspace.alias(),
            &layers,
            host,
        ));
        MountSet::merge(layers)
    }

    /// Keeps the highest layer for each path and puts parents first. Of two
    /// mounts of one layer for the same path the later one is kept.
    pub(crate) fn merge(layers: Vec<Mount>) -> MountSet {
        let mut mounts: Vec<Mount> = Vec::with_capacity(layers.len());
        for mount in layers {
            match mounts.iter_mut().find(|kept| kept.path == mount.path) {
                Some(kept) if kept.origin <= mount.origin => *kept = mount,
                Some(_) => {}
                None => mounts.push(mount),
            }
        }
        // A parent's path has fewer components than that of any child.
        mounts.sort_by(|a, b| {
            depth(&a.path)
                .cmp(&depth(&b.path))
                .then_with(|| a.path.cmp(&b.path))
        });
        MountSet { mounts }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Mount> {
        self.mounts.iter()
    }

    pub(crate) fn at(&self, path: &str) -> Option<&Mount> {
        self.mounts.iter().find(|mount| mount.path == path)
    }

    /// The mount that decides what is seen at `path`: the deepest above it.
    pub(crate) fn covering(&self, path: &str) -> Option<&Mount> {
        let mut above = self.mounts.iter().rev();
        above.find(|mount| Path::new(path).starts_with(&mount.path))
    }
}

/// The workspace under both of its names. What the layers below mount in it
/// holds under both, or the other name would show what is beneath.
fn workspace_layers(
    real: &str,
    alias: Option<&str>,
    below: &[Mount],
    host: &HostFacts,
) -> Vec<Mount> {
    let mut layers = Vec::new();
    let mut named = below.to_vec();
    if let Some(alias) = alias {
        let is_taken = |moved: &Mount| {
            let mut same = below.iter().filter(|mount| mount.path == moved.path);
            same.any(|mount| mount.origin >= moved.origin)
        };
        for (from, to) in [(real, alias), (alias, real)] {
            let moved = below.iter().filter_map(|mount| mount.moved(from, to));
            named.extend(moved.filter(|moved| !is_taken(moved)));
        }
    }
    for path in std::iter::once(real).chain(alias) {
        layers.extend(workspace_mounts(path, real, &named, host));
    }
    named.drain(..below.len());
    named.extend(layers);
    named
}

/// The workspace, seen at `path`, and each mount point below it once more:
/// podman's flags `nosuid` and `nodev` reach the top only. A mount of `below`
/// in the workspace was asked for by name, and decides on all that is in it.
fn workspace_mounts(path: &str, real: &str, below: &[Mount], host: &HostFacts) -> Vec<Mount> {
    let is_decided = |inside: &str| {
        let mut deeper = below.iter().filter(|mount| is_below(&mount.path, path));
        deeper.any(|mount| Path::new(inside).starts_with(&mount.path))
    };
    let submount = |point: &MountPoint| {
        let rest = Path::new(&point.path).strip_prefix(real).ok()?.to_str()?;
        let access = match point.read_only {
            true => Access::ReadOnly,
            false => Access::ReadWrite,
        };
        let inside = format!("{path}/{rest}");
        let is_ours = !rest.is_empty() && !is_decided(&inside);
        is_ours.then(|| Mount::bind(&inside, &point.path, access, Origin::WorkspaceSubmount))
    };
    let top = Mount::bind(path, real, Access::ReadWrite, Origin::Workspace);
    std::iter::once(top)
        .chain(host.mount_points.iter().filter_map(submount))
        .collect()
}

/// A base mount, and for a bind each mount point below its source once more:
/// podman's `ro` does not reach submounts, so each is covered by a read-only
/// bind of its own.
fn base_mounts(base: &BaseMount, host: &HostFacts) -> Vec<Mount> {
    match base {
        BaseMount::Tmpfs { path, size } => path
            .to_str()
            .map(|path| Mount::tmpfs(path, *size, Origin::Base))
            .into_iter()
            .collect(),
        BaseMount::Bind { path } => {
            let Some(path) = path.to_str() else {
                return Vec::new();
            };
            // The mount table knows real paths only.
            let Some(real) = host.real_binds.get(path) else {
                return Vec::new();
            };
            let top = Mount::bind(path, real, Access::ReadOnly, Origin::Base);
            let points = host.mount_points.iter().map(|point| point.path.as_str());
            let below = points.map(|point| {
                Mount::bind(point, point, Access::ReadOnly, Origin::Submount).moved(real, path)
            });
            std::iter::once(top).chain(below.flatten()).collect()
        }
    }
}

/// Whether `path` lies strictly below `parent`, by whole components.
pub(crate) fn is_below(path: &str, parent: &str) -> bool {
    path != parent && Path::new(path).starts_with(parent)
}

pub(crate) fn depth(path: &str) -> usize {
    Path::new(path).components().count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn point(path: &str) -> MountPoint {
        MountPoint {
            path: path.to_owned(),
            read_only: false,
        }
    }

    fn host(real_binds: &[(&str, &str)], points: &[&str]) -> HostFacts {
        let real_binds = real_binds.iter();
        HostFacts {
            real_binds: real_binds
                .map(|(path, real)| ((*path).to_owned(), (*real).to_owned()))
                .collect(),
            mount_points: points.iter().map(|path| point(path)).collect(),
            ..HostFacts::default()
        }
    }

    #[test]
    fn submounts_of_the_workspace_get_flags_of_their_own() {
        let mut read_only = point("/w/r");
        read_only.read_only = true;
        let host = HostFacts {
            mount_points: vec![point("/w"), point("/w/x/y"), read_only, point("/w2")],
            ..HostFacts::default()
        };
        let mounts = workspace_mounts("/alias", "/w", &[], &host);
        let below =
            |path, source, access| Mount::bind(path, source, access, Origin::WorkspaceSubmount);
        assert_eq!(
            mounts,
            [
                Mount::bind("/alias", "/w", Access::ReadWrite, Origin::Workspace),
                below("/alias/x/y", "/w/x/y", Access::ReadWrite),
                below("/alias/r", "/w/r", Access::ReadOnly),
            ]
        );
    }

    fn ro(path: &str) -> Mount {
        Mount::bind(path, path, Access::ReadOnly, Origin::Base)
    }

    fn rw(path: &str) -> Mount {
        Mount::bind(path, path, Access::ReadWrite, Origin::Workspace)
    }

    #[test]
    fn workspace_wins_over_a_base_mount_of_the_same_path() {
        let set = MountSet::merge(vec![rw("/home/u/p"), ro("/home/u/p")]);
        assert_eq!(set.iter().collect::<Vec<_>>(), [&rw("/home/u/p")]);
    }

    #[test]
    fn writable_workspace_under_a_read_only_parent() {
        let set = MountSet::merge(vec![
            rw("/home/u/dev/p"),
            ro("/home/u/dev"),
            Mount::tmpfs("/home/u", 1, Origin::Scratch),
        ]);
        assert!(set.covering("/home/u/dev/p/src").unwrap().is_writable());
        assert!(!set.covering("/home/u/dev/p2").unwrap().is_writable());
        assert!(set.covering("/home/u/.cache").unwrap().is_writable());
        assert!(set.covering("/etc").is_none());
    }

    #[test]
    fn submounts_of_a_read_only_bind_are_read_only_too() {
        let host = host(&[("/d", "/d")], &["/d/x", "/d2", "/d"]);
        let mounts = base_mounts(&BaseMount::Bind { path: "/d".into() }, &host);
        let submount = Mount::bind("/d/x", "/d/x", Access::ReadOnly, Origin::Submount);
        assert_eq!(mounts, [ro("/d"), submount]);
    }

    #[test]
    fn submounts_of_a_bind_behind_a_link_are_found_by_its_real_path() {
        let host = host(&[("/link", "/d")], &["/d/x", "/link/y"]);
        let mounts = base_mounts(
            &BaseMount::Bind {
                path: "/link".into(),
            },
            &host,
        );
        let bind = |path, source, origin| Mount::bind(path, source, Access::ReadOnly, origin);
        assert_eq!(
            mounts,
            [
                bind("/link", "/d", Origin::Base),
                bind("/link/x", "/d/x", Origin::Submount)
            ]
        );
    }

    #[test]
    fn missing_base_bind_is_left_out() {
        let bind = BaseMount::Bind { path: "/d".into() };
        assert!(base_mounts(&bind, &HostFacts::default()).is_empty());
    }

    /// The workspace `/w`, also called `/a`, over the given base mounts.
    fn over(base: &[Mount], host: &HostFacts) -> MountSet {
        let layers = workspace_layers("/w", Some("/a"), base, host);
        MountSet::merge(base.iter().cloned().chain(layers).collect())
    }

    #[test]
    fn mounts_in_the_workspace_hold_under_both_of_its_names() {
        let base = [
            ro("/w/lib"),
            Mount::tmpfs("/a/tmp", 1, Origin::Base),
            ro("/other"),
        ];
        let set = over(&base, &HostFacts::default());
        for path in ["/w/lib/x", "/a/lib/x"] {
            let MountKind::Bind { source, access } = &set.covering(path).unwrap().kind else {
                panic!("{path}");
            };
            assert_eq!((source.as_str(), *access), ("/w/lib", Access::ReadOnly));
        }
        for path in ["/w/tmp/x", "/a/tmp/x"] {
            let kind = &set.covering(path).unwrap().kind;
            assert!(matches!(kind, MountKind::Tmpfs { .. }), "{path}");
        }
        assert_eq!(set.iter().count(), 7);
        let named = [Mount::tmpfs("/a/lib", 1, Origin::Base), ro("/w/lib")];
        let set = over(&named, &HostFacts::default());
        assert_eq!(set.covering("/a/lib/x"), Some(&named[0]));
        assert_eq!(set.covering("/w/lib/x"), Some(&named[1]));
    }

    #[test]
    fn base_bind_in_the_workspace_stays_read_only_with_what_is_mounted_in_it() {
        let host = host(&[("/w/lib", "/w/lib")], &["/w/lib", "/w/lib/x", "/w/y"]);
        let base = base_mounts(
            &BaseMount::Bind {
                path: "/w/lib".into(),
            },
            &host,
        );
        let set = over(&base, &host);
        for path in ["/w/lib/z", "/w/lib/x/z", "/a/lib/z", "/a/lib/x/z"] {
            assert!(!set.covering(path).unwrap().is_writable(), "{path}");
        }
        for path in ["/w/y/z", "/a/y/z"] {
            assert!(set.covering(path).unwrap().is_writable(), "{path}");
        }
    }

    #[test]
    fn below_means_whole_components() {
        assert!(is_below("/a/b", "/a"));
        assert!(!is_below("/ab", "/a"));
        assert!(!is_below("/a", "/a"));
    }

    proptest! {
        /// Against the naive model: replay all layers in order of origin, last
        /// one for a path wins, and the longest matching path decides.
        #[test]
        fn merge_agrees_with_a_naive_model(
            picks in prop::collection::vec((0usize..6, prop::bool::ANY, 0usize..3), 0..12),
            probe in 0usize..6,
        ) {
            const PATHS: [&str; 6] = ["/a", "/a/b", "/a/b/c", "/ab", "/a/bc", "/d"];
            const ORIGINS: [Origin; 3] = [Origin::Scratch, Origin::Base, Origin::Workspace];
            let layers: Vec<Mount> = picks.iter().map(|(path, writable, origin)| {
                let access = if *writable { Access::ReadWrite } else { Access::ReadOnly };
                Mount::bind(PATHS[*path], "/s", access, ORIGINS[*origin])
            }).collect();
            let set = MountSet::merge(layers.clone());
            let order: Vec<usize> = set.iter().map(|m| depth(&m.path)).collect();
            prop_assert!(order.is_sorted());
            let probe = format!("{}/leaf", PATHS[probe]);
            let mut best: Option<&Mount> = None;
            for mount in &layers {
                if !Path::new(&probe).starts_with(&mount.path) { continue; }
                let better = match best {
                    None => true,
                    Some(b) => (depth(&mount.path), mount.origin) >= (depth(&b.path), b.origin),
                };
                if better { best = Some(mount); }
            }
            prop_assert_eq!(set.covering(&probe), best);
        }
    }
}
