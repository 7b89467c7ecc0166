//! A `shell`, `exec` or `terminal` request -> a command handed to pid 1, in
//! a cgroup of its own. What becomes of it is in `reports`, `output`, `ending`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;

use crate::api::{ApiError, Call, ErrorKind, Exec, Grant, MAX_COMMAND, Revoke, Shell, Terminal};
use crate::init::wire::{MAX_INLINE, Spawn, Stdio, ToInit};
use crate::run::capture::Capture;
use crate::run::control_plane::ControlPlane;
use crate::run::environment::{self, Setting};
use crate::run::job::{Captured, Job, JobStdio, Retry, Stream};
use crate::run::journal;
use crate::run::output::output_pipe;
use crate::run::poller::{Source, Timer};
use crate::sys::cgroup::CommandCgroup;

/// Most commands at once.
const MAX_JOBS: usize = 1024;
const MAX_PATH: usize = 4096;
/// Stands before a command text in a memory file, on the same line so that
/// line numbers fit: the shell has its own descriptor of it, and what it
/// starts needs none.
const CLOSE_SCRIPT: &str = "exec 3<&-; ";

/// A command as it was asked for, checked.
struct Asked {
    connection: u64,
    request: u64,
    argv: Vec<String>,
    /// What people see of it.
    shown: String,
    /// Relative to the workspace, or absolute.
    cwd: Option<String>,
    /// The value of `TERM`.
    term: String,
    timeout_s: Option<u64>,
}

/// The two sides of a command's descriptors.
struct Plumbing {
    ours: JobStdio,
    wire: Stdio,
    /// What pid 1 gets: stdin, stdout and stderr of pipes, then the script.
    theirs: Vec<OwnedFd>,
    has_script: bool,
}

impl ControlPlane {
    /// Starts what a `shell`, `exec` or `terminal` request asks for. It is
    /// answered when it has ended.
    pub(crate) fn start_command(
        &mut self,
        connection: u64,
        request: u64,
        call: Call,
        fds: Vec<OwnedFd>,
    ) -> Result<(), ApiError> {
        if self.jobs.len() >= MAX_JOBS {
            return Err(ApiError::new(
                ErrorKind::Limit,
                format!("{MAX_JOBS} commands are running already"),
            ));
        }
        let asked = Asked {
            connection,
            request,
            argv: Vec::new(),
            shown: String::new(),
            cwd: None,
            term: "dumb".to_owned(),
            timeout_s: None,
        };
        match call {
            Call::Shell(shell) => self.start_shell(asked, shell),
            Call::Exec(exec) => self.start_exec(asked, exec, fds),
            Call::Terminal(terminal) => self.start_terminal(asked, terminal),
            _ => Err(ApiError::bad_request("not a command")),
        }
    }

    fn start_shell(&mut self, mut asked: Asked, shell: Shell) -> Result<(), ApiError> {
        let (read, write) = output_pipe(self.jobs.len()).map_err(cannot("make a pipe"))?;
        let null = ControlPlane::open_null().map_err(cannot("open /dev/null"))?;
        let stderr = write.try_clone().map_err(cannot("make a pipe"))?;
        let mut theirs = vec![null, write, stderr];
        let script = long_script(&shell.command).map_err(cannot("hold the command"))?;
        let has_script = script.is_some();
        asked.argv = match script {
            None => vec![
                self.shell().to_owned(),
                "-c".to_owned(),
                shell.command.clone(),
            ],
            Some(_) => vec![self.shell().to_owned(), "/proc/self/fd/3".to_owned()],
        };
        theirs.extend(script);
        asked.shown = shown(&shell.command);
        asked.cwd = shell.cwd;
        let default_s = self.context.list.timeout_default_s;
        asked.timeout_s = Some(shell.timeout_s.unwrap_or(default_s));
        let captured = Captured {
            capture: Capture::new(self.output_file(), &self.saved),
            pipe: Some(read),
            stream: shell.stream.then(Stream::default),
        };
        let ours = JobStdio::Captured(captured);
        self.spawn(
            asked,
            Plumbing {
                ours,
                wire: Stdio::Pipes,
                theirs,
                has_script,
            },
        )
    }

    fn start_exec(
        &mut self,
        mut asked: Asked,
        exec: Exec,
        theirs: Vec<OwnedFd>,
    ) -> Result<(), ApiError> {
        asked.shown = shown(&exec.argv.join(" "));
        asked.argv = exec.argv;
        asked.cwd = exec.cwd;
        self.spawn(
            asked,
            Plumbing {
                ours: JobStdio::Piped,
                wire: Stdio::Pipes,
                theirs,
                has_script: false,
            },
        )
    }

