//! What a server sends -> what the client gets, piece by piece.

use std::fmt;

use rustls::server::UnbufferedServerConnection;

use crate::gateway::http::body::{Body, BodyError, Chunked};
use crate::gateway::http::fields::{FieldError, Framing, Meaning};
use crate::gateway::http::head::{self, HeadError, ResponseHead, Scan};
use crate::gateway::http::rewrite::{self, Delivery};
use crate::gateway::inspected::judge::Request;
use crate::gateway::proxy::context::Context;
use crate::gateway::tls::session::{Session, SessionError};

/// Interim responses to one request.
const MAX_INTERIM: u8 = 16;

type ClientTls = Session<UnbufferedServerConnection>;

/// A response that could be read in two ways.
#[derive(Debug)]
pub(crate) enum Broken {
    Head(HeadError),
    Field(FieldError),
    Body(BodyError),
    Status,
    Switch,
    Interim,
    Unasked,
    Version,
    Client(SessionError),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server's response is refused: ")?;
        match self {
            Broken::Head(error) => error.fmt(f),
            Broken::Field(error) => error.fmt(f),
            Broken::Body(error) => error.fmt(f),
            Broken::Status => f.write_str("its status is below 100"),
            Broken::Switch => f.write_str("it switches to a protocol that was not asked for"),
            Broken::Interim => f.write_str("there are too many interim responses"),
            Broken::Unasked => f.write_str("it came before the request"),
            Broken::Version => f.write_str("HTTP/1.0 knows no Transfer-Encoding"),
            Broken::Client(error) => write!(f, "the client cannot be told: {error}"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Head,
    Body(Body),
    Done,
}

#[derive(Debug)]
pub(crate) struct Response {
    state: State,
    /// What has come of a head.
    plain: Vec<u8>,
    scan: Scan,
    /// A head for the client, with the body data that came along.
    written: Vec<u8>,
    is_head: bool,
    websocket: bool,
    switched: bool,
    /// Anything of it has gone to the client.
    begun: bool,
    status: Option<u16>,
    interim: u8,
    /// The server says that it closes, or more has come than belongs here.
    link_over: bool,
    close_client: bool,
    down: u64,
    recorded: bool,
}

impl Response {
    pub(crate) fn new(request: &Request) -> Response {
        Response {
            state: State::Head,
            plain: Vec::new(),
            scan: Scan::default(),
            written: Vec::new(),
            is_head: request.method == "HEAD",
            websocket: request.websocket,
            switched: false,
            begun: false,
            status: None,
            interim: 0,
            link_over: false,
            close_client: request.close,
            down: 0,
            recorded: false,
        }
    }

    pub(crate) fn lend(&mut self, context: &mut Context) {
        if self.state == State::Head {
            context.lend(&mut self.plain);
            context.lend(&mut self.written);
        }
    }

    /// Takes data as it comes: what is body goes on at once, a head waits
    /// until it is whole.
    pub(crate) fn take(
        &mut self,
        data: &[u8],
        tls: &mut ClientTls,
        out: &mut Vec<u8>,
    ) -> Result<(), Broken> {
        match self.state {
            State::Head => {
                self.plain.extend_from_slice(data);
                Ok(())
            }
            State::Body(_) => self.take_body(data, tls, out),
            State::Done => {
                self.link_over = true;
                Ok(())
            }
        }
    }

    /// Sends body data, after what is in `written` and in as few records as
    /// possible.
    fn take_body(
        &mut self,
        data: &[u8],
        tls: &mut ClientTls,
        out: &mut Vec<u8>,
    ) -> Result<(), Broken> {
        let mut rest = data;
        while let State::Body(body) = &mut self.state {
            if body.is_done() {
                self.state = State::Done;
                break;
            }
            if rest.is_empty() {
                break;
            }
            let step = body.step(rest).map_err(Broken::Body)?;
            let (used, after) = rest
                .split_at_checked(step.skip + step.forward)
                .unwrap_or((rest, &[]));
            let forward = used.get(step.skip..).unwrap_or_default();
            self.down += forward.len() as u64;
            self.send(forward, tls, out)?;
            rest = after;
        }
        self.send(&[], tls, out)?;
        // More than the response: a second one that nobody asked for.
        self.link_over |= !rest.is_empty();
        Ok(())
    }

    fn send(&mut self, data: &[u8], tls: &mut ClientTls, out: &mut Vec<u8>) -> Result<(), Broken> {
        self.begun |= !self.written.is_empty() || !data.is_empty();
        let sealed = match (self.written.is_empty(), data.is_empty()) {
            (true, true) => Ok(()),
            (true, false) => tls.seal(data, out),
            (false, _) => {
                self.written.extend_from_slice(data);
                let sealed = tls.seal(&self.written, out);
                self.written.clear();
                sealed
            }
        };
        sealed.map_err(Broken::Client)
    }

    /// Reads what has come of heads.
    pub(crate) fn take_heads(
        &mut self,
        request_done: bool,
        tls: &mut ClientTls,
        out: &mut Vec<u8>,
    ) -> Result<(), Broken> {
        while self.state == State::Head && !self.plain.is_empty() {
            let mut plain = std::mem::take(&mut self.plain);
            let used = self.take_head(&plain, request_done, tls, out)?;
            plain.drain(..used);
            self.plain = plain;
            if used == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Returns how many bytes are used up.
    fn take_head(
        &mut self,
        plain: &[u8],
        request_done: bool,
        tls: &mut ClientTls,
        out: &mut Vec<u8>,
    ) -> Result<usize, Broken> {
        let Some(end) = self.scan.find_end(plain).map_err(Broken::Head)? else {
            return Ok(0);
        };
        let (bytes, rest) = plain.split_at_checked(end).unwrap_or((plain, &[]));
        let mut room = head::no_fields();
        let (head, fields) = head::parse_response(bytes, &mut room).map_err(Broken::Head)?;
        let meaning = Meaning::of(fields).map_err(Broken::Field)?;
        let delivery = self.plan(&head, &meaning, request_done)?;
        rewrite::write_response(&mut self.written, &head, fields, delivery);
        if self.state == State::Head {
            self.send(&[], tls, out)?;
            return Ok(end);
        }
        self.take_body(rest, tls, out)?;
        Ok(plain.len())
    }

    /// What follows the head, and how the head is told to the client.
    fn plan(
        &mut self,
        head: &ResponseHead<'_>,
        meaning: &Meaning<'_>,
        request_done: bool,
    ) -> Result<Delivery, Broken> {
        if head.status < 100 {
            return Err(Broken::Status);
        }
        self.status = Some(head.status);
        if head.version == 0 && meaning.framing == Framing::Chunked {
            return Err(Broken::Version);
        }
        if head.status == 101 {
            return self.switch(meaning);
        }
        if head.status < 200 {
            self.interim += 1;
            return match self.interim > MAX_INTERIM {
                true => Err(Broken::Interim),
                false => Ok(plain_delivery(Framing::Unsaid)),
            };
        }
        self.link_over = meaning.close || head.version == 0;
        self.close_client |= !request_done;
        let framing = match (self.is_head, head.status, meaning.framing) {
            (_, 204, _) => self.without_body(Framing::Unsaid),
            (true, ..) | (_, 304, _) => self.without_body(match meaning.framing {
                Framing::Length(length) => Framing::Length(length),
                _ => Framing::Unsaid,
            }),
            (_, _, Framing::Length(length)) => {
                self.with_body(Body::Length(length), meaning.framing)
            }
            (_, _, Framing::Chunked) => {
                self.with_body(Body::Chunked(Chunked::new()), meaning.framing)
            }
            (_, _, Framing::Unsaid) => {
                self.link_over = true;
                self.close_client = true;
                self.with_body(Body::UntilClose, meaning.framing)
            }
        };
        Ok(Delivery {
            close: self.close_client,
            ..plain_delivery(framing)
        })
    }

    fn without_body(&mut self, framing: Framing) -> Framing {
        self.state = State::Done;
        framing
    }

    fn with_body(&mut self, body: Body, framing: Framing) -> Framing {
        self.state = State::Body(body);
        framing
    }

    fn switch(&mut self, meaning: &Meaning<'_>) -> Result<Delivery, Broken> {
        let is_websocket = meaning
            .upgrade
            .is_some_and(|upgrade| upgrade.eq_ignore_ascii_case("websocket"));
        if !self.websocket || !is_websocket || !meaning.upgrades {
            return Err(Broken::Switch);
        }
        self.switched = true;
        self.link_over = true;
        self.close_client = true;
        self.state = State::Body(Body::UntilClose);
        Ok(Delivery {
            websocket: true,
            ..plain_delivery(Framing::Unsaid)
        })
    }

    /// The server has ended. Whether that completes the response.
    pub(crate) fn end(&mut self, in_order: bool) -> bool {
        // Without a notice, somebody may have cut the connection.
        let completes = match self.state {
            State::Body(Body::UntilClose) => in_order || self.switched,
            State::Body(body) => body.is_done(),
            State::Head | State::Done => false,
        };
        if completes {
            self.state = State::Done;
            self.link_over = true;
        }
        completes
    }

    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    pub(crate) fn is_switched(&self) -> bool {
        self.switched
    }

    /// Whether anything has gone to the client.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Whether nothing of it has come.
    pub(crate) fn is_untouched(&self) -> bool {
        !self.begun && self.plain.is_empty()
    }

    pub(crate) fn closes_client(&self) -> bool {
        self.close_client
    }

    pub(crate) fn leaves_link_usable(&self) -> bool {
        !self.link_over && self.plain.is_empty()
    }

    pub(crate) fn status(&self) -> Option<u16> {
        self.status
    }

    pub(crate) fn down(&self) -> u64 {
        self.down
    }

    pub(crate) fn is_recorded(&self) -> bool {
        self.recorded
    }

    pub(crate) fn mark_recorded(&mut self) {
        self.recorded = true;
    }

    pub(crate) fn free(&mut self, context: &mut Context) {
        self.plain.clear();
        self.written.clear();
        self.settle(context);
    }

    pub(crate) fn settle(&mut self, context: &mut Context) -> usize {
        context.settle(&mut self.plain) + context.settle(&mut self.written)
    }
}

fn plain_delivery(framing: Framing) -> Delivery {
    Delivery {
        framing,
        close: false,
        websocket: false,
    }
}
