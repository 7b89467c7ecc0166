//! The gateway of a sandbox with egress: started, heard of, started again when
//! it dies. The sandbox stays meanwhile, and reaches nothing.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use serde::Deserialize;

use crate::dirs;
use crate::egress::EgressError;
use crate::error::Error;
use crate::podman;
use crate::podman::gateway::{GatewayFiles, GatewaySpec, IMAGE, POLICY_FILE};
use crate::podman::network::Layout;
use crate::policy::egress::EgressPolicy;
use crate::run::control_plane::{Context, ControlPlane};
use crate::run::lifecycle;
use crate::run::network::{Egress, Step};
use crate::run::poller::{Source, Timer};
use crate::run::verify::{self, VerifyError};
use crate::run::watchdog::Backoff;
use crate::sys::{fdpass, inherit};

/// From the end of `podman run` to the gateway's word that it serves.
const READY_LIMIT: Duration = Duration::from_secs(15);
const MAX_PACKET: usize = 64 << 10;
/// Most packets of one turn.
const TURN: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Gateway {
    pub(crate) state: GatewayState,
    /// The socket that it was started with: its end is the death notice, both
    /// ways.
    link: Option<OwnedFd>,
    number: u64,
    /// What it said of its failure.
    why: Option<String>,
    since: Option<Instant>,
    backoff: Backoff,
    pub(crate) restarts: u32,
    /// What it says of the policy, where that is not all good.
    pub(crate) policy_problem: Option<String>,
    /// It cannot write the audit, and refuses all that is new.
    pub(crate) is_audit_failing: bool,
    /// None of the resolvers that it asks answers.
    pub(crate) is_resolver_silent: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GatewayState {
    #[default]
    Absent,
    /// podman may still have something of it.
    Dead,
    /// Dead, and not started again yet.
    Resting,
    Starting,
    Ready,
}

impl GatewayState {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            GatewayState::Ready => "ready",
            GatewayState::Starting => "starting",
            GatewayState::Absent | GatewayState::Dead | GatewayState::Resting => "restarting",
        }
    }
}

/// What the gateway tells.
#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event {
    Ready {},
    Failed {
        why: String,
    },
    Policy {
        state: String,
        why: Option<String>,
    },
    Audit {
        state: String,
    },
    Resolver {
        state: String,
    },
    #[serde(other)]
    Other,
}

impl ControlPlane {
    pub(crate) fn run_gateway(&mut self) {
        if let Err(error) = self.try_run_gateway() {
            self.network_failed(error);
        }
    }

    fn try_run_gateway(&mut self) -> Result<(), Error> {
        self.drop_gateway();
        let number = self.new_id();
        self.write_runtime_file("seccomp.json", &self.context.seccomp)?;
        let Some(egress) = &mut self.egress else {
            return Ok(());
        };
        StagedPolicy::write(&self.context, &egress.setup.policy)?.put()?;
        dirs::create_private(&self.context.names.audit)?;
        let spec = spec(&self.context, egress)?;
        lifecycle::remove_if_there(cidfile(&self.context).as_ref())
            .map_err(|error| Error::io("remove the gateway's cidfile", error))?;
        let (ours, theirs) =
            fdpass::packet_pair().map_err(|error| Error::io("make the gateway's socket", error))?;
        self.poller
            .add(Source::Gateway(number), ours.as_fd())
            .map_err(|error| Error::io("watch the gateway", error))?;
        egress.gateway.number = number;
        egress.gateway.link = Some(ours);
        egress.gateway.why = None;
        egress.gateway.policy_problem = None;
        egress.gateway.is_audit_failing = false;
        egress.gateway.is_resolver_silent = false;
        egress.gateway.state = GatewayState::Starting;
        let mut command = podman::command(&self.context.search_path, spec.render_argv());
        inherit::hand_over_as_fd3(&mut command, theirs);
        self.spawn_step(Step::RunGateway, command);
        Ok(())
    }

