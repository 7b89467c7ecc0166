//! A sandbox that is started to be attacked: a workspace for it, a client that
//! holds it, and everything gone again when that is over.

use std::fs::File;
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FlockOperation;

use super::attack::{Report, Target, Task};
use super::facts::Problem;
use super::finding::Finding;
use crate::config::{BaseMount, Config};
use crate::dirs::Dirs;
use crate::install::{call, files, interrupt};
use crate::places;
use crate::policy::mounts::INIT_PATH;
use crate::subprocess;
use crate::trust::WorkspaceTrust;
use crate::workspace::{Names, Workspace};

/// The first start of an image copies it.
const START: Duration = Duration::from_secs(600);
const TICK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
/// How long a control plane may take to end when all else of it is gone.
const LAST_LINE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);
const PREFIX: &str = "umwelt-doctor-";
/// By this name the program inside is no pid 1.
const PROGRAM: &str = "umwelt";
/// Of the home, these are enough to see that it is not there.
const MANY: usize = 50;
const MOST_OUTPUT: usize = 1 << 20;
const MOST_SAID: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Throwaway {
    place: PathBuf,
    names: Names,
    trust_record: PathBuf,
    /// Directories that were not there before, the innermost first.
    missing: Vec<PathBuf>,
    target: Target,
}

impl Throwaway {
    pub(super) fn open(dirs: &Dirs, config: &Config) -> Result<Throwaway, Problem> {
        let base = std::env::temp_dir();
        clear_stale(&base, dirs, config);
        let place = base.join(format!("{PREFIX}{}", std::process::id()));
        let missing = missing_places(dirs);
        // Nobody else's: it must not be there yet.
        let mut builder = std::fs::DirBuilder::new();
        let made = builder.mode(0o700).create(&place);
        made.map_err(|error| Problem::new(format!("cannot make {place:?}: {error}")))?;
        let mut throwaway = Throwaway::of(&place, dirs, config)?;
        throwaway.missing = missing;
        throwaway.target.hidden = hidden(dirs, config);
        let program = throwaway.place.join(PROGRAM);
        std::os::unix::fs::symlink(INIT_PATH, &program)
            .map_err(|error| Problem::new(format!("cannot make {program:?}: {error}")))?;
        Ok(throwaway)
    }

    fn of(place: &Path, dirs: &Dirs, config: &Config) -> Result<Throwaway, Problem> {
        let workspace = Workspace::resolve(place, dirs).map_err(|error| {
            let _gone = std::fs::remove_dir_all(place);
            Problem::new(error.to_string()).hint("set TMPDIR to a directory of your own")
        })?;
        let names = Names::new(&config.session_prefix, workspace.sid(), dirs);
        Ok(Throwaway {
            trust_record: WorkspaceTrust::new(&workspace, dirs).record_path(),
            target: Target {
                uid: rustix::process::geteuid().as_raw(),
                gid: rustix::process::getegid().as_raw(),
                memory: config.resources.memory,
                pids: config.resources.pids_limit,
                socket: names.socket.clone(),
                hidden: Vec::new(),
                network: false,
            },
            place: workspace.path().to_owned(),
            names,
            missing: Vec::new(),
        })
    }

    /// The next sandbox has a network, as a project would ask for one.
    pub(super) fn ask_for_network(&mut self) -> Result<(), Problem> {
        let path = self.place.join(".umwelt.toml");
        files::replace(&path, b"[egress]\nenabled = true\n", 0o644)
            .map_err(|error| Problem::new(error.to_string()))?;
        let mut command = ctl()?;
        command.args(["trust", "--yes"]).arg(&self.place);
        let said = call::run(command, None, call::QUICK)?;
        if !said.status.success() {
            return Err(Problem::told(&said.errors()));
        }
        self.target.network = true;
        Ok(())
    }

    /// Starts the sandbox and attacks it. It lives as long as the result.
    pub(super) fn attack(&self) -> Result<Attacked, Problem> {
        let task = Task::Attack(self.target.clone());
        let task = serde_json::to_string(&task).map_err(io::Error::other)?;
        let stderr = subprocess::memory_file(b"")?;
        let mut command = ctl()?;
        command
            .arg("exec")
            .arg(&self.place)
            .arg("--")
            .arg(self.place.join(PROGRAM))
            .args(["install", "doctor", "--from-inside", &task])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr.try_clone()?);
        let client = Client {
            child: command.spawn()?,
            stderr,
        };
        client.attacked()
    }
}

impl Drop for Throwaway {
    fn drop(&mut self) {
        interrupt::shielded(|| {
            if let Ok(mut command) = ctl() {
                command.args(["stop", "--hard"]).arg(&self.place);
                let _stopped = call::run(command, None, call::QUICK);
            }
        });
        self.clear();
    }
}

impl Throwaway {
    /// Removes every trace, once nobody writes one any more.
    fn clear(&self) {
        await_end(&self.names.lock);
        for dir in [
            &self.place,
            &self.names.runtime,
            &self.names.state,
            &self.names.audit,
        ] {
            let _gone = std::fs::remove_dir_all(dir);
        }
        let trust_lock = self.trust_record.with_extension("lock");
        for file in [
            &self.names.journal,
            &self.names.lock,
            &self.trust_record,
            &trust_lock,
        ] {
            let _gone = std::fs::remove_file(file);
        }
        for dir in &self.missing {
            files::remove_dir_if_empty(dir);
        }
    }
}

/// A control plane that ends with its client writes a last line to its journal
/// when its socket and its container are gone. It holds the lock for life.
fn await_end(lock: &Path) {
    let deadline = Instant::now() + LAST_LINE;
    let Ok(lock) = File::open(lock) else {
        return;
    };
    let is_held = || rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared).is_err();
    while is_held() && Instant::now() < deadline {
        std::thread::sleep(PAUSE);
    }
}

