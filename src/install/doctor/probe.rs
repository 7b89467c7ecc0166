//! Throwaway containers that show what no version tells: that keep-id maps this
//! user, that a hook runs and its rules are read back, and that networks are
//! kept apart.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, PidfdFlags};

use super::attack::Task;
use crate::egress::environment::PORTS;
use crate::install::layout::Layout;
use crate::install::{InstallError, call, egress, files, interrupt};
use crate::nft::oci::{self, HookFile};
use crate::nft::ruleset::{GatewayPorts, Ruleset};
use crate::nft::{readback, settings};
use crate::sys::inherit;

/// As far as these containers go, the floor of every sandbox.
const FLOOR: [&str; 5] = [
    "--rm",
    "--pull=never",
    "--userns=keep-id",
    "--read-only",
    "--cap-drop=all",
];

/// What is started here is found by its name, also where it is told of nothing.
fn name(what: &str) -> String {
    format!("umwelt-doctor-{what}-{}", std::process::id())
}

/// Whom this user is inside; the error says what was found instead.
pub(super) fn keep_id(image: &str, uid: u32) -> Result<String, String> {
    let container = Container(name("id"));
    let named = format!("--name={}", container.0);
    let mut args = vec!["run", &named];
    args.extend(FLOOR);
    args.extend(["--network=none", "--entrypoint=", image, "id", "-u"]);
    let said = call::podman_done(&args, None, call::SLOW).map_err(|error| error.to_string())?;
    // It has removed itself.
    std::mem::forget(container);
    match said.trim() {
        inside if inside.parse() == Ok(uid) => Ok(format!("uid {uid} outside is {uid} inside")),
        inside => Err(format!("uid {uid} outside is {inside:?} inside")),
    }
}

/// The files that podman and the hook read; they go when the probe is over.
struct Workshop {
    path: PathBuf,
    /// What was not there before, the outermost first.
    made: Vec<PathBuf>,
}

impl Workshop {
    fn open(layout: &Layout) -> Result<Workshop, InstallError> {
        let path = layout.dirs.data.join("doctor");
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(InstallError::file("clear", &path, error));
            }
            _ => {}
        }
        let made = files::make_dir(&path.join("hooks"), 0o700)?;
        Ok(Workshop { path, made })
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.path);
        for dir in self.made.iter().rev() {
            files::remove_dir_if_empty(dir);
        }
    }
}

/// Removed whatever becomes of the probe.
struct Container(String);

impl Drop for Container {
    fn drop(&mut self) {
        let args = ["rm", "--force", "--ignore", "--time=0", "--", &self.0];
        interrupt::shielded(|| drop(call::podman(&args, None, call::QUICK)));
    }
}

struct Network(String);

impl Drop for Network {
    fn drop(&mut self) {
        let args = ["network", "rm", "--force", &self.0];
        interrupt::shielded(|| drop(call::podman(&args, None, call::QUICK)));
    }
}

/// Whether a container on a network of its own, made as those of sandboxes are,
/// reaches the gateway of a sandbox that runs.
pub(super) fn neighbour(gateway: Ipv4Addr) -> Result<String, String> {
    let text = |error: InstallError| error.to_string();
    let network = Network(name("net"));
    let create = [
        "network",
        "create",
        "--driver=bridge",
        "--disable-dns",
        "--opt=isolate=true",
        &network.0,
    ];
    call::podman_done(&create, None, call::QUICK).map_err(text)?;
    let task = Task::Connect((gateway, PORTS.proxy).into());
    let task = serde_json::to_string(&task).map_err(|error| error.to_string())?;
    let container = Container(name("neighbour"));
    let named = format!("--name={}", container.0);
    let on = format!("--network={}", network.0);
    let mut args = vec!["run", &named, &on];
    args.extend(FLOOR);
    args.extend([
        "--entrypoint=[\"/umwelt\",\"install\",\"doctor\",\"--from-inside\"]",
        egress::GATEWAY_IMAGE,
        &task,
    ]);
    let said = call::podman_done(&args, None, call::SLOW).map_err(text)?;
    // It has removed itself.
    std::mem::forget(container);
    Ok(said.trim().to_owned())
}

