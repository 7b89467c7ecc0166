//! Records -> counts: in all, by host and path, and the denials by the rule
//! that they lack. Pure, and bounded whatever the sandbox asks for.

use std::collections::{BTreeMap, HashMap, VecDeque};

use serde::Serialize;

use crate::ctl::audit::paths::Paths;
use crate::ctl::audit::record::{Record, Verdict, cut};
use crate::ctl::audit::rule::Wanted;
use crate::ctl::audit::timeline::{self, Timeline};

/// Most hosts, and groups of denials, that are kept apart.
const MAX_HOSTS: usize = 5000;
const MAX_GROUPS: usize = 5000;
/// Most paths of all hosts together.
const MAX_PATHS: usize = 40_000;
/// Last words of the gateway that are kept.
const MAX_NOTES: usize = 20;
const MAX_KINDS: usize = 30;
/// Longest texts, in characters; a host name has 253.
const MAX_TEXT: usize = 260;
const MAX_KIND: usize = 30;

/// What became of some attempts.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Tally {
    pub(super) allowed: u64,
    pub(super) denied: u64,
    /// Of the denied ones: packets that the kernel refused.
    pub(super) packets: u64,
    /// Of the allowed ones: those that came to nothing.
    pub(super) failed: u64,
    /// Bytes from the sandbox.
    pub(super) up: u64,
    pub(super) down: u64,
    pub(super) last: Option<f64>,
}

impl Tally {
    /// Of one record. The second line of what lasts is no attempt of its own.
    fn of(record: &Record, is_attempt: bool) -> Tally {
        let count = if is_attempt { record.count() } else { 0 };
        let is_denied = record.is_denied();
        let carried = |bytes: Option<u64>| bytes.filter(|_| !is_denied).unwrap_or_default();
        Tally {
            allowed: if is_denied { 0 } else { count },
            denied: if is_denied { count } else { 0 },
            packets: record.refused_packets(),
            failed: if record.has_failed() { count } else { 0 },
            up: carried(record.sent()),
            down: carried(record.down),
            last: timeline::seconds(record.ts).map(|_| record.ts),
        }
    }

    pub(super) fn add(&mut self, other: &Tally) {
        for (sum, more) in [
            (&mut self.allowed, other.allowed),
            (&mut self.denied, other.denied),
            (&mut self.packets, other.packets),
            (&mut self.failed, other.failed),
            (&mut self.up, other.up),
            (&mut self.down, other.down),
        ] {
            *sum = sum.saturating_add(more);
        }
        self.last = match (self.last, other.last) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        };
    }

    /// By the gateway: what was asked for once.
    pub(super) fn denied_requests(&self) -> u64 {
        self.denied.saturating_sub(self.packets)
    }

    /// In words; packets are counted by themselves, as one connection can be many.
    pub(super) fn told_denied(&self) -> String {
        let requests = format!("{} denied", self.denied_requests());
        match self.packets {
            0 => requests,
            1 => format!("{requests} and 1 packet refused by the kernel"),
            packets => format!("{requests} and {packets} packets refused by the kernel"),
        }
    }

    pub(super) fn attempts(&self) -> u64 {
        self.allowed.saturating_add(self.denied)
    }
}

/// Whom attempts were for, and by which way.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub(super) struct Target {
    pub(super) kind: String,
    pub(super) host: Option<String>,
    pub(super) port: Option<u16>,
}

#[derive(Debug, Default)]
pub(super) struct Host {
    pub(super) tally: Tally,
    pub(super) paths: Paths,
    /// How many have begun, and have not ended yet.
    open: u64,
}

/// Denials that one rule would allow, or that no rule can.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Group {
    pub(super) target: Target,
    pub(super) wanted: Option<Wanted>,
    pub(super) why: String,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Denials {
    pub(super) count: u64,
    pub(super) first: Option<f64>,
    pub(super) last: Option<f64>,
}

/// What the gateway has said of itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Note {
    pub(super) ts: f64,
    pub(super) kind: String,
    pub(super) event: Option<String>,
    pub(super) why: Option<String>,
}

