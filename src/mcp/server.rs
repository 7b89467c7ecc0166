//! The loop: bytes between the client, the session and the control plane.
//!
//! stdin and stdout are shared with the client, so they are never set
//! non-blocking: poll(2) says when a call will not wait. It also takes a file
//! as stdin, which epoll(7) refuses. Without events there is no system call.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::api::client::{broken, closed, parse_message};
use crate::api::line::LineBuffer;
use crate::api::{ApiError, ErrorKind};
use crate::error::Error;
use crate::mcp::queue::Queue;
use crate::mcp::session::{MAX_INPUT, Session};
use crate::mcp::start::{self, Started};
use crate::sys::memory;

/// A pipe that poll(2) calls writable takes this much without waiting.
const PIPE_BUF: usize = 4096;
const READ_SIZE: usize = 16 << 10;
/// With more waiting to be written, nothing is read.
const MAX_QUEUED: usize = 32 << 20;
/// After the end of stdin: for what runs to finish by itself, and for all.
/// Clients follow up with SIGTERM after 2 s and SIGKILL after 4.
const GRACE: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_millis(3500);

/// Serves until the client has gone or a signal says so.
pub(crate) fn serve(session: Session, asked: Option<PathBuf>) -> Result<(), Error> {
    let mut server = Server::new(session, asked)?;
    while server.step()? {}
    Ok(())
}

struct Server {
    session: Session,
    asked: Option<PathBuf>,
    input: LineBuffer,
    link: Option<Link>,
    wake: Wake,
    started: Receiver<Result<Started, ApiError>>,
    sender: Sender<Result<Started, ApiError>>,
    end: Option<End>,
}

/// The connection to the control plane.
struct Link {
    socket: UnixStream,
    lines: LineBuffer,
}

/// The time since the client closed its side.
struct End {
    since: Instant,
    finished: bool,
}

/// What poll(2) reported.
struct Ready {
    wake: PollFlags,
    stdout: PollFlags,
    stdin: PollFlags,
    link: PollFlags,
}

/// Ends the wait from a signal handler or another thread.
struct Wake {
    reader: UnixStream,
    writer: UnixStream,
    signalled: Arc<AtomicBool>,
}

impl Server {
    fn new(session: Session, asked: Option<PathBuf>) -> Result<Server, Error> {
        let (sender, started) = mpsc::channel();
        Ok(Server {
            session,
            asked,
            input: LineBuffer::new(MAX_INPUT),
            link: None,
            wake: Wake::new().map_err(|error| Error::io("watch for signals", error))?,
            started,
            sender,
            end: None,
        })
    }

    /// One turn; false when all is over.
    fn step(&mut self) -> Result<bool, Error> {
        let now = Instant::now();
        self.session.tick(now);
        // Nobody would be left to use what is started for a client that has
        // only looked at the list of tools.
        if (self.end.is_none() || !self.session.is_idle())
            && let Some(client) = self.session.take_start()
        {
            self.start(client);
        }
        if self.is_over(now) {
            return Ok(false);
        }
        let ready = self
            .poll(self.timeout(now))
            .map_err(|error| Error::io("wait for input", error))?;
        let gone = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
        if ready.stdout.intersects(gone) {
            return Ok(false);
        }
        if !ready.wake.is_empty() {
            self.on_wake();
        }
        if !ready.stdin.is_empty() {
            self.read_input();
        }
        if ready.link.contains(PollFlags::OUT) {
            self.write_link();
        }
        if ready.link.intersects(PollFlags::IN | gone) {
            self.read_link();
        }
        if ready.stdout.contains(PollFlags::OUT) {
            return self
                .write_output()
                .map_err(|error| Error::io("write to stdout", error));
        }
        Ok(true)
    }

