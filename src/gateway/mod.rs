//! umwelt-gateway: the only way out of a sandbox that has one.
//!
//! Clients come to the HTTP or SOCKS5 port, or ask for names. What the policy
//! names is passed on and recorded; everything else is answered with what to
//! ask for. Nothing the sandbox sends is trusted.

pub(crate) mod audit;
pub(crate) mod denial;
pub(crate) mod dns;
pub(crate) mod http;
mod inspected;
mod listen;
mod live;
mod options;
pub(crate) mod path;
pub(crate) mod proxy;
mod shared;
mod supervisor;
pub(crate) mod tls;
mod upstream;

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use rustls::crypto::CryptoProvider;

use crate::cli;
use crate::error::Error;
use crate::gateway::audit::Audit;
use crate::gateway::dns::Service;
use crate::gateway::listen::Listeners;
use crate::gateway::live::{Change, PolicyFile};
use crate::gateway::options::{Asked, Options};
use crate::gateway::proxy::balance::Loads;
use crate::gateway::proxy::{Mail, Worker};
use crate::gateway::shared::{Mailbox, Shared};
use crate::gateway::supervisor::Supervisor;
use crate::gateway::tls::authority::{Authority, CertificateError};
use crate::gateway::tls::leaf::Leaves;
use crate::policy::decide::Rules;
use crate::sys;

const NAME: &str = "umwelt-gateway";
/// How often the policy file is looked at, should no event tell of a change.
const BACKSTOP: Duration = Duration::from_secs(2);
/// The same where there are no events.
const WITHOUT_EVENTS: Duration = Duration::from_millis(500);
/// How long open connections have to be recorded at the end.
const LAST_WORDS: Duration = Duration::from_secs(3);

const SIGNALS: Token = Token(0);
const POLICY: Token = Token(1);
const THREADS: Token = Token(2);
const SUPERVISOR: Token = Token(3);

/// Why the gateway does not start.
#[derive(Debug)]
pub(crate) enum GatewayError {
    Policy {
        path: std::path::PathBuf,
        why: String,
    },
    Certificate(CertificateError),
    Listen {
        what: String,
        source: io::Error,
    },
}

impl std::fmt::Display for GatewayError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            GatewayError::Policy { path, why } => {
                write!(f, "the policy {path:?} cannot be used: {why}")
            }
            GatewayError::Certificate(error) => error.fmt(f),
            GatewayError::Listen { what, source } => write!(f, "cannot listen on {what}: {source}"),
        }
    }
}

impl GatewayError {
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            GatewayError::Policy { .. } => Some(
                "umwelt-run writes the policy; restart the sandbox: umwelt-ctl stop WORKSPACE"
                    .to_owned(),
            ),
            GatewayError::Certificate(error) => error.hint(),
            GatewayError::Listen { .. } => {
                Some("give an address of this machine with --listen, and free ports".to_owned())
            }
        }
    }
}

impl From<CertificateError> for GatewayError {
    fn from(error: CertificateError) -> GatewayError {
        GatewayError::Certificate(error)
    }
}

pub(crate) fn main(args: Vec<OsString>) -> Result<ExitCode, Error> {
    let options = match options::parse(args)? {
        Asked::Serve(options) => options,
        Asked::Help => return Ok(cli::print(options::HELP)),
        Asked::Version => return Ok(cli::version(NAME)),
    };
    // Before anything else is opened.
    let supervisor = Supervisor::take(options.supervised)
        .map_err(|error| Error::io("use the socket on descriptor 3", error))?;
    cli::start_log(NAME);
    let signals = sys::signal::readable_on(&sys::signal::END)
        .map_err(|error| Error::io("watch for signals", error))?;
    // A limit of the file size is an error to write then, not the end.
    signal_hook::flag::register(libc::SIGXFSZ, Arc::default())
        .map_err(|error| Error::io("watch for signals", error))?;
    raise_file_limit();
    let gateway = match Gateway::start(&options, &supervisor) {
        Ok(gateway) => gateway,
        Err(error) => {
            supervisor.tell(&serde_json::json!({"event": "failed", "why": error.to_string()}));
            return Err(error);
        }
    };
    gateway.serve(&signals, &supervisor)?;
    Ok(ExitCode::SUCCESS)
}

/// Ten thousand tunnels need twice as many descriptors.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        log::warn!("cannot raise the limit of open files: {error}");
    }
}

