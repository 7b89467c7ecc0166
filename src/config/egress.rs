//! `[egress]` and `[[hosts]]` of a configuration file -> the rules of one layer.
//!
//! The base config and the workspace file have the same keys, except that only
//! the latter can turn the network on.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use toml::Spanned;

use crate::config::ConfigError;
use crate::config::expect::{Expectation, Target, Verdict};
use crate::config::rule::{
    HTTPS_PORT, all_paths, parse_address, parse_host, parse_host_name, parse_method, parse_port,
    parse_tcp_host,
};
use crate::config::source::Source;
use crate::policy::egress::{HostEntry, HttpsRule, PathPattern, RuleOrigin, TcpRule};
use crate::policy::egress_rules::{MAX_PATHS, MAX_RULES, https_identity, tcp_identity};

const MAX_METHODS: usize = 32;

/// What one file says of the network.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct EgressConfig {
    pub(crate) enabled: bool,
    pub(crate) registries: Option<Vec<Registry>>,
    /// Whether the expectations are checked at each start.
    pub(crate) verify_at_start: Option<bool>,
    pub(crate) https: Vec<HttpsRule>,
    pub(crate) tcp: Vec<TcpRule>,
    pub(crate) hosts: Vec<HostEntry>,
    pub(crate) expect: Vec<Expectation>,
}

/// A tool whose registry the host knows by its own configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Registry {
    Pip,
    Npm,
    Cargo,
    Go,
    Apt,
    Gem,
}

/// Which file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layer {
    Base,
    Workspace,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawEgress {
    enabled: Option<Spanned<bool>>,
    registries: Option<Vec<Spanned<String>>>,
    verify_at_start: Option<bool>,
    #[serde(default)]
    https: Vec<RawHttps>,
    #[serde(default)]
    tcp: Vec<RawTcp>,
    #[serde(default)]
    expect: Vec<RawExpect>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHttps {
    host: Spanned<String>,
    port: Option<Spanned<i64>>,
    paths: Option<Spanned<Vec<Spanned<String>>>>,
    methods: Option<Spanned<Vec<Spanned<String>>>>,
    inspect: Option<bool>,
    private: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTcp {
    host: Spanned<String>,
    port: Spanned<i64>,
    private: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawExpect {
    url: Spanned<String>,
    verdict: Verdict,
}

/// An entry of `[[hosts]]`, which stands beside `[egress]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawHost {
    name: Spanned<String>,
    address: Spanned<String>,
}

impl EgressConfig {
    /// The lists of rules are the user's own; the switches that are left out
    /// have the shipped value.
    pub(super) fn or_shipped(self, shipped: Option<&EgressConfig>) -> EgressConfig {
        let registries = shipped.and_then(|shipped| shipped.registries.clone());
        let verify = shipped.and_then(|shipped| shipped.verify_at_start);
        EgressConfig {
            registries: self.registries.or(registries),
            verify_at_start: self.verify_at_start.or(verify),
            ..self
        }
    }

    pub(crate) fn rule_count(&self) -> usize {
        self.https.len() + self.tcp.len() + self.hosts.len()
    }
}

impl Registry {
    pub(crate) const ALL: [Registry; 6] = [
        Registry::Pip,
        Registry::Npm,
        Registry::Cargo,
        Registry::Go,
        Registry::Apt,
        Registry::Gem,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Registry::Pip => "pip",
            Registry::Npm => "npm",
            Registry::Cargo => "cargo",
            Registry::Go => "go",
            Registry::Apt => "apt",
            Registry::Gem => "gem",
        }
    }
}

impl fmt::Display for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Registry {
    type Err = String;

    fn from_str(text: &str) -> Result<Registry, String> {
        let known = Registry::ALL.into_iter().find(|tool| tool.name() == text);
        known.ok_or_else(|| {
            let names: Vec<&str> = Registry::ALL.into_iter().map(Registry::name).collect();
            format!("{text:?} is none of {}", names.join(", "))
        })
    }
}

/// The egress part of one file.
pub(super) fn read_egress(
    source: Source<'_>,
    raw: RawEgress,
    hosts: Vec<RawHost>,
    layer: Layer,
) -> Result<EgressConfig, ConfigError> {
    let count = raw.https.len() + raw.tcp.len() + raw.expect.len() + hosts.len();
    if count > MAX_RULES {
        let message = format!("{count} entries are too many: at most {MAX_RULES} are allowed");
        return Err(source.error(0, "egress", message));
    }
    let origin = match layer {
        Layer::Base => RuleOrigin::Base,
        Layer::Workspace => RuleOrigin::Workspace,
    };
    let part = Part { source, origin };
    Ok(EgressConfig {
        enabled: part.enabled(raw.enabled)?,
        registries: raw.registries.map(|raw| part.registries(raw)).transpose()?,
        verify_at_start: raw.verify_at_start,
        https: part.https_rules(raw.https)?,
        tcp: part.tcp_rules(raw.tcp)?,
        hosts: part.hosts(hosts)?,
        expect: part.expectations(raw.expect)?,
    })
}

/// The part of a file that is about the network, on its way to an
/// `EgressConfig`.
struct Part<'a> {
    source: Source<'a>,
    origin: RuleOrigin,
}

