//! Bytes passed on as they are, both ways: tunnels that a rule leaves alone,
//! and tcp rules.

use std::net::IpAddr;
use std::time::Duration;

use crate::gateway::audit::Record;
use crate::gateway::dns::ResolveError;
use crate::gateway::http::authority::Authority;
use crate::gateway::inspected::inspection::{CLOSE_LIMIT, Next, QUIET_LIMIT};
use crate::gateway::proxy::context::Context;
use crate::gateway::proxy::socket::{Received, Socket};
use crate::gateway::proxy::socks5;
use crate::gateway::tls::hello::{self, Alert};
use crate::gateway::upstream::dial::{Caller, Dial, DialError, is_public};
use crate::policy::decide::ConnectVerdict;

/// How much one connection does before the others have their turn.
const ROUNDS: usize = 16;

/// How the client came here, and so what it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Tunnel,
    Socks,
}

/// What is allowed, and by whom.
#[derive(Debug)]
pub(crate) struct Allowed {
    pub(crate) kind: Kind,
    pub(crate) target: Authority,
    pub(crate) private: bool,
    pub(crate) rule: String,
}

#[derive(Debug)]
pub(crate) struct Relay {
    allowed: Allowed,
    server: Server,
    /// What the client has sent before the server was there.
    early: Vec<u8>,
    client_ended: bool,
    server_ended: bool,
    started: std::time::Instant,
    up: u64,
    down: u64,
    opened: bool,
}

#[derive(Debug)]
enum Server {
    Dialling(Dial),
    Open(Socket),
    None,
}

impl Relay {
    pub(crate) fn start(
        allowed: Allowed,
        early: Vec<u8>,
        caller: Caller,
        client: &mut Socket,
        context: &mut Context,
    ) -> Result<Relay, Next> {
        let dial = Dial::start(&allowed.target, allowed.private, caller, context);
        let mut relay = Relay {
            allowed,
            server: Server::None,
            early,
            client_ended: false,
            server_ended: false,
            started: context.now,
            up: 0,
            down: 0,
            opened: false,
        };
        match dial {
            Ok(dial) => {
                relay.server = Server::Dialling(dial);
                Ok(relay)
            }
            Err(error) => Err(relay.fail(&error, client, context)),
        }
    }

    pub(crate) fn drive(&mut self, client: &mut Socket, context: &mut Context) -> Next {
        for _ in 0..ROUNDS {
            match self.round(client, context) {
                Ok(true) => {}
                Ok(false) => return Next::Wait,
                Err(next) => return next,
            }
        }
        Next::Again
    }

    fn round(&mut self, client: &mut Socket, context: &mut Context) -> Result<bool, Next> {
        let mut progress = self.drive_dial(client, context)?;
        progress |= client.flush().map_err(|_| Next::Close)?;
        let Server::Open(server) = &mut self.server else {
            return Ok(progress);
        };
        progress |= server.flush().map_err(|_| Next::Close)?;
        if !self.client_ended {
            progress |= pass(
                client,
                server,
                &mut self.up,
                &mut self.client_ended,
                context,
            )?;
        }
        if !self.server_ended {
            progress |= pass(
                server,
                client,
                &mut self.down,
                &mut self.server_ended,
                context,
            )?;
        }
        let is_over = self.client_ended && self.server_ended;
        match is_over && client.is_flushed() && server.is_flushed() {
            true => Err(Next::Close),
            false => Ok(progress),
        }
    }

    fn drive_dial(&mut self, client: &mut Socket, context: &mut Context) -> Result<bool, Next> {
        let Server::Dialling(dial) = &mut self.server else {
            return Ok(false);
        };
        let mut socket = match dial.poll(context) {
            Ok(None) => return Ok(false),
            Ok(Some(socket)) => socket,
            Err(error) => return Err(self.fail(&error, client, context)),
        };
        self.up += self.early.len() as u64;
        socket.out = std::mem::take(&mut self.early);
        if self.allowed.kind == Kind::Socks {
            client
                .out
                .extend_from_slice(&socks5::reply(socks5::Reply::Succeeded));
        }
        self.server = Server::Open(socket);
        self.opened = true;
        self.record(Some("open"), None, context);
        Ok(true)
    }

    /// There will be no connection.
    fn fail(&mut self, error: &DialError, client: &mut Socket, context: &mut Context) -> Next {
        let is_forbidden = matches!(error, DialError::Forbidden { .. });
        let verdict = if is_forbidden { "deny" } else { "allow" };
        self.write_record(verdict, None, Some(&error.to_string()), context);
        match self.allowed.kind {
            Kind::Socks => client
                .out
                .extend_from_slice(&socks5::reply(socks5::Reply::of(error))),
            Kind::Tunnel => client
                .out
                .extend_from_slice(&hello::alert(match is_forbidden {
                    true => Alert::AccessDenied,
                    false => Alert::HandshakeFailure,
                })),
        }
        Next::Linger
    }