#[derive(Debug)]
struct Gateway {
    poll: Poll,
    shared: Arc<Shared>,
    policy: PolicyFile,
    /// As it was told last.
    audit_is_well: bool,
    resolver_is_silent: bool,
    watch: Option<std::os::fd::OwnedFd>,
    workers: Vec<Mailbox<Mail>>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    dns: JoinHandle<io::Result<()>>,
}

impl Gateway {
    fn start(options: &Options, supervisor: &Supervisor) -> Result<Gateway, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut policy = PolicyFile::new(options.policy.clone());
        let watch = watch_policy(options);
        let rules = first_policy(&mut policy, options)?;
        let audit = Audit::open(&options.audit, options.rotation)
            .map_err(|error| Error::io(format!("open the audit {:?}", options.audit), error))?;
        let leaves = load_leaves(options, &provider)?;
        let upstream =
            tls::upstream::config(provider.clone(), &options.roots).map_err(GatewayError::from)?;
        let listeners = Listeners::bind(options)?;
        let ready = listeners.ready.clone();
        let failed = |error| Error::io("set up the event loops", error);

        let (asks, asked) = mpsc::channel();
        let (service, dns_waker) =
            Service::new(listeners.dns, asked, options.resolvers.clone(), provider)
                .map_err(failed)?;
        let dns = Mailbox::new(asks, dns_waker);
        let workspace = options.workspace.clone();
        let count = options.threads;
        let loads = Loads::new(count, options.share_at);
        let shared = Shared::new(rules, leaves, upstream, audit, dns, workspace, loads);
        let shared = Arc::new(shared);
        let poll = Poll::new().map_err(failed)?;
        let ended = Arc::new(Waker::new(poll.registry(), THREADS).map_err(failed)?);
        let mut clients = Some((listeners.http, listeners.socks));
        let mut workers = Vec::new();
        let mut prepared = Vec::new();
        for index in 0..count {
            let (mail, worker) = prepare_worker(&shared, clients.take(), index).map_err(failed)?;
            workers.push(mail);
            prepared.push(worker);
        }
        let end = Arc::new(Barrier::new(count));
        let mut threads = Vec::new();
        for worker in prepared {
            let (peers, end) = (workers.clone(), end.clone());
            let run = move || worker.run(peers, &end);
            threads.push(spawn("worker", &ended, run).map_err(failed)?);
        }
        let (for_dns, mail) = (shared.clone(), workers.clone());
        let dns = spawn("dns", &ended, move || service.run(&for_dns, &mail)).map_err(failed)?;
        shared.note("gateway", "start", None);
        announce(&ready, supervisor);
        Ok(Gateway {
            poll,
            shared,
            policy,
            audit_is_well: true,
            resolver_is_silent: false,
            watch,
            workers,
            threads,
            dns,
        })
    }

    /// Serves until a signal asks it to end, or the supervisor is gone.
    fn serve(mut self, signals: &impl AsRawFd, supervisor: &Supervisor) -> Result<(), Error> {
        let failed = |error| Error::io("wait for events", error);
        let register = |fd: i32, token| {
            self.poll
                .registry()
                .register(&mut SourceFd(&fd), token, Interest::READABLE)
        };
        register(signals.as_raw_fd(), SIGNALS).map_err(failed)?;
        if let Some(watch) = &self.watch {
            register(watch.as_raw_fd(), POLICY).map_err(failed)?;
        }
        if let Some(socket) = supervisor.socket() {
            register(socket.as_raw_fd(), SUPERVISOR).map_err(failed)?;
        }
        // Most of it has served the start alone.
        drop(sys::memory::release_file_pages());
        let mut events = Events::with_capacity(16);
        let pause = match self.watch {
            Some(_) => BACKSTOP,
            None => WITHOUT_EVENTS,
        };
        loop {
            match self.poll.poll(&mut events, Some(pause)) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    return Err(failed(error));
                }
                _ => {}
            }
            let is_told = events.iter().any(|event| event.token() == SIGNALS);
            if is_told || supervisor.is_gone() {
                self.stop();
                return Ok(());
            }
            if self.dns.is_finished() || self.threads.iter().any(JoinHandle::is_finished) {
                return Err(self.lost_thread());
            }
            self.drain_watch();
            self.look_at_policy(supervisor);
            self.look_at_audit(supervisor);
            self.look_at_resolver(supervisor);
        }
    }

    fn drain_watch(&self) {
        let mut buffer = [0; 4096];
        if let Some(watch) = &self.watch {
            while matches!(rustix::io::read(watch, &mut buffer), Ok(1..)) {}
        }
    }

    fn look_at_policy(&mut self, supervisor: &Supervisor) {
        match self.policy.look() {
            Change::None => {}
            Change::Rules(rules) => {
                let summary = rules.summary();
                self.shared.replace_rules(*rules);
                for worker in &self.workers {
                    worker.send(Mail::PolicyChanged);
                }
                self.shared.note("policy", "loaded", Some(&summary));
                supervisor.tell(
                    &serde_json::json!({"event": "policy", "state": "loaded", "rules": summary}),
                );
            }
            Change::Broken(why) => {
                log::error!("the policy is broken, so the last good one stays: {why}");
                self.shared.note("policy", "broken", Some(&why));
                supervisor
                    .tell(&serde_json::json!({"event": "policy", "state": "broken", "why": why}));
            }
        }
    }

    /// Told when it turns, for whoever asks why everything is refused.
    fn look_at_audit(&mut self, supervisor: &Supervisor) {
        let is_well = self.shared.audit.is_ready();
        if std::mem::replace(&mut self.audit_is_well, is_well) != is_well {
            let state = if is_well { "well" } else { "failing" };
            supervisor.tell(&serde_json::json!({"event": "audit", "state": state}));
        }
    }

    /// The same for names that nobody knows any more.
    fn look_at_resolver(&mut self, supervisor: &Supervisor) {
        let is_silent = self.shared.is_resolver_silent.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.resolver_is_silent, is_silent) != is_silent {
            let state = if is_silent { "silent" } else { "well" };
            supervisor.tell(&serde_json::json!({"event": "resolver", "state": state}));
        }
    }

    fn stop(self) {
        for worker in &self.workers {
            worker.send(Mail::Stop);
        }
        let until = Instant::now() + LAST_WORDS;
        while Instant::now() < until && !self.threads.iter().all(JoinHandle::is_finished) {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.shared.note("gateway", "end", None);
    }

    /// A gateway that serves by half is worse than one that is started again.
    fn lost_thread(self) -> Error {
        let mut threads = self.threads;
        threads.push(self.dns);
        let ended = threads
            .into_iter()
            .find(JoinHandle::is_finished)
            .map(JoinHandle::join);
        let cause = match ended {
            Some(Ok(Err(error))) => error,
            _ => io::Error::other("a thread has ended"),
        };
        Error::io("go on serving", cause)
    }
}

