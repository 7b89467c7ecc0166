//! The rules of a sandbox's network, confirmed before any command runs: what
//! must be refused is tried inside, then the rules are read back with what
//! they have counted.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

use crate::egress::EgressError;
use crate::egress::environment::{self, BUNDLE, PORTS};
use crate::egress::setup::HOOKS_DIR;
use crate::egress::targets::LOOPBACK;
use crate::error::Error;
use crate::init::wire::ToInit;
use crate::nft::oci::{self, HookFile};
use crate::nft::probe::{self, Attempt};
use crate::nft::readback::{self, ReadBack};
use crate::nft::ruleset::Ruleset;
use crate::podman::argv::{EgressNetwork, Network};
use crate::policy::mounts::{Access, Mount, Origin};
use crate::run::control_plane::ControlPlane;
use crate::run::lifecycle::TaskKind;
use crate::run::network::Egress;
use crate::run::poller::Timer;
use crate::run::task::{Finished, Task};
use crate::run::verify::Verified;

/// It starts nft, which takes a moment.
const READ_BACK_LIMIT: Duration = Duration::from_secs(30);
/// For all attempts: each of them is refused at once, or the sandbox is not
/// used.
const PROBE_LIMIT: Duration = Duration::from_secs(35);

/// A sandbox that is sealed but for its network.
#[derive(Debug)]
pub(crate) struct Checking {
    verified: Verified,
    attempts: Vec<Attempt>,
    /// In their order, once they are told.
    errnos: Vec<i32>,
}

fn failed(detail: impl Into<String>) -> Error {
    EgressError::Rules(detail.into()).into()
}

/// What a container is connected to, at its address.
pub(crate) fn network_of(egress: &Egress, address: Ipv4Addr, runtime: &Path) -> Network {
    Network::Egress(EgressNetwork {
        name: egress.names.inner.clone(),
        address,
        hooks_dirs: egress.setup.hooks_dirs.clone(),
        hook_stderr: oci::stderr_annotation(&runtime.join(HOOK_SAID)),
    })
}

impl ControlPlane {
    /// The files of the hook and of the sandbox's network, and the network
    /// that its container is created with.
    pub(crate) fn prepare_network(&mut self) -> Result<(), Error> {
        let Some(egress) = &self.egress else {
            let hosts = LOOPBACK.as_bytes();
            return self.write_runtime_file("hosts", hosts);
        };
        let Some(lan) = egress.lan() else {
            return Err(failed("the network has no addresses"));
        };
        let ruleset = egress.ruleset()?;
        let runtime = &self.context.names.runtime;
        let hook = self.hook_file(egress, &ruleset);
        let config = oci::hook_config(&hook)?;
        let hosts = egress.targets.render_hosts(&egress.setup.policy);
        let resolv = format!("nameserver {}\n", lan.gateway);
        let network = network_of(egress, lan.sandbox, runtime);
        crate::dirs::create_private(&runtime.join(HOOKS_DIR))?;
        for (name, text) in [
            ("hosts", &hosts),
            ("resolv.conf", &resolv),
            (RULESET, &ruleset),
            (HOOK_SAID, &String::new()),
            (&format!("{HOOKS_DIR}/{}", oci::FILE_NAME), &config),
        ] {
            self.write_runtime_file(name, text.as_bytes())?;
        }
        self.context.spec.network = network;
        Ok(())
    }

    /// For commands, in the sandbox that runs now.
    pub(crate) fn network_variables(&self) -> Vec<(String, String)> {
        match self
            .egress
            .as_ref()
            .and_then(|egress| Some((egress, egress.lan()?)))
        {
            Some((egress, lan)) => environment::variables(lan.gateway, &egress.setup.variables),
            None => Vec::new(),
        }
    }