    fn start_terminal(&mut self, mut asked: Asked, terminal: Terminal) -> Result<(), ApiError> {
        let argv = if terminal.argv.is_empty() {
            vec![self.shell().to_owned()]
        } else {
            terminal.argv
        };
        asked.shown = shown(&argv.join(" "));
        asked.argv = argv;
        asked.cwd = terminal.cwd;
        asked.term = terminal.term;
        let wire = Stdio::Terminal {
            rows: terminal.rows.clamp(1, 1000),
            cols: terminal.cols.clamp(1, 1000),
        };
        self.spawn(
            asked,
            Plumbing {
                ours: JobStdio::Terminal,
                wire,
                theirs: Vec::new(),
                has_script: false,
            },
        )
    }

    /// Hands the command to pid 1, in a cgroup of its own.
    fn spawn(&mut self, asked: Asked, plumbing: Plumbing) -> Result<(), ApiError> {
        let shell = match self.verified() {
            Some(verified) => verified.shell,
            None => {
                return Err(ApiError::new(
                    ErrorKind::CannotRun,
                    "the sandbox is not there",
                ));
            }
        };
        let cwd = self.absolute_cwd(asked.cwd.as_deref());
        let setting = Setting {
            home: self.context.home.clone(),
            user: self.context.user.clone(),
            shell,
            git: self.git.clone().unwrap_or_default(),
            network: self.network_variables(),
        };
        let (id, cgroup) = self
            .take_cgroup()
            .map_err(cannot("make a cgroup for the command"))?;
        let spawn = Spawn {
            id,
            argv: asked.argv,
            env: environment::variables(&setting, &asked.term),
            cwd: cwd.clone(),
            stdio: plumbing.wire,
            script: plumbing.has_script,
        };
        let job = Job {
            id,
            connection: asked.connection,
            request: asked.request,
            client: self.client_name(asked.connection),
            command: asked.shown,
            cwd,
            stdio: plumbing.ours,
            cgroup,
            started: Instant::now(),
            timeout_s: asked.timeout_s,
            reported: false,
            status: None,
            ending: None,
            retry: None,
            notices: Vec::new(),
            changes: Vec::new(),
        };
        // Watched and timed before it can begin.
        let fds = packet_fds(&job.cgroup, &plumbing.theirs).map_err(cannot("hand it over"))?;
        let retry = Retry {
            spawn: spawn.clone(),
            fds: plumbing.theirs,
            tries: 0,
        };
        self.begin_job(job, retry)?;
        if let Err(error) = self.hand_over(spawn, fds) {
            self.drop_job(id);
            return Err(cannot("hand the command to pid 1")(error));
        }
        self.flush_channel();
        self.prepare_next();
        Ok(())
    }

    /// Queues the packet that has pid 1 start the command.
    pub(crate) fn hand_over(&mut self, spawn: Spawn, fds: Vec<OwnedFd>) -> io::Result<()> {
        match &mut self.channel {
            Some(channel) => channel.push(&ToInit::Spawn(spawn), fds),
            None => Err(io::Error::from(io::ErrorKind::NotConnected)),
        }
    }

    /// Forgets a command that nothing was started for.
    pub(crate) fn drop_job(&mut self, id: u64) -> Option<Job> {
        let mut job = self.jobs.remove(&id)?;
        self.unset_timers(id);
        self.close_output(&mut job);
        job.cgroup.remove();
        Some(job)
    }

    fn begin_job(&mut self, mut job: Job, retry: Retry) -> Result<(), ApiError> {
        let id = job.id;
        job.retry = Some(retry);
        self.commands_total += 1;
        self.watch_counts();
        if let JobStdio::Captured(Captured {
            pipe: Some(pipe), ..
        }) = &job.stdio
        {
            self.poller
                .add(Source::Output(id), pipe.as_fd())
                .map_err(cannot("watch the output"))?;
        }
        if let Some(timeout_s) = job.timeout_s {
            self.poller
                .set(Timer::Timeout(id), Duration::from_secs(timeout_s));
        }
        self.jobs.insert(id, job);
        Ok(())
    }