    /// `podman run` has ended well; the gateway may have spoken long before.
    pub(crate) fn gateway_started(&mut self) {
        if let Some(egress) = &self.egress
            && egress.gateway.state == GatewayState::Starting
        {
            match egress.gateway.link {
                Some(_) => self.poller.set(Timer::Gateway, READY_LIMIT),
                None => self.gateway_died("it ended at once"),
            }
        }
    }

    /// `podman run` has failed.
    pub(crate) fn gateway_refused(&mut self, why: &str) -> Result<(), EgressError> {
        self.drop_gateway();
        let Some(egress) = &mut self.egress else {
            return Ok(());
        };
        egress.gateway.state = GatewayState::Dead;
        if egress.down.is_some() {
            return Ok(());
        }
        if why.contains("image not known") {
            return Err(EgressError::MissingImage(IMAGE.to_owned()));
        }
        let said = egress.gateway.why.clone();
        let error = EgressError::Gateway(said.unwrap_or_else(|| why.to_owned()));
        // What an earlier life has left has the name, or the address.
        match why.contains("already in use") || why.contains("already allocated") {
            true => egress.sweep(error),
            false => Err(error),
        }
    }

    pub(crate) fn on_gateway(&mut self, number: u64) {
        let Some(egress) = &mut self.egress else {
            return;
        };
        if egress.gateway.number != number {
            return;
        }
        let (events, is_open) = match &egress.gateway.link {
            Some(link) => receive(link.as_fd()),
            None => return,
        };
        for (event, pid) in events {
            self.on_gateway_event(event, pid);
        }
        let is_linked = self
            .egress
            .as_ref()
            .is_some_and(|egress| egress.gateway.link.is_some());
        match is_open {
            Open::Drained => {}
            // It was given up on the way.
            _ if !is_linked => {}
            Open::MoreToRead => self.poller.again(Source::Gateway(number)),
            Open::Ended => self.gateway_died("it ended by itself"),
        }
    }

    /// It says that it serves: is it what was asked for?
    fn check_gateway(&self, pid: Option<Pid>) -> Result<(), VerifyError> {
        let interfaces: &[&str] = match self.egress.as_ref().and_then(Egress::made_layout) {
            Some(Layout::Routed) => &["lo", "eth0"],
            _ => &["lo", "eth0", "eth1"],
        };
        let unknown = |detail: &str| VerifyError {
            check: "gateway",
            detail: detail.to_owned(),
        };
        let pid = pid.ok_or_else(|| unknown("the kernel does not tell who it is"))?;
        let gateway = self
            .egress
            .as_ref()
            .map(|egress| spec(&self.context, egress));
        let Some(Ok(gateway)) = gateway else {
            return Err(unknown("it is not known what it was asked to be"));
        };
        let asked = verify::gateway::Asked {
            sandbox: &self.context.spec,
            exe: &self.context.exe,
            interfaces,
            mounts: gateway.files.mounts(),
        };
        verify::gateway::verify(asked, pid)
    }

    fn gateway_is_ready(&mut self) {
        if let Some(egress) = &mut self.egress {
            egress.gateway.state = GatewayState::Ready;
            egress.gateway.since = Some(Instant::now());
        }
        self.advance_network();
    }

    /// Its socket is closed, which ends it.
    fn gateway_unsealed(&mut self, error: &VerifyError) {
        if let Some(egress) = &mut self.egress {
            egress.gateway.why = Some(error.to_string());
        }
        self.gateway_died("it is not sealed");
    }

