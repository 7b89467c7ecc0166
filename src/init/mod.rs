//! umwelt-init: pid 1 of the sandbox. Packets on descriptor 3 -> commands,
//! and what becomes of them -> packets.
//!
//! Trusts the control plane alone. The commands have its user id, so nothing
//! here may depend on their good will; when the control plane goes, it goes.

mod attachments;
mod channel;
mod child;
mod process;
mod standby;
pub(crate) mod wire;

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

use mio::unix::pipe::{self, Receiver};
use mio::{Events, Interest, Poll, Token};
use rustix::io::Errno;
use rustix::process::DumpableBehavior;
use signal_hook::consts::SIGCHLD;

use crate::cli::{self, usage};
use crate::error::Error;
use crate::nft::probe::Attempt;
use crate::sys;

use channel::{Channel, Incoming};
use child::Failure;
use process::Commands;
use wire::{FromInit, Stage, ToInit};

const NAME: &str = "umwelt-init";
const HELP: &str = "\
Usage: umwelt-init [--check-egress]

Pid 1 of a sandbox: runs the commands that its control plane asks for over
the socket on descriptor 3, and ends with it. Started by podman for
umwelt-run; of no use from a shell.

Options:
      --check-egress  try what can be reached: an order on stdin, one finding a
                      line on stdout
  -h, --help          print this help and exit
  -V, --version       print the version and exit
";

const CONTROL: Token = Token(0);
const CHILDREN: Token = Token(1);
/// The first of the tokens that `Commands` gives out.
const COMMANDS: Token = Token(2);

/// Most packets taken, and most processes reaped, before the other is looked
/// at again: neither a burst of requests nor a storm of orphans starves it.
const BATCH: usize = 64;
/// Without work for so long, it makes itself small, once.
const REST: Duration = Duration::from_secs(3);

pub(crate) fn main(args: Vec<OsString>) -> Result<ExitCode, Error> {
    let mut parser = lexopt::Parser::from_args(args);
    match parser.next()? {
        None => Init::start()?.serve(),
        Some(lexopt::Arg::Long("check-egress")) => crate::egress::prober::main(),
        Some(lexopt::Arg::Short('h') | lexopt::Arg::Long("help")) => Ok(cli::print(HELP)),
        Some(lexopt::Arg::Short('V') | lexopt::Arg::Long("version")) => Ok(cli::version(NAME)),
        Some(other) => Err(usage::unexpected(&other, NAME, HELP)),
    }
}

#[derive(Debug)]
struct Init {
    poll: Poll,
    channel: Channel,
    commands: Commands,
    /// Readable when a child may have ended.
    children: Receiver,
    /// What an event has announced and a turn has not yet used up: events are
    /// edge-triggered, so they are not announced again.
    packets_due: bool,
    reaping_due: bool,
    /// It has worked since it made itself small.
    is_large: bool,
}

impl Init {
    fn start() -> Result<Init, Error> {
        let what = format!("serve the control plane on descriptor {}", wire::FD);
        let socket = sys::spawn::take_inherited(wire::FD).map_err(|e| Error::io(&what, e))?;
        protect().map_err(|e| Error::io("set up pid 1", e))?;
        let setns_errno = probe_setns(&socket);
        let mut init = Init::open(socket).map_err(|e| Error::io(&what, e))?;
        silence().map_err(|e| Error::io("open \"/dev/null\"", e))?;
        let hello = FromInit::Hello {
            version: wire::VERSION,
            setns_errno,
        };
        init.channel.report(&hello, None);
        Ok(init)
    }

    fn open(socket: OwnedFd) -> io::Result<Init> {
        let poll = Poll::new()?;
        let channel = Channel::new(socket, poll.registry(), CONTROL)?;
        let commands = Commands::new(poll.registry(), COMMANDS)?;
        let (sender, mut children) = pipe::new()?;
        poll.registry()
            .register(&mut children, CHILDREN, Interest::READABLE)?;
        signal_hook::low_level::pipe::register(SIGCHLD, sender)?;
        Ok(Init {
            poll,
            channel,
            commands,
            children,
            packets_due: true,
            reaping_due: false,
            is_large: true,
        })
    }

