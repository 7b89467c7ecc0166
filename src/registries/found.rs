//! What was found out about one tool.

use std::fmt::Display;
use std::path::Path;

use crate::config::egress::Registry;
use crate::config::rule::HTTPS_PORT;
use crate::policy::egress::{HttpsRule, PathPattern, RuleOrigin};
use crate::policy::url::Url;
use crate::registries::Resolved;
use crate::registries::host::Host;

/// Fetching packages needs no others; publishing them does.
const METHODS: [&str; 2] = ["GET", "HEAD"];

/// Most rules and warnings of one tool.
const MAX_ENTRIES: usize = 500;

/// Where a URL comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// The user or the administrator named it: it may be a mirror with a
    /// private address.
    Configured,
    /// It is built into the tool.
    BuiltIn,
}

#[derive(Debug)]
pub(super) struct Found {
    tool: Registry,
    rules: Vec<HttpsRule>,
    warnings: Vec<String>,
    variables: Vec<(&'static str, String)>,
    /// A file that the tool would read was not read: what the tool says of
    /// itself could come from there.
    is_incomplete: bool,
}

impl Found {
    pub(super) fn new(tool: Registry) -> Found {
        Found {
            tool,
            rules: Vec::new(),
            warnings: Vec::new(),
            variables: Vec::new(),
            is_incomplete: false,
        }
    }

    pub(super) fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    pub(super) fn warn(&mut self, message: impl Display) {
        let warning = format!("registries: {}: {message}", self.tool);
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    pub(super) fn not_read(&mut self, message: &str) {
        self.is_incomplete = true;
        self.warn(message);
    }

    /// The text of a file of the tool's; where it cannot be read, that is told.
    pub(super) fn text_of(&mut self, path: &Path, host: &Host) -> Option<String> {
        host.read(path).unwrap_or_else(|reason| {
            self.not_read(&reason);
            None
        })
    }

    /// A setting for the tool inside, without credentials.
    pub(super) fn set(&mut self, name: &'static str, value: String) {
        self.variables.push((name, value));
    }

    /// Neither the configuration nor the tool tells.
    pub(super) fn unknown(&mut self, why: &str) {
        self.warn(format_args!(
            "{why}; which hosts it needs cannot be told: add them as [[egress.https]] rules"
        ));
    }

    /// A URL below which packages are fetched. `from` names the file or the
    /// variable that holds it; the text of a wrong URL is not repeated.
    pub(super) fn add(&mut self, text: &str, from: &str, trust: Trust) -> Option<Url> {
        let url = self.usable(text, from)?;
        self.add_tree(&url, &url.path, from, trust);
        Some(url)
    }

    /// The URL in a text, if the gateway can pass requests on to it.
    pub(super) fn usable(&mut self, text: &str, from: &str) -> Option<Url> {
        let text = text.trim();
        // On this host; there is nothing to reach.
        if text.starts_with("file:") {
            return None;
        }
        let url: Url = match text.parse() {
            Ok(url) => url,
            Err(why) => {
                self.warn(format_args!("a URL in {from} cannot be used: {why}"));
                return None;
            }
        };
        if url.scheme != "https" {
            self.warn(format_args!(
                "\"{url}\" in {from} cannot be reached: the gateway passes on https only"
            ));
            return None;
        }
        Some(url)
    }

    /// All paths at and below `path` of the host of `url`.
    pub(super) fn add_tree(&mut self, url: &Url, path: &str, from: &str, trust: Trust) {
        let trimmed = path.trim_end_matches('/');
        let pattern = match trimmed {
            "" => "*".parse::<PathPattern>(),
            trimmed => trimmed.parse(),
        };
        match pattern {
            // A path may hold a "*" by itself, which would mean more.
            Ok(pattern) if !trimmed.contains('*') => {
                self.add_paths(url, vec![pattern], &METHODS, trust);
            }
            _ => self.warn(format_args!(
                "the path of \"{url}\" in {from} cannot be put into a rule: add an [[egress.https]] rule for the host"
            )),
        }
    }

    pub(super) fn add_paths(
        &mut self,
        url: &Url,
        paths: Vec<PathPattern>,
        methods: &[&str],
        trust: Trust,
    ) {
        let rule = HttpsRule {
            host: url.host.clone(),
            port: url.port.unwrap_or(HTTPS_PORT),
            paths,
            methods: Some(methods.iter().map(|method| (*method).to_owned()).collect()),
            inspect: true,
            private: trust == Trust::Configured,
            origin: RuleOrigin::Registry(self.tool.name().to_owned()),
        };
        if !self.rules.contains(&rule) {
            self.rules.push(rule);
        }
    }

    pub(super) fn hand_over(mut self, resolved: &mut Resolved) {
        let count = self.rules.len().max(self.warnings.len());
        self.rules.truncate(MAX_ENTRIES);
        self.warnings.truncate(MAX_ENTRIES);
        if count > MAX_ENTRIES {
            self.warn(format_args!("only the first {MAX_ENTRIES} entries count"));
        }
        resolved.rules.append(&mut self.rules);
        resolved.warnings.append(&mut self.warnings);
        resolved.variables.append(&mut self.variables);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_never_show() {
        let mut found = Found::new(Registry::Pip);
        found.add(
            "https://u:s3cret@example.org/simple",
            "x",
            Trust::Configured,
        );
        found.add("http://u:s3cret@example.org/simple", "x", Trust::Configured);
        found.add("https://u:s3cret@exa mple.org/", "x", Trust::Configured);
        found.add("https://u:s3cret@example.org/%73", "x", Trust::Configured);
        let mut resolved = Resolved::default();
        found.hand_over(&mut resolved);
        assert_eq!((resolved.rules.len(), resolved.warnings.len()), (1, 3));
        assert!(!format!("{resolved:?}").contains("s3cret"), "{resolved:?}");
    }

    #[test]
    fn place_on_this_host_needs_no_rule_and_no_warning() {
        let mut found = Found::new(Registry::Go);
        for text in ["file:///srv/x", "file:/srv/x", "file://localhost/x"] {
            assert_eq!(found.add(text, "x", Trust::Configured), None);
        }
        assert!(found.rules.is_empty() && found.warnings.is_empty());
    }

    #[test]
    fn star_in_a_path_is_no_prefix() {
        let mut found = Found::new(Registry::Pip);
        found.add("https://example.org/a*", "x", Trust::Configured);
        assert!(found.rules.is_empty() && found.warnings.len() == 1);
    }
}
