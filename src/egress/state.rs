//! What umwelt-install has left in `$XDG_DATA_HOME/umwelt`: `install.json`, and
//! authority and roots in `egress`.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::dirs::Dirs;
use crate::egress::EgressError;

/// Of install.json; another one means that it was made for another version.
pub(crate) const SCHEMA: u32 = 1;

/// An installation that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InstallState {
    pub(crate) ca_cert: PathBuf,
    pub(crate) ca_key: PathBuf,
    /// The roots of the host, and our authority: what sandboxes trust.
    pub(crate) bundle: PathBuf,
    /// Those of the host alone: what the gateway trusts.
    pub(crate) roots: PathBuf,
    /// Where the hook finds nft.
    pub(crate) nft: PathBuf,
}

/// As far as it matters here.
#[derive(Deserialize)]
struct Recorded {
    schema: u32,
    nft: Option<PathBuf>,
}

impl InstallState {
    pub(crate) fn load(dirs: &Dirs) -> Result<InstallState, EgressError> {
        let place = dirs.data.join("egress");
        let [ca_cert, ca_key, bundle, roots] =
            ["ca.pem", "ca.key", "bundle.pem", "roots.pem"].map(|name| place.join(name));
        let record = dirs.data.join("install.json");
        let Some(nft) = read(&record)?.nft else {
            return unfit(
                &record,
                "names no nft: install nftables, then run the command below",
            );
        };
        for path in [&ca_cert, &ca_key, &bundle, &roots] {
            check_ours(path)?;
        }
        check_private(&ca_key)?;
        check_program(&nft)?;
        Ok(InstallState {
            ca_cert,
            ca_key,
            bundle,
            roots,
            nft,
        })
    }
}

fn unfit<T>(what: &Path, why: impl Into<String>) -> Result<T, EgressError> {
    Err(EgressError::NotInstalled {
        what: what.to_owned(),
        why: why.into(),
    })
}

fn read(path: &Path) -> Result<Recorded, EgressError> {
    check_ours(path)?;
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => return unfit(path, format!("cannot be read: {error}")),
    };
    // First the schema: the rest may have changed with it.
    let value = match serde_json::from_str::<serde_json::Value>(&text) {
        Ok(value) => value,
        Err(error) => return unfit(path, format!("is not understood: {error}")),
    };
    let recorded: Recorded = match serde_json::from_value(value) {
        Ok(recorded) => recorded,
        Err(error) => return unfit(path, format!("is not understood: {error}")),
    };
    match recorded.schema {
        SCHEMA => Ok(recorded),
        other => unfit(
            path,
            format!("is of another version: schema {other}, not {SCHEMA}"),
        ),
    }
}

/// A regular file that nobody else can write.
fn check_ours(path: &Path) -> Result<(), EgressError> {
    let metadata = match path.symlink_metadata() {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return unfit(path, "does not exist");
        }
        Err(error) => return unfit(path, format!("cannot be looked at: {error}")),
    };
    if !metadata.is_file() {
        return unfit(path, "is not a regular file");
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return unfit(path, format!("belongs to uid {}", metadata.uid()));
    }
    match metadata.mode() & 0o022 {
        0 => Ok(()),
        _ => unfit(path, "can be written by others"),
    }
}

fn check_private(path: &Path) -> Result<(), EgressError> {
    match path.symlink_metadata() {
        Ok(metadata) if metadata.mode() & 0o077 == 0 => Ok(()),
        _ => unfit(path, "is open to others"),
    }
}

fn check_program(path: &Path) -> Result<(), EgressError> {
    if !path.is_absolute() {
        return unfit(path, "is no absolute path, but is recorded for nft");
    }
    match path.metadata() {
        Ok(found) if found.is_file() && found.permissions().mode() & 0o111 != 0 => Ok(()),
        Ok(_) => unfit(path, "is no program, but is recorded for nft"),
        Err(error) => unfit(path, format!("is recorded for nft: {error}")),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions, write};

    pub(crate) fn dirs(root: &Path) -> Dirs {
        Dirs {
            home: root.to_owned(),
            config: root.join("config"),
            data: root.join("data"),
            state: root.join("state"),
            runtime: root.join("run"),
        }
    }

    fn install(root: &Path) -> PathBuf {
        let place = root.join("data/egress");
        std::fs::create_dir_all(&place).unwrap();
        for name in ["ca.pem", "ca.key", "bundle.pem", "roots.pem"] {
            write(place.join(name), "x").unwrap();
        }
        set_permissions(place.join("ca.key"), Permissions::from_mode(0o600)).unwrap();
        record(&place, 1, "/bin/sh");
        place
    }

    fn record(place: &Path, schema: u32, nft: &str) {
        let text = serde_json::json!({"schema": schema, "nft": nft, "version": "0.1.0"});
        write(place.join("../install.json"), text.to_string()).unwrap();
    }

    fn refusal(root: &Path) -> String {
        let error = InstallState::load(&dirs(root)).unwrap_err();
        assert!(error.hint().unwrap().contains("umwelt-install install"));
        error.to_string()
    }

    #[test]
    fn complete_installation_is_used() {
        let temp = tempfile::tempdir().unwrap();
        let place = install(temp.path());
        let state = InstallState::load(&dirs(temp.path())).unwrap();
        assert_eq!(state.ca_key, place.join("ca.key"));
        assert_eq!(state.nft, Path::new("/bin/sh"));
    }

    #[test]
    fn whatever_is_missing_is_named_with_the_command() {
        for name in [
            "egress/ca.pem",
            "egress/ca.key",
            "egress/bundle.pem",
            "egress/roots.pem",
            "install.json",
        ] {
            let temp = tempfile::tempdir().unwrap();
            install(temp.path());
            let path = temp.path().join("data").join(name);
            std::fs::remove_file(&path).unwrap();
            let said = refusal(temp.path());
            assert_eq!(
                said,
                format!("egress is not installed: {path:?} does not exist")
            );
            std::fs::create_dir(&path).unwrap();
            assert!(refusal(temp.path()).contains("not a regular file"));
        }
    }

    #[test]
    fn key_that_others_can_read_and_files_that_they_can_write_are_refused() {
        let temp = tempfile::tempdir().unwrap();
        let place = install(temp.path());
        set_permissions(place.join("ca.key"), Permissions::from_mode(0o640)).unwrap();
        assert!(refusal(temp.path()).contains("is open to others"));
        set_permissions(place.join("ca.key"), Permissions::from_mode(0o600)).unwrap();
        set_permissions(place.join("bundle.pem"), Permissions::from_mode(0o662)).unwrap();
        assert!(refusal(temp.path()).contains("can be written by others"));
    }

    #[test]
    fn record_of_another_version_and_nft_that_is_gone_are_refused() {
        let temp = tempfile::tempdir().unwrap();
        let place = install(temp.path());
        record(&place, 2, "/bin/sh");
        assert!(refusal(temp.path()).contains("schema 2, not 1"));
        record(&place, 1, "/no/such/nft");
        assert!(refusal(temp.path()).contains("is recorded for nft"));
        record(&place, 1, "nft");
        assert!(refusal(temp.path()).contains("no absolute path"));
        record(&place, 1, "/etc/passwd");
        assert!(refusal(temp.path()).contains("is no program"));
        for (text, said) in [
            ("", "is not understood"),
            ("{", "is not understood"),
            ("{}", "is not understood"),
            ("{\"schema\": 1}", "names no nft"),
        ] {
            write(place.join("../install.json"), text).unwrap();
            assert!(refusal(temp.path()).contains(said), "{text}");
        }
    }
}