    fn on_gateway_event(&mut self, event: Event, pid: Option<Pid>) {
        let Some(egress) = &mut self.egress else {
            return;
        };
        let gateway = &mut egress.gateway;
        match event {
            Event::Ready {} if gateway.state == GatewayState::Starting => {
                self.poller.unset(Timer::Gateway);
                match self.check_gateway(pid) {
                    Ok(()) => self.gateway_is_ready(),
                    Err(error) => self.gateway_unsealed(&error),
                }
            }
            Event::Failed { why } => gateway.why = Some(why),
            Event::Policy { state, why } => {
                gateway.policy_problem = why.filter(|_| state != "loaded");
            }
            Event::Audit { state } => gateway.is_audit_failing = state != "well",
            Event::Resolver { state } => gateway.is_resolver_silent = state != "well",
            Event::Ready {} | Event::Other => {}
        }
    }

    fn gateway_died(&mut self, reason: &str) {
        let state = self.egress.as_ref().map(|egress| egress.gateway.state);
        let was_ready = state == Some(GatewayState::Ready);
        self.drop_gateway();
        self.poller.unset(Timer::Gateway);
        let Some(egress) = &mut self.egress else {
            return;
        };
        // `podman run` knows why, and has not ended yet.
        if !was_ready && egress.is_starting_gateway() {
            return;
        }
        let gateway = &mut egress.gateway;
        let why = gateway.why.take().unwrap_or_else(|| reason.to_owned());
        gateway.state = GatewayState::Dead;
        if egress.down.is_some() {
            return self.advance_network();
        }
        if !was_ready {
            return self.network_failed(EgressError::Gateway(why).into());
        }
        log::error!("the gateway has ended: {why}; it is started again");
        self.rest_gateway();
    }

    /// Until it is worth another try.
    pub(crate) fn rest_gateway(&mut self) {
        let Some(egress) = &mut self.egress else {
            return;
        };
        let gateway = &mut egress.gateway;
        let lived = gateway.since.take().map(|since| since.elapsed());
        let wait = match lived {
            Some(lived) => gateway.backoff.after_death(lived),
            None => gateway.backoff.after_failure(),
        };
        gateway.restarts = gateway.restarts.saturating_add(1);
        gateway.state = GatewayState::Resting;
        self.poller.set(Timer::Gateway, wait);
    }

    /// It has been silent for too long, or has rested.
    pub(crate) fn gateway_due(&mut self) {
        let state = self.egress.as_ref().map(|egress| egress.gateway.state);
        match state {
            Some(GatewayState::Starting) => {
                let limit = READY_LIMIT.as_secs();
                self.gateway_died(&format!("it was silent for {limit} seconds"));
            }
            Some(GatewayState::Resting) => {
                if let Some(egress) = &mut self.egress {
                    egress.gateway.state = GatewayState::Dead;
                }
                self.advance_network();
            }
            _ => {}
        }
    }

    /// Closing its socket ends it.
    pub(crate) fn drop_gateway(&mut self) {
        if let Some(egress) = &mut self.egress
            && let Some(link) = egress.gateway.link.take()
        {
            let source = Source::Gateway(egress.gateway.number);
            self.poller.remove(source, link.as_fd());
            if egress.gateway.state == GatewayState::Ready {
                egress.gateway.state = GatewayState::Dead;
            }
        }
    }

    pub(crate) fn gateway_id(&self) -> Option<String> {
        self.egress.as_ref()?;
        lifecycle::read_id(cidfile(&self.context).as_ref())
    }
}

fn cidfile(context: &Context) -> PathBuf {
    context.names.runtime.join("gateway.cid")
}

fn policy_dir(context: &Context) -> PathBuf {
    context.names.runtime.join("policy")
}

/// A policy beside the one in force, on the same file system.
#[derive(Debug)]
pub(crate) struct StagedPolicy {
    new: PathBuf,
    path: PathBuf,
}

impl StagedPolicy {
    pub(crate) fn write(context: &Context, policy: &EgressPolicy) -> Result<StagedPolicy, Error> {
        let dir = policy_dir(context);
        dirs::create_private(&dir)?;
        let (new, path) = (dir.join("new"), dir.join(POLICY_FILE));
        std::fs::write(&new, policy.render_json())
            .map_err(|error| Error::io(format!("write {new:?}"), error))?;
        Ok(StagedPolicy { new, path })
    }

