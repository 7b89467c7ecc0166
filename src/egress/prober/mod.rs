//! `umwelt-init --check-egress`: tries inside of a sandbox what can be reached,
//! as any program would: by the name server, the proxies and the certificates
//! that its environment names. An order on stdin -> one finding a line.
//!
//! Built in, since an image need not have a program that speaks TLS. It has the
//! rights of a command, and no more.

mod https;
mod names;
mod tcp;

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::DumpableBehavior;

use crate::cli;
use crate::egress::check::{Check, Finding, Got, MAX_CHECKS, Order};
use crate::error::Error;

/// Longest order.
const MAX_ORDER: u64 = 8 << 20;
/// Checks at once.
const THREADS: usize = 8;
/// For one check. The gateway gives up an address after 6 seconds.
const LIMIT: Duration = Duration::from_secs(15);
/// A refusal comes at once; a server may be far away.
const CONNECT: Duration = Duration::from_secs(5);

/// What a check has come to, with the reason.
type Outcome = (Got, String);

pub(crate) fn main() -> Result<ExitCode, Error> {
    // What runs inside has the same user id, and no part in this.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| Error::io("keep others from this process", error))?;
    let mut text = Vec::new();
    let stdin = std::io::stdin().lock().take(MAX_ORDER);
    { stdin }
        .read_to_end(&mut text)
        .map_err(|error| Error::io("read the order", error))?;
    let order: Order = serde_json::from_slice(&text)
        .map_err(|error| Error::io("read the order", std::io::Error::from(error)))?;
    let ways = Ways::from_env(|name| std::env::var(name).ok());
    run(&order, &ways);
    Ok(ExitCode::SUCCESS)
}

/// How programs are told to reach the network.
#[derive(Debug, Default)]
struct Ways {
    https_proxy: Option<SocketAddr>,
    socks: Option<SocketAddr>,
    roots: Option<PathBuf>,
}

impl Ways {
    fn from_env(variable: impl Fn(&str) -> Option<String>) -> Ways {
        let proxy = |name, scheme| {
            let url = variable(name)?;
            url.strip_prefix(scheme)?.trim_end_matches('/').parse().ok()
        };
        Ways {
            https_proxy: proxy("HTTPS_PROXY", "http://"),
            socks: proxy("ALL_PROXY", "socks5h://"),
            roots: variable("SSL_CERT_FILE").map(PathBuf::from),
        }
    }
}

fn run(order: &Order, ways: &Ways) {
    let end = Instant::now() + Duration::from_secs(order.limit_s);
    let next = AtomicUsize::new(0);
    let checks = order.checks.get(..MAX_CHECKS).unwrap_or(&order.checks);
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(check) = checks.get(number) else {
                return;
            };
            let deadline = end.min(Instant::now() + LIMIT);
            let (got, why) = try_one(check, ways, deadline);
            tell(&Finding {
                check: number,
                got,
                why,
            });
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS.min(checks.len()) {
            scope.spawn(work);
        }
    });
}

fn try_one(check: &Check, ways: &Ways, deadline: Instant) -> Outcome {
    let tried = match check {
        Check::Https { host, port, path } => https::check(host, *port, path, ways, deadline),
        Check::Tcp { host, port } => tcp::check(host, *port, ways, deadline),
    };
    tried.unwrap_or_else(|why| (Got::Failed, why))
}

fn tell(finding: &Finding) {
    if let Ok(line) = serde_json::to_string(finding) {
        // A line is written under one lock, so that two never mix.
        cli::print(&format!("{line}\n"));
    }
}

/// Time that is left; nothing takes a limit of zero.
fn left(deadline: Instant) -> Result<Duration, String> {
    let left = deadline.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err("it took too long".to_owned()),
        false => Ok(left),
    }
}

fn connect(address: SocketAddr, deadline: Instant) -> Result<std::io::Result<TcpStream>, String> {
    Ok(TcpStream::connect_timeout(
        &address,
        left(deadline)?.min(CONNECT),
    ))
}

/// For the next read or write.
fn limit(stream: &TcpStream, deadline: Instant) -> Result<(), String> {
    let left = left(deadline)?;
    stream
        .set_read_timeout(Some(left))
        .and_then(|()| stream.set_write_timeout(Some(left)))
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_those_of_the_environment() {
        let ways = Ways::from_env(|name| {
            let value = match name {
                "HTTPS_PROXY" => "http://10.89.0.2:3128",
                "ALL_PROXY" => "socks5h://10.89.0.2:1080",
                "SSL_CERT_FILE" => "/etc/ssl/certs/umwelt-ca.pem",
                _ => return None,
            };
            Some(value.to_owned())
        });
        assert_eq!(ways.https_proxy, Some("10.89.0.2:3128".parse().unwrap()));
        assert_eq!(ways.socks, Some("10.89.0.2:1080".parse().unwrap()));
        assert!(ways.roots.unwrap().ends_with("umwelt-ca.pem"));
        let none = Ways::from_env(|_| None);
        assert!(none.https_proxy.is_none() && none.socks.is_none());
    }

    #[test]
    fn without_a_gateway_nothing_is_allowed_and_nothing_denied() {
        let check = Check::Https {
            host: "a.example.org".into(),
            port: 443,
            path: "/".into(),
        };
        let deadline = Instant::now() + LIMIT;
        let (got, why) = try_one(&check, &Ways::default(), deadline);
        assert_eq!(got, Got::Failed);
        assert!(why.contains("HTTPS_PROXY"), "{why}");
        let (_held, closed) = crate::nft::probe::tests::closed_port();
        let ways = Ways {
            https_proxy: Some(closed),
            roots: Some("/dev/null".into()),
            ..Ways::default()
        };
        let (got, why) = try_one(&check, &ways, deadline);
        assert!(got == Got::Failed && why.contains("gateway"), "{why}");
        let (got, why) = try_one(&check, &ways, Instant::now());
        assert!(got == Got::Failed && why.contains("too long"), "{why}");
    }
}
