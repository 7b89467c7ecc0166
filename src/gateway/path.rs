//! Request target -> the one form that is matched and forwarded, or a refusal.
//! Pure.
//!
//! Servers read the same path in different ways: they decode once or twice,
//! take `%2F` for a slash, cut off `;parameters`. A path is let through only if
//! no such reading leads to another place than the form that was matched.

use std::fmt;

/// Longest target, in bytes.
pub(crate) const MAX_TARGET: usize = 16 << 10;
/// How often a path can be encoded over itself.
const MAX_LAYERS: usize = 4;

/// A target in its canonical form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// With dot segments resolved, slashes single, and no needless encoding.
    pub(crate) path: String,
    /// What follows the first `?`, as it came.
    pub(crate) query: Option<String>,
}

/// Why a target cannot be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathError {
    TooLong,
    NotOrigin,
    Character,
    Encoding,
    Hidden,
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PathError::TooLong => "the request target is longer than 16 KiB",
            PathError::NotOrigin => "the request target must be a path that begins with \"/\"",
            PathError::Character => {
                "the request target has a character that must be percent-encoded"
            }
            PathError::Encoding => "the path has a percent-encoding that is broken or not UTF-8",
            PathError::Hidden => {
                "the path hides a dot segment, backslash or control character behind an encoding or a \";\""
            }
        })
    }
}

impl Target {
    pub(crate) fn parse(target: &str) -> Result<Target, PathError> {
        if target.len() > MAX_TARGET {
            return Err(PathError::TooLong);
        }
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        if !path.starts_with('/') {
            return Err(PathError::NotOrigin);
        }
        if query.is_some_and(|query| !query.bytes().all(is_query_byte)) {
            return Err(PathError::Character);
        }
        let path = resolve_segments(&normalize_encoding(path)?);
        refuse_hidden(&path)?;
        Ok(Target {
            path,
            query: query.map(str::to_owned),
        })
    }
}

fn is_query_byte(byte: u8) -> bool {
    byte.is_ascii_graphic() && byte != b'#'
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// What may stand in a path as it is (RFC 3986, `pchar` and the slash).
fn is_path_byte(byte: u8) -> bool {
    is_unreserved(byte)
        || matches!(
            byte,
            b'/' | b'!'
                | b'$'
                | b'&'
                | b'\''
                | b'('
                | b')'
                | b'*'
                | b'+'
                | b','
                | b';'
                | b'='
                | b':'
                | b'@'
        )
}

/// Decodes what needs no encoding, encodes what does, hex digits in upper case.
fn normalize_encoding(path: &str) -> Result<String, PathError> {
    let mut out = String::with_capacity(path.len());
    let mut bytes = path.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let high = bytes.next().and_then(hex);
                let low = bytes.next().and_then(hex);
                let (Some(high), Some(low)) = (high, low) else {
                    return Err(PathError::Encoding);
                };
                match (high << 4) | low {
                    decoded if is_unreserved(decoded) => out.push(char::from(decoded)),
                    decoded => push_encoded(&mut out, decoded),
                }
            }
            byte if is_path_byte(byte) => out.push(char::from(byte)),
            // Clients send these as they are, and servers take them so.
            b'"' | b'<' | b'>' | b'[' | b']' | b'^' | b'`' | b'{' | b'|' | b'}' => {
                push_encoded(&mut out, byte);
            }
            _ => return Err(PathError::Character),
        }
    }
    Ok(out)
}

fn push_encoded(out: &mut String, byte: u8) {
    const DIGITS: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F',
    ];
    out.push('%');
    for nibble in [byte >> 4, byte & 0xf] {
        out.extend(DIGITS.get(usize::from(nibble)));
    }
}

fn hex(byte: u8) -> Option<u8> {
    char::from(byte)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
}

/// Peels one layer of encoding after the other and looks at each.
fn refuse_hidden(path: &str) -> Result<(), PathError> {
    let mut layer = path.as_bytes().to_vec();
    for _ in 0..=MAX_LAYERS {
        // Overlong forms of "." and "/" are not UTF-8.
        if std::str::from_utf8(&layer).is_err() {
            return Err(PathError::Encoding);
        }
        let is_bad = |byte: &u8| byte.is_ascii_control() || *byte == b'\\';
        if layer.iter().any(is_bad) || has_dots(&layer) {
            return Err(PathError::Hidden);
        }
        match decode_layer(&layer) {
            Some(decoded) => layer = decoded,
            None => return Ok(()),
        }
    }
    Err(PathError::Hidden)
}

/// None where there is nothing left to decode.
fn decode_layer(layer: &[u8]) -> Option<Vec<u8>> {
    if !layer.contains(&b'%') {
        return None;
    }
    let mut out = Vec::with_capacity(layer.len());
    let mut rest = layer;
    let mut changed = false;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let pair = match (byte, after) {
            (b'%', [high, low, ..]) => hex(*high).zip(hex(*low)),
            _ => None,
        };
        match pair {
            Some((high, low)) => {
                out.push((high << 4) | low);
                rest = after.get(2..).unwrap_or_default();
                changed = true;
            }
            None => out.push(byte),
        }
    }
    changed.then_some(out)
}

/// Whether a segment is a dot segment for somebody, with or without its
/// parameters.
fn has_dots(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|segment| {
        let name = segment
            .split(|byte| *byte == b';')
            .next()
            .unwrap_or_default();
        // Some systems take no notice of spaces at the end of a name.
        matches!(name.trim_ascii_end(), b"." | b"..")
    })
}

