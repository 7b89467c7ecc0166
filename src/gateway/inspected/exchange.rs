//! One request and its response: the way to the server, the body up, the
//! response down.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::server::UnbufferedServerConnection;

use crate::gateway::audit::Record;
use crate::gateway::denial::{Cause, Denial};
use crate::gateway::dns::ResolveError;
use crate::gateway::http::authority::Authority;
use crate::gateway::http::body::{Body, BodyError};
use crate::gateway::inspected::inspection::{HEAD_LIMIT, QUIET_LIMIT, STALL_LIMIT};
use crate::gateway::inspected::judge::{Refused, Request};
use crate::gateway::inspected::response::{Broken, Response};
use crate::gateway::proxy::context::{Context, Owner};
use crate::gateway::proxy::socket::{Received, Socket};
use crate::gateway::tls::session::Session;
use crate::gateway::upstream::dial::{Caller, Dial, DialError, is_public};
use crate::gateway::upstream::link::{Link, LinkError};
use crate::gateway::upstream::pool::Key;

/// Why an exchange cannot be completed.
#[derive(Debug)]
pub(crate) enum Trouble {
    Dial(DialError),
    Link(LinkError),
    /// The client's body is malformed.
    Body(BodyError),
    /// The server's response is.
    Response(Broken),
    ServerClosed,
    Stalled,
    Client,
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Trouble::Dial(error) => error.fmt(f),
            Trouble::Link(error) => error.fmt(f),
            Trouble::Body(error) => error.fmt(f),
            Trouble::Response(error) => error.fmt(f),
            Trouble::ServerClosed => f.write_str("the server closed the connection too early"),
            Trouble::Stalled => f.write_str("the server did not answer in time"),
            Trouble::Client => f.write_str("the client has closed the connection"),
        }
    }
}

impl From<LinkError> for Trouble {
    fn from(error: LinkError) -> Trouble {
        Trouble::Link(error)
    }
}

impl From<DialError> for Trouble {
    fn from(error: DialError) -> Trouble {
        Trouble::Dial(error)
    }
}

#[derive(Debug)]
enum Server {
    Dialling(Dial),
    Linked(Box<Link>),
    /// Between two states, and at the end.
    None,
}

#[derive(Debug)]
pub(crate) struct Exchange {
    request: Request,
    target: Arc<Authority>,
    key: Key,
    server: Server,
    caller: Caller,
    head_sent: bool,
    response: Response,
    started: Instant,
    up: u64,
    /// The server has spoken without saying anything.
    pauses: bool,
}

impl Exchange {
    pub(crate) fn begin(
        request: Request,
        target: &Arc<Authority>,
        caller: Caller,
        context: &mut Context,
    ) -> Result<Box<Exchange>, Box<Refused>> {
        let key = Key {
            target: target.clone(),
            private: request.private,
            generation: context.generation,
        };
        let mut exchange = Box::new(Exchange {
            response: Response::new(&request),
            target: target.clone(),
            key,
            server: Server::None,
            caller,
            head_sent: false,
            started: context.now,
            up: 0,
            pauses: false,
            request,
        });
        let found = match exchange.take_pooled(context) {
            true => Ok(()),
            false => exchange.dial(context),
        };
        match found {
            Ok(()) => Ok(exchange),
            Err(error) => Err(Box::new(exchange.refused(&error.into()))),
        }
    }

    fn take_pooled(&mut self, context: &mut Context) -> bool {
        while let Some(link) = context.pool.take(&self.key) {
            // Closed meanwhile, or with something to say that nobody has asked
            // for and that would be taken for the answer.
            if link.socket.is_quiet() {
                let owner = Owner::Upstream(self.caller.connection);
                context.slots.set(link.socket.slot(), owner);
                self.server = Server::Linked(link);
                return true;
            }
            context.close(link.socket);
        }
        false
    }

    fn dial(&mut self, context: &mut Context) -> Result<(), DialError> {
        let dial = Dial::start(&self.target, self.request.private, self.caller, context)?;
        self.server = Server::Dialling(dial);
        Ok(())
    }

    /// Whether sending the request a second time changes nothing.
    fn may_repeat(&self) -> bool {
        let is_idempotent = matches!(self.request.method.as_str(), "GET" | "HEAD" | "OPTIONS");
        is_idempotent && self.up == 0 && self.request.body.is_done() && !self.request.websocket
    }

