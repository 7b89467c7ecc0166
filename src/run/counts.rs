//! What the rules of the network have counted, read now and then while
//! something runs, and once more before the sandbox goes. The lines are those
//! of `egress::kernel_log`.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::egress::kernel_log::KernelLog;
use crate::nft::readback;
use crate::nft::table::Counts;
use crate::run::control_plane::ControlPlane;
use crate::run::lifecycle::{AfterRemoval, Phase, TaskKind};
use crate::run::poller::Timer;
use crate::run::task::Finished;

const EVERY: Duration = Duration::from_secs(30);
/// Whoever asks for the status all the time does not start nft all the time.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(20);
/// The end of a sandbox waits for it.
const LAST_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Counting {
    log: KernelLog,
    last: Option<Instant>,
    is_under_way: bool,
    /// The sandbox goes when it is read, and so it goes on.
    then: Option<AfterRemoval>,
    /// The reading under way began before the end: one more follows.
    is_early: bool,
    /// It was read for the last time.
    is_last: bool,
    /// Said once.
    has_failed: bool,
}

impl Counting {
    pub(crate) fn new(audit: &Path, sid: &str) -> Counting {
        Counting {
            log: KernelLog::new(audit, sid),
            last: None,
            is_under_way: false,
            then: None,
            is_early: false,
            is_last: false,
            has_failed: false,
        }
    }

    /// For a sandbox of which the rules were confirmed with these.
    pub(crate) fn begin(&mut self, counts: Counts) {
        self.log.begin(counts);
        self.last = Some(Instant::now());
        self.is_under_way = false;
        self.is_early = false;
        self.is_last = false;
    }

    /// Whether anything new was told.
    fn take(&mut self, finished: Option<&Finished>) -> Result<bool, String> {
        let finished = finished.ok_or("it did not end")?;
        if !finished.status.success() {
            return Err(finished.last_words().to_owned());
        }
        let found = readback::parse(&finished.stdout).map_err(|error| error.to_string())?;
        let told = self.log.tell(found.counts);
        told.map_err(|error| format!("they cannot be written: {error}"))
    }
}

impl ControlPlane {
    /// A command begins: what it tries will be read.
    pub(crate) fn watch_counts(&mut self) {
        if self.egress.is_some() && !self.poller.is_set(Timer::Counts) {
            self.poller.set(Timer::Counts, EVERY);
        }
    }

    /// Somebody looks: what is there is read soon.
    pub(crate) fn hurry_counts(&mut self) {
        let Some(egress) = &self.egress else {
            return;
        };
        let elapsed = egress.counting.last.map(|last| last.elapsed());
        match elapsed.and_then(|elapsed| AT_MOST_EVERY.checked_sub(elapsed)) {
            None => self.read_counts(),
            Some(rest) => self.poller.set(Timer::Counts, rest),
        }
    }

    pub(crate) fn read_counts(&mut self) {
        self.begin_reading(LIMIT);
    }

    /// Whether a reading is under way now.
    fn begin_reading(&mut self, limit: Duration) -> bool {
        let (Some(egress), Some(verified)) = (&self.egress, self.verified()) else {
            return false;
        };
        if egress.counting.is_under_way {
            return true;
        }
        let task = self.read_back_task(egress, verified);
        let number = self.container;
        let is_under_way = match task {
            Ok(task) => {
                self.add_task(task, TaskKind::Counts(number), limit);
                true
            }
            Err(error) => {
                self.counts_failed(&error.to_string());
                false
            }
        };
        if let Some(egress) = &mut self.egress {
            egress.counting.is_under_way = is_under_way;
        }
        is_under_way
    }

    pub(crate) fn counts_read(&mut self, number: u64, finished: Option<&Finished>) {
        if number != self.container {
            return;
        }
        let Some(egress) = &mut self.egress else {
            return;
        };
        let counting = &mut egress.counting;
        counting.is_under_way = false;
        counting.last = Some(Instant::now());
        let told = counting.take(finished);
        let is_early = std::mem::take(&mut counting.is_early);
        let is_new = match told {
            Ok(is_new) => is_new,
            Err(why) => {
                self.counts_failed(&why);
                false
            }
        };
        if is_early && self.begin_reading(LAST_LIMIT) {
            return;
        }
        let then = self.egress.as_mut().and_then(|e| e.counting.then.take());
        if let Some(next) = then {
            return self.count_done(next);
        }
        // An idle sandbox is left alone.
        match is_new || !self.jobs.is_empty() || !self.lingering.is_empty() {
            true => self.poller.set(Timer::Counts, EVERY),
            false => self.poller.unset(Timer::Counts),
        }
    }

    fn counts_failed(&mut self, why: &str) {
        if let Some(egress) = &mut self.egress
            && !std::mem::replace(&mut egress.counting.has_failed, true)
        {
            log::error!("what the network's rules have counted is not on record: {why}");
        }
    }

    /// The sandbox is to go. Hands `next` back where nothing is to be read
    /// before; else it follows when that is done.
    pub(crate) fn count_before(&mut self, next: AfterRemoval) -> Option<AfterRemoval> {
        self.poller.unset(Timer::Counts);
        let is_there = matches!(self.phase, Phase::Running(_)) && self.channel.is_some();
        let Some(egress) = &mut self.egress else {
            return Some(next);
        };
        let counting = &mut egress.counting;
        if !is_there || std::mem::take(&mut counting.is_last) {
            counting.then = None;
            return Some(next);
        }
        if counting.then.is_some() {
            counting.then = Some(next);
            return None;
        }
        counting.is_early = counting.is_under_way;
        if !self.begin_reading(LAST_LIMIT) {
            return Some(next);
        }
        if let Some(egress) = &mut self.egress {
            egress.counting.then = Some(next);
        }
        None
    }

    fn count_done(&mut self, next: AfterRemoval) {
        if let Some(egress) = &mut self.egress {
            egress.counting.is_last = true;
        }
        self.remove_then(next);
    }
}
