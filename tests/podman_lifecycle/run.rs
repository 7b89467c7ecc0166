//! One run of umwelt-run at a place, to be waited for, signalled and killed.

use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::podman_common::sandbox::Place;
use crate::podman_common::{Client, PATIENCE, wait_for};

/// Ends with its guard.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub(crate) place: &'a Place,
    child: Child,
    ended: Option<ExitStatus>,
    /// The log held this much before.
    log_start: usize,
}

impl<'a> Run<'a> {
    /// Only started: nothing is waited for.
    pub(crate) fn begin(place: &'a Place) -> Run<'a> {
        let log_start = place.log().len();
        Run {
            place,
            child: place.spawn(),
            ended: None,
            log_start,
        }
    }

    /// Started and ready.
    pub(crate) fn ready(place: &'a Place) -> Run<'a> {
        let mut run = Run::begin(place);
        run.assert_ready();
        run
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        self.place.log().split_off(self.log_start)
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.place.socket())
    }

    /// Waits until the sandbox is ready; the status where the run ends first. What
    /// an earlier run has left may have to go before.
    pub(crate) fn wait_ready(&mut self) -> Result<(), ExitStatus> {
        wait_for("the sandbox to be ready, or an end", 2 * PATIENCE, || {
            if self.log().contains(" is ready for ") {
                return Some(Ok(()));
            }
            self.try_ended().map(Err)
        })
    }

    pub(crate) fn assert_ready(&mut self) {
        if let Err(status) = self.wait_ready() {
            panic!("umwelt-run ended: {status}\n{}", self.log());
        }
    }

    pub(crate) fn try_ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("wait");
        }
        self.ended
    }

    pub(crate) fn wait_ended(&mut self, limit: Duration) -> ExitStatus {
        wait_for("the end of umwelt-run", limit, || self.try_ended())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// SIGKILL, and reaped.
    pub(crate) fn kill(&mut self) {
        if self.try_ended().is_none() {
            self.signal(Signal::KILL);
            self.wait_ended(PATIENCE);
        }
    }

    /// SIGTERM, and an end without complaint.
    pub(crate) fn stop(&mut self) {
        self.signal(Signal::TERM);
        let status = self.wait_ended(PATIENCE);
        assert_eq!(status.code(), Some(0), "{}", self.log());
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if self.try_ended().is_none() {
            self.signal(Signal::TERM);
            let end = Instant::now() + Duration::from_secs(20);
            while self.try_ended().is_none() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(50));
            }
            self.kill();
        }
    }
}

/// The process may be gone already.
pub(crate) fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).expect("a pid");
    let _ = rustix::process::kill_process(pid, signal);
}

/// Runs a command that must end soon by itself.
pub(crate) fn output(command: &mut Command) -> Output {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    let end = Instant::now() + PATIENCE;
    while child.try_wait().expect("wait").is_none() {
        if Instant::now() > end {
            send(child.id(), Signal::KILL);
            panic!("no end: {command:?}: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().expect("output")
}