    /// Whole or not at all: the gateway may read it at any time.
    pub(crate) fn put(self) -> Result<(), Error> {
        let StagedPolicy { new, path } = self;
        std::fs::rename(&new, &path).map_err(|error| Error::io(format!("write {path:?}"), error))
    }
}

fn spec(context: &Context, egress: &Egress) -> Result<GatewaySpec, Error> {
    let (Some(lan), Some(layout)) = (egress.lan(), egress.made_layout()) else {
        return Err(EgressError::Gateway("its network has no addresses".to_owned()).into());
    };
    let sandbox = &context.spec;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let state = &egress.setup.state;
    Ok(GatewaySpec {
        name: context.names.gateway.clone(),
        networks: egress.names.clone(),
        layout,
        lan,
        workspace: sandbox.workspace.clone(),
        user: (sandbox.uid, sandbox.gid),
        passwd_entry: sandbox.passwd_entry.clone(),
        seccomp: sandbox.seccomp.clone(),
        selinux: sandbox.selinux,
        delegated: sandbox.delegated.clone(),
        cpus: u32::try_from(cpus).unwrap_or(1),
        cidfile: cidfile(context).to_string_lossy().into_owned(),
        files: GatewayFiles {
            exe: context.exe.clone(),
            policy: policy_dir(context),
            ca_cert: state.ca_cert.clone(),
            ca_key: state.ca_key.clone(),
            roots: state.roots.clone(),
            audit: context.names.audit.clone(),
        },
        resolvers: egress.setup.resolvers.clone(),
    })
}

#[derive(Debug, PartialEq, Eq)]
enum Open {
    Drained,
    MoreToRead,
    Ended,
}

/// Events with the pid of whoever has sent them.
fn receive(link: BorrowedFd<'_>) -> (Vec<(Event, Option<Pid>)>, Open) {
    let mut events = Vec::new();
    let mut buffer = vec![0; MAX_PACKET];
    while events.len() < TURN {
        match fdpass::receive(link, &mut buffer) {
            Ok(received) if received.len == 0 => return (events, Open::Ended),
            Ok(received) => {
                let packet = buffer.get(..received.len).unwrap_or_default();
                let event = serde_json::from_slice(packet).unwrap_or(Event::Other);
                events.push((event, received.pid));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return (events, Open::Drained);
            }
            Err(_) => return (events, Open::Ended),
        }
    }
    (events, Open::MoreToRead)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::SendFlags;

    fn send(socket: &OwnedFd, text: &str) {
        rustix::net::send(socket, text.as_bytes(), SendFlags::NOSIGNAL).unwrap();
    }

    #[test]
    fn events_are_read_and_the_end_is_seen_after_them() {
        let (ours, theirs) = fdpass::packet_pair().unwrap();
        assert_eq!(receive(ours.as_fd()).1, Open::Drained);
        send(&theirs, r#"{"event":"ready","proxy":"10.89.0.2:3128"}"#);
        send(
            &theirs,
            r#"{"event":"policy","state":"broken","why":"half"}"#,
        );
        send(
            &theirs,
            r#"{"event":"policy","state":"loaded","rules":"1 https"}"#,
        );
        send(&theirs, r#"{"event":"audit","state":"failing"}"#);
        send(&theirs, r#"{"event":"new"}"#);
        send(&theirs, "{");
        drop(theirs);
        let (events, open) = receive(ours.as_fd());
        assert_eq!(open, Open::Ended);
        let own = rustix::process::getpid();
        assert!(events.iter().all(|(_, pid)| *pid == Some(own)));
        let events: Vec<Event> = events.into_iter().map(|(event, _)| event).collect();
        assert!(matches!(
            events.as_slice(),
            [
                Event::Ready {},
                Event::Policy { why: Some(_), .. },
                Event::Policy { why: None, .. },
                Event::Audit { .. },
                Event::Other,
                Event::Other
            ]
        ));
    }
}
