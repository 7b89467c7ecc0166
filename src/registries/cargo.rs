//! cargo: registries and source replacement of its configuration, else the
//! index that is built in, which is known by the cache that it left.
//!
//! An index names the host of the crates in its `config.json`, which cargo
//! keeps in that cache too.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::policy::egress::PathPattern;
use crate::policy::url::Url;
use crate::registries::found::{Found, Trust};
use crate::registries::host::Host;

/// The hash in the name of the cache of the built-in index: since cargo 1.85,
/// and before. It is computed from the URL of the index.
const BUILT_IN: [&str; 2] = ["1949cf8c6b5b557f", "6f17d22bba15001f"];

/// Directories of the index cache, by host and hash.
type Caches = BTreeMap<(String, String), PathBuf>;

/// The source that is used where nothing else is asked for.
const DEFAULT: &str = "crates-io";

/// Longest chain of replaced sources.
const MAX_CHAIN: usize = 16;

pub(super) fn resolve(host: &Host, found: &mut Found) {
    let home = host.place("CARGO_HOME");
    let home = home.unwrap_or_else(|| host.home.join(".cargo"));
    let config = load(host, &home, found);
    let caches = caches(host, &home);
    let mut indexes: Vec<(String, String)> = Vec::new();
    for (table, from) in &config {
        for (_, registry) in tables(table, "registries") {
            indexes.extend(text(registry, "index").map(|url| (url, from.clone())));
        }
    }
    for (name, value) in &host.variables {
        if name.starts_with("CARGO_REGISTRIES_") && name.ends_with("_INDEX") {
            indexes.push((value.clone(), name.clone()));
        }
    }
    match replacement(&config) {
        Replacement::None if found.is_incomplete() => {
            found.unknown("a file of its configuration does not count");
        }
        Replacement::None => add_built_in(host, &caches, found),
        Replacement::Index(url, from) => indexes.push((url, from)),
        Replacement::Local => {}
        Replacement::Unknown(from) => {
            found.unknown(&format!(
                "the source that {from} names is not defined there"
            ));
        }
    }
    for (url, from) in indexes {
        add_index(host, &caches, &url, &from, found);
    }
}

/// The configuration files that hold for all projects, each with its name.
fn load(host: &Host, home: &Path, found: &mut Found) -> Vec<(Table, String)> {
    let mut dirs = vec![home.to_owned(), host.home.join(".cargo")];
    dirs.dedup();
    let mut config = Vec::new();
    for dir in dirs {
        // cargo takes the old name where both are there.
        for name in ["config", "config.toml"] {
            let path = dir.join(name);
            let Some(text) = found.text_of(&path, host) else {
                continue;
            };
            match text.parse::<Table>() {
                Ok(table) => config.push((table, format!("{path:?}"))),
                // Its message could show a line with a token.
                Err(_) => found.not_read(&format!("{path:?} is not TOML")),
            }
            break;
        }
    }
    config
}

fn tables<'a>(table: &'a Table, key: &str) -> impl Iterator<Item = (&'a String, &'a Table)> {
    let table = table.get(key).and_then(Value::as_table);
    let entries = table.into_iter().flatten();
    entries.filter_map(|(name, value)| Some((name, value.as_table()?)))
}

fn text(table: &Table, key: &str) -> Option<String> {
    table.get(key).and_then(Value::as_str).map(str::to_owned)
}

/// What stands in for the default source.
enum Replacement {
    None,
    Index(String, String),
    /// A directory of this host.
    Local,
    Unknown(String),
}

