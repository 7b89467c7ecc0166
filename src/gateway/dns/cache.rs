//! Answers that are still good. Bounded.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::gateway::dns::Outcome;

const MAX_ENTRIES: usize = 1024;
const MAX_TTL: Duration = Duration::from_secs(300);
/// For answers without addresses.
const NEGATIVE_TTL: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct Cache {
    entries: HashMap<(String, u16), (Instant, Outcome)>,
}

impl Cache {
    /// With the time to live that is left.
    pub(crate) fn find(&self, name: &str, kind: u16, now: Instant) -> Option<Outcome> {
        let (until, outcome) = self.entries.get(&(name.to_owned(), kind))?;
        let left = until
            .checked_duration_since(now)
            .filter(|left| !left.is_zero())?;
        Some(match outcome {
            Outcome::Addresses { addresses, .. } => Outcome::Addresses {
                addresses: addresses.clone(),
                ttl: u32::try_from(left.as_secs()).unwrap_or_default(),
            },
            outcome => outcome.clone(),
        })
    }

    pub(crate) fn keep(&mut self, name: &str, kind: u16, outcome: &Outcome, now: Instant) {
        let life = match outcome {
            Outcome::Failed => return,
            Outcome::Addresses { addresses, ttl } if !addresses.is_empty() => {
                Duration::from_secs(u64::from(*ttl)).min(MAX_TTL)
            }
            _ => NEGATIVE_TTL,
        };
        if life.is_zero() {
            return;
        }
        if self.entries.len() >= MAX_ENTRIES {
            self.entries.retain(|_, (until, _)| *until > now);
        }
        if self.entries.len() >= MAX_ENTRIES
            && let Some(key) = self.entries.keys().next().cloned()
        {
            self.entries.remove(&key);
        }
        self.entries
            .insert((name.to_owned(), kind), (now + life, outcome.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::dns::message::A;

    fn found(ttl: u32) -> Outcome {
        Outcome::Addresses {
            addresses: vec!["192.0.2.1".parse().unwrap()],
            ttl,
        }
    }

    #[test]
    fn answers_live_as_long_as_they_say_within_bounds() {
        let mut cache = Cache::default();
        let now = Instant::now();
        cache.keep("a", A, &found(10), now);
        cache.keep("b", A, &found(100_000), now);
        cache.keep("c", A, &found(0), now);
        cache.keep("d", A, &Outcome::NoSuchName, now);
        cache.keep("e", A, &Outcome::Failed, now);
        let find = |name: &str, after: u64| cache.find(name, A, now + Duration::from_secs(after));
        assert_eq!(find("a", 4), Some(found(6)));
        assert_eq!(find("a", 10), None);
        assert!(find("b", 299).is_some() && find("b", 301).is_none());
        assert_eq!((find("c", 0), find("e", 0)), (None, None));
        assert!(find("d", 4).is_some() && find("d", 6).is_none());
    }

    #[test]
    fn the_cache_is_bounded() {
        let mut cache = Cache::default();
        let now = Instant::now();
        for number in 0..3 * MAX_ENTRIES {
            cache.keep(&number.to_string(), A, &found(60), now);
        }
        assert!(cache.entries.len() <= MAX_ENTRIES);
    }
}