    pub(crate) fn resolved(
        &mut self,
        answer: Result<Vec<IpAddr>, ResolveError>,
        context: &mut Context,
    ) -> Result<(), Trouble> {
        match &mut self.server {
            Server::Dialling(dial) => Ok(dial.resolved(answer, context)?),
            _ => Ok(()),
        }
    }

    pub(crate) fn note(&mut self, event: &mio::event::Event) {
        match &mut self.server {
            Server::Dialling(dial) => dial.note(event),
            Server::Linked(link) => link.socket.note(event),
            Server::None => {}
        }
    }

    /// How long the present state may last, and whether progress makes it
    /// longer.
    pub(crate) fn limit(&self) -> (Duration, bool) {
        match &self.server {
            Server::Dialling(dial) => (dial.limit(), false),
            Server::Linked(link) if !link.tls.is_ready() => (HEAD_LIMIT, false),
            _ if self.is_websocket() => (QUIET_LIMIT, true),
            _ => (STALL_LIMIT, true),
        }
    }

    pub(crate) fn is_websocket(&self) -> bool {
        self.response.is_switched()
    }

    /// Its connection, if it can be moved to another worker.
    pub(crate) fn movable(&mut self) -> Option<&mut Socket> {
        match &mut self.server {
            Server::Linked(link) if link.tls.is_ready() => Some(&mut link.socket),
            _ => None,
        }
    }

    pub(crate) fn set_caller(&mut self, caller: Caller) {
        self.caller = caller;
    }

    /// Whether body bytes are missing that can be sent on.
    pub(crate) fn takes_body(&self) -> bool {
        self.head_sent && !self.request.body.is_done()
    }

    /// Whether to read more of them: what was read before has gone.
    pub(crate) fn wants_body(&self) -> bool {
        let is_free = matches!(&self.server, Server::Linked(link) if link.socket.is_flushed());
        is_free && self.takes_body()
    }

    /// Whether the client has nothing more to say about it.
    pub(crate) fn awaits_only_server(&self) -> bool {
        self.request.body.is_done()
    }

    /// Sends body bytes on; returns how many belong to the body.
    pub(crate) fn send_body(&mut self, data: &[u8]) -> Result<usize, Trouble> {
        let Server::Linked(link) = &mut self.server else {
            return Ok(0);
        };
        let mut rest = data;
        while !rest.is_empty() && !self.request.body.is_done() {
            let step = self.request.body.step(rest).map_err(Trouble::Body)?;
            let (used, after) = rest
                .split_at_checked(step.skip + step.forward)
                .unwrap_or((rest, &[]));
            let forward = used.get(step.skip..).unwrap_or_default();
            if !forward.is_empty() {
                link.send(forward)?;
                self.up += forward.len() as u64;
            }
            rest = after;
        }
        Ok(data.len() - rest.len())
    }

    /// Does what can be done now; `may_answer` is for more of the response.
    /// Returns whether anything was done.
    pub(crate) fn drive(
        &mut self,
        client: &mut Socket,
        tls: &mut Session<UnbufferedServerConnection>,
        may_answer: bool,
        context: &mut Context,
    ) -> Result<bool, Trouble> {
        let mut progress = self.drive_dial(context)?;
        progress |= self.send_head(context)?;
        if let Server::Linked(link) = &mut self.server {
            progress |= link.flush();
        }
        if may_answer {
            progress |= self.read_server(client, tls, context)?;
        }
        Ok(progress)
    }

    /// Whether the others have their turn first: messages of TLS itself, such as
    /// session tickets, cost much and are worth nothing.
    pub(crate) fn pauses(&mut self) -> bool {
        std::mem::take(&mut self.pauses)
    }

    fn drive_dial(&mut self, context: &mut Context) -> Result<bool, Trouble> {
        let Server::Dialling(dial) = &mut self.server else {
            return Ok(false);
        };
        let Some(socket) = dial.poll(context)? else {
            return Ok(false);
        };
        let link = Link::start(socket, &self.target, context)?;
        self.server = Server::Linked(Box::new(link));
        Ok(true)
    }

