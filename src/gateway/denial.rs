//! What the gateway answers by itself -> an HTTP response whose body says what
//! happened, why, and what to ask for. Pure.

use serde::Serialize;

use crate::gateway::http::authority::Authority;
use crate::policy::decide::{Host, Rules};
use crate::policy::egress::{HttpsRule, PathPattern, RuleOrigin};

/// Rules that are shown in one answer.
const MAX_RULES: usize = 8;

/// Why the gateway answers instead of a server: code, status, reason phrase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    Denied,
    BadRequest,
    Timeout,
    Expectation,
    TooLarge,
    NotImplemented,
    Upstream,
    AuditUnavailable,
    UpstreamTimeout,
    Version,
}

impl Cause {
    pub(crate) fn status(self) -> u16 {
        match self {
            // 505 would be the server's fault.
            Cause::BadRequest | Cause::Version => 400,
            Cause::Denied => 403,
            Cause::Timeout => 408,
            Cause::Expectation => 417,
            Cause::TooLarge => 431,
            Cause::NotImplemented => 501,
            Cause::Upstream => 502,
            Cause::AuditUnavailable => 503,
            Cause::UpstreamTimeout => 504,
        }
    }

    fn code(self) -> &'static str {
        match self {
            Cause::Denied => "egress_denied",
            Cause::BadRequest => "bad_request",
            Cause::Timeout => "request_timeout",
            Cause::Expectation => "expectation_failed",
            Cause::TooLarge => "head_too_large",
            Cause::NotImplemented => "not_implemented",
            Cause::Upstream => "upstream_failed",
            Cause::AuditUnavailable => "audit_unavailable",
            Cause::UpstreamTimeout => "upstream_timeout",
            Cause::Version => "http_version",
        }
    }

    /// Clients often show nothing of a failed CONNECT but this line.
    fn phrase(self) -> &'static str {
        match self {
            Cause::Denied => "Denied by the egress policy (ask for it with the egress tool)",
            Cause::BadRequest => "Bad Request",
            Cause::Timeout => "Request Timeout",
            Cause::Expectation => "Expectation Failed",
            Cause::TooLarge => "Request Header Fields Too Large",
            Cause::NotImplemented => "Not Implemented",
            Cause::Upstream => "Bad Gateway",
            Cause::AuditUnavailable => "Egress audit cannot be written",
            Cause::UpstreamTimeout => "Gateway Timeout",
            Cause::Version => "HTTP Version Not Supported",
        }
    }
}

/// An answer in the making.
#[derive(Debug, Clone)]
pub(crate) struct Denial {
    pub(crate) cause: Cause,
    pub(crate) reason: String,
    pub(crate) hint: Option<String>,
    /// The body is called plain text: git shows no other.
    pub(crate) is_text: bool,
}

impl Denial {
    pub(crate) fn new(cause: Cause, reason: impl Into<String>) -> Denial {
        Denial {
            cause,
            reason: reason.into(),
            hint: None,
            is_text: false,
        }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Denial {
        self.hint = Some(hint.into());
        self
    }
}

/// What the client wanted, as far as that is known.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) target: Option<&'a Authority>,
    pub(crate) method: Option<&'a str>,
    pub(crate) path: Option<&'a str>,
}

#[derive(Serialize)]
struct Body<'a> {
    error: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    reason: &'a str,
    workspace: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rules: Vec<Shown<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ask: Option<Ask>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
}

/// A rule that is about the host and did not fit.
#[derive(Serialize)]
struct Shown<'a> {
    host: String,
    port: u16,
    paths: &'a [PathPattern],
    #[serde(skip_serializing_if = "Option::is_none")]
    methods: Option<&'a [String]>,
    origin: &'a RuleOrigin,
}

/// The call that a model can make as it stands.
#[derive(Serialize)]
struct Ask {
    tool: &'static str,
    arguments: Arguments,
}

#[derive(Serialize)]
struct Arguments {
    op: &'static str,
    kind: &'static str,
    host: String,
    port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    paths: Option<String>,
}

/// The JSON body.
fn body(denial: &Denial, wanted: &Wanted<'_>, rules: &Rules) -> Vec<u8> {
    let is_denied = denial.cause == Cause::Denied;
    let ask = wanted.target.filter(|_| is_denied && denial.hint.is_none());
    let body = Body {
        error: denial.cause.code(),
        host: wanted.target.map(|target| bare(&target.host)),
        port: wanted.target.map(|target| target.port),
        method: wanted.method,
        path: wanted.path,
        reason: &denial.reason,
        workspace: &rules.policy().workspace,
        rules: match (wanted.target, is_denied) {
            (Some(target), true) => rules
                .https(&target.host, target.port)
                .take(MAX_RULES)
                .map(shown)
                .collect(),
            _ => Vec::new(),
        },
        ask: ask.map(|target| Ask {
            tool: "egress",
            arguments: Arguments {
                op: "add",
                kind: "https",
                host: bare(&target.host),
                port: target.port,
                paths: wanted.path.map(suggest),
            },
        }),
        hint: denial.hint.as_deref(),
    };
    let mut text = serde_json::to_vec(&body).unwrap_or_default();
    text.push(b'\n');
    text
}

