//! What a sandbox may reach on the network. Pure.
//!
//! The control plane puts the policy together (base config, then the trusted
//! workspace file) and writes it, as JSON, for the gateway, which decides by it.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Raised whenever a gateway of the old version could misread the new one.
pub(crate) const POLICY_VERSION: u32 = 1;

/// The whole policy of one sandbox, as it stands in the gateway's file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EgressPolicy {
    pub(crate) version: u32,
    /// Session id, for the audit.
    pub(crate) workspace: String,
    pub(crate) https: Vec<HttpsRule>,
    pub(crate) tcp: Vec<TcpRule>,
    pub(crate) hosts: Vec<HostEntry>,
}

/// Requests that the gateway passes on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HttpsRule {
    pub(crate) host: HostPattern,
    pub(crate) port: u16,
    /// Never empty. Without effect where nothing is inspected.
    pub(crate) paths: Vec<PathPattern>,
    /// In upper case; none means all.
    pub(crate) methods: Option<Vec<String>>,
    /// Whether TLS is terminated at the gateway, and each request looked at.
    pub(crate) inspect: bool,
    /// Whether the host may have a private, loopback or link-local address.
    pub(crate) private: bool,
    pub(crate) origin: RuleOrigin,
}

/// A TCP connection that carries anything.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TcpRule {
    /// Never a suffix.
    pub(crate) host: HostPattern,
    pub(crate) port: u16,
    pub(crate) private: bool,
    pub(crate) origin: RuleOrigin,
}

/// A name with a fixed address. It makes the name resolvable and allows
/// nothing by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HostEntry {
    pub(crate) name: String,
    pub(crate) address: IpAddr,
    pub(crate) origin: RuleOrigin,
}

/// Who asked for a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RuleOrigin {
    Base,
    Workspace,
    /// Resolved from the host's own configuration of the named tool.
    Registry(String),
}

/// Which hosts a rule is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum HostPattern {
    /// Lower case, without a trailing dot.
    Name(String),
    /// `*.example.org`, kept as `example.org`: the names below it, and not
    /// that name itself.
    Suffix(String),
    Address(IpAddr),
}

/// Which paths of a host a rule is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum PathPattern {
    /// It ended in `*`: all paths that begin so.
    Prefix(String),
    /// The path itself, and what follows it at a `/`.
    Tree(String),
}

/// Longest host name in DNS, in its text form.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

impl FromStr for HostPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<HostPattern, String> {
        let bare = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        if let Ok(address) = bare.unwrap_or(text).parse() {
            return Ok(HostPattern::Address(address));
        }
        if let Some(suffix) = text.strip_prefix("*.") {
            let suffix = parse_name(suffix)?;
            if !suffix.contains('.') {
                return Err(format!(
                    "{text:?} is too wide: at least two labels must follow \"*.\""
                ));
            }
            return Ok(HostPattern::Suffix(suffix));
        }
        parse_name(text).map(HostPattern::Name)
    }
}

/// A host name in its normal form: lower case, no trailing dot.
pub(crate) fn parse_name(text: &str) -> Result<String, String> {
    let wrong = |why: &str| Err(format!("{text:?} is not a host name: {why}"));
    let name = text.strip_suffix('.').unwrap_or(text);
    if name.is_empty() || name.len() > MAX_NAME {
        return wrong("it must have 1 to 253 characters");
    }
    if !name.is_ascii() {
        return wrong("write an international name in its \"xn--\" form");
    }
    let is_label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=MAX_LABEL).contains(&label.len())
            && label.bytes().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if !name.split('.').all(is_label) {
        return wrong("labels have 1 to 63 letters, digits and \"-\"");
    }
    // inet_aton reads "0x7f.1" and "2130706433" as addresses, and so do clients.
    let last = name.rsplit('.').next().unwrap_or_default();
    if last.bytes().all(|byte| byte.is_ascii_digit()) || last.to_ascii_lowercase().starts_with("0x")
    {
        return wrong("it could be read as an address");
    }
    Ok(name.to_ascii_lowercase())
}

impl HostPattern {
    /// As it stands before a port: an IPv6 address in brackets.
    pub(crate) fn before_port(&self) -> String {
        match self {
            HostPattern::Address(IpAddr::V6(address)) => format!("[{address}]"),
            other => other.to_string(),
        }
    }

    /// Whether it stands for all hosts that the other one stands for.
    pub(crate) fn contains(&self, other: &HostPattern) -> bool {
        match (self, other) {
            (HostPattern::Suffix(suffix), HostPattern::Name(name)) => is_below(name, suffix),
            (HostPattern::Suffix(suffix), HostPattern::Suffix(other)) => {
                other == suffix || is_below(other, suffix)
            }
            _ => self == other,
        }
    }
}

fn is_below(name: &str, suffix: &str) -> bool {
    let above = name.strip_suffix(suffix);
    above.is_some_and(|above| above.ends_with('.'))
}

impl PathPattern {
    /// Whether it allows all paths that the other one allows.
    pub(crate) fn contains(&self, other: &PathPattern) -> bool {
        let (PathPattern::Prefix(path) | PathPattern::Tree(path)) = other;
        match self {
            PathPattern::Prefix(prefix) => path.starts_with(prefix),
            PathPattern::Tree(tree) => match path.strip_prefix(tree) {
                Some("") => matches!(other, PathPattern::Tree(_)),
                rest => rest.is_some_and(|rest| rest.starts_with('/')),
            },
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostPattern::Name(name) => f.write_str(name),
            HostPattern::Suffix(suffix) => write!(f, "*.{suffix}"),
            HostPattern::Address(address) => write!(f, "{address}"),
        }
    }
}

