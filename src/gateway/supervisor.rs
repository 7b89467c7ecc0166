//! Whoever has started the gateway: it is told what happens, and its end ends
//! the gateway, whatever it died of.

use std::io::{self, Write};
use std::os::fd::OwnedFd;

use rustix::net::{RecvFlags, SendFlags};

use crate::sys::spawn;

/// Where the socket is passed.
const FD: i32 = 3;

#[derive(Debug)]
pub(crate) struct Supervisor {
    socket: Option<OwnedFd>,
}

impl Supervisor {
    /// To be called before anything else is opened.
    pub(crate) fn take(supervised: bool) -> io::Result<Supervisor> {
        let socket = supervised.then(|| spawn::take_inherited(FD)).transpose()?;
        if let Some(socket) = &socket {
            // No socket at all is an error now, not later.
            rustix::net::sockopt::socket_type(socket)?;
            rustix::io::ioctl_fionbio(socket, true)?;
        }
        Ok(Supervisor { socket })
    }

    pub(crate) fn socket(&self) -> Option<&OwnedFd> {
        self.socket.as_ref()
    }

    /// One line on stdout, or one packet.
    pub(crate) fn tell(&self, event: &serde_json::Value) {
        match &self.socket {
            // Nobody may be listening. What matters is told by the socket's end.
            Some(socket) => {
                let text = event.to_string();
                let _ = rustix::net::send(socket, text.as_bytes(), SendFlags::NOSIGNAL);
            }
            None => {
                let mut stdout = io::stdout().lock();
                let _ = writeln!(stdout, "{event}").and_then(|()| stdout.flush());
            }
        }
    }

    /// Nothing is asked for on the socket: what can be read is its end.
    pub(crate) fn is_gone(&self) -> bool {
        let Some(socket) = &self.socket else {
            return false;
        };
        match rustix::net::recv(socket, &mut [0; 1][..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => true,
            Ok(_) => false,
            Err(error) => !matches!(error, rustix::io::Errno::AGAIN | rustix::io::Errno::INTR),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn events_are_packets_and_the_end_is_noticed() {
        let (ours, theirs) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let supervisor = Supervisor {
            socket: Some(theirs),
        };
        assert!(!supervisor.is_gone());
        supervisor.tell(&serde_json::json!({"event": "ready"}));
        let ours = UnixDatagram::from(ours);
        let mut buffer = [0; 64];
        let length = ours.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], br#"{"event":"ready"}"#);
        drop(ours);
        assert!(supervisor.is_gone());
        supervisor.tell(&serde_json::json!({"event": "late"}));
    }

    #[test]
    fn gateway_that_nobody_supervises_stays() {
        assert!(!Supervisor { socket: None }.is_gone());
    }
}
