//! umwelt-run: the control plane of one workspace.
//!
//! preflight -> create -> verify -> serve -> remove; `prepare` and
//! `ControlPlane::run` tell the story.

mod attaching;
mod capture;
mod change;
mod channel;
mod commands;
mod confirm;
mod connection;
mod control_plane;
mod counts;
mod discard;
mod egress_call;
mod ending;
mod environment;
mod expecting;
mod gateway;
pub(crate) mod grants;
mod handler;
mod job;
pub(crate) mod journal;
mod layout;
mod lifecycle;
mod live;
pub(crate) mod lock;
pub(crate) mod masks;
mod network;
mod notices;
mod output;
pub(crate) mod planned;
mod poller;
pub(crate) mod preflight;
mod prepared;
mod reports;
mod saved;
mod socket;
mod standing;
mod task;
pub(crate) mod verify;
mod waiting;
mod watch;
mod watchdog;
mod worktree;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::api::launch::Report;
use crate::api::{ApiError, ListReply, MountEntry};
use crate::cli::{self, usage};
use crate::config::Config;
use crate::dirs::{self, Dirs};
use crate::egress::setup::Setup;
use crate::error::Error;
use crate::podman;
use crate::podman::argv::{ContainerSpec, Network};
use crate::podman::network::NetworkNames;
use crate::policy::mounts::{Access, INIT_PATH, Mount, MountKind, MountSet};
use crate::run::control_plane::{Asked, Context, ControlPlane};
use crate::run::layout::recorded_sources;
use crate::run::lock::{Acquired, Lock};
use crate::run::network::Egress;
use crate::run::preflight::Preflight;
use crate::run::standing::StandingFile;
use crate::run::worktree::Finder;
use crate::sys;
use crate::trust::WorkspaceTrust;
use crate::workspace::{Names, Workspace};

const HELP: &str = "\
umwelt-run: the control plane of one workspace

It creates the sandbox of a workspace, serves it on a Unix socket, and removes
it again on SIGTERM, SIGINT or SIGHUP. MCP clients start it by themselves through
umwelt-mcp; started by hand it stays until it is stopped.

Usage: umwelt-run [--workspace DIR] [--detach]

Options:
      --workspace DIR  the project directory (default: the current directory)
      --detach         go on in the background, end with the last client, and
                       report on stdout in one line of JSON, errors too; the
                       exit status is 0 then
  -h, --help           show this help
  -V, --version        show the version

Exit status:
  0  clean shutdown, or another control plane serves the workspace
  1  the sandbox could not be started
  2  bad configuration, workspace or usage
  3  cgroup delegation is missing
";

/// Set by `--detach` for the process that stays.
const LAUNCHED: &str = "--launched";

#[derive(Debug, Default)]
struct Options {
    workspace: Option<PathBuf>,
    detach: bool,
    launched: bool,
}

pub(crate) fn main(args: Vec<OsString>) -> Result<ExitCode, Error> {
    let mut options = Options::default();
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            lexopt::Arg::Long("workspace") => options.workspace = Some(parser.value()?.into()),
            lexopt::Arg::Long("detach") => options.detach = true,
            lexopt::Arg::Long("launched") => options.launched = true,
            lexopt::Arg::Long("mount-helper") => return crate::attach::main(),
            lexopt::Arg::Short('h') | lexopt::Arg::Long("help") => return Ok(cli::print(HELP)),
            lexopt::Arg::Short('V') | lexopt::Arg::Long("version") => {
                return Ok(cli::version("umwelt-run"));
            }
            other => return Err(usage::unexpected(&other, "umwelt-run", HELP)),
        }
    }
    cli::start_log("umwelt-run");
    if options.detach {
        return detach(&options);
    }
    let launched = options.launched;
    let outcome = serve(&options);
    if let Err(error) = &outcome
        && launched
    {
        // Without effect when the report was made already.
        report(&Report::Error(ApiError::from(error)));
    }
    outcome.map(|()| ExitCode::SUCCESS)
}

/// Starts the process that stays and leaves at once, so that it is nobody's
/// descendant: MCP clients end the descendants of their server.
fn detach(options: &Options) -> Result<ExitCode, Error> {
    let exe = std::env::current_exe().map_err(|error| Error::io("find the own program", error))?;
    let mut command = Command::new(exe);
    // Not in a process group of its own: the leader of one cannot start the
    // session that this process starts.
    command.arg0("umwelt-run").arg(LAUNCHED);
    if let Some(workspace) = &options.workspace {
        command.arg("--workspace").arg(workspace);
    }
    command
        .spawn()
        .map_err(|error| Error::io("start the control plane", error))?;
    Ok(ExitCode::SUCCESS)
}

