//! Configuration and host -> what a control plane with egress starts from.
//! Looks at the host, and changes nothing.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::config::egress::EgressConfig;
use crate::config::expect::Expectation;
use crate::config::{GrantMode, WorkspaceFile};
use crate::dirs::Dirs;
use crate::egress::EgressError;
use crate::egress::resolvers;
use crate::egress::state::InstallState;
use crate::error::Error;
use crate::nft::{oci, settings};
use crate::policy::egress::{EgressPolicy, HttpsRule};
use crate::policy::egress_rules;
use crate::registries;
use crate::workspace::{Names, Workspace};

/// Where the hook's file is, in the runtime directory of the sandbox.
pub(crate) const HOOKS_DIR: &str = "hooks.d";

#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) state: InstallState,
    base: EgressConfig,
    /// The workspace's part, as it counts now.
    pub(crate) workspace: EgressConfig,
    registry_rules: Vec<HttpsRule>,
    /// For commands inside, from the registries.
    pub(crate) variables: Vec<(&'static str, String)>,
    pub(crate) resolvers: Vec<IpAddr>,
    pub(crate) hooks_dirs: Vec<OsString>,
    pub(crate) policy: EgressPolicy,
    /// One line each.
    pub(crate) warnings: Vec<String>,
    sid: String,
}

impl Setup {
    /// Blocks while the tools of the host, in `search_path`, are asked for
    /// their registries.
    pub(crate) fn load(
        base: &EgressConfig,
        file: &WorkspaceFile,
        workspace: &Workspace,
        names: &Names,
        dirs: &Dirs,
        search_path: OsString,
    ) -> Result<Setup, Error> {
        let state = InstallState::load(dirs)?;
        let tools = egress_rules::registries(base, &file.egress);
        let writable = writable_grants(file);
        let resolved =
            registries::resolve(&tools, &dirs.home, workspace.path(), &writable, search_path);
        let resolvers = resolvers::of_host();
        let mut warnings = resolved.warnings;
        if resolvers.is_empty() {
            warnings.push(resolvers::NONE.to_owned());
        }
        let sid = workspace.sid().to_string();
        let policy = merge(&sid, base, &file.egress, &resolved.rules)?;
        Ok(Setup {
            state,
            base: base.clone(),
            workspace: file.egress.clone(),
            registry_rules: resolved.rules,
            variables: resolved.variables,
            resolvers,
            hooks_dirs: hooks_dirs(&names.runtime.join(HOOKS_DIR), dirs)?,
            policy,
            warnings,
            sid,
        })
    }

    /// Of both files.
    pub(crate) fn expectations(&self) -> Vec<Expectation> {
        egress_rules::expectations(&self.base, &self.workspace)
    }

    pub(crate) fn verify_at_start(&self) -> bool {
        egress_rules::verify_at_start(&self.base, &self.workspace)
    }

    /// The policy with another part of the workspace.
    pub(crate) fn merged(&self, changed: &EgressConfig) -> Result<EgressPolicy, EgressError> {
        merge(&self.sid, &self.base, changed, &self.registry_rules)
    }
}

fn merge(
    sid: &str,
    base: &EgressConfig,
    workspace: &EgressConfig,
    registries: &[HttpsRule],
) -> Result<EgressPolicy, EgressError> {
    Ok(egress_rules::merge(
        sid,
        base,
        workspace,
        registries.to_vec(),
    )?)
}

/// Places that the agent can write beside the workspace.
pub(crate) fn writable_grants(file: &WorkspaceFile) -> Vec<PathBuf> {
    let writable = file
        .grants
        .iter()
        .filter(|grant| grant.mode == GrantMode::Rw);
    writable.map(|grant| grant.path.clone()).collect()
}

fn hooks_dirs(own: &Path, dirs: &Dirs) -> Result<Vec<OsString>, Error> {
    let only = std::env::var_os("CONTAINERS_CONF");
    // Beside umwelt's own, as podman finds it.
    let config_home = dirs.config.parent().unwrap_or(&dirs.config);
    let texts = settings::load(config_home, only)?;
    Ok(oci::hooks_dir_args(own, texts.iter().map(String::as_str))?)
}

#[cfg(test)]
impl Setup {
    /// For the workspace file `text`, on a host where all is there.
    pub(crate) fn for_test(text: &str) -> Setup {
        let own = crate::config::egress::testing::read_workspace(text).unwrap();
        let base = EgressConfig::default();
        let place = Path::new("/d/egress");
        Setup {
            policy: merge("0123abcd", &base, &own, &[]).unwrap(),
            state: InstallState {
                ca_cert: place.join("ca.pem"),
                ca_key: place.join("ca.key"),
                bundle: place.join("bundle.pem"),
                roots: place.join("roots.pem"),
                nft: "/usr/sbin/nft".into(),
            },
            base,
            workspace: own,
            registry_rules: Vec::new(),
            variables: Vec::new(),
            resolvers: Vec::new(),
            hooks_dirs: Vec::new(),
            warnings: Vec::new(),
            sid: "0123abcd".to_owned(),
        }
    }
}
