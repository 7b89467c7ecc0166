//! `[[egress.expect]]` -> what the prober inside is to try, and what it has
//! found -> a table. Pure.

use serde::{Deserialize, Serialize};

use crate::api::CheckEntry;
use crate::config::expect::{Expectation, Target, Verdict};
use crate::text::printable;

/// Most expectations that are tried at once.
pub(crate) const MAX_CHECKS: usize = 1000;
/// Longest reason that is taken from inside.
const MAX_WHY: usize = 300;
/// Most lines of a message.
const MAX_SHOWN: usize = 20;

/// What umwelt-run asks for, as JSON on the prober's stdin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Order {
    pub(crate) checks: Vec<Check>,
    /// Seconds for all of them.
    pub(crate) limit_s: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Check {
    Https {
        host: String,
        port: u16,
        path: String,
    },
    Tcp {
        host: String,
        port: u16,
    },
}

/// What became of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Got {
    Allow,
    Deny,
    /// Neither: it was not refused, and did not get there.
    Failed,
}

impl Got {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Got::Allow => "allow",
            Got::Deny => "deny",
            Got::Failed => "failed",
        }
    }
}

/// One line of the prober: what `check`, by its number, has come to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Finding {
    pub(crate) check: usize,
    pub(crate) got: Got,
    pub(crate) why: String,
}

impl From<&Target> for Check {
    fn from(target: &Target) -> Check {
        match target {
            Target::Https { host, port, path } => Check::Https {
                host: host.to_string(),
                port: *port,
                path: path.clone(),
            },
            Target::Tcp { host, port } => Check::Tcp {
                host: host.to_string(),
                port: *port,
            },
        }
    }
}

/// The words of the prober are those of a process inside: what is no finding
/// is passed over, and the first one of a check stands.
pub(crate) fn entries(expectations: &[Expectation], output: &[u8]) -> Vec<CheckEntry> {
    let mut found: Vec<Option<Finding>> = vec![None; expectations.len()];
    for line in output.split(|byte| *byte == b'\n') {
        if let Ok(finding) = serde_json::from_slice::<Finding>(line)
            && let Some(place) = found.get_mut(finding.check)
        {
            place.get_or_insert(finding);
        }
    }
    let both = expectations.iter().zip(found);
    both.map(|(expectation, finding)| entry(expectation, finding))
        .collect()
}

fn entry(expectation: &Expectation, finding: Option<Finding>) -> CheckEntry {
    let (got, why) = match finding {
        Some(finding) => (finding.got, finding.why),
        None => (Got::Failed, "it was not tried in time".to_owned()),
    };
    let expected = expectation.verdict;
    CheckEntry {
        url: expectation.target.to_string(),
        expected,
        got,
        ok: matches!(
            (expected, got),
            (Verdict::Allow, Got::Allow) | (Verdict::Deny, Got::Deny)
        ),
        why: printable(&why).chars().take(MAX_WHY).collect(),
        source: expectation.origin.to_string(),
    }
}

/// For a message: those that are not as expected, one a line.
pub(crate) fn render_different(checks: &[CheckEntry]) -> String {
    let different: Vec<&CheckEntry> = checks.iter().filter(|check| !check.ok).collect();
    let shown = different.iter().take(MAX_SHOWN);
    let mut lines: Vec<String> = shown
        .map(|check| {
            let (expected, got) = (check.expected.as_str(), check.got.as_str());
            let (url, why) = (&check.url, &check.why);
            format!("  {url}  expected: {expected}  got: {got}  ({why})")
        })
        .collect();
    let rest = different.len().saturating_sub(MAX_SHOWN);
    if rest > 0 {
        lines.push(format!("  and {rest} more"));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::egress::RuleOrigin;

    fn expect(url: &str, verdict: Verdict) -> Expectation {
        Expectation {
            target: Target::parse(url).unwrap(),
            verdict,
            origin: RuleOrigin::Workspace,
        }
    }

    fn two() -> [Expectation; 2] {
        [
            expect("https://a.example.org/x", Verdict::Allow),
            expect("tcp://[2001:db8::1]:22", Verdict::Deny),
        ]
    }

    fn results(output: &str) -> Vec<(Got, bool)> {
        let entries = entries(&two(), output.as_bytes());
        entries.iter().map(|entry| (entry.got, entry.ok)).collect()
    }

    #[test]
    fn findings_are_told_by_number_and_the_first_one_stands() {
        let output = "{\"check\":1,\"got\":\"deny\",\"why\":\"\"}\n{\"check\":0,\"got\":\"allow\",\"why\":\"200\"}\n{\"check\":1,\"got\":\"allow\",\"why\":\"\"}\n";
        assert_eq!(results(output), [(Got::Allow, true), (Got::Deny, true)]);
        let other = output.replace("deny", "x").replace("allow", "deny");
        assert_eq!(results(&other), [(Got::Deny, false), (Got::Deny, true)]);
    }

    #[test]
    fn what_did_not_get_there_is_neither_allowed_nor_denied() {
        let failed = [(Got::Failed, false), (Got::Failed, false)];
        for output in [
            "",
            "x\n[]\n{\"check\":2,\"got\":\"allow\",\"why\":\"\"}",
            "{\"check\":0,\"got\":\"failed\",\"why\":\"\"}\n{\"check\":1,\"got\":\"failed\",\"why\":\"\"}",
            "{\"check\":0,\"got\":\"allow\"}",
        ] {
            assert_eq!(results(output), failed, "{output}");
        }
    }

    #[test]
    fn words_from_inside_are_cut_and_made_harmless() {
        let why = format!("\u{1b}[2J{}", "x".repeat(10_000));
        let finding = Finding {
            check: 0,
            got: Got::Deny,
            why,
        };
        let line = serde_json::to_vec(&finding).unwrap();
        let entries = entries(&two(), &line);
        assert!(entries[0].why.starts_with("\\x1b[2J") && entries[0].why.len() <= MAX_WHY);
        let message = render_different(&entries);
        assert_eq!(message.lines().count(), 2);
        let second =
            "  tcp://[2001:db8::1]:22  expected: deny  got: failed  (it was not tried in time)";
        assert_eq!(message.lines().last(), Some(second));
    }

    #[test]
    fn an_order_reads_back_as_it_was_written() {
        let order = Order {
            checks: two().iter().map(|e| Check::from(&e.target)).collect(),
            limit_s: 9,
        };
        let text = serde_json::to_string(&order).unwrap();
        assert_eq!(serde_json::from_str::<Order>(&text).unwrap(), order);
    }
}
