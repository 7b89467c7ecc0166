//! `[[egress.expect]]`: a place on the network, and whether it should be
//! reachable. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::config::rule::HTTPS_PORT;
use crate::policy::egress::{HostPattern, RuleOrigin};
use crate::policy::url::Url;

/// A check that can be made from inside a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expectation {
    pub(crate) target: Target,
    pub(crate) verdict: Verdict,
    pub(crate) origin: RuleOrigin,
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// `https://host[:port]/path`: a GET request.
    Https {
        host: HostPattern,
        port: u16,
        path: String,
    },
    /// `tcp://host:port`: a connection.
    Tcp { host: HostPattern, port: u16 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Allow,
    Deny,
}

impl Verdict {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Verdict::Allow => "allow",
            Verdict::Deny => "deny",
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, host, port, path) = match self {
            Target::Https { host, port, path } => ("https", host, port, path.as_str()),
            Target::Tcp { host, port } => ("tcp", host, port, ""),
        };
        match host {
            HostPattern::Address(address) if address.is_ipv6() => {
                write!(f, "{scheme}://[{address}]")?;
            }
            host => write!(f, "{scheme}://{host}")?,
        }
        if (scheme, *port) != ("https", HTTPS_PORT) {
            write!(f, ":{port}")?;
        }
        f.write_str(path)
    }
}

impl Target {
    pub(crate) fn parse(text: &str) -> Result<Target, String> {
        let url: Url = text
            .parse()
            .map_err(|why| format!("is not a usable URL: {why}"))?;
        if url.has_credentials {
            return Err("must not hold a user name or a password".to_owned());
        }
        if url.has_query {
            return Err(
                "must not hold a \"?\" or \"#\": the policy does not look at these".to_owned(),
            );
        }
        match (url.scheme.as_str(), url.port) {
            ("https", port) => Ok(Target::Https {
                host: url.host,
                port: port.unwrap_or(HTTPS_PORT),
                path: url.path,
            }),
            ("tcp", Some(port)) if url.path == "/" => Ok(Target::Tcp {
                host: url.host,
                port,
            }),
            ("tcp", _) => Err("must have the form \"tcp://host:port\"".to_owned()),
            _ => Err("must begin with \"https://\" or \"tcp://\"".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn https_has_a_default_port_and_tcp_has_none() {
        let host: HostPattern = "example.org".parse().unwrap();
        let https = |port, path: &str| {
            Ok(Target::Https {
                host: host.clone(),
                port,
                path: path.to_owned(),
            })
        };
        assert_eq!(Target::parse("https://example.org"), https(443, "/"));
        assert_eq!(Target::parse("https://example.org:99/a"), https(99, "/a"));
        for text in [
            "https://example.org/",
            "https://[2001:db8::1]:99/a",
            "tcp://example.org:443",
        ] {
            assert_eq!(Target::parse(text).unwrap().to_string(), text);
        }
        let tcp = Target::Tcp {
            host: host.clone(),
            port: 22,
        };
        assert_eq!(Target::parse("tcp://example.org:22"), Ok(tcp));
        for wrong in [
            "tcp://example.org",
            "tcp://example.org:22/x",
            "http://example.org/",
            "https://u:p@example.org/",
            "https://example.org/?q",
            "example.org",
        ] {
            assert!(Target::parse(wrong).is_err(), "{wrong}");
        }
    }
}
