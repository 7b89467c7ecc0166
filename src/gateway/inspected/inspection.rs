//! A client whose TLS ends here: requests in, each judged on its head before a
//! byte of it goes on, and responses back as they come.

use std::sync::Arc;
use std::time::Duration;

use rustls::server::UnbufferedServerConnection;

use crate::gateway::audit::Record;
use crate::gateway::denial::{self, Cause, Denial, Sending, Wanted};
use crate::gateway::dns::ResolveError;
use crate::gateway::http::authority::Authority;
use crate::gateway::http::head::Scan;
use crate::gateway::inspected::exchange::{Exchange, Trouble};
use crate::gateway::inspected::judge::{self, Refused};
use crate::gateway::proxy::context::Context;
use crate::gateway::proxy::socket::{Received, Socket};
use crate::gateway::tls::session::Session;
use crate::gateway::upstream::dial::Caller;

/// For a handshake, and for a head from its first byte on.
pub(crate) const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// Between two requests.
const IDLE_LIMIT: Duration = Duration::from_secs(600);
/// Without a byte in either direction during a request.
pub(crate) const STALL_LIMIT: Duration = Duration::from_secs(900);
/// The same for what may be silent by its nature.
pub(crate) const QUIET_LIMIT: Duration = Duration::from_secs(3600);
/// For the last answer to be taken.
pub(crate) const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// How much one connection does before the others have their turn.
const ROUNDS: usize = 16;

/// What to do with the connection next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Wait,
    /// There is more to do at once, after the others.
    Again,
    /// Send what waits, then let the client read it before the end.
    Linger,
    Close,
}

#[derive(Debug)]
pub(crate) struct Inspection {
    target: Arc<Authority>,
    host_field: String,
    tls: Session<UnbufferedServerConnection>,
    /// What the client has sent and nobody has taken yet.
    plain: Vec<u8>,
    /// How far a head was looked at that is not whole.
    scan: Scan,
    exchange: Option<Box<Exchange>>,
    /// The last answer is on its way.
    closing: bool,
    caller: Caller,
}

impl Inspection {
    pub(crate) fn new(
        target: Arc<Authority>,
        records: UnbufferedServerConnection,
        caller: Caller,
    ) -> Inspection {
        Inspection {
            host_field: target.host_field(),
            target,
            tls: Session::new(records),
            plain: Vec::new(),
            scan: Scan::default(),
            exchange: None,
            closing: false,
            caller,
        }
    }

    /// Begins with the ClientHello, which was read already.
    pub(crate) fn greet(
        &mut self,
        client: &mut Socket,
        hello: &mut [u8],
        context: &mut Context,
    ) -> Next {
        let plain = &mut self.plain;
        let taken = self
            .tls
            .take(hello, &mut client.out, |data| plain.extend_from_slice(data));
        match taken {
            Ok(()) => self.drive(client, context),
            Err(error) => self.handshake_failed(&error.to_string(), context),
        }
    }

    pub(crate) fn drive(&mut self, client: &mut Socket, context: &mut Context) -> Next {
        for _ in 0..ROUNDS {
            match self.round(client, context) {
                Ok(true) if self.exchange.as_mut().is_some_and(|it| it.pauses()) => break,
                Ok(true) => {}
                Ok(false) if self.closing && client.is_flushed() => return Next::Linger,
                Ok(false) => return Next::Wait,
                Err(next) => return next,
            }
        }
        Next::Again
    }

    fn round(&mut self, client: &mut Socket, context: &mut Context) -> Result<bool, Next> {
        context.lend(&mut client.out);
        let mut progress = self.read(client, context)?;
        match self.take_plain(client, context)? {
            true => progress = true,
            false => progress |= self.after_goodbye(client, context)?,
        }
        progress |= self.drive_exchange(client, context)?;
        progress |= client.flush().map_err(|_| Next::Close)?;
        Ok(progress)
    }

    /// Whether more of the client's bytes can be used now. What cannot is left
    /// to the kernel, which slows the client down.
    fn wants_data(&self) -> bool {
        match &self.exchange {
            _ if self.closing => false,
            None => true,
            Some(exchange) => self.plain.is_empty() && exchange.wants_body(),
        }
    }

    fn read(&mut self, client: &mut Socket, context: &mut Context) -> Result<bool, Next> {
        if self
            .exchange
            .as_ref()
            .is_some_and(|exchange| exchange.awaits_only_server())
            && client.has_hung_up()
        {
            // Nobody is there to read the answer.
            return Err(Next::Close);
        }
        if !self.wants_data() || !client.is_flushed() || !client.may_read() {
            return Ok(false);
        }
        let start = self.tls.leftover().len();
        let received = context.read(client, self.tls.leftover());
        match received.map_err(|_| Next::Close)? {
            Received::Nothing => Ok(false),
            Received::Data(length) => self.open(start + length, client, context).map(|()| true),
            Received::End => Err(self.client_ended(context)),
        }
    }

