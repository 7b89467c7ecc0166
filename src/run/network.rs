//! The network of a sandbox with egress: made before the container, removed
//! after it. One podman call at a time, each a task that the loop awaits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::egress::EgressError;
use crate::egress::setup::Setup;
use crate::egress::targets::{self, Targets};
use crate::error::Error;
use crate::podman::leftover::{self, Owner};
use crate::podman::network::{self, Lan, Layout, NetworkNames, Unfit};
use crate::podman::{self, PodmanError};
use crate::run::confirm::Checking;
use crate::run::control_plane::ControlPlane;
use crate::run::counts::Counting;
use crate::run::expecting::Checks;
use crate::run::gateway::{Gateway, GatewayState};
use crate::run::lifecycle::{Phase, TaskKind};
use crate::run::task::{Finished, Task};

/// A podman call about a network; a name that is asked for takes less.
const STEP_LIMIT: Duration = Duration::from_secs(60);
/// As often as something of an earlier life is looked for, before it is
/// taken for an error.
const MAX_SWEEPS: u32 = 20;

/// All that a sandbox has besides its container.
#[derive(Debug)]
pub(crate) struct Egress {
    pub(crate) setup: Setup,
    pub(crate) gateway: Gateway,
    pub(crate) names: NetworkNames,
    /// Of direct targets, still to be asked for.
    unresolved: Vec<String>,
    resolved: BTreeMap<String, BTreeSet<Ipv4Addr>>,
    /// What the sandbox that runs, or is being created, can reach directly.
    pub(crate) targets: Targets,
    networks: Networks,
    /// Names of networks that were made, or were there.
    made: Vec<String>,
    /// They were looked at, and have our labels.
    is_ours: bool,
    /// To be done before anything else.
    ahead: VecDeque<Step>,
    under_way: Option<Step>,
    sweeps: u32,
    /// Its targets were all good once.
    was_up: bool,
    /// A sandbox of which the rules are not confirmed yet.
    pub(crate) checking: Option<Checking>,
    /// Of the rules as they were read back.
    pub(crate) digest: Option<String>,
    pub(crate) counting: Counting,
    /// Of what can be reached, under way.
    pub(crate) checks: Option<Checks>,
    /// It is being removed, and this follows.
    pub(crate) down: Option<Then>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Networks {
    Absent,
    /// Made, not looked at.
    Made(Layout),
    Ready(Layout, Lan),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Ask for the addresses of a name.
    Resolve(String),
    Create(String),
    Inspect,
    RunGateway,
    RemoveGateway,
    /// Look for what an earlier life has left.
    FindLeftovers,
    RemoveContainers(Vec<String>),
    RemoveNetworks,
}

#[derive(Debug, PartialEq, Eq)]
enum Next {
    Do(Step),
    /// For the gateway.
    Wait,
    Done,
}

/// What follows when the network is gone.
#[derive(Debug)]
pub(crate) enum Then {
    Stopped,
    Failed(Error),
}

impl Egress {
    /// `audit` is the directory of the gateway's audit.
    pub(crate) fn new(setup: Setup, names: NetworkNames, audit: &Path) -> Egress {
        Egress {
            setup,
            gateway: Gateway::default(),
            unresolved: Vec::new(),
            resolved: BTreeMap::new(),
            targets: Targets::default(),
            networks: Networks::Absent,
            made: Vec::new(),
            is_ours: false,
            ahead: VecDeque::new(),
            under_way: None,
            sweeps: 0,
            was_up: false,
            checking: None,
            digest: None,
            counting: Counting::new(audit, &names.sid),
            checks: None,
            down: None,
            names,
        }
    }

    /// For a sandbox that is to be created: what its names mean now.
    fn begin(&mut self) -> Result<(), EgressError> {
        self.unresolved = targets::names(&self.setup.policy).into_iter().collect();
        self.resolved.clear();
        self.sweeps = 0;
        self.digest = None;
        self.checking = None;
        match self.unresolved.is_empty() {
            true => self.fix_targets(),
            false => Ok(()),
        }
    }

    fn layout(&self) -> Layout {
        match self.setup.policy.tcp.is_empty() {
            true => Layout::Internal,
            false => Layout::Routed,
        }
    }

    /// Its `podman run` is under way.
    pub(crate) fn is_starting_gateway(&self) -> bool {
        self.under_way == Some(Step::RunGateway)
    }

    pub(crate) fn lan(&self) -> Option<Lan> {
        match self.networks {
            Networks::Ready(_, lan) => Some(lan),
            _ => None,
        }
    }

