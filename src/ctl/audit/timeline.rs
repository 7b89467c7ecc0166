//! Times of attempts -> counts in bins of equal width, as many as a picture
//! can show, whatever the span of time. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

/// Most bins; when there are more, they become wider.
pub(super) const MAX_BINS: u64 = 120;
/// A picture of fewer would be all bar.
const MIN_BINS: u64 = 40;
/// Each is a multiple of the one before, so that bins can be put together.
const WIDTHS: [u64; 13] = [
    1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10_800, 21_600, 43_200, 86_400,
];

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Bin {
    pub(super) allowed: u64,
    pub(super) denied: u64,
}

#[derive(Debug)]
pub(super) struct Timeline {
    width: u64,
    /// By time since the epoch, in widths.
    bins: BTreeMap<u64, Bin>,
}

/// All bins of the picture, the empty ones as well.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Seconds since the epoch.
    pub(super) start: u64,
    /// Seconds of one bin.
    pub(super) width: u64,
    pub(super) bins: Vec<Bin>,
}

impl Timeline {
    pub(super) fn new() -> Timeline {
        Timeline {
            width: 1,
            bins: BTreeMap::new(),
        }
    }

    /// A time that is none of ours is left out.
    pub(super) fn add(&mut self, ts: f64, count: u64, is_denied: bool) {
        let Some(second) = seconds(ts) else {
            return;
        };
        let bin = self.bins.entry(second / self.width).or_default();
        let number = if is_denied {
            &mut bin.denied
        } else {
            &mut bin.allowed
        };
        *number = number.saturating_add(count);
        while self
            .extent()
            .is_some_and(|(first, last)| last - first >= MAX_BINS)
        {
            self.widen();
        }
    }

    fn extent(&self) -> Option<(u64, u64)> {
        let first = self.bins.first_key_value()?.0;
        let last = self.bins.last_key_value()?.0;
        Some((*first, *last))
    }

    fn widen(&mut self) {
        let wider = WIDTHS.into_iter().find(|width| *width > self.width);
        let wider = wider.unwrap_or_else(|| self.width.saturating_mul(2));
        let factor = wider / self.width;
        for (at, bin) in std::mem::take(&mut self.bins) {
            let sum = self.bins.entry(at / factor).or_default();
            sum.allowed = sum.allowed.saturating_add(bin.allowed);
            sum.denied = sum.denied.saturating_add(bin.denied);
        }
        self.width = wider;
    }

    pub(super) fn span(&self) -> Option<Span> {
        let (first, last) = self.extent()?;
        let missing = MIN_BINS.saturating_sub(last - first + 1);
        let first = first.saturating_sub(missing / 2);
        let last = last + (missing - missing / 2);
        let bin = |at| self.bins.get(&at).copied().unwrap_or_default();
        Some(Span {
            start: first.saturating_mul(self.width),
            width: self.width,
            bins: (first..=last).map(bin).collect(),
        })
    }
}

/// Whole seconds of a time between 1970 and 9999.
pub(super) fn seconds(ts: f64) -> Option<u64> {
    (0.0..253_402_300_800.0)
        .contains(&ts)
        .then(|| Duration::from_secs_f64(ts).as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(span: &Span) -> (u64, u64) {
        let allowed = span.bins.iter().map(|bin| bin.allowed).sum();
        (allowed, span.bins.iter().map(|bin| bin.denied).sum())
    }

    #[test]
    fn bins_become_wider_and_lose_nothing() {
        let mut timeline = Timeline::new();
        for number in 0..10_000u32 {
            timeline.add(1_767_225_600.0 + f64::from(number * 7), 1, number % 10 == 0);
        }
        let span = timeline.span().unwrap();
        assert_eq!(sums(&span), (9000, 1000));
        assert_eq!((span.width, span.bins.len()), (600, 117));
        assert_eq!(span.start % span.width, 0);
    }

    #[test]
    fn any_order_and_any_span_stay_bounded() {
        let mut timeline = Timeline::new();
        for ts in [2e11, 0.0, 1e9, 5e5, 1e9] {
            timeline.add(ts, 2, false);
        }
        let span = timeline.span().unwrap();
        assert_eq!(sums(&span), (10, 0));
        assert!(span.bins.len() as u64 <= MAX_BINS);
    }

    #[test]
    fn one_moment_stands_in_the_middle() {
        let mut timeline = Timeline::new();
        timeline.add(1000.2, u64::MAX, true);
        timeline.add(1000.9, 1, true);
        let span = timeline.span().unwrap();
        assert_eq!((span.start, span.width, span.bins.len()), (981, 1, 40));
        assert_eq!(span.bins[19].denied, u64::MAX);
    }

    #[test]
    fn what_has_no_time_is_left_out() {
        let mut timeline = Timeline::new();
        for ts in [-1.0, f64::NAN, f64::INFINITY, 1e300] {
            timeline.add(ts, 1, false);
        }
        assert_eq!(timeline.span(), None);
    }
}
