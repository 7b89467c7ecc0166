//! A connection to a host and port: directly, else by the SOCKS5 relay of the
//! environment.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use super::{Outcome, Ways, connect, limit, names};
use crate::egress::check::Got;

/// Most addresses of a name that are tried.
const MAX_ADDRESSES: usize = 4;

pub(super) fn check(
    host: &str,
    port: u16,
    ways: &Ways,
    deadline: Instant,
) -> Result<Outcome, String> {
    let addresses = names::resolve(host, deadline)?;
    let mut said = match addresses.is_empty() {
        true => "the name is not known".to_owned(),
        false => String::new(),
    };
    for address in addresses.into_iter().take(MAX_ADDRESSES) {
        match connect(SocketAddr::new(address, port), deadline)? {
            Ok(_) => return Ok((Got::Allow, format!("directly, at {address}"))),
            Err(error) => said = error.to_string(),
        }
    }
    // A refusal of the kernel looks like that of a server. The relay, which has
    // the same rules, tells them apart.
    let Some(socks) = ways.socks else {
        return Err(format!("{said}, and ALL_PROXY names no relay"));
    };
    let stream = connect(socks, deadline)?
        .map_err(|error| format!("the relay cannot be reached: {error}"))?;
    limit(&stream, deadline)?;
    let reply = relay(&stream, host, port).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "the relay took too long".to_owned(),
        _ => format!("the relay failed: {error}"),
    })?;
    Ok(match reply {
        0 => (Got::Allow, "by the relay (SOCKS5)".to_owned()),
        2 => (Got::Deny, format!("directly: {said}; relay: not allowed")),
        code => (
            Got::Failed,
            format!("directly: {said}; relay: {}", word(code)),
        ),
    })
}

/// Asks for a connection (RFC 1928); the code of the reply.
fn relay(mut stream: impl Read + Write, host: &str, port: u16) -> std::io::Result<u8> {
    stream.write_all(&[5, 1, 0])?;
    let mut method = [0; 2];
    stream.read_exact(&mut method)?;
    if method != [5, 0] {
        return Err(std::io::Error::other("it wants to know who asks"));
    }
    let mut request = vec![5, 1, 0];
    match host.parse() {
        Ok(IpAddr::V4(address)) => {
            request.push(1);
            request.extend_from_slice(&address.octets());
        }
        Ok(IpAddr::V6(address)) => {
            request.push(4);
            request.extend_from_slice(&address.octets());
        }
        Err(_) => {
            let length = u8::try_from(host.len()).map_err(std::io::Error::other)?;
            request.extend_from_slice(&[3, length]);
            request.extend_from_slice(host.as_bytes());
        }
    }
    request.extend_from_slice(&port.to_be_bytes());
    stream.write_all(&request)?;
    let mut reply = [0; 4];
    stream.read_exact(&mut reply)?;
    let [_, code, ..] = reply;
    Ok(code)
}

fn word(code: u8) -> &'static str {
    match code {
        3 => "network unreachable",
        4 => "host unreachable",
        5 => "connection refused",
        _ => "general failure",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread::JoinHandle;
    use std::time::Duration;

    /// A relay that answers one request with `code`; what it was asked for.
    fn relay_with(code: u8) -> (SocketAddr, JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serve = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 3]).unwrap();
            stream.write_all(&[5, 0]).unwrap();
            let mut request = vec![0; 10];
            stream.read_exact(&mut request).unwrap();
            stream
                .write_all(&[5, code, 0, 1, 0, 0, 0, 0, 0, 0])
                .unwrap();
            request
        });
        (address, serve)
    }

    fn check(port: u16, socks: SocketAddr) -> Outcome {
        let ways = Ways {
            socks: Some(socks),
            ..Ways::default()
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        super::check("127.0.0.1", port, &ways, deadline).unwrap()
    }

    #[test]
    fn open_port_is_reached_directly() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let (got, why) = check(port, "127.0.0.1:1".parse().unwrap());
        assert!(got == Got::Allow && why.contains("directly"), "{why}");
    }

    #[test]
    fn relay_has_the_last_word() {
        let (_held, closed) = crate::nft::probe::tests::closed_port();
        let port = closed.port();
        for (code, expected) in [(0, Got::Allow), (2, Got::Deny), (5, Got::Failed)] {
            let (socks, serve) = relay_with(code);
            let (got, why) = check(port, socks);
            assert_eq!(got, expected, "{why}");
            let mut request = vec![5, 1, 0, 1, 127, 0, 0, 1];
            request.extend_from_slice(&port.to_be_bytes());
            assert_eq!(serve.join().unwrap(), request);
        }
    }
}