/// The one line for whoever launched this process; stdout ends with it.
fn report(report: &Report) {
    let Ok(mut line) = serde_json::to_vec(report) else {
        return;
    };
    line.push(b'\n');
    let mut stdout = std::io::stdout();
    // The launcher may be gone; the next client will ask the socket.
    drop(stdout.write_all(&line).and_then(|()| stdout.flush()));
    if let Ok(null) = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")
    {
        // Should this fail, the launcher waits for our end instead.
        let _ = rustix::stdio::dup2_stdout(null);
    }
}

fn serve(options: &Options) -> Result<(), Error> {
    if options.launched {
        // Out of the client's session: its terminal's signals are not ours.
        rustix::process::setsid().map_err(|error| Error::io("start a session", error))?;
    }
    let _reserved =
        sys::inherit::reserve_fd3().map_err(|error| Error::io("reserve descriptor 3", error))?;
    raise_descriptor_limit();
    let selected = Selected::new(options.workspace.as_deref())?;
    let _lock: Lock = match lock::acquire(&selected.names, selected.workspace.as_str())? {
        Acquired::Lock(lock) => lock,
        Acquired::Attached => return already_running(options.launched, &selected.workspace),
    };
    let tools_path = podman::search_path(selected.workspace.path());
    let (found, asked) = selected.look(tools_path)?;
    let signals = sys::signal::readable_on(&sys::signal::END)
        .map_err(|error| Error::io("watch signals", error))?;
    let places = found.names.clone();
    let outcome = make_places(&places, &found.dirs).and_then(|()| {
        let listener = socket::bind(&places.socket)?;
        if options.launched {
            report(&Report::Listening(true));
        }
        let context = prepare(found, &asked, options.launched);
        ControlPlane::new(context, asked, listener, signals)
            .map_err(|error| Error::io("set up the loop", error))?
            .run()
    });
    remove_places(&places);
    outcome
}

/// The workspace that is meant, and what this user's configuration says.
struct Selected {
    config: Config,
    dirs: Dirs,
    workspace: Workspace,
    names: Names,
    notice: Option<String>,
}

impl Selected {
    fn new(workspace: Option<&Path>) -> Result<Selected, Error> {
        let dirs = Dirs::from_env()?;
        dirs.check_runtime()?;
        let config = Config::load(&dirs)?;
        let fallback = config.fallback_workspace.as_deref();
        let (workspace, notice) = Workspace::select(workspace, fallback, &dirs)?;
        Ok(Selected {
            names: Names::new(&config.session_prefix, workspace.sid(), &dirs),
            config,
            dirs,
            workspace,
            notice,
        })
    }

    /// All that is found out before anything is made. `tools_path` is where the
    /// tools that know registries are looked for.
    fn look(self, tools_path: OsString) -> Result<(Found, Asked), Error> {
        let Selected {
            mut config,
            dirs,
            workspace,
            names,
            notice,
        } = self;
        config.masks = masks::all(config.masks, &dirs);
        let mut preflight = preflight::check(&config, &workspace, &dirs)?;
        let asked = ask(
            &config,
            &workspace,
            &names,
            &dirs,
            &mut preflight,
            tools_path,
        )?;
        let found = Found {
            config,
            dirs,
            workspace,
            names,
            preflight,
            notice,
        };
        Ok((found, asked))
    }
}

/// What counts of the workspace file, and whether the host has what it takes.
fn ask(
    config: &Config,
    workspace: &Workspace,
    names: &Names,
    dirs: &Dirs,
    preflight: &mut Preflight,
    tools_path: OsString,
) -> Result<Asked, Error> {
    let workspace_file = StandingFile::load(WorkspaceTrust::new(workspace, dirs));
    let file = workspace_file.counted();
    if !file.egress.enabled {
        return Ok(Asked {
            workspace_file,
            egress: None,
        });
    }
    let setup = Setup::load(&config.egress, file, workspace, names, dirs, tools_path)?;
    preflight.warnings.extend(setup.warnings.iter().cloned());
    let network_names = NetworkNames {
        prefix: config.session_prefix.clone(),
        sid: workspace.sid().to_string(),
        inner: names.network.clone(),
        outer: names.way_out.clone(),
    };
    Ok(Asked {
        workspace_file,
        egress: Some(Egress::new(setup, network_names, &names.audit)),
    })
}

/// Many commands at once need many descriptors, and those under way in
/// sockets are counted against this limit too.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        log::warn!("cannot raise the limit of open files: {error}");
    }
}

fn already_running(launched: bool, workspace: &Workspace) -> Result<(), Error> {
    if launched {
        report(&Report::Attached(true));
    } else {
        let path = crate::text::printable(workspace.as_str());
        cli::write_stderr(
            format!("umwelt-run: a control plane serves {path} already\n").as_bytes(),
        );
    }
    Ok(())
}

