//! go: GOPROXY and GOSUMDB of the environment and of the `go env -w` file, else
//! what the installed go says.
//!
//! `direct` stands for the hosts of the modules themselves, which nobody can
//! list: each needs a rule of its own.

use std::path::PathBuf;

use crate::registries::found::{Found, Trust};
use crate::registries::host::{Host, ToolError};

const NAMES: [&str; 2] = ["GOPROXY", "GOSUMDB"];

pub(super) fn resolve(host: &Host, found: &mut Found) {
    let configured = configured(host, found);
    let is_complete = configured.iter().all(Option::is_some);
    let told = match (is_complete, found.is_incomplete()) {
        (true, _) => Ok(Vec::new()),
        (false, true) => Err(ToolError::Failed("was not asked".to_owned())),
        // Otherwise go could fetch another version of itself.
        (false, false) => host
            .run(
                "go",
                &[&["env"], &NAMES[..]].concat(),
                &[("GOTOOLCHAIN", "local")],
            )
            .map(|printed| printed.lines().map(str::to_owned).collect()),
    };
    if let Err(error) = &told {
        found.unknown(&error.explain("go"));
    }
    let mut told = told.unwrap_or_default().into_iter();
    for (name, value) in NAMES.into_iter().zip(configured) {
        let told = told
            .next()
            .map(|value| (value, "go itself".to_owned(), Trust::BuiltIn));
        let configured = value.map(|(value, from)| (value, from, Trust::Configured));
        let Some((value, from, trust)) = configured.or(told) else {
            continue;
        };
        // A value with credentials, or with what is no plain text, stays here.
        let is_plain = value.bytes().all(|b| (b' '..=b'~').contains(&b)) && !value.contains('@');
        if trust == Trust::Configured && is_plain {
            found.set(name, value.clone());
        }
        match name {
            "GOPROXY" => add_proxies(&value, &from, trust, found),
            _ => add_checksums(&value, &from, trust, found),
        }
    }
}

/// Value and source of each of `NAMES`, where it is set.
fn configured(host: &Host, found: &mut Found) -> [Option<(String, String)>; 2] {
    let path = match host.variable("GOENV") {
        Some("off") => None,
        Some(path) => Some(PathBuf::from(path)),
        None => Some(host.config_home().join("go/env")),
    };
    let path = path.filter(|path| path.is_absolute());
    let text = path.as_ref().and_then(|path| found.text_of(path, host));
    let text = text.unwrap_or_default();
    NAMES.map(|name| {
        let in_file = || {
            let mut lines = text.lines().filter_map(|line| line.split_once('='));
            let (_, value) = lines.rfind(|(key, _)| key.trim() == name)?;
            Some((value.trim().to_owned(), format!("{:?}", path.clone()?)))
        };
        let variable = host.variable(name);
        variable
            .map(|value| (value.to_owned(), name.to_owned()))
            .or_else(in_file)
            .filter(|(value, _)| !value.is_empty())
    })
}

fn add_proxies(value: &str, from: &str, trust: Trust, found: &mut Found) {
    let words = value.split([',', '|']).map(str::trim);
    let proxies: Vec<&str> = words
        .filter(|word| !matches!(*word, "direct" | "off" | ""))
        .collect();
    if proxies.is_empty() {
        found.warn(format_args!(
            "GOPROXY in {from} names no proxy: the hosts of the modules need [[egress.https]] rules"
        ));
    }
    for proxy in proxies {
        found.add(proxy, from, trust);
    }
}

/// `off`, or `NAME[+KEY] [URL]`, where the name is also the host.
fn add_checksums(value: &str, from: &str, trust: Trust, found: &mut Found) {
    let mut words = value.split_ascii_whitespace();
    match (words.next(), words.next()) {
        (None | Some("off"), _) => {}
        (Some(_), Some(url)) => drop(found.add(url, from, trust)),
        (Some(name), None) => {
            let host = name.split('+').next().unwrap_or_default();
            found.add(&format!("https://{host}"), from, trust);
        }
    }
}
