//! The descriptors of a spawn packet -> each in its role, and the terminal.
//!
//! All of them are close-on-exec; what a command keeps is placed by number in
//! its own process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use super::child::Failure;
use super::wire::{Spawn, Stage, Stdio};

/// What a command is started with besides its text.
#[derive(Debug)]
pub(super) struct Attachments {
    /// `cgroup.procs` of the command's own cgroup.
    pub(super) cgroup: OwnedFd,
    pub(super) streams: Streams,
    pub(super) script: Option<OwnedFd>,
}

#[derive(Debug)]
pub(super) enum Streams {
    /// stdin, stdout, stderr.
    Pipes([OwnedFd; 3]),
    /// The command's side of the terminal that will be its controlling one.
    Terminal(OwnedFd),
}

impl Attachments {
    /// Gives each descriptor that came with `spawn` its role; the master of a
    /// new terminal is returned beside them. On failure all are closed.
    pub(super) fn from_packet(
        spawn: &Spawn,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(Attachments, Option<OwnedFd>), Failure> {
        let mut descriptors = descriptors.into_iter();
        let mut next = || {
            let missing = Failure::new(Stage::Message, Errno::BADMSG);
            descriptors.next().ok_or(missing)
        };
        let cgroup = next()?;
        let (streams, master) = match spawn.stdio {
            Stdio::Pipes => (Streams::Pipes([next()?, next()?, next()?]), None),
            Stdio::Terminal { rows, cols } => {
                let (master, slave) =
                    open_terminal(rows, cols).map_err(|e| Failure::new(Stage::Terminal, e))?;
                (Streams::Terminal(slave), Some(master))
            }
        };
        let script = spawn.script.then(&mut next).transpose()?;
        if descriptors.next().is_some() {
            return Err(Failure::new(Stage::Message, Errno::INVAL));
        }
        let attachments = Attachments {
            cgroup,
            streams,
            script,
        };
        Ok((attachments, master))
    }

    /// What a process that is in its cgroup still needs, for [`Handed`].
    pub(super) fn streams_and_script(&self) -> Vec<BorrowedFd<'_>> {
        let streams = match &self.streams {
            Streams::Pipes(pipes) => pipes.as_slice(),
            Streams::Terminal(slave) => std::slice::from_ref(slave),
        };
        streams
            .iter()
            .chain(&self.script)
            .map(AsFd::as_fd)
            .collect()
    }
}

/// What a process on standby is handed with its command.
#[derive(Debug)]
pub(super) struct Handed {
    pub(super) streams: Streams,
    pub(super) script: Option<OwnedFd>,
}

impl Handed {
    /// Gives each descriptor its role again.
    pub(super) fn from_order(spawn: &Spawn, descriptors: Vec<OwnedFd>) -> Result<Handed, Failure> {
        let mut descriptors = descriptors.into_iter();
        let mut next = || {
            let missing = Failure::new(Stage::Message, Errno::BADMSG);
            descriptors.next().ok_or(missing)
        };
        let streams = match spawn.stdio {
            Stdio::Pipes => Streams::Pipes([next()?, next()?, next()?]),
            Stdio::Terminal { .. } => Streams::Terminal(next()?),
        };
        let script = spawn.script.then(&mut next).transpose()?;
        Ok(Handed { streams, script })
    }
}

/// Opens a terminal of the container's devpts: its master and its slave.
fn open_terminal(rows: u16, cols: u16) -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags)?;
    rustix::pty::unlockpt(&master)?;
    // Not by its path: that is looked up in a tree which is not ours alone.
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    let size = Winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(&master, size)?;
    Ok((master, slave))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spawn(stdio: Stdio, script: bool) -> Spawn {
        Spawn {
            id: 1,
            argv: vec!["true".to_owned()],
            env: Vec::new(),
            cwd: "/".to_owned(),
            stdio,
            script,
        }
    }

    fn descriptors(count: usize) -> Vec<OwnedFd> {
        let null = std::fs::File::open("/dev/null").unwrap();
        (0..count)
            .map(|_| null.try_clone().unwrap().into())
            .collect()
    }

    fn errno(spawn: &Spawn, count: usize) -> Option<i32> {
        Attachments::from_packet(spawn, descriptors(count))
            .err()
            .map(|failure| failure.errno)
    }

    #[test]
    fn the_number_of_descriptors_must_fit_the_message() {
        let terminal = Stdio::Terminal { rows: 1, cols: 1 };
        for (stdio, script, wanted) in [
            (Stdio::Pipes, false, 4),
            (Stdio::Pipes, true, 5),
            (terminal, false, 1),
            (terminal, true, 2),
        ] {
            let spawn = spawn(stdio, script);
            assert_eq!(errno(&spawn, wanted), None);
            assert_eq!(errno(&spawn, wanted + 1), Some(Errno::INVAL.raw_os_error()));
            for missing in 0..wanted {
                assert_eq!(errno(&spawn, missing), Some(Errno::BADMSG.raw_os_error()));
            }
        }
    }

    #[test]
    fn a_terminal_has_the_asked_size_and_a_slave() {
        let spawn = spawn(Stdio::Terminal { rows: 33, cols: 99 }, false);
        let (attachments, master) = Attachments::from_packet(&spawn, descriptors(1)).unwrap();
        let Streams::Terminal(slave) = attachments.streams else {
            panic!("no terminal");
        };
        let size = rustix::termios::tcgetwinsize(&slave).unwrap();
        assert_eq!((size.ws_row, size.ws_col), (33, 99));
        assert!(rustix::termios::isatty(master.unwrap()));
    }
}
