//! `[[egress.expect]]`, tried from inside: at the start where the configuration
//! says so, and when somebody asks. The prober is this program, run by pid 1 as
//! a command of its own; see `egress::prober`.

use std::fs::OpenOptions;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::fs::MemfdFlags;

use crate::api::{ApiError, EgressReply, ErrorKind};
use crate::config::expect::Expectation;
use crate::egress::EgressError;
use crate::egress::check::{self, Check, MAX_CHECKS, Order};
use crate::error::Error;
use crate::init::wire::{Spawn, Stage, Stdio};
use crate::policy::mounts::INIT_PATH;
use crate::run::commands::packet_fds;
use crate::run::control_plane::ControlPlane;
use crate::run::ending::Lingering;
use crate::run::output::{Open, output_pipe, read_some};
use crate::run::poller::{Source, Timer};
use crate::run::verify::Verified;
use crate::sys::cgroup::CommandCgroup;

/// Whoever launched the sandbox waits for 60 seconds, for all of the start.
const START_LIMIT: Duration = Duration::from_secs(25);
const LIMIT: Duration = Duration::from_secs(60);
/// The prober keeps to its limit by itself.
const GRACE: Duration = Duration::from_secs(10);
/// Most output that is taken.
const MAX_OUTPUT: usize = 4 << 20;
/// Most bytes of one turn.
const TURN: usize = 256 << 10;

const NONE: &str =
    "nothing is expected: there is no [[egress.expect]] in the base config or the workspace file";

/// A prober under way.
#[derive(Debug)]
pub(crate) struct Checks {
    /// Of its command, for pid 1.
    number: u64,
    expectations: Vec<Expectation>,
    cgroup: CommandCgroup,
    pipe: OwnedFd,
    output: Vec<u8>,
    /// The sandbox that begins to serve if all is as expected.
    at_start: Option<Verified>,
    /// Connection and request of those who asked.
    waiting: Vec<(u64, u64)>,
}

/// What counts of one that is over.
struct Taken {
    expectations: Vec<Expectation>,
    output: Vec<u8>,
    at_start: Option<Verified>,
    waiting: Vec<(u64, u64)>,
}

impl ControlPlane {
    /// All of a new sandbox is sealed as it must be. Where that is asked for,
    /// its network is tried before it is used for the first time.
    pub(crate) fn check_then_serve(&mut self, verified: Verified) {
        let setup = self.egress.as_ref().map(|egress| &egress.setup);
        let expectations = match setup {
            Some(setup) if setup.verify_at_start() && !self.was_ready => setup.expectations(),
            _ => Vec::new(),
        };
        if expectations.is_empty() {
            return self.begin_serving(verified);
        }
        if let Err(error) = self.start_checks(expectations, Some(verified)) {
            self.create_impossible(Error::io("check what can be reached", error));
        }
    }

    /// The request `egress` with `verify`; answered when it is done.
    pub(crate) fn check_egress(&mut self, connection: u64, request: u64) -> Result<(), ApiError> {
        let Some(egress) = &mut self.egress else {
            return Err(self.no_network());
        };
        let expectations = egress.setup.expectations();
        if egress.checks.is_none() && expectations.is_empty() {
            let reply = self.checks_reply(&[], Some(NONE));
            self.reply(connection, request, &reply);
            return Ok(());
        }
        if let Some(checks) = &mut egress.checks {
            checks.waiting.push((connection, request));
            return Ok(());
        }
        self.start_checks(expectations, None).map_err(|error| {
            let message = format!("cannot check what can be reached: {error}");
            ApiError::new(ErrorKind::CannotRun, message)
        })?;
        if let Some(checks) = self.egress.as_mut().and_then(|e| e.checks.as_mut()) {
            checks.waiting.push((connection, request));
        }
        Ok(())
    }

    fn start_checks(
        &mut self,
        mut expectations: Vec<Expectation>,
        at_start: Option<Verified>,
    ) -> io::Result<()> {
        expectations.truncate(MAX_CHECKS);
        let limit = match at_start {
            Some(_) => START_LIMIT,
            None => LIMIT,
        };
        let order = order(&expectations, limit)?;
        let (pipe, write) = output_pipe(usize::MAX)?;
        let null = OpenOptions::new().write(true).open("/dev/null")?.into();
        let number = self.new_id();
        let verified = at_start.as_ref().or_else(|| self.verified());
        let base = verified.ok_or(io::ErrorKind::NotConnected)?;
        let cgroup = CommandCgroup::create(&base.cgroup, number)?;
        let spawn = Spawn {
            id: number,
            argv: [INIT_PATH, "--check-egress"].map(str::to_owned).into(),
            env: self.network_variables(),
            cwd: "/".to_owned(),
            stdio: Stdio::Pipes,
            script: false,
        };
        let handed_over = packet_fds(&cgroup, &[order, write, null])
            .and_then(|fds| self.hand_over(spawn, fds))
            .and_then(|()| self.poller.add(Source::Checks(number), pipe.as_fd()));
        if let Err(error) = handed_over {
            cgroup.remove();
            return Err(error);
        }
        if let Some(egress) = &mut self.egress {
            egress.checks = Some(Checks {
                number,
                expectations,
                cgroup,
                pipe,
                output: Vec::new(),
                at_start,
                waiting: Vec::new(),
            });
        }
        self.poller.set(Timer::Checks, limit + GRACE);
        self.flush_channel();
        Ok(())
    }