    fn shell(&self) -> &'static str {
        self.verified().map_or("/bin/sh", |verified| verified.shell)
    }

    pub(crate) fn client_name(&self, connection: u64) -> String {
        let client = self
            .connections
            .get(&connection)
            .and_then(|connection| connection.client.as_ref());
        client.map(|client| client.name.clone()).unwrap_or_default()
    }

    fn absolute_cwd(&self, cwd: Option<&str>) -> String {
        let workspace = self.context.workspace.as_str();
        // Only put together here; it is resolved inside, by pid 1.
        cwd.map_or_else(
            || workspace.to_owned(),
            |cwd| {
                let path = Path::new(workspace).join(cwd);
                path.to_string_lossy().into_owned()
            },
        )
    }

    /// Where the next long output is saved. The directory is mounted inside,
    /// read-only; the oldest outputs make room.
    fn output_file(&mut self) -> PathBuf {
        let dir = self.context.names.state.join("output");
        dir.join(format!("{}.txt", self.new_id()))
    }
}

/// What is kept of a command while it runs: no more than the journal takes.
fn shown(command: &str) -> String {
    journal::cut(command).to_owned()
}

/// The descriptors of a `Spawn` packet, in the order of its type.
pub(crate) fn packet_fds(cgroup: &CommandCgroup, theirs: &[OwnedFd]) -> io::Result<Vec<OwnedFd>> {
    let mut fds = vec![cgroup.open_procs()?];
    for fd in theirs {
        fds.push(fd.try_clone()?);
    }
    Ok(fds)
}

