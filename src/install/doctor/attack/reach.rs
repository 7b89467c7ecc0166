//! The network of a sandbox, as seen from inside: what was reached -> findings.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use super::super::finding::Finding;
use crate::egress::environment::PORTS;

/// Nobody waits as long as that for a refusal that comes at once.
const PATIENCE: Duration = Duration::from_secs(5);
const AT_ONCE: Duration = Duration::from_secs(3);
/// No rule can list it (RFC 2606).
const UNLISTED: &str = "unlisted.umwelt-doctor.example";
/// Of documentations (RFC 5737, RFC 3849): they are nobody's.
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const ELSEWHERE_6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
const NO_SUCH_NAME: u8 = 3;

/// What came of each attempt.
#[derive(Debug, Clone)]
pub(super) struct Reached {
    /// The first line of the gateway's answer.
    gateway: Result<String, String>,
    /// The code of the answer.
    names: Result<u8, String>,
    tcp: Attempt,
    udp: Attempt,
    ipv6: Attempt,
}

#[derive(Debug, Clone)]
struct Attempt {
    /// Nothing where it got through.
    error: Option<String>,
    took: Duration,
}

/// The name server that this sandbox was told.
pub(super) fn gateway() -> Option<Ipv4Addr> {
    let text = std::fs::read_to_string("/etc/resolv.conf").ok()?;
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix("nameserver ")?.trim().parse().ok())
}

/// For a container elsewhere: one line.
pub(super) fn connect(address: SocketAddr) -> String {
    match TcpStream::connect_timeout(&address, PATIENCE) {
        Ok(_) => "reached\n".to_owned(),
        Err(error) => format!("not reached: {error}\n"),
    }
}

impl Reached {
    pub(super) fn try_all(gateway: Option<Ipv4Addr>) -> Reached {
        let unknown = || Err("the sandbox was told no name server".to_owned());
        let text = |error: std::io::Error| error.to_string();
        Reached {
            gateway: gateway.map_or_else(unknown, |at| ask_proxy(at).map_err(text)),
            names: gateway.map_or_else(|| unknown().map(|_| 0), |at| ask_name(at).map_err(text)),
            tcp: attempt(|| {
                TcpStream::connect_timeout(&(ELSEWHERE, 443).into(), PATIENCE).map(drop)
            }),
            udp: attempt(|| send("0.0.0.0:0", (ELSEWHERE, 53).into())),
            ipv6: attempt(|| {
                TcpStream::connect_timeout(&(ELSEWHERE_6, 443).into(), PATIENCE).map(drop)
            }),
        }
    }
}

fn attempt(reach: impl FnOnce() -> std::io::Result<()>) -> Attempt {
    let start = Instant::now();
    let error = reach().err().map(|error| error.to_string());
    Attempt {
        error,
        took: start.elapsed(),
    }
}

fn send(from: &str, to: SocketAddr) -> std::io::Result<()> {
    let socket = UdpSocket::bind(from)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(to)?;
    socket.send(b"x")?;
    socket.recv(&mut [0; 1]).map(drop)
}

fn ask_proxy(gateway: Ipv4Addr) -> std::io::Result<String> {
    let address = (gateway, PORTS.proxy).into();
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let request = format!("CONNECT {UNLISTED}:443 HTTP/1.1\r\nHost: {UNLISTED}:443\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = [0; 256];
    let len = stream.read(&mut answer)?;
    let answer = String::from_utf8_lossy(answer.get(..len).unwrap_or_default());
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}

fn ask_name(gateway: Ipv4Addr) -> std::io::Result<u8> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect((gateway, PORTS.dns))?;
    let question = question(UNLISTED);
    socket.send(&question)?;
    let mut answer = [0; 512];
    let len = socket.recv(&mut answer)?;
    let answer = answer.get(..len).unwrap_or_default();
    match (answer.get(..2), answer.get(3)) {
        (id, Some(flags)) if id == question.get(..2) => Ok(flags & 0x0f),
        _ => Err(std::io::Error::other("the answer is not understood")),
    }
}

/// For the IPv4 addresses of a name (RFC 1035).
fn question(name: &str) -> Vec<u8> {
    let mut packet = vec![0x75, 0x77, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        packet.push(u8::try_from(label.len()).unwrap_or_default());
        packet.extend(label.as_bytes());
    }
    packet.extend([0, 0, 1, 0, 1]);
    packet
}

pub(super) fn findings(reached: &Reached) -> Vec<Finding> {
    vec![
        proxy(&reached.gateway),
        names(&reached.names),
        refusals(&reached.tcp, &reached.udp),
        ipv6(&reached.ipv6),
    ]
}

const SEE: &str = "see what the gateway says: umwelt-ctl log in a project with a network";
const REPORT: &str = "give no project a network here, and report it";