    pub(crate) fn made_layout(&self) -> Option<Layout> {
        match self.networks {
            Networks::Ready(layout, _) | Networks::Made(layout) => Some(layout),
            Networks::Absent => None,
        }
    }

    /// `is_creating` where a sandbox waits for the network: only then may the
    /// network change.
    fn next(&self, is_creating: bool) -> Next {
        if let Some(step) = self.ahead.front() {
            return Next::Do(step.clone());
        }
        if let Some(name) = self.unresolved.last() {
            return Next::Do(Step::Resolve(name.clone()));
        }
        let wanted = self.layout();
        match self.networks {
            Networks::Ready(layout, _) if layout != wanted && is_creating => {
                Next::Do(match self.gateway.state {
                    GatewayState::Absent => Step::RemoveNetworks,
                    _ => Step::RemoveGateway,
                })
            }
            Networks::Ready(..) => self.next_of_gateway(),
            Networks::Made(_) => Next::Do(Step::Inspect),
            Networks::Absent => {
                let names = self.names.all(wanted);
                let missing = names
                    .iter()
                    .find(|name| !self.made.iter().any(|m| m == *name));
                Next::Do(match missing {
                    Some(name) => Step::Create((*name).to_owned()),
                    None => Step::Inspect,
                })
            }
        }
    }

    fn next_of_gateway(&self) -> Next {
        match self.gateway.state {
            GatewayState::Absent => Next::Do(Step::RunGateway),
            GatewayState::Dead => Next::Do(Step::RemoveGateway),
            GatewayState::Starting | GatewayState::Resting => Next::Wait,
            GatewayState::Ready => Next::Done,
        }
    }

    /// What of it there is to remove, from the last made on.
    fn next_removal(&self) -> Option<Step> {
        match self.gateway.state {
            GatewayState::Absent => {
                (self.is_ours && !self.made.is_empty()).then_some(Step::RemoveNetworks)
            }
            _ => Some(Step::RemoveGateway),
        }
    }
}

impl ControlPlane {
    pub(crate) fn connect_then_create(&mut self, attempt: u32) {
        self.phase = Phase::Connecting { attempt };
        match self.egress.as_mut().map(Egress::begin) {
            Some(Err(error)) => self.network_failed(error.into()),
            _ => self.advance_network(),
        }
    }

    /// Goes on with what there is to do for the network, if nothing is under
    /// way.
    pub(crate) fn advance_network(&mut self) {
        let is_creating = matches!(self.phase, Phase::Connecting { .. });
        let Some(egress) = &mut self.egress else {
            return;
        };
        if egress.under_way.is_some() {
            return;
        }
        if egress.down.is_some() {
            return match egress.next_removal() {
                Some(step) => self.begin_step(step),
                None => self.network_is_down(),
            };
        }
        match egress.next(is_creating) {
            Next::Do(step) => {
                egress.ahead.pop_front();
                self.begin_step(step);
            }
            Next::Wait => {}
            Next::Done => {
                if let Phase::Connecting { attempt } = self.phase {
                    self.create_container(attempt);
                }
            }
        }
    }

    fn begin_step(&mut self, step: Step) {
        let Some(egress) = &mut self.egress else {
            return;
        };
        let args = match &step {
            Step::Resolve(name) => return self.resolve(name.clone()),
            Step::RunGateway => return self.run_gateway(),
            Step::Create(name) => egress.names.create_args(name, egress.layout()),
            Step::Inspect => egress.names.inspect_args(egress.layout()),
            Step::FindLeftovers => leftover::list_args(),
            Step::RemoveContainers(ids) => podman::remove_args(ids),
            Step::RemoveNetworks => remove_networks_args(&egress.made),
            Step::RemoveGateway => match self.gateway_id() {
                Some(id) => podman::remove_args(&[id]),
                None => return self.gateway_is_gone(),
            },
        };
        let command = podman::command(&self.context.search_path, args);
        self.spawn_step(step, command);
    }

    /// The C library of the host is asked, by its own program: the one in this
    /// binary could not load the host's sources of names.
    fn resolve(&mut self, name: String) {
        let mut command = Command::new("getent");
        command
            .args(["ahostsv4", &name])
            .env_clear()
            .current_dir("/");
        command.env("PATH", &self.context.search_path);
        self.spawn_step(Step::Resolve(name), command);
    }

