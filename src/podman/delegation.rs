//! Can this user's containers have resource caps? (cgroup v2 delegation.)

use std::fmt;
use std::path::{Path, PathBuf};

use crate::sys::cgroup;

/// Proof that the resource caps can be enforced. Made by [`check`] only, and
/// needed to describe a container.
#[derive(Debug, Clone)]
pub(crate) struct Delegated(());

impl Delegated {
    #[cfg(test)]
    pub(crate) fn for_test() -> Delegated {
        Delegated(())
    }
}

#[derive(Debug)]
pub(crate) enum DelegationError {
    NotUnified,
    NoUserManager {
        path: PathBuf,
        uid: u32,
    },
    Missing {
        uid: u32,
        missing: Vec<String>,
        commands: Vec<String>,
    },
    NoCgroupKill,
}

impl DelegationError {
    pub(crate) fn hint(&self) -> String {
        match self {
            DelegationError::NotUnified => {
                "boot with systemd.unified_cgroup_hierarchy=1 (the default of current distributions)".to_owned()
            }
            DelegationError::NoUserManager { uid, .. } => {
                format!("start the user's systemd instance: sudo loginctl enable-linger {uid}")
            }
            DelegationError::Missing { commands, .. } => commands.join("\n"),
            DelegationError::NoCgroupKill => "use Linux 5.14 or newer".to_owned(),
        }
    }
}

impl fmt::Display for DelegationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DelegationError::NotUnified => {
                f.write_str("this host does not use the unified cgroup hierarchy (cgroup v2)")
            }
            DelegationError::NoUserManager { path, .. } => {
                write!(
                    f,
                    "the user has no systemd instance: {path:?} does not exist"
                )
            }
            DelegationError::Missing { uid, missing, .. } => write!(
                f,
                "the cgroup controllers {} are not delegated to uid {uid}, so the resource caps cannot be enforced",
                missing.join(", ")
            ),
            DelegationError::NoCgroupKill => {
                f.write_str("this kernel cannot kill a whole cgroup (cgroup.kill)")
            }
        }
    }
}

impl std::error::Error for DelegationError {}

/// The controllers must reach the user's systemd instance; below it they are
/// the user's own, and are enabled here where they are not yet.
pub(crate) fn check(uid: u32) -> Result<Delegated, DelegationError> {
    if !cgroup::is_unified() {
        return Err(DelegationError::NotUnified);
    }
    let manager = cgroup::user_manager(uid);
    let Ok(available) = cgroup::controllers(&manager, "cgroup.controllers") else {
        return Err(DelegationError::NoUserManager { path: manager, uid });
    };
    if !cgroup::has_kill(&manager) {
        return Err(DelegationError::NoCgroupKill);
    }
    let missing = missing_from(&available);
    if !missing.is_empty() {
        return Err(no_delegation(uid, &missing, &manager));
    }
    for level in [manager.clone(), manager.join("user.slice")] {
        let Ok(enabled) = cgroup::controllers(&level, "cgroup.subtree_control") else {
            continue;
        };
        let lacking = missing_from(&enabled);
        if lacking.is_empty() {
            continue;
        }
        log::info!("enabling {} below {level:?}", lacking.join(", "));
        let healed = cgroup::enable(&level, &lacking)
            .and_then(|()| cgroup::controllers(&level, "cgroup.subtree_control"));
        match healed {
            Ok(now) if missing_from(&now).is_empty() => {}
            Ok(_) | Err(_) => return Err(no_delegation(uid, &lacking, &level)),
        }
    }
    Ok(Delegated(()))
}

fn missing_from(present: &[String]) -> Vec<&'static str> {
    cgroup::CONTROLLERS
        .into_iter()
        .filter(|name| !present.iter().any(|have| have == name))
        .collect()
}

/// The commands that pass the missing controllers on, level by level, down to
/// the children of `lowest`'s parent, and the drop-in that survives a reboot.
fn no_delegation(uid: u32, missing: &[&'static str], lowest: &Path) -> DelegationError {
    let words: Vec<String> = missing.iter().map(|name| format!("+{name}")).collect();
    let words = words.join(" ");
    let mut levels: Vec<&Path> = lowest
        .ancestors()
        .skip(1)
        .take_while(|level| level.starts_with("/sys/fs/cgroup"))
        .collect();
    levels.reverse();
    let mut commands: Vec<String> = levels
        .iter()
        .map(|level| {
            format!(
                "sudo sh -c 'echo \"{words}\" >> {}/cgroup.subtree_control'",
                level.display()
            )
        })
        .collect();
    commands.push(format!(
        "sudo sh -c 'mkdir -p /etc/systemd/system/user@.service.d && printf \"[Service]\\nDelegate=cpu memory pids\\n\" > /etc/systemd/system/user@.service.d/delegate.conf && systemctl daemon-reload && systemctl restart user@{uid}.service'"
    ));
    DelegationError::Missing {
        uid,
        missing: missing.iter().map(|name| (*name).to_owned()).collect(),
        commands,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delegation_error_names_the_commands_for_this_uid_from_the_top_down() {
        let manager = cgroup::user_manager(1234);
        let error = no_delegation(1234, &["memory", "cpu"], &manager);
        let hint = error.hint();
        let lines: Vec<&str> = hint.lines().collect();
        assert_eq!(
            lines[0],
            "sudo sh -c 'echo \"+memory +cpu\" >> /sys/fs/cgroup/cgroup.subtree_control'"
        );
        assert_eq!(
            lines[2],
            "sudo sh -c 'echo \"+memory +cpu\" >> /sys/fs/cgroup/user.slice/user-1234.slice/cgroup.subtree_control'"
        );
        assert!(lines[3].contains("user@1234.service"));
    }

    #[test]
    fn missing_controllers_are_found() {
        assert_eq!(
            missing_from(&["pids".to_owned(), "io".to_owned()]),
            ["cpu", "memory"]
        );
    }
}