fn proxy(answer: &Result<String, String>) -> Finding {
    const CHECK: &str = "egress-gateway";
    match answer {
        Ok(line) if line.starts_with("HTTP/1.1 2") => {
            Finding::fail(CHECK, format!("it lets through what no rule lists: {line}")).hint(REPORT)
        }
        Ok(line) if line.starts_with("HTTP/1.1 ") => Finding::ok(
            CHECK,
            format!("answers, and refuses what no rule lists: {line}"),
        ),
        Ok(line) => Finding::warn(CHECK, format!("answers in another way: {line:?}")).hint(SEE),
        Err(error) => Finding::warn(CHECK, format!("does not answer: {error}")).hint(SEE),
    }
}

fn names(answer: &Result<u8, String>) -> Finding {
    const CHECK: &str = "egress-names";
    match answer {
        Ok(NO_SUCH_NAME) => Finding::ok(CHECK, "a name that no rule lists does not exist"),
        Ok(0) => Finding::fail(CHECK, "a name that no rule lists has an answer").hint(REPORT),
        Ok(code) => {
            Finding::warn(CHECK, format!("the answer has the code {code}, not 3")).hint(SEE)
        }
        Err(error) => Finding::warn(CHECK, format!("no answer: {error}")).hint(SEE),
    }
}

fn refusals(tcp: &Attempt, udp: &Attempt) -> Finding {
    const CHECK: &str = "egress-refusal";
    let (Some(tcp_error), Some(udp_error)) = (&tcp.error, &udp.error) else {
        return Finding::fail(CHECK, format!("{ELSEWHERE} can be reached")).hint(REPORT);
    };
    let said = format!("tcp: {tcp_error}, udp: {udp_error}");
    let took = tcp.took.max(udp.took);
    if took < AT_ONCE {
        return Finding::ok(CHECK, format!("{ELSEWHERE} is refused at once: {said}"));
    }
    let took = took.as_secs();
    Finding::fail(
        CHECK,
        format!("{ELSEWHERE} was not refused for {took} s: {said}"),
    )
    .hint(REPORT)
}

fn ipv6(attempt: &Attempt) -> Finding {
    const CHECK: &str = "egress-ipv6";
    match &attempt.error {
        None => Finding::fail(CHECK, format!("{ELSEWHERE_6} can be reached")).hint(REPORT),
        Some(error) if attempt.took < AT_ONCE => {
            Finding::ok(CHECK, format!("is refused at once: {error}"))
        }
        Some(error) => {
            Finding::fail(CHECK, format!("is not refused at once: {error}")).hint(REPORT)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::Verdict::{self, Fail, Ok as Fine, Warn};
    use super::*;

    fn refused() -> Attempt {
        Attempt {
            error: Some("refused".into()),
            took: Duration::ZERO,
        }
    }

    fn closed() -> Reached {
        Reached {
            gateway: Ok("HTTP/1.1 403 Forbidden".into()),
            names: Ok(3),
            tcp: refused(),
            udp: refused(),
            ipv6: refused(),
        }
    }

    #[test]
    fn each_way_out_is_found_by_its_check_alone() {
        type Open = fn(&mut Reached);
        let cases: [(&str, Verdict, Open); 10] = [
            ("", Fine, |_| {}),
            ("egress-gateway", Fail, |r| {
                r.gateway = Ok("HTTP/1.1 200 OK".into())
            }),
            ("egress-gateway", Warn, |r| r.gateway = Err("no".into())),
            ("egress-gateway", Warn, |r| {
                r.gateway = Ok("220 mail".into())
            }),
            ("egress-names", Fail, |r| r.names = Ok(0)),
            ("egress-names", Warn, |r| r.names = Ok(2)),
            ("egress-refusal", Fail, |r| r.tcp.error = None),
            ("egress-refusal", Fail, |r| r.udp.error = None),
            ("egress-refusal", Fail, |r| r.udp.took = PATIENCE),
            ("egress-ipv6", Fail, |r| r.ipv6.error = None),
        ];
        for (check, verdict, open) in cases {
            let mut reached = closed();
            open(&mut reached);
            for finding in findings(&reached) {
                let expected = if finding.check == check {
                    verdict
                } else {
                    Fine
                };
                assert_eq!(finding.verdict, expected, "{finding:?}");
                assert_eq!(finding.fix.is_some(), expected != Fine);
            }
        }
    }

    #[test]
    fn questions_are_those_of_the_protocol() {
        let packet = question("a.bc");
        assert_eq!(packet[12..], *b"\x01a\x02bc\x00\x00\x01\x00\x01");
    }

    #[test]
    fn what_listens_is_reached() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(connect(address), "reached\n");
        let (_held, closed) = crate::nft::probe::tests::closed_port();
        assert!(connect(closed).starts_with("not reached: "));
    }
}
