//! Grants and revokes, from the request to the answer: judged together, then
//! brought into the running container, or into a new one in its place.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::api::{ApiError, Applied, ChangeReply, ErrorKind, Grant as Asked, GrantMode};
use crate::config::PersistedGrant;
use crate::error::Error;
use crate::policy::grants::{self, Grant, GrantKind, GrantSet, Lasts, Step};
use crate::policy::mounts::{Access, MountKind, MountSet, Origin};
use crate::run::attaching::LiveSteps;
use crate::run::control_plane::{Context, ControlPlane};
use crate::run::grants::{GrantError, Judge, check_unchanged, identify};
use crate::run::journal::Entry;
use crate::run::lifecycle::AfterRemoval;
use crate::run::mount_entry;
use crate::run::poller::Timer;
use crate::run::standing::StandingFile;
use crate::sys::process;
use crate::text;
use crate::trust::FILE;

/// How long more changes are waited for: clients send several at once, and a
/// new container for each would end the commands as often.
const GATHER: Duration = Duration::from_millis(20);
/// Most names of what a new container has ended, and how much of each.
const MAX_LOST: usize = 50;
const MAX_COMMAND: usize = 200;
/// Most notices that `list` keeps.
const MAX_NOTICES: usize = 30;

/// A request that changes the mounts.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) connection: u64,
    pub(crate) request: u64,
    pub(crate) kind: ChangeKind,
}

#[derive(Debug)]
pub(crate) enum ChangeKind {
    Grant(Asked),
    Revoke(String),
}

/// What has not been answered yet.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    queue: VecDeque<Change>,
    under_way: Option<UnderWay>,
    /// Of what is under way, where the running container is changed.
    live: Option<LiveSteps>,
    /// Counts the changes of running containers.
    live_count: u64,
    /// Paths at which a mount was attached since the create, and whether its
    /// mount point was made for it.
    attached: BTreeMap<String, bool>,
}

/// A batch of changes on its way into the sandbox.
#[derive(Debug)]
pub(crate) struct UnderWay {
    batch: Vec<Judged>,
    /// What holds again if it fails.
    previous: GrantSet,
    /// What a new container has ended.
    lost: Vec<String>,
}

/// A change that the rules allow.
#[derive(Debug)]
struct Judged {
    connection: u64,
    request: u64,
    /// Without links.
    path: String,
    granted: Option<Grant>,
    /// None for a revoke.
    mode: Option<GrantMode>,
    /// What the workspace file has to say from now on.
    persist: Option<Persist>,
    notices: Vec<String>,
    /// What hides it otherwise, with the reason.
    lifted: Option<String>,
}

#[derive(Debug)]
enum Persist {
    Add(PersistedGrant),
    Remove,
}

impl Changes {
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.under_way.is_none()
    }

    pub(crate) fn push(&mut self, change: Change) {
        self.queue.push_back(change);
    }

    /// Takes back a request that nothing was done for.
    pub(crate) fn cancel(&mut self, connection: u64, request: u64) -> bool {
        let before = self.queue.len();
        self.queue
            .retain(|change| change.connection != connection || change.request != request);
        self.queue.len() < before
    }

    /// Returns the number of these steps, by which their end is told.
    pub(crate) fn begin(&mut self, under_way: UnderWay, live: Option<LiveSteps>) -> u64 {
        self.under_way = Some(under_way);
        self.live = live;
        self.live_count += 1;
        self.live_count
    }

    /// The steps of this number, unless something else is under way by now.
    pub(crate) fn take_live(&mut self, number: u64) -> Option<(UnderWay, LiveSteps)> {
        if self.live_count != number {
            return None;
        }
        let live = self.live.take()?;
        Some((self.under_way.take()?, live))
    }

    fn take_under_way(&mut self) -> Option<UnderWay> {
        self.live = None;
        self.under_way.take()
    }

    pub(crate) fn attached(&mut self, path: &str, made_mount_point: bool) {
        self.attached.insert(path.to_owned(), made_mount_point);
    }

    pub(crate) fn detached(&mut self, path: &str) {
        self.attached.remove(path);
    }

    pub(crate) fn made_mount_point(&self, path: &str) -> bool {
        self.attached.get(path).copied().unwrap_or_default()
    }

    /// A new container has only what it was created with.
    pub(crate) fn forget_attached(&mut self) {
        self.attached.clear();
    }

    pub(crate) fn remove_client(&mut self, connection: u64) {
        self.queue.retain(|change| change.connection != connection);
    }

    /// Who waits for an answer.
    pub(crate) fn take_waiting(&mut self) -> Vec<(u64, u64)> {
        let queued = self.queue.drain(..);
        let mut waiting: Vec<_> = queued
            .map(|change| (change.connection, change.request))
            .collect();
        if let Some(under_way) = self.take_under_way() {
            waiting.extend(
                under_way
                    .batch
                    .iter()
                    .map(|one| (one.connection, one.request)),
            );
        }
        waiting
    }
}