impl TryFrom<String> for HostPattern {
    type Error = String;

    fn try_from(text: String) -> Result<HostPattern, String> {
        text.parse()
    }
}

impl From<HostPattern> for String {
    fn from(host: HostPattern) -> String {
        host.to_string()
    }
}

impl FromStr for PathPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<PathPattern, String> {
        if text == "*" {
            return Ok(PathPattern::Prefix("/".to_owned()));
        }
        let (path, is_prefix) = match text.strip_suffix('*') {
            Some(path) => (path, true),
            None => (text, false),
        };
        let wrong = |why: &str| Err(format!("{text:?} is not a path pattern: {why}"));
        if !path.starts_with('/') {
            return wrong("it must begin with \"/\"");
        }
        if path.contains('*') {
            return wrong("a \"*\" can stand once, at the end");
        }
        if path.contains(['?', '#', '%', '\\', ';']) || path.contains("//") {
            return wrong(
                "it must be a plain path without \"?\", \"#\", \"%\", \"\\\", \";\" and \"//\"",
            );
        }
        // They are encoded in what is matched, so the pattern would never fit.
        if let Some(c) = path.chars().find(|c| "\"<>[]^`{|}".contains(*c)) {
            return wrong(&format!(
                "{c:?} is encoded in a path; end it with \"*\" before that"
            ));
        }
        if path
            .chars()
            .any(|c| c.is_control() || c == ' ' || !c.is_ascii())
        {
            return wrong("it must be of printable ASCII without spaces");
        }
        if path.split('/').any(|part| part == "." || part == "..") {
            return wrong("it must not contain \".\" or \"..\"");
        }
        Ok(match is_prefix {
            true => PathPattern::Prefix(path.to_owned()),
            false => PathPattern::Tree(path.to_owned()),
        })
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathPattern::Prefix(path) => write!(f, "{path}*"),
            PathPattern::Tree(path) => f.write_str(path),
        }
    }
}

impl TryFrom<String> for PathPattern {
    type Error = String;

    fn try_from(text: String) -> Result<PathPattern, String> {
        text.parse()
    }
}

impl From<PathPattern> for String {
    fn from(path: PathPattern) -> String {
        path.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_suffixes_and_addresses() {
        let parse = |text: &str| text.parse::<HostPattern>();
        assert_eq!(
            parse("Git.Example.ORG."),
            Ok(HostPattern::Name("git.example.org".into()))
        );
        assert_eq!(
            parse("*.example.org"),
            Ok(HostPattern::Suffix("example.org".into()))
        );
        assert_eq!(parse("[2001:db8::1]"), parse("2001:db8::1"));
        for wrong in [
            "",
            ".",
            "*",
            "*.org",
            "*.*.org",
            "a*.example.org",
            "a..b",
            "-a.org",
            "a b",
            "1.2.3",
            "0x7f.0.0.1",
            "0x7f000001",
            "2130706433",
            "a.0x1",
            "bücher.example",
            "a/b",
            "a:1",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn paths_are_prefixes_or_trees() {
        let parse = |text: &str| text.parse::<PathPattern>();
        assert_eq!(parse("*"), Ok(PathPattern::Prefix("/".into())));
        assert_eq!(parse("/user/*"), Ok(PathPattern::Prefix("/user/".into())));
        assert_eq!(parse("/user"), Ok(PathPattern::Tree("/user".into())));
        for wrong in [
            "", "user", "/a*b", "/a/../b", "/a%2e", "/a?b", "/a//b", "/ä", "/a b",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn wider_patterns_contain_narrower_ones() {
        let host = |wide: &str, narrow: &str| {
            let [wide, narrow] = [wide, narrow].map(|text| text.parse::<HostPattern>().unwrap());
            wide.contains(&narrow)
        };
        for narrow in ["a.example.org", "*.a.example.org", "*.example.org"] {
            assert!(host("*.example.org", narrow), "{narrow}");
        }
        for other in ["example.org", "a-example.org", "*.example.net", "192.0.2.1"] {
            assert!(!host("*.example.org", other), "{other}");
        }
        assert!(host("192.0.2.1", "192.0.2.1") && !host("a.example.org", "*.example.org"));
        let path = |wide: &str, narrow: &str| {
            let [wide, narrow] = [wide, narrow].map(|text| text.parse::<PathPattern>().unwrap());
            wide.contains(&narrow)
        };
        for (wide, narrow) in [("*", "/a"), ("/a*", "/ab"), ("/a", "/a"), ("/a", "/a/*")] {
            assert!(path(wide, narrow), "{wide} {narrow}");
            assert_eq!(path(narrow, wide), wide == narrow, "{wide} {narrow}");
        }
        assert!(!path("/a", "/a*") && !path("/a", "/ab") && path("/a*", "/a"));
    }

    #[test]
    fn what_is_written_reads_back_the_same() {
        for text in [
            "git.example.org",
            "*.example.org",
            "192.0.2.1",
            "2001:db8::1",
        ] {
            let host: HostPattern = text.parse().unwrap();
            assert_eq!(host.to_string(), text);
        }
        for text in ["/*", "/user/*", "/user"] {
            let path: PathPattern = text.parse().unwrap();
            assert_eq!(path.to_string(), text);
        }
    }
}