#[derive(Debug)]
pub(super) struct Counts {
    pub(super) records: u64,
    pub(super) unreadable: u64,
    pub(super) first: Option<f64>,
    pub(super) total: Tally,
    pub(super) kinds: BTreeMap<String, Tally>,
    pub(super) hosts: HashMap<Target, Host>,
    /// Those of hosts for which there was no room.
    pub(super) other_hosts: Tally,
    pub(super) groups: HashMap<Group, Denials>,
    pub(super) other_denials: u64,
    pub(super) notes: VecDeque<Note>,
    pub(super) timeline: Timeline,
    room: usize,
}

impl Counts {
    pub(super) fn new() -> Counts {
        Counts {
            records: 0,
            unreadable: 0,
            first: None,
            total: Tally::default(),
            kinds: BTreeMap::new(),
            hosts: HashMap::new(),
            other_hosts: Tally::default(),
            groups: HashMap::new(),
            other_denials: 0,
            notes: VecDeque::new(),
            timeline: Timeline::new(),
            room: MAX_PATHS,
        }
    }

    /// `None` stands for a line that is no record.
    pub(super) fn add(&mut self, record: Option<&Record>) {
        let Some(record) = record else {
            self.unreadable += 1;
            return;
        };
        self.records += 1;
        if timeline::seconds(record.ts).is_some() {
            self.first = Some(self.first.map_or(record.ts, |first| first.min(record.ts)));
        }
        match record.verdict() {
            Verdict::Note => self.note(record),
            Verdict::Allowed | Verdict::Denied => self.attempt(record),
        }
    }

    fn note(&mut self, record: &Record) {
        if self.notes.len() >= MAX_NOTES {
            self.notes.pop_front();
        }
        let short = |text: &String| cut(text, MAX_TEXT);
        self.notes.push_back(Note {
            ts: record.ts,
            kind: cut(&record.kind, MAX_KIND),
            event: record.event.as_ref().map(short),
            why: record.why.as_ref().map(short),
        });
    }

    fn attempt(&mut self, record: &Record) {
        let target = Target::of(record);
        let is_attempt = self.is_attempt(&target, record);
        let one = Tally::of(record, is_attempt);
        self.total.add(&one);
        let kind = cut(&record.shown_kind(), MAX_KIND);
        if self.kinds.contains_key(&kind) || self.kinds.len() < MAX_KINDS {
            self.kinds.entry(kind).or_default().add(&one);
        }
        if one.attempts() > 0 {
            self.timeline
                .add(record.ts, one.attempts(), record.is_denied());
        }
        if record.is_denied() {
            self.deny(&target, record);
        }
        match self.hosts.get_mut(&target) {
            Some(host) => {
                host.tally.add(&one);
                if let Some(path) = &record.path {
                    host.paths.add(path, &one, &mut self.room);
                }
            }
            None => self.other_hosts.add(&one),
        }
    }

    /// Makes room for the host, and pairs ends with beginnings: an end whose
    /// beginning is in a file that is gone stands for both.
    fn is_attempt(&mut self, target: &Target, record: &Record) -> bool {
        if !self.hosts.contains_key(target) {
            if self.hosts.len() >= MAX_HOSTS {
                return !record.is_end();
            }
            self.hosts.insert(target.clone(), Host::default());
        }
        let Some(host) = self.hosts.get_mut(target) else {
            return true;
        };
        if record.is_open() {
            host.open += 1;
        } else if record.is_end() && host.open > 0 {
            host.open -= 1;
            return false;
        }
        true
    }

    fn deny(&mut self, target: &Target, record: &Record) {
        let group = Group {
            target: target.clone(),
            wanted: Wanted::of(record),
            why: cut(record.why.as_deref().unwrap_or_default(), MAX_TEXT),
        };
        let count = record.count();
        let time = timeline::seconds(record.ts).map(|_| record.ts);
        if self.groups.len() >= MAX_GROUPS && !self.groups.contains_key(&group) {
            self.other_denials = self.other_denials.saturating_add(count);
            return;
        }
        let denials = self.groups.entry(group).or_default();
        denials.count = denials.count.saturating_add(count);
        denials.first = denials.first.or(time);
        denials.last = time.or(denials.last);
    }
}

