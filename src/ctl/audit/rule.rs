//! A refusal -> the rule that would allow the like of it, as the command and
//! as the lines of the workspace file; nothing where no rule can. Pure.

use std::net::IpAddr;
use std::path::Path;

use serde::Serialize;

use crate::config::egress_edit;
use crate::config::rule::{HTTPS_PORT, all_paths, parse_method};
use crate::ctl::NAME;
use crate::ctl::audit::record::Record;
use crate::gateway::denial;
use crate::policy::address::AddressClass;
use crate::policy::decide::Refusal;
use crate::policy::egress::PathPattern;
use crate::policy::egress_change::{NewRule, RuleKind};
use crate::text::shell_word;

/// A rule to add.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Fix {
    pub(super) command: String,
    /// For `.umwelt.toml`.
    pub(super) toml: String,
    /// What to know before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<&'static str>,
}

/// What the denials have in common that one rule would allow.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Wanted {
    kind: Kind,
    host: String,
    port: Option<u16>,
    /// All below a first directory, as the gateway suggests it.
    pub(super) path: Option<String>,
    method: Option<String>,
    private: bool,
    /// The client cannot do with a gateway that looks in.
    uninspected: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Kind {
    Https,
    Tcp,
    /// HTTPS that a program has asked the SOCKS5 port for.
    Socks,
    /// A program that asks for an address itself does not use the proxy.
    Name,
}

const MAX_PATH: usize = 200;

const NAME_NOTE: &str = "only if a program needs it: one that looks the name up itself does not \
    use the proxy, and then also needs a tcp rule";
const PRIVATE_NOTE: &str = "only if this host is meant to be in your own network";
const TUNNEL_NOTE: &str = "in place of the rule that has the host inspected, and only if the \
    program cannot do with umwelt's certificates and HTTP/1.1: nothing it sends is looked at then";
const WHOLE_NOTE: &str = "the whole host; narrow it with --path";
const SOCKS_NOTE: &str = "the whole host, for programs that use HTTPS_PROXY; narrow it with --path. \
    One that knows SOCKS5 only needs a tcp rule, which carries anything, in place of it";
/// As the gateway says it.
const TLS_FAILED: &str = "TLS with the client failed";
const NO_HTTP1: &str = "the client offers no HTTP/1.1";
const TCP_NOTE: &str = "the kernel knows addresses only: write the host's name, if it has one. The \
    rule counts from the next start; before, through SOCKS5";

impl Wanted {
    /// `None` where nothing that can be added would have helped.
    pub(super) fn of(record: &Record) -> Option<Wanted> {
        let host = record.host.clone()?;
        let why = record.why.as_deref().unwrap_or_default();
        let is = |refusal: Refusal| why == refusal.as_str();
        let is_private = why.contains("\"private = true\"");
        let is_blind = why.starts_with(TLS_FAILED) || why.starts_with(NO_HTTP1);
        let kind = match record.kind.as_str() {
            "https" | "tunnel" | "websocket" | "tcp" if is_private => kind_of(record),
            "https" if is(Refusal::Host) || is(Refusal::Port) => Kind::Https,
            "https" if is_blind => Kind::Https,
            "https" if is(Refusal::Path) || is(Refusal::Method) => Kind::Https,
            "tcp" if is(Refusal::Host) || is(Refusal::Port) => match record.port {
                Some(HTTPS_PORT) => Kind::Socks,
                _ => Kind::Tcp,
            },
            "dns" => Kind::Name,
            "kernel" if is_reachable(record) => Kind::Tcp,
            _ => return None,
        };
        let path = record.path.as_deref().map(denial::suggest);
        let method = record.method.clone().filter(|_| is(Refusal::Method));
        let wanted = Wanted {
            kind,
            host,
            port: record.port,
            path: path.filter(|_| kind == Kind::Https).map(checked),
            method,
            private: is_private,
            uninspected: is_blind,
        };
        wanted.rule().is_some().then_some(wanted)
    }

    fn rule(&self) -> Option<NewRule> {
        let kind = match self.kind {
            Kind::Tcp => RuleKind::Tcp,
            Kind::Https | Kind::Socks | Kind::Name => RuleKind::Https,
        };
        let path = self.path.as_deref().filter(|path| *path != "*");
        let port = self.port.map(i64::from);
        let mut rule = NewRule::parse(kind, &self.host, port, path).ok()?;
        match &mut rule {
            NewRule::Https(rule) => {
                rule.private = self.private;
                rule.inspect = !self.uninspected;
                if let Some(method) = &self.method {
                    rule.methods = Some(vec![parse_method(method).ok()?]);
                }
            }
            NewRule::Tcp(rule) => rule.private = self.private,
        }
        Some(rule)
    }

