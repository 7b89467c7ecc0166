//! One MCP session: lines of the client and messages of the control plane in,
//! lines for both out. Knows the time only as it is told; does no I/O.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::{Value, json};

use crate::api::client::request_line;
use crate::api::line::Line;
use crate::api::{ApiError, Body, Call, Cancel, ErrorKind, Event, Message, State};
use crate::mcp::jsonrpc::{
    self, Id, Incoming, METHOD_NOT_FOUND, Named, Params, Parsed, RpcError, parse_line,
};
use crate::mcp::progress::Progress;
use crate::mcp::queue::Queue;
use crate::mcp::render::ToolResult;
use crate::mcp::tools::{self, Tool, ToolCall};
use crate::text::printable;

/// Longest line of the client, in bytes, the newline not counted.
pub(crate) const MAX_INPUT: usize = 8 << 20;
/// Oldest first; an unknown one is answered with the newest.
const VERSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
const NEWEST: &str = "2025-11-25";
/// The only version that has batches. Before a version is negotiated there are
/// none either: that version forbids `initialize` in one.
const BATCHES: &str = "2025-03-26";
/// Most calls at once, and most bytes of commands that wait for the sandbox.
const MAX_CALLS: usize = 256;
const MAX_WAITING: usize = 32 << 20;
/// A client that reads too slowly for this is not sent any progress.
const MAX_BACKLOG: usize = 64 << 10;
const MAX_CLIENT_NAME: usize = 80;

#[derive(Debug)]
pub(crate) struct Session {
    /// Lines for the client.
    pub(crate) output: Queue,
    /// Lines for the control plane; empty while there is none.
    pub(crate) requests: Queue,
    instructions: String,
    /// Name and version of the client, where it has told.
    client: Option<String>,
    version: Option<&'static str>,
    plane: Plane,
    calls: Vec<Running>,
    batches: BTreeMap<u64, Batch>,
    next_batch: u64,
    /// To be told with the first result of a command.
    notice: Option<String>,
}

/// The connection to the control plane, as far as the session sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plane {
    None,
    Wanted,
    Starting,
    Connected {
        next_id: u64,
        /// Whether the sandbox is known to run commands.
        ready: bool,
    },
}

/// A `tools/call` that has not been answered.
#[derive(Debug)]
struct Running {
    id: Id,
    tool: Tool,
    stage: Stage,
    progress: Option<Progress>,
    batch: Option<u64>,
}

#[derive(Debug)]
enum Stage {
    /// For a connection.
    Waiting(ToolCall),
    /// With this id on the connection.
    Sent(u64),
}

/// What a request leads to.
enum Reply {
    Now(Value),
    Later(Box<Running>),
}

/// A batch whose answers are not all there yet.
#[derive(Debug, Default)]
struct Batch {
    answers: Vec<String>,
    open: usize,
}

impl Session {
    pub(crate) fn new(instructions: String) -> Session {
        Session {
            output: Queue::default(),
            requests: Queue::default(),
            instructions,
            client: None,
            version: None,
            plane: Plane::None,
            calls: Vec::new(),
            batches: BTreeMap::new(),
            next_batch: 0,
            notice: None,
        }
    }

