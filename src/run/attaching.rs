//! Changes of the mounts that reach the running container, without a new one.

use crate::api::{ApiError, Applied};
use crate::attach::{Answer, Attach, Detach, Operation};
use crate::policy::grants::{GrantKind, Step};
use crate::policy::mounts::Mount;
use crate::run::change::UnderWay;
use crate::run::control_plane::ControlPlane;
use crate::run::grants::GrantError;
use crate::run::layout::{Plan, Sources};
use crate::run::lifecycle::TaskKind;
use crate::run::live;
use crate::run::task::{Finished, Task};

/// Steps on their way into the container.
#[derive(Debug)]
pub(crate) struct LiveSteps {
    steps: Vec<Step>,
    /// What the next container would have.
    plan: Plan,
    /// The container that they are for.
    container: u64,
}

impl ControlPlane {
    /// Has the steps made; without success it takes a new container.
    pub(crate) fn start_live(&mut self, under_way: UnderWay, steps: Vec<Step>, plan: Plan) {
        let known = &self.context.spec.sources;
        let operations: Option<Vec<Operation>> = steps
            .iter()
            .map(|step| self.operation(step, &plan.sources, known))
            .collect();
        let Some(operations) = operations else {
            return self.recreate(under_way);
        };
        let task = self
            .verified()
            .ok_or_else(|| std::io::ErrorKind::NotConnected.into())
            .and_then(|verified| live::command(&self.context.exe, &verified.pidfd, operations))
            .and_then(Task::spawn);
        match task {
            Ok(task) => {
                let container = self.container;
                let steps = LiveSteps {
                    steps,
                    plan,
                    container,
                };
                let number = self.changes.begin(under_way, Some(steps));
                self.add_task(task, TaskKind::Live(number), live::LIMIT);
            }
            Err(error) => {
                log::warn!("mounts cannot be attached: {error}");
                self.recreate(under_way);
            }
        }
    }

    fn operation(&self, step: &Step, next: &Sources, known: &Sources) -> Option<Operation> {
        match step {
            Step::Attach(mount) => {
                let source = mount.source()?;
                let id = next.get(source)?;
                let grant = self.grants.of(&mount.path)?;
                Some(Operation::Attach(Attach {
                    path: mount.path.clone(),
                    source: source.to_owned(),
                    device: id.device,
                    inode: id.inode,
                    is_file: grant.kind == GrantKind::File,
                    read_only: !mount.is_writable(),
                }))
            }
            Step::Detach(mount) => {
                let id = known.get(mount.source()?)?;
                Some(Operation::Detach(Detach {
                    path: mount.path.clone(),
                    device: id.device,
                    inode: id.inode,
                    made_mount_point: self.changes.made_mount_point(&mount.path),
                }))
            }
        }
    }

    /// The helper has ended. If the container has too, the next one is made
    /// with the changed mounts anyway, and that answers the changes.
    pub(crate) fn live_done(&mut self, number: u64, finished: Option<&Finished>) {
        let Some((under_way, live)) = self.changes.take_live(number) else {
            return;
        };
        if live.container != self.container || self.verified().is_none() {
            self.changes.begin(under_way, None);
            return;
        }
        let count = live.steps.len();
        let answers = finished.map_or_else(Vec::new, |finished| live::parse(finished, count));
        let is_done = |answer: &Answer| matches!(answer, Answer::Done { .. });
        if answers.len() == count && answers.iter().all(is_done) {
            self.adopt(live, &answers);
            self.applied(under_way, Applied::Live);
        } else if !answers.iter().any(is_done)
            && answers
                .iter()
                .any(|answer| matches!(answer, Answer::Changed { .. }))
        {
            self.source_changed(under_way, &live.steps, &answers);
        } else {
            log::info!("a new container is needed: {}", reasons(&answers));
            self.recreate(under_way);
        }
        self.serve_waiting();
    }

    fn adopt(&mut self, live: LiveSteps, answers: &[Answer]) {
        let mut mounts = self.context.spec.mounts.clone();
        for (step, answer) in live.steps.iter().zip(answers) {
            mounts = mounts.after(step, &live.plan.mounts);
            match (step, answer) {
                (Step::Attach(mount), Answer::Done { made_mount_point }) => {
                    self.changes.attached(&mount.path, *made_mount_point);
                }
                (Step::Attach(mount) | Step::Detach(mount), _) => {
                    self.changes.detached(&mount.path);
                }
            }
        }
        self.context.spec.sources = live.plan.sources;
        self.context.set_mounts(mounts);
    }

    /// Nothing was changed, since something else stands at a path by now.
    fn source_changed(&mut self, under_way: UnderWay, steps: &[Step], answers: &[Answer]) {
        let is_changed = |(_, answer): &(&Step, &Answer)| matches!(answer, Answer::Changed { .. });
        let changed = steps.iter().zip(answers).find(is_changed);
        let path = changed.map_or("", |(step, _)| path_of(step));
        let error = ApiError::from(&GrantError::Changed(path.into()));
        self.take_back(under_way, &error);
    }
}

fn path_of(step: &Step) -> &str {
    let (Step::Attach(Mount { path, .. }) | Step::Detach(Mount { path, .. })) = step;
    path
}

fn reasons(answers: &[Answer]) -> String {
    let reasons = answers.iter().filter_map(|answer| match answer {
        Answer::NotLive { reason } | Answer::Changed { reason } => Some(reason.as_str()),
        Answer::Done { .. } => None,
    });
    reasons.collect::<Vec<_>>().join("; ")
}
