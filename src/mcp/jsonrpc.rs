//! One line of JSON-RPC 2.0 <-> messages. Pure.
//!
//! Ids and progress tokens keep the text they came in, so that they go back
//! byte by byte: a number past 2^64 would not survive a parse.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

pub(crate) const PARSE_ERROR: i32 = -32700;
pub(crate) const INVALID_REQUEST: i32 = -32600;
pub(crate) const METHOD_NOT_FOUND: i32 = -32601;
pub(crate) const INVALID_PARAMS: i32 = -32602;

/// Longest id or progress token: it is kept, and repeated in every message.
const MAX_ID: usize = 1024;
/// Most messages in one batch: each may cost an answer.
const MAX_BATCH: usize = 256;

/// A string or an integer, as it was written. Two spellings of one string are
/// the same id.
#[derive(Debug, Clone)]
pub(crate) struct Id {
    raw: Box<RawValue>,
    key: Key,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Text(String),
    /// Its digits; JSON leaves but one way to write them.
    Integer(String),
}

impl Id {
    fn parse(raw: &RawValue) -> Option<Id> {
        let text = raw.get();
        let key = if text.len() > MAX_ID {
            return None;
        } else if text.starts_with('"') {
            Key::Text(serde_json::from_str(text).ok()?)
        } else {
            let digits = text.strip_prefix('-').unwrap_or(text);
            digits
                .bytes()
                .all(|byte| byte.is_ascii_digit())
                .then(|| Key::Integer(text.to_owned()))?
        };
        Some(Id {
            raw: raw.to_owned(),
            key,
        })
    }
}

impl PartialEq for Id {
    fn eq(&self, other: &Id) -> bool {
        self.key == other.key
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.raw.get())
    }
}

impl Serialize for Id {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw.serialize(serializer)
    }
}

#[derive(Debug, PartialEq)]
pub(crate) struct RpcError {
    pub(crate) code: i32,
    pub(crate) message: Cow<'static, str>,
}

impl RpcError {
    pub(crate) fn new(code: i32, message: impl Into<Cow<'static, str>>) -> RpcError {
        RpcError {
            code,
            message: message.into(),
        }
    }

    pub(crate) fn invalid_request(message: impl Into<Cow<'static, str>>) -> RpcError {
        RpcError::new(INVALID_REQUEST, message)
    }

    pub(crate) fn invalid_params(message: impl Into<Cow<'static, str>>) -> RpcError {
        RpcError::new(INVALID_PARAMS, message)
    }
}

/// What one line holds.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// A blank line.
    Nothing,
    One(Incoming),
    /// At least one message.
    Batch(Vec<Incoming>),
}

#[derive(Debug)]
pub(crate) enum Incoming {
    Request {
        id: Id,
        method: String,
        params: Params,
    },
    Notification {
        method: String,
        params: Params,
    },
    /// The answer to a request of ours; there are none.
    Response,
    Invalid {
        id: Option<Id>,
        error: RpcError,
    },
}

impl Incoming {
    fn invalid(error: RpcError) -> Incoming {
        Incoming::Invalid { id: None, error }
    }
}

/// The members of an object, each as it was written.
type Members = BTreeMap<String, Box<RawValue>>;

pub(crate) fn parse_line(line: &[u8]) -> Parsed {
    let text = match std::str::from_utf8(line) {
        Ok(text) => text,
        Err(error) => return parse_error(&error),
    };
    if text.trim_ascii().is_empty() {
        return Parsed::Nothing;
    }
    let raw: &RawValue = match serde_json::from_str(text) {
        Ok(raw) => raw,
        Err(error) => return parse_error(&error),
    };
    if !raw.get().starts_with('[') {
        return Parsed::One(parse_message(raw));
    }
    match serde_json::from_str::<Vec<&RawValue>>(raw.get()) {
        Ok(batch) if batch.is_empty() => {
            let error = RpcError::invalid_request("the batch is empty");
            Parsed::One(Incoming::invalid(error))
        }
        Ok(batch) if batch.len() > MAX_BATCH => {
            let message = format!("the batch holds more than {MAX_BATCH} messages");
            Parsed::One(Incoming::invalid(RpcError::invalid_request(message)))
        }
        Ok(batch) => Parsed::Batch(batch.into_iter().map(parse_message).collect()),
        Err(error) => parse_error(&error),
    }
}

fn parse_error(error: &dyn fmt::Display) -> Parsed {
    let message = format!("the line is not JSON: {error}");
    Parsed::One(Incoming::invalid(RpcError::new(PARSE_ERROR, message)))
}

