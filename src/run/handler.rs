//! A line of a client -> an answer now, or a command that answers later.

use std::os::fd::OwnedFd;

use crate::api::line::Line;
use crate::api::{
    API_VERSION, ApiError, Call, CancelReply, EgressOp, Empty, ErrorKind, Hello, HelloReply,
    ListReply, MAX_LINE, Request, StatusReply,
};
use crate::run::change::{Change, ChangeKind};
use crate::run::commands::check_call;
use crate::run::connection::{Arrived, Client};
use crate::run::control_plane::ControlPlane;
use crate::run::job::EndReason;
use crate::run::poller::Timer;
use crate::run::waiting::Waiting;
use crate::text;

/// Most unanswered requests of one client.
const MAX_IN_FLIGHT: usize = 512;
/// Longest client name that is kept.
const MAX_NAME: usize = 64;
/// Descriptors of an `exec`: stdin, stdout, stderr.
const EXEC_FDS: usize = 3;

impl ControlPlane {
    pub(crate) fn on_line(&mut self, id: u64, Arrived { line, fds }: Arrived) {
        let parsed = match line {
            Line::Complete(bytes) => Request::parse(&bytes),
            Line::TooLong => Err((
                None,
                ApiError::new(
                    ErrorKind::Limit,
                    format!("a line is longer than {MAX_LINE} bytes"),
                ),
            )),
        };
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let request = match parsed {
            Ok(request) => request,
            Err((request, error)) => {
                connection.in_flight += usize::from(request.is_some());
                return connection.error(request, error);
            }
        };
        // Taken even if it is refused: they are not for the next one.
        let fds = match request.call {
            Call::Exec(_) => fds.take(),
            _ => Vec::new(),
        };
        connection.in_flight += 1;
        if connection.in_flight > MAX_IN_FLIGHT {
            let message = format!("more than {MAX_IN_FLIGHT} requests wait for an answer");
            return connection.error(Some(request.id), ApiError::new(ErrorKind::Limit, message));
        }
        if connection.client.is_none() && !matches!(request.call, Call::Hello(_)) {
            let error = ApiError::bad_request("the first request must be \"hello\"");
            return connection.error(Some(request.id), error);
        }
        self.on_request(id, request, fds);
    }

    fn on_request(&mut self, connection: u64, request: Request, fds: Vec<OwnedFd>) {
        let Request { id, call } = request;
        match call {
            Call::Hello(hello) => self.on_hello_request(connection, id, hello),
            Call::Ping(_) => self.reply(connection, id, &Empty {}),
            Call::Status(_) => {
                let status = self.status();
                self.reply(connection, id, &status);
                self.hurry_counts();
            }
            Call::Cancel(cancel) => self.on_cancel(connection, id, cancel.request),
            Call::Shutdown(_) => {
                self.shutdown_asked.push((connection, id));
                self.begin_stop();
            }
            call => {
                let waiting = Waiting {
                    connection,
                    request: id,
                    call,
                    fds,
                };
                if let Err(error) = self.need_sandbox(waiting) {
                    self.refuse(connection, id, error);
                }
            }
        }
    }

    fn on_hello_request(&mut self, id: u64, request: u64, hello: Hello) {
        let said = self
            .connections
            .get(&id)
            .is_some_and(|connection| connection.client.is_some());
        if said {
            let error = ApiError::bad_request("\"hello\" was said already");
            return self.refuse(id, request, error);
        }
        if hello.api != API_VERSION {
            let message = format!(
                "the client speaks version {} of the API, this control plane {API_VERSION}",
                hello.api
            );
            let error = ApiError::new(ErrorKind::Version, message).with_hint(
                "stop the sandbox with umwelt-ctl stop; it starts again in the new version",
            );
            return self.refuse(id, request, error);
        }
        let reply = HelloReply {
            api: API_VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            sid: self.context.spec.sid.clone(),
            workspace: self.context.workspace.as_str().to_owned(),
            state: self.state(),
        };
        if let Some(connection) = self.connections.get_mut(&id) {
            let name: String = text::printable(&hello.client)
                .chars()
                .take(MAX_NAME)
                .collect();
            connection.client = Some(Client {
                name,
                holds: hello.holds,
            });
            connection.result(request, &reply);
        }
        self.poller.unset(Timer::Hello(id));
        if hello.holds {
            self.was_held = true;
            self.poller.unset(Timer::FirstClient);
        }
    }