/// This program, as the client that people use.
fn ctl() -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg0("umwelt-ctl");
    Ok(command)
}

/// What a killed doctor has left.
fn clear_stale(base: &Path, dirs: &Dirs, config: &Config) {
    use std::os::unix::fs::MetadataExt;
    let uid = rustix::process::geteuid().as_raw();
    for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.strip_prefix(PREFIX) else {
            continue;
        };
        let is_alive =
            pid != std::process::id().to_string() && Path::new("/proc").join(pid).exists();
        let is_ours = entry
            .metadata()
            .is_ok_and(|found| found.is_dir() && found.uid() == uid);
        if is_ours && !is_alive {
            drop(Throwaway::of(&entry.path(), dirs, config));
        }
    }
}

/// Where a control plane writes.
fn missing_places(dirs: &Dirs) -> Vec<PathBuf> {
    let places = [dirs.data.join("egress"), dirs.state.join("trust")];
    let above = places.iter().flat_map(|place| place.ancestors());
    let missing = above.take_while(|dir| !dir.as_os_str().is_empty());
    let mut missing: Vec<PathBuf> = missing
        .filter(|dir| !dir.exists())
        .map(Path::to_owned)
        .collect();
    missing.sort_by_key(|dir| std::cmp::Reverse(dir.components().count()));
    missing
}

/// Of the user's own, what is there and what no base mount shows.
fn hidden(dirs: &Dirs, config: &Config) -> Vec<PathBuf> {
    let secret = places::of_user(dirs)
        .into_iter()
        .filter(|place| place.is_secret);
    let home = std::fs::read_dir(&dirs.home)
        .into_iter()
        .flatten()
        .flatten();
    let is_shown = |path: &Path| {
        config.mounts.iter().any(|mount| match mount {
            BaseMount::Bind { path: bind } => bind.starts_with(path) || path.starts_with(bind),
            _ => false,
        })
    };
    let home = home
        .map(|entry| entry.path())
        .filter(|path| !is_shown(path));
    let all = secret.map(|place| place.path).chain(home.take(MANY));
    all.filter(|path| path.exists()).collect()
}

/// The client that holds the sandbox, until its standard input ends.
#[derive(Debug)]
struct Client {
    child: Child,
    stderr: File,
}

impl Client {
    fn attacked(mut self) -> Result<Attacked, Problem> {
        let line = self.read_line()?;
        if interrupt::is_due() {
            return Err(Problem::new("interrupted"));
        }
        match serde_json::from_slice::<Report>(&line) {
            Ok(report) => Ok(Attacked {
                findings: report.findings,
                gateway: report.gateway,
                _client: self,
            }),
            Err(error) => {
                self.end();
                let said = subprocess::contents(&mut self.stderr, MOST_SAID)?;
                let said = String::from_utf8_lossy(&said);
                Err(match said.trim().is_empty() {
                    true => Problem::new(format!("what it says is not understood: {error}")),
                    false => Problem::told(&said),
                })
            }
        }
    }

    /// As far as there is one.
    fn read_line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        let Some(stdout) = &mut self.child.stdout else {
            return Ok(line);
        };
        let deadline = Instant::now() + START;
        let mut buffer = [0; 4096];
        while !interrupt::is_due() && line.len() < MOST_OUTPUT {
            if Instant::now() >= deadline {
                let message = format!("it took more than {} s", START.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            let mut ready = [PollFd::from_borrowed_fd(stdout.as_fd(), PollFlags::IN)];
            match rustix::event::poll(&mut ready, Some(&TICK)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                other => other?,
            };
            let len = stdout.read(&mut buffer)?;
            line.extend(buffer.get(..len).unwrap_or_default());
            if len == 0 || line.ends_with(b"\n") {
                break;
            }
        }
        Ok(line)
    }

    fn end(&mut self) {
        drop(self.child.stdin.take());
        let _ended = call::finish(&mut self.child);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.end();
    }
}

/// A sandbox that is still there.
#[derive(Debug)]
pub(super) struct Attacked {
    pub(super) findings: Vec<Finding>,
    /// Of one with a network.
    pub(super) gateway: Option<Ipv4Addr>,
    _client: Client,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirs(base: &Path) -> Dirs {
        let dirs = Dirs {
            home: base.join("home"),
            config: base.join("home/.config/umwelt"),
            data: base.join("home/.local/share/umwelt"),
            state: base.join("home/.local/state/umwelt"),
            runtime: base.join("run"),
        };
        for dir in [&dirs.config, &dirs.data, &dirs.state, &dirs.runtime] {
            std::fs::create_dir_all(dir).unwrap();
        }
        dirs
    }

    #[test]
    fn what_a_control_plane_writes_at_its_end_is_removed_too() {
        let base = tempfile::tempdir().unwrap();
        let place = base.path().join("place");
        std::fs::create_dir(&place).unwrap();
        let dirs = dirs(base.path());
        let throwaway = Throwaway::of(&place, &dirs, &Config::load(&dirs).unwrap()).unwrap();
        let names = throwaway.names.clone();
        let lock = File::create(&names.lock).unwrap();
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
        // One that nobody waits for writes when all else is gone.
        let control_plane = std::thread::spawn(move || {
            let deadline = Instant::now() + Duration::from_millis(300);
            while names.lock.exists() && Instant::now() < deadline {
                std::thread::sleep(PAUSE);
            }
            std::fs::write(&names.journal, "the last line").unwrap();
            drop(lock);
        });
        throwaway.clear();
        control_plane.join().unwrap();
        assert!(!throwaway.names.journal.exists());
        assert!(!throwaway.names.lock.exists());
        std::mem::forget(throwaway);
    }
}
