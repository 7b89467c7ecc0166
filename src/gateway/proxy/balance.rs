//! How busy each worker is -> who takes a new client, and who gives one away.
//!
//! A worker takes whatever comes until it has a processor to itself; only then
//! the next one helps, or from half of one on with what is carried in large pieces. Spread over all from the start, the same work costs more:
//! each wakes for a single event, on a processor that client and server need.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// How often it is looked.
const WINDOW: Duration = Duration::from_millis(10);
/// Thousandths of a processor: up to here a worker can help another.
const FREE: u64 = 600;
/// From here on one with much to carry gives some of it away. What is carried
/// in large pieces loses nothing by a second worker.
const LADEN: u64 = 500;
/// Milliseconds after which a load holds no more: it is told at the end of a turn.
const STALE: u64 = 100;

/// What is known of the load of each worker.
#[derive(Debug)]
pub(crate) struct Loads {
    began: Instant,
    /// From here on a worker wants help.
    full: u64,
    told: Vec<Told>,
}

/// Of one worker.
#[derive(Debug)]
struct Told {
    /// Milliseconds since the start when it was told, above 16 bits of load.
    packed: AtomicU64,
    /// It waits for something to happen.
    asleep: AtomicBool,
}

impl Loads {
    /// `full` is in percent of a processor.
    pub(crate) fn new(count: usize, full: u8) -> Loads {
        let told = || Told {
            packed: AtomicU64::new(0),
            asleep: AtomicBool::new(true),
        };
        Loads {
            began: Instant::now(),
            full: u64::from(full) * 10,
            told: (0..count).map(|_| told()).collect(),
        }
    }

    /// Whether there is a load at which a worker wants help.
    fn may_share(&self) -> bool {
        self.full <= 1000
    }

    pub(crate) fn set_asleep(&self, worker: usize, asleep: bool) {
        if let Some(told) = self.told.get(worker) {
            told.asleep.store(asleep, Ordering::Relaxed);
        }
    }

    fn tell(&self, worker: usize, load: u64, now: Instant) {
        if let Some(told) = self.told.get(worker) {
            let packed = self.since_start(now) << 16 | load;
            told.packed.store(packed, Ordering::Relaxed);
        }
    }

    /// The others whose load is at most `most`, the least busy first.
    fn helpers(&self, worker: usize, most: u64, now: Instant) -> Vec<usize> {
        let now = self.since_start(now);
        let others = self.told.iter().enumerate();
        let loads = others.map(|(other, told)| (told.load(now), other));
        let mut free: Vec<(u64, usize)> = loads
            .filter(|(load, other)| *other != worker && *load <= most)
            .collect();
        free.sort_unstable();
        free.into_iter().map(|(_, other)| other).collect()
    }

    fn since_start(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.began);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX >> 16)
    }
}

impl Told {
    fn load(&self, now: u64) -> u64 {
        let packed = self.packed.load(Ordering::Relaxed);
        let is_old = (packed >> 16) + STALE < now;
        // One that is awake all the time has a long turn, and no time at all.
        match is_old && self.asleep.load(Ordering::Relaxed) {
            true => 0,
            false if is_old => u64::MAX,
            false => packed & 0xffff,
        }
    }
}

/// Measures the load of one worker.
#[derive(Debug)]
pub(crate) struct Meter {
    worker: usize,
    window: Instant,
    /// Time on a processor until then.
    used: Duration,
    is_full: bool,
    /// New clients since this worker is full.
    clients: usize,
    /// Connections that did something in this window.
    active: usize,
    number: u64,
    /// The one of them that was the last to become active.
    newest: usize,
    /// One that carries much.
    laden: Option<usize>,
}

impl Meter {
    pub(crate) fn new(worker: usize, now: Instant) -> Meter {
        Meter {
            worker,
            window: now,
            used: Duration::ZERO,
            is_full: false,
            clients: 0,
            active: 0,
            number: 1,
            newest: 0,
            laden: None,
        }
    }

    /// A connection does something; `seen` is when it did before.
    pub(crate) fn note(&mut self, index: usize, seen: &mut u64) {
        if std::mem::replace(seen, self.number) != self.number {
            self.active += 1;
            self.newest = index;
        }
    }

    /// A connection has carried as much at once as it can.
    pub(crate) fn note_laden(&mut self, index: usize) {
        self.laden = Some(index);
    }

    /// Who takes a new client, if not this worker: all that have time, by turns.
    pub(crate) fn taker(&mut self, loads: &Loads, now: Instant) -> Option<usize> {
        if !self.is_full {
            return None;
        }
        let helpers = loads.helpers(self.worker, FREE, now);
        self.clients = self.clients.wrapping_add(1);
        // This worker has its turn, too.
        helpers.get(self.clients % (helpers.len() + 1)).copied()
    }

