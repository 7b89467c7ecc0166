//! A user of its own for each test: HOME, the XDG places, a workspace.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};
use tempfile::TempDir;

pub(crate) struct Home {
    base: PathBuf,
    _dir: TempDir,
}

impl Home {
    pub(crate) fn new() -> Home {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        for name in [
            "home",
            "run",
            "project",
            "config/umwelt",
            "data",
            "state",
            "bin",
        ] {
            std::fs::create_dir_all(base.join(name)).unwrap();
        }
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(base.join("run"), private).unwrap();
        Home { base, _dir: dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.base.join(name)
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.path("project")
    }

    /// The base config.
    pub(crate) fn write_config(&self, text: &str) {
        std::fs::write(self.path("config/umwelt/umwelt.toml"), text).unwrap();
    }

    /// Where the control plane of `workspace` listens.
    pub(crate) fn socket(&self, workspace: &Path) -> PathBuf {
        let digest = Sha256::digest(workspace.to_str().unwrap().as_bytes());
        let sid: String = digest
            .iter()
            .take(4)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        self.path("run").join(format!("umwelt-{sid}.sock"))
    }

    /// The binary under one of its names, started in the workspace. There is
    /// no podman on its PATH.
    pub(crate) fn command(&self, applet: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_umwelt"));
        command
            .arg0(applet)
            .env_clear()
            .env("PATH", self.path("bin"))
            .env("HOME", self.path("home"))
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("XDG_DATA_HOME", self.path("data"))
            .env("XDG_STATE_HOME", self.path("state"))
            .current_dir(self.workspace());
        command
    }
}