impl ControlPlane {
    /// Changes wait a moment for others that come at the same time.
    pub(crate) fn gather_changes(&mut self) {
        // Not put off by later ones, or somebody could put them off for ever.
        if !self.changes.queue.is_empty() && !self.poller.is_set(Timer::Changes) {
            self.poller.set(Timer::Changes, GATHER);
        }
    }

    pub(crate) fn begin_changes(&mut self) {
        let is_ready = self.verified().is_some() && !self.stopping && !self.is_leaving();
        if !is_ready || self.changes.under_way.is_some() {
            return;
        }
        let mut wanted = self.grants.clone();
        let mut batch = Vec::new();
        for change in std::mem::take(&mut self.changes.queue) {
            let judged = match &change.kind {
                ChangeKind::Grant(asked) => self.judge_grant(&change, asked, &mut wanted),
                ChangeKind::Revoke(path) => self.judge_revoke(&change, path, &mut wanted),
            };
            match judged {
                Ok(judged) => {
                    supersede(&mut batch, &judged);
                    batch.push(judged);
                }
                Err(error) => {
                    self.record_refusal(&change, &error);
                    self.answer_refused(change.connection, change.request, error);
                }
            }
        }
        if !batch.is_empty() {
            self.apply(batch, wanted);
        }
        self.serve_waiting();
    }

    fn answer_refused(&mut self, connection: u64, request: u64, error: ApiError) {
        self.refuse(connection, request, error);
        self.flush_connection(connection);
    }

    fn judge_grant(
        &mut self,
        change: &Change,
        asked: &Asked,
        wanted: &mut GrantSet,
    ) -> Result<Judged, ApiError> {
        if asked.persist
            && let Some(notice) = self.workspace_file.obstacle()
        {
            let message = format!("nothing can be persisted: {notice}");
            return Err(ApiError::new(ErrorKind::Refused, message));
        }
        let grant = self
            .context
            .judging()
            .judge(asked, wanted)
            .map_err(|error| ApiError::from(&error))?;
        let mut judged = Judged {
            connection: change.connection,
            request: change.request,
            path: grant.path.clone(),
            granted: None,
            mode: Some(asked.mode),
            persist: asked.persist.then(|| Persist::Add(persisted(&grant))),
            notices: Vec::new(),
            lifted: None,
        };
        if let Some(lifted) = self.context.judging().lifted_mask(&grant) {
            judged.notices.push(text::printable(&lifted));
            judged.lifted = Some(lifted);
        }
        match self.shown_already(&grant, wanted) {
            Some(notice) if !asked.persist => judged.notices.push(notice),
            _ => {
                if grant.lasts == Lasts::Persisted {
                    // The newer word counts.
                    wanted.remove(&grant.path);
                }
                wanted.insert(grant.clone());
                judged.granted = Some(grant);
            }
        }
        Ok(judged)
    }

    /// That a mount shows the same in the same way already, for the result.
    fn shown_already(&self, grant: &Grant, wanted: &GrantSet) -> Option<String> {
        let shown_by = self.context.spec.mounts.covering(&grant.path)?;
        let MountKind::Bind { source, access } = &shown_by.kind else {
            return None;
        };
        // One of the same batch may have taken it back.
        let stays = !shown_by.is_granted() || wanted.of(&shown_by.path).is_some();
        // The host may have put something else in the place of what is shown.
        let shown = self.context.spec.sources.get(source);
        let is_there = identify(Path::new(source)).is_ok_and(|(id, _)| shown == Some(&id));
        let is_same = source == &shown_by.path && *access == grant.kind.access();
        if !(stays && is_there && is_same) {
            return None;
        }
        Some(match (shown_by.path == grant.path, shown_by.is_granted()) {
            (true, true) => "already granted".to_owned(),
            (true, false) => "it was visible already, without a grant".to_owned(),
            (false, _) => {
                let path = text::printable(&shown_by.path);
                format!("it was visible already, through {path:?}")
            }
        })
    }