    pub(crate) fn is_check(&self, number: u64) -> bool {
        let checks = self
            .egress
            .as_ref()
            .and_then(|egress| egress.checks.as_ref());
        checks.is_some_and(|checks| checks.number == number)
    }

    pub(crate) fn on_checks(&mut self, number: u64) {
        let checks = self.egress.as_mut().and_then(|e| e.checks.as_mut());
        let Some(checks) = checks.filter(|checks| checks.number == number) else {
            return;
        };
        let output = &mut checks.output;
        let take = |bytes: &[u8]| {
            let room = MAX_OUTPUT.saturating_sub(output.len()).min(bytes.len());
            output.extend_from_slice(bytes.get(..room).unwrap_or_default());
        };
        if let (_, Open::MoreToRead) = read_some(&checks.pipe, &mut self.buffer, TURN, take) {
            self.poller.again(Source::Checks(number));
        }
    }

    pub(crate) fn checks_not_started(&mut self, stage: Stage, errno: i32) {
        let error = io::Error::from_raw_os_error(errno);
        log::error!("the check of what can be reached could not be started: {stage:?}: {error}");
        self.conclude_checks();
    }

    pub(crate) fn checks_ended(&mut self) {
        if let Some(number) = self.checks_number() {
            self.on_checks(number);
        }
        self.conclude_checks();
    }

    pub(crate) fn checks_overdue(&mut self) {
        log::error!("the check of what can be reached takes too long, ending it");
        self.checks_ended();
    }

    fn checks_number(&self) -> Option<u64> {
        let checks = self.egress.as_ref()?.checks.as_ref()?;
        Some(checks.number)
    }

    fn conclude_checks(&mut self) {
        let Some(checks) = self.take_checks() else {
            return;
        };
        let entries = check::entries(&checks.expectations, &checks.output);
        if let Some(verified) = checks.at_start {
            return match entries.iter().all(|entry| entry.ok) {
                true => self.begin_serving(verified),
                false => self.create_impossible(EgressError::Unexpected(entries).into()),
            };
        }
        let reply = self.checks_reply(&entries, None);
        for (connection, request) in checks.waiting {
            self.reply(connection, request, &reply);
            self.flush_connection(connection);
        }
    }

    /// The sandbox is gone, or to go.
    pub(crate) fn drop_checks(&mut self) {
        let Some(checks) = self.take_checks() else {
            return;
        };
        for (connection, request) in checks.waiting {
            let message = "the sandbox ended while it was checked what it can reach";
            self.refuse(
                connection,
                request,
                ApiError::new(ErrorKind::CannotRun, message),
            );
            self.flush_connection(connection);
        }
    }

    /// Nothing of it stays, if it can be helped.
    fn take_checks(&mut self) -> Option<Taken> {
        let Checks {
            number,
            expectations,
            cgroup,
            pipe,
            output,
            at_start,
            waiting,
        } = self.egress.as_mut()?.checks.take()?;
        self.poller.unset(Timer::Checks);
        self.poller.remove(Source::Checks(number), pipe.as_fd());
        if !cgroup.remove() {
            if let Err(error) = cgroup.kill() {
                log::warn!("cannot end the check of what can be reached: {error}");
            }
            // Looked at again until it is gone.
            self.lingering.push(Lingering { cgroup });
        }
        Some(Taken {
            expectations,
            output,
            at_start,
            waiting,
        })
    }

    fn checks_reply(&self, checks: &[crate::api::CheckEntry], notice: Option<&str>) -> EgressReply {
        EgressReply {
            network: self.context.list.network.clone(),
            changed: false,
            rules: Vec::new(),
            hosts: Vec::new(),
            status: self.egress_status(),
            checks: checks.to_vec(),
            notices: notice.map(str::to_owned).into_iter().collect(),
        }
    }
}

/// In memory: nothing that the prober could write to, and be read again.
fn order(expectations: &[Expectation], limit: Duration) -> io::Result<OwnedFd> {
    let checks = expectations.iter().map(|e| Check::from(&e.target));
    let order = Order {
        checks: checks.collect(),
        limit_s: limit.as_secs(),
    };
    let memory = rustix::fs::memfd_create("order", MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(memory.try_clone()?);
    file.write_all(&serde_json::to_vec(&order)?)?;
    file.rewind()?;
    Ok(memory)
}
