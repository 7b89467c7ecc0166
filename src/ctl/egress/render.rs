//! An answer about the network -> the text that a person reads. Pure.

use crate::api::{CheckEntry, Delivery, EgressOp, EgressReply, RuleEntry, RuleKind};
use crate::ctl::output::{self, Cell, Colour};
use crate::policy::egress::HostEntry;
use crate::text::printable;

pub(super) fn reply(reply: &EgressReply, op: EgressOp, is_running: bool, colour: bool) -> String {
    let mut out = match op {
        EgressOp::List => list(reply),
        EgressOp::Add | EgressOp::Remove => change(reply, is_running),
        EgressOp::Verify => checks(&reply.checks, colour),
    };
    for notice in &reply.notices {
        out.push_str(&format!("note: {}\n", printable(notice)));
    }
    out
}

fn list(reply: &EgressReply) -> String {
    let network = match reply.network.as_str() {
        "none" => "none: programs in the sandbox reach no host, and no name is resolved",
        "egress" if reply.rules.is_empty() => "egress, without a rule: no host is reached",
        other => other,
    };
    let mut out = format!("network  {}\n", printable(network));
    if let Some(status) = &reply.status {
        out.push_str(&format!("gateway  {}\n", printable(&status.gateway)));
        for problem in status.problems() {
            out.push_str(&format!("problem  {}\n", printable(problem)));
        }
    }
    out + &tables(&reply.rules, &reply.hosts)
}

/// Rules and names, each table after an empty line.
pub(in crate::ctl) fn tables(rules: &[RuleEntry], hosts: &[HostEntry]) -> String {
    let mut out = String::new();
    let rows: Vec<_> = rules.iter().map(row).collect();
    if !rows.is_empty() {
        let heading = ["KIND", "HOST", "PORT", "SOURCE", "DELIVERY", "ALLOWS"];
        out.push('\n');
        out.push_str(&output::render_table(heading, &rows));
    }
    let names = hosts.iter().map(|entry| {
        [
            Cell::plain(&entry.name),
            Cell::plain(entry.address.to_string()),
            Cell::plain(entry.origin.to_string()),
        ]
    });
    let names: Vec<_> = names.collect();
    if !names.is_empty() {
        out.push('\n');
        out.push_str(&output::render_table(["NAME", "ADDRESS", "SOURCE"], &names));
    }
    out
}

fn row(rule: &RuleEntry) -> [Cell; 6] {
    let kind = match rule.kind {
        RuleKind::Https => "https",
        RuleKind::Tcp => "tcp",
    };
    let delivery = match rule.delivery {
        None => "-",
        Some(Delivery::Direct) => "direct",
        Some(Delivery::Relayed) => "relayed",
        Some(Delivery::PendingRemoval) => "pending_removal",
    };
    [
        Cell::plain(kind),
        Cell::plain(&rule.host),
        Cell::plain(rule.port.to_string()),
        Cell::plain(&rule.source),
        Cell::plain(delivery),
        Cell::plain(allows(rule)),
    ]
}

fn allows(rule: &RuleEntry) -> String {
    let mut words = rule.paths.clone();
    if !rule.inspect {
        words = vec!["anything".to_owned()];
    }
    if rule.kind == RuleKind::Https && !rule.inspect {
        words.push("(not inspected)".to_owned());
    }
    if let Some(methods) = &rule.methods {
        words.push(format!("by {}", methods.join(", ")));
    }
    if rule.private {
        words.push("(private addresses too)".to_owned());
    }
    words.join(" ")
}

fn change(reply: &EgressReply, is_running: bool) -> String {
    match (reply.changed, is_running) {
        (false, _) => "nothing was changed\n",
        (true, true) => "written to .umwelt.toml, and brought to the running sandbox\n",
        (true, false) => "written to .umwelt.toml\n",
    }
    .to_owned()
}