fn replacement(config: &[(Table, String)]) -> Replacement {
    let named = |name: &str| {
        let mut all = config.iter().flat_map(|(table, from)| {
            let sources = tables(table, "source");
            let all = sources.chain(tables(table, "registries"));
            all.map(move |(name, source)| (name, source, from))
        });
        all.find(|(other, ..)| *other == name)
    };
    let mut name = DEFAULT.to_owned();
    let mut last = None;
    for _ in 0..MAX_CHAIN {
        let Some((_, source, from)) = named(&name) else {
            break;
        };
        match text(source, "replace-with") {
            Some(next) => name = next,
            None => {
                last = Some((source, from));
                break;
            }
        }
    }
    if name == DEFAULT {
        return Replacement::None;
    }
    let Some((source, from)) = last else {
        let from = config.last().map(|(_, from)| from.clone());
        return Replacement::Unknown(from.unwrap_or_default());
    };
    let local = ["directory", "local-registry"];
    if local.iter().any(|key| source.contains_key(*key)) {
        return Replacement::Local;
    }
    let url = ["registry", "index", "git"].into_iter();
    match url.filter_map(|key| text(source, key)).next() {
        Some(url) => Replacement::Index(url, from.clone()),
        None => Replacement::Unknown(from.clone()),
    }
}

fn caches(host: &Host, home: &Path) -> Caches {
    let paths = host.list(&home.join("registry/index")).into_iter();
    let named = paths.filter_map(|path| {
        let (host, hash) = path.file_name()?.to_str()?.rsplit_once('-')?;
        Some(((host.to_owned(), hash.to_owned()), path))
    });
    named.collect()
}

fn add_built_in(host: &Host, caches: &Caches, found: &mut Found) {
    let mut is_known = false;
    for ((name, hash), path) in caches {
        if BUILT_IN.contains(&hash.as_str()) {
            is_known |= add_downloads(host, path, Trust::BuiltIn, found);
            found.add(&format!("https://{name}"), "cargo's cache", Trust::BuiltIn);
        }
    }
    if !is_known {
        found.unknown("nothing is configured and cargo has not fetched anything on this host yet");
    }
}

fn add_index(host: &Host, caches: &Caches, text: &str, from: &str, found: &mut Found) {
    let url = match text.strip_prefix("sparse+") {
        Some(url) => found.add(url, from, Trust::Configured),
        None => add_git_index(text, from, found),
    };
    let Some(url) = url else { return };
    let of_host = caches
        .iter()
        .filter(|((name, _), _)| *name == url.host.to_string());
    let mut is_known = false;
    for (_, path) in of_host {
        is_known |= add_downloads(host, path, Trust::Configured, found);
    }
    if !is_known {
        found.warn(format_args!(
            "the host of the crates of \"{url}\" is not known on this host: where it is another one, the refusal of the gateway names it"
        ));
    }
}

/// A clone or fetch over https, and no push.
fn add_git_index(text: &str, from: &str, found: &mut Found) -> Option<Url> {
    let url = found.usable(text, from)?;
    let base = url.path.trim_end_matches('/');
    let paths: Result<Vec<PathPattern>, String> = ["info/refs", "git-upload-pack"]
        .into_iter()
        .map(|end| format!("{base}/{end}").parse())
        .collect();
    match paths {
        Ok(paths) => found.add_paths(&url, paths, &["GET", "HEAD", "POST"], Trust::Configured),
        Err(_) => found.warn(format_args!(
            "the path of \"{url}\" in {from} cannot be put into a rule: add an [[egress.https]] rule for the host"
        )),
    }
    Some(url)
}

/// The place of the crates, from the `config.json` of a cached index.
fn add_downloads(host: &Host, cache: &Path, trust: Trust, found: &mut Found) -> bool {
    let path = cache.join("config.json");
    let Some(text) = found.text_of(&path, host) else {
        return false;
    };
    let config: Option<serde_json::Value> = serde_json::from_str(&text).ok();
    let Some(url) = config
        .as_ref()
        .and_then(|config| config.get("dl")?.as_str())
    else {
        return false;
    };
    // What follows depends on the crate.
    let url = match url.split_once('{') {
        Some((before, _)) => before.rsplit_once('/').map_or(before, |(above, _)| above),
        None => url,
    };
    found.add(url, &format!("{path:?}"), trust).is_some()
}
