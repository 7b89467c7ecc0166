//! The first bytes of a client -> where it may go. CONNECT, then a
//! ClientHello; or SOCKS5. Nothing is dialled before the verdict.

use std::sync::Arc;

use httparse::Header;
use rustls::server::UnbufferedServerConnection;

use crate::gateway::audit::Record;
use crate::gateway::denial::{self, Cause, Denial, Sending, Wanted};
use crate::gateway::http::authority::Authority;
use crate::gateway::http::fields::Meaning;
use crate::gateway::http::head::{self, Scan};
use crate::gateway::inspected::inspection::{Inspection, Next};
use crate::gateway::inspected::judge::{self, Refused};
use crate::gateway::proxy::context::Context;
use crate::gateway::proxy::relay::{Allowed, Kind, Relay};
use crate::gateway::proxy::socket::Socket;
use crate::gateway::proxy::socks5::{self, Asked, Reply};
use crate::gateway::tls::hello::{self, Alert, HelloError};
use crate::gateway::upstream::dial::Caller;
use crate::policy::decide::{ConnectVerdict, Refusal};
use crate::text;

/// What a client is to become, told by what it has sent so far.
#[derive(Debug)]
pub(crate) enum Turn {
    /// More is needed.
    Stay,
    Hello(Hello),
    Inspect(Box<Inspection>, Next),
    Relay(Box<Relay>),
    SocksRequest,
    Over(Next),
}

/// A target that is allowed, and a ClientHello that is not whole yet.
#[derive(Debug)]
pub(crate) struct Hello {
    target: Arc<Authority>,
}

/// On the HTTP port.
pub(crate) fn connect(
    scan: &mut Scan,
    bytes: &mut Vec<u8>,
    client: &mut Socket,
    context: &mut Context,
) -> Turn {
    let end = match scan.find_end(bytes) {
        Ok(None) => return Turn::Stay,
        Ok(Some(end)) => end,
        Err(error) => {
            let refused = match bytes.first() {
                Some(0x16) => Refused::whole(
                    Denial::new(Cause::BadRequest, "TLS came before CONNECT")
                        .hint("this is an HTTP proxy; give the client an http:// proxy address"),
                ),
                _ => Refused::of_head(error),
            };
            return refuse(&refused, None, client, context);
        }
    };
    let head = bytes.get(..end).unwrap_or_default();
    match judge_connect(head, context) {
        Ok(hello) => {
            bytes.drain(..end);
            client
                .out
                .extend_from_slice(b"HTTP/1.1 200 Connection established\r\n\r\n");
            Turn::Hello(hello)
        }
        Err((refused, target)) => refuse(&refused, target.as_ref(), client, context),
    }
}

type Unconnected = (Box<Refused>, Option<Authority>);

fn judge_connect(head: &[u8], context: &mut Context) -> Result<Hello, Unconnected> {
    let mut room = head::no_fields();
    let (head, fields) = head::parse_request(head, &mut room)
        .map_err(|error| (Box::new(Refused::of_head(error)), None))?;
    let refuse = |denial: Denial| {
        Box::new(Refused {
            method: Some(text::printable(head.method).chars().take(32).collect()),
            ..Refused::whole(denial)
        })
    };
    if head.method != "CONNECT" {
        return Err((refuse(not_connect(head.target)), plain_target(head.target)));
    }
    let bad = |why: &str| refuse(Denial::new(Cause::BadRequest, why));
    let target = Authority::from_connect(head.target).map_err(|why| {
        (
            bad(&format!("the target of CONNECT is refused: {why}")),
            None,
        )
    })?;
    if let Err(why) = agrees_with_host(fields, &target) {
        return Err((bad(&why), Some(target)));
    }
    if let Err(refusal) = context.rules.connect(&target.host, target.port) {
        return Err((refuse(of_refusal(refusal, &target, context)), Some(target)));
    }
    if !context.shared.audit.is_ready() {
        return Err((refuse(judge::audit_unavailable()), Some(target)));
    }
    let target = Arc::new(target);
    Ok(Hello { target })
}

