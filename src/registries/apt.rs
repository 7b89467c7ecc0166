//! apt: the sources of `/etc/apt`, in both forms. Most say `http`, which the
//! gateway does not pass on; that is told for each.

use crate::registries::found::{Found, Trust};
use crate::registries::host::Host;

pub(super) fn resolve(host: &Host, found: &mut Found) {
    let mut files = vec![host.system("/etc/apt/sources.list")];
    files.extend(host.list(&host.system("/etc/apt/sources.list.d")));
    let mut has_source = false;
    for path in files {
        let parse = match path.extension().and_then(|ext| ext.to_str()) {
            Some("list") => uris_of_list,
            Some("sources") => uris_of_stanzas,
            _ => continue,
        };
        let text = found.text_of(&path, host);
        for uri in text.iter().flat_map(|text| parse(text)) {
            has_source = true;
            add(host, &uri, &format!("{path:?}"), found);
        }
    }
    if !has_source {
        found.unknown("no source is configured on this host");
    }
}

fn add(host: &Host, uri: &str, from: &str, found: &mut Found) {
    // The rest depends on the architecture.
    let uri = uri.split("$(").next().unwrap_or_default();
    let scheme = uri.split(':').next().unwrap_or_default();
    match scheme {
        "file" | "copy" | "cdrom" => {}
        "mirror+file" => add_mirror_file(host, uri, from, found),
        "mirror+https" => {
            let list = uri.trim_start_matches("mirror+");
            found.add(list, from, Trust::Configured);
            found.warn(format_args!(
                "a source in {from} is a list of mirrors: add [[egress.https]] rules for those that are used"
            ));
        }
        _ => drop(found.add(uri, from, Trust::Configured)),
    }
}

/// A local file with a mirror in each line.
fn add_mirror_file(host: &Host, uri: &str, from: &str, found: &mut Found) {
    let path = uri.trim_start_matches("mirror+file:");
    let path = format!("/{}", path.trim_start_matches('/'));
    let path = host.system(&path);
    match host.read(&path) {
        Ok(Some(text)) => {
            let lines = text.lines().map(str::trim);
            for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
                let uri = line.split_ascii_whitespace().next().unwrap_or_default();
                if !uri.starts_with("file:") {
                    found.add(uri, &format!("{path:?}"), Trust::Configured);
                }
            }
        }
        Ok(None) => found.warn(format_args!("{path:?}, which {from} names, is missing")),
        Err(reason) => found.not_read(&reason),
    }
}

/// `deb [option=value ...] URI suite component...`
fn uris_of_list(text: &str) -> Vec<String> {
    let uri = |line: &str| {
        let line = line.split('#').next()?;
        let mut words = line.split_ascii_whitespace();
        if !matches!(words.next()?, "deb" | "deb-src") {
            return None;
        }
        let mut word = words.next()?;
        if word.starts_with('[') {
            while !word.ends_with(']') {
                word = words.next()?;
            }
            word = words.next()?;
        }
        Some(word.to_owned())
    };
    text.lines().filter_map(uri).collect()
}

/// Stanzas of `Field: value` lines, with empty lines between.
fn uris_of_stanzas(text: &str) -> Vec<String> {
    let mut uris = Vec::new();
    let mut stanza: Vec<(String, String)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            uris.extend(uris_of(&stanza));
            stanza.clear();
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = stanza.last_mut() {
                value.push(' ');
                value.push_str(line.trim());
            }
        } else if let Some((field, value)) = line.split_once(':') {
            stanza.push((field.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    uris
}

fn uris_of(stanza: &[(String, String)]) -> Vec<String> {
    const OFF: [&str; 6] = ["no", "false", "without", "off", "disable", "0"];
    let field = |name: &str| {
        let mut fields = stanza.iter();
        fields
            .find(|(field, _)| field == name)
            .map(|(_, value)| value.as_str())
    };
    let enabled = field("enabled").unwrap_or("yes").to_ascii_lowercase();
    if OFF.contains(&enabled.as_str()) {
        return Vec::new();
    }
    let uris = field("uris").unwrap_or_default();
    uris.split_ascii_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read() {
        let list = "# x\ndeb [arch=amd64 signed-by=/k] https://a.example.org/debian stable main # y\ndeb-src https://b.example.org x y\nrpm https://c.example.org\ndeb [arch=amd64\ndeb\n";
        assert_eq!(
            uris_of_list(list),
            ["https://a.example.org/debian", "https://b.example.org"]
        );
        let stanzas = "# x\nTypes: deb\nURIs: https://a.example.org\n https://b.example.org\n# y\nSuites: x\n\nEnabled: no\nURIs: https://c.example.org\n\n\nuris: https://d.example.org";
        assert_eq!(
            uris_of_stanzas(stanzas),
            [
                "https://a.example.org",
                "https://b.example.org",
                "https://d.example.org"
            ]
        );
    }
}