fn parse_message(raw: &RawValue) -> Incoming {
    let Ok(mut members) = serde_json::from_str::<Members>(raw.get()) else {
        let error = RpcError::invalid_request("the message is not an object");
        return Incoming::invalid(error);
    };
    let is_response = members.contains_key("result") || members.contains_key("error");
    if is_response && !members.contains_key("method") {
        // Whatever else it is: an answer to an answer could go on for ever.
        return Incoming::Response;
    }
    let id = match members.remove("id").map(|raw| Id::parse(&raw)) {
        None => None,
        Some(Some(id)) => Some(id),
        Some(None) => {
            let message =
                format!("\"id\" must be a string or an integer of at most {MAX_ID} bytes");
            return Incoming::invalid(RpcError::invalid_request(message));
        }
    };
    if let Err(error) = check_version(&members) {
        return Incoming::Invalid { id, error };
    }
    let Some(method) = members.remove("method") else {
        let error = RpcError::invalid_request("\"method\" is missing");
        return Incoming::Invalid { id, error };
    };
    let Ok(method) = serde_json::from_str(method.get()) else {
        let error = RpcError::invalid_request("\"method\" must be a string");
        return Incoming::Invalid { id, error };
    };
    let params = Params(members.remove("params"));
    match id {
        Some(id) => Incoming::Request { id, method, params },
        None => Incoming::Notification { method, params },
    }
}

fn check_version(members: &Members) -> Result<(), RpcError> {
    let version = members
        .get("jsonrpc")
        .and_then(|raw| serde_json::from_str::<String>(raw.get()).ok());
    if version.as_deref() == Some("2.0") {
        Ok(())
    } else {
        Err(RpcError::invalid_request("\"jsonrpc\" must be \"2.0\""))
    }
}

/// The parameters of a message, not looked at yet.
#[derive(Debug)]
pub(crate) struct Params(Option<Box<RawValue>>);

impl Params {
    /// The parameters by name; none (or null) is the same as empty.
    pub(crate) fn read(self) -> Result<Named, RpcError> {
        match self.0 {
            None => Ok(Named::default()),
            Some(raw) if raw.get() == "null" => Ok(Named::default()),
            Some(raw) => Named::parse("params", &raw),
        }
    }
}

/// The members of an object in a request; errors name the member.
#[derive(Debug, Default)]
pub(crate) struct Named {
    place: &'static str,
    members: Members,
}

impl Named {
    fn parse(place: &'static str, raw: &RawValue) -> Result<Named, RpcError> {
        match serde_json::from_str::<Members>(raw.get()) {
            Ok(mut members) => {
                // Some clients write null for what they leave out.
                members.retain(|_, raw| raw.get() != "null");
                Ok(Named { place, members })
            }
            Err(_) => Err(RpcError::invalid_params(format!(
                "{place} must be an object"
            ))),
        }
    }

    pub(crate) fn text(&self, name: &str) -> Result<String, RpcError> {
        self.members
            .get(name)
            .and_then(|raw| serde_json::from_str(raw.get()).ok())
            .ok_or_else(|| self.error(name, "a string"))
    }

    pub(crate) fn id(&self, name: &str) -> Result<Id, RpcError> {
        self.members
            .get(name)
            .and_then(|raw| Id::parse(raw))
            .ok_or_else(|| self.error(name, "a string or an integer"))
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.members.contains_key(name)
    }

    /// A member that is an object and may be left out.
    pub(crate) fn named(&self, name: &'static str) -> Result<Named, RpcError> {
        match self.members.get(name) {
            None => Ok(Named::default()),
            Some(raw) => Named::parse(name, raw),
        }
    }

    /// As `named`, with its values read.
    pub(crate) fn object(&self, name: &str) -> Result<Map<String, Value>, RpcError> {
        match self.members.get(name) {
            None => Ok(Map::new()),
            Some(raw) => serde_json::from_str(raw.get()).map_err(|_| self.error(name, "an object")),
        }
    }

    fn error(&self, name: &str, wanted: &str) -> RpcError {
        RpcError::invalid_params(format!("{}.{name} must be {wanted}", self.place))
    }
}

/// A result as a message, without the newline.
pub(crate) fn render_result(id: &Id, result: &impl Serialize) -> String {
    #[derive(Serialize)]
    struct Response<'a, T> {
        jsonrpc: &'a str,
        id: &'a Id,
        result: &'a T,
    }
    render(&Response {
        jsonrpc: "2.0",
        id,
        result,
    })
}

/// An error as a message; without an id where none could be read.
pub(crate) fn render_error(id: Option<&Id>, error: &RpcError) -> String {
    #[derive(Serialize)]
    struct Response<'a> {
        jsonrpc: &'a str,
        id: Option<&'a Id>,
        error: Body<'a>,
    }
    #[derive(Serialize)]
    struct Body<'a> {
        code: i32,
        message: &'a str,
    }
    render(&Response {
        jsonrpc: "2.0",
        id,
        error: Body {
            code: error.code,
            message: &error.message,
        },
    })
}

pub(crate) fn render_notification(method: &str, params: &impl Serialize) -> String {
    #[derive(Serialize)]
    struct Notification<'a, T> {
        jsonrpc: &'a str,
        method: &'a str,
        params: &'a T,
    }
    render(&Notification {
        jsonrpc: "2.0",
        method,
        params,
    })
}

/// The answers to a batch as one message.
pub(crate) fn render_batch(answers: &[String]) -> String {
    format!("[{}]", answers.join(","))
}

