//! `umwelt-ctl exec`: runs a program in a sandbox on our stdin, stdout, stderr.
//!
//! Our own descriptors never go into the sandbox: through /proc/self/fd a
//! program could open the file behind one anew, with other rights, and be out.
//! It gets pipes made for it, and the bytes are carried over.

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use rustix::fs::OFlags;
use rustix::pipe::PipeFlags;

use crate::api::{Call, Exec};
use crate::cli::args::{Args, Operands, Subcommand};
use crate::ctl::NAME;
use crate::ctl::channel::{Channel, End};
use crate::ctl::place::Place;
use crate::ctl::session::{Ending, Session};
use crate::ctl::shell;
use crate::error::Error;

pub(super) const SUBCOMMAND: Subcommand = Subcommand {
    name: "exec",
    help: "\
Usage: umwelt-ctl exec [OPTION…] [WORKSPACE] -- CMD [ARG…]

Runs CMD in the sandbox of WORKSPACE, with standard input, output and error
passed on byte by byte, and starts the sandbox if it does not run. Left out,
WORKSPACE is the current directory. CMD is not read by a shell.

Input is passed on as it comes, whether CMD reads it or not: in a loop that
reads its own input, write < /dev/null.

Options:
      --cwd DIR      start in DIR, absolute or relative to the workspace
  -i, --interactive  pass on standard input, which is always done
  -t, --tty          run CMD on a terminal that is shown here, as shell does
  -h, --help         print this help and exit
  -V, --version      print the version and exit

Exit status: that of CMD, 128 + N where signal N ended it, 1 where CMD could not
be run or was lost, 2 for wrong usage. SIGINT and SIGTERM end CMD, with all that
it has started, and give 130 and 143.
",
    // Of other programs that run a command in a container; the first changes
    // nothing here.
    flags: &["interactive", "tty"],
    values: &["cwd"],
    operands: Operands::WorkspaceAndCommand,
    run,
};

/// Room for a reader and a writer to go on without waiting for each other.
const PIPE_SIZE: usize = 1 << 20;

fn run(args: Args) -> Result<ExitCode, Error> {
    if args.command.is_empty() {
        return Err(Error::usage(format!(
            "no command given; write it after \"--\", as in: {NAME} exec . -- ls"
        )));
    }
    if args.has("tty") {
        return shell::run(args);
    }
    let client = Place::load()?.open(args.workspace())?;
    let (input, input_sink) = pipe()?;
    let (output_source, output) = pipe()?;
    let (error_source, error) = pipe()?;
    let ours = [&input_sink, &output_source, &error_source];
    ours.into_iter().try_for_each(set_nonblocking)?;
    let call = Call::Exec(Exec {
        argv: args.command_texts()?,
        cwd: args.text("cwd")?,
    });
    let theirs = [input.as_fd(), output.as_fd(), error.as_fd()];
    let mut session = Session::start(client, call, &theirs, &[])?;
    // With a copy of their ends here, neither side would see the other leave.
    drop((input, output, error));
    let mut channels = [
        Channel::new(End::Lent(rustix::stdio::stdin()), End::Own(input_sink)),
        Channel::new(End::Own(output_source), End::Lent(rustix::stdio::stdout())),
        Channel::new(End::Own(error_source), End::Lent(rustix::stdio::stderr())),
    ];
    let ending = session.run(&mut channels, |_| {})?;
    session.tell_notices();
    let [_, output, _] = &mut channels;
    match (&ending, output.take_failure()) {
        (Ending::Told(_), Some(failure)) => Err(Error::io("write to standard output", failure)),
        _ => Ok(ending.exit_code()?),
    }
}

fn pipe() -> Result<(OwnedFd, OwnedFd), Error> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)
        .map_err(|error| Error::io("make a pipe", error))?;
    // A user with many pipes may not make one larger; it works as it is.
    let _size = rustix::pipe::fcntl_setpipe_size(&write, PIPE_SIZE);
    Ok((read, write))
}

/// Each end of a pipe has its own flags: the program's end stays as it is.
fn set_nonblocking(fd: &OwnedFd) -> Result<(), Error> {
    rustix::fs::fcntl_getfl(fd)
        .and_then(|flags| rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK))
        .map_err(|error| Error::io("set up a pipe", error))
}
