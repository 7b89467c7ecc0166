//! Configuration, grants, and the host as it is now -> the mounts of the next
//! container, and what their sources must still be.

use std::collections::BTreeMap;
use std::path::Path;

use crate::config::Config;
use crate::dirs::Dirs;
use crate::error::Error;
use crate::policy::grants::GrantSet;
use crate::policy::mounts::{Access, HostFacts, INIT_PATH, Mount, MountSet, OUTPUT_PATH, Origin};
use crate::run::control_plane::Context;
use crate::run::worktree::Finder;
use crate::run::{masks, mount_entry, preflight};
use crate::workspace::{FileId, Names, Workspace};

/// Sources of binds by path, as they were when they were allowed.
pub(crate) type Sources = BTreeMap<String, FileId>;

/// What a container is created with.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) mounts: MountSet,
    pub(crate) sources: Sources,
}

/// What the mounts of a container follow from.
pub(crate) struct Ground<'a> {
    pub(crate) config: &'a Config,
    pub(crate) dirs: &'a Dirs,
    pub(crate) workspace: &'a Workspace,
    pub(crate) names: &'a Names,
    pub(crate) exe: &'a Path,
    pub(crate) host: &'a HostFacts,
    pub(crate) network_mounts: &'a [Mount],
    pub(crate) sources: &'a Sources,
}

impl Ground<'_> {
    /// The host may have changed since the last container: mount points, and
    /// what the masks mean. A cover without anything below would be made on
    /// the host.
    pub(crate) fn plan(&self, grants: &GrantSet) -> Result<Plan, Error> {
        let mut host = self.host.clone();
        host.mount_points = preflight::mount_points()?;
        let asked = MountSet::from_config(self.config, self.workspace, &host, grants);
        let own = own_mounts(self.exe, self.names);
        let finder = Finder::new(self.workspace, self.config, self.dirs);
        let git = finder.find(&self.config.masks, &host.mount_points);
        let own = own.into_iter().chain(self.network_mounts.iter().cloned());
        let mounts = asked.iter().cloned().chain(git.mounts).chain(own);
        let mounts = MountSet::merge(mounts.collect());
        let facts = masks::find(&self.config.masks, &mounts)?;
        let mounts = mounts.with_masks(&facts);
        let submounts = mounts.iter().filter(|mount| mount.is_submount());
        let mut sources = recorded_sources(submounts.filter_map(Mount::source));
        sources.extend(self.sources.iter().map(|(path, id)| (path.clone(), *id)));
        sources.extend(grants.iter().map(|grant| (grant.path.clone(), grant.id)));
        sources.extend(git.sources);
        // Last: no grant says what the workspace is.
        sources.insert(self.workspace.as_str().to_owned(), self.workspace.id());
        Ok(Plan { mounts, sources })
    }
}

impl Context {
    pub(crate) fn plan(&self, grants: &GrantSet) -> Result<Plan, Error> {
        let ground = Ground {
            config: &self.config,
            dirs: &self.dirs,
            workspace: &self.workspace,
            names: &self.names,
            exe: &self.exe,
            host: &self.host,
            network_mounts: &self.network_mounts,
            sources: &self.sources,
        };
        ground.plan(grants)
    }

    /// What the container has, and what clients are told of it.
    pub(crate) fn set_mounts(&mut self, mounts: MountSet) {
        self.list.mounts = mounts.iter().map(mount_entry).collect();
        let writable = mounts.iter().filter(|mount| mount.is_writable());
        let sources = writable.filter_map(Mount::source).map(str::to_owned);
        self.was_writable.extend(sources);
        self.spec.mounts = mounts;
    }
}

/// What the sources are now. One that cannot be looked at is left to podman,
/// which says why it cannot be mounted.
pub(crate) fn recorded_sources<'a>(sources: impl Iterator<Item = &'a str>) -> Sources {
    let found = sources.filter_map(|source| {
        let metadata = std::fs::metadata(source).ok()?;
        Some((source.to_owned(), FileId::from_metadata(&metadata)))
    });
    found.collect()
}

/// What the sandbox itself stands on; nothing of it can be written inside.
fn own_mounts(exe: &Path, names: &Names) -> Vec<Mount> {
    let bind = |path: &str, source: &Path| {
        let source = source.to_string_lossy();
        Mount::bind(path, &source, Access::ReadOnly, Origin::Umwelt)
    };
    vec![
        bind(INIT_PATH, exe),
        bind(OUTPUT_PATH, &names.state.join("output")),
        bind("/etc/hosts", &names.runtime.join("hosts")),
    ]
}