    pub(crate) fn spawn_step(&mut self, step: Step, command: Command) {
        match Task::spawn(command) {
            Ok(task) => {
                if let Some(egress) = &mut self.egress {
                    egress.under_way = Some(step);
                }
                self.add_task(task, TaskKind::Network, STEP_LIMIT);
            }
            Err(error) => self.not_begun(&step, PodmanError::Spawn(error)),
        }
    }

    /// At the end, what cannot even be tried is left, and told.
    fn not_begun(&mut self, step: &Step, error: PodmanError) {
        let Some(egress) = self.egress.as_mut().filter(|egress| egress.down.is_some()) else {
            return self.network_failed(error.into());
        };
        match step {
            Step::RemoveNetworks => egress.made.clear(),
            _ => egress.gateway.state = GatewayState::Absent,
        }
        log::error!("cannot take the network down: {error}");
        self.teardown_errors.push(error);
        self.advance_network();
    }

    /// The task of a step has ended.
    pub(crate) fn step_done(&mut self, finished: Option<Finished>) {
        let Some(egress) = &mut self.egress else {
            return;
        };
        let Some(step) = egress.under_way.take() else {
            return;
        };
        let outcome = match finished {
            Some(finished) if finished.status.success() => self.step_succeeded(step, &finished),
            finished => self.step_failed(step, finished),
        };
        match outcome {
            Ok(()) => self.advance_network(),
            Err(error) => self.network_failed(error),
        }
    }

    fn step_succeeded(&mut self, step: Step, finished: &Finished) -> Result<(), Error> {
        let owner_name = self.context.names.gateway.clone();
        let sandbox = self.container_id();
        let Some(egress) = &mut self.egress else {
            return Ok(());
        };
        match step {
            Step::Resolve(_) => {
                egress.take_addresses(targets::parse_getent(&finished.stdout))?;
            }
            Step::Create(name) => egress.network_made(name),
            Step::Inspect => egress.inspected(&finished.stdout)?,
            Step::RunGateway => self.gateway_started(),
            Step::RemoveGateway => egress.gateway.state = GatewayState::Absent,
            Step::FindLeftovers => {
                let owner = Owner {
                    prefix: &egress.names.prefix,
                    sid: &egress.names.sid,
                    name: &owner_name,
                };
                let mut found = leftover::parse(&finished.stdout, owner).ours;
                found.retain(|id| Some(id) != sandbox.as_ref());
                if !found.is_empty() {
                    egress.ahead.push_front(Step::RemoveContainers(found));
                }
            }
            Step::RemoveContainers(_) => {}
            Step::RemoveNetworks => {
                egress.made.clear();
                egress.networks = Networks::Absent;
            }
        }
        Ok(())
    }

    fn step_failed(&mut self, step: Step, finished: Option<Finished>) -> Result<(), Error> {
        let why = match &finished {
            Some(finished) if finished.last_words().is_empty() => finished.status.to_string(),
            Some(finished) => finished.last_words().to_owned(),
            None => "its end was not seen".to_owned(),
        };
        let Some(egress) = &mut self.egress else {
            return Ok(());
        };
        let name = egress.names.inner.clone();
        match step {
            // A name that is not known, among others.
            Step::Resolve(_) => egress.take_addresses(BTreeSet::new())?,
            Step::Create(name) if network::is_there(&why) => egress.network_made(name),
            Step::Create(name) => return Err(EgressError::Network { name, why }.into()),
            Step::Inspect => return Err(EgressError::Network { name, why }.into()),
            Step::RunGateway => self.gateway_refused(&why)?,
            Step::RemoveNetworks if egress.down.is_some() => {
                egress.made.clear();
                self.teardown_failed("remove the network", finished);
            }
            // A container of an earlier life may be on it.
            Step::RemoveNetworks => egress.sweep(EgressError::Network { name, why })?,
            Step::RemoveGateway if egress.down.is_some() => {
                egress.gateway.state = GatewayState::Absent;
                self.teardown_failed("remove the gateway", finished);
            }
            Step::RemoveGateway | Step::FindLeftovers | Step::RemoveContainers(_) => {
                egress.gateway.state = GatewayState::Absent;
                egress.sweep(EgressError::Gateway(why))?;
            }
        }
        Ok(())
    }

    fn teardown_failed(&mut self, what: &'static str, finished: Option<Finished>) {
        let Some(finished) = finished else {
            return;
        };
        log::error!("cannot {what}: {}", finished.stderr);
        self.teardown_errors.push(PodmanError::Failed {
            what,
            status: finished.status,
            stderr: finished.last_words().to_owned(),
        });
    }