fn render(message: &impl Serialize) -> String {
    serde_json::to_string(message).unwrap_or_else(|error| {
        // No message of ours has a key that is not a string.
        format!(r#"{{"jsonrpc":"2.0","id":null,"error":{{"code":-32603,"message":"{error:?}"}}}}"#)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(line: &str) -> Incoming {
        match parse_line(line.as_bytes()) {
            Parsed::One(message) => message,
            other => panic!("{line}: {other:?}"),
        }
    }

    /// The answer that a bad line gets.
    fn refusal(line: &[u8]) -> String {
        match parse_line(line) {
            Parsed::One(Incoming::Invalid { id, error }) => render_error(id.as_ref(), &error),
            other => panic!("{}: {other:?}", String::from_utf8_lossy(line)),
        }
    }

    fn id_of(text: &str) -> Option<Id> {
        match one(&format!(
            r#"{{"jsonrpc":"2.0","id":{text},"method":"ping"}}"#
        )) {
            Incoming::Request { id, .. } => Some(id),
            _ => None,
        }
    }

    #[test]
    fn ids_go_back_as_they_came() {
        for text in [
            "0",
            "-1",
            "-0",
            "123456789012345678901234567890",
            r#""""#,
            r#""a\u0041\n漢""#,
        ] {
            let id = id_of(text).unwrap();
            let answer = render_result(&id, &Map::new());
            assert!(answer.contains(&format!(r#""id":{text},"#)), "{answer}");
        }
    }

    #[test]
    fn null_fractional_and_other_ids_are_refused() {
        for text in [
            "null",
            "1.5",
            "1.0",
            "1e3",
            "true",
            "[1]",
            "{}",
            r#""\ud800""#,
            &format!("\"{}\"", "x".repeat(MAX_ID)),
        ] {
            assert!(id_of(text).is_none(), "{text}");
        }
    }

    #[test]
    fn spellings_of_one_string_are_one_id() {
        assert_eq!(id_of(r#""A""#), id_of(r#""\u0041""#));
        assert_ne!(id_of("1"), id_of(r#""1""#));
    }

    #[test]
    fn what_is_not_json_is_a_parse_error() {
        for line in [
            &b"x"[..],
            b"{",
            b"[1,",
            b"{} {}",
            b"\xef\xbb\xbf{}",
            b"{\"a\":\"\xff\"}",
            br#"{"jsonrpc":"2.0","id":1,"method":"ping""#,
            b"{\"a\":\"\x01\"}",
        ] {
            assert!(refusal(line).contains(r#""id":null,"error":{"code":-32700"#));
        }
    }

    #[test]
    fn what_is_no_message_is_an_invalid_request() {
        for line in [
            "1",
            "null",
            "[]",
            "{}",
            r#"{"jsonrpc":"2.0"}"#,
            r#"{"jsonrpc":"2.0","method":1}"#,
            r#"{"jsonrpc":"1.0","method":"ping"}"#,
            r#"{"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
        ] {
            let answer = refusal(line.as_bytes());
            assert!(
                answer.contains(r#""id":null,"error":{"code":-32600"#),
                "{answer}"
            );
        }
    }

    #[test]
    fn a_readable_id_is_in_the_refusal() {
        for line in [
            r#"{"id":7,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":7}"#,
            r#"{"jsonrpc":"2.0","id":7,"method":null}"#,
        ] {
            assert!(refusal(line.as_bytes()).contains(r#""id":7,"#), "{line}");
        }
    }

    #[test]
    fn responses_and_blank_lines_are_no_errors() {
        for line in [
            r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}"#,
            r#"{"error":null}"#,
        ] {
            assert!(matches!(one(line), Incoming::Response), "{line}");
        }
        assert!(matches!(parse_line(b" \t"), Parsed::Nothing));
    }

    #[test]
    fn params_must_be_an_object() {
        for (params, fine) in [
            ("{}", true),
            ("null", true),
            ("[]", false),
            ("1", false),
            ("\"\"", false),
        ] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"a","params":{params}}}"#);
            let Incoming::Request { params, .. } = one(&line) else {
                panic!("{line}");
            };
            assert_eq!(params.read().is_ok(), fine, "{line}");
        }
    }

    #[test]
    fn deep_nesting_is_no_crash() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"a","params":{{"x":{deep},"y":{{"z":{deep}}}}}}}"#
        );
        let Incoming::Request { params, .. } = one(&line) else {
            panic!();
        };
        assert!(params.read().unwrap().object("y").is_err());
    }

    #[test]
    fn batch_is_bounded() {
        let line = format!("[{}1]", "1,".repeat(MAX_BATCH));
        assert!(refusal(line.as_bytes()).contains("more than 256"));
    }

    proptest! {
        #[test]
        fn nothing_that_comes_in_breaks_the_parser(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            parse_line(&line);
        }

        #[test]
        fn any_string_id_goes_back(id in "\\PC{0,40}") {
            let raw = serde_json::to_string(&id).unwrap();
            let parsed = id_of(&raw).unwrap();
            prop_assert!(render_result(&parsed, &Map::new()).contains(&raw));
        }
    }
}
