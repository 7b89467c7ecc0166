//! Containers and networks that carry our labels, as podman knows them.

use std::ffi::{OsStr, OsString};
use std::io;
use std::time::Duration;

use serde::Deserialize;

use crate::ctl::CtlError;
use crate::podman;
use crate::podman::argv::{LABEL_PREFIX, LABEL_SID, LABEL_WORKSPACE};
use crate::subprocess::{self, Limits};
use crate::workspace::SessionId;

/// podman can wait for a lock of its own for ever.
const LIMITS: Limits = Limits {
    time: Duration::from_secs(20),
    bytes: 64 << 20,
};

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Container {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) sid: SessionId,
    pub(crate) workspace: Option<String>,
}

/// What podman says of a container; it adds fields as it likes.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    id: String,
    #[serde(default)]
    names: Option<Vec<String>>,
    #[serde(default)]
    labels: Option<std::collections::BTreeMap<String, String>>,
}

/// All containers with our prefix, running or not.
pub(crate) fn find_all(prefix: &str) -> Result<Vec<Container>, CtlError> {
    let filter = format!("--filter=label={LABEL_PREFIX}={prefix}");
    let args = ["ps", "--all", "--no-trunc", &filter, "--format=json"];
    let output = call(&args.map(OsString::from))?;
    parse(&output, Some(prefix))
}

/// Of every prefix: the configuration may have named another one before.
pub(crate) fn find_of_all_prefixes() -> Result<Vec<Container>, CtlError> {
    let filter = format!("--filter=label={LABEL_PREFIX}");
    let args = ["ps", "--all", "--no-trunc", &filter, "--format=json"];
    let output = call(&args.map(OsString::from))?;
    parse(&output, None)
}

pub(super) fn find(prefix: &str, sid: &SessionId) -> Result<Vec<Container>, CtlError> {
    let mut found = find_all(prefix)?;
    found.retain(|container| container.sid == *sid);
    Ok(found)
}

/// Removes by id: the name may belong to a new container by now.
pub(super) fn remove(container: &Container) -> Result<(), CtlError> {
    call(&podman::remove_args(std::slice::from_ref(&container.id))).map(drop)
}

/// A network of a sandbox, which outlives a control plane that was killed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) name: String,
    pub(crate) sid: SessionId,
}

/// What podman says of a network.
#[derive(Deserialize)]
struct NetworkEntry {
    name: String,
    #[serde(default)]
    labels: Option<std::collections::BTreeMap<String, String>>,
}

/// All networks with our prefix.
pub(crate) fn find_all_networks(prefix: &str) -> Result<Vec<Network>, CtlError> {
    let filter = format!("--filter=label={LABEL_PREFIX}={prefix}");
    let args = ["network", "ls", &filter, "--format=json"];
    let output = call(&args.map(OsString::from))?;
    parse_networks(&output, prefix)
}

pub(super) fn find_networks(prefix: &str, sid: &SessionId) -> Result<Vec<Network>, CtlError> {
    let mut found = find_all_networks(prefix)?;
    found.retain(|network| network.sid == *sid);
    Ok(found)
}

/// Not by force, which would remove containers that are on it.
pub(super) fn remove_network(network: &Network) -> Result<(), CtlError> {
    call(&["network", "rm", &network.name].map(OsString::from)).map(drop)
}

fn parse_networks(json: &[u8], prefix: &str) -> Result<Vec<Network>, CtlError> {
    let entries: Vec<NetworkEntry> = entries(json, "podman network ls")?;
    let ours = entries.into_iter().filter_map(|entry| {
        let labels = entry.labels?;
        if labels.get(LABEL_PREFIX)? != prefix {
            return None;
        }
        let sid = SessionId::parse(labels.get(LABEL_SID)?)?;
        let is_name = entry.name.starts_with(|c: char| c.is_ascii_alphanumeric());
        is_name.then_some(Network {
            name: entry.name,
            sid,
        })
    });
    Ok(ours.collect())
}

fn entries<T: serde::de::DeserializeOwned>(json: &[u8], call: &str) -> Result<Vec<T>, CtlError> {
    let json = json.trim_ascii();
    if json.is_empty() {
        return Ok(Vec::new());
    }
    serde_json::from_slice(json).map_err(|error| CtlError::Podman {
        call: call.to_owned(),
        problem: format!("cannot read its answer: {error}"),
    })
}