/// Directories of this sandbox. Outputs of an earlier life go.
fn make_places(names: &Names, dirs: &Dirs) -> Result<(), Error> {
    remove_places(names);
    for dir in [
        &dirs.data,
        &dirs.state,
        &names.runtime,
        &names.state,
        &names.state.join("output"),
    ] {
        dirs::create_private(dir)?;
    }
    Ok(())
}

fn remove_places(names: &Names) {
    for dir in [names.runtime.clone(), names.state.join("output")] {
        if let Err(error) = std::fs::remove_dir_all(&dir)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            log::warn!("cannot remove {dir:?}: {error}");
        }
    }
}

/// What was found out before anything was made.
struct Found {
    config: Config,
    dirs: Dirs,
    workspace: Workspace,
    names: Names,
    preflight: Preflight,
    /// That the fallback workspace is used.
    notice: Option<String>,
}

/// All that was found out -> what the control plane works with.
fn prepare(found: Found, asked: &Asked, launched: bool) -> Context {
    let Found {
        config,
        dirs,
        workspace,
        names,
        preflight,
        notice,
    } = found;
    let uid = rustix::process::geteuid().as_raw();
    let user = sys::user::name(uid);
    let home = preflight.host.home.clone();
    let worktree = Finder::new(&workspace, &config, &dirs);
    let worktree = worktree.find(&config.masks, &preflight.host.mount_points);
    for warning in &preflight.warnings {
        log::warn!("{warning}");
    }
    let notices = notice
        .into_iter()
        .chain(preflight.warnings.iter().cloned())
        .chain(worktree.notices);
    let list = list_reply(&config, &workspace, asked.egress.is_some(), notices);
    let runtime_file = |name: &str| names.runtime.join(name).to_string_lossy().into_owned();
    let spec = ContainerSpec {
        name: names.container.clone(),
        prefix: config.session_prefix.clone(),
        sid: workspace.sid().to_string(),
        workspace: workspace.as_str().to_owned(),
        image: config.image.clone(),
        uid,
        gid: rustix::process::getegid().as_raw(),
        passwd_entry: passwd_entry(&user, uid, &home),
        seccomp: runtime_file("seccomp.json"),
        selinux: preflight.selinux,
        resources: config.resources.clone(),
        delegated: preflight.delegated,
        // Filled in at each create.
        network: Network::None,
        mounts: MountSet::default(),
        sources: BTreeMap::new(),
        init: INIT_PATH.to_owned(),
        cidfile: runtime_file("cid"),
    };
    Context {
        sources: recorded_sources(preflight.host.real_binds.values().map(String::as_str)),
        host: preflight.host,
        was_writable: BTreeSet::new(),
        search_path: podman::search_path(workspace.path()),
        exe: PathBuf::from(preflight.exe),
        config,
        dirs,
        workspace,
        spec,
        user,
        home,
        seccomp: preflight.seccomp,
        ruleset_file: confirm::ruleset_file(&names.runtime),
        network_mounts: network_mounts(asked, &names),
        list,
        git_dirs: worktree.git_dirs,
        launched,
        names,
    }
}

/// Without the mounts, which are filled in at each create.
fn list_reply(
    config: &Config,
    workspace: &Workspace,
    has_network: bool,
    notices: impl Iterator<Item = String>,
) -> ListReply {
    ListReply {
        workspace: workspace.as_str().to_owned(),
        mounts: Vec::new(),
        resources: config.resources.clone(),
        network: match has_network {
            false => "none".to_owned(),
            true => "egress".to_owned(),
        },
        timeout_default_s: config.shell.timeout_s,
        timeout_max_s: config.shell.max_timeout_s,
        notices: notices.map(|line| crate::text::printable(&line)).collect(),
    }
}

fn network_mounts(asked: &Asked, names: &Names) -> Vec<Mount> {
    match &asked.egress {
        None => Vec::new(),
        Some(egress) => confirm::mounts(&names.runtime, &egress.setup.state.bundle),
    }
}

/// podman would name `/` as the home of the user otherwise.
fn passwd_entry(user: &str, uid: u32, home: &str) -> String {
    let gid = rustix::process::getegid().as_raw();
    // A colon would end the field.
    let home = if home.contains(':') { "/" } else { home };
    format!("{user}:*:{uid}:{gid}:{user}:{home}:/bin/bash")
}

pub(crate) fn mount_entry(mount: &Mount) -> MountEntry {
    let (mode, size, reason) = match &mount.kind {
        MountKind::Bind {
            access: Access::ReadOnly,
            ..
        } => ("ro", None, None),
        MountKind::Bind {
            access: Access::ReadWrite,
            ..
        } => ("rw", None, None),
        MountKind::Tmpfs { size, .. } => ("tmpfs", Some(*size), None),
        MountKind::Mask { reason, .. } => ("masked", None, reason.clone()),
    };
    MountEntry {
        path: mount.path.clone(),
        mode: mode.to_owned(),
        source: mount.origin.as_str().to_owned(),
        size,
        reason,
    }
}
