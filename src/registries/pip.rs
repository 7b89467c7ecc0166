//! pip: its configuration files and variables, else the index that is built
//! into the installed pip.
//!
//! An index page can link to files on another host. For the built-in index pip
//! knows which; for others it is the same host as a rule, and where it is not
//! the refusal of the gateway names it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::policy::url::Url;
use crate::registries::found::{Found, Trust};
use crate::registries::host::{Host, ToolError};

/// Prints the built-in index, then the host of its files.
const ASK: &str = "from pip._internal.models.index import PyPI as index\nprint(index.simple_url)\nprint('https://' + index.file_storage_domain)";

/// The sections whose commands fetch packages.
const SECTIONS: [&str; 4] = ["global", "install", "download", "wheel"];

/// Values with the file or variable that they come from.
type Values = BTreeMap<(String, String), (String, String)>;

pub(super) fn resolve(host: &Host, found: &mut Found) {
    let values = load(host, found);
    let no_index = effective(&values, "install", "no-index");
    let is_off = no_index.is_some_and(|(value, _)| is_true(value));
    let mut indexes = Vec::new();
    for section in SECTIONS {
        if !is_off {
            indexes.extend(add_urls(&values, section, "index-url", found));
            indexes.extend(add_urls(&values, section, "extra-index-url", found));
        }
        indexes.extend(add_urls(&values, section, "find-links", found));
        if let Some((_, from)) = effective(&values, section, "trusted-host") {
            found.warn(format_args!(
                "\"trusted-host\" in {from} has no effect: the gateway verifies the certificate of each host"
            ));
        }
    }
    if !is_off {
        set(&values, "index-url", "PIP_INDEX_URL", found);
        set(&values, "extra-index-url", "PIP_EXTRA_INDEX_URL", found);
    }
    let uses_built_in = !is_off && effective(&values, "install", "index-url").is_none();
    add_built_in(host, uses_built_in, &indexes, found);
}

/// The URLs of one setting, as it holds for the commands of a section.
fn add_urls(values: &Values, section: &str, key: &str, found: &mut Found) -> Vec<Url> {
    let Some((value, from)) = effective(values, section, key) else {
        return Vec::new();
    };
    let words = value.split_ascii_whitespace();
    // Links may also lie in a directory of this host.
    let urls = words.filter(|word| word.contains("://") || key != "find-links");
    urls.filter_map(|url| add_index(url, from, found)).collect()
}

/// The built-in index and the host of its files, where nothing is configured
/// or the same index is.
fn add_built_in(host: &Host, is_default: bool, indexes: &[Url], found: &mut Found) {
    let told = match found.is_incomplete() {
        true => Err(ToolError::Failed("was not asked".to_owned())),
        false => ask(host),
    };
    match told {
        Ok((index, files)) => {
            if is_default || indexes.iter().any(|url| is_at(url, &index)) {
                found.add(&index, "pip itself", Trust::BuiltIn);
                found.add(&files, "pip itself", Trust::BuiltIn);
            }
        }
        Err(error) if is_default => found.unknown(&error.explain("python3")),
        Err(_) => {}
    }
}

/// The index and what stands beside it: mirrors keep the files next to
/// `simple`, not below it.
fn add_index(text: &str, from: &str, found: &mut Found) -> Option<Url> {
    let url = found.usable(text, from)?;
    let path = url.path.trim_end_matches('/');
    let above = ["/simple", "/+simple"]
        .into_iter()
        .find_map(|end| path.strip_suffix(end));
    let path = above.unwrap_or(path).to_owned();
    found.add_tree(&url, &path, from, Trust::Configured);
    Some(url)
}

/// What `pip install` uses on this host is used inside too.
fn set(values: &Values, key: &str, name: &'static str, found: &mut Found) {
    let value = effective(values, "install", key).map_or("", |(value, _)| value);
    let urls = value.split_ascii_whitespace().map(str::parse::<Url>);
    let urls = urls.flatten().filter(|url| url.scheme == "https");
    let urls: Vec<String> = urls.map(|url| url.to_string()).collect();
    if !urls.is_empty() {
        found.set(name, urls.join(" "));
    }
}

fn is_at(url: &Url, text: &str) -> bool {
    text.parse::<Url>()
        .is_ok_and(|other| other.host == url.host)
}

fn ask(host: &Host) -> Result<(String, String), ToolError> {
    let printed = host.run("python3", &["-c", ASK], &[])?;
    let mut lines = printed.lines();
    match (lines.next(), lines.next()) {
        (Some(index), Some(files)) => {
            let base = index.trim_end_matches('/');
            let base = base.strip_suffix("/simple").unwrap_or(base);
            Ok((base.to_owned(), files.to_owned()))
        }
        _ => Err(ToolError::Failed("did not name its index".to_owned())),
    }
}

/// All settings; a later file overrides an earlier one.
fn load(host: &Host, found: &mut Found) -> Values {
    let mut values = Values::new();
    for path in files(host) {
        if let Some(text) = found.text_of(&path, host) {
            parse(&text, &format!("{path:?}"), &mut values);
        }
    }
    for (name, value) in &host.variables {
        if let Some(key) = name.strip_prefix("PIP_") {
            let entry = (":env:".to_owned(), normal(key));
            values.insert(entry, (value.clone(), name.clone()));
        }
    }
    values
}

/// From the weakest to the strongest, as pip's manual has them.
fn files(host: &Host) -> Vec<PathBuf> {
    // This turns all files off.
    if host.variable("PIP_CONFIG_FILE") == Some("/dev/null") {
        return Vec::new();
    }
    let dirs = host.variable("XDG_CONFIG_DIRS").map(str::to_owned);
    let dirs = dirs.unwrap_or_else(|| host.system("/etc/xdg").display().to_string());
    let mut files: Vec<PathBuf> = dirs
        .split(':')
        .map(PathBuf::from)
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join("pip/pip.conf"))
        .collect();
    files.push(host.system("/etc/pip.conf"));
    files.push(host.home.join(".pip/pip.conf"));
    files.push(host.config_home().join("pip/pip.conf"));
    files.extend(host.place("PIP_CONFIG_FILE"));
    files
}

fn parse(text: &str, from: &str, values: &mut Values) {
    let mut section = String::new();
    let mut last: Option<(String, String)> = None;
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if line.starts_with([' ', '\t'])
            && let Some((value, _)) = last.as_ref().and_then(|last| values.get_mut(last))
        {
            value.push(' ');
            value.push_str(trimmed);
            continue;
        }
        last = None;
        if let Some(name) = trimmed.strip_prefix('[') {
            section = name.split(']').next().unwrap_or_default().to_owned();
        } else if let Some((key, value)) = trimmed.split_once(['=', ':']) {
            let entry = (section.clone(), normal(key.trim()));
            values.insert(entry.clone(), (value.trim().to_owned(), from.to_owned()));
            last = Some(entry);
        }
    }
}

fn normal(key: &str) -> String {
    key.to_ascii_lowercase().replace('_', "-")
}

/// What counts for a command: a variable, else its section, else `[global]`.
fn effective<'a>(values: &'a Values, section: &str, key: &str) -> Option<(&'a str, &'a str)> {
    let mut places = [":env:", section, "global"].into_iter();
    let (value, from) = places.find_map(|place| values.get(&(place.to_owned(), key.to_owned())))?;
    Some((value.as_str(), from.as_str())).filter(|(value, _)| !value.is_empty())
}

fn is_true(value: &str) -> bool {
    let value = value.to_ascii_lowercase();
    ["1", "true", "yes", "on", "t", "y"].contains(&value.as_str())
}
