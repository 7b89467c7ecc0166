//! How a container is removed, with what an earlier start may have left of its name.

use std::ffi::OsString;

use super::{AfterRemoval, MAX_ATTEMPTS, Phase, REMOVE_LIMIT, TaskKind, is_worth_a_retry, read_id};
use crate::podman::leftover::{self, Owner};
use crate::podman::{self, PodmanError};
use crate::run::control_plane::ControlPlane;
use crate::run::network::Then;
use crate::run::poller::Timer;
use crate::run::task::{Finished, Task};
use crate::sys::process;

const MAX_REMOVE_FAILURES: u32 = 2;

impl ControlPlane {
    /// Ends the container and removes what podman has of it. Closing the
    /// channel ends pid 1, and with it all that runs inside, at once.
    pub(crate) fn remove_then(&mut self, next: AfterRemoval) {
        let Some(next) = self.count_before(next) else {
            return;
        };
        self.drop_channel();
        self.phase = Phase::Removing {
            next,
            found: Vec::new(),
            in_the_way: false,
            failures: 0,
        };
        // A `podman run` under way could create what was just removed. Its
        // container ends as soon as it begins, so it is waited for.
        let creating = self
            .tasks
            .iter()
            .find(|(_, (_, kind))| matches!(kind, TaskKind::Create(_)));
        match creating.map(|(id, _)| *id) {
            Some(id) => self.poller.set(Timer::Task(id), REMOVE_LIMIT),
            None => self.start_removal(),
        }
    }

    pub(super) fn start_removal(&mut self) {
        match self.container_id() {
            Some(id) => self.remove(vec![id]),
            None => self.find_leftovers(),
        }
    }

    /// The id that `podman run` has written: a container of ours for certain.
    pub(crate) fn container_id(&self) -> Option<String> {
        read_id(&self.cidfile())
    }

    fn find_leftovers(&mut self) {
        self.podman_task(leftover::list_args(), TaskKind::FindLeftovers);
    }

    fn podman_task(&mut self, args: Vec<OsString>, kind: TaskKind) {
        match Task::spawn(podman::command(&self.context.search_path, args)) {
            Ok(task) => self.add_task(task, kind, REMOVE_LIMIT),
            Err(error) => {
                self.teardown_errors.push(PodmanError::Spawn(error));
                self.removal_done();
            }
        }
    }

    pub(super) fn leftovers_found(&mut self, finished: Option<Finished>) {
        let spec = &self.context.spec;
        let owner = Owner {
            prefix: &spec.prefix,
            sid: &spec.sid,
            name: &spec.name,
        };
        let output = match finished {
            Some(finished) if finished.status.success() => finished.stdout,
            // podman before 5.3 fails where a container of somebody else goes meanwhile.
            Some(failed) => return self.removal_failed("look for what is left", &failed),
            None => String::new(),
        };
        let mut leftovers = leftover::parse(&output, owner);
        // The gateway that serves now is none.
        if let Some(gateway) = self.gateway_id() {
            leftovers.ours.retain(|id| *id != gateway);
        }
        if leftovers.is_name_taken {
            self.name_is_taken();
        }
        if leftovers.ours.is_empty() {
            return self.removal_done();
        }
        if let Phase::Removing { in_the_way, .. } = &mut self.phase {
            *in_the_way = true;
        }
        self.remove(leftovers.ours);
    }

    /// No further try would end otherwise.
    fn name_is_taken(&mut self) {
        if let Phase::Removing { next, .. } = &mut self.phase
            && let AfterRemoval::Retry { attempt, .. } = next
        {
            *attempt = MAX_ATTEMPTS;
        }
    }

    fn remove(&mut self, ids: Vec<String>) {
        self.podman_task(podman::remove_args(&ids), TaskKind::Remove);
        if let Phase::Removing { found, .. } = &mut self.phase {
            found.extend(ids);
        }
    }

    pub(super) fn removed(&mut self, finished: Option<Finished>) {
        let Some(failed) = finished.filter(|finished| !finished.status.success()) else {
            return self.removal_done();
        };
        self.removal_failed("remove the sandbox", &failed);
    }

    /// It is tried again, a few times.
    fn removal_failed(&mut self, what: &'static str, failed: &Finished) {
        log::error!(
            "podman could not {what}, and ended with {}: {}",
            failed.status,
            failed.stderr
        );
        match &mut self.phase {
            // podman finds out that conmon is dead, says so, and removes the
            // container when it is asked the next time.
            Phase::Removing { failures, .. } if *failures < MAX_REMOVE_FAILURES => {
                *failures += 1;
                self.find_leftovers();
            }
            _ => {
                self.teardown_errors.push(PodmanError::Failed {
                    what,
                    status: failed.status,
                    stderr: failed.last_words().to_owned(),
                });
                self.removal_done();
            }
        }
    }

    fn removal_done(&mut self) {
        let Phase::Removing {
            next,
            found,
            in_the_way,
            ..
        } = std::mem::replace(&mut self.phase, Phase::Waiting)
        else {
            return;
        };
        for id in &found {
            process::kill_runtime_of(id);
        }
        match next {
            _ if self.stopping => self.take_network_down(Then::Stopped),
            AfterRemoval::Retry { error, attempt }
                if is_worth_a_retry(&error, attempt, in_the_way) =>
            {
                self.create(attempt + 1);
            }
            AfterRemoval::Retry { error, .. } | AfterRemoval::Fail(error) => {
                self.take_network_down(Then::Failed(error));
            }
            AfterRemoval::CreateAfter(wait) => self.poller.set(Timer::Restart, wait),
        }
    }
}
