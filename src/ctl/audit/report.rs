//! Counts -> what is shown of them: sorted, cut to what a person can read, and
//! what is left out summed up. As JSON it is what `--summary --json` prints.
//! Pure.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;

use crate::ctl::audit::paths::PathRow;
use crate::ctl::audit::record;
use crate::ctl::audit::rule::Fix;
use crate::ctl::audit::tally::{Counts, Denials, Group, Host, Note, Tally, Target};
use crate::ctl::audit::timeline::Span;

/// How much is shown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) hosts: usize,
    /// Of each host.
    pub(super) paths: usize,
    pub(super) denials: usize,
}

/// Whose audit it is.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Subject {
    /// As a person names it: a path, or the session id.
    pub(super) workspace: String,
    pub(super) sid: String,
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    pub(super) subject: Subject,
    /// Seconds since the epoch, of the first record; `last` is that of the
    /// last attempt.
    pub(super) first: Option<f64>,
    pub(super) records: u64,
    /// Lines that were not understood.
    pub(super) unreadable: u64,
    #[serde(flatten)]
    pub(super) total: Tally,
    pub(super) kinds: Vec<KindRow>,
    pub(super) hosts: Vec<HostRow>,
    /// Of hosts that are not in the list.
    pub(super) other_hosts: Tally,
    pub(super) denials: Vec<DenialRow>,
    /// Attempts that are not in the list.
    pub(super) other_denials: u64,
    pub(super) gateway: Vec<Note>,
    #[serde(skip)]
    pub(super) span: Option<Span>,
    /// Also those that are not in the list.
    #[serde(skip)]
    pub(super) host_count: usize,
    /// Hosts by their names alone, whatever the port.
    #[serde(skip)]
    pub(super) name_count: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct KindRow {
    pub(super) kind: String,
    #[serde(flatten)]
    pub(super) tally: Tally,
}

#[derive(Debug, Serialize)]
pub(super) struct HostRow {
    #[serde(flatten)]
    pub(super) target: Target,
    #[serde(flatten)]
    pub(super) tally: Tally,
    pub(super) paths: Vec<PathRow>,
    pub(super) other_paths: Tally,
}

#[derive(Debug, Serialize)]
pub(super) struct DenialRow {
    pub(super) count: u64,
    #[serde(flatten)]
    pub(super) target: Target,
    /// The pattern that the rule would have.
    pub(super) path: Option<String>,
    pub(super) why: Option<String>,
    pub(super) first: Option<f64>,
    pub(super) last: Option<f64>,
    /// `null` where none is suggested.
    pub(super) rule: Option<Fix>,
}

impl Report {
    pub(super) fn new(counts: Counts, subject: Subject, limits: Limits) -> Report {
        let (hosts, other_hosts) = host_rows(&counts, limits);
        let (denials, other_denials) = denial_rows(&counts, &subject, limits);
        Report {
            first: counts.first,
            records: counts.records,
            unreadable: counts.unreadable,
            span: counts.timeline.span(),
            host_count: counts.hosts.len(),
            name_count: names(&counts),
            total: counts.total,
            kinds: kind_rows(counts.kinds),
            hosts,
            other_hosts,
            denials,
            other_denials,
            gateway: counts.notes.into(),
            subject,
        }
    }
}

impl Target {
    pub(super) fn shown(&self) -> String {
        record::target(self.host.as_deref(), self.port)
    }
}

fn kind_rows(kinds: BTreeMap<String, Tally>) -> Vec<KindRow> {
    let rows = kinds.into_iter();
    rows.map(|(kind, tally)| KindRow { kind, tally }).collect()
}

fn names(counts: &Counts) -> usize {
    let names = counts
        .hosts
        .keys()
        .filter_map(|target| target.host.as_ref());
    names.collect::<HashSet<_>>().len()
}

/// The busiest come first.
fn host_rows(counts: &Counts, limits: Limits) -> (Vec<HostRow>, Tally) {
    let mut hosts: Vec<(&Target, &Host)> = counts.hosts.iter().collect();
    hosts.sort_by(|(a, left), (b, right)| {
        let by_count = right.tally.attempts().cmp(&left.tally.attempts());
        by_count.then_with(|| a.cmp(b))
    });
    let mut rest = counts.other_hosts.clone();
    for (_, host) in hosts.iter().skip(limits.hosts) {
        rest.add(&host.tally);
    }
    hosts.truncate(limits.hosts);
    let row = |(target, host): (&Target, &Host)| {
        let (paths, other_paths) = host.paths.rows(limits.paths);
        HostRow {
            target: target.clone(),
            tally: host.tally.clone(),
            paths,
            other_paths,
        }
    };
    (hosts.into_iter().map(row).collect(), rest)
}