impl Target {
    fn of(record: &Record) -> Target {
        let kind = match record.kind.as_str() {
            // All of them come to the same port of the gateway.
            "tunnel" | "websocket" => "https".to_owned(),
            _ => cut(&record.shown_kind(), MAX_KIND),
        };
        Target {
            kind,
            host: record.host.as_ref().map(|host| cut(host, MAX_TEXT)),
            port: record.port,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctl::audit::record::testing::record;

    fn counts(records: &[&str]) -> Counts {
        let mut counts = Counts::new();
        for json in records {
            counts.add(Some(&record(json)));
        }
        counts
    }

    #[test]
    fn what_lasts_is_one_attempt() {
        let tunnel = |event: &str, bytes| {
            format!(
                r#""ts":1000,"kind":"tunnel","event":"{event}","host":"a","port":443,"verdict":"allow"{bytes}"#
            )
        };
        let end = tunnel("end", r#","up":3,"down":4"#);
        let open = tunnel("open", "");
        // The beginning of the third one is in a file that is gone.
        let counts = counts(&[&open, &open, &end, &end, &end]);
        let total = &counts.total;
        assert_eq!((total.allowed, total.up, total.down), (3, 9, 12));
        assert_eq!(counts.timeline.span().unwrap().bins[19].allowed, 3);
    }

    #[test]
    fn kernel_lines_count_packets_and_refused_bytes_are_not_sent() {
        let counts = counts(&[
            r#""ts":1,"kind":"kernel","protocol":"udp","host":"203.0.113.1","port":53,"verdict":"deny","count":7,"bytes":700"#,
            r#""ts":2,"kind":"kernel","protocol":"tcp","host":"203.0.113.1","port":22,"verdict":"allow","count":2,"bytes":120"#,
        ]);
        let total = &counts.total;
        assert_eq!((total.denied, total.allowed, total.up), (7, 2, 120));
        let kinds: Vec<&str> = counts.kinds.keys().map(String::as_str).collect();
        assert_eq!(kinds, ["kernel tcp", "kernel udp"]);
    }

    #[test]
    fn denials_that_one_rule_would_allow_are_a_group() {
        let path = |path: &str| {
            format!(
                r#""ts":5,"kind":"https","method":"GET","host":"a.example.org","port":443,"path":"{path}",
                "verdict":"deny","why":"no rule for this host allows the path""#
            )
        };
        let counts = counts(&[&path("/a/b"), &path("/a/c/d"), &path("/b/x")]);
        let mut groups: Vec<u64> = counts.groups.values().map(|group| group.count).collect();
        groups.sort_unstable();
        assert_eq!(groups, [1, 2]);
    }

    #[test]
    fn a_flood_of_hosts_is_bounded_and_counted() {
        let mut counts = Counts::new();
        for number in 0..12_000 {
            counts.add(Some(&record(&format!(
                r#""ts":1,"kind":"dns","host":"h{number}.example.org","verdict":"deny","why":"no rule names this host""#
            ))));
        }
        counts.add(None);
        assert_eq!(counts.hosts.len(), MAX_HOSTS);
        assert_eq!(counts.groups.len(), MAX_GROUPS);
        assert_eq!(counts.other_denials, 12_000 - MAX_GROUPS as u64);
        assert_eq!(counts.total.denied, 12_000);
        assert_eq!(counts.other_hosts.denied, 12_000 - MAX_HOSTS as u64);
        assert_eq!(counts.unreadable, 1);
    }

    #[test]
    fn what_the_gateway_says_of_itself_is_no_attempt() {
        let counts = counts(&[r#""ts":1,"kind":"policy","event":"broken","why":"half""#]);
        assert_eq!(counts.total.attempts(), 0);
        assert_eq!(counts.notes[0].why.as_deref(), Some("half"));
    }
}
