//! Changes of the mounts of a running container: operations -> the command
//! that makes them, and what it printed -> their answers. Only [`perform`]
//! waits for them, while there is no client yet.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::attach::{Answer, MAX_REQUEST, Operation, Reply, Request};
use crate::run::task::Finished;
use crate::subprocess::{self, Limits};
use crate::sys::{fdpass, inherit};

/// It takes some hundredths of a second.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// The helper for `operations` in the container whose pid 1 `pidfd` means; a
/// [`crate::run::task::Task`] for the loop. An error means that nothing was
/// done, and that it takes a recreate.
pub(crate) fn command(
    exe: &Path,
    pidfd: &OwnedFd,
    operations: Vec<Operation>,
) -> io::Result<Command> {
    let request = serde_json::to_vec(&Request { operations })?;
    if request.len() > MAX_REQUEST {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "too many mounts change at once",
        ));
    }
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    fdpass::send(ours.as_fd(), &request, &[pidfd.as_fd()])?;
    let mut command = Command::new(exe);
    command.arg0("umwelt-run").arg("--mount-helper");
    command.env_clear();
    inherit::hand_over_as_fd3(&mut command, theirs);
    Ok(command)
}

/// Does so at once, while nothing else goes on: when a container is new.
pub(crate) fn perform(
    exe: &Path,
    pidfd: &OwnedFd,
    operations: Vec<Operation>,
) -> io::Result<Vec<Answer>> {
    let count = operations.len();
    let mut command = command(exe, pidfd, operations)?;
    let limits = Limits {
        time: LIMIT,
        bytes: 1 << 20,
    };
    let said = subprocess::run(command.stdin(Stdio::null()), limits)?;
    let finished = Finished {
        status: said.status,
        stdout: said.text().into_owned(),
        stderr: said.errors().into_owned(),
    };
    Ok(parse(&finished, count))
}

/// One answer for each of `count` operations. A helper that failed may have
/// done anything, so that only a recreate tells what is mounted.
pub(crate) fn parse(finished: &Finished, count: usize) -> Vec<Answer> {
    let reply = serde_json::from_str::<Reply>(&finished.stdout);
    match reply {
        Ok(reply) if finished.status.success() && reply.answers.len() == count => reply.answers,
        _ => {
            let words = finished.last_words();
            let reason = format!("the mount helper failed ({}): {words}", finished.status);
            vec![Answer::NotLive { reason }; count]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::Detach;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn detach(path: String) -> Operation {
        Operation::Detach(Detach {
            path,
            device: 1,
            inode: 2,
            made_mount_point: true,
        })
    }

    fn own_pidfd() -> OwnedFd {
        let own = rustix::process::getpid();
        rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty()).unwrap()
    }

    fn finished(code: i32, stdout: &str) -> Finished {
        Finished {
            status: ExitStatus::from_raw(code << 8),
            stdout: stdout.to_owned(),
            stderr: "umwelt-run: cannot answer\n".to_owned(),
        }
    }

    #[test]
    fn helper_is_the_same_program_with_an_empty_environment() {
        let operations = vec![detach("/x".to_owned())];
        let command = command(Path::new("/lib/umwelt"), &own_pidfd(), operations).unwrap();
        assert_eq!(command.get_program(), "/lib/umwelt");
        assert!(command.get_args().eq(["--mount-helper"]));
        assert_eq!(command.get_envs().count(), 0);
    }

    #[test]
    fn request_that_is_too_long_is_an_error() {
        let operations = vec![detach("x".repeat(4096)); 20];
        assert!(command(Path::new("/lib/umwelt"), &own_pidfd(), operations).is_err());
    }

    #[test]
    fn answers_are_taken_in_order() {
        let text = r#"{"answers":[{"done":{"made_mount_point":true}},{"changed":{"reason":"x"}}]}"#;
        let changed = Answer::Changed {
            reason: "x".to_owned(),
        };
        let done = Answer::Done {
            made_mount_point: true,
        };
        assert_eq!(parse(&finished(0, text), 2), [done, changed]);
    }

    #[test]
    fn helper_that_failed_leaves_all_to_a_recreate() {
        let text = r#"{"answers":[{"done":{"made_mount_point":true}}]}"#;
        for finished in [
            finished(0, ""),
            finished(0, "{}"),
            finished(1, text),
            // One answer for two operations.
            finished(0, text),
        ] {
            let answers = parse(&finished, 2);
            assert_eq!(answers.len(), 2);
            for answer in answers {
                let Answer::NotLive { reason } = answer else {
                    panic!("{answer:?}");
                };
                assert!(reason.contains("cannot answer"), "{reason}");
            }
        }
    }
}