fn shown(rule: &HttpsRule) -> Shown<'_> {
    Shown {
        host: rule.host.to_string(),
        port: rule.port,
        paths: &rule.paths,
        methods: rule.methods.as_deref(),
        origin: &rule.origin,
    }
}

/// As a rule has it: an IPv6 address without brackets.
pub(crate) fn bare(host: &Host) -> String {
    match host {
        Host::Name(name) => name.clone(),
        Host::Address(address) => address.to_string(),
    }
}

/// What to ask for to have `path` allowed: all below its first directory.
pub(crate) fn suggest(path: &str) -> String {
    let rest = path.strip_prefix('/').unwrap_or(path);
    match rest.split_once('/') {
        // A pattern is a plain path.
        Some((first, _)) if !first.contains(['%', ';', '*']) => format!("/{first}/*"),
        None if !rest.contains(['%', ';', '*']) => path.to_owned(),
        _ => "*".to_owned(),
    }
}

/// How the answer is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sending {
    pub(crate) close: bool,
    /// The request was HEAD.
    pub(crate) bodyless: bool,
}

pub(crate) fn response(
    denial: &Denial,
    wanted: &Wanted<'_>,
    rules: &Rules,
    sending: Sending,
) -> Vec<u8> {
    let body = body(denial, wanted, rules);
    let connection = if sending.close {
        "Connection: close\r\n"
    } else {
        ""
    };
    let content = match denial.is_text {
        true => "text/plain",
        false => "application/json",
    };
    let mut out = format!(
        "HTTP/1.1 {} {}\r\nContent-Type: {content}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n{connection}\r\n",
        denial.cause.status(),
        denial.cause.phrase(),
        body.len(),
    )
    .into_bytes();
    if !sending.bodyless {
        out.extend_from_slice(&body);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        Rules::from_json(
            br#"{"version":1,"workspace":"0123abcd","https":[{"host":"*.example.org","port":443,"paths":["/u/*"],"methods":["GET"],"inspect":true,"private":false,"origin":{"registry":"pip"}}],"tcp":[],"hosts":[]}"#,
        )
        .unwrap()
    }

    fn answer(denial: &Denial, wanted: &Wanted<'_>, bodyless: bool) -> (String, String) {
        let sending = Sending {
            close: true,
            bodyless,
        };
        let text = String::from_utf8(response(denial, wanted, &rules(), sending)).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    #[test]
    fn a_denial_names_the_call_that_would_ask_for_it() {
        let target = Authority::from_connect("a.example.org:443").unwrap();
        let wanted = Wanted {
            target: Some(&target),
            method: Some("GET"),
            path: Some("/x/y/z"),
        };
        let denial = Denial::new(Cause::Denied, "no rule for this host allows the path");
        let (head, body) = answer(&denial, &wanted, false);
        assert!(head.starts_with("HTTP/1.1 403 Denied"));
        assert!(head.contains("Connection: close"));
        assert!(head.contains("Content-Type: application/json"));
        let value: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(value["error"], "egress_denied");
        assert_eq!(value["workspace"], "0123abcd");
        assert_eq!(value["rules"][0]["origin"]["registry"], "pip");
        let ask = serde_json::json!({"tool": "egress", "arguments": {
            "op": "add", "kind": "https", "host": "a.example.org", "port": 443, "paths": "/x/*"}});
        assert_eq!(value["ask"], ask);
    }

    #[test]
    fn what_is_called_plain_text_says_the_same() {
        let denial = Denial::new(Cause::Denied, "no");
        let text = Denial {
            is_text: true,
            ..denial.clone()
        };
        let (head, body) = answer(&text, &Wanted::default(), false);
        assert!(head.contains("Content-Type: text/plain"));
        assert_eq!(body, answer(&denial, &Wanted::default(), false).1);
    }

    #[test]
    fn a_head_request_gets_the_length_and_no_body() {
        let denial = Denial::new(Cause::Denied, "no");
        let (head, body) = answer(&denial, &Wanted::default(), true);
        assert!(!head.contains("Content-Length: 0") && body.is_empty());
    }

    #[test]
    fn suggested_paths_are_patterns() {
        for (path, pattern) in [
            ("/", "/"),
            ("/a", "/a"),
            ("/a/b/c", "/a/*"),
            ("/a%20b/c", "*"),
            ("/a;b", "*"),
        ] {
            assert_eq!(suggest(path), pattern);
            assert!(pattern.parse::<PathPattern>().is_ok());
        }
    }

    #[test]
    fn other_answers_ask_for_nothing() {
        let target = Authority::from_connect("[2001:db8::1]:443").unwrap();
        let wanted = Wanted {
            target: Some(&target),
            ..Wanted::default()
        };
        let denial = Denial::new(Cause::Upstream, "refused").hint("try again");
        let (_, body) = answer(&denial, &wanted, false);
        let value: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(value["host"], "2001:db8::1");
        assert_eq!(
            (value.get("ask"), value["hint"].as_str()),
            (None, Some("try again"))
        );
    }
}