fn checks(checks: &[CheckEntry], colour: bool) -> String {
    if checks.is_empty() {
        return String::new();
    }
    let rows: Vec<_> = checks
        .iter()
        .map(|check| {
            let shade = match check.ok {
                true => Colour::Green,
                false => Colour::Red,
            };
            [
                Cell::coloured(
                    if check.ok { "ok" } else { "DIFFERS" },
                    colour.then_some(shade),
                ),
                Cell::plain(&check.url),
                Cell::plain(check.expected.as_str()),
                Cell::plain(check.got.as_str()),
                Cell::plain(&check.why),
            ]
        })
        .collect();
    let table = output::render_table(["", "URL", "EXPECTED", "GOT", "WHY"], &rows);
    let good = checks.iter().filter(|check| check.ok).count();
    format!("{table}{good} of {} are as expected\n", checks.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(value: serde_json::Value) -> EgressReply {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn rules_are_shown_with_source_delivery_and_what_they_allow() {
        let reply = parse(json!({
            "network": "egress", "changed": false,
            "rules": [
                {"kind": "https", "host": "a.example.org", "port": 443, "paths": ["/x", "/y/*"], "methods": ["GET"],
                 "inspect": true, "private": true, "source": "base"},
                {"kind": "https", "host": "b.example.org", "port": 443, "paths": ["*"], "inspect": false, "private": false, "source": "pip"},
                {"kind": "tcp", "host": "c\n", "port": 22, "inspect": false, "private": false, "source": "workspace", "delivery": "relayed"},
            ],
            "hosts": [{"name": "d.example.org", "address": "192.0.2.1", "origin": "workspace"}],
            "status": {"gateway": "ready", "gateway_restarts": 0, "policy_digest": "d"},
            "notices": ["n\n"],
        }));
        assert_eq!(
            super::reply(&reply, EgressOp::List, true, false),
            "network  egress\ngateway  ready\n\n\
             KIND   HOST           PORT  SOURCE     DELIVERY  ALLOWS\n\
             https  a.example.org  443   base       -         /x /y/* by GET (private addresses too)\n\
             https  b.example.org  443   pip        -         anything (not inspected)\n\
             tcp    c\\n            22    workspace  relayed   anything\n\n\
             NAME           ADDRESS    SOURCE\n\
             d.example.org  192.0.2.1  workspace\nnote: n\\n\n"
        );
    }

    #[test]
    fn without_a_network_or_a_rule_that_is_said_in_words() {
        for (network, expected) in [
            (
                "none",
                "network  none: programs in the sandbox reach no host",
            ),
            (
                "egress",
                "network  egress, without a rule: no host is reached\n",
            ),
        ] {
            let reply = parse(json!({
                "network": network, "changed": false, "rules": [], "hosts": [], "notices": [],
            }));
            let text = super::reply(&reply, EgressOp::List, true, false);
            assert!(text.starts_with(expected), "{text}");
        }
    }

    #[test]
    fn checks_are_a_table_with_a_sum() {
        let reply = parse(json!({
            "network": "egress", "changed": false, "rules": [], "hosts": [], "notices": [],
            "checks": [
                {"url": "https://a.example.org/", "expected": "allow", "got": "allow", "ok": true, "why": "w", "source": "base"},
                {"url": "tcp://b.example.org:22", "expected": "deny", "got": "failed", "ok": false, "why": "x", "source": "base"},
            ],
        }));
        let text = super::reply(&reply, EgressOp::Verify, true, false);
        assert_eq!(
            text,
            "         URL                     EXPECTED  GOT     WHY\n\
             ok       https://a.example.org/  allow     allow   w\n\
             DIFFERS  tcp://b.example.org:22  deny      failed  x\n\
             1 of 2 are as expected\n"
        );
    }

    #[test]
    fn change_says_what_it_has_reached() {
        let reply = |changed| {
            parse(
                json!({"network": "none", "changed": changed, "rules": [], "hosts": [], "notices": []}),
            )
        };
        let text = |changed, running| super::reply(&reply(changed), EgressOp::Add, running, false);
        assert!(text(true, true).contains("running sandbox"));
        assert_eq!(text(true, false), "written to .umwelt.toml\n");
        assert_eq!(text(false, true), "nothing was changed\n");
    }
}