    fn judge_revoke(
        &self,
        change: &Change,
        path: &str,
        wanted: &mut GrantSet,
    ) -> Result<Judged, ApiError> {
        let asked = self
            .context
            .judging()
            .asked_path(path)
            .map_err(|error| ApiError::from(&error))?;
        // What was granted may be gone by now, or have become a link.
        let real = asked.canonicalize().unwrap_or_else(|_| asked.clone());
        for path in [&asked, &real].into_iter().filter_map(|path| path.to_str()) {
            let held = !wanted.remove(path).is_empty();
            // One that the file asks for may not hold; it goes from there as well.
            let mut file = self.workspace_file.grants().iter();
            let is_persisted = file.any(|grant| grant.path == Path::new(path));
            if held || is_persisted {
                return Ok(Judged {
                    connection: change.connection,
                    request: change.request,
                    path: path.to_owned(),
                    granted: None,
                    mode: None,
                    persist: is_persisted.then_some(Persist::Remove),
                    notices: Vec::new(),
                    lifted: None,
                });
            }
        }
        Err(self.nothing_to_revoke(path))
    }

    fn nothing_to_revoke(&self, path: &str) -> ApiError {
        let shown_by = self
            .context
            .judging()
            .asked_path(path)
            .ok()
            .and_then(|path| self.context.spec.mounts.covering(path.to_str()?));
        let why = match shown_by.map(|mount| mount.origin) {
            Some(Origin::Workspace | Origin::WorkspaceSubmount) => {
                "it belongs to the workspace, which cannot be revoked"
            }
            Some(Origin::Base | Origin::Submount) => {
                "it is shown by the base configuration, which only its owner changes"
            }
            _ => "nothing was granted for this path",
        };
        let message = format!("{path:?} cannot be revoked: {why}");
        ApiError::new(ErrorKind::Refused, message).with_hint("list shows what was granted")
    }

    fn apply(&mut self, batch: Vec<Judged>, wanted: GrantSet) {
        let planned = self
            .context
            .plan(&self.grants)
            .and_then(|old| Ok((old, self.context.plan(&wanted)?)));
        let (old, new) = match planned {
            Ok(planned) => planned,
            Err(error) => return self.refuse_batch(batch, &ApiError::from(&error)),
        };
        // What was put in the place of something granted is seen by none of the
        // mounts that are there.
        let is_known = |(path, id)| old.sources.get(path).is_none_or(|old| old == id);
        let steps = match new.sources.iter().all(is_known) {
            true => self.live_steps(&old.mounts, &new.mounts),
            false => None,
        };
        let previous = std::mem::replace(&mut self.grants, wanted);
        let under_way = UnderWay {
            batch,
            previous,
            lost: Vec::new(),
        };
        match steps {
            Some(steps) if steps.is_empty() => self.applied(under_way, Applied::Unchanged),
            Some(steps) => self.start_live(under_way, steps, new),
            None => self.recreate(under_way),
        }
    }

    /// What leads the running container to the new mounts. What is mounted
    /// below a path there, which the plan may not know of, is not to be hidden.
    fn live_steps(&self, old: &MountSet, new: &MountSet) -> Option<Vec<Step>> {
        let attached: BTreeSet<String> = self.changes.attached.keys().cloned().collect();
        let steps = grants::steps(old, new, &attached)?;
        let is_free = |step: &Step| {
            let (Step::Attach(mount) | Step::Detach(mount)) = step;
            !self.context.spec.mounts.is_any_below(&mount.path)
        };
        steps.iter().all(is_free).then_some(steps)
    }

    /// A new container in the place of the running one.
    pub(crate) fn recreate(&mut self, mut under_way: UnderWay) {
        under_way.lost = self.what_runs();
        self.lose_jobs("the sandbox was created anew, since its mounts were changed");
        self.changes.begin(under_way, None);
        self.remove_then(AfterRemoval::CreateAfter(Duration::ZERO));
    }

    /// Commands, and what ended commands have left running.
    fn what_runs(&mut self) -> Vec<String> {
        let commands = self.jobs.values().map(|job| short(&job.command));
        let mut lost: Vec<String> = commands.collect();
        let left = self.lingering.iter().flat_map(|left| left.cgroup.pids());
        let left = left.filter_map(process::describe);
        lost.extend(left.map(|(_, command)| short(&command)));
        lost.sort();
        lost.truncate(MAX_LOST);
        lost
    }

