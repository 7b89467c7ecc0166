//! A GET request through the proxy of the environment, and who answers it.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustls::{AlertDescription, ClientConnection, StreamOwned};
use serde::Deserialize;

use super::{Outcome, Ways, connect, limit};
use crate::egress::check::Got;
use crate::gateway::tls::upstream;
use crate::policy::decide::Host;

/// Most that is read of an answer. One of the gateway is shorter.
const MAX_ANSWER: usize = 64 << 10;

pub(super) fn check(
    host: &str,
    port: u16,
    path: &str,
    ways: &Ways,
    deadline: Instant,
) -> Result<Outcome, String> {
    let proxy = ways
        .https_proxy
        .ok_or("HTTPS_PROXY names no proxy that can be used")?;
    let roots = ways
        .roots
        .as_deref()
        .ok_or("SSL_CERT_FILE names no certificates")?;
    let host = Host::parse(host, false)?;
    let stream = connect(proxy, deadline)?
        .map_err(|error| format!("the gateway cannot be reached: {error}"))?;
    let mut stream = Timed { stream, deadline };
    let request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n");
    let answer = exchange(&mut stream, &request, false)?;
    if answer.status != 200 {
        return match answer.verdict() {
            // Nobody but the gateway answers a CONNECT.
            (Got::Allow, _) => Err(format!("CONNECT: {} {}", answer.status, answer.phrase)),
            verdict => Ok(verdict),
        };
    }
    let mut tls = match open(stream, &host, roots)? {
        Ok(tls) => tls,
        Err(outcome) => return Ok(outcome),
    };
    let authority = match port {
        443 => host.to_string(),
        _ => format!("{host}:{port}"),
    };
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: umwelt-verify\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    Ok(exchange(&mut tls, &request, true)?.verdict())
}

/// Reads and writes until the deadline.
struct Timed {
    stream: TcpStream,
    deadline: Instant,
}

impl Timed {
    fn limit(&self) -> io::Result<()> {
        limit(&self.stream, self.deadline).map_err(io::Error::other)
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.limit()?;
        self.stream.read(buffer)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.limit()?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

type Tls = StreamOwned<ClientConnection, Timed>;

/// A tunnel is judged once more when TLS begins.
fn open(stream: Timed, host: &Host, roots: &Path) -> Result<Result<Tls, Outcome>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = upstream::config(provider, roots).map_err(|error| error.to_string())?;
    let connection = ClientConnection::new(Arc::new(config), upstream::server_name(host)?)
        .map_err(|error| error.to_string())?;
    let mut tls = StreamOwned::new(connection, stream);
    while tls.conn.is_handshaking() {
        if let Err(error) = tls.conn.complete_io(&mut tls.sock) {
            let denied = rustls::Error::AlertReceived(AlertDescription::AccessDenied);
            let is_denied = error
                .get_ref()
                .and_then(|inner| inner.downcast_ref::<rustls::Error>())
                .is_some_and(|inner| *inner == denied);
            return match is_denied {
                true => Ok(Err((
                    Got::Deny,
                    "the gateway refuses the tunnel".to_owned(),
                ))),
                false => Err(format!("no TLS with the server: {error}")),
            };
        }
    }
    Ok(Ok(tls))
}

#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    phrase: String,
    body: Vec<u8>,
}

/// What the gateway answers by itself; a server has no reason to write so.
#[derive(Deserialize)]
struct Denial {
    error: String,
    reason: String,
    #[serde(rename = "workspace")]
    _workspace: String,
}

impl Answer {
    fn verdict(&self) -> Outcome {
        let Ok(denial) = serde_json::from_slice::<Denial>(&self.body) else {
            return (Got::Allow, format!("answered with {}", self.status));
        };
        let got = match denial.error.as_str() {
            "upstream_failed" | "upstream_timeout" | "audit_unavailable" | "request_timeout" => {
                Got::Failed
            }
            _ => Got::Deny,
        };
        (got, denial.reason)
    }
}

