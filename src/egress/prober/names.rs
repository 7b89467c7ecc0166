//! A host -> its addresses, by the hosts file and the name server that are
//! configured inside. The C library of a static program would not look there.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::left;
use crate::gateway::dns::message::{self, A, AAAA};

/// As often as a question is sent.
const TRIES: u32 = 3;
const ANSWER: Duration = Duration::from_secs(2);

/// Empty where the name does not exist, or has none.
pub(super) fn resolve(host: &str, deadline: Instant) -> Result<Vec<IpAddr>, String> {
    let read = |path| std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    let known = in_hosts(&read("/etc/hosts")?, host);
    if !known.is_empty() {
        return Ok(known);
    }
    let server = name_server(&read("/etc/resolv.conf")?).ok_or("no name server is configured")?;
    let mut addresses = Vec::new();
    for kind in [A, AAAA] {
        addresses.extend(ask(SocketAddr::new(server, 53), host, kind, deadline)?);
    }
    Ok(addresses)
}

fn in_hosts(text: &str, host: &str) -> Vec<IpAddr> {
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default());
    lines
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let address = words.next()?.parse().ok()?;
            words
                .any(|name| name.eq_ignore_ascii_case(host))
                .then_some(address)
        })
        .collect()
}

fn name_server(text: &str) -> Option<IpAddr> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == "nameserver").then(|| words.next()?.parse().ok())?
    })
}

fn ask(
    server: SocketAddr,
    host: &str,
    kind: u16,
    deadline: Instant,
) -> Result<Vec<IpAddr>, String> {
    let failed = |error| format!("the name server cannot be asked: {error}");
    // The socket is connected, and its answer is compared with the question.
    let id = kind;
    let question = message::question(id, host, kind, true).ok_or("it is no host name")?;
    let any = if server.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    let socket = UdpSocket::bind(any).map_err(failed)?;
    socket.connect(server).map_err(failed)?;
    for _ in 0..TRIES {
        socket.send(&question).map_err(failed)?;
        let wait = left(deadline)?.min(ANSWER);
        socket.set_read_timeout(Some(wait)).map_err(failed)?;
        let mut buffer = [0; 4096];
        let Ok(length) = socket.recv(&mut buffer) else {
            continue;
        };
        let answer = buffer.get(..length).unwrap_or_default();
        if let Some(response) = message::parse_response(answer, id, host, kind) {
            return Ok(response.addresses);
        }
    }
    Err("the name server does not answer".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn files_are_read_as_others_read_them() {
        let hosts = "127.0.0.1 localhost\n192.0.2.1 b.example.org A.example.org # c.example.org\n2001:db8::1 a.example.org\nx a.example.org\n";
        let found = in_hosts(hosts, "a.example.org");
        assert_eq!(found.len(), 2);
        assert!(in_hosts(hosts, "c.example.org").is_empty());
        let conf =
            "# nameserver 192.0.2.9\noptions x\nnameserver 192.0.2.53\nnameserver 192.0.2.54\n";
        assert_eq!(name_server(conf), Some("192.0.2.53".parse().unwrap()));
        assert_eq!(name_server("nameserver\n"), None);
    }

    #[test]
    fn address_is_its_own_and_what_is_no_name_is_not_asked_for() {
        let addresses = resolve("2001:db8::1", soon()).unwrap();
        assert_eq!(addresses, ["2001:db8::1".parse::<IpAddr>().unwrap()]);
        let server = "127.0.0.1:9".parse().unwrap();
        assert!(ask(server, "a..example.org", A, soon()).is_err());
    }

    #[test]
    fn answer_of_another_question_is_none() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let serve = std::thread::spawn(move || {
            let mut buffer = [0; 512];
            let (length, peer) = server.recv_from(&mut buffer).unwrap();
            // NXDOMAIN for what was asked, and before it for something else.
            let mut answer = buffer[..length].to_vec();
            answer[2] = 0x81;
            answer[3] = 0x83;
            answer[11] = 0;
            answer.truncate(length - 11);
            let mut other = answer.clone();
            other[0] ^= 1;
            server.send_to(&other, peer).unwrap();
            let (_, peer) = server.recv_from(&mut buffer).unwrap();
            server.send_to(&answer, peer).unwrap();
        });
        assert_eq!(ask(address, "a.example.org", A, soon()), Ok(Vec::new()));
        serve.join().unwrap();
    }
}
