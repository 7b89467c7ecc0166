//! A running control plane with a workspace of its own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use serde_json::Value;
use tempfile::TempDir;

use super::{Client, PATIENCE, applet, host, wait_for};

/// Names of containers, sockets and locks of tests begin with it.
pub(crate) const PREFIX: &str = "umwelt-test";
/// Limits that tests can reach quickly.
pub(crate) const CONFIG: &str = r#"
session_prefix = "umwelt-test"
[resources]
memory = "512m"
cpus = 2
pids_limit = 300
[shell]
timeout_s = 60
max_timeout_s = 300
[scratch]
home = "24m"
tmp = "32m"
shm = "16m"
"#;
const KILLED_LIMIT: Duration = Duration::from_secs(10);

/// How a sandbox is to be started.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// The workspace, below the place of this sandbox; or an absolute path.
    pub(crate) workspace: PathBuf,
    /// The path that `--workspace` is given, where that is another one.
    pub(crate) asked: Option<PathBuf>,
    /// The base config.
    pub(crate) config: String,
    /// Further files, with their paths below the place of this sandbox.
    pub(crate) files: Vec<(&'static str, String)>,
    /// Added to the environment of the control plane.
    pub(crate) env: Vec<(&'static str, String)>,
    /// Start it as a client does: it ends with its last client.
    pub(crate) launched: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            workspace: "project".into(),
            asked: None,
            config: CONFIG.to_owned(),
            files: Vec::new(),
            env: Vec::new(),
            launched: false,
        }
    }
}

/// The directories of a sandbox to be. Podman's storage stays that of the
/// user, so `XDG_DATA_HOME` does too.
#[derive(Debug)]
pub(crate) struct Place {
    dir: TempDir,
    pub(crate) options: Options,
    /// By its real path.
    pub(crate) workspace: PathBuf,
}

impl Place {
    pub(crate) fn new(options: Options) -> Place {
        sweep();
        let dir = tempfile::Builder::new()
            .prefix(&format!("tb-{}-", std::process::id()))
            .tempdir_in(host::home())
            .expect("a directory in the home");
        let config = [("config/umwelt/umwelt.toml", options.config.clone())];
        for (name, text) in config.iter().chain(&options.files) {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let workspace = dir.path().join(&options.workspace);
        std::fs::create_dir_all(&workspace).unwrap();
        Place {
            workspace: workspace.canonicalize().unwrap(),
            options,
            dir,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// `umwelt-run` for this place, still without its arguments.
    pub(crate) fn command(&self) -> Command {
        self.applet("umwelt-run")
    }

    /// An applet in the environment of this place.
    pub(crate) fn applet(&self, name: &str) -> Command {
        let mut command = applet(name);
        command
            .env("XDG_CONFIG_HOME", self.path().join("config"))
            .env("XDG_STATE_HOME", self.path().join("state"))
            .env("RUST_BACKTRACE", "1")
            .envs(self.options.env.iter().cloned())
            .current_dir("/");
        command
    }

    /// The argument of `--workspace`.
    pub(crate) fn asked(&self) -> PathBuf {
        match &self.options.asked {
            Some(asked) => self.path().join(asked),
            None => self.workspace.clone(),
        }
    }

    /// First 8 hex digits of the SHA-256 of the workspace's real path.
    pub(crate) fn sid(&self) -> String {
        use sha2::Digest;
        let digest = sha2::Sha256::digest(self.workspace.as_os_str().as_encoded_bytes());
        digest[..4]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    pub(crate) fn name(&self) -> String {
        format!("{PREFIX}-{}", self.sid())
    }

    pub(crate) fn socket(&self) -> PathBuf {
        host::runtime_dir().join(format!("{}.sock", self.name()))
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path().join("state/umwelt").join(self.name())
    }

    pub(crate) fn journal(&self) -> PathBuf {
        let own = self
            .options
            .env
            .iter()
            .find(|(name, _)| *name == "XDG_DATA_HOME");
        let data = own
            .map(|(_, value)| value.into())
            .or_else(|| std::env::var_os("XDG_DATA_HOME"))
            .map_or_else(|| host::home().join(".local/share"), PathBuf::from);
        data.join(format!("umwelt/journal-{}.jsonl", self.name()))
    }

    /// What `umwelt-run` has written to stderr.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path().join("log")).unwrap_or_default()
    }

    /// Starts `umwelt-run` with stderr in the log.
    pub(crate) fn spawn(&self) -> Child {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path().join("log"))
            .unwrap();
        let mut command = self.command();
        if self.options.launched {
            command.arg("--detach");
        }
        command
            .arg("--workspace")
            .arg(self.asked())
            .stdin(std::process::Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("umwelt-run")
    }

    /// Nothing that belongs to the sandbox is on the host any more.
    pub(crate) fn assert_nothing_left(&self) {
        let sid = self.sid();
        assert_eq!(host::containers(&sid), Vec::<String>::new(), "containers");
        assert!(!self.socket().exists(), "{:?} exists", self.socket());
        let runtime = host::runtime_dir().join(self.name());
        assert!(!runtime.exists(), "{runtime:?} exists");
        let shown = || -> Vec<String> {
            let processes = host::processes_with(&self.name());
            processes.into_iter().map(host::command_line).collect()
        };
        // One that was killed may not have had its turn to die.
        let end = std::time::Instant::now() + KILLED_LIMIT;
        while !shown().is_empty() && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
        let shown = shown();
        assert!(shown.is_empty(), "processes: {shown:?}");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let lock = host::runtime_dir().join(format!("{}.lock", self.name()));
        drop(std::fs::remove_file(lock));
        drop(std::fs::remove_file(self.journal()));
        if std::thread::panicking() {
            eprintln!("---- umwelt-run said:\n{}----", self.log());
        }
    }
}

/// Removes what earlier test runs could not.
fn sweep() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        for entry in std::fs::read_dir(host::home())
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|name| {
                name.strip_prefix("tb-")?
                    .split('-')
                    .next()?
                    .parse::<u32>()
                    .ok()
            });
            if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                drop(std::fs::remove_dir_all(entry.path()));
            }
        }
    });
}