    pub(crate) fn resolved(
        &mut self,
        answer: Result<Vec<IpAddr>, ResolveError>,
        client: &mut Socket,
        context: &mut Context,
    ) -> Next {
        let result = match &mut self.server {
            Server::Dialling(dial) => dial.resolved(answer, context),
            _ => Ok(()),
        };
        match result {
            Ok(()) => self.drive(client, context),
            Err(error) => self.fail(&error, client, context),
        }
    }

    pub(crate) fn note_upstream(&mut self, event: &mio::event::Event) {
        match &mut self.server {
            Server::Dialling(dial) => dial.note(event),
            Server::Open(socket) => socket.note(event),
            Server::None => {}
        }
    }

    /// As [`super::super::inspected::inspection::Inspection::movable`].
    pub(crate) fn movable(&mut self) -> Option<Option<&mut Socket>> {
        match &mut self.server {
            Server::Open(socket) => Some(Some(socket)),
            _ => None,
        }
    }

    pub(crate) fn limit(&self) -> (Duration, bool) {
        match &self.server {
            Server::Dialling(dial) => (dial.limit(), false),
            // One side is done; the other may have much to say, but not nothing.
            Server::Open(_) if self.client_ended || self.server_ended => (CLOSE_LIMIT * 6, true),
            _ => (QUIET_LIMIT, true),
        }
    }

    pub(crate) fn expire(&mut self, client: &mut Socket, context: &mut Context) -> Next {
        let result = match &mut self.server {
            Server::Dialling(dial) => dial.expire(context),
            _ => return Next::Close,
        };
        match result {
            Ok(()) => self.drive(client, context),
            Err(error) => self.fail(&error, client, context),
        }
    }

    pub(crate) fn is_still_allowed(&self, context: &Context) -> bool {
        let Authority { host, port } = &self.allowed.target;
        let private = match self.allowed.kind {
            Kind::Socks => context.rules.tcp(host, *port).ok().map(|rule| rule.private),
            Kind::Tunnel => match context.rules.connect(host, *port) {
                Ok(ConnectVerdict::Tunnel(rule)) => Some(rule.private),
                _ => None,
            },
        };
        let peer = match &self.server {
            Server::Open(server) => server.peer(),
            _ => None,
        };
        private.is_some_and(|private| private || !self.allowed.private || is_public(peer))
    }

    pub(crate) fn end(mut self, why: Option<&str>, context: &mut Context) {
        if self.opened {
            self.record(Some("end"), why, context);
        }
        match std::mem::replace(&mut self.server, Server::None) {
            Server::Dialling(dial) => dial.cancel(context),
            Server::Open(socket) => context.close(socket),
            Server::None => {}
        }
    }

    pub(crate) fn settle(&mut self, context: &mut Context) -> usize {
        let server = match &mut self.server {
            Server::Open(socket) => context.settle(&mut socket.out),
            _ => 0,
        };
        server + self.early.capacity()
    }

    fn record(&self, event: Option<&str>, why: Option<&str>, context: &mut Context) {
        self.write_record("allow", event, why, context);
    }

    fn write_record(
        &self,
        verdict: &str,
        event: Option<&str>,
        why: Option<&str>,
        context: &mut Context,
    ) {
        let is_end = event == Some("end");
        let ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let record = Record {
            kind: match self.allowed.kind {
                Kind::Tunnel => "tunnel",
                Kind::Socks => "tcp",
            },
            event,
            verdict: Some(verdict),
            why,
            rule: Some(&self.allowed.rule),
            up: is_end.then_some(self.up),
            down: is_end.then_some(self.down),
            ms: is_end.then_some(ms),
            ..Record::default()
        };
        context.record_for(Some(&self.allowed.target), record);
    }
}

/// Passes on what `from` has, as long as `to` takes it.
fn pass(
    from: &mut Socket,
    to: &mut Socket,
    count: &mut u64,
    ended: &mut bool,
    context: &mut Context,
) -> Result<bool, Next> {
    if !to.is_flushed() || !from.may_read() {
        return Ok(false);
    }
    match context.read(from, &[]).map_err(|_| Next::Close)? {
        Received::Nothing => Ok(false),
        Received::Data(length) => {
            *count += length as u64;
            to.send(context.input.get(..length).unwrap_or_default())
                .map_err(|_| Next::Close)?;
            Ok(true)
        }
        Received::End => {
            *ended = true;
            to.end_sending();
            Ok(true)
        }
    }
}
