//! A URL, as configuration files hold it -> what a rule can be made of. Pure.
//!
//! Credentials, query and fragment are dropped at once, and no error repeats
//! the text: it may hold a password.

use std::fmt;
use std::str::FromStr;

use crate::policy::egress::HostPattern;

/// Longest URL that is looked at, in bytes.
const MAX_LENGTH: usize = 2048;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Url {
    /// Lower case.
    pub(crate) scheme: String,
    /// A name or an address, never a suffix.
    pub(crate) host: HostPattern,
    pub(crate) port: Option<u16>,
    /// Begins with a `/`.
    pub(crate) path: String,
    pub(crate) has_credentials: bool,
    pub(crate) has_query: bool,
}

impl FromStr for Url {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Url, &'static str> {
        if text.len() > MAX_LENGTH {
            return Err("it is longer than 2048 bytes");
        }
        if text.bytes().any(|byte| !byte.is_ascii_graphic()) {
            return Err("it must be of printable ASCII without spaces");
        }
        let (scheme, rest) = text.split_once("://").ok_or("it has no \"://\"")?;
        let is_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
        if scheme.is_empty() || !scheme.bytes().all(is_scheme) {
            return Err("what stands before \"://\" is not a scheme");
        }
        // Clients read "\" as "/" and would find another host than we do.
        if rest.contains('\\') {
            return Err("it contains a \"\\\"");
        }
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        let path_end = rest.find(['?', '#']).unwrap_or(rest.len());
        let (path, query) = rest.split_at(path_end);
        let (credentials, place) = match authority.rsplit_once('@') {
            Some((credentials, place)) => (Some(credentials), place),
            None => (None, authority),
        };
        let (host, port) = split_port(place)?;
        Ok(Url {
            scheme: scheme.to_ascii_lowercase(),
            host: parse_host(host)?,
            port,
            path: if path.is_empty() { "/" } else { path }.to_owned(),
            has_credentials: credentials.is_some(),
            has_query: !query.is_empty(),
        })
    }
}

fn split_port(place: &str) -> Result<(&str, Option<u16>), &'static str> {
    let (host, port) = match place.rsplit_once(':') {
        // Within brackets the colons belong to the address.
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ => return Ok((place, None)),
    };
    match port.parse() {
        Ok(port @ 1..) if place.is_ascii() => Ok((host, Some(port))),
        _ => Err("its port is not a number between 1 and 65535"),
    }
}

fn parse_host(host: &str) -> Result<HostPattern, &'static str> {
    // Without brackets the last part of the address would be its port.
    let is_bare_address = host.contains(':') && !host.starts_with('[');
    match host.parse() {
        Ok(HostPattern::Suffix(_)) | Err(_) => Err("its host is not a host name or an address"),
        Ok(_) if is_bare_address => Err("an IPv6 address needs \"[\" and \"]\""),
        Ok(host) => Ok(host),
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            HostPattern::Address(address) if address.is_ipv6() => {
                write!(f, "{}://[{address}]", self.scheme)?;
            }
            host => write!(f, "{}://{host}", self.scheme)?,
        }
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        f.write_str(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parts_are_told_apart_and_credentials_are_dropped() {
        let url: Url = "HTTPS://us@er:s3cret@Git.Example.org:8443/a/b?token=x#y"
            .parse()
            .unwrap();
        assert_eq!(url.to_string(), "https://git.example.org:8443/a/b");
        assert!(url.has_credentials && url.has_query);
        assert!(!format!("{url:?}").contains("s3cret"));
        let url: Url = "https://[2001:db8::1]:99".parse().unwrap();
        assert_eq!(url.to_string(), "https://[2001:db8::1]:99/");
        let url: Url = "https://example.org?x".parse().unwrap();
        assert_eq!((url.path.as_str(), url.port), ("/", None));
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for wrong in [
            "",
            "example.org",
            "://example.org",
            "https://",
            "https:///path",
            "https://example.org:0/",
            "https://example.org:65536/",
            "https://example.org:/",
            "https://2001:db8::1/",
            "https://*.example.org/",
            "https://0x7f.1/",
            "https://example.org\\@example.com/",
            "https://example.org/\n",
            "https://exa mple.org/",
            "h ttps://example.org/",
        ] {
            assert!(wrong.parse::<Url>().is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_survived_and_what_is_read_reads_back(
            text in "(https?://)?[a-z:@/?#\\[\\]\\\\.0-9*-]{0,24}"
        ) {
            if let Ok(url) = text.parse::<Url>() {
                let again: Url = url.to_string().parse().unwrap();
                prop_assert_eq!(url.to_string(), again.to_string());
            }
        }
    }
}
