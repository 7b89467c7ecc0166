//! `host:port` in a CONNECT request or a `Host` field -> the target. Pure.
//!
//! CONNECT says where the connection goes. SNI and `Host` must say the same, or
//! an allowed name would open the way to another one.

use std::fmt;

use crate::policy::decide::Host;

/// Where a connection goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Authority {
    pub(crate) host: Host,
    pub(crate) port: u16,
}

impl Authority {
    /// From the target of CONNECT, which has a port always.
    pub(crate) fn from_connect(text: &str) -> Result<Authority, String> {
        match split(text)? {
            (host, Some(port)) => Ok(Authority { host, port }),
            (_, None) => Err(format!("{text:?} lacks a port")),
        }
    }

    /// From a `Host` field, where no port means that of the scheme.
    pub(crate) fn from_host_field(text: &str, default: u16) -> Result<Authority, String> {
        split(text).map(|(host, port)| Authority {
            host,
            port: port.unwrap_or(default),
        })
    }

    /// As it stands in the `Host` field of what is forwarded.
    pub(crate) fn host_field(&self) -> String {
        match self.port {
            443 => self.host.to_string(),
            port => format!("{}:{port}", self.host),
        }
    }

    /// Whether the name in a ClientHello is that of this target. An address
    /// has no name there.
    pub(crate) fn agrees_with_sni(&self, sni: Option<&str>) -> bool {
        match (&self.host, sni) {
            (Host::Name(name), Some(sni)) => {
                Host::parse(sni, true).is_ok_and(|host| host == Host::Name(name.clone()))
            }
            (Host::Address(_), None) => true,
            _ => false,
        }
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

fn split(text: &str) -> Result<(Host, Option<u16>), String> {
    let after_host = match text.strip_prefix('[') {
        Some(rest) => rest.find(']').map_or(text.len(), |at| at + 2),
        None => text.find(':').unwrap_or(text.len()),
    };
    let (host, rest) = text
        .split_at_checked(after_host)
        .ok_or_else(|| format!("{text:?} is not a host and port"))?;
    let host = Host::parse(host, true)?;
    if rest.is_empty() {
        return Ok((host, None));
    }
    let digits = rest.strip_prefix(':').unwrap_or_default();
    // u16::from_str takes "+443", and any number of zeros.
    let is_plain = (1..=5).contains(&digits.len())
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && !digits.starts_with('0');
    match digits.parse() {
        Ok(port) if is_plain => Ok((host, Some(port))),
        _ => Err(format!("{text:?} has no usable port")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(text: &str) -> Option<String> {
        Authority::from_connect(text)
            .ok()
            .map(|target| target.to_string())
    }

    #[test]
    fn targets_have_one_form() {
        assert_eq!(
            connect("a.example.org:443").as_deref(),
            Some("a.example.org:443")
        );
        assert_eq!(
            connect("A.EXAMPLE.org.:8443").as_deref(),
            Some("a.example.org:8443")
        );
        assert_eq!(connect("192.0.2.1:1").as_deref(), Some("192.0.2.1:1"));
        assert_eq!(
            connect("[2001:DB8:0::1]:65535").as_deref(),
            Some("[2001:db8::1]:65535")
        );
        for wrong in [
            "",
            ":",
            ":443",
            "a.example.org",
            "a.example.org:",
            "a.example.org:0",
            "a.example.org:65536",
            "a.example.org:+443",
            "a.example.org:0443",
            "a.example.org:443 ",
            " a.example.org:443",
            "a.example.org:443:443",
            "http://a.example.org:443",
            "user@a.example.org:443",
            "a.example.org:443/x",
            "2001:db8::1:443",
            "[2001:db8::1]443",
            "[2001:db8::1",
            "[]:443",
            "[192.0.2.1]:443",
            "a..example.org:443",
            "0x7f000001:443",
            "127.1:443",
            "a.example.org..:443",
            "a\u{e9}.example:443",
            "[::1]x:443",
        ] {
            assert_eq!(connect(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn host_fields_name_the_same_target_or_not() {
        let target = Authority::from_connect("a.example.org:443").unwrap();
        let agrees =
            |text: &str| Authority::from_host_field(text, 443).is_ok_and(|host| host == target);
        for same in [
            "a.example.org",
            "A.Example.Org",
            "a.example.org.",
            "a.example.org:443",
        ] {
            assert!(agrees(same), "{same}");
        }
        for other in [
            "b.example.org",
            "a.example.org:8443",
            "a.example.org:80",
            "example.org",
            "a.example.org.evil.example",
            "a.example.org, b.example.org",
            "",
            "a.example.org#",
            "a.example.org@b.example.org",
            "192.0.2.1",
        ] {
            assert!(!agrees(other), "{other}");
        }
        let odd_port = Authority::from_connect("a.example.org:8443").unwrap();
        assert_ne!(
            Authority::from_host_field("a.example.org", 443),
            Ok(odd_port)
        );
    }

    #[test]
    fn sni_names_the_target_and_addresses_have_none() {
        let named = Authority::from_connect("a.example.org:443").unwrap();
        assert!(named.agrees_with_sni(Some("A.example.org")));
        for sni in [None, Some("b.example.org"), Some("192.0.2.1"), Some("")] {
            assert!(!named.agrees_with_sni(sni), "{sni:?}");
        }
        let literal = Authority::from_connect("[2001:db8::1]:443").unwrap();
        assert!(literal.agrees_with_sni(None));
        assert!(!literal.agrees_with_sni(Some("a.example.org")));
    }

    #[test]
    fn forwarded_host_has_the_port_only_where_needed() {
        let field = |text: &str| Authority::from_connect(text).unwrap().host_field();
        assert_eq!(field("a.example.org:443"), "a.example.org");
        assert_eq!(field("[2001:db8::1]:8443"), "[2001:db8::1]:8443");
    }
}
