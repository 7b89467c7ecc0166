//! The first bytes of a connection -> what its ClientHello says. Pure.
//!
//! The whole message is looked at, over however many records it comes, before
//! anything is answered or dialled.

use std::fmt;

use rustls::server::Acceptor;

/// Longest ClientHello with its record headers.
pub(crate) const MAX_HELLO: usize = 32 << 10;
const RECORD_HEADER: usize = 5;

/// What decides about a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) sni: Option<String>,
    /// Whether the client can speak HTTP/1.1: it says so, or it says nothing.
    pub(crate) http1: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HelloError {
    /// It does not begin like TLS.
    NotTls,
    TooLong,
    Malformed(String),
}

impl fmt::Display for HelloError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HelloError::NotTls => f.write_str("what follows CONNECT is not TLS"),
            HelloError::TooLong => f.write_str("the TLS ClientHello is longer than 32 KiB"),
            HelloError::Malformed(why) => write!(f, "the TLS ClientHello is malformed: {why}"),
        }
    }
}

/// None while more is needed.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Hello>, HelloError> {
    let start = [0x16, 0x03];
    if bytes
        .iter()
        .zip(start)
        .any(|(byte, wanted)| *byte != wanted)
    {
        return Err(HelloError::NotTls);
    }
    if !has_first_record(bytes) {
        return Ok(None);
    }
    let mut acceptor = Acceptor::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        acceptor
            .read_tls(&mut rest)
            .map_err(|error| HelloError::Malformed(error.to_string()))?;
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                let hello = accepted.client_hello();
                let http1 = hello
                    .alpn()
                    .is_none_or(|mut offers| offers.any(|offer| offer == b"http/1.1"));
                return Ok(Some(Hello {
                    sni: hello.server_name().map(str::to_owned),
                    http1,
                }));
            }
            Ok(None) => {}
            Err((error, _)) => return Err(HelloError::Malformed(error.to_string())),
        }
    }
    match bytes.len() > MAX_HELLO {
        true => Err(HelloError::TooLong),
        false => Ok(None),
    }
}

/// A byte at a time, it would be parsed again and again otherwise.
fn has_first_record(bytes: &[u8]) -> bool {
    match bytes {
        [_, _, _, high, low, ..] => {
            bytes.len() >= RECORD_HEADER + usize::from(u16::from_be_bytes([*high, *low]))
        }
        _ => false,
    }
}

/// A fatal alert, as a record of its own.
pub(crate) fn alert(description: Alert) -> [u8; 7] {
    [0x15, 0x03, 0x03, 0x00, 0x02, 0x02, description as u8]
}

#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(crate) enum Alert {
    HandshakeFailure = 40,
    AccessDenied = 49,
    UnrecognizedName = 112,
    NoApplicationProtocol = 120,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};
    use std::sync::Arc;

    fn hello(name: &str, alpn: &[&[u8]]) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut out = Vec::new();
        client.write_tls(&mut out).unwrap();
        out
    }

    /// The same handshake message in records of `size` bytes.
    fn split(hello: &[u8], size: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for part in hello[5..].chunks(size) {
            out.extend_from_slice(&[0x16, 3, 1]);
            out.extend_from_slice(&u16::try_from(part.len()).unwrap().to_be_bytes());
            out.extend_from_slice(part);
        }
        out
    }

    #[test]
    fn name_and_protocols_are_read() {
        let read = |bytes: &[u8]| parse(bytes).unwrap().unwrap();
        assert_eq!(
            read(&hello("a.example.org", &[])),
            Hello {
                sni: Some("a.example.org".into()),
                http1: true
            }
        );
        assert!(read(&hello("a.example.org", &[b"h2", b"http/1.1"])).http1);
        assert!(!read(&hello("a.example.org", &[b"h2"])).http1);
        assert_eq!(read(&hello("192.0.2.1", &[])).sni, None);
    }

    #[test]
    fn a_hello_in_pieces_is_read_when_it_is_whole() {
        let whole = hello("a.example.org", &[]);
        for size in [1, 2, 50, 100] {
            let records = split(&whole, size);
            assert_eq!(parse(&records[..records.len() - 1]), Ok(None), "{size}");
            assert_eq!(
                parse(&records).unwrap().unwrap().sni.as_deref(),
                Some("a.example.org")
            );
        }
        for cut in 0..whole.len() {
            assert_eq!(parse(&whole[..cut]), Ok(None), "{cut}");
        }
    }

    #[test]
    fn what_is_not_tls_is_told_from_the_first_byte() {
        for text in ["G", "SSH-2.0", "PRI * HTTP/2.0", "\u{16}x"] {
            assert_eq!(parse(text.as_bytes()), Err(HelloError::NotTls), "{text}");
        }
    }

    #[test]
    fn a_hello_without_end_is_too_long() {
        // A handshake message that announces 64 KiB, in full records.
        let mut message = vec![1, 0, 0xff, 0xff, 3, 3];
        message.resize(60_000, 0);
        let mut framed = vec![0; 5];
        framed.extend_from_slice(&message);
        let records = split(&framed, 16_000);
        assert!(parse(&records).is_err());
    }

    #[test]
    fn changed_bytes_never_panic() {
        let whole = hello("a.example.org", &[b"http/1.1"]);
        for position in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[position] = value;
                let _ = parse(&changed);
            }
        }
    }
}
