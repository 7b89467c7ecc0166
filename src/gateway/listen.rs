//! Address and ports -> sockets. Each worker has its own on the same ports;
//! the kernel spreads the clients over them.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::gateway::GatewayError;
use crate::gateway::dns::Bound;
use crate::gateway::options::Options;
use crate::gateway::proxy::socket::set_options;

const BACKLOG: i32 = 1024;
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
    /// HTTP and SOCKS5, for each worker.
    pub(crate) workers: Vec<(TcpListener, TcpListener)>,
    pub(crate) dns: Bound,
    pub(crate) ready: Ready,
}

impl Listeners {
    pub(crate) fn bind(options: &Options) -> Result<Listeners, GatewayError> {
        let (http, proxy) = bind_shared(options.listen, options.proxy_port, options.threads)?;
        let (socks, socks_address) =
            bind_shared(options.listen, options.socks_port, options.threads)?;
        let (dns, dns_address) = bind_dns(options.listen, options.dns_port)?;
        Ok(Listeners {
            workers: http.into_iter().zip(socks).collect(),
            dns,
            ready: Ready {
                proxy,
                socks: socks_address,
                dns: dns_address,
            },
        })
    }
}

fn bind_shared(
    address: IpAddr,
    port: u16,
    count: usize,
) -> Result<(Vec<TcpListener>, SocketAddr), GatewayError> {
    let mut bound = SocketAddr::new(address, port);
    let failed = |bound: SocketAddr| {
        move |source| GatewayError::Listen {
            what: bound.to_string(),
            source,
        }
    };
    let mut listeners = Vec::new();
    for _ in 0..count {
        let listener = bind_tcp(bound).map_err(failed(bound))?;
        // Port 0 is one of the kernel's choice, the same for all.
        bound = listener.local_addr().map_err(failed(bound))?;
        listeners.push(listener);
    }
    Ok((listeners, bound))
}

fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, true)?;
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