    /// The sandbox cannot be had without its network. Where one runs, it
    /// stays: the gateway is tried again.
    pub(crate) fn network_failed(&mut self, error: Error) {
        if self
            .egress
            .as_ref()
            .is_some_and(|egress| egress.down.is_some())
        {
            log::error!("{error}");
            return self.advance_network();
        }
        if !matches!(self.phase, Phase::Connecting { .. }) {
            log::error!("the gateway cannot be started again: {error}");
            return self.rest_gateway();
        }
        if self.was_ready {
            self.create_failed(error, 0);
        } else {
            self.phase = Phase::Waiting;
            self.take_network_down(Then::Failed(error));
        }
    }

    /// podman never had one.
    fn gateway_is_gone(&mut self) {
        if let Some(egress) = &mut self.egress {
            egress.gateway.state = GatewayState::Absent;
        }
        self.advance_network();
    }

    /// The end of the sandbox: what it was connected to goes too.
    pub(crate) fn take_network_down(&mut self, then: Then) {
        self.drop_gateway();
        match &mut self.egress {
            None => self.went_down(then),
            Some(egress) => {
                if egress.down.is_none() {
                    egress.down = Some(then);
                }
                self.advance_network();
            }
        }
    }

    fn network_is_down(&mut self) {
        if let Some(egress) = &mut self.egress
            && let Some(then) = egress.down.take()
        {
            self.went_down(then);
        }
    }
}

impl Egress {
    fn network_made(&mut self, name: String) {
        self.made.push(name);
        if self.made.len() == self.names.all(self.layout()).len() {
            self.networks = Networks::Made(self.layout());
        }
    }

    fn take_addresses(&mut self, addresses: BTreeSet<Ipv4Addr>) -> Result<(), EgressError> {
        if let Some(name) = self.unresolved.pop() {
            self.resolved.insert(name, addresses);
        }
        if self.unresolved.is_empty() {
            self.fix_targets()?;
        }
        Ok(())
    }

    /// At the first create every tcp rule must have an address. Later ones are
    /// not given up for a rule that was added since, or a name that is gone.
    fn fix_targets(&mut self) -> Result<(), EgressError> {
        let (targets, unfit) = Targets::new(&self.setup.policy, &self.resolved);
        self.targets = targets;
        for error in unfit {
            if !self.was_up {
                return Err(error);
            }
            log::warn!("{error}; it goes through the gateway");
        }
        self.was_up = true;
        Ok(())
    }

    fn inspected(&mut self, output: &str) -> Result<(), EgressError> {
        let layout = self.layout();
        let name = self.names.inner.clone();
        match self.names.parse(output, layout) {
            Ok(lan) => {
                self.is_ours = true;
                self.networks = Networks::Ready(layout, lan);
            }
            Err(Unfit::Foreign(name)) => return Err(EgressError::NameTaken(name)),
            Err(Unfit::Stale) => {
                self.is_ours = true;
                let why = "one of another kind is in the way".to_owned();
                self.sweep(EgressError::Network { name, why })?;
                self.ahead.push_back(Step::RemoveNetworks);
            }
            Err(Unfit::Unclear(why)) => return Err(EgressError::Network { name, why }),
        }
        Ok(())
    }

