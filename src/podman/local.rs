//! Is this podman local? A remote one would run the sandbox on another
//! machine, where none of the promises can be checked.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Why podman is not a local one, and where that is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) reason: String,
    pub(crate) fix: String,
}

/// Looks at the environment and at the files that podman reads.
pub(crate) fn find_remote(
    home: &Path,
    lookup: impl Fn(&str) -> Option<OsString>,
) -> Option<Remote> {
    for name in [
        "CONTAINER_HOST",
        "CONTAINER_CONNECTION",
        "PODMAN_CONNECTIONS_CONF",
    ] {
        if lookup(name).is_some_and(|value| !value.is_empty()) {
            return Some(Remote {
                reason: format!("{name} is set"),
                fix: format!("unset {name}"),
            });
        }
    }
    let config = lookup("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .unwrap_or_else(|| home.join(".config"))
        .join("containers");
    let connections = config.join("podman-connections.json");
    if let Some(name) = read_file(&connections).and_then(|text| default_connection(&text)) {
        return Some(Remote {
            reason: format!("{connections:?} names the default connection {name:?}"),
            fix: format!("podman system connection remove '{name}'"),
        });
    }
    let files = match lookup("CONTAINERS_CONF") {
        Some(only) => vec![PathBuf::from(only)],
        None => containers_conf_files(&config),
    };
    files.into_iter().find_map(|file| {
        let text = read_file(&file)?;
        let key = remote_key(&text)?;
        Some(Remote {
            reason: format!("{file:?} sets [engine] {key}"),
            fix: format!("remove {key} from {}", file.display()),
        })
    })
}

/// The start of a regular file; a device or a FIFO would never end.
fn read_file(path: &Path) -> Option<String> {
    const LIMIT: u64 = 1 << 20;
    if !std::fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    let file = std::fs::File::open(path).ok()?;
    file.take(LIMIT).read_to_string(&mut text).ok()?;
    Some(text)
}

/// All files of containers.conf(5); a later one cannot make a remote podman
/// of an earlier one local for us, so the order does not matter.
fn containers_conf_files(config: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for dir in [
        Path::new("/usr/share/containers"),
        Path::new("/etc/containers"),
        config,
    ] {
        files.push(dir.join("containers.conf"));
        for sub in ["containers.conf.d", "containers.rootless.conf.d"] {
            if let Ok(entries) = std::fs::read_dir(dir.join(sub)) {
                files.extend(entries.flatten().map(|entry| entry.path()));
            }
        }
    }
    files
}

/// The key of a containers.conf that makes podman a remote client.
fn remote_key(text: &str) -> Option<&'static str> {
    let table: toml::Table = text.parse().ok()?;
    let engine = table.get("engine")?.as_table()?;
    if engine.get("remote").and_then(toml::Value::as_bool) == Some(true) {
        return Some("remote");
    }
    let service = engine.get("active_service").and_then(toml::Value::as_str);
    service
        .is_some_and(|service| !service.is_empty())
        .then_some("active_service")
}

/// The default connection in podman-connections.json, if one is set.
fn default_connection(text: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    let name = value.get("Connection")?.get("Default")?.as_str()?;
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_variables_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let remote = find_remote(dir.path(), |name| {
            (name == "CONTAINER_HOST").then(|| "ssh://x".into())
        });
        assert_eq!(remote.unwrap().reason, "CONTAINER_HOST is set");
    }

    #[test]
    fn default_connection_and_engine_keys_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join(".config/containers");
        std::fs::create_dir_all(&config).unwrap();
        let only = config.join("only.conf");
        let lookup =
            |name: &str| (name == "CONTAINERS_CONF").then(|| only.clone().into_os_string());
        assert_eq!(find_remote(dir.path(), lookup), None);
        std::fs::write(&only, "[engine]\nremote = true\n").unwrap();
        assert!(
            find_remote(dir.path(), lookup)
                .unwrap()
                .reason
                .contains("remote")
        );
        std::fs::write(&only, "[engine]\ncgroup_manager = 'systemd'\n").unwrap();
        assert_eq!(find_remote(dir.path(), lookup), None);
        std::fs::write(
            config.join("podman-connections.json"),
            r#"{"Connection":{"Default":"box"}}"#,
        )
        .unwrap();
        assert!(
            find_remote(dir.path(), lookup)
                .unwrap()
                .reason
                .contains("box")
        );
    }

    #[test]
    fn connections_without_a_default_are_fine() {
        assert_eq!(
            default_connection(r#"{"Connection":{"Connections":{}}}"#),
            None
        );
        assert_eq!(default_connection("{"), None);
    }
}
