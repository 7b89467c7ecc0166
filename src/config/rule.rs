//! Single values of egress rules, with an answer to what people write in their
//! place. Pure.

use std::net::IpAddr;

use crate::policy::egress::{HostPattern, PathPattern, parse_name};

pub(crate) const HTTPS_PORT: u16 = 443;

/// What `paths` is where it is left out.
pub(crate) fn all_paths() -> Vec<PathPattern> {
    vec![PathPattern::Prefix("/".to_owned())]
}

/// The host of a rule, with an answer to what people write in its place.
pub(crate) fn parse_host(text: &str) -> Result<HostPattern, String> {
    // Not repeated: it may hold a password.
    if text.contains("://") || text.contains('@') {
        return Err("is a URL; write only its host".to_owned());
    }
    match text.parse() {
        Ok(host) if is_loopback(&host) => Err(format!(
            "{text:?} is the sandbox itself there, never this host; let the service listen on another address of this host and write that one (see \"A service on this host\" in egress.md)"
        )),
        Ok(HostPattern::Address(address)) => check_address(address).map(HostPattern::Address),
        Ok(host) => Ok(host),
        Err(_) if text == "*" => Err(
            "no rule is for all hosts; write one host, or \"*.example.org\" for all below a name"
                .to_owned(),
        ),
        Err(_) if is_range(text) => Err(format!(
            "{text:?} is a range of addresses; a rule names one host or one address"
        )),
        Err(_) if text.contains('/') => Err(format!(
            "{text:?} holds a path; write it into the key \"paths\""
        )),
        Err(_) if has_port(text) => Err(format!(
            "{text:?} holds a port; write it into the key \"port\""
        )),
        Err(message) => Err(message),
    }
}

pub(crate) fn parse_tcp_host(text: &str) -> Result<HostPattern, String> {
    match parse_host(text)? {
        HostPattern::Suffix(_) => Err(format!(
            "{text:?} stands for many names, whose addresses cannot be known beforehand; write one name for each rule"
        )),
        host => Ok(host),
    }
}

fn is_range(text: &str) -> bool {
    text.split_once('/').is_some_and(|(address, length)| {
        address.parse::<IpAddr>().is_ok() && length.parse::<u8>().is_ok()
    })
}

/// The sandbox and the gateway have one of their own, and programs do not ask
/// a proxy for it.
fn is_loopback(host: &HostPattern) -> bool {
    match host {
        HostPattern::Name(name) | HostPattern::Suffix(name) => is_localhost(name),
        HostPattern::Address(address) => address.is_loopback(),
    }
}

fn is_localhost(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost")
}

fn has_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        is_port && host.parse::<HostPattern>().is_ok()
    })
}

pub(crate) fn parse_port(port: i64) -> Result<u16, String> {
    match u16::try_from(port) {
        Ok(port @ 1..) => Ok(port),
        _ => Err(format!("{port} is not a port between 1 and 65535")),
    }
}

pub(crate) fn parse_method(text: &str) -> Result<String, String> {
    let is_word = |byte: u8| byte.is_ascii_uppercase() || byte == b'-';
    match text {
        "CONNECT" | "TRACE" => Err(format!("{text:?} is never passed on by the gateway")),
        _ if (1..=32).contains(&text.len()) && text.bytes().all(is_word) => Ok(text.to_owned()),
        _ => Err(format!(
            "{text:?} is not a method; write it in upper case, like \"GET\""
        )),
    }
}

pub(crate) fn parse_host_name(text: &str) -> Result<String, String> {
    if text.parse::<IpAddr>().is_ok() {
        return Err(format!("{text:?} is an address, which needs no entry"));
    }
    let name = parse_name(text)?;
    if is_localhost(&name) {
        return Err(format!("{text:?} always means the sandbox itself"));
    }
    Ok(name)
}

pub(crate) fn parse_address(text: &str) -> Result<IpAddr, String> {
    let address = text.parse().map_err(|_| {
        format!("{text:?} is not an address; write it like \"192.0.2.1\" or \"2001:db8::1\"")
    })?;
    check_address(address)
}

/// One way to write each address, and only those that a connection can go to.
fn check_address(address: IpAddr) -> Result<IpAddr, String> {
    let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    if address.is_unspecified() || address.is_multicast() || is_broadcast {
        return Err(format!("\"{address}\" is not the address of a host"));
    }
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => Err(format!(
            "\"{v6}\" is an IPv4 address in another form; write \"{}\"",
            v6.to_canonical()
        )),
        _ => Ok(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_with_a_scheme_a_port_or_a_path_say_where_these_belong() {
        let cases = [
            ("https://u:s3cret@example.org", "is a URL"),
            ("u:s3cret@example.org", "is a URL"),
            ("example.org:8443", "key \"port\""),
            ("[2001:db8::1]:443", "key \"port\""),
            ("example.org/a", "key \"paths\""),
            ("10.0.0.0/8", "is a range of addresses; a rule names one"),
            ("2001:db8::/32", "is a range of addresses"),
            ("192.0.2.1/a", "key \"paths\""),
            ("*", "no rule is for all hosts"),
            ("0x7f.1", "could be read as an address"),
            ("0.0.0.0", "not the address of a host"),
            ("224.0.0.1", "not the address of a host"),
            ("255.255.255.255", "not the address of a host"),
            ("ff02::1", "not the address of a host"),
            ("::ffff:192.0.2.1", "write \"192.0.2.1\""),
            ("*.org", "too wide"),
            ("LOCALHOST.", "is the sandbox itself there"),
            ("db.localhost", "another address of this host"),
            ("*.db.localhost", "is the sandbox itself there"),
            ("127.1.2.3", "\"127.1.2.3\" is the sandbox itself there"),
            ("::1", "is the sandbox itself there"),
        ];
        for (text, expected) in cases {
            let message = parse_host(text).unwrap_err();
            assert!(message.contains(expected), "{text}: {message}");
            assert!(!message.contains("s3cret"), "{message}");
        }
        assert!(parse_host("*.example.org").is_ok());
        assert!(parse_tcp_host("*.example.org").is_err());
        assert!(parse_tcp_host("[2001:db8::1]").is_ok());
    }

    #[test]
    fn ports_methods_and_names_have_their_bounds() {
        assert_eq!(parse_port(65535), Ok(65535));
        for wrong in [0, -1, 65536, i64::MAX] {
            assert!(parse_port(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_method("M-SEARCH"), Ok("M-SEARCH".to_owned()));
        for wrong in ["", "get", "G T", "CONNECT", "TRACE", "GET,POST"] {
            assert!(parse_method(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_host_name("A.Example."), Ok("a.example".to_owned()));
        for wrong in ["localhost", "a.localhost", "192.0.2.1", "*.example.org", ""] {
            assert!(parse_host_name(wrong).is_err(), "{wrong}");
        }
        assert!(parse_address("2001:db8::1").is_ok());
        for wrong in ["::", "example.org", "192.0.2.1:80", "0x7f.1", "010.0.0.1"] {
            assert!(parse_address(wrong).is_err(), "{wrong}");
        }
    }
}
