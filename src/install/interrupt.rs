//! ^C and its like, for what has to be cleared up before it ends: they are
//! caught, and what is waited for is brought to its end.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

static CAUGHT: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);
static IS_CATCHING: AtomicBool = AtomicBool::new(false);
/// While something is cleared up.
static IS_SHIELDED: AtomicBool = AtomicBool::new(false);

/// From here on until the process ends.
pub(super) fn catch() -> io::Result<()> {
    let ignored = ignored_mask();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // Whoever has them ignored, as nohup(1) does, wants them ignored.
        if ignored & (1 << (signal - 1)) == 0 {
            let number = usize::try_from(signal).unwrap_or_default();
            signal_hook::flag::register_usize(signal, Arc::clone(&CAUGHT), number)?;
        }
    }
    IS_CATCHING.store(true, Ordering::SeqCst);
    Ok(())
}

fn ignored_mask() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
}

/// Whether programs are to be kept out of reach of the terminal's ^C: it is
/// for us to end them.
pub(super) fn is_catching() -> bool {
    IS_CATCHING.load(Ordering::SeqCst)
}

/// The signal that has come.
pub(super) fn caught() -> Option<u8> {
    match CAUGHT.load(Ordering::SeqCst) {
        0 => None,
        signal => u8::try_from(signal).ok(),
    }
}

/// Whether one has come that must not wait.
pub(super) fn is_due() -> bool {
    caught().is_some() && !IS_SHIELDED.load(Ordering::SeqCst)
}

/// Clears up, whatever comes meanwhile.
pub(super) fn shielded<T>(clear_up: impl FnOnce() -> T) -> T {
    let before = IS_SHIELDED.swap(true, Ordering::SeqCst);
    let done = clear_up();
    IS_SHIELDED.store(before, Ordering::SeqCst);
    done
}
