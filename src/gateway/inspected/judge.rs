//! The head of a request -> what to send on, or why not. The verdict falls
//! here, before anything of the request reaches the server.

use httparse::Header;

use crate::gateway::denial::{Cause, Denial};
use crate::gateway::http::authority::Authority;
use crate::gateway::http::body::{Body, Chunked};
use crate::gateway::http::fields::{FieldError, Framing, Meaning};
use crate::gateway::http::head::{self, HeadError, RequestHead};
use crate::gateway::http::rewrite::{self, Judged};
use crate::gateway::path::{PathError, Target};
use crate::gateway::proxy::context::Context;
use crate::policy::decide::Refusal;

/// A request that is allowed.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    /// As it is sent on.
    pub(crate) head: Vec<u8>,
    pub(crate) body: Body,
    /// There was one. Servers that do not read it, as some do not for GET, take
    /// it for the next request, so it is the last one on its connection.
    pub(crate) has_body: bool,
    pub(crate) websocket: bool,
    /// The client wants no further request on this connection.
    pub(crate) close: bool,
    /// Whether the rule allows private addresses.
    pub(crate) private: bool,
    /// Where the rule comes from.
    pub(crate) rule: String,
}

/// A request that the gateway answers itself.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) denial: Denial,
    pub(crate) verdict: &'static str,
    pub(crate) method: Option<String>,
    pub(crate) path: Option<String>,
    pub(crate) rule: Option<String>,
    /// Whether the connection ends with the answer.
    pub(crate) close: bool,
}

impl Refused {
    /// Nothing is known, and nothing after it can be trusted.
    pub(crate) fn whole(denial: Denial) -> Refused {
        Refused {
            denial,
            verdict: "deny",
            method: None,
            path: None,
            rule: None,
            close: true,
        }
    }

    pub(crate) fn of_head(error: HeadError) -> Refused {
        let reason = error.to_string();
        Refused::whole(match error {
            HeadError::TooLarge => Denial::new(Cause::TooLarge, reason),
            HeadError::Http2 => Denial::new(Cause::Version, reason).hint(HTTP1_HINT),
            _ => Denial::new(Cause::BadRequest, reason),
        })
    }
}

const HTTP1_HINT: &str = "this gateway speaks HTTP/1.1 to clients; configure the client for it, or \
    have the person allow the host with inspect = false";

/// Judges a whole head.
pub(crate) fn judge(
    bytes: &[u8],
    target: &Authority,
    host_field: &str,
    context: &mut Context,
) -> Result<Request, Box<Refused>> {
    let mut room = head::no_fields();
    let (head, fields) =
        head::parse_request(bytes, &mut room).map_err(|error| Box::new(Refused::of_head(error)))?;
    let is_text = is_git(fields);
    let refuse = |denial: Denial| {
        let denial = Denial { is_text, ..denial };
        Box::new(Refused {
            method: Some(head.method.chars().take(32).collect()),
            ..Refused::whole(denial)
        })
    };
    let meaning = Meaning::of(fields).map_err(|error| refuse(of_field(error)))?;
    let parsed = check_form(&head, &meaning, target, host_field).map_err(refuse)?;
    let websocket = check_upgrade(&head, &meaning).map_err(refuse)?;
    let has_body = meaning.framing.has_body();
    let known = |denial: Denial| {
        Box::new(Refused {
            path: Some(parsed.path.clone()),
            // The next head comes after a body that nobody has read.
            close: has_body || meaning.close,
            ..*refuse(denial)
        })
    };
    let rule = context
        .rules
        .request(&target.host, target.port, head.method, &parsed.path)
        .map_err(|refusal| known(of_refusal(refusal)))?;
    let (private, rule) = (rule.private, rule.origin.to_string());
    if !context.shared.audit.is_ready() {
        return Err(known(audit_unavailable()));
    }
    let judged = Judged {
        head: &head,
        fields,
        meaning: &meaning,
        target: &parsed,
        host: host_field,
        websocket,
    };
    let mut out = context.buffer();
    rewrite::write_request(&mut out, &judged);
    Ok(Request {
        method: head.method.to_owned(),
        path: parsed.path,
        head: out,
        body: body_of(meaning.framing),
        has_body,
        websocket,
        close: meaning.close,
        private,
        rule,
    })
}

