//! `umwelt-ctl shell`: a program on a terminal inside, shown on ours.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;

use rustix::fs::{FileType, OFlags};
use rustix::termios::Winsize;
use signal_hook::consts::{SIGCONT, SIGWINCH};

use crate::api::{Call, Terminal};
use crate::cli::args::{Args, Operands, Subcommand};
use crate::ctl::CtlError;
use crate::ctl::channel::{Channel, End};
use crate::ctl::place::Place;
use crate::ctl::session::{Ending, News, Session};
use crate::error::Error;
use crate::sys::terminal::RawMode;

pub(super) const SUBCOMMAND: Subcommand = Subcommand {
    name: "shell",
    help: "\
Usage: umwelt-ctl shell [--cwd DIR] [WORKSPACE] [-- CMD [ARG…]]

Opens an interactive shell, or runs CMD on a terminal, in the sandbox of
WORKSPACE, and starts the sandbox if it does not run. Left out, WORKSPACE is the
current directory. Keys, also ^C, go to the program inside.

Options:
      --cwd DIR  start in DIR, absolute or relative to the workspace
  -h, --help     print this help and exit
  -V, --version  print the version and exit

Exit status: that of the shell or of CMD, 128 + N where signal N ended it, 1
where it could not be run or was lost, 2 for wrong usage.
",
    flags: &[],
    values: &["cwd"],
    operands: Operands::WorkspaceAndCommand,
    run,
};

/// The number of /dev/ptmx, and of each master that was opened through it.
const PTMX: (u32, u32) = (5, 2);
const MAX_TERM: usize = 64;

/// `exec --tty` as well.
pub(super) fn run(args: Args) -> Result<ExitCode, Error> {
    let stdin = rustix::stdio::stdin();
    if !rustix::termios::isatty(stdin) {
        return Err(CtlError::NotATerminal.into());
    }
    let client = Place::load()?.open(args.workspace())?;
    let size = size_of(stdin);
    let call = Call::Terminal(Terminal {
        argv: args.command_texts()?,
        cwd: args.text("cwd")?,
        rows: size.ws_row,
        cols: size.ws_col,
        term: term(std::env::var("TERM").ok()),
    });
    let mut session = Session::start(client, call, &[], &[SIGWINCH, SIGCONT])?;
    let ending = match open(&mut session)? {
        Opened::Master(master) => drive(&mut session, &master, stdin)?,
        Opened::Ended(ending) => ending,
    };
    session.tell_notices();
    Ok(ending.exit_code()?)
}

enum Opened {
    Master(OwnedFd),
    Ended(Ending),
}

fn open(session: &mut Session) -> Result<Opened, Error> {
    loop {
        match session.next(&mut [])? {
            News::Terminal(fds) => return Ok(Opened::Master(check_master(fds)?)),
            News::Ended(ending) => return Ok(Opened::Ended(ending)),
            News::Signal(_) => {}
        }
    }
}

/// What comes in place of a master could make us read or write anything.
fn check_master(fds: Vec<OwnedFd>) -> Result<OwnedFd, CtlError> {
    let mut fds = fds.into_iter();
    let Some(master) = fds.next() else {
        return Err(CtlError::NotAMaster("nothing".to_owned()));
    };
    let refused = |what: &str| Err(CtlError::NotAMaster(what.to_owned()));
    let Ok(stat) = rustix::fs::fstat(&master) else {
        return refused("something unreadable");
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice {
        return refused("a file that is not a device");
    }
    let number = (
        rustix::fs::major(stat.st_rdev),
        rustix::fs::minor(stat.st_rdev),
    );
    if number != PTMX {
        return refused("another device");
    }
    if fds.next().is_some() {
        return refused("more than one descriptor");
    }
    Ok(master)
}

/// Shows the program's terminal on ours until it ends.
fn drive(
    session: &mut Session,
    master: &OwnedFd,
    stdin: BorrowedFd<'static>,
) -> Result<Ending, Error> {
    // Only a second line of defence: the other side holds the same open file,
    // and can take the flag away again.
    let _same = rustix::fs::fcntl_getfl(master)
        .and_then(|flags| rustix::fs::fcntl_setfl(master, flags | OFlags::NONBLOCK));
    let raw =
        RawMode::enter(stdin).map_err(|error| Error::io("set the terminal to raw mode", error))?;
    // It may have changed since the request was sent.
    resize(master, stdin);
    let mut channels = [
        Channel::new(End::Lent(stdin), End::Lent(master.as_fd())),
        Channel::new(
            End::Lent(master.as_fd()),
            End::Lent(rustix::stdio::stdout()),
        ),
    ];
    session.run(&mut channels, |signal| {
        if signal == SIGCONT {
            // The shell that we were stopped from has set its own mode.
            let _gone = raw.again();
        }
        resize(master, stdin);
    })
}

fn resize(master: &OwnedFd, terminal: BorrowedFd<'_>) {
    // A terminal that is gone has no size; the program inside will see its end.
    let _gone = rustix::termios::tcsetwinsize(master, size_of(terminal));
}

/// A terminal that does not know its size says 0.
fn size_of(terminal: BorrowedFd<'_>) -> Winsize {
    let known = rustix::termios::tcgetwinsize(terminal).ok();
    known
        .filter(|size| size.ws_row > 0 && size.ws_col > 0)
        .unwrap_or(Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        })
}

/// The name of our terminal, if it looks like one.
fn term(name: Option<String>) -> String {
    let ok = |name: &String| {
        (1..=MAX_TERM).contains(&name.len())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte))
    };
    name.filter(ok).unwrap_or_else(|| "dumb".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_terminals_pass_and_anything_else_is_dumb() {
        for name in ["xterm-256color", "screen.xterm+x_1"] {
            assert_eq!(term(Some(name.to_owned())), name);
        }
        for name in ["", "a b", "x\x1b", "é", &"x".repeat(65)] {
            assert_eq!(term(Some(name.to_owned())), "dumb");
        }
        assert_eq!(term(None), "dumb");
    }

    #[test]
    fn only_the_master_of_a_terminal_is_taken() {
        let open = |path: &str| OwnedFd::from(std::fs::File::open(path).unwrap());
        assert!(check_master(vec![open("/dev/ptmx")]).is_ok());
        for fds in [
            vec![],
            vec![open("/dev/null")],
            vec![open("/etc/passwd")],
            vec![open("/")],
            vec![open("/dev/ptmx"), open("/dev/null")],
        ] {
            assert!(matches!(check_master(fds), Err(CtlError::NotAMaster(_))));
        }
    }
}