    /// The new container is there, and is what was asked for.
    pub(crate) fn recreated(&mut self) {
        if let Some(under_way) = self.changes.take_under_way() {
            self.journal.record(&Entry::Recreated {
                reason: "the mounts were changed",
                lost: &under_way.lost,
            });
            self.applied(under_way, Applied::Recreated);
        }
    }

    /// The new container could not be created: the former mounts hold again.
    /// Returns whether there was such a change.
    pub(crate) fn roll_back(&mut self, error: &Error) -> bool {
        let Some(under_way) = self.changes.take_under_way() else {
            return false;
        };
        log::error!("the mounts could not be changed: {error}");
        let lost = match under_way.lost.as_slice() {
            [] => String::new(),
            lost => format!("; what ran is lost: {}", lost.join(", ")),
        };
        let message = format!(
            "the sandbox could not be created so: {error}; the former mounts hold again{lost}"
        );
        let mut reply = ApiError::new(ErrorKind::CannotRun, message);
        reply.hint = error.hint();
        self.take_back(under_way, &reply);
        true
    }

    pub(crate) fn take_back(&mut self, under_way: UnderWay, error: &ApiError) {
        self.grants = under_way.previous;
        self.refuse_batch(under_way.batch, error);
    }

    fn refuse_batch(&mut self, batch: Vec<Judged>, error: &ApiError) {
        for one in batch {
            self.answer_refused(one.connection, one.request, error.clone());
        }
    }

    pub(crate) fn applied(&mut self, under_way: UnderWay, applied: Applied) {
        self.relabel();
        for mut one in under_way.batch {
            if let Some(grant) = &one.granted
                && self.grants.of(&grant.path).is_none()
            {
                let changed = GrantError::Changed(grant.path.clone().into());
                self.answer_refused(one.connection, one.request, ApiError::from(&changed));
                continue;
            }
            let persisted = self.persist(&mut one);
            self.record(&one, persisted, applied);
            let mut notices = std::mem::take(&mut one.notices);
            notices.extend(self.still_shown(&one));
            notices.extend(self.standing_notices());
            let reply = ChangeReply {
                mode: self.mode_of(&one.path),
                path: text::printable(&one.path),
                applied,
                persisted,
                lost: under_way.lost.clone(),
                mounts: self.context.list.mounts.clone(),
                notices,
            };
            self.reply(one.connection, one.request, &reply);
            self.flush_connection(one.connection);
        }
    }

    /// Whether the workspace file says as asked from now on. A grant that could
    /// not be written there lasts as long as this control plane.
    fn persist(&mut self, judged: &mut Judged) -> bool {
        let path = Path::new(&judged.path);
        let written = match &judged.persist {
            None => return false,
            Some(Persist::Remove) => self.workspace_file.remove(path),
            Some(Persist::Add(persisted)) => self.workspace_file.add(persisted),
        };
        let Err(error) = written else {
            self.watched.settle_workspace_file();
            return true;
        };
        let hint = error.hint().map(|hint| format!("; {hint}"));
        let notice = format!(
            "{FILE} still says what it said before: {error}{}",
            hint.unwrap_or_default()
        );
        judged.notices.push(text::printable(&notice));
        self.grants.limit_to_session(&judged.path);
        self.relabel();
        false
    }

    fn record(&self, change: &Judged, persist: bool, applied: Applied) {
        let client = &self.client_name(change.connection);
        let path = &change.path;
        let applied = match applied {
            Applied::Unchanged => "unchanged",
            Applied::Live => "live",
            Applied::Recreated => "recreated",
        };
        self.journal.record(&match change.mode {
            Some(mode) => Entry::Grant {
                path,
                mode: match mode {
                    GrantMode::Ro => "ro",
                    GrantMode::Rw => "rw",
                },
                persist,
                client,
                applied,
                mask: change.lifted.as_deref(),
            },
            None => Entry::Revoke {
                path,
                client,
                applied,
            },
        });
    }

    /// Asking for what is forbidden leaves a trace too.
    fn record_refusal(&self, change: &Change, error: &ApiError) {
        let ChangeKind::Grant(asked) = &change.kind else {
            return;
        };
        self.journal.record(&Entry::Refused {
            path: &short(&asked.path),
            mode: match asked.mode {
                GrantMode::Ro => "ro",
                GrantMode::Rw => "rw",
            },
            client: &self.client_name(change.connection),
            reason: &short(&error.message),
        });
    }