    /// Has what an earlier life has left removed, or gives up.
    pub(crate) fn sweep(&mut self, error: EgressError) -> Result<(), EgressError> {
        self.sweeps += 1;
        if self.sweeps > MAX_SWEEPS {
            return Err(error);
        }
        self.ahead.push_back(Step::FindLeftovers);
        Ok(())
    }
}

fn remove_networks_args(names: &[String]) -> Vec<OsString> {
    let command = ["network", "rm"].into_iter().map(OsString::from);
    command.chain(names.iter().map(OsString::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const INNER: &str = "umwelt-egress-0123abcd";
    const OUTER: &str = "umwelt-egress-out-0123abcd";
    const TCP: &str = "[[egress.tcp]]\nhost = '9.9.9.9'\nport = 22\n";

    fn egress(text: &str) -> Egress {
        let names = NetworkNames {
            prefix: "umwelt".into(),
            sid: "0123abcd".into(),
            inner: INNER.into(),
            outer: OUTER.into(),
        };
        Egress::new(Setup::for_test(text), names, Path::new("/d"))
    }

    fn ready(text: &str) -> Egress {
        let mut egress = egress(text);
        let layout = egress.layout();
        let lan = Lan {
            gateway: Ipv4Addr::new(10, 89, 0, 1),
            sandbox: Ipv4Addr::new(10, 89, 0, 2),
        };
        egress.networks = Networks::Ready(layout, lan);
        egress.made = egress
            .names
            .all(layout)
            .into_iter()
            .map(str::to_owned)
            .collect();
        egress.is_ours = true;
        egress.gateway.state = GatewayState::Ready;
        egress
    }

    fn inspected(label: &str, internal: bool) -> String {
        let network = |name: &str, internal: bool| {
            serde_json::json!({
                "name": name, "driver": "bridge", "subnets": [{"subnet": "10.89.0.0/24"}],
                "internal": internal, "dns_enabled": false, "options": {"isolate": "true"},
                "labels": {"umwelt.prefix": label, "umwelt.sid": "0123abcd"},
            })
        };
        serde_json::json!([network(INNER, internal), network(OUTER, false)]).to_string()
    }

    #[test]
    fn networks_come_first_then_the_gateway() {
        let mut egress = egress("");
        egress.begin().unwrap();
        for name in [INNER, OUTER] {
            assert_eq!(egress.next(true), Next::Do(Step::Create(name.into())));
            egress.made.push(name.to_owned());
        }
        assert_eq!(egress.next(true), Next::Do(Step::Inspect));
        egress.inspected(&inspected("umwelt", true)).unwrap();
        assert_eq!(egress.next(true), Next::Do(Step::RunGateway));
        egress.gateway.state = GatewayState::Starting;
        assert_eq!(egress.next(true), Next::Wait);
        egress.gateway.state = GatewayState::Ready;
        assert_eq!(egress.next(true), Next::Done);
    }

    #[test]
    fn names_of_direct_targets_are_asked_for_before_anything_else() {
        let mut egress = egress(&TCP.replace("9.9.9.9", "a.example.org"));
        egress.begin().unwrap();
        let asked = Next::Do(Step::Resolve("a.example.org".into()));
        assert_eq!(egress.next(true), asked);
        let error = egress.take_addresses(BTreeSet::new()).unwrap_err();
        assert!(error.to_string().contains("no IPv4 address"), "{error}");
        egress.begin().unwrap();
        let address = Ipv4Addr::new(8, 8, 8, 8);
        egress.take_addresses(BTreeSet::from([address])).unwrap();
        assert_eq!(egress.targets.addresses, BTreeSet::from([(address, 22)]));
        assert_eq!(egress.next(true), Next::Do(Step::Create(INNER.into())));
        // The name is gone at a later create: the sandbox is not given up.
        egress.begin().unwrap();
        egress.take_addresses(BTreeSet::new()).unwrap();
        assert!(egress.targets.addresses.is_empty());
    }

    #[test]
    fn other_layout_takes_other_networks_once_no_sandbox_runs() {
        let mut egress = ready("");
        egress.setup = Setup::for_test(TCP);
        assert_eq!(egress.next(false), Next::Done);
        assert_eq!(egress.next(true), Next::Do(Step::RemoveGateway));
        egress.gateway.state = GatewayState::Absent;
        assert_eq!(egress.next(true), Next::Do(Step::RemoveNetworks));
    }

    #[test]
    fn dead_gateway_is_removed_and_a_resting_one_is_left() {
        let mut egress = ready("");
        egress.gateway.state = GatewayState::Resting;
        assert_eq!(egress.next(false), Next::Wait);
        egress.gateway.state = GatewayState::Dead;
        assert_eq!(egress.next(false), Next::Do(Step::RemoveGateway));
    }

    #[test]
    fn only_what_is_ours_is_removed() {
        let mut egress = ready("");
        assert_eq!(egress.next_removal(), Some(Step::RemoveGateway));
        egress.gateway.state = GatewayState::Absent;
        assert_eq!(egress.next_removal(), Some(Step::RemoveNetworks));
        egress.is_ours = false;
        assert_eq!(egress.next_removal(), None);
        let foreign = egress.inspected(&inspected("other", true)).unwrap_err();
        assert!(matches!(foreign, EgressError::NameTaken(_)));
        assert_eq!(egress.next_removal(), None);
    }

    #[test]
    fn stale_networks_are_made_anew_but_not_for_ever() {
        let mut egress = egress("");
        let stale = inspected("umwelt", false);
        egress.inspected(&stale).unwrap();
        assert_eq!(egress.ahead, [Step::FindLeftovers, Step::RemoveNetworks]);
        let last = (0..MAX_SWEEPS).find_map(|_| egress.inspected(&stale).err());
        assert!(matches!(last, Some(EgressError::Network { .. })));
    }
}
