//! What must fail inside a sandbox, and trying it. [`attempts`] is pure and for
//! umwelt-run; [`Attempt::make`] is for pid 1, which tells the errno.
//!
//! It shows that the rules are at work. That it was these rules which refused,
//! and not a network that has no route, is seen in the counting sets: what was
//! tried here, and reached the rules, is in `denied4` or `denied6` afterwards.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use super::ruleset::Ruleset;
use super::table::Count;

/// A connection or a datagram that must not get out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Attempt {
    pub(crate) protocol: Protocol,
    pub(crate) to: SocketAddr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Protocol {
    Tcp,
    Udp,
}

/// A refusal comes at once, unless the machine is very busy.
const PATIENCE: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};

/// Addresses for documentation, which nobody has, and ports of the gateway
/// that are not the sandbox's business.
pub(crate) fn attempts(ruleset: &Ruleset) -> [Attempt; 6] {
    let gateway = IpAddr::V4(ruleset.gateway());
    let elsewhere = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
    let ipv6 = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
    let unlisted = unlisted_port(ruleset);
    [
        (Protocol::Tcp, elsewhere, unlisted),
        (Protocol::Udp, elsewhere, 53),
        // On the same link, so there is a way to it.
        (Protocol::Tcp, gateway, unlisted),
        (Protocol::Udp, gateway, unlisted),
        (Protocol::Tcp, ipv6, 443),
        (Protocol::Udp, ipv6, 53),
    ]
    .map(|(protocol, address, port)| Attempt {
        protocol,
        to: SocketAddr::new(address, port),
    })
}

/// The first one from 9 (discard) on that no rule lets through.
fn unlisted_port(ruleset: &Ruleset) -> u16 {
    let is_listed = |port: u16| {
        let targets = ruleset.targets();
        ruleset.is_gateway_port(port) || targets.iter().any(|(_, target)| *target == port)
    };
    // There are fewer targets than ports.
    (9..=u16::MAX).find(|port| !is_listed(*port)).unwrap_or(9)
}

impl Attempt {
    /// The errno of the refusal; 0 where it got out, or nothing was said.
    pub(crate) fn make(&self) -> i32 {
        match self.send() {
            Ok(()) => 0,
            Err(error) => error.raw_os_error(),
        }
    }

    /// Whether `errno`, as told by pid 1, means that it was refused at once.
    pub(crate) fn is_refused(&self, errno: i32) -> bool {
        let refusals: &[Errno] = match self.protocol {
            Protocol::Tcp => &[Errno::CONNREFUSED, Errno::NETUNREACH],
            Protocol::Udp => &[Errno::PERM, Errno::NETUNREACH],
        };
        // No route is a refusal too: without an IPv6 address, for one.
        refusals
            .iter()
            .any(|refusal| refusal.raw_os_error() == errno)
    }

    /// Whether a counting set has it.
    pub(crate) fn is_counted(&self, denied: &[Count]) -> bool {
        let protocol = match self.protocol {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
        };
        denied.iter().any(|count| {
            (count.address, count.protocol, count.port) == (self.to.ip(), protocol, self.to.port())
        })
    }

    fn send(&self) -> rustix::io::Result<()> {
        let family = match self.to {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let kind = match self.protocol {
            Protocol::Tcp => SocketType::STREAM,
            Protocol::Udp => SocketType::DGRAM,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, kind, flags, None)?;
        match rustix::net::connect(&socket, &self.to) {
            Err(Errno::INPROGRESS) => await_answer(&socket),
            Err(error) => Err(error),
            Ok(()) if self.protocol == Protocol::Tcp => Ok(()),
            Ok(()) => rustix::net::send(&socket, b"umwelt", SendFlags::empty()).map(drop),
        }
    }
}

fn await_answer(socket: impl AsFd) -> rustix::io::Result<()> {
    rustix::event::poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&PATIENCE))?;
    rustix::net::sockopt::socket_error(&socket)?
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::nft::ruleset::GatewayPorts;
    use std::net::{TcpListener, UdpSocket};
    use std::os::fd::OwnedFd;

    fn ruleset(targets: &[(Ipv4Addr, u16)]) -> Ruleset {
        let ports = GatewayPorts {
            dns: 53,
            proxy: 9,
            socks: 10,
        };
        Ruleset::new(Ipv4Addr::new(192, 0, 2, 1), ports, targets.iter().copied()).unwrap()
    }

    #[test]
    fn what_is_tried_is_allowed_by_no_rule() {
        let target = (Ipv4Addr::new(203, 0, 113, 7), 11);
        for attempt in attempts(&ruleset(&[target])) {
            assert!(![9, 10, 11].contains(&attempt.to.port()), "{attempt:?}");
        }
    }

    #[test]
    fn what_gets_out_is_no_refusal() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let open = [
            (Protocol::Tcp, tcp.local_addr().unwrap()),
            (Protocol::Udp, udp.local_addr().unwrap()),
        ];
        for (protocol, to) in open {
            let attempt = Attempt { protocol, to };
            let errno = attempt.make();
            assert_eq!(errno, 0);
            assert!(!attempt.is_refused(errno));
        }
    }

    /// A port on which nobody listens for as long as the socket is there: one that
    /// is let go could be given to another test.
    pub(crate) fn closed_port() -> (OwnedFd, SocketAddr) {
        let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = rustix::net::getsockname(&socket).unwrap();
        (socket, address.try_into().unwrap())
    }

    #[test]
    fn a_closed_port_is_a_refusal_and_a_time_limit_is_not() {
        let (_held, to) = closed_port();
        let attempt = Attempt {
            protocol: Protocol::Tcp,
            to,
        };
        assert!(attempt.is_refused(attempt.make()));
        assert!(!attempt.is_refused(Errno::TIMEDOUT.raw_os_error()));
        // A service that is not there is no rule for UDP.
        let udp = Attempt {
            protocol: Protocol::Udp,
            to,
        };
        assert!(!udp.is_refused(Errno::CONNREFUSED.raw_os_error()));
    }

    #[test]
    fn an_attempt_is_found_among_what_was_counted() {
        let attempt = Attempt {
            protocol: Protocol::Udp,
            to: "198.51.100.1:53".parse().unwrap(),
        };
        let mut count = Count {
            address: attempt.to.ip(),
            protocol: 17,
            port: 53,
            packets: 1,
            bytes: 60,
        };
        assert!(attempt.is_counted(std::slice::from_ref(&count)));
        count.protocol = 6;
        assert!(!attempt.is_counted(&[count]));
    }
}
