//! How busy each worker is -> who takes a new client, and who gives one away.
//!
//! A worker takes whatever comes until it has a processor to itself; only then
//! the next one helps. Spread over all from the start, the same work costs more:
//! each wakes for a single event, on a processor that client and server need.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// How often it is looked.
const WINDOW: Duration = Duration::from_millis(20);
/// Thousandths of a processor: up to here a worker can help another.
const FREE: u64 = 600;
/// What was told longer ago was told by one that sleeps now.
const STALE: u64 = 100;

/// What each worker has told last: milliseconds since the start, and its load.
#[derive(Debug)]
pub(crate) struct Loads {
    began: Instant,
    /// From here on a worker wants help.
    full: u64,
    told: Vec<AtomicU64>,
}

impl Loads {
    /// `full` is in percent of a processor.
    pub(crate) fn new(count: usize, full: u8) -> Loads {
        Loads {
            began: Instant::now(),
            full: u64::from(full) * 10,
            told: (0..count).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn tell(&self, worker: usize, load: u64, now: Instant) {
        if let Some(told) = self.told.get(worker) {
            told.store(self.since_start(now) << 16 | load, Ordering::Relaxed);
        }
    }

    /// The least busy of the others, if it has time.
    fn helper(&self, worker: usize, now: Instant) -> Option<usize> {
        let now = self.since_start(now);
        let others = self.told.iter().enumerate();
        let loads = others.map(|(other, told)| {
            let told = told.load(Ordering::Relaxed);
            let is_stale = (told >> 16) + STALE < now;
            (if is_stale { 0 } else { told & 0xffff }, other)
        });
        let (load, other) = loads.filter(|(_, other)| *other != worker).min()?;
        (load <= FREE).then_some(other)
    }

    fn since_start(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.began);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX >> 16)
    }
}

/// Of one worker.
#[derive(Debug)]
pub(crate) struct Meter {
    worker: usize,
    window: Instant,
    /// Time on a processor until then.
    used: Duration,
    is_full: bool,
    /// The last new client was one to be given away.
    helped: bool,
    /// Connections that did something in this window.
    active: usize,
    number: u64,
    last: usize,
}

impl Meter {
    pub(crate) fn new(worker: usize, now: Instant) -> Meter {
        Meter {
            worker,
            window: now,
            used: Duration::ZERO,
            is_full: false,
            helped: false,
            active: 0,
            number: 1,
            last: 0,
        }
    }

    /// A connection does something; `seen` is when it did before.
    pub(crate) fn note(&mut self, index: usize, seen: &mut u64) {
        if std::mem::replace(seen, self.number) != self.number {
            self.active += 1;
            self.last = index;
        }
    }

    /// Who takes a new client, if not this worker: every other one is given away.
    pub(crate) fn helper(&mut self, loads: &Loads, now: Instant) -> Option<usize> {
        if !self.is_full {
            return None;
        }
        self.helped = !self.helped;
        loads.helper(self.worker, now).filter(|_| self.helped)
    }

    /// At the end of a turn. A connection to be given away, and to whom.
    pub(crate) fn look(&mut self, loads: &Loads, now: Instant) -> Option<(usize, usize)> {
        let passed = now.saturating_duration_since(self.window);
        if passed < WINDOW {
            return None;
        }
        let used = used();
        let load = permille(used.saturating_sub(self.used), passed);
        let active = std::mem::take(&mut self.active);
        self.used = used;
        self.window = now;
        self.number += 1;
        self.is_full = load >= loads.full;
        loads.tell(self.worker, load, now);
        // One that is alone would be no better off elsewhere.
        let helper = loads.helper(self.worker, now).filter(|_| active > 1);
        helper
            .filter(|_| self.is_full)
            .map(|helper| (self.last, helper))
    }
}

/// Time that this thread has spent on a processor.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

fn permille(part: Duration, whole: Duration) -> u64 {
    let permille = part.as_micros() * 1000 / whole.as_micros().max(1);
    u64::try_from(permille).unwrap_or(1000).min(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: u64 = 900;

    fn after(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    #[test]
    fn least_busy_other_helps_if_it_has_time() {
        let loads = Loads::new(3, 90);
        let now = Instant::now();
        assert_eq!(loads.helper(0, now), Some(1));
        loads.tell(1, FREE, now);
        loads.tell(2, FREE - 1, now);
        assert_eq!(loads.helper(0, now), Some(2));
        loads.tell(2, FREE + 1, now);
        assert_eq!(loads.helper(0, now), Some(1));
        loads.tell(1, FULL, now);
        assert_eq!(loads.helper(0, now), None);
        assert_eq!(Loads::new(1, 90).helper(0, now), None);
    }

    #[test]
    fn who_has_not_told_for_long_sleeps() {
        let loads = Loads::new(2, 90);
        let now = Instant::now();
        loads.tell(1, FULL, now);
        assert_eq!(loads.helper(0, after(now, STALE)), None);
        assert_eq!(loads.helper(0, after(now, STALE + 2)), Some(1));
    }

    /// A meter after a window in which the thread was busy throughout.
    fn full(loads: &Loads, active: usize) -> (Meter, Option<(usize, usize)>) {
        let start = Instant::now();
        let mut meter = Meter::new(0, start);
        let mut seen = vec![0; active];
        let given = loop {
            for (index, seen) in seen.iter_mut().enumerate() {
                meter.note(index, seen);
            }
            // Time that this thread did not get is none that has passed.
            meter.window = Instant::now() - used().saturating_sub(meter.used);
            let given = meter.look(loads, Instant::now());
            if meter.is_full {
                break given;
            }
        };
        (meter, given)
    }

    #[test]
    fn full_worker_gives_one_of_several_away_and_every_other_new_client() {
        let loads = Loads::new(2, 90);
        let (mut meter, given) = full(&loads, 3);
        assert_eq!(given, Some((2, 1)));
        let helpers = [(); 4].map(|()| meter.helper(&loads, Instant::now()));
        assert_eq!(helpers, [Some(1), None, Some(1), None]);
        loads.tell(1, FULL, Instant::now());
        let helpers = [(); 2].map(|()| meter.helper(&loads, Instant::now()));
        assert_eq!(helpers, [None, None]);
    }

    #[test]
    fn worker_with_one_active_connection_keeps_it() {
        let loads = Loads::new(2, 90);
        assert_eq!(full(&loads, 1).1, None);
    }

    #[test]
    fn worker_with_time_takes_all_itself() {
        let loads = Loads::new(2, 90);
        let mut meter = Meter::new(0, Instant::now());
        assert_eq!(meter.helper(&loads, Instant::now()), None);
        meter.note(0, &mut 0);
        meter.note(1, &mut 0);
        let later = after(Instant::now(), 60_000);
        assert_eq!(meter.look(&loads, later), None);
        assert_eq!(meter.helper(&loads, later), None);
    }

    #[test]
    fn connection_is_active_once_in_a_window() {
        let mut meter = Meter::new(0, Instant::now());
        let mut seen = 0;
        meter.note(5, &mut seen);
        meter.note(5, &mut seen);
        assert_eq!((meter.active, meter.last), (1, 5));
    }
}