/// Single slashes first, then dot segments (RFC 3986, 5.2.4).
fn resolve_segments(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    let mut ends_open = true;
    for segment in path.split('/') {
        ends_open = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    let mut out = String::with_capacity(path.len());
    for segment in &segments {
        out.push('/');
        out.push_str(segment);
    }
    if ends_open || out.is_empty() {
        out.push('/');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    fn path(target: &str) -> Result<String, PathError> {
        Target::parse(target).map(|target| target.path)
    }

    #[test]
    fn each_way_to_write_a_path_has_one_form() {
        for (written, form) in [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/a/b/", "/a/b/"),
            ("//a///b", "/a/b"),
            ("/a/./b", "/a/b"),
            ("/a/../b", "/b"),
            ("/../../b", "/b"),
            ("/a/..", "/"),
            ("/a/.", "/a/"),
            ("/a//../b", "/b"),
            ("/%61/%2e%2E/b", "/b"),
            ("/a/%2e/b", "/a/b"),
            ("/%7euser", "/~user"),
            ("/a%2fb", "/a%2Fb"),
            ("/@scope%2fname", "/@scope%2Fname"),
            ("/a%20b", "/a%20b"),
            ("/a[1]", "/a%5B1%5D"),
            ("/a%C3%A4", "/a%C3%A4"),
            ("/a;v=1/b", "/a;v=1/b"),
            ("/a/...", "/a/..."),
            ("/a/.b", "/a/.b"),
            ("/a/..b", "/a/..b"),
            ("/100%25", "/100%25"),
            ("/a%253Ab", "/a%253Ab"),
            ("/a:b@c!$&'()*+,=", "/a:b@c!$&'()*+,="),
        ] {
            assert_eq!(path(written), Ok(form.to_owned()), "{written}");
        }
    }

    #[test]
    fn what_a_server_could_read_otherwise_is_refused() {
        use PathError::{Character, Encoding, Hidden, NotOrigin};
        for (written, error) in [
            ("", NotOrigin),
            ("*", NotOrigin),
            ("a", NotOrigin),
            ("http://a.example.org/", NotOrigin),
            ("/a\\b", Character),
            ("/a b", Character),
            ("/a#b", Character),
            ("/a\tb", Character),
            ("/a\u{0}b", Character),
            ("/ä", Character),
            ("/a?b c", Character),
            ("/a?b#c", Character),
            ("/a?\u{e4}", Character),
            ("/%", Encoding),
            ("/%4", Encoding),
            ("/%zz", Encoding),
            ("/%u002e", Encoding),
            ("/a/%c0%ae%c0%ae/b", Encoding),
            ("/a/%e0%80%ae/b", Encoding),
            ("/%ff", Encoding),
            ("/a%00", Hidden),
            ("/a%0d%0ab", Hidden),
            ("/a%7f", Hidden),
            ("/a%5cb", Hidden),
            ("/a/..%5c..%5cb", Hidden),
            ("/a/..%2fb", Hidden),
            ("/a%2f..%2fb", Hidden),
            ("/a/%2e%2e%2fb", Hidden),
            ("/a/%252e%252e/b", Hidden),
            ("/a/.%252e/b", Hidden),
            ("/a/%25252e%25252e/b", Hidden),
            ("/a/%2525252525252e/b", Hidden),
            ("/a%252f..%252fb", Hidden),
            ("/a%255cb", Hidden),
            ("/a%2500", Hidden),
            ("/a/..%20/b", Hidden),
            ("/a/.%2520/b", Hidden),
            ("/a/..;/b", Hidden),
            ("/a/..;x=1/b", Hidden),
            ("/a/.;/b", Hidden),
            ("/a/..%3b/b", Hidden),
            ("/a/%2e%2e;/b", Hidden),
            ("/a/%2e%2e%253b/b", Hidden),
        ] {
            assert_eq!(path(written), Err(error), "{written}");
        }
        assert_eq!(
            path(&format!("/{}", "a".repeat(MAX_TARGET))),
            Err(PathError::TooLong)
        );
    }

    #[test]
    fn the_query_is_kept_as_it_came() {
        let target = Target::parse("/a/../b?x=/../%2e%zz?y").unwrap();
        assert_eq!(target.path, "/b");
        assert_eq!(target.query.as_deref(), Some("x=/../%2e%zz?y"));
        assert_eq!(Target::parse("/b?").unwrap().query.as_deref(), Some(""));
        assert_eq!(Target::parse("/b").unwrap().query, None);
    }

    proptest! {
        #[test]
        fn the_canonical_form_stays_as_it_is(target in "/[a./;%2eE5fF0-]{0,24}") {
            if let Ok(form) = path(&target) {
                prop_assert_eq!(path(&form), Ok(form.clone()));
                prop_assert!(!form.contains("//") && !form.contains("/../") && !form.contains("/./"));
                prop_assert!(!form.ends_with("/..") && !form.ends_with("/."));
            }
        }

        #[test]
        fn no_reading_of_an_accepted_path_leaves_its_directory(
            tail in "([a./;]|%2e|%2f|%252e|%5c|%3b|\\.\\./){0,10}"
        ) {
            let Ok(form) = path(&format!("/in/{tail}")) else { return Ok(()) };
            if !form.starts_with("/in/") { return Ok(()) }
            let mut reading = form.into_bytes();
            while let Some(decoded) = decode_layer(&reading) { reading = decoded; }
            let reading = String::from_utf8(reading).unwrap();
            let stripped: Vec<&str> = reading.split('/').map(|s| s.split(';').next().unwrap()).collect();
            prop_assert!(resolve_segments(&stripped.join("/")).starts_with("/in"), "{}", reading);
        }
    }
}
