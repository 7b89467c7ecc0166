//! Sockets, tried from one side of the cable to the other.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use crate::world::Holder;

/// For what answers at once or never.
const PATIENCE: Duration = Duration::from_secs(60);

/// Services of one side, which last as long as this.
pub(crate) struct Services {
    tcp: Vec<TcpListener>,
    udp: Vec<UdpSocket>,
}

impl Services {
    pub(crate) fn start(side: &Holder, tcp: &[SocketAddr], udp: &[SocketAddr]) -> Services {
        side.enter(|| Services {
            tcp: tcp
                .iter()
                .map(|at| TcpListener::bind(at).unwrap())
                .collect(),
            udp: udp.iter().map(|at| UdpSocket::bind(at).unwrap()).collect(),
        })
    }

    /// Takes one connection of the first TCP service and answers.
    pub(crate) fn serve_one(&self) {
        let (mut stream, _) = self.tcp[0].accept().unwrap();
        let mut word = [0; 4];
        stream.read_exact(&mut word).unwrap();
        stream.write_all(&word).unwrap();
    }

    /// Answers one datagram of the first UDP service.
    pub(crate) fn answer_one(&self) {
        let mut word = [0; 4];
        let (_, from) = self.udp[0].recv_from(&mut word).unwrap();
        self.udp[0].send_to(&word, from).unwrap();
    }
}

pub(crate) fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

/// `Ok` where a connection came about, else the kind of the failure.
pub(crate) fn connect(side: &Holder, to: SocketAddr) -> Result<(), ErrorKind> {
    let connected = side.enter(|| TcpStream::connect_timeout(&to, PATIENCE));
    connected.map(drop).map_err(|error| error.kind())
}

/// For what is dropped in silence: waits for a moment only.
pub(crate) fn connect_briefly(side: &Holder, to: SocketAddr) -> Result<(), ErrorKind> {
    let patience = Duration::from_millis(300);
    let connected = side.enter(|| TcpStream::connect_timeout(&to, patience));
    connected.map(drop).map_err(|error| error.kind())
}

pub(crate) fn send(side: &Holder, to: SocketAddr) -> Result<(), ErrorKind> {
    let any = if to.is_ipv4() { "0.0.0.0" } else { "::" };
    let sent = side.enter(|| {
        let socket = UdpSocket::bind(at(any, 0))?;
        socket.connect(to)?;
        socket.send(b"word")
    });
    sent.map(drop).map_err(|error| error.kind())
}

/// Sends a word over TCP and gets it back.
pub(crate) fn exchange_tcp(side: &Holder, to: SocketAddr) {
    side.enter(|| {
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"word").unwrap();
        let mut word = [0; 4];
        stream.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"word");
    });
}

pub(crate) fn exchange_udp(side: &Holder, to: SocketAddr) {
    side.enter(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.connect(to).unwrap();
        socket.send(b"word").unwrap();
        let mut word = [0; 4];
        socket.recv(&mut word).unwrap();
        assert_eq!(&word, b"word");
    });
}