impl Part<'_> {
    fn enabled(&self, raw: Option<Spanned<bool>>) -> Result<bool, ConfigError> {
        match raw {
            Some(raw) if self.origin == RuleOrigin::Base => {
                let message = "the network is turned on for one project at a time; move the key to the \".umwelt.toml\" of the workspace";
                Err(self
                    .source
                    .error(raw.span().start, "egress.enabled", message.to_owned()))
            }
            raw => Ok(raw.is_some_and(Spanned::into_inner)),
        }
    }

    fn registries(&self, raw: Vec<Spanned<String>>) -> Result<Vec<Registry>, ConfigError> {
        let mut tools = Vec::new();
        for raw in raw {
            let tool = self.source.check("egress.registries", raw, |text| {
                let tool: Registry = text.parse()?;
                match tools.contains(&tool) {
                    true => Err(format!("{text:?} stands there twice")),
                    false => Ok(tool),
                }
            })?;
            tools.push(tool);
        }
        Ok(tools)
    }

    fn https_rules(&self, raw: Vec<RawHttps>) -> Result<Vec<HttpsRule>, ConfigError> {
        let mut rules = Vec::with_capacity(raw.len());
        let mut seen = Seen::default();
        let mut inspected = HashMap::new();
        for raw in raw {
            let at = raw.host.span().start;
            let rule = self.https_rule(raw)?;
            let place = (rule.host.clone(), rule.port);
            let key = "egress.https.host";
            seen.add(self, at, key, https_identity(&rule))?;
            let (inspect, first) = *inspected.entry(place).or_insert((rule.inspect, at));
            if inspect != rule.inspect {
                let line = self.source.line(first);
                let message = format!(
                    "the rule in line {line} for the same host and port has another \"inspect\""
                );
                return Err(self.source.error(at, "egress.https.inspect", message));
            }
            rules.push(rule);
        }
        Ok(rules)
    }

    fn https_rule(&self, raw: RawHttps) -> Result<HttpsRule, ConfigError> {
        let inspect = raw.inspect.unwrap_or(true);
        let limits = [
            ("egress.https.paths", &raw.paths),
            ("egress.https.methods", &raw.methods),
        ];
        for (key, list) in limits {
            if let Some(list) = list.as_ref().filter(|_| !inspect) {
                let message = "cannot be checked where inspect = false; take one of the two away";
                return Err(self
                    .source
                    .error(list.span().start, key, message.to_owned()));
            }
        }
        let port = raw.port.map(|port| self.port("egress.https.port", port));
        let paths = raw.paths.map(|raw| self.paths(raw));
        Ok(HttpsRule {
            host: self
                .source
                .check("egress.https.host", raw.host, |text| parse_host(&text))?,
            port: port.transpose()?.unwrap_or(HTTPS_PORT),
            paths: paths.transpose()?.unwrap_or_else(all_paths),
            methods: raw.methods.map(|raw| self.methods(raw)).transpose()?,
            inspect,
            private: raw.private.unwrap_or(false),
            origin: self.origin.clone(),
        })
    }

    fn paths(&self, raw: Spanned<Vec<Spanned<String>>>) -> Result<Vec<PathPattern>, ConfigError> {
        let message = "an empty list would allow nothing; leave the key out to allow all paths";
        self.list("egress.https.paths", raw, MAX_PATHS, message, |text| {
            text.parse()
        })
    }

    fn methods(&self, raw: Spanned<Vec<Spanned<String>>>) -> Result<Vec<String>, ConfigError> {
        let message = "an empty list would allow nothing; leave the key out to allow all methods";
        self.list(
            "egress.https.methods",
            raw,
            MAX_METHODS,
            message,
            parse_method,
        )
    }

    /// A list that is neither empty nor too long and holds nothing twice.
    fn list<T: PartialEq>(
        &self,
        key: &str,
        raw: Spanned<Vec<Spanned<String>>>,
        most: usize,
        if_empty: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Vec<T>, ConfigError> {
        let at = raw.span().start;
        let raw = raw.into_inner();
        let wrong = match raw.len() {
            0 => Some(if_empty.to_owned()),
            count if count > most => Some(format!("{count} entries; at most {most} are allowed")),
            _ => None,
        };
        if let Some(message) = wrong {
            return Err(self.source.error(at, key, message));
        }
        let mut values: Vec<T> = Vec::with_capacity(raw.len());
        for raw in raw {
            let value = self.source.check(key, raw, |text| {
                let value = parse(&text)?;
                match values.contains(&value) {
                    true => Err(format!("{text:?} stands there twice")),
                    false => Ok(value),
                }
            })?;
            values.push(value);
        }
        Ok(values)
    }

    fn tcp_rules(&self, raw: Vec<RawTcp>) -> Result<Vec<TcpRule>, ConfigError> {
        let mut rules = Vec::with_capacity(raw.len());
        let mut seen = Seen::default();
        for raw in raw {
            let at = raw.host.span().start;
            let key = "egress.tcp.host";
            let rule = TcpRule {
                host: self
                    .source
                    .check(key, raw.host, |text| parse_tcp_host(&text))?,
                port: self.port("egress.tcp.port", raw.port)?,
                private: raw.private.unwrap_or(false),
                origin: self.origin.clone(),
            };
            seen.add(self, at, key, tcp_identity(&rule))?;
            rules.push(rule);
        }
        Ok(rules)
    }

    fn port(&self, key: &str, raw: Spanned<i64>) -> Result<u16, ConfigError> {
        self.source.check(key, raw, parse_port)
    }

    /// A name may have one address of each family in a file.
    fn hosts(&self, raw: Vec<RawHost>) -> Result<Vec<HostEntry>, ConfigError> {
        let mut entries = Vec::with_capacity(raw.len());
        let mut seen = HashMap::new();
        for raw in raw {
            let at = raw.name.span().start;
            let entry = HostEntry {
                name: self
                    .source
                    .check("hosts.name", raw.name, |text| parse_host_name(&text))?,
                address: self
                    .source
                    .check("hosts.address", raw.address, |text| parse_address(&text))?,
                origin: self.origin.clone(),
            };
            let family = if entry.address.is_ipv4() { "v4" } else { "v6" };
            if let Some(first) = seen.insert((entry.name.clone(), family), at) {
                let line = self.source.line(first);
                let message = format!(
                    "{:?} has an IP{family} address in line {line} already",
                    entry.name
                );
                return Err(self.source.error(at, "hosts.name", message));
            }
            entries.push(entry);
        }
        Ok(entries)
    }

    fn expectations(&self, raw: Vec<RawExpect>) -> Result<Vec<Expectation>, ConfigError> {
        let mut expectations = Vec::with_capacity(raw.len());
        let mut seen = Seen::default();
        for raw in raw {
            let at = raw.url.span().start;
            let key = "egress.expect.url";
            let target = self
                .source
                .check(key, raw.url, |text| Target::parse(&text))?;
            seen.add(self, at, key, format!("{target:?}"))?;
            expectations.push(Expectation {
                target,
                verdict: raw.verdict,
                origin: self.origin.clone(),
            });
        }
        Ok(expectations)
    }
}