fn watch_policy(options: &Options) -> Option<std::os::fd::OwnedFd> {
    match live::watch(&options.policy) {
        Ok(watch) => Some(watch),
        Err(error) => {
            log::warn!(
                "cannot watch {:?}, so changes take longer: {error}",
                options.policy
            );
            None
        }
    }
}

fn first_policy(policy: &mut PolicyFile, options: &Options) -> Result<Rules, GatewayError> {
    let broken = |why| GatewayError::Policy {
        path: options.policy.clone(),
        why,
    };
    match policy.look() {
        Change::Rules(rules) => Ok(*rules),
        Change::Broken(why) => Err(broken(why)),
        Change::None => Err(broken("it was not read".to_owned())),
    }
}

fn load_leaves(options: &Options, provider: &Arc<CryptoProvider>) -> Result<Leaves, GatewayError> {
    let authority = Authority::load(&options.ca_cert, &options.ca_key)?;
    let leaves = Leaves::new(provider.clone(), authority)?;
    leaves.check(&options.ca_cert)?;
    Ok(leaves)
}

fn prepare_worker(
    shared: &Arc<Shared>,
    listeners: Option<(std::net::TcpListener, std::net::TcpListener)>,
    index: usize,
) -> io::Result<(Mailbox<Mail>, Worker)> {
    let poll = Poll::new()?;
    let waker = Arc::new(Waker::new(poll.registry(), Worker::MAIL)?);
    let (sender, mail) = mpsc::channel();
    let worker = Worker::new(shared.clone(), poll, mail, listeners, index)?;
    Ok((Mailbox::new(sender, waker), worker))
}

/// A thread whose end is noticed.
fn spawn(
    name: &str,
    ended: &Arc<Waker>,
    run: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let ended = ended.clone();
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            let result = run();
            // The regular look finds it otherwise.
            let _ = ended.wake();
            result
        })
}

fn announce(ready: &listen::Ready, supervisor: &Supervisor) {
    let shown = |address: SocketAddr| address.to_string();
    supervisor.tell(&serde_json::json!({
        "event": "ready",
        "proxy": shown(ready.proxy),
        "socks": shown(ready.socks),
        "dns": shown(ready.dns),
    }));
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Whether the command line would be taken.
    pub(crate) fn parse(args: Vec<OsString>) -> Result<(), Error> {
        options::parse(args).map(drop)
    }
}