    fn send_head(&mut self, context: &mut Context) -> Result<bool, Trouble> {
        match &mut self.server {
            Server::Linked(link) if !self.head_sent && link.tls.is_ready() => {
                context.lend(&mut link.socket.out);
                link.send(&self.request.head)?;
                self.head_sent = true;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn read_server(
        &mut self,
        client: &mut Socket,
        tls: &mut Session<UnbufferedServerConnection>,
        context: &mut Context,
    ) -> Result<bool, Trouble> {
        let Exchange {
            server,
            response,
            head_sent,
            pauses,
            ..
        } = self;
        let Server::Linked(link) = server else {
            return Ok(false);
        };
        if !link.socket.may_read() || response.is_done() {
            return Ok(false);
        }
        context.lend(&mut link.socket.out);
        response.lend(context);
        let mut broken = None;
        *pauses = true;
        let read = link.read(context, |data| {
            *pauses = false;
            if !*head_sent {
                broken = Some(Broken::Unasked);
            } else if broken.is_none() {
                broken = response.take(data, tls, &mut client.out).err();
            }
        });
        match (read, broken) {
            (_, Some(broken)) => Err(Trouble::Response(broken)),
            (Err(error), None) => self.server_failed(error, context),
            (Ok(Received::Nothing), None) => Ok(false),
            (Ok(Received::Data(_)), None) => {
                self.take_response(client, tls, context)?;
                let has_closed =
                    matches!(&self.server, Server::Linked(link) if link.tls.is_closed());
                if has_closed {
                    self.server_ended(true, context)?;
                }
                Ok(true)
            }
            (Ok(Received::End), None) => self.server_ended(false, context).map(|()| true),
        }
    }

    /// Reads heads out of what has come so far.
    fn take_response(
        &mut self,
        client: &mut Socket,
        tls: &mut Session<UnbufferedServerConnection>,
        context: &mut Context,
    ) -> Result<(), Trouble> {
        let request_done = self.request.body.is_done();
        self.response
            .take_heads(request_done, tls, &mut client.out)
            .map_err(Trouble::Response)?;
        if self.response.is_switched() && self.request.body.is_done() {
            // From here on both directions are passed on as they are.
            self.request.body = Body::UntilClose;
            self.record(Some("open"), None, context);
        }
        Ok(())
    }

    /// `in_order`: the server has said so, and nobody has cut the connection.
    fn server_ended(&mut self, in_order: bool, context: &mut Context) -> Result<(), Trouble> {
        if self.response.is_done() || self.response.end(in_order) {
            return Ok(());
        }
        if self.retry(context)? {
            return Ok(());
        }
        Err(Trouble::ServerClosed)
    }

    fn server_failed(&mut self, error: LinkError, context: &mut Context) -> Result<bool, Trouble> {
        match self.retry(context)? {
            true => Ok(true),
            false => Err(error.into()),
        }
    }

    /// A kept connection may have been closed just when it was used again.
    fn retry(&mut self, context: &mut Context) -> Result<bool, Trouble> {
        let is_stale = matches!(&self.server, Server::Linked(link) if link.reused);
        if !is_stale || !self.may_repeat() || !self.response.is_untouched() {
            return Ok(false);
        }
        self.drop_server(context);
        self.head_sent = false;
        self.dial(context)?;
        Ok(true)
    }

    fn drop_server(&mut self, context: &mut Context) {
        match std::mem::replace(&mut self.server, Server::None) {
            Server::Dialling(dial) => dial.cancel(context),
            Server::Linked(link) => context.close(link.socket),
            Server::None => {}
        }
    }

    /// Whether the client's connection is over with the exchange, if it is over.
    pub(crate) fn finish(&mut self, context: &mut Context) -> Option<bool> {
        if !self.response.is_done() {
            return None;
        }
        let is_whole = self.request.body.is_done();
        self.record(None, None, context);
        match std::mem::replace(&mut self.server, Server::None) {
            Server::Linked(link) if is_whole && self.is_reusable(&link) => {
                context.slots.set(link.socket.slot(), Owner::Idle);
                let now = context.now;
                if let Some(link) = context.pool.put(&self.key, link, now) {
                    context.close(link.socket);
                }
            }
            Server::Linked(link) => context.close(link.socket),
            Server::Dialling(dial) => dial.cancel(context),
            Server::None => {}
        }
        self.free(context);
        Some(!is_whole || self.response.closes_client())
    }

    fn is_reusable(&self, link: &Link) -> bool {
        !self.request.has_body
            && self.response.leaves_link_usable()
            && link.socket.is_flushed()
            && !link.deaf
            && !link.tls.is_closed()
            && !link.socket.has_hung_up()
    }

    fn free(&mut self, context: &mut Context) {
        self.request.head.clear();
        context.settle(&mut self.request.head);
        self.response.free(context);
    }

    /// The client is gone.
    pub(crate) fn client_ended(&mut self, context: &mut Context) {
        if let Server::Linked(link) = &mut self.server {
            link.tls.close(&mut link.socket.out);
            link.flush();
        }
        let trouble = Trouble::Client.to_string();
        let why = (!self.is_websocket()).then_some(trouble.as_str());
        self.record(None, why, context);
        self.response.mark_recorded();
    }

    pub(crate) fn expire(&mut self, context: &mut Context) -> Result<(), Trouble> {
        match &mut self.server {
            Server::Dialling(dial) => Ok(dial.expire(context)?),
            _ => Err(Trouble::Stalled),
        }
    }

    /// Ends the exchange. Where nothing was answered yet, says what to answer.
    pub(crate) fn fail(mut self, trouble: Trouble, context: &mut Context) -> Option<Refused> {
        let refused = match self.response.has_begun() {
            true => {
                self.record(None, Some(&trouble.to_string()), context);
                None
            }
            false => Some(self.refused(&trouble)),
        };
        self.drop_server(context);
        self.free(context);
        refused
    }

    fn refused(&self, trouble: &Trouble) -> Refused {
        let reason = trouble.to_string();
        let denial = match trouble {
            Trouble::Dial(DialError::Forbidden { .. }) => Denial::new(Cause::Denied, reason)
                .hint("have the person allow it: the rule needs private = true"),
            Trouble::Dial(DialError::Timeout) | Trouble::Stalled => {
                Denial::new(Cause::UpstreamTimeout, reason)
            }
            Trouble::Body(_) => Denial::new(Cause::BadRequest, reason),
            _ => Denial::new(Cause::Upstream, reason),
        };
        Refused {
            verdict: match trouble {
                Trouble::Dial(DialError::Forbidden { .. }) | Trouble::Body(_) => "deny",
                _ => "allow",
            },
            method: Some(self.request.method.clone()),
            path: Some(self.request.path.clone()),
            rule: Some(self.request.rule.clone()),
            close: self.request.close || !self.request.body.is_done() || self.up > 0,
            denial,
        }
    }

    pub(crate) fn is_still_allowed(&self, context: &Context) -> bool {
        let request = &self.request;
        let peer = match &self.server {
            Server::Linked(link) => link.socket.peer(),
            _ => None,
        };
        // One that is not open yet may be later, when nobody asks again.
        !request.websocket
            || context
                .rules
                .request(
                    &self.target.host,
                    self.target.port,
                    &request.method,
                    &request.path,
                )
                .is_ok_and(|rule| rule.private || !request.private || is_public(peer))
    }

    pub(crate) fn end(mut self, why: &str, context: &mut Context) {
        if !self.response.is_recorded() {
            self.record(None, Some(why), context);
        }
        self.drop_server(context);
        self.free(context);
    }

    pub(crate) fn settle(&mut self, context: &mut Context) -> usize {
        let mut held = self.request.head.capacity() + self.response.settle(context);
        if let Server::Linked(link) = &mut self.server {
            held += context.settle(&mut link.socket.out) + link.tls.leftover().len();
        }
        held
    }

    fn record(&mut self, event: Option<&str>, why: Option<&str>, context: &mut Context) {
        let is_open = event == Some("open");
        let ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let record = Record {
            kind: if self.is_websocket() {
                "websocket"
            } else {
                "https"
            },
            event: if self.is_websocket() {
                event.or(Some("end"))
            } else {
                event
            },
            method: Some(&self.request.method),
            path: Some(&self.request.path),
            verdict: Some("allow"),
            why,
            rule: Some(&self.request.rule),
            status: self.response.status(),
            up: (!is_open).then_some(self.up),
            down: (!is_open).then_some(self.response.down()),
            ms: (!is_open).then_some(ms),
            ..Record::default()
        };
        context.record_for(Some(&self.target), record);
        if !is_open {
            self.response.mark_recorded();
        }
    }
}
