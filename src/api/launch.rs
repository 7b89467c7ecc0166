//! Attaches to the control plane of a workspace, or launches one and waits.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::api::client::{Client, readable};
use crate::api::line::{Line, LineBuffer};
use crate::api::{ApiError, ErrorKind, HelloReply, State};
use crate::dirs;
use crate::workspace::{Names, Workspace};

/// For everything together: finding, launching, shaking hands.
const WAIT: Duration = Duration::from_secs(60);
/// How long the holder of the lock may take to bind or to remove its socket.
const SETTLE: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(25);
/// The log begins anew when it has grown past this.
const MAX_LOG: u64 = 1 << 20;
const MAX_REPORT: usize = 64 << 10;

/// All that a control plane gets of the client's environment: the rest of it
/// holds the keys of a model provider.
const ENVIRONMENT: [&str; 17] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
    "DBUS_SESSION_BUS_ADDRESS",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "UMWELT_LOG",
    "CONTAINER_HOST",
    "CONTAINER_CONNECTION",
    "CONTAINERS_CONF",
    "CONTAINERS_STORAGE_CONF",
];

/// The one line that `umwelt-run --detach` prints on its stdout.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    /// The socket is bound. Requests wait in it until the sandbox is ready.
    Listening(bool),
    /// Another control plane holds the workspace.
    Attached(bool),
    Error(ApiError),
}

/// Connects as a client that holds the sandbox; launches a control plane where
/// none answers. All waiting together is bounded.
pub(crate) fn connect_or_launch(
    workspace: &Workspace,
    names: &Names,
    name: &str,
) -> Result<(Client, HelloReply), ApiError> {
    let program = program()?;
    let start = Start {
        program: &program,
        workspace,
        names,
        name,
        deadline: Instant::now() + WAIT,
    };
    start.run()
}

struct Start<'a> {
    program: &'a Path,
    workspace: &'a Workspace,
    names: &'a Names,
    name: &'a str,
    deadline: Instant,
}