    /// Whether every call has been answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.calls.is_empty()
    }

    pub(crate) fn on_line(&mut self, line: Line, now: Instant) {
        let line = match line {
            Line::Complete(line) => line,
            Line::TooLong => {
                let message = format!("the line is longer than {MAX_INPUT} bytes");
                let error = RpcError::invalid_request(message);
                self.output.push_line(&jsonrpc::render_error(None, &error));
                return;
            }
        };
        match parse_line(&line) {
            Parsed::Nothing => {}
            Parsed::One(message) => self.on_message(message, None, now),
            Parsed::Batch(messages) => self.on_batch(messages, now),
        }
    }

    fn on_batch(&mut self, messages: Vec<Incoming>, now: Instant) {
        if self.version != Some(BATCHES) {
            let message = format!("batches are part of protocol version {BATCHES} only");
            let error = RpcError::invalid_request(message);
            self.output.push_line(&jsonrpc::render_error(None, &error));
            return;
        }
        let number = self.next_batch;
        self.next_batch += 1;
        // Held open until its last message has been looked at.
        let open = Batch {
            open: 1,
            ..Batch::default()
        };
        self.batches.insert(number, open);
        for message in messages {
            self.on_message(message, Some(number), now);
        }
        self.close_one(number);
    }

    fn on_message(&mut self, message: Incoming, batch: Option<u64>, now: Instant) {
        match message {
            Incoming::Request { id, method, params } => {
                let reply = self
                    .check_request(&id, &method, batch)
                    .and_then(|()| self.on_request(&id, &method, params, now));
                match reply {
                    Ok(Reply::Now(result)) => {
                        self.push_answer(jsonrpc::render_result(&id, &result), batch);
                    }
                    Ok(Reply::Later(call)) => self.start_call(Running { batch, ..*call }),
                    Err(error) => self.push_answer(jsonrpc::render_error(Some(&id), &error), batch),
                }
            }
            Incoming::Notification { method, params } => self.on_notification(&method, params),
            Incoming::Response => {}
            Incoming::Invalid { id, error } => {
                self.push_answer(jsonrpc::render_error(id.as_ref(), &error), batch);
            }
        }
    }

    fn check_request(&self, id: &Id, method: &str, batch: Option<u64>) -> Result<(), RpcError> {
        if self.calls.iter().any(|call| call.id == *id) {
            let message = format!("id {id} is in use by a call that is still running");
            return Err(RpcError::invalid_request(message));
        }
        if method == "initialize" && batch.is_some() {
            let message = "initialize cannot be part of a batch";
            return Err(RpcError::invalid_request(message));
        }
        Ok(())
    }

    fn on_request(
        &mut self,
        id: &Id,
        method: &str,
        params: Params,
        now: Instant,
    ) -> Result<Reply, RpcError> {
        let params = match method {
            "initialize" | "ping" | "tools/list" | "tools/call" => params.read()?,
            _ => {
                let method: String = printable(method).chars().take(80).collect();
                let message = format!("unknown method {method}");
                return Err(RpcError::new(METHOD_NOT_FOUND, message));
            }
        };
        match method {
            "initialize" => self.initialize(&params).map(Reply::Now),
            "tools/call" => parse_call(id, &params, now).map(Reply::Later),
            // A cursor can only be one of another server: there is one page.
            "tools/list" => Ok(Reply::Now(tools::table())),
            _ => Ok(Reply::Now(json!({}))),
        }
    }

    fn initialize(&mut self, params: &Named) -> Result<Value, RpcError> {
        let asked = params.text("protocolVersion")?;
        let known = VERSIONS.into_iter().find(|version| *version == asked);
        let version = known.unwrap_or(NEWEST);
        self.version = Some(version);
        if let Ok(info) = params.named("clientInfo")
            && let Ok(name) = info.text("name")
        {
            let name = printable(&format!(
                "{name} {}",
                info.text("version").unwrap_or_default()
            ));
            self.client = Some(name.trim().chars().take(MAX_CLIENT_NAME).collect());
        }
        self.want_plane();
        Ok(json!({
            "protocolVersion": version,
            "capabilities": {"tools": {"listChanged": false}},
            "serverInfo": {
                "name": "umwelt",
                "title": "umwelt sandbox",
                "version": env!("CARGO_PKG_VERSION"),
            },
            "instructions": self.instructions,
        }))
    }

    fn start_call(&mut self, call: Running) {
        if let Some(number) = call.batch
            && let Some(batch) = self.batches.get_mut(&number)
        {
            batch.open += 1;
        }
        let waiting: usize = self.calls.iter().map(Running::waiting_bytes).sum();
        if self.calls.len() >= MAX_CALLS || waiting + call.waiting_bytes() > MAX_WAITING {
            let message = format!(
                "too many calls at once: the limit is {MAX_CALLS}, with {MAX_WAITING} bytes of commands"
            );
            let error = ApiError::new(ErrorKind::Limit, message);
            self.answer(call, &ToolResult::from_error(&error));
            return;
        }
        self.calls.push(call);
        self.want_plane();
        self.send_waiting();
    }

    fn on_notification(&mut self, method: &str, params: Params) {
        if method != "notifications/cancelled" {
            return;
        }
        // One for a finished or unknown id is normal: some clients send it
        // after every call.
        if let Ok(id) = params.read().and_then(|params| params.id("requestId"))
            && let Some(index) = self.calls.iter().position(|call| call.id == id)
        {
            let call = self.calls.remove(index);
            self.cancel(&call);
            if let Some(batch) = call.batch {
                self.close_one(batch);
            }
        }
    }

    /// Tells the control plane that nobody waits for a call any more.
    fn cancel(&mut self, call: &Running) {
        if let Stage::Sent(request) = call.stage {
            // Its answer carries an id that nobody waits for.
            drop(self.send(Call::Cancel(Cancel { request })));
        }
    }

    fn want_plane(&mut self) {
        if self.plane == Plane::None {
            self.plane = Plane::Wanted;
        }
    }

    /// The name to connect with, if a connection is to be made now.
    pub(crate) fn take_start(&mut self) -> Option<String> {
        if self.plane != Plane::Wanted {
            return None;
        }
        self.plane = Plane::Starting;
        let this = concat!("umwelt-mcp/", env!("CARGO_PKG_VERSION"));
        Some(match &self.client {
            Some(client) => format!("{this} ({client})"),
            None => this.to_owned(),
        })
    }

    pub(crate) fn on_connected(&mut self, next_id: u64, state: State, notice: Option<String>) {
        self.plane = Plane::Connected {
            next_id,
            ready: state == State::Ready,
        };
        self.notice = self.notice.take().or(notice);
        self.send_waiting();
    }

    /// Every call that waits gets the error; the next one tries again.
    pub(crate) fn on_start_failed(&mut self, error: &ApiError) {
        self.plane = Plane::None;
        self.answer_all(&ToolResult::from_error(error));
    }

    pub(crate) fn on_plane_lost(&mut self, error: &ApiError) {
        self.plane = Plane::None;
        self.requests = Queue::default();
        let message = format!("lost the sandbox while this call ran: {error}");
        let error = ApiError::new(ErrorKind::Unreachable, message).with_hint(
            "what the command did before that stays done; the next call starts the sandbox again",
        );
        self.answer_all(&ToolResult::from_error(&error));
    }

    fn send(&mut self, call: Call) -> Result<u64, ApiError> {
        let Plane::Connected { next_id, .. } = &mut self.plane else {
            let message = "there is no connection to the control plane";
            return Err(ApiError::new(ErrorKind::Unreachable, message));
        };
        let id = *next_id;
        let line = request_line(id, call)?;
        *next_id += 1;
        self.requests.push(&line);
        Ok(id)
    }

    fn send_waiting(&mut self) {
        if !matches!(self.plane, Plane::Connected { .. }) {
            return;
        }
        for mut call in std::mem::take(&mut self.calls) {
            if let Stage::Waiting(tool) = call.stage {
                match self.send(tool.into_call(call.progress.is_some())) {
                    Ok(id) => call.stage = Stage::Sent(id),
                    Err(error) => {
                        call.stage = Stage::Sent(0);
                        self.answer(call, &ToolResult::from_error(&error));
                        continue;
                    }
                }
            }
            self.calls.push(call);
        }
    }

    /// A message of the control plane.
    pub(crate) fn on_plane_message(&mut self, message: Message) {
        let Some(index) = self
            .calls
            .iter()
            .position(|call| call.is_sent_as(message.id))
        else {
            return;
        };
        match message.body {
            Body::Event(Event::Output { text, .. }) => {
                self.set_ready();
                if let Some(progress) = self
                    .calls
                    .get_mut(index)
                    .and_then(|call| call.progress.as_mut())
                {
                    progress.push(&text);
                }
            }
            Body::Event(Event::Terminal) => {}
            Body::Result(value) => {
                self.set_ready();
                let call = self.calls.remove(index);
                let notice = match call.tool {
                    Tool::Shell | Tool::Grant | Tool::Revoke | Tool::Egress => self.notice.take(),
                    Tool::List => self.notice.clone(),
                };
                let result = ToolResult::from_reply(call.tool, value, notice);
                self.answer(call, &result);
            }
            Body::Error(error) => {
                let call = self.calls.remove(index);
                self.answer(call, &ToolResult::from_error(&error));
            }
        }
    }

    fn set_ready(&mut self) {
        if let Plane::Connected { ready, .. } = &mut self.plane {
            *ready = true;
        }
    }

    /// Ends what still runs: the client has gone.
    pub(crate) fn finish(&mut self) {
        for call in std::mem::take(&mut self.calls) {
            self.cancel(&call);
            let message = "cancelled: the client closed its side before the call was done";
            let error = ApiError::new(ErrorKind::Stopping, message);
            self.answer(call, &ToolResult::from_error(&error));
        }
    }

    fn answer_all(&mut self, result: &ToolResult) {
        for call in std::mem::take(&mut self.calls) {
            self.answer(call, result);
        }
    }

    /// The end of a call. It is in `calls` no longer.
    fn answer(&mut self, call: Running, result: &ToolResult) {
        self.push_answer(jsonrpc::render_result(&call.id, result), call.batch);
        if let Some(batch) = call.batch {
            self.close_one(batch);
        }
    }

    fn push_answer(&mut self, answer: String, batch: Option<u64>) {
        match batch {
            None => self.output.push_line(&answer),
            Some(number) => {
                if let Some(batch) = self.batches.get_mut(&number) {
                    batch.answers.push(answer);
                }
            }
        }
    }

    /// One thing that held the batch open is done; after the last one it is
    /// answered, unless there is nothing to say.
    fn close_one(&mut self, number: u64) {
        let Some(batch) = self.batches.get_mut(&number) else {
            return;
        };
        batch.open -= 1;
        if batch.open == 0
            && let Some(batch) = self.batches.remove(&number)
            && !batch.answers.is_empty()
        {
            self.output
                .push_line(&jsonrpc::render_batch(&batch.answers));
        }
    }

    /// Sends the progress that is due.
    pub(crate) fn tick(&mut self, now: Instant) {
        let ready = matches!(self.plane, Plane::Connected { ready: true, .. });
        for call in &mut self.calls {
            let doing = match call.stage {
                Stage::Waiting(_) => "waiting for the sandbox to start",
                Stage::Sent(_) if !ready => "waiting for the sandbox, or running",
                Stage::Sent(_) if matches!(call.tool, Tool::Grant | Tool::Revoke) => {
                    "changing what the sandbox sees"
                }
                Stage::Sent(_) => "running",
            };
            let line = call
                .progress
                .as_mut()
                .and_then(|progress| progress.take(now, doing));
            if let Some(line) = line
                && self.output.len() <= MAX_BACKLOG
            {
                self.output.push_line(&line);
            }
        }
    }

    /// When `tick` has something to do, if nothing happens before.
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        let progress = self.calls.iter().filter_map(|call| call.progress.as_ref());
        progress.map(Progress::deadline).min()
    }
}

fn parse_call(id: &Id, params: &Named, now: Instant) -> Result<Box<Running>, RpcError> {
    let name = params.text("name")?;
    let call = ToolCall::parse(&name, params.object("arguments")?)?;
    let meta = params.named("_meta")?;
    let token = match meta.contains("progressToken") {
        true => Some(meta.id("progressToken")?),
        false => None,
    };
    Ok(Box::new(Running {
        id: id.clone(),
        tool: call.tool(),
        stage: Stage::Waiting(call),
        progress: token.map(|token| Progress::new(token, now)),
        batch: None,
    }))
}

impl Running {
    fn waiting_bytes(&self) -> usize {
        match &self.stage {
            Stage::Waiting(call) => call.size(),
            Stage::Sent(_) => 0,
        }
    }

    fn is_sent_as(&self, id: Option<u64>) -> bool {
        matches!(self.stage, Stage::Sent(sent) if Some(sent) == id)
    }
}

#[cfg(test)]
mod tests;
