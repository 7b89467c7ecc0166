//! One program that runs in a sandbox for us: its bytes, the signals that we
//! get meanwhile, and how it ends.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::api::client::{self, Client};
use crate::api::{ApiError, Body, Call, Cancel, Event, ExecReply, Message, Outcome};
use crate::cli;
use crate::ctl::channel::Channel;
use crate::ctl::signals::Signals;
use crate::ctl::{CtlError, NAME};
use crate::error::{Error, exit_code};
use crate::text;

/// These end the program, and then us.
const ENDING: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];
/// The control plane gives a program 2 s between TERM and KILL.
const CANCEL_WAIT: Duration = Duration::from_secs(10);
const SEND_WAIT: Duration = Duration::from_secs(10);
/// How long output is taken from what a program leaves in the background.
const DRAIN: Duration = Duration::from_millis(200);

/// A request `exec` or `terminal` on its way.
#[derive(Debug)]
pub(super) struct Session {
    client: Client,
    id: u64,
    signals: Signals,
    interrupt: Option<Interrupt>,
    /// Several can come at once; none may be lost.
    news: VecDeque<News>,
    notices: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
struct Interrupt {
    signal: i32,
    /// Until when the answer to the cancelled request is waited for.
    deadline: Instant,
}

#[derive(Debug)]
pub(super) enum News {
    /// The terminal is open; its master came along.
    Terminal(Vec<OwnedFd>),
    /// One of the signals that do not end it.
    Signal(i32),
    Ended(Ending),
}

#[derive(Debug, PartialEq)]
pub(super) enum Ending {
    /// As the control plane tells it.
    Told(Outcome),
    /// By a signal that we got.
    Interrupted(i32),
}

impl Session {
    /// `signals` are caught beside those that end the program.
    pub(super) fn start(
        mut client: Client,
        call: Call,
        fds: &[BorrowedFd<'_>],
        signals: &[i32],
    ) -> Result<Session, Error> {
        sockopt::set_socket_timeout(&client, Timeout::Send, Some(SEND_WAIT))
            .map_err(|error| Error::io("set up the connection", error))?;
        let signals = Signals::catch(&[&ENDING, signals].concat())
            .map_err(|error| Error::io("catch signals", error))?;
        Ok(Session {
            id: client.send(call, fds)?,
            client,
            signals,
            interrupt: None,
            news: VecDeque::new(),
            notices: Vec::new(),
        })
    }

    /// Moves bytes until the program has ended, and then what it has left in
    /// the channels. The first channel is the one that leads to it.
    pub(super) fn run(
        &mut self,
        channels: &mut [Channel<'_>],
        mut on_signal: impl FnMut(i32),
    ) -> Result<Ending, Error> {
        let ending = self.pump(channels, &mut on_signal);
        self.drain(channels);
        match self.interrupt {
            Some(interrupt) => Ok(Ending::Interrupted(interrupt.signal)),
            None => ending,
        }
    }

    fn pump(
        &mut self,
        channels: &mut [Channel<'_>],
        on_signal: &mut impl FnMut(i32),
    ) -> Result<Ending, Error> {
        loop {
            match self.next(channels)? {
                News::Ended(ending) => return Ok(ending),
                News::Signal(signal) => on_signal(signal),
                News::Terminal(_) => {}
            }
        }
    }

    /// Moves bytes until there is news.
    pub(super) fn next(&mut self, channels: &mut [Channel<'_>]) -> Result<News, Error> {
        loop {
            if let Some(news) = self.news.pop_front() {
                return Ok(news);
            }
            match (self.turn(channels), self.interrupt) {
                (Ok(()), _) => {}
                // Whoever ends us is told that, whatever else goes wrong then.
                (Err(_), Some(interrupt)) => {
                    return Ok(News::Ended(Ending::Interrupted(interrupt.signal)));
                }
                (Err(error), None) => return Err(error),
            }
        }
    }

    /// Waits until there is something to do, and does it.
    fn turn(&mut self, channels: &mut [Channel<'_>]) -> Result<(), Error> {
        let until = self.interrupt.map(|interrupt| interrupt.deadline);
        let own = [
            PollFd::new(&self.client, PollFlags::IN),
            PollFd::new(&self.signals, PollFlags::IN),
        ];
        let ready = wait(own, channels, until)?;
        let [has_messages, has_signals] = ready.own;
        step(channels, &ready.channels);
        if has_messages {
            while let Some((message, fds)) = self.client.try_receive()? {
                let news = self.read(message, fds)?;
                self.news.extend(news);
            }
        }
        if has_signals {
            for signal in self.signals.take() {
                let news = self.on_signal(signal)?;
                self.news.extend(news);
            }
        }
        if let Some(interrupt) = self.interrupt
            && Instant::now() >= interrupt.deadline
        {
            log::warn!("the control plane has not said that the command is gone");
            let ending = Ending::Interrupted(interrupt.signal);
            self.news.push_back(News::Ended(ending));
        }
        Ok(())
    }

    /// For the end, when nothing of the program can be mixed with it.
    pub(super) fn tell_notices(&self) {
        for notice in &self.notices {
            let line = format!("{NAME}: note: {}\n", text::printable(notice));
            cli::write_stderr(line.as_bytes());
        }
    }

    fn read(&mut self, message: Message, fds: Vec<OwnedFd>) -> Result<Option<News>, ApiError> {
        let ours = message.id == Some(self.id);
        match message.body {
            Body::Event(Event::Terminal) if ours => Ok(Some(News::Terminal(fds))),
            Body::Result(value) if ours => {
                let reply: ExecReply = client::decode(value)?;
                self.notices = reply.notices;
                let ending = match self.interrupt {
                    Some(interrupt) => Ending::Interrupted(interrupt.signal),
                    None => Ending::Told(reply.outcome),
                };
                Ok(Some(News::Ended(ending)))
            }
            Body::Error(error) if ours || message.id.is_none() => Err(error),
            // The answer to a cancel; what counts is the one to the request.
            Body::Event(_) | Body::Result(_) | Body::Error(_) => Ok(None),
        }
    }

    /// The first signal ends the program; the second one does not wait for it.
    fn on_signal(&mut self, signal: i32) -> Result<Option<News>, ApiError> {
        if !ENDING.contains(&signal) {
            return Ok(Some(News::Signal(signal)));
        }
        if self.interrupt.is_some() {
            return Ok(Some(News::Ended(Ending::Interrupted(signal))));
        }
        self.interrupt = Some(Interrupt {
            signal,
            deadline: Instant::now() + CANCEL_WAIT,
        });
        let cancel = Cancel { request: self.id };
        self.client.send(Call::Cancel(cancel), &[])?;
        Ok(None)
    }

    /// Moves what the program wrote before its end, however slowly it is taken
    /// from us, and for a moment what comes from its children.
    fn drain(&mut self, channels: &mut [Channel<'_>]) {
        let Some((input, outputs)) = channels.split_first_mut() else {
            return;
        };
        input.close();
        let deadline = Instant::now() + DRAIN;
        outputs.iter_mut().for_each(Channel::owe_what_is_there);
        loop {
            let is_over = Instant::now() >= deadline;
            for output in outputs.iter_mut().filter(|output| !output.is_owing()) {
                if is_over {
                    output.close();
                }
            }
            if outputs.iter().all(|output| output.interest().is_none()) {
                return;
            }
            let own = [PollFd::new(&self.signals, PollFlags::IN)];
            let Ok(ready) = wait(own, outputs, (!is_over).then_some(deadline)) else {
                return;
            };
            step(outputs, &ready.channels);
            if ready.own == [true] && self.is_interrupted() {
                return;
            }
        }
    }

    fn is_interrupted(&mut self) -> bool {
        let ending = |signal: &i32| ENDING.contains(signal);
        let Some(signal) = self.signals.take().into_iter().find(ending) else {
            return false;
        };
        self.interrupt.get_or_insert_with(|| Interrupt {
            signal,
            deadline: Instant::now(),
        });
        true
    }
}

impl Ending {
    /// As a shell tells it; what is no end of the program's own is an error.
    pub(super) fn exit_code(&self) -> Result<ExitCode, CtlError> {
        let code = match self {
            Ending::Interrupted(signal) => signal.saturating_add(128),
            Ending::Told(Outcome::Exited { code }) => *code,
            Ending::Told(Outcome::Signaled { signal }) => signal.saturating_add(128),
            Ending::Told(Outcome::TimedOut { after_s }) => {
                return Err(CtlError::Ended(format!(
                    "the command was ended after {after_s} s"
                )));
            }
            Ending::Told(Outcome::Cancelled) => {
                return Err(CtlError::Ended("the command was cancelled".to_owned()));
            }
            Ending::Told(Outcome::Lost { reason }) => {
                return Err(CtlError::Ended(format!("the command was lost: {reason}")));
            }
        };
        Ok(ExitCode::from(
            u8::try_from(code).unwrap_or(exit_code::FAILURE),
        ))
    }
}

/// What poll(2) has found ready.
struct Ready<const N: usize> {
    own: [bool; N],
    channels: Vec<bool>,
}

fn wait<const N: usize>(
    own: [PollFd<'_>; N],
    channels: &[Channel<'_>],
    until: Option<Instant>,
) -> Result<Ready<N>, Error> {
    let mut fds: Vec<PollFd<'_>> = own.into();
    let mut polled = Vec::with_capacity(channels.len());
    for channel in channels {
        let interest = channel.interest();
        polled.push(interest.is_some());
        fds.extend(interest.map(|(fd, events)| PollFd::from_borrowed_fd(fd, events)));
    }
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    match rustix::event::poll(&mut fds, left.as_ref()) {
        Ok(_) => {}
        Err(Errno::INTR) => fds.iter_mut().for_each(|fd| fd.clear_revents()),
        Err(error) => return Err(Error::io("wait for input", error)),
    }
    let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
    Ok(Ready {
        own: [(); N].map(|()| ready.next().unwrap_or_default()),
        channels: polled
            .into_iter()
            .map(|polled| polled && ready.next().unwrap_or_default())
            .collect(),
    })
}

fn step(channels: &mut [Channel<'_>], ready: &[bool]) {
    for (channel, ready) in channels.iter_mut().zip(ready) {
        if *ready {
            channel.step();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(outcome: Outcome) -> Result<ExitCode, String> {
        Ending::Told(outcome)
            .exit_code()
            .map_err(|error| error.to_string())
    }

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        assert_eq!(code(Outcome::Exited { code: 7 }), Ok(ExitCode::from(7)));
        assert_eq!(
            code(Outcome::Signaled { signal: 15 }),
            Ok(ExitCode::from(143))
        );
        assert_eq!(
            Ending::Interrupted(SIGINT).exit_code().ok(),
            Some(ExitCode::from(130))
        );
    }

    #[test]
    fn codes_that_cannot_be_are_failures() {
        for outcome in [
            Outcome::Exited { code: 256 },
            Outcome::Exited { code: -1 },
            Outcome::Signaled { signal: i32::MAX },
        ] {
            assert_eq!(code(outcome), Ok(ExitCode::FAILURE));
        }
    }

    #[test]
    fn other_ends_are_errors_in_words() {
        let reason = "the container died".to_owned();
        let error = code(Outcome::Lost { reason }).unwrap_err();
        assert_eq!(error, "the command was lost: the container died");
        assert!(code(Outcome::Cancelled).is_err());
        assert!(code(Outcome::TimedOut { after_s: 1 }).is_err());
    }
}