    fn poll(&self, timeout: Option<Duration>) -> Result<Ready, Errno> {
        let wake = self.wake.reader.as_fd();
        let out = |queue: &Queue| match queue.is_empty() {
            true => PollFlags::empty(),
            false => PollFlags::OUT,
        };
        // What is not waited for is stood in for by a descriptor that reports
        // nothing unasked, as one at its end would.
        let stdin = match self.reads_input() {
            true => PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::IN),
            false => PollFd::from_borrowed_fd(wake, PollFlags::empty()),
        };
        let link = match &self.link {
            Some(link) => {
                let flags = PollFlags::IN | out(&self.session.requests);
                PollFd::from_borrowed_fd(link.socket.as_fd(), flags)
            }
            None => PollFd::from_borrowed_fd(wake, PollFlags::empty()),
        };
        let stdout = PollFd::from_borrowed_fd(rustix::stdio::stdout(), out(&self.session.output));
        let wake = PollFd::from_borrowed_fd(wake, PollFlags::IN);
        let mut fds = [wake, stdout, stdin, link];
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let [wake, stdout, stdin, link] = fds.map(|fd| fd.revents());
        Ok(Ready {
            wake,
            stdout,
            stdin,
            link,
        })
    }

    fn reads_input(&self) -> bool {
        self.end.is_none()
            && self.session.output.len() <= MAX_QUEUED
            && self.session.requests.len() <= MAX_QUEUED
    }

    fn timeout(&self, now: Instant) -> Option<Duration> {
        let end = self.end.as_ref().map(|end| match end.finished {
            true => end.since + LIMIT,
            false => end.since + GRACE,
        });
        let next = self.session.next_tick().into_iter().chain(end).min()?;
        Some(next.saturating_duration_since(now))
    }

    fn is_over(&mut self, now: Instant) -> bool {
        let Some(end) = &mut self.end else {
            return false;
        };
        if !end.finished && now >= end.since + GRACE {
            end.finished = true;
            self.session.finish();
        }
        let session = &self.session;
        let flushed = session.is_idle() && session.output.is_empty() && session.requests.is_empty();
        flushed || now >= end.since + LIMIT
    }

    fn close(&mut self) {
        if self.end.is_none() {
            self.end = Some(End {
                since: Instant::now(),
                finished: false,
            });
        }
    }

    fn read_input(&mut self) {
        let mut buffer = [0; READ_SIZE];
        match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
            Ok(0) => self.close(),
            Ok(len) => {
                self.input.push(buffer.get(..len).unwrap_or_default());
                let now = Instant::now();
                while let Some(line) = self.input.next_line() {
                    self.session.on_line(line, now);
                }
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => {
                log::warn!("cannot read from stdin: {error}");
                self.close();
            }
        }
    }

    /// False when nobody reads any more.
    fn write_output(&mut self) -> io::Result<bool> {
        let stdout = rustix::stdio::stdout();
        loop {
            match rustix::io::write(stdout, self.session.output.front(PIPE_BUF)) {
                Ok(len) => self.session.output.consume(len),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(true),
                Err(Errno::PIPE) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
            if self.session.output.is_empty() || !is_writable(stdout) {
                return Ok(true);
            }
        }
    }

    fn start(&mut self, client: String) {
        let sender = self.sender.clone();
        let wake = self.wake.writer.try_clone();
        let spawned = wake.and_then(|mut wake| {
            start::spawn(self.asked.clone(), client, move |result| {
                // The loop may be over already.
                drop(sender.send(result));
                drop(wake.write(&[0]));
            })
        });
        if let Err(error) = spawned {
            let message = format!("cannot start a thread: {error}");
            let error = ApiError::new(ErrorKind::StartFailed, message);
            self.session.on_start_failed(&error);
        }
    }

    fn on_wake(&mut self) {
        let mut buffer = [0; 64];
        // First emptied, then looked at: the other way round one could be lost.
        while matches!(self.wake.reader.read(&mut buffer), Ok(len) if len > 0) {}
        if self.wake.signalled.load(Ordering::SeqCst) {
            self.close();
        }
        while let Ok(result) = self.started.try_recv() {
            match result {
                Ok(started) => self.connect(started),
                Err(error) => {
                    log::warn!("cannot start the sandbox: {error}");
                    self.session.on_start_failed(&error);
                }
            }
        }
    }

    fn connect(&mut self, started: Started) {
        // Without success it is just larger.
        drop(memory::release_file_pages());
        let parts = started.parts;
        self.link = Some(Link {
            socket: parts.socket,
            lines: parts.lines,
        });
        self.session
            .on_connected(parts.next_id, started.state, started.notice);
        self.take_messages();
    }

    fn read_link(&mut self) {
        let Some(link) = &mut self.link else {
            return;
        };
        let mut buffer = [0; READ_SIZE];
        match link.socket.read(&mut buffer) {
            Ok(0) => self.lose(&closed()),
            Ok(len) => {
                link.lines.push(buffer.get(..len).unwrap_or_default());
                self.take_messages();
            }
            Err(error) if is_temporary(&error) => {}
            Err(error) => self.lose(&broken("read from the control plane", &error)),
        }
    }

    fn take_messages(&mut self) {
        while let Some(line) = self.link.as_mut().and_then(|link| link.lines.next_line()) {
            match parse_message(&line) {
                Ok(message) => self.session.on_plane_message(message),
                Err(error) => self.lose(&error),
            }
        }
    }

    fn write_link(&mut self) {
        let Some(link) = &mut self.link else {
            return;
        };
        while !self.session.requests.is_empty() {
            match link.socket.write(self.session.requests.front(READ_SIZE)) {
                Ok(len) => self.session.requests.consume(len),
                Err(error) if is_temporary(&error) => return,
                Err(_) => {
                    // Its last answers can still be read, up to the end.
                    self.session.requests = Queue::default();
                    return;
                }
            }
        }
    }

    fn lose(&mut self, error: &ApiError) {
        self.link = None;
        self.session.on_plane_lost(error);
    }
}

impl Wake {
    fn new() -> io::Result<Wake> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        let signalled = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&signalled))?;
            signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
        }
        Ok(Wake {
            reader,
            writer,
            signalled,
        })
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

fn is_writable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    let now = Timespec::default();
    let polled = rustix::event::poll(&mut fds, Some(&now));
    polled.is_ok() && fds.iter().any(|fd| fd.revents().contains(PollFlags::OUT))
}
