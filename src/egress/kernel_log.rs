//! What the kernel's rules have counted -> lines beside the gateway's audit.
//!
//! The gateway alone writes its own file, so these lines have another one.
//! What a sandbox can make them say is bounded: at most [`MAX_LINES`] for each
//! reading, and the files rotate.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::gateway::audit::{Audit, Rotation, Timestamp, Type};
use crate::nft::ruleset::COUNTED;
use crate::nft::table::{Count, Counts};

/// As the gateway keeps its own.
const ROTATION: Rotation = Rotation {
    size: 16 << 20,
    keep: 3,
};
/// Most lines of one reading; the rest is told as one number.
const MAX_LINES: usize = 1000;

/// Where the lines go, in the directory of the audit.
pub(crate) fn path(audit: &Path, sid: &str) -> PathBuf {
    audit.join(format!("kernel-{sid}.jsonl"))
}

/// The file, and what was told of the container that runs now.
#[derive(Debug)]
pub(crate) struct KernelLog {
    sid: String,
    path: PathBuf,
    file: Option<Audit>,
    told: Counts,
    /// That a set is full is said once.
    was_full: bool,
}

#[derive(Serialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    r#type: Type,
    ts: Timestamp,
    workspace: &'a str,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    verdict: &'static str,
    /// Packets; of what was let through, connections.
    count: u64,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'static str>,
}

impl KernelLog {
    pub(crate) fn new(audit: &Path, sid: &str) -> KernelLog {
        KernelLog {
            sid: sid.to_owned(),
            path: path(audit, sid),
            file: None,
            told: Counts::default(),
            was_full: false,
        }
    }

    /// Of another container: what it has counted up to now is not told. That is
    /// what umwelt itself has tried in it.
    pub(crate) fn begin(&mut self, counts: Counts) {
        self.told = counts;
        self.was_full = false;
    }

    /// Appends what came since the last time. Returns whether anything did.
    pub(crate) fn tell(&mut self, now: Counts) -> io::Result<bool> {
        let (lines, is_full) = self.lines(&now);
        if !lines.is_empty() {
            self.file()?.write(&lines);
        }
        self.was_full = is_full;
        self.told = now;
        Ok(!lines.is_empty())
    }

    fn file(&mut self) -> io::Result<&Audit> {
        let file = match self.file.take() {
            Some(file) => file,
            None => Audit::open(&self.path, ROTATION)?,
        };
        Ok(self.file.insert(file))
    }

    fn lines(&self, now: &Counts) -> (Vec<u8>, bool) {
        let new = now.since(&self.told);
        let all = new.denied.iter().map(|count| ("deny", count));
        let mut all: Vec<_> = all
            .chain(new.allowed.iter().map(|count| ("allow", count)))
            .collect();
        // Where there are too many, the busiest are shown.
        all.sort_by_key(|(_, count)| std::cmp::Reverse(count.packets));
        let rest = all.split_off(all.len().min(MAX_LINES));
        let mut lines = Vec::new();
        for (verdict, count) in all {
            write(&mut lines, &self.line(verdict, count));
        }
        for verdict in ["deny", "allow"] {
            let left_out = rest.iter().filter(|(of, _)| *of == verdict);
            let count = left_out.map(|(_, count)| count.packets).sum();
            if count > 0 {
                let why = "more destinations than one reading tells";
                write(&mut lines, &self.overflow(verdict, count, why));
            }
        }
        let is_full = is_full(now);
        if is_full {
            let counted: u64 = new.denied.iter().map(|count| count.packets).sum();
            let uncounted = new.refused.saturating_sub(counted);
            if uncounted > 0 || !self.was_full {
                let why =
                    "a counting set is full: new destinations are refused, and not told apart";
                write(&mut lines, &self.overflow("deny", uncounted, why));
            }
        }
        (lines, is_full)
    }

    fn line(&self, verdict: &'static str, count: &Count) -> Line<'_> {
        Line {
            protocol: Some(protocol(count.protocol)),
            host: Some(count.address),
            // Where there are no ports, the set has type and code there.
            port: Some(if has_ports(count.protocol) {
                count.port
            } else {
                0
            }),
            count: count.packets,
            bytes: count.bytes,
            event: None,
            why: None,
            ..self.overflow(verdict, 0, "")
        }
    }

    fn overflow(&self, verdict: &'static str, count: u64, why: &'static str) -> Line<'_> {
        Line {
            r#type: Type,
            ts: Timestamp::default(),
            workspace: &self.sid,
            kind: "kernel",
            event: Some("overflow"),
            protocol: None,
            host: None,
            port: None,
            verdict,
            count,
            bytes: 0,
            why: Some(why),
        }
    }
}

