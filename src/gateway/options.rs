//! The command line of the gateway.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;

use crate::cli::usage;
use crate::error::Error;
use crate::gateway::NAME;
use crate::gateway::audit::Rotation;

pub(crate) const HELP: &str = "\
Usage: umwelt-gateway --policy FILE --ca-cert FILE --ca-key FILE --roots FILE
                      --audit FILE --listen ADDRESS [OPTION]...

The way out of a sandbox: an HTTPS proxy that looks at each request, a SOCKS5
relay and a name server, which pass on what the policy allows. Started by
umwelt-run as pid 1 of a container of its own.

Options:
      --policy FILE        what is allowed, in JSON; read again when it changes
      --ca-cert FILE       certificate of the authority, in PEM
      --ca-key FILE        its key, in PEM
      --roots FILE         certificates by which servers are verified, in PEM
      --audit FILE         one JSON line for each request is appended to it
      --listen ADDRESS     address for all ports
      --proxy-port PORT    HTTP proxy, CONNECT only (default: 3128)
      --socks-port PORT    SOCKS5 (default: 1080)
      --dns-port PORT      name server, UDP and TCP (default: 53)
      --resolver ADDRESS   resolver to ask, with or without a port; can be
                           given several times
      --supervised         descriptor 3 is a socket of whoever has started the
                           gateway: events are told there, and when it
                           closes, the gateway ends
      --workspace SID      session id for the audit (default: the policy's)
      --threads NUMBER     workers (default: as many as there are processors)
      --share-at PERCENT   how busy a worker is, in percent of a processor, when
                           it has others help (default: 90)
      --audit-size BYTES   the audit is moved aside at this size
                           (default: 16777216)
      --audit-keep NUMBER  old audit files that are kept (default: 3)
  -h, --help               show this help
  -V, --version            show the version
";

/// What the gateway is started with.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) policy: PathBuf,
    pub(crate) ca_cert: PathBuf,
    pub(crate) ca_key: PathBuf,
    pub(crate) roots: PathBuf,
    pub(crate) audit: PathBuf,
    pub(crate) rotation: Rotation,
    pub(crate) listen: IpAddr,
    pub(crate) proxy_port: u16,
    pub(crate) socks_port: u16,
    pub(crate) dns_port: u16,
    pub(crate) resolvers: Vec<SocketAddr>,
    pub(crate) supervised: bool,
    pub(crate) workspace: Option<String>,
    pub(crate) threads: usize,
    /// In percent of a processor.
    pub(crate) share_at: u8,
}

/// What the command line asks for.
#[derive(Debug)]
pub(crate) enum Asked {
    Serve(Box<Options>),
    Help,
    Version,
}

/// As given; what is required may be missing.
#[derive(Debug, Default)]
struct Given {
    policy: Option<PathBuf>,
    ca_cert: Option<PathBuf>,
    ca_key: Option<PathBuf>,
    roots: Option<PathBuf>,
    audit: Option<PathBuf>,
    listen: Option<IpAddr>,
    proxy_port: Option<u16>,
    socks_port: Option<u16>,
    dns_port: Option<u16>,
    resolvers: Vec<SocketAddr>,
    supervised: bool,
    workspace: Option<String>,
    threads: Option<NonZeroUsize>,
    share_at: Option<u8>,
    audit_size: Option<u64>,
    audit_keep: Option<u32>,
}

pub(crate) fn parse(args: Vec<OsString>) -> Result<Asked, Error> {
    use lexopt::Arg::{Long, Short};
    use lexopt::ValueExt;
    let mut given = Given::default();
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Short('h') | Long("help") => return Ok(Asked::Help),
            Short('V') | Long("version") => return Ok(Asked::Version),
            Long("policy") => given.policy = Some(parser.value()?.into()),
            Long("ca-cert") => given.ca_cert = Some(parser.value()?.into()),
            Long("ca-key") => given.ca_key = Some(parser.value()?.into()),
            Long("roots") => given.roots = Some(parser.value()?.into()),
            Long("audit") => given.audit = Some(parser.value()?.into()),
            Long("listen") => given.listen = parsed("listen", &mut parser)?,
            Long("proxy-port") => given.proxy_port = parsed("proxy-port", &mut parser)?,
            Long("socks-port") => given.socks_port = parsed("socks-port", &mut parser)?,
            Long("dns-port") => given.dns_port = parsed("dns-port", &mut parser)?,
            Long("resolver") => {
                let text = parser.value()?.string()?;
                let address = parse_resolver(&text);
                let address = address.map_err(|error| not_understood("resolver", &text, &error))?;
                given.resolvers.push(address);
            }
            Long("supervised") => given.supervised = true,
            Long("workspace") => given.workspace = Some(parser.value()?.string()?),
            Long("threads") => given.threads = parsed("threads", &mut parser)?,
            Long("share-at") => given.share_at = parsed("share-at", &mut parser)?,
            Long("audit-size") => given.audit_size = parsed("audit-size", &mut parser)?,
            Long("audit-keep") => given.audit_keep = parsed("audit-keep", &mut parser)?,
            other => return Err(usage::unexpected(&other, NAME, HELP)),
        }
    }
    given
        .complete()
        .map(|options| Asked::Serve(Box::new(options)))
}