    fn status(&self) -> StatusReply {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        StatusReply {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            sid: self.context.spec.sid.clone(),
            workspace: self.context.workspace.as_str().to_owned(),
            state: self.state(),
            pid: std::process::id(),
            container: self.context.spec.name.clone(),
            image: self.context.spec.image.clone(),
            init_pid: self
                .verified()
                .map(|verified| verified.pid.as_raw_nonzero().get().unsigned_abs()),
            uptime_s: self.since.elapsed().as_secs(),
            restarts: self.restarts,
            clients: count(
                self.connections
                    .values()
                    .filter(|c| c.client.as_ref().is_some_and(|c| c.holds))
                    .count(),
            ),
            commands_running: count(self.jobs.len()),
            commands_total: self.commands_total,
            network: self.context.list.network.clone(),
            egress: self.egress_status(),
            launched: self.context.launched,
        }
    }

    fn on_cancel(&mut self, connection: u64, id: u64, request: u64) {
        let same = |c: u64, r: u64| c == connection && r == request;
        let job = self
            .jobs
            .values()
            .find(|job| same(job.connection, job.request))
            .map(|job| job.id);
        let waits = self.waiting.remove(connection, request).is_some()
            || self.changes.cancel(connection, request);
        self.reply(
            connection,
            id,
            &CancelReply {
                was_running: job.is_some() || waits,
            },
        );
        if let Some(job) = job {
            self.end_job(job, EndReason::Cancelled);
        }
        if waits {
            let error = ApiError::new(
                ErrorKind::CannotRun,
                "cancelled before the sandbox was ready",
            );
            self.refuse(connection, request, error);
        }
    }

    /// Serves a request now, or when the sandbox is ready. Its parameters are
    /// checked now: what makes no sense need not wait.
    fn need_sandbox(&mut self, waiting: Waiting) -> Result<(), ApiError> {
        if self.stopping || self.is_leaving() {
            let message = "the sandbox is being stopped";
            return Err(ApiError::new(ErrorKind::Stopping, message));
        }
        check_call(&waiting.call, self.context.list.timeout_max_s)?;
        if matches!(waiting.call, Call::Exec(_)) {
            check_pipes(&waiting.fds)?;
        }
        self.waiting.push(waiting)?;
        self.serve_waiting();
        Ok(())
    }

    /// Starts all that waits, once the sandbox is there.
    pub(crate) fn serve_waiting(&mut self) {
        self.take_changes();
        // A command that began now could be ended by a change at once.
        while self.changes.is_idle() {
            // A dead pid 1 may not have been heard of yet: what comes now
            // waits for the next one, rather than fail with this one.
            self.check_alive();
            if self.verified().is_none() || self.git.is_none() {
                break;
            }
            let Some(waiting) = self.waiting.pop() else {
                break;
            };
            let Waiting {
                connection,
                request,
                call,
                fds,
            } = waiting;
            match call {
                Call::List(_) => {
                    let list = self.list();
                    self.reply(connection, request, &list);
                }
                Call::Egress(asked) if asked.op == EgressOp::Verify => {
                    if let Err(error) = self.check_egress(connection, request) {
                        self.refuse(connection, request, error);
                    }
                }
                Call::Egress(asked) => match self.on_egress(connection, &asked) {
                    Ok(reply) => self.reply(connection, request, &reply),
                    Err(error) => self.refuse(connection, request, error),
                },
                call => {
                    if let Err(error) = self.start_command(connection, request, call, fds) {
                        let error = self.explain(error);
                        self.refuse(connection, request, error);
                    }
                }
            }
            self.flush_connection(connection);
        }
        self.flush_channel();
    }

