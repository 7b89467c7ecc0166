//! The caps of the scope in which the commands are, where crun 1.8 has
//! set them one level below only, for pid 1. systemd has to set them: what is
//! written to the files of a scope is gone when systemd reads its units again.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{VerifyError, fail};
use crate::config::Resources;
use crate::subprocess::{self, Limits};

const CHECK: &str = "caps of the scope";
/// Where systemd itself is looked for; no PATH can lead elsewhere.
const PROGRAM: &str = "/usr/bin/systemctl";
const LIMITS: Limits = Limits {
    time: Duration::from_secs(20),
    bytes: 1 << 16,
};

/// To be read back: that systemd agrees is not taken for its doing so.
pub(super) fn cap(scope: &Path, caps: &Resources) -> Result<(), VerifyError> {
    let Some(unit) = unit_of(scope) else {
        return fail(CHECK, format!("{scope:?} is none of a container"));
    };
    log::info!("systemd is asked for the caps, which the OCI runtime has not set");
    let mut command = Command::new(PROGRAM);
    command.args(["--user", "set-property", "--runtime", unit]);
    command.args(properties(caps)).stdin(Stdio::null());
    command.current_dir("/").env_clear();
    // As for podman: the environment of an MCP client may lack both.
    if let Some(usual) = crate::dirs::usual_runtime() {
        command.env("XDG_RUNTIME_DIR", usual);
    }
    for name in ["XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    match subprocess::run(&mut command, LIMITS) {
        Ok(said) if said.status.success() => Ok(()),
        Ok(said) => fail(CHECK, format!("{PROGRAM}: {}", said.problem())),
        Err(error) => fail(CHECK, format!("{PROGRAM}: {error}")),
    }
}

fn unit_of(scope: &Path) -> Option<&str> {
    let name = scope.file_name()?.to_str()?;
    (name.starts_with("libpod-") && name.ends_with(".scope")).then_some(name)
}

fn properties(caps: &Resources) -> [String; 4] {
    [
        format!("MemoryMax={}", caps.memory),
        "MemorySwapMax=0".to_owned(),
        format!("TasksMax={}", caps.pids_limit),
        format!("CPUQuota={:.2}%", caps.cpus * 100.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caps_are_in_the_words_of_systemd() {
        let caps = Resources {
            memory: 1 << 29,
            cpus: 1.5,
            pids_limit: 300,
        };
        assert_eq!(
            properties(&caps),
            [
                "MemoryMax=536870912",
                "MemorySwapMax=0",
                "TasksMax=300",
                "CPUQuota=150.00%"
            ]
        );
    }

    #[test]
    fn only_the_scope_of_a_container_is_capped() {
        assert_eq!(
            unit_of(Path::new("/a/libpod-1.scope")),
            Some("libpod-1.scope")
        );
        for other in [
            "/a/user.slice",
            "/a/x.scope",
            "/",
            "/a/libpod-1.scope/container",
        ] {
            assert_eq!(unit_of(Path::new(other)), None, "{other}");
        }
    }
}