fn write(lines: &mut Vec<u8>, line: &Line<'_>) {
    // A line of numbers and words always becomes JSON.
    if let Ok(text) = serde_json::to_vec(line) {
        lines.extend_from_slice(&text);
        lines.push(b'\n');
    }
}

/// Each address family has a set of its own.
fn is_full(counts: &Counts) -> bool {
    let of = |v4: bool| {
        let denied = counts.denied.iter();
        denied.filter(|count| count.address.is_ipv4() == v4).count()
    };
    [of(true), of(false), counts.allowed.len()]
        .iter()
        .any(|count| *count >= COUNTED as usize)
}

fn has_ports(protocol: u8) -> bool {
    !matches!(protocol, 1 | 58)
}

fn protocol(number: u8) -> String {
    match number {
        1 => "icmp",
        6 => "tcp",
        17 => "udp",
        33 => "dccp",
        58 => "icmpv6",
        132 => "sctp",
        136 => "udplite",
        other => return other.to_string(),
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn count(address: &str, protocol: u8, port: u16, packets: u64) -> Count {
        Count {
            address: address.parse().unwrap(),
            protocol,
            port,
            packets,
            bytes: packets * 60,
        }
    }

    fn denied(denied: Vec<Count>) -> Counts {
        let refused = denied.iter().map(|count| count.packets).sum();
        Counts {
            denied,
            allowed: Vec::new(),
            refused,
        }
    }

    fn entries(dir: &tempfile::TempDir) -> Vec<Value> {
        let text = std::fs::read_to_string(path(dir.path(), "0123abcd")).unwrap_or_default();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect()
    }

    #[test]
    fn only_what_is_new_is_told_and_nothing_of_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = KernelLog::new(dir.path(), "0123abcd");
        let probe = count("198.51.100.1", 17, 53, 1);
        log.begin(denied(vec![probe.clone()]));
        assert!(!log.tell(denied(vec![probe.clone()])).unwrap());
        assert!(!path(dir.path(), "0123abcd").exists());
        let mut counts = denied(vec![probe, count("203.0.113.7", 6, 22, 3)]);
        counts.allowed = vec![count("203.0.113.9", 6, 443, 1)];
        assert!(log.tell(counts.clone()).unwrap());
        assert!(!log.tell(counts.clone()).unwrap());
        counts.denied.push(count("192.0.2.1", 1, 2048, 1));
        assert!(log.tell(counts).unwrap());
        let found = entries(&dir);
        assert_eq!(found.len(), 3);
        for (entry, (protocol, host, port, verdict, count)) in found.iter().zip([
            ("tcp", "203.0.113.7", 22, "deny", 3),
            ("tcp", "203.0.113.9", 443, "allow", 1),
            ("icmp", "192.0.2.1", 0, "deny", 1),
        ]) {
            assert_eq!(entry["type"], "umwelt-egress");
            assert_eq!(entry["kind"], "kernel");
            assert_eq!(entry["workspace"], "0123abcd");
            assert_eq!(entry["protocol"], protocol);
            assert_eq!(entry["host"], host);
            assert_eq!(entry["port"], port);
            assert_eq!(entry["verdict"], verdict);
            assert_eq!(entry["count"], count);
            assert_eq!(entry["bytes"], count * 60);
            assert!(entry.get("event").is_none());
        }
    }

    #[test]
    fn full_set_is_said_with_what_it_had_no_room_for() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = KernelLog::new(dir.path(), "0123abcd");
        let ports = (1..=4096).map(|port| count("203.0.113.7", 6, port, 1));
        let mut counts = denied(ports.collect());
        counts.refused += 7;
        assert!(log.tell(counts.clone()).unwrap());
        let found = entries(&dir);
        // Those that are shown, how many are not, and that the set is full.
        assert_eq!(found.len(), MAX_LINES + 2);
        let overflow = |entry: &&Value| entry["event"] == "overflow";
        let told: Vec<u64> = found
            .iter()
            .filter(overflow)
            .map(|entry| entry["count"].as_u64().unwrap())
            .collect();
        assert_eq!(told, [4096 - MAX_LINES as u64, 7]);
        assert!(!log.tell(counts.clone()).unwrap());
        counts.refused += 2;
        assert!(log.tell(counts).unwrap());
        assert_eq!(entries(&dir).last().unwrap()["count"], 2);
    }

    #[test]
    fn file_that_cannot_be_written_is_an_error_and_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("audit");
        let mut log = KernelLog::new(&place, "0123abcd");
        let counts = denied(vec![count("203.0.113.7", 6, 22, 3)]);
        assert!(log.tell(counts.clone()).is_err());
        std::fs::create_dir(&place).unwrap();
        assert!(log.tell(counts).unwrap());
    }
}