/// A control plane whose sandbox is ready; it ends with this guard.
#[derive(Debug)]
pub(crate) struct Sandbox {
    /// The process that was started; a launched one has left it behind.
    child: Child,
    /// Keeps a launched control plane.
    holder: Option<Client>,
    /// The process that serves.
    pub(crate) pid: u32,
    pub(crate) place: Arc<Place>,
    has_ended: bool,
}

impl Sandbox {
    /// `None` on a host that cannot run sandboxes.
    pub(crate) fn start(options: Options) -> Option<Sandbox> {
        host::qualifies().then(|| Sandbox::start_at(Place::new(options)))
    }

    pub(crate) fn start_at(place: impl Into<Arc<Place>>) -> Sandbox {
        let place = place.into();
        let mut child = place.spawn();
        let launched = place.options.launched;
        let mut client = wait_for("the socket", PATIENCE, || {
            let ended = child.try_wait().unwrap().filter(|_| !launched);
            assert!(ended.is_none(), "umwelt-run: {ended:?}\n{}", place.log());
            Client::try_raw(&place.socket()).ok()
        });
        let hello = serde_json::json!({"api": 1, "client": "test/guard", "holds": launched});
        client.call("hello", hello).expect("hello");
        // Answered when the sandbox is ready.
        client
            .call("list", serde_json::json!({}))
            .unwrap_or_else(|error| panic!("not ready: {error}\n{}", place.log()));
        let status = client.call("status", serde_json::json!({})).unwrap();
        assert_eq!(status["state"], "ready", "{status}");
        Sandbox {
            child,
            pid: u32::try_from(status["pid"].as_u64().unwrap()).unwrap(),
            holder: launched.then_some(client),
            place,
            has_ended: false,
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.place.socket())
    }

    pub(crate) fn workspace(&self) -> &Path {
        &self.place.workspace
    }

    pub(crate) fn status(&self) -> Value {
        self.client().call("status", serde_json::json!({})).unwrap()
    }

    /// Host pid of pid 1.
    pub(crate) fn init_pid(&self) -> u32 {
        u32::try_from(self.status()["init_pid"].as_u64().unwrap()).unwrap()
    }

    /// The cgroup of the whole container, commands included.
    pub(crate) fn cgroup(&self) -> PathBuf {
        let text = std::fs::read_to_string(format!("/proc/{}/cgroup", self.init_pid())).unwrap();
        let path = text.trim().strip_prefix("0::/").unwrap();
        let own = Path::new("/sys/fs/cgroup").join(path);
        own.parent().unwrap().to_owned()
    }

    /// Host pids of everything in the sandbox but pid 1, and but the process
    /// that waits for the next command.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let init = self.init_pid();
        let mut pids = host::pids_below(&self.cgroup());
        let program = host::command_line(init);
        pids.retain(|pid| host::is_alive(*pid) && host::command_line(*pid) != program);
        pids
    }

    /// The commands in the journal.
    pub(crate) fn journal(&self) -> Vec<Value> {
        let mut entries = self.entries();
        entries.retain(|entry| entry.get("command").is_some());
        entries
    }

    /// All entries of the journal.
    pub(crate) fn entries(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.place.journal()).unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str(line).expect("a JSON line"))
            .collect()
    }

    /// SIGTERM, and a wait with an end. True when it ended by itself.
    pub(crate) fn end(&mut self) -> bool {
        if std::mem::replace(&mut self.has_ended, true) {
            return true;
        }
        self.holder = None;
        let pid = Pid::from_raw(self.pid.cast_signed()).unwrap();
        let _ = rustix::process::kill_process(pid, Signal::TERM);
        let end = std::time::Instant::now() + PATIENCE;
        let gone = loop {
            // Reaped as soon as it has ended, so that it is not seen as alive.
            let reaped = self.child.try_wait();
            if !host::is_alive(self.pid) {
                break true;
            }
            if std::time::Instant::now() > end {
                break false;
            }
            drop(reaped);
            std::thread::sleep(Duration::from_millis(50));
        };
        if !gone {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        drop(self.child.wait());
        gone
    }

    /// Ends it; its place is there for the next one.
    pub(crate) fn end_and_keep(mut self) -> Arc<Place> {
        assert!(self.end(), "umwelt-run did not end within {PATIENCE:?}");
        Arc::clone(&self.place)
    }

    /// Ends it and makes sure that nothing of it is left.
    pub(crate) fn end_and_check(mut self) {
        assert!(self.end(), "umwelt-run did not end within {PATIENCE:?}");
        self.place.assert_nothing_left();
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.end();
    }
}
