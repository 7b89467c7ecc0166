//! A TLS connection to a server.

use std::fmt;
use std::io;

use rustls::client::UnbufferedClientConnection;

use crate::gateway::http::authority::Authority;
use crate::gateway::proxy::context::Context;
use crate::gateway::proxy::socket::{Received, Socket};
use crate::gateway::tls::session::{Session, SessionError};
use crate::gateway::tls::upstream;

/// Why a connection to a server is of no use.
#[derive(Debug)]
pub(crate) enum LinkError {
    Name(String),
    Tls(SessionError),
    Io(io::Error),
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkError::Name(why) => write!(f, "the host cannot be verified: {why}"),
            LinkError::Tls(error) => write!(f, "TLS with the server failed: {error}"),
            LinkError::Io(error) => write!(f, "the connection to the server failed: {error}"),
        }
    }
}

impl From<SessionError> for LinkError {
    fn from(error: SessionError) -> LinkError {
        LinkError::Tls(error)
    }
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) socket: Socket,
    pub(crate) tls: Session<UnbufferedClientConnection>,
    /// It has carried a request before.
    pub(crate) reused: bool,
    /// The server does not take what is sent any more.
    pub(crate) deaf: bool,
}

impl Link {
    /// Begins the handshake.
    pub(crate) fn start(
        socket: Socket,
        target: &Authority,
        context: &mut Context,
    ) -> Result<Link, LinkError> {
        let name = match upstream::server_name(&target.host) {
            Ok(name) => name,
            Err(why) => {
                context.close(socket);
                return Err(LinkError::Name(why));
            }
        };
        let config = context.shared.upstream.clone();
        let records = match UnbufferedClientConnection::new(config, name) {
            Ok(records) => records,
            Err(error) => {
                context.close(socket);
                return Err(LinkError::Tls(error.into()));
            }
        };
        let mut link = Link {
            socket,
            tls: Session::new(records),
            reused: false,
            deaf: false,
        };
        match link.tls.start(&mut link.socket.out) {
            Ok(()) => Ok(link),
            Err(error) => {
                context.close(link.socket);
                Err(error.into())
            }
        }
    }

    pub(crate) fn send(&mut self, data: &[u8]) -> Result<(), LinkError> {
        if !self.deaf {
            self.tls.seal(data, &mut self.socket.out)?;
        }
        Ok(())
    }

    /// A server that has closed may have answered before it did.
    pub(crate) fn flush(&mut self) -> bool {
        match self.socket.flush() {
            Ok(progress) => progress,
            Err(_) => {
                self.deaf = true;
                self.socket.discard();
                false
            }
        }
    }

    /// Reads once; each piece of data goes to `plain`.
    pub(crate) fn read(
        &mut self,
        context: &mut Context,
        plain: impl FnMut(&[u8]),
    ) -> Result<Received, LinkError> {
        let start = self.tls.leftover().len();
        let received = context
            .read(&mut self.socket, self.tls.leftover())
            .map_err(LinkError::Io)?;
        if let Received::Data(length) = received {
            let records = context.input.get_mut(..start + length).unwrap_or_default();
            self.tls.take(records, &mut self.socket.out, plain)?;
        }
        Ok(received)
    }
}
