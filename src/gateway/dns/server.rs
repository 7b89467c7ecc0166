//! A question from the sandbox -> what to do about it. Pure but for the rules
//! that are asked.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::gateway::dns::Outcome;
use crate::gateway::dns::message::{self, A, AAAA, Code, Query, QueryError};
use crate::policy::decide::Rules;

/// For fixed addresses, and at most for others.
const TTL: u32 = 60;
/// The same question and verdict is recorded once in this time.
const FOLD: Duration = Duration::from_secs(10);
const MAX_FOLDED: usize = 512;

/// What to do about a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Ignore,
    /// Answer at once; with the name that is denied, for the record.
    Answer(Vec<u8>, Option<String>),
    Resolve(Query, String),
}

/// Answers about names that the policy names, and no others: an open resolver
/// is a way out.
pub(crate) fn judge(message: &[u8], rules: &Rules, over_udp: bool) -> Verdict {
    let query = match message::parse_query(message) {
        Ok(query) => query,
        Err(QueryError::Ignore) => return Verdict::Ignore,
        Err(QueryError::Answer { id, code }) => {
            return Verdict::Answer(message::bare_answer(id, code), None);
        }
    };
    let answer = |code, addresses: &[IpAddr]| query.answer(code, addresses, TTL, over_udp);
    if !query.is_internet {
        return Verdict::Answer(answer(Code::Refused, &[]), query.name);
    }
    let Some(name) = query.name.clone().filter(|name| rules.names(name)) else {
        let denied = query
            .name
            .clone()
            .unwrap_or_else(|| "(not a host name)".to_owned());
        return Verdict::Answer(answer(Code::NoSuchName, &[]), Some(denied));
    };
    if !matches!(query.kind, A | AAAA) {
        return Verdict::Answer(answer(Code::NoError, &[]), None);
    }
    match rules.fixed(&name) {
        Some(fixed) => {
            let wanted: Vec<IpAddr> = fixed
                .iter()
                .copied()
                .filter(|address| address.is_ipv4() == (query.kind == A))
                .collect();
            Verdict::Answer(answer(Code::NoError, &wanted), None)
        }
        None => Verdict::Resolve(query, name),
    }
}

/// The answer with what the resolver knows.
pub(crate) fn answer(query: &Query, outcome: &Outcome, over_udp: bool) -> Vec<u8> {
    match outcome {
        Outcome::Addresses { addresses, ttl } => {
            query.answer(Code::NoError, addresses, (*ttl).min(TTL), over_udp)
        }
        Outcome::NoSuchName => query.answer(Code::NoSuchName, &[], 0, over_udp),
        Outcome::Failed => query.answer(Code::ServerFailure, &[], 0, over_udp),
    }
}

/// Keeps a client that asks again and again from filling the audit.
#[derive(Debug, Default)]
pub(crate) struct Folding {
    seen: HashMap<(String, bool), Instant>,
}

impl Folding {
    pub(crate) fn is_new(&mut self, name: &str, allowed: bool, now: Instant) -> bool {
        if self.seen.len() >= MAX_FOLDED {
            self.seen
                .retain(|_, since| now.duration_since(*since) < FOLD);
        }
        if self.seen.len() >= MAX_FOLDED {
            self.seen.clear();
        }
        match self.seen.get(&(name.to_owned(), allowed)) {
            Some(since) if now.duration_since(*since) < FOLD => false,
            _ => {
                self.seen.insert((name.to_owned(), allowed), now);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        Rules::from_json(
            br#"{"version":1,"workspace":"0123abcd","https":[{"host":"*.example.org","port":443,"paths":["*"],"methods":null,"inspect":true,"private":false,"origin":"base"}],"tcp":[],"hosts":[{"name":"fixed.example.com","address":"192.0.2.9","origin":"base"}]}"#,
        )
        .unwrap()
    }

    fn ask(name: &str, kind: u16) -> Verdict {
        judge(
            &message::question(1, name, kind, false).unwrap(),
            &rules(),
            true,
        )
    }

    fn code(verdict: &Verdict) -> u8 {
        match verdict {
            Verdict::Answer(bytes, _) => bytes[3] & 0xf,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_outside_of_the_policy_do_not_exist() {
        for name in [
            "example.org",
            "a.example.com",
            "secret.data.attacker.example",
            "org",
        ] {
            let verdict = ask(name, A);
            assert_eq!(code(&verdict), 3, "{name}");
            assert!(matches!(verdict, Verdict::Answer(_, Some(denied)) if denied == name));
        }
    }

    #[test]
    fn names_of_the_policy_are_resolved_or_fixed() {
        assert!(
            matches!(ask("A.example.org", A), Verdict::Resolve(_, name) if name == "a.example.org")
        );
        let Verdict::Answer(bytes, None) = ask("fixed.example.com", A) else {
            panic!()
        };
        let read = message::parse_response(&bytes, 1, "fixed.example.com", A).unwrap();
        assert_eq!(read.addresses, ["192.0.2.9".parse::<IpAddr>().unwrap()]);
        let Verdict::Answer(bytes, None) = ask("fixed.example.com", AAAA) else {
            panic!()
        };
        let read = message::parse_response(&bytes, 1, "fixed.example.com", AAAA).unwrap();
        assert!(read.addresses.is_empty());
    }

    #[test]
    fn other_kinds_of_records_do_not_exist() {
        for kind in [5, 15, 16, 65, 255] {
            let verdict = ask("a.example.org", kind);
            assert_eq!(code(&verdict), 0);
            assert!(matches!(verdict, Verdict::Answer(_, None)));
            assert_eq!(code(&ask("a.example.com", kind)), 3);
        }
    }

    #[test]
    fn repeated_questions_are_folded_for_a_while() {
        let mut folding = Folding::default();
        let now = Instant::now();
        assert!(folding.is_new("a", false, now));
        assert!(!folding.is_new("a", false, now + FOLD / 2));
        assert!(folding.is_new("a", true, now));
        assert!(folding.is_new("a", false, now + FOLD));
        for number in 0..3 * MAX_FOLDED {
            folding.is_new(&number.to_string(), false, now);
        }
        assert!(folding.seen.len() <= MAX_FOLDED);
    }
}