impl Start<'_> {
    fn run(&self) -> Result<(Client, HelloReply), ApiError> {
        let mut last = match self.attach()? {
            Ok(connected) => return Ok(connected),
            Err(error) => error,
        };
        while Instant::now() < self.deadline {
            let listening = self.launch()?;
            let settled = Instant::now() + SETTLE;
            while Instant::now() < settled.min(self.deadline) {
                match self.attach()? {
                    Ok(connected) => return Ok(connected),
                    Err(error) => last = error,
                }
                std::thread::sleep(PAUSE);
            }
            if listening {
                return Err(self.ended(&format!("umwelt-run has started, but {last}")));
            }
        }
        Err(last)
    }

    /// The inner error means: nobody there, or on the way out.
    fn attach(&self) -> Result<Result<(Client, HelloReply), ApiError>, ApiError> {
        match Client::connect_by(&self.names.socket, self.name, true, self.deadline) {
            Ok((_, reply)) if reply.state == State::Stopping => Ok(Err(ApiError::new(
                ErrorKind::Stopping,
                "the control plane is on its way out",
            ))),
            Ok(connected) => Ok(Ok(connected)),
            Err(error) if matches!(error.kind, ErrorKind::Unreachable | ErrorKind::Stopping) => {
                Ok(Err(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Starts `umwelt-run --detach`; says whether it listens or gives way to
    /// another one.
    fn launch(&self) -> Result<bool, ApiError> {
        let mut child = self
            .command(open_log(&self.log())?)
            .spawn()
            .map_err(|error| {
                failed(format!(
                    "cannot start umwelt-run ({:?}): {error}",
                    self.program
                ))
            })?;
        let report = match child.stdout.take() {
            Some(stdout) => self.read_report(stdout),
            None => Err(self.ended("umwelt-run has no output")),
        };
        reap(&mut child, self.deadline);
        match report? {
            Report::Listening(_) => Ok(true),
            Report::Attached(_) => Ok(false),
            Report::Error(error) => Err(error),
        }
    }

    /// The program leaves this process behind: it is the client's descendant
    /// no longer, and shares neither its process group nor its environment.
    fn command(&self, log: File) -> Command {
        let given = self.workspace.alias().unwrap_or(self.workspace.as_str());
        let mut command = Command::new(self.program);
        command
            .arg0("umwelt-run")
            .args(["--detach", "--workspace", given])
            .env_clear()
            .envs(
                ENVIRONMENT
                    .iter()
                    .filter_map(|name| Some((name, std::env::var_os(name)?))),
            )
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log);
        command
    }

    fn read_report(&self, mut stdout: ChildStdout) -> Result<Report, ApiError> {
        let mut lines = LineBuffer::new(MAX_REPORT);
        let mut buffer = vec![0; 4096];
        loop {
            if let Some(line) = lines.next_line() {
                return match line {
                    Line::Complete(line) => serde_json::from_slice(&line).ok(),
                    Line::TooLong => None,
                }
                .ok_or_else(|| self.ended("umwelt-run reported its start in an unknown form"));
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            if !readable(stdout.as_fd(), Some(left))? {
                return Err(self.ended(&format!(
                    "umwelt-run has not started within {} s",
                    WAIT.as_secs()
                )));
            }
            match stdout.read(&mut buffer) {
                Ok(0) => return Err(self.ended("umwelt-run ended at start")),
                Ok(len) => lines.push(buffer.get(..len).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(format!("cannot read from umwelt-run: {error}"))),
            }
        }
    }

    fn log(&self) -> PathBuf {
        self.names.state.join("run.log")
    }

    fn ended(&self, why: &str) -> ApiError {
        failed(format!("{why}; see {:?}", self.log()))
    }
}

fn failed(message: String) -> ApiError {
    ApiError::new(ErrorKind::StartFailed, message)
}

/// This executable. Where the file has been replaced meanwhile, the kernel
/// still has the old one.
fn program() -> Result<PathBuf, ApiError> {
    let this = Path::new("/proc/self/exe");
    let target = std::fs::read_link(this)
        .map_err(|error| failed(format!("cannot find this program: {error}")))?;
    Ok(if target.exists() {
        target
    } else {
        this.to_owned()
    })
}

fn open_log(path: &Path) -> Result<File, ApiError> {
    if let Some(parent) = path.parent() {
        dirs::create_private(parent).map_err(|error| {
            let failure = failed(error.to_string());
            match error.hint() {
                Some(hint) => failure.with_hint(hint),
                None => failure,
            }
        })?;
    }
    let open = || {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
            .open(path)?;
        if file.metadata()?.len() > MAX_LOG {
            file.set_len(0)?;
        }
        Ok(file)
    };
    open().map_err(|error: io::Error| failed(format!("cannot open {path:?}: {error}")))
}

/// The started process leaves at once; one that does not is ended.
fn reap(child: &mut Child, deadline: Instant) {
    let deadline = deadline.min(Instant::now() + SETTLE);
    while let Ok(None) = child.try_wait() {
        if Instant::now() >= deadline {
            drop(child.kill());
            drop(child.wait());
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dirs::Dirs;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use tempfile::TempDir;

    /// A place with a shell script in the part of umwelt-run.
    struct Stage {
        dir: TempDir,
        workspace: Workspace,
        names: Names,
    }

    fn stage(script: &str) -> Stage {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let make = |name: &str| {
            let path = base.join(name);
            std::fs::create_dir(&path).unwrap();
            path
        };
        let dirs = Dirs {
            home: make("home"),
            config: base.join("config"),
            data: base.join("data"),
            state: base.join("state"),
            runtime: make("run"),
        };
        let workspace = Workspace::resolve(&make("project"), &dirs).unwrap();
        let names = Names::new("umwelt", workspace.sid(), &dirs);
        let program = base.join("program");
        let socket = names.socket.to_str().unwrap();
        let base = base.to_str().unwrap();
        let text = format!("#!/bin/sh\nbase='{base}'\nsocket='{socket}'\n{script}\n");
        write_program(&program, &text);
        Stage {
            dir,
            workspace,
            names,
        }
    }

    /// Another process writes it: a descriptor open for writing that a fork of
    /// some other test inherits would make the program "busy".
    fn write_program(path: &Path, text: &str) {
        let status = Command::new("sh")
            .args([
                "-c",
                r#"printf %s "$1" >"$2" && chmod 755 "$2""#,
                "sh",
                text,
            ])
            .arg(path)
            .status()
            .unwrap();
        assert!(status.success());
    }

    impl Stage {
        fn run(&self) -> Result<HelloReply, ApiError> {
            self.run_within(WAIT)
        }

        fn run_within(&self, wait: Duration) -> Result<HelloReply, ApiError> {
            let start = Start {
                program: &self.dir.path().join("program"),
                workspace: &self.workspace,
                names: &self.names,
                name: "test/0",
                deadline: Instant::now() + wait,
            };
            start.run().map(|(_, reply)| reply)
        }

        /// A control plane on `$base/bound`; the script moves it into place.
        fn serve(&self) {
            let listener = UnixListener::bind(self.dir.path().join("bound")).unwrap();
            std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                let hello: serde_json::Value = serde_json::from_str(&line).unwrap();
                assert_eq!(hello["params"]["holds"], true);
                let result = serde_json::json!({"api": 1, "version": "0", "sid": "s", "workspace": "/w", "state": "starting"});
                let reply = serde_json::json!({"id": hello["id"], "result": result});
                writeln!(stream, "{reply}").unwrap();
            });
        }

        fn read(&self, name: &str) -> Vec<u8> {
            std::fs::read(self.dir.path().join(name)).unwrap()
        }
    }

    const LISTEN: &str = r#"mv "$base/bound" "$socket"; echo '{"listening":true}'"#;

    #[test]
    fn launched_control_plane_is_connected_to() {
        let stage = stage(LISTEN);
        stage.serve();
        assert_eq!(stage.run().unwrap().state, State::Starting);
    }

    #[test]
    fn running_control_plane_is_attached_to_without_a_launch() {
        let stage = stage("echo launched >&2");
        stage.serve();
        std::fs::rename(stage.dir.path().join("bound"), &stage.names.socket).unwrap();
        stage.run().unwrap();
        assert!(!stage.names.state.exists());
    }

    #[test]
    fn holder_on_its_way_out_is_followed_by_a_new_launch() {
        let stage = stage(&format!(
            r#"if [ ! -e "$base/once" ]; then : >"$base/once"; echo '{{"attached":true}}'; exit; fi; {LISTEN}"#
        ));
        stage.serve();
        stage.run().unwrap();
    }

    #[test]
    fn reported_error_is_passed_on_whole() {
        let stage =
            stage(r#"echo '{"error":{"kind":"no_delegation","message":"m","hint":"h"}}'; exit 3"#);
        let error = stage.run().unwrap_err();
        assert_eq!(error.kind, ErrorKind::NoDelegation);
        assert_eq!(error.hint.as_deref(), Some("h"));
    }

    #[test]
    fn end_without_a_report_names_the_log_which_holds_the_reason() {
        let stage = stage("echo the reason >&2; exit 1");
        let error = stage.run().unwrap_err();
        assert_eq!(error.kind, ErrorKind::StartFailed);
        let log = stage.names.state.join("run.log");
        assert!(error.message.contains(log.to_str().unwrap()), "{error}");
        assert_eq!(std::fs::read(&log).unwrap(), b"the reason\n");
        let mode = std::fs::metadata(&log).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn program_gets_its_name_the_workspace_and_a_scrubbed_environment() {
        let stage = stage(
            r#"cp /proc/$$/environ "$base/environ"; cp /proc/$$/cmdline "$base/cmdline"; cut -d " " -f 5 /proc/$$/stat >"$base/pgid"; echo $$ >>"$base/pgid"; exit 1"#,
        );
        stage.run().unwrap_err();
        let environ = String::from_utf8(stage.read("environ")).unwrap();
        let names: Vec<_> = environ
            .split_terminator('\0')
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, _)| name)
            .collect();
        assert!(names.contains(&"PATH"));
        // The test runner sets CARGO_*, which must not arrive.
        assert!(
            names.iter().all(|name| ENVIRONMENT.contains(name)),
            "{names:?}"
        );
        let cmdline = String::from_utf8(stage.read("cmdline")).unwrap();
        let wanted = format!("--detach\0--workspace\0{}\0", stage.workspace.as_str());
        assert!(cmdline.ends_with(&wanted), "{cmdline:?}");
        let pgid = String::from_utf8(stage.read("pgid")).unwrap();
        let numbers: Vec<_> = pgid.split_whitespace().collect();
        assert_eq!(numbers[0], numbers[1]);
    }

    #[test]
    fn silent_program_is_given_up_and_ended() {
        let stage = stage(r#"echo $$ >"$base/pid"; exec sleep 1000"#);
        let mut wait = Duration::from_millis(300);
        let pid = loop {
            let start = Instant::now();
            let error = stage.run_within(wait).unwrap_err();
            assert!(error.message.contains("not started"), "{error}");
            assert!(start.elapsed() < WAIT);
            let pid = std::fs::read_to_string(stage.dir.path().join("pid"));
            match pid.ok().filter(|pid| pid.ends_with('\n')) {
                Some(pid) => break pid,
                // A busy machine had not begun with it.
                None => wait *= 2,
            }
        };
        assert!(!Path::new("/proc").join(pid.trim()).exists());
    }

    #[test]
    fn full_log_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state/run.log");
        dirs::create_private(path.parent().unwrap()).unwrap();
        std::fs::write(&path, vec![b'x'; usize::try_from(MAX_LOG).unwrap() + 1]).unwrap();
        open_log(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    }
}