/// A command text that is too long for an argument or for a packet, in a
/// memory file.
fn long_script(command: &str) -> io::Result<Option<OwnedFd>> {
    if encoded_len(command) <= MAX_INLINE {
        return Ok(None);
    }
    let memory = rustix::fs::memfd_create("command", MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(memory.try_clone()?);
    io::Write::write_all(&mut file, CLOSE_SCRIPT.as_bytes())?;
    io::Write::write_all(&mut file, command.as_bytes())?;
    rustix::fs::seek(&memory, rustix::fs::SeekFrom::Start(0))?;
    Ok(Some(memory))
}

/// Refuses a call whose parameters make no sense, before it waits for the
/// sandbox. What starts a command relies on this.
pub(crate) fn check_call(call: &Call, timeout_max_s: u64) -> Result<(), ApiError> {
    match call {
        Call::Shell(shell) => {
            check_timeout(shell.timeout_s, timeout_max_s)?;
            check_command(&shell.command)?;
            check_cwd(shell.cwd.as_deref())
        }
        Call::Exec(exec) => {
            check_argv(&exec.argv)?;
            check_cwd(exec.cwd.as_deref())
        }
        Call::Terminal(terminal) => {
            // None at all means a shell.
            if !terminal.argv.is_empty() {
                check_argv(&terminal.argv)?;
            }
            check_term(&terminal.term)?;
            check_cwd(terminal.cwd.as_deref())
        }
        Call::Grant(Grant { path, .. }) | Call::Revoke(Revoke { path }) => check_granted(path),
        _ => Ok(()),
    }
}

fn check_timeout(asked: Option<u64>, max_s: u64) -> Result<(), ApiError> {
    match asked {
        Some(0) => Err(ApiError::bad_request("\"timeout_s\" must be at least 1")),
        Some(asked) if asked > max_s => Err(ApiError::bad_request(format!(
            "\"timeout_s\" is {asked}, but the most is {max_s}"
        ))
        .with_hint("start long work in the background, with its output in a file")),
        _ => Ok(()),
    }
}

fn check_command(command: &str) -> Result<(), ApiError> {
    if command.len() > MAX_COMMAND {
        return Err(ApiError::new(
            ErrorKind::Limit,
            format!("\"command\" is longer than {MAX_COMMAND} bytes"),
        ));
    }
    check_word(command)
}

fn check_argv(argv: &[String]) -> Result<(), ApiError> {
    if argv.first().is_none_or(String::is_empty) {
        return Err(ApiError::bad_request("\"argv\" names no program"));
    }
    argv.iter().try_for_each(|word| check_word(word))?;
    let length: usize = argv.iter().map(|word| encoded_len(word)).sum();
    if length > MAX_INLINE {
        return Err(ApiError::bad_request(format!(
            "\"argv\" is longer than {MAX_INLINE} bytes in all"
        )));
    }
    Ok(())
}

fn check_word(word: &str) -> Result<(), ApiError> {
    if word.contains('\0') {
        return Err(ApiError::bad_request("a command cannot contain NUL"));
    }
    Ok(())
}

fn check_granted(path: &str) -> Result<(), ApiError> {
    if path.is_empty() || path.contains('\0') || path.len() > MAX_PATH {
        return Err(ApiError::bad_request("\"path\" is not a path"));
    }
    Ok(())
}

fn check_cwd(cwd: Option<&str>) -> Result<(), ApiError> {
    if cwd.is_some_and(|cwd| cwd.contains('\0') || cwd.len() > MAX_PATH) {
        return Err(ApiError::bad_request("\"cwd\" is not a path"));
    }
    Ok(())
}

fn check_term(term: &str) -> Result<(), ApiError> {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-._+".contains(&b);
    if term.is_empty() || term.len() > 64 || !term.bytes().all(is_plain) {
        return Err(ApiError::bad_request(
            "\"term\" is not the name of a terminal type",
        ));
    }
    Ok(())
}

/// Length in a packet: JSON writes a control character as six bytes.
fn encoded_len(text: &str) -> usize {
    text.bytes()
        .map(|byte| match byte {
            0..=0x1f | 0x7f => 6,
            b'"' | b'\\' => 2,
            _ => 1,
        })
        .sum::<usize>()
        + "\"\",".len()
}

fn cannot(what: &'static str) -> impl Fn(io::Error) -> ApiError {
    move |error| ApiError::new(ErrorKind::CannotRun, format!("cannot {what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(method: &str, params: serde_json::Value) -> Option<ErrorKind> {
        let call = serde_json::json!({"method": method, "params": params});
        let call: Call = serde_json::from_value(call).unwrap();
        check_call(&call, 10).err().map(|error| error.kind)
    }

    #[test]
    fn senseless_calls_are_refused_before_they_wait() {
        use serde_json::json;
        let long = "x".repeat(MAX_COMMAND + 1);
        assert_eq!(
            refused("shell", json!({"command": long})),
            Some(ErrorKind::Limit)
        );
        for (method, params) in [
            ("shell", json!({"command": "a\0b"})),
            ("shell", json!({"command": "a", "timeout_s": 0})),
            ("shell", json!({"command": "a", "timeout_s": 11})),
            ("shell", json!({"command": "a", "cwd": "a\0b"})),
            ("shell", json!({"command": "a", "cwd": "x".repeat(4097)})),
            ("exec", json!({"argv": []})),
            ("exec", json!({"argv": [""]})),
            ("exec", json!({"argv": ["a\0b"]})),
            ("exec", json!({"argv": ["a", "x".repeat(MAX_INLINE)]})),
            ("exec", json!({"argv": ["a"], "cwd": "\0"})),
            ("terminal", terminal(&[""], "xterm")),
            ("terminal", terminal(&["a"], "")),
            ("terminal", terminal(&["a"], "x\n")),
        ] {
            let kind = refused(method, params.clone());
            assert_eq!(kind, Some(ErrorKind::BadRequest), "{params}");
        }
        for (method, params) in [
            ("shell", json!({"command": "x".repeat(MAX_COMMAND)})),
            (
                "shell",
                json!({"command": "", "timeout_s": 10, "cwd": ".."}),
            ),
            ("exec", json!({"argv": ["a", ""]})),
            ("terminal", terminal(&[], "xterm-256color")),
            ("list", json!({})),
        ] {
            assert_eq!(refused(method, params.clone()), None, "{params}");
        }
    }

    fn terminal(argv: &[&str], term: &str) -> serde_json::Value {
        serde_json::json!({"argv": argv, "rows": 1, "cols": 1, "term": term})
    }

    #[test]
    fn a_running_command_keeps_little_of_its_text() {
        assert_eq!(shown("echo"), "echo");
        assert!(shown(&"x".repeat(MAX_COMMAND)).capacity() <= 16 << 10);
    }

    #[test]
    fn long_commands_travel_in_a_memory_file() {
        assert!(long_script("echo").unwrap().is_none());
        assert!(
            long_script(&"\x01".repeat(MAX_INLINE / 5))
                .unwrap()
                .is_some()
        );
        let text = "x".repeat(MAX_INLINE + 1);
        let file = std::fs::File::from(long_script(&text).unwrap().unwrap());
        assert_eq!(
            io::read_to_string(file).unwrap(),
            CLOSE_SCRIPT.to_owned() + &text
        );
    }
}