    /// Serves until the control plane is gone. Whatever still runs then is
    /// killed by the kernel when pid 1 ends.
    fn serve(mut self) -> Result<ExitCode, Error> {
        let lost = |e| Error::io("reach the control plane", e);
        let mut events = Events::with_capacity(BATCH);
        loop {
            self.channel.flush().map_err(lost)?;
            self.wait(&mut events)
                .map_err(|e| Error::io("wait for events", e))?;
            self.reap();
            if self.take_packets().map_err(lost)?.is_break() {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }

    /// Sleeps until something happens, or just looks if work is left over.
    fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        let left_over = self.reaping_due || (self.packets_due && self.channel.is_drained());
        let timeout = match left_over {
            true => Some(Duration::ZERO),
            false => self.is_large.then_some(REST),
        };
        match self.poll.poll(events, timeout) {
            // By SIGCHLD, which the next turn finds in its pipe.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => events.clear(),
            Ok(()) if events.is_empty() && !left_over => {
                self.is_large = false;
                // Without success it just stays large.
                drop(sys::memory::release_file_pages());
            }
            other => {
                other?;
                self.is_large = true;
            }
        }
        for event in events.iter() {
            match event.token() {
                CONTROL => self.packets_due = true,
                CHILDREN => self.reaping_due = true,
                token => self.commands.on_status(token, &mut self.channel),
            }
        }
        Ok(())
    }

    fn reap(&mut self) {
        if self.reaping_due {
            // Emptied before the reaping: a signal after this is a new event.
            let mut signals = [0; 512];
            while matches!(self.children.read(&mut signals), Ok(len) if len == signals.len()) {}
            self.reaping_due = self.commands.reap(BATCH, &mut self.channel);
        }
    }

    /// Acts on what the control plane has sent; breaks when it is gone.
    fn take_packets(&mut self) -> io::Result<ControlFlow<()>> {
        for _ in 0..BATCH {
            if !self.packets_due || !self.channel.is_drained() {
                break;
            }
            match self.channel.receive()? {
                Incoming::Message(ToInit::Spawn(spawn), descriptors) => {
                    self.commands.spawn(spawn, descriptors, &mut self.channel);
                }
                Incoming::Message(ToInit::Prepare { id }, descriptors) => {
                    self.commands.prepare(id, descriptors);
                }
                Incoming::Message(ToInit::Probe { attempts }, _) => {
                    let errnos = attempts.iter().map(Attempt::make).collect();
                    self.channel.report(&FromInit::Probed { errnos }, None);
                }
                Incoming::Unreadable { id: Some(id) } => {
                    let failure = Failure::new(Stage::Message, Errno::BADMSG);
                    self.channel.report(&failure.message(id), None);
                }
                // Nobody would know what an answer is about.
                Incoming::Unreadable { id: None } => {}
                Incoming::Nothing => self.packets_due = false,
                Incoming::End => return Ok(ControlFlow::Break(())),
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Makes this process one that its children, which have the same user id,
/// can neither trace nor read, and that inherits whatever they orphan.
fn protect() -> io::Result<()> {
    // What the runtime has let slip in is nobody's business.
    sys::spawn::close_from(wire::FD + 1)?;
    sys::spawn::reset_signals()?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // Pid 1 is that already; tests run this program as an ordinary process.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

/// Which seccomp profile is on cannot be read back from outside, but it can
/// be felt: see `FromInit::Hello`.
fn probe_setns(socket: &OwnedFd) -> i32 {
    match rustix::thread::move_into_link_name_space(socket.as_fd(), None) {
        Ok(()) => 0,
        Err(error) => error.raw_os_error(),
    }
}

/// From here on there is no one to talk to but the control plane.
fn silence() -> io::Result<()> {
    let null = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
