//! Address and ports -> sockets.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::gateway::GatewayError;
use crate::gateway::dns::Bound;
use crate::gateway::options::Options;
use crate::gateway::proxy::socket::set_options;

const BACKLOG: i32 = 4096;
/// How often the kernel is asked for a port that is free for TCP and UDP.
const TRIES: usize = 5;

/// What was bound, for whoever waits for it.
#[derive(Debug, Clone)]
pub(crate) struct Ready {
    pub(crate) proxy: SocketAddr,
    pub(crate) socks: SocketAddr,
    pub(crate) dns: SocketAddr,
}

#[derive(Debug)]
pub(crate) struct Listeners {
    pub(crate) http: TcpListener,
    pub(crate) socks: TcpListener,
    pub(crate) dns: Bound,
    pub(crate) ready: Ready,
}

impl Listeners {
    pub(crate) fn bind(options: &Options) -> Result<Listeners, GatewayError> {
        let (http, proxy) = bind_tcp(options.listen, options.proxy_port)?;
        let (socks, socks_address) = bind_tcp(options.listen, options.socks_port)?;
        let (dns, dns_address) = bind_dns(options.listen, options.dns_port)?;
        Ok(Listeners {
            http,
            socks,
            dns,
            ready: Ready {
                proxy,
                socks: socks_address,
                dns: dns_address,
            },
        })
    }
}

fn bind_tcp(address: IpAddr, port: u16) -> Result<(TcpListener, SocketAddr), GatewayError> {
    let wanted = SocketAddr::new(address, port);
    let bound = open_tcp(wanted).and_then(|listener| {
        // Port 0 is one of the kernel's choice.
        let address = listener.local_addr()?;
        Ok((listener, address))
    });
    bound.map_err(|source| GatewayError::Listen {
        what: wanted.to_string(),
        source,
    })
}

fn open_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    set_options(&socket)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

fn bind_dns(address: IpAddr, port: u16) -> Result<(Bound, SocketAddr), GatewayError> {
    let wanted = SocketAddr::new(address, port);
    let failed = |source| GatewayError::Listen {
        what: format!("{wanted} for names"),
        source,
    };
    let mut tries = 1..TRIES;
    let (tcp, udp, bound) = loop {
        let tcp = TcpListener::bind(wanted).map_err(failed)?;
        let bound = tcp.local_addr().map_err(failed)?;
        match UdpSocket::bind(bound) {
            Ok(udp) => break (tcp, udp, bound),
            // One of the kernel's choice for TCP is not always free for UDP.
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse
                    && port == 0
                    && tries.next().is_some() => {}
            Err(error) => return Err(failed(error)),
        }
    };
    tcp.set_nonblocking(true).map_err(failed)?;
    udp.set_nonblocking(true).map_err(failed)?;
    Ok((Bound { udp, tcp }, bound))
}