    fn hook_file<'a>(&'a self, egress: &'a Egress, ruleset: &'a str) -> HookFile<'a> {
        HookFile {
            exe: &self.context.exe,
            ruleset,
            ruleset_file: &self.context.ruleset_file,
            nft: &egress.setup.state.nft,
        }
    }

    /// What the hook said, where podman only knows that it failed; or that
    /// podman could not run it.
    pub(crate) fn hook_failure(&self, finished: &Finished) -> Option<String> {
        self.egress.as_ref()?;
        let path = self.context.names.runtime.join(HOOK_SAID);
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let said = text.lines().map(str::trim).find(|line| !line.is_empty());
        let last = finished.last_words();
        said.or_else(|| last.contains("hook").then_some(last))
            .map(str::to_owned)
    }

    /// Hands the sandbox back where it has no network; else goes on to try
    /// what must be refused.
    pub(crate) fn probe_network(&mut self, verified: Verified) -> Option<Verified> {
        let Some(egress) = &mut self.egress else {
            return Some(verified);
        };
        let attempts = match egress.rules() {
            Ok(rules) => probe::attempts(&rules).to_vec(),
            Err(error) => {
                self.create_impossible(error);
                return None;
            }
        };
        let message = ToInit::Probe {
            attempts: attempts.clone(),
        };
        egress.checking = Some(Checking {
            verified,
            attempts,
            errnos: Vec::new(),
        });
        let pushed = self
            .channel
            .as_mut()
            .map(|channel| channel.push(&message, Vec::new()));
        if let Some(Err(error)) = pushed {
            self.create_impossible(Error::io("ask pid 1 for a probe", error));
            return None;
        }
        self.poller
            .set(Timer::Handshake(self.container), PROBE_LIMIT);
        self.flush_channel();
        None
    }

    /// pid 1 has told what became of the attempts. What nobody has asked for
    /// is passed over.
    pub(crate) fn on_probed(&mut self, errnos: Vec<i32>) {
        let Some(checking) = self.egress.as_mut().and_then(|e| e.checking.as_mut()) else {
            return;
        };
        if !checking.errnos.is_empty() {
            return;
        }
        self.poller.unset(Timer::Handshake(self.container));
        if let Err(error) = checking.take(errnos).and_then(|()| self.read_back()) {
            self.create_impossible(error);
        }
    }

    fn read_back(&mut self) -> Result<(), Error> {
        let Some(egress) = &self.egress else {
            return Ok(());
        };
        let Some(checking) = &egress.checking else {
            return Ok(());
        };
        let task = self.read_back_task(egress, &checking.verified)?;
        self.add_task(task, TaskKind::ReadBack(self.container), READ_BACK_LIMIT);
        Ok(())
    }

    pub(crate) fn read_back_task(
        &self,
        egress: &Egress,
        verified: &Verified,
    ) -> Result<Task, Error> {
        let ruleset = egress.ruleset()?;
        let hook = self.hook_file(egress, &ruleset);
        let pidfd = std::os::fd::AsFd::as_fd(&verified.pidfd);
        let command = readback::command(&self.context.exe, &hook, pidfd);
        Task::spawn(command).map_err(|error| Error::io("read the rules back", error))
    }

    /// The rules were read back, or could not be.
    pub(crate) fn rules_read_back(&mut self, number: u64, finished: Option<&Finished>) {
        if number != self.container {
            return;
        }
        let Some(egress) = &mut self.egress else {
            return;
        };
        let Some(checking) = egress.checking.take() else {
            return;
        };
        match checking.confirm(finished) {
            Ok((verified, found)) => {
                egress.digest = Some(found.digest);
                egress.counting.begin(found.counts);
                self.check_then_serve(verified);
            }
            Err(error) => self.create_impossible(error),
        }
    }
}

const RULESET: &str = "nft.json";
const HOOK_SAID: &str = "hook.said";

/// Where the hook finds the rules.
pub(crate) fn ruleset_file(runtime: &Path) -> PathBuf {
    runtime.join(RULESET)
}

/// What a sandbox with egress sees besides, read-only.
pub(crate) fn mounts(runtime: &Path, bundle: &Path) -> Vec<Mount> {
    let bind = |path: &str, source: &Path| {
        let source = source.to_string_lossy();
        Mount::bind(path, &source, Access::ReadOnly, Origin::Umwelt)
    };
    vec![
        bind("/etc/resolv.conf", &runtime.join("resolv.conf")),
        bind(BUNDLE, bundle),
    ]
}

impl Egress {
    fn rules(&self) -> Result<Ruleset, Error> {
        let lan = self
            .lan()
            .ok_or_else(|| failed("the network has no addresses"))?;
        let targets = self.targets.addresses.iter().copied();
        Ok(Ruleset::new(lan.gateway, PORTS, targets)?)
    }

    fn ruleset(&self) -> Result<String, Error> {
        Ok(self.rules()?.render()?)
    }
}

impl Checking {
    /// Each attempt must have been refused at once.
    fn take(&mut self, errnos: Vec<i32>) -> Result<(), Error> {
        if errnos.len() != self.attempts.len() {
            return Err(failed("pid 1 has not told what became of each attempt"));
        }
        let refused = |(attempt, errno): &(&Attempt, &i32)| attempt.is_refused(**errno);
        let got_out = self
            .attempts
            .iter()
            .zip(&errnos)
            .find(|pair| !refused(pair));
        if let Some((attempt, errno)) = got_out {
            let (protocol, to) = (attempt.protocol, attempt.to);
            let detail = format!("{protocol:?} to {to} was not refused (errno {errno})");
            return Err(failed(detail));
        }
        self.errnos = errnos;
        Ok(())
    }

    /// The rules are there, and it was they who refused.
    fn confirm(self, finished: Option<&Finished>) -> Result<(Verified, ReadBack), Error> {
        let Some(finished) = finished else {
            return Err(failed("reading them back did not end"));
        };
        if !finished.status.success() {
            return Err(failed(first_line(&finished.stderr)));
        }
        let found = readback::parse(&finished.stdout)?;
        // Where there was no way at all, no rule was asked.
        let reached = |errno: &i32| *errno != Errno::NETUNREACH.raw_os_error();
        let tried = self.attempts.iter().zip(&self.errnos);
        let mut uncounted = tried
            .filter(|(attempt, errno)| reached(errno) && !attempt.is_counted(&found.counts.denied));
        if let Some((attempt, _)) = uncounted.next() {
            let detail = format!("they have not counted what was tried: {}", attempt.to);
            return Err(failed(detail));
        }
        if !self.errnos.iter().any(reached) {
            return Err(failed("nothing that was tried has reached them"));
        }
        Ok((self.verified, found))
    }
}

fn first_line(text: &str) -> &str {
    text.lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("nothing was said")
}
