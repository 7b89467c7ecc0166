//! JSON with comments -> its parts and their places. Pure.

use std::ops::Range;

use serde_json::Value;

/// Nobody's settings are deeper.
const MAX_DEPTH: usize = 64;

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) range: Range<usize>,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone)]
pub(super) enum Kind {
    Object(Vec<Member>),
    Array(Vec<Node>),
    Scalar(Value),
}

#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) key: String,
    pub(super) start: usize,
    pub(super) value: Node,
}

/// The error says what is wrong, and in which line.
pub(super) fn parse(text: &str) -> Result<Node, String> {
    let mut parser = Parser::new(text);
    let node = parser.value(0)?;
    parser.skip()?;
    match parser.peek() {
        None => Ok(node),
        Some(_) => Err(parser.wrong("something follows the end")),
    }
}

impl Node {
    pub(super) fn to_value(&self) -> Value {
        match &self.kind {
            Kind::Scalar(value) => value.clone(),
            Kind::Array(items) => items.iter().map(Node::to_value).collect(),
            // As everybody reads it: the last one of a key counts.
            Kind::Object(members) => members
                .iter()
                .map(|member| (member.key.clone(), member.value.to_value()))
                .collect(),
        }
    }

    pub(super) fn find(&self, key: &str) -> Option<&Node> {
        match &self.kind {
            Kind::Object(members) => {
                let member = members.iter().rfind(|member| member.key == key)?;
                Some(&member.value)
            }
            _ => None,
        }
    }

    /// The keys of the object at `path`, in their order.
    pub(super) fn keys(&self, path: &[&str]) -> Vec<&str> {
        let node = path.iter().try_fold(self, |node, key| node.find(key));
        match node.map(|node| &node.kind) {
            Some(Kind::Object(members)) => members.iter().map(|m| m.key.as_str()).collect(),
            _ => Vec::new(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Parser<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
}

impl<'a> Parser<'a> {
    /// At the beginning, behind the mark that some editors write there.
    pub(super) fn new(text: &'a str) -> Parser<'a> {
        let at = match text.starts_with('\u{feff}') {
            true => '\u{feff}'.len_utf8(),
            false => 0,
        };
        Parser { text, at }
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn wrong(&self, what: &str) -> String {
        let before = self.text.get(..self.at).unwrap_or_default();
        format!("line {}: {what}", before.matches('\n').count() + 1)
    }

    /// Blanks and comments.
    pub(super) fn skip(&mut self) -> Result<(), String> {
        loop {
            let rest = self.rest();
            let blank = rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
            self.at += blank;
            let rest = self.rest();
            let comment = if rest.starts_with("//") {
                rest.find('\n').unwrap_or(rest.len())
            } else if rest.starts_with("/*") {
                let end = rest.find("*/");
                end.ok_or_else(|| self.wrong("a comment without an end"))? + 2
            } else {
                return Ok(());
            };
            self.at += comment;
        }
    }

    fn value(&mut self, depth: usize) -> Result<Node, String> {
        if depth > MAX_DEPTH {
            return Err(self.wrong("it is nested too deeply"));
        }
        self.skip()?;
        let start = self.at;
        let kind = match self.peek() {
            Some(b'{') => self.object(depth)?,
            Some(b'[') => self.array(depth)?,
            Some(b'"') => Kind::Scalar(Value::String(self.string()?)),
            Some(_) => self.word()?,
            None => return Err(self.wrong("a value is missing")),
        };
        Ok(Node {
            range: start..self.at,
            kind,
        })
    }

    fn object(&mut self, depth: usize) -> Result<Kind, String> {
        let mut members = Vec::new();
        self.at += 1;
        loop {
            self.skip()?;
            match self.peek() {
                Some(b'}') => {
                    self.at += 1;
                    return Ok(Kind::Object(members));
                }
                Some(b'"') => {}
                _ => return Err(self.wrong("expected a key in quotes, or \"}\"")),
            }
            let start = self.at;
            let key = self.string()?;
            self.skip()?;
            if self.peek() != Some(b':') {
                return Err(self.wrong("expected \":\" after a key"));
            }
            self.at += 1;
            let value = self.value(depth + 1)?;
            members.push(Member { key, start, value });
            self.comma(b'}')?;
        }
    }

    fn array(&mut self, depth: usize) -> Result<Kind, String> {
        let mut items = Vec::new();
        self.at += 1;
        loop {
            self.skip()?;
            if self.peek() == Some(b']') {
                self.at += 1;
                return Ok(Kind::Array(items));
            }
            items.push(self.value(depth + 1)?);
            self.comma(b']')?;
        }
    }

    /// Over a comma; before the end there need not be one.
    fn comma(&mut self, end: u8) -> Result<(), String> {
        self.skip()?;
        match self.peek() {
            Some(b',') => self.at += 1,
            Some(byte) if byte == end => {}
            _ => return Err(self.wrong("expected a comma, or the end")),
        }
        Ok(())
    }

    fn string(&mut self) -> Result<String, String> {
        let mut escaped = true;
        let end = self.rest().bytes().position(|byte| {
            // The first quote begins it.
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        });
        let end = end.ok_or_else(|| self.wrong("a text without an end"))? + 1;
        self.take(end)
    }

    fn word(&mut self) -> Result<Kind, String> {
        let ends = |c: char| c.is_whitespace() || ",]}:/\"{[".contains(c);
        let end = self.rest().find(ends).unwrap_or_else(|| self.rest().len());
        self.take(end).map(Kind::Scalar)
    }

    fn take<T: serde::de::DeserializeOwned>(&mut self, len: usize) -> Result<T, String> {
        let token = self.rest().get(..len).unwrap_or_default();
        let value = serde_json::from_str(token);
        let value = value.map_err(|_| self.wrong("this is no value of JSON"))?;
        self.at += len;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_trailing_commas_are_read() {
        let text = "\u{feff}// a\n{ \"a\": [1, /* b */ 2,], \"b\" : {\"c\":\"\\\"}\"}, // c\n}\n";
        let value = parse(text).unwrap().to_value();
        assert_eq!(value, serde_json::json!({"a": [1, 2], "b": {"c": "\"}"}}));
    }

    #[test]
    fn what_is_no_json_is_told_with_its_line() {
        for (text, expected) in [
            ("", "line 1: a value is missing"),
            ("{\n", "line 2: expected a key"),
            ("{\"a\" 1}", "line 1: expected \":\""),
            ("{\"a\": 1 \"b\": 2}", "expected a comma"),
            ("{\"a\": nope}", "no value of JSON"),
            ("{} x", "something follows"),
            ("{\n/* x", "line 2: a comment without an end"),
            ("{\"a", "a text without an end"),
            ("{'a': 1}", "a key in quotes"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
        assert!(
            parse(&"[".repeat(100_000))
                .unwrap_err()
                .contains("too deeply")
        );
    }
}