/// Those that a rule would allow come first, the most frequent above.
fn denial_rows(counts: &Counts, subject: &Subject, limits: Limits) -> (Vec<DenialRow>, u64) {
    let mut groups: Vec<(&Group, &Denials)> = counts.groups.iter().collect();
    groups.sort_by(|(a, left), (b, right)| {
        let by_rule = b.wanted.is_some().cmp(&a.wanted.is_some());
        let by_count = by_rule.then_with(|| right.count.cmp(&left.count));
        by_count.then_with(|| a.cmp(b))
    });
    let mut rest = counts.other_denials;
    for (_, denials) in groups.iter().skip(limits.denials) {
        rest = rest.saturating_add(denials.count);
    }
    groups.truncate(limits.denials);
    let row = |(group, denials): (&Group, &Denials)| {
        let wanted = group.wanted.as_ref();
        DenialRow {
            count: denials.count,
            target: group.target.clone(),
            path: wanted.and_then(|wanted| wanted.path.clone()),
            why: Some(group.why.clone()).filter(|why| !why.is_empty()),
            first: denials.first,
            last: denials.last,
            rule: wanted.and_then(|wanted| wanted.fix(&subject.workspace)),
        }
    };
    (groups.into_iter().map(row).collect(), rest)
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use crate::ctl::audit::record::testing::record;

    pub(in crate::ctl::audit) fn report(records: &[String], limits: Limits) -> Report {
        let mut counts = Counts::new();
        for json in records {
            counts.add(Some(&record(json)));
        }
        let subject = Subject {
            workspace: "/w".to_owned(),
            sid: "0123abcd".to_owned(),
        };
        Report::new(counts, subject, limits)
    }

    pub(in crate::ctl::audit) fn request(host: &str, path: &str, verdict: &str) -> String {
        let why = match verdict {
            "deny" => r#","why":"no rule for this host allows the path","status":403"#,
            _ => r#","status":200,"up":10,"down":2048,"ms":5"#,
        };
        format!(
            r#""ts":1767225600.5,"kind":"https","method":"GET","host":"{host}","port":443,
            "path":"{path}","verdict":"{verdict}"{why}"#
        )
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{report, request};
    use super::*;

    const LIMITS: Limits = Limits {
        hosts: 2,
        paths: 2,
        denials: 1,
    };

    #[test]
    fn what_is_left_out_is_summed_up() {
        let mut records = Vec::new();
        for host in ["a.example.org", "b.example.org", "c.example.org"] {
            for path in ["/x/1", "/y/2", "/z/3"] {
                records.push(request(host, path, "allow"));
            }
        }
        records.push(request("a.example.org", "/q/1", "deny"));
        records.push(request("a.example.org", "/r/1", "deny"));
        records.push(request("a.example.org", "/r/2", "deny"));
        let report = report(&records, LIMITS);
        assert_eq!((report.hosts.len(), report.host_count), (2, 3));
        assert_eq!(report.other_hosts.allowed, 3);
        assert_eq!(report.hosts[0].target.shown(), "a.example.org:443");
        assert_eq!(report.hosts[0].tally.attempts(), 6);
        assert_eq!(report.hosts[1].other_paths.allowed, 1);
        assert_eq!(report.denials[0].path.as_deref(), Some("/r/*"));
        assert_eq!((report.denials[0].count, report.other_denials), (2, 1));
    }

    #[test]
    fn denials_that_no_rule_can_allow_have_none_and_come_last() {
        let bad = r#""ts":1,"kind":"https","verdict":"deny","why":"two lengths","status":400"#;
        let records = [
            bad.to_owned(),
            bad.to_owned(),
            request("a.example.org", "/x", "deny"),
        ];
        let limits = Limits {
            denials: 9,
            ..LIMITS
        };
        let report = report(&records, limits);
        assert!(report.denials[0].rule.is_some());
        assert_eq!(
            (report.denials[1].count, &report.denials[1].rule),
            (2, &None)
        );
        assert_eq!(report.denials[1].target.shown(), "-");
    }

    #[test]
    fn as_json_it_has_the_documented_keys() {
        let report = report(&[request("a.example.org", "/x", "deny")], LIMITS);
        let value = serde_json::to_value(&report).unwrap();
        assert_eq!(value["workspace"], "/w");
        assert_eq!(value["denied"], 1);
        assert_eq!(value["hosts"][0]["host"], "a.example.org");
        assert_eq!(value["hosts"][0]["paths"][0]["path"], "/x");
        let command = "umwelt-ctl egress add https a.example.org --path /x /w";
        assert_eq!(value["denials"][0]["rule"]["command"], command);
        assert_eq!(value.get("span"), None);
    }
}