    fn relabel(&mut self) {
        let mounts = self.context.spec.mounts.relabelled(&self.grants);
        self.context.set_mounts(mounts);
    }

    /// A revoke takes away what was granted, and not what shows it otherwise.
    fn still_shown(&self, change: &Judged) -> Option<String> {
        let mount = self.context.spec.mounts.covering(&change.path)?;
        let (is_revoke, path) = (change.mode.is_none(), text::printable(&mount.path));
        let source = mount.origin.as_str();
        (is_revoke && mount.source().is_some())
            .then(|| format!("it is still shown, by the mount {path:?} ({source})"))
    }

    fn mode_of(&self, path: &str) -> Option<String> {
        let mount = self.context.spec.mounts.covering(path)?;
        // Scratch and masks show nothing of the host.
        mount.source().map(|_| mount_entry(mount).mode)
    }

    /// What every result says until it is resolved, and what is said once.
    pub(crate) fn standing_notices(&mut self) -> Vec<String> {
        let mut notices = std::mem::take(&mut self.pending_notices);
        notices.extend(self.workspace_file.notice().map(str::to_owned));
        notices
    }

    /// For a person, who is not the one that the next result is for: all that
    /// holds until it is resolved, also what an agent was told once.
    pub(crate) fn lasting_notices(&mut self) -> Vec<String> {
        let mut notices = self.context.list.notices.clone();
        let pending = std::mem::take(&mut self.pending_notices);
        notices.extend(
            pending
                .iter()
                .filter(|line| !self.context.list.notices.contains(line))
                .cloned(),
        );
        self.pending_notices = pending;
        notices.extend(self.workspace_file.notice().map(str::to_owned));
        notices
    }

    pub(crate) fn take_persisted(&mut self) {
        let (grants, refused) = self.context.persisted(&self.workspace_file);
        self.grants = grants;
        self.tell(refused);
    }

    /// Grants whose path is no longer what was granted do not come into the
    /// next container.
    pub(crate) fn drop_changed_grants(&mut self) {
        let mut dropped = Vec::new();
        self.grants.retain(|grant| match check_unchanged(grant) {
            Ok(()) => true,
            Err(error) => {
                dropped.push(format!("a grant was dropped: {error}"));
                false
            }
        });
        self.tell(dropped);
    }

    /// In the next result, and in `list` from now on.
    fn tell(&mut self, lines: Vec<String>) {
        for line in lines {
            let notice = text::printable(&line);
            log::warn!("{notice}");
            let kept = &mut self.context.list.notices;
            kept.push(notice.clone());
            kept.drain(..kept.len().saturating_sub(MAX_NOTICES));
            self.pending_notices.push(notice);
        }
    }
}

impl Context {
    /// The grants of the workspace file that the rules allow, and why the
    /// others do not hold.
    pub(crate) fn persisted(&self, file: &StandingFile) -> (GrantSet, Vec<String>) {
        self.judging().persisted(file)
    }
}

impl Judge<'_> {
    pub(crate) fn persisted(&self, file: &StandingFile) -> (GrantSet, Vec<String>) {
        let (mut grants, mut refused) = (GrantSet::default(), Vec::new());
        for asked in file.grants() {
            match self.judge_persisted(asked) {
                Ok(grant) => grants.insert(grant),
                Err(error) => refused.push(format!("a grant of {FILE} does not hold: {error}")),
            }
        }
        (grants, refused)
    }
}

/// A grant that is taken back by a later change of its batch is not missed.
fn supersede(batch: &mut [Judged], later: &Judged) {
    for earlier in batch.iter_mut().filter(|one| one.path == later.path) {
        earlier.granted = None;
        if later.persist.is_some() {
            earlier.persist = None;
        }
    }
}

/// Enough of a command to know it by.
pub(super) fn short(command: &str) -> String {
    let cut: String = command.chars().take(MAX_COMMAND).collect();
    text::printable(&cut)
}

fn persisted(grant: &Grant) -> PersistedGrant {
    PersistedGrant {
        path: PathBuf::from(&grant.path),
        mode: match grant.kind.access() {
            Access::ReadOnly => GrantMode::Ro,
            Access::ReadWrite => GrantMode::Rw,
        },
        file: grant.kind == GrantKind::File,
    }
}