    /// Decrypts the front of the input buffer. Body bytes go straight to the
    /// server, everything else waits in `plain`.
    fn open(
        &mut self,
        length: usize,
        client: &mut Socket,
        context: &mut Context,
    ) -> Result<(), Next> {
        context.lend(&mut self.plain);
        let Inspection {
            tls,
            plain,
            exchange,
            ..
        } = self;
        let mut trouble = None;
        let records = context.input.get_mut(..length).unwrap_or_default();
        let taken = tls.take(records, &mut client.out, |data| {
            let sent = match exchange {
                // What follows a mistake is not looked at any more.
                _ if trouble.is_some() => Ok(data.len()),
                Some(exchange) if plain.is_empty() && exchange.takes_body() => {
                    exchange.send_body(data)
                }
                _ => Ok(0),
            };
            match sent {
                Ok(sent) => plain.extend_from_slice(data.get(sent..).unwrap_or_default()),
                Err(error) => trouble = Some(error),
            }
        });
        if let Err(error) = taken {
            return match self.exchange {
                Some(_) => Err(Next::Close),
                None => Err(self.handshake_failed(&error.to_string(), context)),
            };
        }
        match trouble {
            Some(trouble) => self.end_with(trouble, client, context),
            None => Ok(()),
        }
    }

    /// The client has said that it sends no more. What it has asked for in
    /// whole is answered still.
    fn after_goodbye(&mut self, client: &mut Socket, context: &mut Context) -> Result<bool, Next> {
        if !self.tls.is_closed() || self.closing {
            return Ok(false);
        }
        match &self.exchange {
            None => {
                self.close(client);
                Ok(true)
            }
            Some(exchange) if exchange.awaits_only_server() || !self.plain.is_empty() => Ok(false),
            Some(_) => Err(self.client_ended(context)),
        }
    }

    fn client_ended(&mut self, context: &mut Context) -> Next {
        if !self.tls.is_ready() {
            return self.handshake_failed("the client has closed the connection", context);
        }
        if let Some(exchange) = &mut self.exchange {
            exchange.client_ended(context);
        }
        Next::Close
    }

    /// The client does not trust the certificate, or wants another protocol.
    fn handshake_failed(&mut self, why: &str, context: &mut Context) -> Next {
        if self.tls.is_ready() {
            return Next::Linger;
        }
        let why = format!("TLS with the client failed: {why}");
        context.record_for(Some(&self.target), Record::denied("https", &why));
        Next::Linger
    }

    /// Uses what the client has sent: a body goes on, a head is judged.
    fn take_plain(&mut self, client: &mut Socket, context: &mut Context) -> Result<bool, Next> {
        if self.closing || self.plain.is_empty() || !self.tls.is_ready() {
            return Ok(false);
        }
        let mut plain = std::mem::take(&mut self.plain);
        let used = match &mut self.exchange {
            Some(exchange) if exchange.wants_body() => match exchange.send_body(&plain) {
                Ok(sent) => sent,
                Err(trouble) => {
                    self.end_with(trouble, client, context)?;
                    plain.len()
                }
            },
            Some(_) => 0,
            None => self.take_head(&plain, client, context),
        };
        plain.drain(..used);
        self.plain = plain;
        Ok(used > 0)
    }

    /// Returns how many bytes are used up.
    fn take_head(&mut self, plain: &[u8], client: &mut Socket, context: &mut Context) -> usize {
        let end = match self.scan.find_end(plain) {
            Ok(None) => return 0,
            Ok(Some(end)) => end,
            Err(error) => {
                let refused = Refused::of_head(error);
                self.refuse(&refused, client, context);
                return plain.len();
            }
        };
        let bytes = plain.get(..end).unwrap_or_default();
        let begun = judge::judge(bytes, &self.target, &self.host_field, context)
            .and_then(|request| Exchange::begin(request, &self.target, self.caller, context));
        match begun {
            Ok(exchange) => self.exchange = Some(exchange),
            Err(refused) => {
                self.refuse(&refused, client, context);
                if self.closing {
                    return plain.len();
                }
            }
        }
        end
    }

    /// Answers in the server's place.
    fn refuse(&mut self, refused: &Refused, client: &mut Socket, context: &mut Context) {
        let wanted = Wanted {
            target: Some(&self.target),
            method: refused.method.as_deref(),
            path: refused.path.as_deref(),
        };
        let sending = Sending {
            close: refused.close,
            bodyless: refused.method.as_deref() == Some("HEAD"),
        };
        let response = denial::response(&refused.denial, &wanted, &context.rules, sending);
        let record = Record {
            method: wanted.method,
            path: wanted.path,
            verdict: Some(refused.verdict),
            rule: refused.rule.as_deref(),
            status: Some(refused.denial.cause.status()),
            ..Record::denied("https", &refused.denial.reason)
        };
        context.record_for(Some(&self.target), record);
        let sealed = self.tls.seal(&response, &mut client.out);
        if refused.close || sealed.is_err() {
            self.close(client);
        }
    }

