//! The terminal that we run on: raw while a program inside drives it, and put
//! back whatever happens.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, Once, PoisonError};

use rustix::termios::{OptionalActions, Termios};

/// How the terminal was, for whoever puts it back: the guard, or the panic
/// hook, since the release build ends on a panic without running any drop.
static BEFORE: Mutex<Option<(OwnedFd, Termios)>> = Mutex::new(None);
static HOOK: Once = Once::new();

/// The terminal is raw as long as this lives.
#[derive(Debug)]
pub(crate) struct RawMode {
    terminal: OwnedFd,
    raw: Termios,
}

impl RawMode {
    pub(crate) fn enter(terminal: BorrowedFd<'_>) -> io::Result<RawMode> {
        let before = rustix::termios::tcgetattr(terminal)?;
        let mut raw = before.clone();
        raw.make_raw();
        let guard = RawMode {
            terminal: terminal.try_clone_to_owned()?,
            raw,
        };
        let saved = (terminal.try_clone_to_owned()?, before);
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(saved);
        HOOK.call_once(|| {
            let next = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                restore();
                next(info);
            }));
        });
        guard.again()?;
        Ok(guard)
    }

    /// Makes it raw again, after the shell that stopped us has changed it.
    pub(crate) fn again(&self) -> io::Result<()> {
        rustix::termios::tcsetattr(&self.terminal, OptionalActions::Now, &self.raw)?;
        Ok(())
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

/// Does not wait for the lock: it runs in a panic, too.
fn restore() {
    let before = match BEFORE.try_lock() {
        Ok(mut before) => before.take(),
        Err(_) => None,
    };
    if let Some((terminal, before)) = before {
        // A terminal that is gone needs no restoring.
        let _gone = rustix::termios::tcsetattr(&terminal, OptionalActions::Now, &before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pty::OpenptFlags;
    use rustix::termios::LocalModes;
    use std::os::fd::AsFd;

    fn is_raw(terminal: &OwnedFd) -> bool {
        let modes = rustix::termios::tcgetattr(terminal).unwrap().local_modes;
        !modes.intersects(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG)
    }

    // One test, because all of a process share the terminal that is put back.
    #[test]
    fn terminal_is_put_back_at_the_end_and_in_a_panic() {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let master = rustix::pty::openpt(flags).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        let terminal = rustix::pty::ioctl_tiocgptpeer(&master, flags).unwrap();
        assert!(!is_raw(&terminal));
        let guard = RawMode::enter(terminal.as_fd()).unwrap();
        assert!(is_raw(&terminal));
        drop(guard);
        assert!(!is_raw(&terminal));

        let guard = RawMode::enter(terminal.as_fd()).unwrap();
        let thread = std::thread::spawn(|| panic!("on purpose"));
        assert!(thread.join().is_err());
        assert!(!is_raw(&terminal), "the panic hook has not put it back");
        drop(guard);
    }
}
