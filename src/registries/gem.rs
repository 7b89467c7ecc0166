//! gem and bundler: `sources` of the gemrc files and mirrors of bundler, else
//! the sources that the installed gem has built in.

use std::path::PathBuf;

use crate::registries::found::{Found, Trust};
use crate::registries::host::{Host, ToolError};

/// Prints a line for each source, and one for each host whose index the
/// installed gem looks up on another host.
const ASK: &str = r#"
Gem.sources.each { |source| puts "source #{source}" }
place = Gem::Source.instance_method(:dependency_resolver_set).source_location
pairs = File.read(place.first).scan(/\.host == "([^"]+)".{1,200}?\.host = "([^"]+)"/m)
pairs.each { |host, index| puts "index #{host} #{index}" }
"#;

pub(super) fn resolve(host: &Host, found: &mut Found) {
    let sources = configured(host, found);
    add_mirrors(host, found);
    let told = match found.is_incomplete() {
        true => Err(ToolError::Failed("was not asked".to_owned())),
        false => host.run("ruby", &["-e", ASK], &[]),
    };
    let mut hosts = Vec::new();
    for (source, from) in sources.iter().flatten() {
        hosts.extend(found.add(source, from, Trust::Configured));
    }
    let printed = match (told, &sources) {
        (Ok(printed), _) => printed,
        (Err(_), Some(_)) => return,
        (Err(error), None) => return found.unknown(&error.explain("ruby")),
    };
    for line in printed.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words.as_slice() {
            ["source", url] if sources.is_none() => {
                hosts.extend(found.add(url, "gem itself", Trust::BuiltIn));
            }
            ["index", name, index] if hosts.iter().any(|url| url.host.to_string() == *name) => {
                found.add(&format!("https://{index}"), "gem itself", Trust::BuiltIn);
            }
            _ => {}
        }
    }
    if hosts.is_empty() && sources.is_none() {
        found.unknown("gem did not name its sources");
    }
}

/// The sources of the last file that has some; each replaces those before.
fn configured(host: &Host, found: &mut Found) -> Option<Vec<(String, String)>> {
    let mut sources = None;
    for path in files(host) {
        let text = found.text_of(&path, host);
        if let Some(urls) = text.and_then(|text| parse(&text)) {
            let from = format!("{path:?}");
            let urls = urls.into_iter().map(|url| (url, from.clone()));
            sources = Some(urls.collect());
        }
    }
    sources
}

fn files(host: &Host) -> Vec<PathBuf> {
    let mut files = vec![
        host.system("/etc/gemrc"),
        host.config_home().join("gem/gemrc"),
        host.home.join(".gemrc"),
    ];
    let more = host.variable("GEMRC").unwrap_or_default().split([':', ';']);
    files.extend(more.map(PathBuf::from).filter(|path| path.is_absolute()));
    files
}

/// The list below `:sources:`; all else of YAML is passed over.
fn parse(text: &str) -> Option<Vec<String>> {
    let mut lines = text.lines().skip_while(|line| !is_sources(line));
    let (_, rest) = lines.next()?.split_once("sources:")?;
    let plain = |item: &str| item.trim().trim_matches(['"', '\'']).to_owned();
    let rest = rest.trim();
    if let Some(list) = rest.strip_prefix('[') {
        let list = list.split(']').next().unwrap_or_default();
        return Some(list.split(',').map(plain).collect());
    }
    let items = lines
        .map(str::trim)
        .map_while(|line| line.strip_prefix('-'));
    let items: Vec<String> = items.map(plain).collect();
    (!items.is_empty()).then_some(items)
}

fn is_sources(line: &str) -> bool {
    line.starts_with(":sources:") || line.starts_with("sources:")
}

/// `BUNDLE_MIRROR__NAME: "URL"`
fn add_mirrors(host: &Host, found: &mut Found) {
    let path = host.home.join(".bundle/config");
    let text = found.text_of(&path, host).unwrap_or_default();
    for line in text
        .lines()
        .filter(|line| line.starts_with("BUNDLE_MIRROR__"))
    {
        // The key holds a URL as well.
        let Some((key, value)) = line.rsplit_once(": ") else {
            continue;
        };
        if !key.contains("FALLBACK_TIMEOUT") {
            let value = value.trim().trim_matches(['"', '\'']);
            found.add(value, &format!("{path:?}"), Trust::Configured);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_a_list_in_either_form() {
        let two = Some(vec![
            "https://a.example.org/".to_owned(),
            "https://b.example.org".to_owned(),
        ]);
        let block = "---\n:verbose: true\n:sources:\n- https://a.example.org/\n- \"https://b.example.org\"\ngem: --no-document\n";
        assert_eq!(parse(block), two);
        let inline = ":sources: [https://a.example.org/, 'https://b.example.org']\n";
        assert_eq!(parse(inline), two);
        for none in ["", "gem: x\n", ":sources:\n", ":sources: 3\n"] {
            assert_eq!(parse(none), None, "{none:?}");
        }
    }
}