/// What the rules are, read back from the network of a container for which the
/// hook has put them there.
pub(super) fn hook(layout: &Layout, image: &str, nft: &Path) -> Result<String, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let workshop = Workshop::open(layout).map_err(|error| text(&error))?;
    let exe = match files::is_there(&layout.program) {
        true => layout.program.clone(),
        false => std::env::current_exe().map_err(|error| text(&error))?,
    };
    let ruleset = ruleset().map_err(|error| text(&error))?;
    let ruleset_file = workshop.path.join("ruleset.json");
    let hook = HookFile {
        exe: &exe,
        ruleset: &ruleset,
        ruleset_file: &ruleset_file,
        nft,
    };
    let config = oci::hook_config(&hook).map_err(|error| text(&error))?;
    for (path, content) in [
        (ruleset_file.clone(), &ruleset),
        (workshop.path.join("hooks").join(oci::FILE_NAME), &config),
    ] {
        files::replace(&path, content.as_bytes(), 0o600).map_err(|error| text(&error))?;
    }
    let container = start(layout, &workshop, image)?;
    read_back(&container, &hook)
}

fn ruleset() -> Result<String, crate::nft::NftError> {
    let ports = GatewayPorts {
        dns: 53,
        proxy: 3128,
        socks: 1080,
    };
    Ruleset::new(Ipv4Addr::new(192, 0, 2, 1), ports, [])?.render()
}

fn start(layout: &Layout, workshop: &Workshop, image: &str) -> Result<Container, String> {
    let config_home = layout
        .dirs
        .config
        .parent()
        .unwrap_or_else(|| Path::new("/"));
    let only = std::env::var_os("CONTAINERS_CONF");
    let texts = settings::load(config_home, only).map_err(|error| error.to_string())?;
    let own = workshop.path.join("hooks");
    let mut args = oci::hooks_dir_args(&own, texts.iter().map(String::as_str))
        .map_err(|error| error.to_string())?;
    let said = workshop.path.join("stderr");
    let container = Container(name("hook"));
    args.extend(["run".into(), "--detach".into(), "--network=none".into()]);
    args.push(format!("--name={}", container.0).into());
    args.extend(FLOOR.map(Into::into));
    args.push(oci::stderr_annotation(&said));
    args.extend(["--entrypoint=", image, "sleep", "300"].map(Into::into));
    match call::podman_done(&args, None, call::SLOW) {
        Ok(_) => Ok(container),
        Err(error) => {
            let hook = std::fs::read_to_string(said).unwrap_or_default();
            let hook = hook.lines().next().unwrap_or_default();
            Err(format!("{error} {hook}").trim_end().to_owned())
        }
    }
}

fn read_back(container: &Container, hook: &HookFile<'_>) -> Result<String, String> {
    let args = ["inspect", "--format", "{{.State.Pid}}", &container.0];
    let pid = call::podman_done(&args, None, call::QUICK).map_err(|error| error.to_string())?;
    let pid = pid.trim().parse().ok().and_then(Pid::from_raw);
    let pid = pid.ok_or("podman does not tell the pid of the container")?;
    let io = |error: std::io::Error| error.to_string();
    let _reserved = inherit::reserve_fd3().map_err(io)?;
    let pidfd =
        rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(|error| io(error.into()))?;
    let command: Command = readback::command(hook.exe, hook, pidfd.as_fd());
    let said = call::run(command, None, call::QUICK).map_err(io)?;
    if !said.status.success() {
        return Err(format!("the rules are not read back: {}", said.problem()));
    }
    let found = readback::parse(&said.text()).map_err(|error| error.to_string())?;
    let digest = found.digest.get(..12).unwrap_or_default();
    Ok(format!(
        "a hook ran, and its rules were read back ({digest})"
    ))
}