/// Only what carries both labels is ours; the filter is not taken on trust.
fn parse(json: &[u8], prefix: Option<&str>) -> Result<Vec<Container>, CtlError> {
    let entries: Vec<Entry> = entries(json, "podman ps")?;
    Ok(entries
        .into_iter()
        .filter_map(|entry| from_entry(entry, prefix))
        .collect())
}

fn from_entry(entry: Entry, prefix: Option<&str>) -> Option<Container> {
    let labels = entry.labels?;
    let its_own = labels.get(LABEL_PREFIX)?;
    if prefix.is_some_and(|prefix| prefix != its_own) {
        return None;
    }
    let sid = SessionId::parse(labels.get(LABEL_SID)?)?;
    let is_id = entry.id.len() >= 12 && entry.id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| Container {
        name: entry
            .names
            .and_then(|names| names.into_iter().next())
            .unwrap_or_else(|| entry.id.clone()),
        id: entry.id,
        sid,
        workspace: labels.get(LABEL_WORKSPACE).cloned(),
    })
}

/// Runs podman and returns what it printed.
fn call(args: &[OsString]) -> Result<Vec<u8>, CtlError> {
    let failed = |problem: String| CtlError::Podman {
        call: format!("podman {}", args.join(OsStr::new(" ")).display()),
        problem,
    };
    let mut command = podman::command(&podman::trusted_search_path(), args);
    match subprocess::run(&mut command, LIMITS) {
        Ok(said) if said.status.success() => Ok(said.stdout),
        Ok(said) => Err(failed(said.problem())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(CtlError::NoPodman),
        Err(error) => Err(failed(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn found(labels: &str) -> usize {
        let json = format!(r#"[{{"Id":"{ID}","Names":["n"],"Labels":{labels},"Pid":0}}]"#);
        parse(json.as_bytes(), Some("umwelt")).unwrap().len()
    }

    #[test]
    fn only_containers_with_both_labels_are_ours() {
        assert_eq!(
            found(r#"{"umwelt.prefix":"umwelt","umwelt.sid":"deadbeef"}"#),
            1
        );
        for labels in [
            "null",
            "{}",
            r#"{"umwelt.prefix":"umwelt"}"#,
            r#"{"umwelt.sid":"deadbeef"}"#,
            r#"{"umwelt.prefix":"other","umwelt.sid":"deadbeef"}"#,
            r#"{"umwelt.prefix":"umwelt","umwelt.sid":"../x"}"#,
        ] {
            assert_eq!(found(labels), 0, "{labels}");
        }
    }

    #[test]
    fn an_id_that_could_be_an_option_is_passed_over() {
        let json =
            r#"[{"Id":"--all","Labels":{"umwelt.prefix":"umwelt","umwelt.sid":"deadbeef"}}]"#;
        assert_eq!(parse(json.as_bytes(), Some("umwelt")).unwrap(), []);
    }

    #[test]
    fn no_containers_can_be_nothing_or_an_empty_list() {
        for json in ["", "\n", "[]", "[]\n"] {
            assert_eq!(parse(json.as_bytes(), Some("umwelt")).unwrap(), []);
        }
        assert!(parse(b"Error: x", Some("umwelt")).is_err());
    }

    #[test]
    fn only_networks_with_both_labels_are_ours() {
        let found = |name: &str, labels: &str| {
            let json =
                format!(r#"[{{"name":"{name}","id":"x","labels":{labels},"internal":true}}]"#);
            parse_networks(json.as_bytes(), "umwelt").unwrap().len()
        };
        let ours = r#"{"umwelt.prefix":"umwelt","umwelt.sid":"deadbeef"}"#;
        assert_eq!(found("umwelt-egress-deadbeef", ours), 1);
        assert_eq!(found("--force", ours), 0);
        for labels in [
            "null",
            "{}",
            r#"{"umwelt.prefix":"umwelt"}"#,
            r#"{"umwelt.prefix":"other","umwelt.sid":"deadbeef"}"#,
            r#"{"umwelt.prefix":"umwelt","umwelt.sid":"x"}"#,
        ] {
            assert_eq!(found("umwelt-egress-deadbeef", labels), 0, "{labels}");
        }
        assert_eq!(parse_networks(b"\n", "umwelt").unwrap(), []);
    }
}
