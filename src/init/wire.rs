//! Messages on descriptor 3 between the control plane and pid 1.
//!
//! The socket is `SOCK_SEQPACKET`: one JSON object a packet, its descriptors
//! (`SCM_RIGHTS`) in the same packet, so nothing has to be framed. The order
//! of the descriptors is part of the message type.

use serde::{Deserialize, Serialize};

use crate::nft::probe::Attempt;

/// The descriptor that pid 1 is started with (`podman run --preserve-fds=1`).
pub(crate) const FD: i32 = 3;
/// Raised with every change of these messages: both ends are the same binary,
/// but an older one may still be running in a container.
pub(crate) const VERSION: u32 = 3;
/// Longest packet; well below the default send buffer of a Unix socket.
pub(crate) const MAX_PACKET: usize = 64 << 10;
/// Longest command text that travels as an argument. The kernel refuses an
/// argument over 128 KiB (`MAX_ARG_STRLEN`); longer texts go by descriptor.
pub(crate) const MAX_INLINE: usize = 24 << 10;

/// What the control plane sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum ToInit {
    /// Descriptors: `cgroup.procs` of the command's own cgroup opened for
    /// writing; then, for `Stdio::Pipes`, stdin, stdout and stderr; then the
    /// script, if `script` is set. Both ends close theirs when it is sent or
    /// started, so that an end of file means that the command is gone.
    Spawn(Spawn),
    /// A spawn with this id will come. Its process may be made ready now, in
    /// its cgroup, whose `cgroup.procs` is the descriptor. Never answered; the
    /// spawn brings all that is needed without it. One at a time.
    Prepare { id: u64 },
    /// Tries what the rules of the network must refuse.
    Probe { attempts: Vec<Attempt> },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Spawn {
    pub(crate) id: u64,
    pub(crate) argv: Vec<String>,
    /// The whole environment; nothing is inherited.
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: String,
    pub(crate) stdio: Stdio,
    /// A descriptor with the command text comes along. The child has it as
    /// descriptor 3, and `argv` names `/proc/self/fd/3`.
    #[serde(default)]
    pub(crate) script: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stdio {
    Pipes,
    /// A new terminal of the container's own devpts, as controlling terminal.
    Terminal {
        rows: u16,
        cols: u16,
    },
}

/// What pid 1 sends. To the control plane this is untrusted input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum FromInit {
    /// The first packet; its `SCM_CREDENTIALS` tell the host's pid of pid 1.
    Hello {
        version: u32,
        /// errno of setns(2) on a descriptor that is no namespace. The kernel
        /// says EINVAL; EPERM shows that the derived seccomp profile is on.
        setns_errno: i32,
    },
    /// The errno of each attempt of a probe; 0 where it was not refused.
    Probed { errnos: Vec<i32> },
    /// The command runs. Carries the terminal's master for `Stdio::Terminal`.
    /// `pid` is the number inside the sandbox.
    Started { id: u64, pid: i32 },
    /// The command could not be started; nothing of it is left.
    Failed { id: u64, stage: Stage, errno: i32 },
    /// The command's own process has ended. What it started may live on.
    Exited { id: u64, status: ExitStatus },
}

/// What was being done when a spawn failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    /// Entering the working directory.
    Cwd,
    /// Opening the terminal.
    Terminal,
    /// Fork, joining the cgroup, or exec of the program.
    Exec,
    /// The message itself: missing descriptors, unreadable.
    Message,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ExitStatus {
    Code(i32),
    Signal(i32),
}

/// A packet that is no `ToInit`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unreadable {
    /// The command that it was about, where at least that can be read.
    pub(crate) id: Option<u64>,
}

/// Reads a packet of the control plane.
pub(crate) fn parse(packet: &[u8]) -> Result<ToInit, Unreadable> {
    serde_json::from_slice(packet).map_err(|_| Unreadable {
        id: serde_json::from_slice(packet)
            .ok()
            .map(|OnlyId::Spawn { id }| id),
    })
}

/// What is left of `ToInit` when only the id matters, of whatever version.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum OnlyId {
    Spawn { id: u64 },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spawn() -> Spawn {
        Spawn {
            id: 7,
            argv: vec!["sh".to_owned()],
            env: vec![("A".to_owned(), "1".to_owned())],
            cwd: "/".to_owned(),
            stdio: Stdio::Terminal { rows: 24, cols: 80 },
            script: true,
        }
    }

    #[test]
    fn a_spawn_reads_back_as_it_was_written() {
        let message = ToInit::Spawn(spawn());
        let packet = serde_json::to_vec(&message).unwrap();
        assert_eq!(parse(&packet), Ok(message));
    }

    #[test]
    fn a_spawn_of_another_version_is_refused_by_its_id() {
        let packet = br#"{"spawn":{"id":9,"argv":["sh"],"nice":3}}"#;
        assert_eq!(parse(packet), Err(Unreadable { id: Some(9) }));
    }

    #[test]
    fn a_packet_without_a_readable_id_names_none() {
        for packet in [
            &b""[..],
            b"{",
            b"null",
            br#"{"spawn":{"id":-1}}"#,
            br#"{"spawn":{"id":"1"}}"#,
            br#"{"kill":{"id":1}}"#,
        ] {
            assert_eq!(parse(packet), Err(Unreadable { id: None }));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            drop(parse(&bytes));
        }

        #[test]
        fn a_damaged_spawn_is_survived(at in 0_usize..120, byte in any::<u8>()) {
            let mut packet = serde_json::to_vec(&ToInit::Spawn(spawn())).unwrap();
            let at = at % packet.len();
            packet[at] = byte;
            drop(parse(&packet));
            drop(parse(&packet[..at]));
        }
    }
}