    /// `workspace` as a person names it.
    pub(super) fn fix(&self, workspace: &str) -> Option<Fix> {
        let rule = self.rule()?;
        let toml = egress_edit::add(Path::new(".umwelt.toml"), "", &rule).ok()?;
        let note = match self.kind {
            _ if self.private => Some(PRIVATE_NOTE),
            _ if self.uninspected => Some(TUNNEL_NOTE),
            Kind::Name => Some(NAME_NOTE),
            Kind::Socks => Some(SOCKS_NOTE),
            Kind::Https if is_whole(&rule) => Some(WHOLE_NOTE),
            Kind::Tcp if self.host.parse::<IpAddr>().is_ok() => Some(TCP_NOTE),
            _ => None,
        };
        Some(Fix {
            command: command(&rule, workspace),
            toml: toml.trim().to_owned(),
            note,
        })
    }
}

/// CONNECT tells no path, and some paths cannot stand in a rule.
fn is_whole(rule: &NewRule) -> bool {
    matches!(rule, NewRule::Https(rule) if rule.paths == all_paths())
}

fn kind_of(record: &Record) -> Kind {
    match record.kind.as_str() {
        "tcp" => Kind::Tcp,
        _ => Kind::Https,
    }
}

/// Direct tcp rules have IPv4 addresses only, and not every one.
fn is_reachable(record: &Record) -> bool {
    let address = record.host.as_deref().and_then(|host| host.parse().ok());
    record.protocol.as_deref() == Some("tcp")
        && address.is_some_and(|address: IpAddr| {
            let class = AddressClass::of(address);
            address.is_ipv4() && !matches!(class, AddressClass::Unusable(_))
        })
}

/// A quote would end the string in the file, and what is so long helps nobody.
fn checked(path: String) -> String {
    match path.parse::<PathPattern>() {
        Ok(_) if !path.contains('"') && path.len() <= MAX_PATH => path,
        _ => "*".to_owned(),
    }
}

