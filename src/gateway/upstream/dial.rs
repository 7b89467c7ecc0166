//! Host and port -> a TCP connection to an address that was judged.
//!
//! One resolution: all of its answers are looked at, and one of them is
//! dialled. A name that points into a private network is refused whole.

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use mio::net::TcpStream;

use crate::gateway::dns::{Ask, ResolveError};
use crate::gateway::http::authority::Authority;
use crate::gateway::proxy::context::{Context, Owner};
use crate::gateway::proxy::socket::{Socket, set_options};
use crate::policy::address::AddressClass;
use crate::policy::decide::{Host, Rules};

/// For each address.
const CONNECT_LIMIT: Duration = Duration::from_secs(6);
/// More than the resolver itself takes, which says what went wrong.
const RESOLVE_LIMIT: Duration = Duration::from_secs(12);
/// Addresses that are tried.
const MAX_ADDRESSES: usize = 4;

/// Who is dialling, so that answers find back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) connection: usize,
    /// Tells successive owners of a number apart.
    pub(crate) serial: u64,
}

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum DialError {
    Resolve(ResolveError),
    /// The name leads to a place that the rule does not allow.
    Forbidden {
        address: IpAddr,
        class: AddressClass,
    },
    Connect(std::io::Error),
    Timeout,
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DialError::Resolve(error) => error.fmt(f),
            DialError::Forbidden { address, class } => write!(
                f,
                "the host has the address {address} ({}), and no rule with \"private = true\" allows that",
                class.as_str()
            ),
            DialError::Connect(error) => write!(f, "cannot connect: {error}"),
            DialError::Timeout => f.write_str("the server did not answer in time"),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Dial {
    state: State,
    caller: Caller,
    port: u16,
    private: bool,
}

#[derive(Debug)]
enum State {
    Resolving,
    Connecting {
        socket: Socket,
        rest: VecDeque<IpAddr>,
    },
    /// Between two states, and at the end.
    Over,
}

impl Dial {
    /// `private`: whether the rule allows private addresses.
    pub(crate) fn start(
        target: &Authority,
        private: bool,
        caller: Caller,
        context: &mut Context,
    ) -> Result<Dial, DialError> {
        let mut dial = Dial {
            state: State::Resolving,
            caller,
            port: target.port,
            private,
        };
        match known(&target.host, &context.rules) {
            // A rule for the literal is a rule that names the address.
            Some((addresses, named)) => {
                dial.private |= named;
                dial.connect(addresses, context)?;
            }
            None => context.shared.dns.send(Ask {
                name: target.host.to_string(),
                worker: context.worker,
                caller,
            }),
        }
        Ok(dial)
    }

    /// The answer to the question of `start`.
    pub(crate) fn resolved(
        &mut self,
        answer: Result<Vec<IpAddr>, ResolveError>,
        context: &mut Context,
    ) -> Result<(), DialError> {
        match (&self.state, answer) {
            (State::Resolving, Ok(addresses)) => self.connect(addresses, context),
            (State::Resolving, Err(error)) => Err(DialError::Resolve(error)),
            _ => Ok(()),
        }
    }

    fn connect(&mut self, addresses: Vec<IpAddr>, context: &mut Context) -> Result<(), DialError> {
        for &address in &addresses {
            check(address, self.private)?;
        }
        // Networks without IPv6 are more common than those without IPv4.
        let (v4, v6): (Vec<IpAddr>, Vec<IpAddr>) = addresses.into_iter().partition(IpAddr::is_ipv4);
        let rest = v4.into_iter().chain(v6).take(MAX_ADDRESSES).collect();
        self.try_next(rest, context)
    }

    fn try_next(
        &mut self,
        mut rest: VecDeque<IpAddr>,
        context: &mut Context,
    ) -> Result<(), DialError> {
        let mut last = DialError::Timeout;
        while let Some(address) = rest.pop_front() {
            let owner = Owner::Upstream(self.caller.connection);
            let opened = TcpStream::connect(SocketAddr::new(address, self.port))
                .and_then(|stream| set_options(&stream).map(|()| stream))
                .and_then(|stream| context.adopt(stream, owner));
            match opened {
                Ok(socket) => {
                    self.state = State::Connecting { socket, rest };
                    return Ok(());
                }
                Err(error) => last = DialError::Connect(error),
            }
        }
        Err(last)
    }

    /// How long the present state may last.
    pub(crate) fn limit(&self) -> Duration {
        match &self.state {
            State::Resolving => RESOLVE_LIMIT,
            _ => CONNECT_LIMIT,
        }
    }

    pub(crate) fn note(&mut self, event: &mio::event::Event) {
        if let State::Connecting { socket, .. } = &mut self.state {
            socket.note(event);
        }
    }

    /// The connection, once it is there.
    pub(crate) fn poll(&mut self, context: &mut Context) -> Result<Option<Socket>, DialError> {
        loop {
            let State::Connecting { socket, .. } = &self.state else {
                return Ok(None);
            };
            match socket.connected() {
                Ok(false) => return Ok(None),
                Ok(true) => {
                    let state = std::mem::replace(&mut self.state, State::Over);
                    return Ok(match state {
                        State::Connecting { socket, .. } => Some(socket),
                        _ => None,
                    });
                }
                Err(error) => self.give_up(DialError::Connect(error), context)?,
            }
        }
    }

    /// Time is up for this address. Goes on with the next one, if there is one.
    pub(crate) fn expire(&mut self, context: &mut Context) -> Result<(), DialError> {
        self.give_up(DialError::Timeout, context)
    }

    fn give_up(&mut self, error: DialError, context: &mut Context) -> Result<(), DialError> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Connecting { socket, rest } if !rest.is_empty() => {
                context.close(socket);
                self.try_next(rest, context)
            }
            State::Connecting { socket, .. } => {
                context.close(socket);
                Err(error)
            }
            _ => Err(error),
        }
    }

    pub(crate) fn cancel(self, context: &mut Context) {
        if let State::Connecting { socket, .. } = self.state {
            context.close(socket);
        }
    }
}

/// The addresses of what needs no resolver, and whether the rule named one.
fn known(host: &Host, rules: &Rules) -> Option<(Vec<IpAddr>, bool)> {
    match host {
        Host::Address(address) => Some((vec![*address], true)),
        Host::Name(name) => rules.fixed(name).map(|fixed| (fixed.to_vec(), false)),
    }
}

/// Whether no rule is needed to go on with that address; what is not known may
/// be anywhere.
pub(crate) fn is_public(address: Option<IpAddr>) -> bool {
    address.is_some_and(|address| AddressClass::of(address) == AddressClass::Public)
}

fn check(address: IpAddr, private: bool) -> Result<(), DialError> {
    match AddressClass::of(address) {
        AddressClass::Public => Ok(()),
        AddressClass::Private(_) if private => Ok(()),
        class => Err(DialError::Forbidden { address, class }),
    }
}