fn parsed<T>(option: &str, parser: &mut lexopt::Parser) -> Result<Option<T>, Error>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    use lexopt::ValueExt;
    let text = parser.value()?.string()?;
    let value = text.parse();
    value
        .map(Some)
        .map_err(|error| not_understood(option, &text, &error))
}

fn not_understood(option: &str, text: &str, why: &dyn std::fmt::Display) -> Error {
    Error::usage(format!(
        "the option \"--{option}\" cannot be {text:?}: {why}"
    ))
}

fn parse_resolver(text: &str) -> Result<SocketAddr, std::net::AddrParseError> {
    match text.parse::<IpAddr>() {
        Ok(address) => Ok(SocketAddr::new(address, 53)),
        Err(_) => text.parse(),
    }
}

impl Given {
    fn complete(self) -> Result<Options, Error> {
        let threads = match self.threads {
            Some(threads) => threads.get(),
            None => std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
        };
        Ok(Options {
            policy: usage::required("policy", self.policy)?,
            ca_cert: usage::required("ca-cert", self.ca_cert)?,
            ca_key: usage::required("ca-key", self.ca_key)?,
            roots: usage::required("roots", self.roots)?,
            audit: usage::required("audit", self.audit)?,
            rotation: Rotation {
                size: self.audit_size.unwrap_or(16 << 20),
                keep: self.audit_keep.unwrap_or(3),
            },
            listen: usage::required("listen", self.listen).and_then(one_interface)?,
            proxy_port: self.proxy_port.unwrap_or(3128),
            socks_port: self.socks_port.unwrap_or(1080),
            dns_port: self.dns_port.unwrap_or(53),
            resolvers: self.resolvers,
            supervised: self.supervised,
            workspace: self.workspace,
            threads: threads.min(64),
            share_at: self.share_at.unwrap_or(90),
        })
    }
}

/// A proxy that listens everywhere serves whoever shares any network with it.
fn one_interface(address: IpAddr) -> Result<IpAddr, Error> {
    match address.is_unspecified() || address.is_multicast() {
        true => Err(Error::usage(format!(
            "the option \"--listen\" needs the address of one interface, not \"{address}\""
        ))),
        false => Ok(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUIRED: [&str; 12] = [
        "--policy",
        "p",
        "--ca-cert",
        "c",
        "--ca-key",
        "k",
        "--roots",
        "r",
        "--audit",
        "a",
        "--listen",
        "127.0.0.1",
    ];

    fn serve(more: &[&str]) -> Result<Options, Error> {
        let args = REQUIRED.iter().chain(more).map(OsString::from).collect();
        match parse(args)? {
            Asked::Serve(options) => Ok(*options),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ports_have_defaults_and_resolvers_a_port() {
        let options = serve(&[
            "--resolver",
            "192.0.2.1",
            "--resolver",
            "[2001:db8::1]:5353",
        ])
        .unwrap();
        assert_eq!(
            (options.proxy_port, options.socks_port, options.dns_port),
            (3128, 1080, 53)
        );
        let shown: Vec<String> = options.resolvers.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["192.0.2.1:53", "[2001:db8::1]:5353"]);
        assert!(options.threads > 0);
    }

    #[test]
    fn every_required_option_is_asked_for() {
        for at in (0..REQUIRED.len()).step_by(2) {
            let mut args = REQUIRED.to_vec();
            args.drain(at..at + 2);
            let error = parse(args.into_iter().map(OsString::from).collect()).unwrap_err();
            assert!(error.to_string().contains(REQUIRED[at]), "{error}");
        }
        assert!(serve(&["--threads", "0"]).is_err());
        assert!(serve(&["--resolver", "example.org"]).is_err());
        assert!(serve(&["stray"]).is_err());
        for everywhere in ["0.0.0.0", "::", "224.0.0.1"] {
            assert!(serve(&["--listen", everywhere]).is_err(), "{everywhere}");
        }
    }

    #[test]
    fn every_option_is_in_the_help() {
        for option in [
            "policy",
            "ca-cert",
            "ca-key",
            "roots",
            "audit",
            "listen",
            "proxy-port",
            "socks-port",
            "dns-port",
            "resolver",
            "supervised",
            "workspace",
            "threads",
            "audit-size",
            "audit-keep",
            "help",
            "version",
        ] {
            assert!(HELP.contains(&format!("--{option}")), "{option}");
        }
    }
}
