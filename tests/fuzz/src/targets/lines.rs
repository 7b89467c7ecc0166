//! Streams of lines, and what stands on a line of the socket API and of MCP.

use super::inner::{survives, written};
use crate::api::line::{Line, LineBuffer};
use crate::api::{Message, Request};
use crate::mcp::jsonrpc;

/// Short, so that lines above it are met.
const LIMIT: usize = 200;

pub(super) fn lines(input: &[u8]) {
    let whole = read(&[input]);
    assert_eq!(whole, plain(input), "as cut at each LF");
    assert_eq!(
        read(&input.chunks(1).collect::<Vec<_>>()),
        whole,
        "byte by byte"
    );
    for cut in 0..input.len().min(256) {
        let (front, back) = input.split_at(cut);
        assert_eq!(read(&[front, back]), whole, "cut at {cut}");
    }
    for line in &whole {
        if let Line::Complete(line) = line {
            understood(line);
        }
    }
}

fn read(pieces: &[&[u8]]) -> Vec<Line> {
    let mut buffer = LineBuffer::new(LIMIT);
    let mut lines = Vec::new();
    for piece in pieces {
        buffer.push(piece);
        lines.extend(std::iter::from_fn(|| buffer.next_line()));
    }
    lines
}

fn plain(input: &[u8]) -> Vec<Line> {
    let mut lines: Vec<&[u8]> = input.split(|byte| *byte == b'\n').collect();
    lines.pop();
    let line = |line: &[u8]| match line.len() > LIMIT {
        true => Line::TooLong,
        false => Line::Complete(line.strip_suffix(b"\r").unwrap_or(line).to_vec()),
    };
    lines.into_iter().map(line).collect()
}

fn understood(line: &[u8]) {
    if let Ok(request) = Request::parse(line) {
        assert_eq!(Request::parse(&written(&request)).ok(), Some(request));
    }
    survives::<Message>(line);
    let _ = jsonrpc::parse_line(line);
}