    /// Changes of the mounts go before the commands that wait.
    fn take_changes(&mut self) {
        if self.verified().is_none() {
            return;
        }
        let is_change = |call: &Call| matches!(call, Call::Grant(_) | Call::Revoke(_));
        while let Some(waiting) = self.waiting.take(is_change) {
            let kind = match waiting.call {
                Call::Grant(grant) => ChangeKind::Grant(grant),
                Call::Revoke(revoke) => ChangeKind::Revoke(revoke.path),
                _ => continue,
            };
            self.changes.push(Change {
                connection: waiting.connection,
                request: waiting.request,
                kind,
            });
        }
        self.gather_changes();
    }

    /// An error at the start of a command, or why there was no way to start
    /// it: pid 1 may have died in between.
    fn explain(&mut self, error: ApiError) -> ApiError {
        self.check_alive();
        if self.verified().is_some() {
            return error;
        }
        log::info!("a command could not begin: {}", error.message);
        let message = "the sandbox ended before the command began; it is created again";
        ApiError::new(ErrorKind::CannotRun, message).with_hint("send the command again")
    }

    fn list(&mut self) -> ListReply {
        let mut list = self.context.list.clone();
        list.notices
            .extend(self.workspace_file.notice().map(str::to_owned));
        list
    }

    pub(crate) fn reply(&mut self, connection: u64, id: u64, reply: &impl serde::Serialize) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.result(id, reply);
        }
    }

    pub(crate) fn refuse(&mut self, connection: u64, id: u64, error: ApiError) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.error(Some(id), error);
        }
    }
}

/// The descriptors of an `exec`. Anything but a pipe is refused: through a
/// descriptor of a file the sandbox could open that file anew, for writing.
fn check_pipes(fds: &[OwnedFd]) -> Result<(), ApiError> {
    if fds.len() != EXEC_FDS {
        return Err(ApiError::bad_request(
            "\"exec\" needs three pipes as descriptors",
        ));
    }
    if !fds.iter().all(is_pipe) {
        return Err(ApiError::bad_request(
            "the descriptors of \"exec\" must be pipes",
        ));
    }
    Ok(())
}

/// Whether it is a pipe without a name. A named one has the type of a pipe as
/// well, but is a file of the host.
fn is_pipe(fd: &OwnedFd) -> bool {
    /// The file system of pipe(2) (linux/magic.h).
    const PIPEFS_MAGIC: u32 = 0x5049_5045;
    rustix::fs::fstatfs(fd).is_ok_and(|fs| u32::try_from(fs.f_type) == Ok(PIPEFS_MAGIC))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipes() -> [OwnedFd; 3] {
        let (reader, writer) = std::io::pipe().unwrap();
        let other = writer.try_clone().unwrap();
        [reader.into(), writer.into(), other.into()]
    }

    #[test]
    fn exec_takes_three_pipes_and_nothing_else() {
        assert!(check_pipes(&pipes()).is_ok());
        assert!(check_pipes(&pipes()[..2]).is_err());
        assert!(check_pipes(&[]).is_err());
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).unwrap();
        let open = |path: &std::path::Path| {
            let mut options = std::fs::File::options();
            options.read(true).write(true).open(path).unwrap()
        };
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        for bad in [
            OwnedFd::from(open(&fifo)),
            open("/dev/null".as_ref()).into(),
            tempfile::tempfile().unwrap().into(),
            socket.into(),
        ] {
            let [first, second, _] = pipes();
            let error = check_pipes(&[first, second, bad]).unwrap_err();
            assert_eq!(error.kind, ErrorKind::BadRequest);
        }
    }
}