/// A `Host` field may be missing; it may not name something else.
fn agrees_with_host(fields: &[Header<'_>], target: &Authority) -> Result<(), String> {
    let meaning = Meaning::of(fields).map_err(|error| error.to_string())?;
    match meaning
        .host
        .map(|host| Authority::from_host_field(host, target.port))
    {
        None => Ok(()),
        Some(Ok(host)) if host == *target => Ok(()),
        Some(_) => Err("Host and the target of CONNECT disagree".to_owned()),
    }
}

fn of_refusal(refusal: Refusal, target: &Authority, context: &Context) -> Denial {
    let denial = Denial::new(Cause::Denied, refusal.as_str());
    match context.rules.tcp(&target.host, target.port) {
        Ok(_) => denial.hint("a tcp rule allows this target, through the SOCKS5 port"),
        Err(_) => denial,
    }
}

fn not_connect(target: &str) -> Denial {
    match target.starts_with("http://") || target.starts_with("https://") {
        true => Denial::new(Cause::Denied, "plain HTTP is not passed on")
            .hint("use an https:// address; rules are for https only"),
        false => Denial::new(Cause::BadRequest, "this is a proxy; it takes CONNECT")
            .hint("set HTTPS_PROXY to this address"),
    }
}

/// Whom a plain request was for, for the record.
fn plain_target(target: &str) -> Option<Authority> {
    let rest = target.strip_prefix("http://")?;
    let authority = rest.split(['/', '?']).next()?;
    Authority::from_host_field(authority, 80).ok()
}

/// Answers in plain HTTP, and ends.
fn refuse(
    refused: &Refused,
    target: Option<&Authority>,
    client: &mut Socket,
    context: &mut Context,
) -> Turn {
    let wanted = Wanted {
        target,
        method: refused.method.as_deref(),
        path: None,
    };
    let sending = Sending {
        close: true,
        bodyless: refused.method.as_deref() == Some("HEAD"),
    };
    let response = denial::response(&refused.denial, &wanted, &context.rules, sending);
    client.out.extend_from_slice(&response);
    record_denial(target, refused, context);
    Turn::Over(Next::Linger)
}

fn record_denial(target: Option<&Authority>, refused: &Refused, context: &mut Context) {
    let record = Record {
        method: refused.method.as_deref(),
        status: Some(refused.denial.cause.status()),
        ..Record::denied("https", &refused.denial.reason)
    };
    context.record_for(target, record);
}

/// After CONNECT: whether the ClientHello agrees with it.
pub(crate) fn hello(
    hello: &Hello,
    bytes: &mut Vec<u8>,
    caller: Caller,
    client: &mut Socket,
    context: &mut Context,
) -> Turn {
    let read = match hello::parse(bytes) {
        Ok(None) => return Turn::Stay,
        Ok(Some(read)) => read,
        Err(error) => return not_tls(&error, bytes, hello, client, context),
    };
    let target = hello.target.clone();
    if !target.agrees_with_sni(read.sni.as_deref()) {
        let named = read.sni.as_deref().unwrap_or("nothing");
        let why = format!(
            "TLS names {named:?}, but CONNECT named {:?}",
            target.host.to_string()
        );
        return alert(Alert::UnrecognizedName, &why, hello, client, context);
    }
    // Asked again: the policy may have changed since CONNECT.
    let tunnel = match context.rules.connect(&target.host, target.port) {
        Ok(ConnectVerdict::Inspect) => None,
        Ok(ConnectVerdict::Tunnel(rule)) => Some(Allowed {
            kind: Kind::Tunnel,
            target: Authority::clone(&target),
            private: rule.private,
            rule: rule.origin.to_string(),
        }),
        Err(refusal) => {
            return alert(
                Alert::AccessDenied,
                refusal.as_str(),
                hello,
                client,
                context,
            );
        }
    };
    match tunnel {
        Some(allowed) => start_relay(allowed, std::mem::take(bytes), caller, client, context),
        None if read.http1 => inspect(hello, bytes, caller, client, context),
        None => {
            let why = "the client offers no HTTP/1.1; have the person allow the host with inspect = false";
            alert(Alert::NoApplicationProtocol, why, hello, client, context)
        }
    }
}

fn start_relay(
    allowed: Allowed,
    early: Vec<u8>,
    caller: Caller,
    client: &mut Socket,
    context: &mut Context,
) -> Turn {
    match Relay::start(allowed, early, caller, client, context) {
        Ok(relay) => Turn::Relay(Box::new(relay)),
        Err(next) => Turn::Over(next),
    }
}

/// Answers the ClientHello in the server's place.
fn inspect(
    hello: &Hello,
    bytes: &mut Vec<u8>,
    caller: Caller,
    client: &mut Socket,
    context: &mut Context,
) -> Turn {
    let config = context.shared.leaves.config(&hello.target.host);
    let records = config
        .map_err(|error| error.to_string())
        .and_then(|config| {
            UnbufferedServerConnection::new(config).map_err(|error| error.to_string())
        });
    match records {
        Ok(records) => {
            let mut inspection = Inspection::new(hello.target.clone(), records, caller);
            let next = inspection.greet(client, bytes, context);
            bytes.clear();
            Turn::Inspect(Box::new(inspection), next)
        }
        Err(why) => alert(Alert::HandshakeFailure, &why, hello, client, context),
    }
}

/// Raw bytes and plain HTTP would pass by the path rules.
fn not_tls(
    error: &HelloError,
    bytes: &[u8],
    hello: &Hello,
    client: &mut Socket,
    context: &mut Context,
) -> Turn {
    let reason = error.to_string();
    if *error != HelloError::NotTls {
        return alert(Alert::HandshakeFailure, &reason, hello, client, context);
    }
    let denial = Denial::new(Cause::BadRequest, reason)
        .hint("only https is passed on here; other protocols need a tcp rule and SOCKS5");
    let refused = Refused::whole(denial);
    if bytes.first().is_some_and(u8::is_ascii_uppercase) {
        return refuse(&refused, Some(&hello.target), client, context);
    }
    record_denial(Some(&hello.target), &refused, context);
    Turn::Over(Next::Linger)
}

fn alert(
    alert: Alert,
    why: &str,
    hello: &Hello,
    client: &mut Socket,
    context: &mut Context,
) -> Turn {
    client.out.extend_from_slice(&hello::alert(alert));
    let record = Record {
        method: Some("CONNECT"),
        ..Record::denied("https", why)
    };
    context.record_for(Some(&hello.target), record);
    Turn::Over(Next::Linger)
}

/// On the SOCKS port, first.
pub(crate) fn socks_greeting(bytes: &mut Vec<u8>, client: &mut Socket) -> Turn {
    match socks5::greeting(bytes) {
        None => Turn::Stay,
        Some(Asked::Greeting { open, length }) => {
            bytes.drain(..length);
            client.out.extend_from_slice(&socks5::method(open));
            match open {
                true => Turn::SocksRequest,
                false => Turn::Over(Next::Linger),
            }
        }
        Some(_) => Turn::Over(Next::Close),
    }
}

pub(crate) fn socks_request(
    bytes: &mut Vec<u8>,
    caller: Caller,
    client: &mut Socket,
    context: &mut Context,
) -> Turn {
    let (target, length) = match socks5::request(bytes) {
        None => return Turn::Stay,
        Some(Asked::Connect { target, length }) => (target, length),
        Some(Asked::Refused(reply, why)) => {
            return refuse_socks(reply, &why, None, client, context);
        }
        Some(Asked::Greeting { .. }) => return Turn::Over(Next::Close),
    };
    let allowed = match context.rules.tcp(&target.host, target.port) {
        Ok(rule) => Allowed {
            kind: Kind::Socks,
            private: rule.private,
            rule: rule.origin.to_string(),
            target,
        },
        Err(refusal) => {
            let why = match context.rules.connect(&target.host, target.port) {
                Ok(_) => "the rule for this target is for https: use the HTTP proxy port",
                Err(_) => refusal.as_str(),
            };
            return refuse_socks(Reply::NotAllowed, why, Some(&target), client, context);
        }
    };
    if !context.shared.audit.is_ready() {
        let why = judge::audit_unavailable().reason;
        return refuse_socks(Reply::Failure, &why, Some(&allowed.target), client, context);
    }
    let early = bytes.split_off(length);
    start_relay(allowed, early, caller, client, context)
}

fn refuse_socks(
    reply: Reply,
    why: &str,
    target: Option<&Authority>,
    client: &mut Socket,
    context: &mut Context,
) -> Turn {
    client.out.extend_from_slice(&socks5::reply(reply));
    context.record_for(target, Record::denied("tcp", why));
    Turn::Over(Next::Linger)
}