    /// At the end of a turn, and once in a while of a window: a connection to be given away, and to whom.
    pub(crate) fn end_window(&mut self, loads: &Loads, now: Instant) -> Option<(usize, usize)> {
        let passed = now.saturating_duration_since(self.window);
        if passed < WINDOW {
            return None;
        }
        let used = used();
        let load = permille(used.saturating_sub(self.used), passed);
        let active = std::mem::take(&mut self.active);
        let laden = self.laden.take();
        self.used = used;
        self.window = now;
        self.number += 1;
        self.is_full = load >= loads.full;
        loads.tell(self.worker, load, now);
        let most = match laden {
            _ if self.is_full => FREE,
            // So much less that it does not come back.
            Some(_) if load >= LADEN && loads.may_share() => FREE.min(load / 2),
            _ => return None,
        };
        // One that is alone would be no better off elsewhere.
        if active < 2 {
            return None;
        }
        let helper = loads.helpers(self.worker, most, now).first().copied()?;
        Some((laden.unwrap_or(self.newest), helper))
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
    fn others_with_time_help_the_least_busy_first() {
        let loads = Loads::new(3, 90);
        let now = Instant::now();
        assert_eq!(loads.helpers(0, FREE, now), [1, 2]);
        loads.tell(1, FREE, now);
        loads.tell(2, FREE - 1, now);
        assert_eq!(loads.helpers(0, FREE, now), [2, 1]);
        loads.tell(2, FREE + 1, now);
        assert_eq!(loads.helpers(0, FREE, now), [1]);
        loads.tell(1, FULL, now);
        assert!(loads.helpers(0, FREE, now).is_empty());
        assert!(Loads::new(1, 90).helpers(0, FREE, now).is_empty());
    }

    #[test]
    fn who_has_not_told_for_long_has_time_if_it_sleeps() {
        let loads = Loads::new(2, 90);
        let now = Instant::now();
        let later = after(now, STALE + 2);
        loads.tell(1, FULL, now);
        assert!(loads.helpers(0, FREE, after(now, STALE)).is_empty());
        assert_eq!(loads.helpers(0, FREE, later), [1]);
        loads.tell(1, 0, now);
        loads.set_asleep(1, false);
        assert!(loads.helpers(0, FREE, later).is_empty());
    }

    /// A window of `load` thousandths of work with three connections ends.
    fn work(
        load: u32,
        loads: &Loads,
        laden: Option<usize>,
        now: Instant,
    ) -> (Meter, Option<(usize, usize)>) {
        let mut meter = Meter::new(0, now);
        meter.used = used();
        let mut work = 0_u64;
        while used() - meter.used < WINDOW {
            work = work.wrapping_mul(31).wrapping_add(1);
        }
        std::hint::black_box(work);
        for index in 0..3 {
            meter.note(index, &mut 0);
        }
        if let Some(index) = laden {
            meter.note_laden(index);
        }
        // Time that this thread did not get is none that has passed.
        meter.window = now - (used() - meter.used) * 1000 / load;
        let given = meter.end_window(loads, now);
        (meter, given)
    }

    #[test]
    fn full_worker_gives_one_of_several_away_and_new_clients_by_turns() {
        let loads = Loads::new(3, 90);
        let (mut meter, given) = work(1000, &loads, None, Instant::now());
        assert_eq!(given, Some((2, 1)));
        let mut takers = || [(); 4].map(|()| meter.taker(&loads, Instant::now()));
        assert_eq!(takers(), [Some(2), None, Some(1), Some(2)]);
        let tire = |worker| {
            loads.tell(worker, FULL, Instant::now());
            loads.set_asleep(worker, false);
        };
        tire(1);
        assert_eq!(takers(), [None, Some(2), None, Some(2)]);
        tire(2);
        assert_eq!(takers(), [None; 4]);
    }

    #[test]
    fn connection_that_carries_much_is_given_away_earlier() {
        let loads = Loads::new(2, 90);
        let now = Instant::now();
        assert_eq!(work(700, &loads, None, now).1, None);
        let (mut meter, given) = work(700, &loads, Some(1), now);
        assert_eq!(given, Some((1, 1)));
        // New clients are not.
        assert_eq!(meter.taker(&loads, now), None);
        assert_eq!(work(400, &loads, Some(1), now).1, None);
        assert_eq!(work(1000, &loads, Some(1), now).1, Some((1, 1)));
        let alone = Loads::new(2, 101);
        assert_eq!(work(1000, &alone, Some(1), now).1, None);
    }

    #[test]
    fn connection_that_carries_much_does_not_come_back() {
        let loads = Loads::new(2, 90);
        let now = Instant::now();
        loads.tell(1, 400, now);
        assert_eq!(work(700, &loads, Some(1), now).1, None);
        loads.tell(1, 300, now);
        assert_eq!(work(700, &loads, Some(1), now).1, Some((1, 1)));
    }

    #[test]
    fn worker_with_one_active_connection_keeps_it() {
        let loads = Loads::new(2, 0);
        let mut meter = Meter::new(0, Instant::now());
        meter.note(0, &mut 0);
        meter.note_laden(0);
        let later = after(Instant::now(), 60_000);
        assert_eq!(meter.end_window(&loads, later), None);
        assert!(meter.is_full);
        meter.note(0, &mut 0);
        meter.note(1, &mut 0);
        let later = after(later, 60_000);
        assert_eq!(meter.end_window(&loads, later), Some((1, 1)));
    }

    #[test]
    fn worker_with_time_takes_all_itself() {
        let loads = Loads::new(2, 90);
        let mut meter = Meter::new(0, Instant::now());
        assert_eq!(meter.taker(&loads, Instant::now()), None);
        meter.note(0, &mut 0);
        meter.note(1, &mut 0);
        let later = after(Instant::now(), 60_000);
        assert_eq!(meter.end_window(&loads, later), None);
        assert_eq!(meter.taker(&loads, later), None);
    }

    #[test]
    fn connection_is_active_once_in_a_window() {
        let mut meter = Meter::new(0, Instant::now());
        let mut seen = 0;
        meter.note(5, &mut seen);
        meter.note(5, &mut seen);
        assert_eq!((meter.active, meter.newest), (1, 5));
    }
}
