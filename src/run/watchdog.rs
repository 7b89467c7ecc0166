//! When a container that died may be created again. Pure.

use std::time::Duration;

/// A container that lived this long ended the series of failures.
const HEALTHY: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(30);

/// Counts failures in a row.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The container died after `lived`; how long to wait.
    pub(crate) fn after_death(&mut self, lived: Duration) -> Duration {
        if lived >= HEALTHY {
            self.failures = 0;
        }
        self.after_failure()
    }

    /// It could not be created; how long to wait. The first try is at once,
    /// then a second, two, four, up to `LONGEST`.
    pub(crate) fn after_failure(&mut self) -> Duration {
        let wait = match self.failures {
            0 => Duration::ZERO,
            failures => Duration::from_secs(1 << (failures - 1).min(5)).min(LONGEST),
        };
        self.failures = self.failures.saturating_add(1);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deaths_in_a_row_wait_longer_and_longer() {
        let mut backoff = Backoff::default();
        let waits: Vec<u64> = (0..9)
            .map(|_| backoff.after_death(Duration::from_secs(1)).as_secs())
            .collect();
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 30, 30, 30]);
    }

    #[test]
    fn a_long_life_starts_anew() {
        let mut backoff = Backoff::default();
        backoff.after_death(Duration::ZERO);
        backoff.after_failure();
        assert_eq!(backoff.after_death(HEALTHY), Duration::ZERO);
    }
}
