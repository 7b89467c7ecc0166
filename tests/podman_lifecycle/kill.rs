//! kill -9 of every process that takes part, at any moment of a start.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Signal;
use serde_json::json;

use crate::podman_common::sandbox::Place;
use crate::podman_common::{Client, Options, PATIENCE, host};
use crate::run::{Run, send};
use crate::traces::{assert_gone, assert_no_orphan, inits, processes};

/// splitmix64: random enough for moments.
struct Random(u64);

impl Random {
    /// Its seed is printed, and can be given.
    fn new(salt: u64) -> Random {
        static SEED: OnceLock<u64> = OnceLock::new();
        let seed = *SEED.get_or_init(|| {
            let given = std::env::var("UMWELT_TEST_SEED").ok();
            given.map_or_else(clock, |text| text.parse().expect("a number"))
        });
        eprintln!("UMWELT_TEST_SEED={seed}");
        Random(seed.wrapping_add(salt))
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % limit
    }

    fn moment(&mut self, within: Duration) -> Duration {
        Duration::from_millis(self.below(u64::try_from(within.as_millis()).unwrap().max(1)))
    }
}

fn clock() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap().as_secs()
}

#[derive(Debug, Clone, Copy)]
enum Victim {
    /// `podman run`.
    Podman,
    Conmon,
    /// pid 1 of the sandbox.
    Init,
}

impl Victim {
    fn pids(self, run: &Run<'_>) -> Vec<u32> {
        match self {
            Victim::Podman => processes(run.place, "podman run"),
            Victim::Conmon => processes(run.place, "/usr/bin/conmon"),
            Victim::Init => inits(run.place),
        }
    }

    /// Waits for it, and then as long as `delay`; false when it was gone.
    fn kill_after(self, delay: Duration, run: &mut Run<'_>) -> bool {
        let end = Instant::now() + PATIENCE;
        while self.pids(run).is_empty() {
            assert!(Instant::now() < end, "no {self:?}: {}", run.log());
            if run.try_ended().is_some() || run.log().contains(" is ready for ") {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(delay);
        let pids = self.pids(run);
        for pid in &pids {
            send(*pid, Signal::KILL);
        }
        !pids.is_empty()
    }
}

/// A start of which nothing is killed, and how long it takes.
fn undisturbed(place: &Place) -> Duration {
    let begin = Instant::now();
    let _run = Run::ready(place);
    begin.elapsed()
}

/// The next start must work, whatever the last one has left.
fn assert_next_start_works(place: &Place) {
    let mut next = Run::ready(place);
    assert_eq!(next.client().output("echo works"), "works\n");
    // Quicker than an orderly end, and one more thing to get over.
    next.kill();
}

/// A command may meet the death of pid 1, before it began or later; it is told
/// so, and the next works.
pub(crate) fn assert_works_soon(client: &mut Client) {
    match client.call("shell", json!({"command": "echo works"})) {
        Ok(first) if first["ended"] != "lost" => {
            assert_eq!(first["output"], "works\n", "{first}");
            return;
        }
        Ok(_) => {}
        Err(error) => assert_eq!(error["hint"], "send the command again", "{error}"),
    }
    assert_eq!(client.output("echo works"), "works\n");
}

#[test]
fn control_plane_killed_at_any_moment_leaves_no_orphan() {
    if !host::qualifies() {
        return;
    }
    let place = Place::new(Options::default());
    let mut random = Random::new(1);
    let whole = undisturbed(&place);
    for round in 0..10 {
        let mut run = Run::begin(&place);
        let moment = random.moment(whole * 11 / 10);
        std::thread::sleep(moment);
        run.kill();
        // Some starts follow at once, into the work of what was left alone.
        let patient = random.below(2) == 0;
        eprintln!("round {round}: killed after {moment:?} of {whole:?}, patient: {patient}");
        if patient {
            assert_no_orphan(&place);
        }
        assert_next_start_works(&place);
    }
    assert_no_orphan(&place);
    Run::ready(&place).stop();
    assert_gone(&place);
}

#[test]
fn helpers_killed_at_any_moment_of_a_start_are_got_over() {
    if !host::qualifies() {
        return;
    }
    let place = Place::new(Options::default());
    let mut random = Random::new(2);
    let whole = undisturbed(&place);
    let victims = [Victim::Podman, Victim::Podman, Victim::Conmon, Victim::Init];
    for (round, victim) in victims.iter().cycle().take(16).enumerate() {
        let mut run = Run::begin(&place);
        let within = match victim {
            Victim::Conmon | Victim::Init => whole / 3,
            _ => whole * 2 / 3,
        };
        let delay = random.moment(within);
        let killed = victim.kill_after(delay, &mut run);
        // It may have come up again, or have given up with a reason.
        let outcome = run.wait_ready();
        eprintln!("round {round}: {victim:?} after {delay:?}, killed: {killed}, {outcome:?}");
        if let Err(status) = outcome {
            assert_eq!(status.code(), Some(1), "{}", run.log());
            assert!(
                killed && run.log().contains("umwelt-run: "),
                "{}",
                run.log()
            );
        } else {
            assert_works_soon(&mut run.client());
        }
        run.kill();
        assert_no_orphan(&place);
    }
    assert_next_start_works(&place);
    Run::ready(&place).stop();
    assert_gone(&place);
}

#[test]
fn control_plane_killed_while_it_stops_leaves_no_orphan() {
    if !host::qualifies() {
        return;
    }
    let place = Place::new(Options::default());
    let mut random = Random::new(3);
    for round in 0..4 {
        let mut run = Run::ready(&place);
        run.signal(Signal::TERM);
        let moment = random.moment(Duration::from_millis(1500));
        std::thread::sleep(moment);
        run.kill();
        eprintln!("round {round}: killed {moment:?} after SIGTERM");
        assert_no_orphan(&place);
    }
    Run::ready(&place).stop();
    assert_gone(&place);
}
