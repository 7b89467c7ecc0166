//! SOCKS5 (RFC 1928) without authentication, CONNECT only. Pure.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustix::io::Errno;

use crate::gateway::http::authority::Authority;
use crate::gateway::upstream::dial::DialError;
use crate::policy::decide::Host;

const VERSION: u8 = 5;

/// What a client has asked for, as far as it can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Whether it can do without authentication; with the length.
    Greeting {
        open: bool,
        length: usize,
    },
    Connect {
        target: Authority,
        length: usize,
    },
    /// What to answer to a request that cannot be served, and why.
    Refused(Reply, String),
}

/// The codes of section 6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Reply {
    Succeeded = 0,
    Failure = 1,
    NotAllowed = 2,
    NetworkUnreachable = 3,
    HostUnreachable = 4,
    Refused = 5,
    Command = 7,
    AddressType = 8,
}

impl Reply {
    pub(crate) fn of(error: &DialError) -> Reply {
        match error {
            DialError::Forbidden { .. } => Reply::NotAllowed,
            DialError::Resolve(_) | DialError::Timeout => Reply::HostUnreachable,
            DialError::Connect(error) => match error.kind() {
                ErrorKind::ConnectionRefused => Reply::Refused,
                _ if error.raw_os_error() == Some(Errno::NETUNREACH.raw_os_error()) => {
                    Reply::NetworkUnreachable
                }
                _ => Reply::HostUnreachable,
            },
        }
    }
}

/// The bound address is nobody's business.
pub(crate) fn reply(code: Reply) -> [u8; 10] {
    [VERSION, code as u8, 0, 1, 0, 0, 0, 0, 0, 0]
}

/// The answer to a greeting.
pub(crate) fn method(open: bool) -> [u8; 2] {
    [VERSION, if open { 0 } else { 0xff }]
}

/// None while more is needed.
pub(crate) fn greeting(bytes: &[u8]) -> Option<Asked> {
    match bytes {
        [] => None,
        [VERSION] => None,
        [VERSION, count, rest @ ..] => {
            let methods = rest.get(..usize::from(*count))?;
            Some(Asked::Greeting {
                open: methods.contains(&0),
                length: 2 + methods.len(),
            })
        }
        [version, ..] => Some(Asked::Refused(
            Reply::Failure,
            format!("version {version} is not SOCKS5"),
        )),
    }
}

/// None while more is needed.
pub(crate) fn request(bytes: &[u8]) -> Option<Asked> {
    let (&[version, command, reserved, kind], rest) = bytes.split_first_chunk::<4>()?;
    let refused = |reply, why: &str| Some(Asked::Refused(reply, why.to_owned()));
    if version != VERSION || reserved != 0 {
        return refused(Reply::Failure, "the request is malformed");
    }
    let (host, after) = match kind {
        1 => {
            let (octets, after) = rest.split_first_chunk::<4>()?;
            (
                Ok(Host::Address(IpAddr::V4(Ipv4Addr::from(*octets)))),
                after,
            )
        }
        4 => {
            let (octets, after) = rest.split_first_chunk::<16>()?;
            (
                Ok(Host::Address(IpAddr::V6(Ipv6Addr::from(*octets)))),
                after,
            )
        }
        3 => {
            let (length, after) = rest.split_first()?;
            let (name, after) = after.split_at_checked(usize::from(*length))?;
            (parse_name(name), after)
        }
        _ => return refused(Reply::AddressType, "the address type is not known"),
    };
    let (port, _) = after.split_first_chunk::<2>()?;
    if command != 1 {
        return refused(Reply::Command, "CONNECT is the only command");
    }
    Some(match host {
        Ok(host) => Asked::Connect {
            target: Authority {
                host,
                port: u16::from_be_bytes(*port),
            },
            length: bytes.len() - after.len() + 2,
        },
        Err(why) => Asked::Refused(Reply::NotAllowed, why),
    })
}

/// Names; also addresses in their text form, which some clients send so.
fn parse_name(name: &[u8]) -> Result<Host, String> {
    let name = std::str::from_utf8(name).map_err(|_| "the name is not text".to_owned())?;
    Host::parse(name, false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert, proptest};

    fn connect(bytes: &[u8]) -> Option<String> {
        match request(bytes) {
            Some(Asked::Connect { target, length }) => {
                assert_eq!(length, bytes.len());
                Some(target.to_string())
            }
            Some(other) => Some(format!("{other:?}")),
            None => None,
        }
    }

    #[test]
    fn a_greeting_offers_no_authentication_or_is_turned_away() {
        assert_eq!(
            greeting(&[5, 1, 0]),
            Some(Asked::Greeting {
                open: true,
                length: 3
            })
        );
        assert_eq!(
            greeting(&[5, 2, 2, 0, 5]),
            Some(Asked::Greeting {
                open: true,
                length: 4
            })
        );
        assert_eq!(
            greeting(&[5, 1, 2]),
            Some(Asked::Greeting {
                open: false,
                length: 3
            })
        );
        assert_eq!(
            greeting(&[5, 0]),
            Some(Asked::Greeting {
                open: false,
                length: 2
            })
        );
        assert_eq!(greeting(&[5, 2, 0]), None);
        assert!(matches!(greeting(&[4, 1]), Some(Asked::Refused(..))));
        assert!(matches!(greeting(b"GET "), Some(Asked::Refused(..))));
    }

    #[test]
    fn names_and_addresses_are_read() {
        let mut named = vec![5, 1, 0, 3, 15];
        named.extend_from_slice(b"Git.example.org");
        named.extend_from_slice(&[0, 22]);
        assert_eq!(connect(&named).as_deref(), Some("git.example.org:22"));
        assert_eq!(
            connect(&[5, 1, 0, 1, 192, 0, 2, 1, 1, 187]).as_deref(),
            Some("192.0.2.1:443")
        );
        let mut v6 = vec![5, 1, 0, 4];
        v6.extend_from_slice(&"2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
        v6.extend_from_slice(&[0, 80]);
        assert_eq!(connect(&v6).as_deref(), Some("[2001:db8::1]:80"));
        for cut in 0..named.len() {
            assert_eq!(request(&named[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn other_commands_and_odd_names_are_refused() {
        let refused = |bytes: &[u8], wanted: Reply| {
            assert!(
                matches!(request(bytes), Some(Asked::Refused(reply, _)) if reply == wanted),
                "{bytes:?}"
            );
        };
        refused(&[5, 2, 0, 1, 192, 0, 2, 1, 0, 80], Reply::Command);
        refused(&[5, 3, 0, 1, 192, 0, 2, 1, 0, 80], Reply::Command);
        refused(&[5, 1, 0, 9, 0, 0], Reply::AddressType);
        refused(&[4, 1, 0, 1, 0, 0], Reply::Failure);
        refused(&[5, 1, 1, 1, 0, 0], Reply::Failure);
        refused(&[5, 1, 0, 3, 2, b'a', 0xff, 0, 80], Reply::NotAllowed);
        refused(&[5, 1, 0, 3, 0, 0, 80], Reply::NotAllowed);
        refused(
            &[5, 1, 0, 3, 5, b'0', b'x', b'7', b'f', b'1', 0, 80],
            Reply::NotAllowed,
        );
    }

    proptest! {
        #[test]
        fn any_bytes_end_in_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            for asked in [greeting(&bytes), request(&bytes)].into_iter().flatten() {
                if let Asked::Connect { length, .. } | Asked::Greeting { length, .. } = asked {
                    prop_assert!(length <= bytes.len());
                }
            }
        }
    }
}
