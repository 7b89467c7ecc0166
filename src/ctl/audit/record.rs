//! A line of the audit -> what it tells. Pure.

use std::net::Ipv6Addr;

use serde::Deserialize;

/// What is neither allowed nor denied is told by the gateway of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Allowed,
    Denied,
    Note,
}

/// One line, as the gateway writes it, or umwelt-run from the counters of the
/// kernel. What it says of hosts and paths comes from the sandbox.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Record {
    r#type: String,
    pub(super) ts: f64,
    pub(super) kind: String,
    pub(super) event: Option<String>,
    pub(super) method: Option<String>,
    /// Of the kernel's: `tcp`, `udp`, `icmp` and so on.
    pub(super) protocol: Option<String>,
    pub(super) host: Option<String>,
    pub(super) port: Option<u16>,
    pub(super) path: Option<String>,
    verdict: Option<String>,
    pub(super) why: Option<String>,
    pub(super) status: Option<u16>,
    pub(super) up: Option<u64>,
    pub(super) down: Option<u64>,
    pub(super) ms: Option<u64>,
    /// Packets that the kernel has counted.
    pub(super) count: Option<u64>,
    /// Of these packets.
    pub(super) bytes: Option<u64>,
}

impl Record {
    /// `None` for what no umwelt has written that this one understands.
    pub(super) fn parse(line: &[u8]) -> Option<Record> {
        let record: Record = serde_json::from_slice(line).ok()?;
        let is_known = matches!(record.verdict.as_deref(), None | Some("allow" | "deny"));
        (record.r#type == "umwelt-egress" && is_known).then_some(record)
    }

    pub(super) fn verdict(&self) -> Verdict {
        match self.verdict.as_deref() {
            Some("deny") => Verdict::Denied,
            Some(_) => Verdict::Allowed,
            None => Verdict::Note,
        }
    }

    pub(super) fn is_denied(&self) -> bool {
        self.verdict() == Verdict::Denied
    }

    /// Allowed, and yet it came to nothing.
    pub(super) fn has_failed(&self) -> bool {
        // With what lasts it is the reason of its end; the kernel tells no failures.
        let is_one_request = self.event.is_none() && self.count.is_none();
        self.verdict() == Verdict::Allowed && self.why.is_some() && is_one_request
    }

    /// The second line of what lasts.
    pub(super) fn is_end(&self) -> bool {
        self.event.as_deref() == Some("end")
    }

    pub(super) fn is_open(&self) -> bool {
        self.event.as_deref() == Some("open")
    }

    /// How many attempts it stands for.
    pub(super) fn count(&self) -> u64 {
        self.count.unwrap_or(1)
    }

    /// Bytes from the sandbox. What the kernel counts goes out, unless it
    /// refuses it.
    pub(super) fn sent(&self) -> Option<u64> {
        let passed = self.bytes.filter(|_| !self.is_denied());
        self.up.or(passed)
    }

    /// Of the kernel's: how many it has refused.
    pub(super) fn refused_packets(&self) -> u64 {
        self.count.filter(|_| self.is_denied()).unwrap_or_default()
    }

    /// The kind as a person reads it: `https`, `dns`, `kernel udp`.
    pub(super) fn shown_kind(&self) -> String {
        match &self.protocol {
            Some(protocol) => format!("{} {protocol}", self.kind),
            None => self.kind.clone(),
        }
    }

    pub(super) fn target(&self) -> String {
        target(self.host.as_deref(), self.port)
    }
}

/// `host:port`, with an IPv6 address in brackets; `-` where nothing is known.
/// What has no ports has port 0 in the kernel's lines.
pub(super) fn target(host: Option<&str>, port: Option<u16>) -> String {
    match (host, port) {
        (None, _) => "-".to_owned(),
        (Some(host), None | Some(0)) => host.to_owned(),
        (Some(host), Some(port)) if host.parse::<Ipv6Addr>().is_ok() => format!("[{host}]:{port}"),
        (Some(host), Some(port)) => format!("{host}:{port}"),
    }
}

/// At most so many characters, with a sign where something is left out.
pub(super) fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// A record with these keys beside those that all have.
    pub(in crate::ctl::audit) fn record(json: &str) -> Record {
        let line = format!("{{\"type\":\"umwelt-egress\",\"workspace\":\"0123abcd\",{json}}}");
        Record::parse(line.as_bytes()).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::record;
    use super::*;

    #[test]
    fn lines_of_gateway_and_kernel_are_read() {
        let https = record(
            r#""ts":1.5,"kind":"https","method":"GET","host":"a.example.org","port":443,
            "path":"/x","verdict":"allow","rule":"workspace","status":200,"up":1,"down":2,"ms":3,
            "key_of_a_later_version":[]"#,
        );
        assert_eq!(https.verdict(), Verdict::Allowed);
        assert_eq!(
            (https.target().as_str(), https.count()),
            ("a.example.org:443", 1)
        );
        let kernel = record(
            r#""ts":2,"kind":"kernel","protocol":"udp","host":"2001:db8::1","port":53,
            "verdict":"deny","count":7,"bytes":99"#,
        );
        assert!(kernel.is_denied());
        assert_eq!(kernel.target(), "[2001:db8::1]:53");
        assert_eq!(
            (kernel.shown_kind().as_str(), kernel.count()),
            ("kernel udp", 7)
        );
        let note = record(r#""ts":3,"kind":"policy","event":"broken","why":"half""#);
        assert_eq!(note.verdict(), Verdict::Note);
    }

    #[test]
    fn other_lines_are_none_of_ours() {
        for line in [
            "",
            "{\"cut",
            "[]",
            "{}",
            "null",
            r#"{"type":"other","ts":1,"kind":"https"}"#,
            r#"{"type":"umwelt-egress","ts":1,"kind":"https","verdict":"maybe"}"#,
            r#"{"type":"umwelt-egress","ts":1,"kind":"https","port":70000}"#,
            r#"{"type":"umwelt-egress","ts":"now","kind":"https"}"#,
            r#"{"type":"umwelt-egress","ts":1,"kind":"https","count":-1}"#,
        ] {
            assert!(Record::parse(line.as_bytes()).is_none(), "{line}");
        }
        assert!(Record::parse(b"\xff\xfe").is_none());
    }
}