    fn close(&mut self, client: &mut Socket) {
        self.tls.close(&mut client.out);
        self.closing = true;
    }

    fn drive_exchange(&mut self, client: &mut Socket, context: &mut Context) -> Result<bool, Next> {
        let Some(exchange) = &mut self.exchange else {
            return Ok(false);
        };
        let may_answer = client.is_flushed();
        let progress = match exchange.drive(client, &mut self.tls, may_answer, context) {
            Ok(progress) => progress,
            Err(trouble) => return self.end_with(trouble, client, context).map(|()| true),
        };
        // Nobody waits for what follows an answer.
        let sent = client.flush();
        let finished = exchange.finish(context);
        if let Some(close) = finished {
            self.exchange = None;
            if close {
                self.close(client);
            }
        }
        sent.map(|sent| progress || sent || finished.is_some())
            .map_err(|_| Next::Close)
    }

    /// An exchange cannot be completed: answered if nothing was answered yet,
    /// and cut otherwise, so that the client sees that something is missing.
    fn end_with(
        &mut self,
        trouble: Trouble,
        client: &mut Socket,
        context: &mut Context,
    ) -> Result<(), Next> {
        let Some(exchange) = self.exchange.take() else {
            return Err(Next::Close);
        };
        match exchange.fail(trouble, context) {
            Some(refused) => {
                self.refuse(&refused, client, context);
                Ok(())
            }
            // Without TLS's own goodbye: what there is of it, and no more.
            None => Err(Next::Linger),
        }
    }

    pub(crate) fn resolved(
        &mut self,
        answer: Result<Vec<std::net::IpAddr>, ResolveError>,
        client: &mut Socket,
        context: &mut Context,
    ) -> Next {
        if let Some(exchange) = &mut self.exchange
            && let Err(trouble) = exchange.resolved(answer, context)
            && let Err(next) = self.end_with(trouble, client, context)
        {
            return next;
        }
        self.drive(client, context)
    }

    pub(crate) fn note_upstream(&mut self, event: &mio::event::Event) {
        if let Some(exchange) = &mut self.exchange {
            exchange.note(event);
        }
    }

    /// Whether another worker could go on with it, and its connection to the
    /// server, if there is one.
    pub(crate) fn movable(&mut self) -> Option<Option<&mut Socket>> {
        match &mut self.exchange {
            _ if self.closing || !self.tls.is_ready() => None,
            None => Some(None),
            Some(exchange) => exchange.movable().map(Some),
        }
    }

    pub(crate) fn set_caller(&mut self, caller: Caller) {
        self.caller = caller;
        if let Some(exchange) = &mut self.exchange {
            exchange.set_caller(caller);
        }
    }

    /// How long the present state may last without progress, and whether
    /// progress makes it longer.
    pub(crate) fn limit(&self) -> (Duration, bool) {
        match &self.exchange {
            _ if self.closing => (CLOSE_LIMIT, false),
            Some(exchange) => exchange.limit(),
            None if !self.tls.is_ready() || !self.plain.is_empty() => (HEAD_LIMIT, false),
            None => (IDLE_LIMIT, true),
        }
    }

    /// Time is up.
    pub(crate) fn expire(&mut self, client: &mut Socket, context: &mut Context) -> Next {
        if self.closing {
            return Next::Close;
        }
        if let Some(exchange) = &mut self.exchange {
            let Err(trouble) = exchange.expire(context) else {
                return self.drive(client, context);
            };
            return match self.end_with(trouble, client, context) {
                Ok(()) => self.drive(client, context),
                Err(next) => next,
            };
        }
        if self.tls.is_ready() && !self.plain.is_empty() {
            let denial = Denial::new(
                Cause::Timeout,
                "the head of the request did not come in time",
            );
            self.refuse(&Refused::whole(denial), client, context);
            return self.drive(client, context);
        }
        if !self.tls.is_ready() {
            return self.handshake_failed("it took too long", context);
        }
        self.close(client);
        self.drive(client, context)
    }

    /// The policy has changed. What has no end of its own is asked for again.
    pub(crate) fn is_still_allowed(&self, context: &Context) -> bool {
        self.exchange
            .as_ref()
            .is_none_or(|exchange| exchange.is_still_allowed(context))
    }

    /// Gives back what is held, and records what is not complete.
    pub(crate) fn end(self, why: &str, context: &mut Context) {
        if let Some(exchange) = self.exchange {
            exchange.end(why, context);
        }
    }

    /// Returns how much memory stays in use.
    pub(crate) fn settle(&mut self, context: &mut Context) -> usize {
        let mut held = context.settle(&mut self.plain) + self.tls.leftover().len();
        if let Some(exchange) = &mut self.exchange {
            held += exchange.settle(context);
        }
        held
    }
}
