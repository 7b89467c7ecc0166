//! npm: `registry` and `@scope:registry` of its configuration files and
//! variables, else what npm says of itself. A project's `.npmrc` never counts.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::registries::found::{Found, Trust};
use crate::registries::host::Host;

/// Keys of the settings that name a registry, with value and source.
type Values = BTreeMap<String, (String, String)>;

pub(super) fn resolve(host: &Host, found: &mut Found) {
    let values = load(host, found);
    for (key, (value, from)) in &values {
        if value.contains("${") {
            found.warn(format_args!(
                "a registry in {from} depends on a variable: add an [[egress.https]] rule for it"
            ));
            continue;
        }
        let url = found.add(value, from, Trust::Configured);
        if let Some(url) = url.filter(|_| key == "registry") {
            found.set("NPM_CONFIG_REGISTRY", url.to_string());
        }
    }
    if values.contains_key("registry") {
        return;
    }
    if found.is_incomplete() {
        found.unknown("a file of its configuration does not count");
        return;
    }
    // Neither may phone home while it is asked, nor leave a log each time.
    let quiet = [
        ("npm_config_update_notifier", "false"),
        ("npm_config_offline", "true"),
        ("npm_config_logs_max", "0"),
    ];
    match host.run("npm", &["config", "get", "registry"], &quiet) {
        Ok(printed) => match printed.lines().next() {
            Some(line) if line != "undefined" => {
                drop(found.add(line, "npm itself", Trust::BuiltIn))
            }
            _ => found.unknown("npm did not name its registry"),
        },
        Err(error) => found.unknown(&error.explain("npm")),
    }
}

fn load(host: &Host, found: &mut Found) -> Values {
    let mut values = Values::new();
    for path in files(host) {
        if let Some(text) = found.text_of(&path, host) {
            parse(&text, &format!("{path:?}"), &mut values);
        }
    }
    for (name, value) in &host.variables {
        let is_setting = name
            .get(..11)
            .is_some_and(|start| start.eq_ignore_ascii_case("npm_config_"));
        if let Some(key) = name.get(11..).filter(|_| is_setting) {
            insert(&key.to_ascii_lowercase(), value, name, &mut values);
        }
    }
    values
}

/// From the weakest to the strongest. Where npm's own prefix is depends on the
/// way it was installed; the places of the usual ones are looked at.
fn files(host: &Host) -> Vec<PathBuf> {
    let setting = |name: &str| {
        let lower = format!("npm_config_{name}");
        let upper = lower.to_ascii_uppercase();
        host.place(&lower).or_else(|| host.place(&upper))
    };
    let mut files = Vec::new();
    match setting("globalconfig") {
        Some(path) => files.push(path),
        None => {
            let usual = ["/etc/npmrc", "/usr/etc/npmrc", "/usr/local/etc/npmrc"];
            files.extend(usual.map(|path| host.system(path)));
            files.extend(setting("prefix").map(|prefix| prefix.join("etc/npmrc")));
        }
    }
    files.push(setting("userconfig").unwrap_or_else(|| host.home.join(".npmrc")));
    files
}

fn parse(text: &str, from: &str, values: &mut Values) {
    for line in text.lines().map(str::trim) {
        if line.starts_with(['#', ';', '[']) {
            continue;
        }
        if let Some((key, value)) = line.split_once('=') {
            let value = value.trim().trim_matches(['"', '\'']);
            insert(key.trim(), value, from, values);
        }
    }
}

fn insert(key: &str, value: &str, from: &str, values: &mut Values) {
    let is_scoped = key.starts_with('@') && key.ends_with(":registry");
    if (key == "registry" || is_scoped) && !value.is_empty() {
        values.insert(key.to_owned(), (value.to_owned(), from.to_owned()));
    }
}
