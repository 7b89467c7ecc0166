//! The orderly end: commands first, then the container, then the network.

use std::time::Duration;

use super::{AfterRemoval, Phase};
use crate::api::{ApiError, Empty, ErrorKind};
use crate::error::Error;
use crate::run::control_plane::{ControlPlane, Ending};
use crate::run::job::EndReason;
use crate::run::journal::Entry;
use crate::run::network::Then;

impl ControlPlane {
    /// The orderly end: commands, container, files.
    pub(crate) fn begin_stop(&mut self) {
        if self.stopping || self.is_leaving() {
            return;
        }
        self.stopping = true;
        self.close_listener();
        let gone = Error::Api(ApiError::new(
            ErrorKind::Stopping,
            "the sandbox is being stopped",
        ));
        self.fail_waiting(&gone);
        let ids: Vec<u64> = self.jobs.keys().copied().collect();
        for id in ids {
            self.end_job(id, EndReason::Stopping);
        }
        self.stop_when_idle();
    }

    /// Goes on with the stop once no command is left.
    pub(crate) fn stop_when_idle(&mut self) {
        if !self.stopping || !self.jobs.is_empty() {
            return;
        }
        match self.phase {
            Phase::Creating { .. } | Phase::Running(_) => {
                self.remove_then(AfterRemoval::CreateAfter(Duration::ZERO));
            }
            Phase::Waiting | Phase::Connecting { .. } => {
                self.phase = Phase::Waiting;
                self.take_network_down(Then::Stopped);
            }
            Phase::Removing { .. } => {}
        }
    }

    /// The end of a stop: clean only if all could be removed.
    pub(super) fn leave_stopped(&mut self) {
        self.journal.record(&Entry::Ended { reason: "stopped" });
        let ending = match self.teardown_errors.pop() {
            None => Ending::Clean,
            Some(error) => Ending::Failed(Error::Podman(error)),
        };
        self.leave(ending);
    }

    pub(super) fn answer_shutdown(&mut self) {
        let failure = self.failure();
        for (connection, request) in std::mem::take(&mut self.shutdown_asked) {
            if let Some(client) = self.connections.get_mut(&connection) {
                match &failure {
                    None => client.result(request, &Empty {}),
                    Some(error) => client.error(Some(request), error.clone()),
                }
            }
            self.flush_connection(connection);
        }
    }
}