/// It tells its user what a server says only where that is plain text.
fn is_git(fields: &[Header<'_>]) -> bool {
    let agent = |field: &&Header<'_>| field.name.eq_ignore_ascii_case("user-agent");
    let mut agents = fields.iter().filter(agent);
    agents.any(|field| field.value.starts_with(b"git/"))
}

fn body_of(framing: Framing) -> Body {
    match framing {
        // A request without framing has no body.
        Framing::Unsaid => Body::Done,
        Framing::Length(length) => Body::Length(length),
        Framing::Chunked => Body::Chunked(Chunked::new()),
    }
}

pub(crate) fn audit_unavailable() -> Denial {
    Denial::new(
        Cause::AuditUnavailable,
        "the egress audit cannot be written, so nothing new is allowed",
    )
    .hint("make room on the host's disk; requests are allowed again once the audit can be written")
}

fn of_field(error: FieldError) -> Denial {
    let reason = error.to_string();
    match error {
        FieldError::Expect => Denial::new(Cause::Expectation, reason),
        FieldError::TransferCoding => Denial::new(Cause::NotImplemented, reason),
        _ => Denial::new(Cause::BadRequest, reason),
    }
}

fn of_refusal(refusal: Refusal) -> Denial {
    let denial = Denial::new(Cause::Denied, refusal.as_str());
    match refusal {
        // The tool has no word for methods.
        Refusal::Method => denial
            .hint("the rule for this path lists its methods; have the person add this one to it"),
        _ => denial,
    }
}

/// Everything about the request line and `Host` that must be in one form.
fn check_form(
    head: &RequestHead<'_>,
    meaning: &Meaning<'_>,
    target: &Authority,
    host_field: &str,
) -> Result<Target, Denial> {
    if head.version != 1 {
        return Err(
            Denial::new(Cause::Version, "HTTP/1.0 requests are not passed on").hint(HTTP1_HINT),
        );
    }
    match head.method {
        "CONNECT" => {
            return Err(bad("CONNECT inside of a connection is refused")
                .hint("send CONNECT to the proxy itself, on a connection of its own"));
        }
        "TRACE" | "TRACK" => {
            return Err(bad("TRACE is refused").hint("use another method, such as GET or HEAD"));
        }
        method
            if !method
                .bytes()
                .all(|byte| byte.is_ascii_uppercase() || byte == b'-') =>
        {
            return Err(bad("the method must be in upper case"));
        }
        _ => {}
    }
    match meaning.host {
        None => return Err(bad("there must be one Host field")),
        // Most say it in the form in which it is sent on.
        Some(host) if host == host_field => {}
        Some(host) => check_host(host, target)?,
    }
    Target::parse(head.target).map_err(|error| match error {
        PathError::TooLong => Denial::new(Cause::TooLarge, error.to_string()),
        _ => bad(&error.to_string()),
    })
}

fn check_host(host: &str, target: &Authority) -> Result<(), Denial> {
    match Authority::from_host_field(host, 443) {
        Ok(host) if host == *target => Ok(()),
        Ok(host) => {
            let reason = format!("the Host field names {host}, but the connection is for {target}");
            Err(Denial::new(Cause::Denied, reason)
                .hint("open a connection to that host, so that its own rules are asked"))
        }
        Err(why) => Err(bad(&format!("the Host field is refused: {why}"))),
    }
}

fn bad(reason: &str) -> Denial {
    Denial::new(Cause::BadRequest, reason)
}

/// Only a WebSocket can be upgraded to: anything else would be a tunnel that
/// nobody looks into.
fn check_upgrade(head: &RequestHead<'_>, meaning: &Meaning<'_>) -> Result<bool, Denial> {
    let Some(upgrade) = meaning.upgrade else {
        return Ok(false);
    };
    let is_empty = matches!(meaning.framing, Framing::Unsaid | Framing::Length(0));
    if upgrade.eq_ignore_ascii_case("websocket")
        && meaning.upgrades
        && head.method == "GET"
        && is_empty
    {
        return Ok(true);
    }
    Err(
        bad("the only upgrade can be a GET request to \"websocket\", named in Connection")
            .hint(HTTP1_HINT),
    )
}