/// Sends a request and reads the head of the answer, and `with_body` or from
/// the gateway also what follows, as far as it matters.
fn exchange(
    stream: &mut (impl Read + Write),
    request: &str,
    with_body: bool,
) -> Result<Answer, String> {
    stream
        .write_all(request.as_bytes())
        .and_then(|()| stream.flush())
        .map_err(|error| format!("the request could not be sent: {error}"))?;
    let mut bytes = Vec::new();
    loop {
        if let Some(answer) = parse(&bytes, with_body)? {
            return Ok(answer);
        }
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer) {
            Ok(0) => return ended(&bytes, "the connection was closed"),
            Ok(length) => bytes.extend_from_slice(buffer.get(..length).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Not each server says goodbye.
            Err(error) => return ended(&bytes, &error.to_string()),
        }
    }
}

/// What there is must do.
fn ended(bytes: &[u8], why: &str) -> Result<Answer, String> {
    match head(bytes)? {
        Some((answer, _, _)) => Ok(answer),
        None => Err(format!("no answer: {why}")),
    }
}

/// None while more is needed.
fn parse(bytes: &[u8], with_body: bool) -> Result<Option<Answer>, String> {
    let Some((answer, length, is_json)) = head(bytes)? else {
        return match bytes.len() > MAX_ANSWER {
            true => Err("the answer has no end".to_owned()),
            false => Ok(None),
        };
    };
    let is_wanted = is_json && (with_body || answer.status != 200);
    let wanted = length.unwrap_or(usize::MAX).min(MAX_ANSWER);
    let is_whole = !is_wanted || answer.body.len() >= wanted;
    Ok(is_whole.then_some(answer))
}

/// The answer as far as it is there, the length of its body, and whether that
/// is JSON; none before the end of the head.
fn head(bytes: &[u8]) -> Result<Option<(Answer, Option<usize>, bool)>, String> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned();
    let mut lines = text.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let mut words = first.splitn(3, ' ');
    let is_http = words.next().is_some_and(|word| word.starts_with("HTTP/1."));
    let status = words.next().and_then(|word| word.parse().ok());
    let (true, Some(status)) = (is_http, status) else {
        return Err("the answer is not HTTP".to_owned());
    };
    let field = |name: &str| {
        let mut fields = text.split("\r\n").skip(1).filter_map(|l| l.split_once(':'));
        let found = fields.find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim().to_owned())
    };
    let length = field("content-length").and_then(|value| value.parse().ok());
    let is_json = field("content-type").is_some_and(|value| value == "application/json");
    let answer = Answer {
        status,
        phrase: words.next().unwrap_or_default().to_owned(),
        body: bytes.get(end + 4..).unwrap_or_default().to_vec(),
    };
    Ok(Some((answer, length, is_json)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(text: &str) -> Option<Outcome> {
        let answer = parse(text.as_bytes(), true).unwrap();
        answer.map(|answer| answer.verdict())
    }

    fn denial(status: &str, error: &str) -> String {
        let body = format!("{{\"error\":\"{error}\",\"reason\":\"r\",\"workspace\":\"0123abcd\"}}");
        let length = body.len();
        format!(
            "HTTP/1.1 {status} Word\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    }

    #[test]
    fn gateway_and_server_are_told_apart_by_the_body() {
        for (text, got) in [
            (denial("403", "egress_denied"), Got::Deny),
            (denial("400", "bad_request"), Got::Deny),
            (denial("502", "upstream_failed"), Got::Failed),
            (denial("504", "upstream_timeout"), Got::Failed),
            (denial("503", "audit_unavailable"), Got::Failed),
        ] {
            assert_eq!(verdict(&text), Some((got, "r".to_owned())), "{text}");
        }
        for text in [
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno\n",
            "HTTP/1.1 404\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{\"error\":\"x\"}",
        ] {
            assert_eq!(
                verdict(text).map(|(got, _)| got),
                Some(Got::Allow),
                "{text}"
            );
        }
    }

    #[test]
    fn answer_comes_in_pieces() {
        let text = denial("403", "egress_denied");
        for end in 0..text.len() {
            assert_eq!(verdict(&text[..end]), None, "{end}");
        }
        // Of a CONNECT that succeeds nothing follows but TLS.
        let tunnel = "HTTP/1.1 200 Connection established\r\n\r\n";
        assert!(parse(tunnel.as_bytes(), false).unwrap().is_some());
        assert!(parse(&[b'x'; MAX_ANSWER + 1], true).is_err());
        assert!(parse(b"SSH-2.0-x\r\n\r\n", true).is_err());
        assert!(ended(b"HTTP/1.1 200 OK\r\nA: b\r\n", "x").is_err());
    }
}