/// Where in the file each entry stood first.
#[derive(Default)]
struct Seen(HashMap<String, usize>);

impl Seen {
    fn add(
        &mut self,
        part: &Part<'_>,
        at: usize,
        key: &str,
        identity: String,
    ) -> Result<(), ConfigError> {
        match self.0.insert(identity, at) {
            None => Ok(()),
            Some(first) => {
                let line = part.source.line(first);
                let message = format!("is the same entry as the one in line {line}");
                Err(part.source.error(at, key, message))
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use std::path::Path;

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Raw {
        #[serde(default)]
        egress: RawEgress,
        #[serde(default)]
        hosts: Vec<RawHost>,
    }

    pub(crate) fn read_base(text: &str) -> Result<EgressConfig, String> {
        read("umwelt.toml", text, Layer::Base)
    }

    pub(crate) fn read_workspace(text: &str) -> Result<EgressConfig, String> {
        read(".umwelt.toml", text, Layer::Workspace)
    }

    fn read(path: &str, text: &str, layer: Layer) -> Result<EgressConfig, String> {
        let source = Source {
            path: Path::new(path),
            text,
        };
        let read = || {
            let raw: Raw = toml::from_str(text).map_err(|error| source.syntax_error(&error))?;
            read_egress(source, raw.egress, raw.hosts, layer)
        };
        read().map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{read_base, read_workspace};
    use super::*;

    #[test]
    fn what_is_left_out_has_its_default() {
        let text = "[egress]\nenabled = true\n[[egress.https]]\nhost = 'Git.example.org'\n";
        let config = read_workspace(text).unwrap();
        let rule = HttpsRule {
            host: "git.example.org".parse().unwrap(),
            port: 443,
            paths: all_paths(),
            methods: None,
            inspect: true,
            private: false,
            origin: RuleOrigin::Workspace,
        };
        assert_eq!(config.https, [rule]);
        assert!(config.enabled && config.registries.is_none());
        assert_eq!(read_base(""), Ok(EgressConfig::default()));
    }

    #[test]
    fn only_the_base_config_cannot_enable_the_network() {
        let error = read_base("\n[egress]\nenabled = true\n").unwrap_err();
        assert!(error.contains("line 3: egress.enabled: "), "{error}");
        assert!(read_base("[egress]\nenabled = false\n").is_err());
    }

    #[test]
    fn one_name_can_have_an_address_of_each_family() {
        let text = "[[hosts]]\nname='A.example.org'\naddress='192.0.2.1'\n[[hosts]]\nname='a.example.org'\naddress='2001:db8::1'\n";
        assert_eq!(read_base(text).unwrap().hosts.len(), 2);
        let more = format!("{text}[[hosts]]\nname='a.example.org.'\naddress='192.0.2.2'\n");
        let error = read_base(&more).unwrap_err();
        assert!(error.contains("line 8: hosts.name: "), "{error}");
        assert!(error.contains("in line 2 already"), "{error}");
    }

    #[test]
    fn errors_name_line_and_key() {
        let https = |rest: &str| format!("[[egress.https]]\nhost='example.org'\n{rest}\n");
        let tcp = |host: &str, port: &str| format!("[[egress.tcp]]\nhost='{host}'\nport={port}\n");
        let expect = |url: &str| format!("[[egress.expect]]\nurl='{url}'\nverdict='deny'\n");
        let host = |name: &str, ip: &str| format!("[[hosts]]\nname='{name}'\naddress='{ip}'\n");
        let cases = [
            (
                https("port=0"),
                "line 3: egress.https.port: 0 is not a port",
            ),
            (https("port=70000"), "egress.https.port: 70000 is not"),
            (
                https("paths=[]"),
                "line 3: egress.https.paths: an empty list",
            ),
            (https("paths=['/a','/a']"), "\"/a\" stands there twice"),
            (
                https("paths=['/a','b']"),
                "egress.https.paths: \"b\" is not",
            ),
            (
                https("methods=[]"),
                "line 3: egress.https.methods: an empty",
            ),
            (https("methods=['get']"), "egress.https.methods: \"get\" is"),
            (https("methods=['TRACE']"), "never passed on"),
            (
                https("inspect=false\npaths=['/a']"),
                "line 4: egress.https.paths: cannot be checked",
            ),
            (
                https("inspect=false\nmethods=['GET']"),
                "line 4: egress.https.methods: cannot",
            ),
            (https("path='/a'"), "egress.https: there is no key \"path\""),
            (
                https(&https("")),
                "line 4: egress.https.host: is the same entry as the one in line 2",
            ),
            (
                https(&https("inspect=false")),
                "egress.https.inspect: the rule in line 2",
            ),
            (
                "[[egress.https]]\nhost='https://x.org'\n".into(),
                "line 2: egress.https.host: is a URL",
            ),
            (
                "[[egress.https]]\nport=1\n".into(),
                "egress.https: the key \"host\" is missing",
            ),
            (
                tcp("localhost", "5432") + "private=true\n",
                "line 2: egress.tcp.host: \"localhost\" is the sandbox itself there",
            ),
            (
                https("").replace("example.org", "127.0.0.1"),
                "line 2: egress.https.host: \"127.0.0.1\" is the sandbox itself there",
            ),
            (tcp("*.example.org", "22"), "line 2: egress.tcp.host: "),
            (
                tcp("example.org", "-1"),
                "line 3: egress.tcp.port: -1 is not",
            ),
            (
                tcp("example.org", "22") + &tcp("EXAMPLE.org.", "22"),
                "line 5: egress.tcp.host: is the same",
            ),
            (
                "[[egress.tcp]]\nhost='example.org'\n".into(),
                "egress.tcp: the key \"port\" is missing",
            ),
            (
                "[egress]\nregistries=['pip','nix']\n".into(),
                "line 2: egress.registries: \"nix\" is none of pip, npm,",
            ),
            (
                "[egress]\nregistries=['pip','pip']\n".into(),
                "\"pip\" stands there twice",
            ),
            (
                "[egress]\nenabled='yes'\n".into(),
                "line 2: egress.enabled: must be true or false, not 'yes'",
            ),
            (
                "[egress]\nnetwork='host'\n".into(),
                "egress: there is no key \"network\"",
            ),
            (
                expect("http://example.org/"),
                "line 2: egress.expect.url: must begin with",
            ),
            (
                expect("https://a.example.org/") + &expect("https://a.example.org"),
                "is the same entry",
            ),
            (
                "[[egress.expect]]\nurl='https://a.example.org'\nverdict='maybe'\n".into(),
                "line 3: egress.expect.verdict: \"maybe\" is none of: allow, deny",
            ),
            (host("localhost", "192.0.2.1"), "line 2: hosts.name: "),
            (
                host("a.example.org", "b.example.org"),
                "line 3: hosts.address: ",
            ),
        ];
        for (text, expected) in cases {
            let error = read_workspace(&text).unwrap_err();
            assert!(error.contains(expected), "{text:?} gave {error:?}");
        }
    }

    #[test]
    fn too_many_rules_and_too_many_paths_are_refused() {
        let rule = |i: usize| format!("[[egress.tcp]]\nhost='h{i}.example.org'\nport=1\n");
        let text: String = (0..MAX_RULES).map(rule).collect();
        assert_eq!(read_base(&text).unwrap().tcp.len(), MAX_RULES);
        let error = read_base(&(text + &rule(MAX_RULES))).unwrap_err();
        assert!(error.contains("20001 entries are too many"), "{error}");
        let paths: Vec<String> = (0..=MAX_PATHS).map(|i| format!("'/{i}'")).collect();
        let text = format!(
            "[[egress.https]]\nhost='example.org'\npaths=[{}]\n",
            paths.join(",")
        );
        let error = read_base(&text).unwrap_err();
        assert!(
            error.contains("egress.https.paths: 1001 entries"),
            "{error}"
        );
    }
}