fn command(rule: &NewRule, workspace: &str) -> String {
    let mut words = vec![NAME.to_owned(), "egress".to_owned(), "add".to_owned()];
    match rule {
        NewRule::Https(rule) => {
            words.extend(["https".to_owned(), shell_word(&rule.host.to_string())]);
            if rule.port != HTTPS_PORT {
                words.push(format!("--port {}", rule.port));
            }
            let paths = rule.paths.iter().map(PathPattern::to_string);
            for path in paths.filter(|path| path != "/*") {
                words.push(format!("--path {}", shell_word(&path)));
            }
            for method in rule.methods.iter().flatten() {
                words.push(format!("--method {}", shell_word(method)));
            }
            if !rule.inspect {
                words.push("--no-inspect".to_owned());
            }
            if rule.private {
                words.push("--private".to_owned());
            }
        }
        NewRule::Tcp(rule) => {
            words.extend(["tcp".to_owned(), shell_word(&rule.host.to_string())]);
            words.push(rule.port.to_string());
            if rule.private {
                words.push("--private".to_owned());
            }
        }
    }
    words.push(shell_word(workspace));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctl::audit::record::testing::record;

    fn fix(json: &str) -> Option<Fix> {
        let denied = format!(r#""ts":1,"verdict":"deny",{json}"#);
        Wanted::of(&record(&denied))?.fix("/w")
    }

    #[test]
    fn a_denied_path_gets_a_rule_for_its_directory() {
        let fix = fix(
            r#""kind":"https","method":"GET","host":"git.example.org","port":443,"path":"/other/repo/x",
            "why":"no rule for this host allows the path","status":403"#,
        )
        .unwrap();
        assert_eq!(
            fix.command,
            "umwelt-ctl egress add https git.example.org --path '/other/*' /w"
        );
        assert_eq!(
            fix.toml,
            "[[egress.https]]\nhost = \"git.example.org\"\nport = 443\npaths = [\"/other/*\"]"
        );
    }

    #[test]
    fn hosts_ports_methods_and_addresses_get_theirs() {
        for (json, command) in [
            (
                r#""kind":"https","method":"CONNECT","host":"x.example.org","port":8443,"why":"no rule names this host""#,
                "https x.example.org --port 8443 /w",
            ),
            (
                r#""kind":"https","method":"PUT","host":"x.example.org","port":443,"path":"/a","why":"no rule for this path allows the method""#,
                "https x.example.org --path /a --method PUT /w",
            ),
            (
                r#""kind":"https","method":"GET","host":"x.example.org","port":443,"path":"/a\"b/c","why":"no rule for this host allows the path""#,
                "https x.example.org /w",
            ),
            (
                r#""kind":"https","method":"GET","host":"x.example.org","port":443,"path":"/a/b","why":"the host has the address 10.0.0.1 (private), and no rule with \"private = true\" allows that""#,
                "https x.example.org --path '/a/*' --private /w",
            ),
            (
                r#""kind":"https","method":"CONNECT","host":"x.example.org","port":443,"why":"the client offers no HTTP/1.1; have the person allow the host with inspect = false""#,
                "https x.example.org --no-inspect /w",
            ),
            (
                r#""kind":"tcp","host":"x.example.org","port":22,"why":"no rule names this port of the host""#,
                "tcp x.example.org 22 /w",
            ),
            (
                r#""kind":"tcp","host":"x.example.org","port":443,"why":"no rule names this host""#,
                "https x.example.org /w",
            ),
            (
                r#""kind":"dns","host":"x.example.org","why":"no rule names this host""#,
                "https x.example.org /w",
            ),
            (
                r#""kind":"kernel","protocol":"tcp","host":"203.0.113.5","port":22,"count":3"#,
                "tcp 203.0.113.5 22 /w",
            ),
        ] {
            let expected = format!("umwelt-ctl egress add {command}");
            assert_eq!(fix(json).map(|fix| fix.command), Some(expected), "{json}");
        }
    }

    #[test]
    fn a_rule_that_allows_more_than_was_asked_for_says_so() {
        let note = |json: &str| fix(json).unwrap().note.unwrap_or_default();
        let https = |more: &str| {
            note(&format!(
                r#""kind":"https","host":"x.example.org","port":443,"why":"no rule names this host"{more}"#
            ))
        };
        assert!(https(r#","method":"CONNECT""#).contains("narrow it with --path"));
        assert!(https(r#","method":"GET","path":"/a\"b/c""#).contains("narrow it"));
        assert_eq!(https(r#","method":"GET","path":"/a""#), "");
        let socks = |port: u16| {
            note(&format!(
                r#""kind":"tcp","host":"x.example.org","port":{port},"why":"no rule names this host""#
            ))
        };
        assert!(socks(443).contains("HTTPS_PROXY"));
        assert_eq!(socks(22), "");
    }

    #[test]
    fn what_no_rule_can_allow_gets_none() {
        for json in [
            r#""kind":"https","why":"more than one length","status":400"#,
            r#""kind":"https","host":"x.example.org","port":443,"why":"Host is empty","status":400"#,
            r#""kind":"https","host":"x.example.org","port":80,"why":"plain HTTP is not passed on","status":403"#,
            r#""kind":"https","host":"$(reboot)","port":443,"why":"no rule names this host""#,
            r#""kind":"https","host":"a b","port":443,"why":"no rule names this host""#,
            r#""kind":"tcp","host":"x.example.org","port":0,"why":"no rule names this host""#,
            r#""kind":"kernel","protocol":"udp","host":"203.0.113.5","port":53"#,
            r#""kind":"kernel","protocol":"icmp","host":"203.0.113.5","port":2048"#,
            r#""kind":"kernel","protocol":"tcp","host":"2001:db8::5","port":22"#,
            r#""kind":"kernel","protocol":"tcp","host":"224.0.0.1","port":22"#,
            r#""kind":"https","method":"get;x","host":"x.example.org","port":443,"path":"/a","why":"no rule for this path allows the method""#,
        ] {
            assert_eq!(fix(json), None, "{json}");
        }
    }

    #[test]
    fn a_rule_that_is_suggested_can_be_pasted() {
        let fix = Wanted::of(&record(
            r#""ts":1,"kind":"https","verdict":"deny","host":"x.example.org","port":443,
            "path":"/a$(id)/b","why":"no rule for this host allows the path""#,
        ))
        .and_then(|wanted| wanted.fix("/w s/it's"))
        .unwrap();
        assert_eq!(
            fix.command,
            r"umwelt-ctl egress add https x.example.org --path '/a$(id)/*' '/w s/it'\''s'"
        );
    }
}
