//! What was granted on top of the base mounts: the grants of a session, those
//! of the workspace file, and what a change of them means for the mounts. Pure.

use std::collections::BTreeSet;

use crate::policy::mounts::{Access, Mount, MountKind, MountPoint, MountSet, Origin, is_below};
use crate::workspace::FileId;

/// One path of the host that is shown inside, at the same path. Only what was
/// judged by the rules becomes one (`run::grants`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Without links.
    pub(crate) path: String,
    pub(crate) kind: GrantKind,
    /// What stood at the path when it was granted.
    pub(crate) id: FileId,
    pub(crate) lasts: Lasts,
}

/// A single file can only be read: there is no way to say anything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GrantKind {
    Directory(Access),
    File,
}

impl GrantKind {
    pub(crate) fn access(self) -> Access {
        match self {
            GrantKind::Directory(access) => access,
            GrantKind::File => Access::ReadOnly,
        }
    }
}

/// How long a grant lasts; for the same path, the session has the last word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lasts {
    /// As long as the workspace file says so.
    Persisted,
    /// Until the control plane ends.
    Session,
}

impl Lasts {
    fn origin(self) -> Origin {
        match self {
            Lasts::Persisted => Origin::Persisted,
            Lasts::Session => Origin::Session,
        }
    }
}

/// All grants of a sandbox: for each path at most one of a kind of lasting.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct GrantSet {
    grants: Vec<Grant>,
}

impl GrantSet {
    pub(crate) fn insert(&mut self, grant: Grant) {
        self.grants
            .retain(|held| held.path != grant.path || held.lasts != grant.lasts);
        self.grants.push(grant);
    }

    /// Takes out all grants of the path, and returns them.
    pub(crate) fn remove(&mut self, path: &str) -> Vec<Grant> {
        let (removed, kept) = std::mem::take(&mut self.grants)
            .into_iter()
            .partition(|held| held.path == path);
        self.grants = kept;
        removed
    }

    /// What is granted for the path lasts no longer than the session.
    pub(crate) fn limit_to_session(&mut self, path: &str) {
        for grant in &mut self.grants {
            if grant.path == path {
                grant.lasts = Lasts::Session;
            }
        }
    }

    /// Takes out the grants for which `is_kept` does not hold.
    pub(crate) fn retain(&mut self, is_kept: impl FnMut(&Grant) -> bool) {
        self.grants.retain(is_kept);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Grant> {
        self.grants.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.grants.len()
    }

    /// The grant that counts for the path.
    pub(crate) fn of(&self, path: &str) -> Option<&Grant> {
        let of_path = self.grants.iter().filter(|held| held.path == path);
        of_path.max_by_key(|held| held.lasts)
    }

    /// Each grant as a mount, and each mount point of the host below it once
    /// more, as for a base bind.
    pub(crate) fn render_mounts(&self, points: &[MountPoint]) -> Vec<Mount> {
        let mut mounts = Vec::new();
        for grant in &self.grants {
            let access = grant.kind.access();
            for point in points {
                if is_below(&point.path, &grant.path) {
                    let access = match point.read_only {
                        true => Access::ReadOnly,
                        false => access,
                    };
                    let origin = Origin::GrantSubmount;
                    mounts.push(Mount::bind(&point.path, &point.path, access, origin));
                }
            }
            let origin = grant.lasts.origin();
            mounts.push(Mount::bind(&grant.path, &grant.path, access, origin));
        }
        mounts
    }
}

/// One change of the mounts of a running container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// On top of whatever is seen at its path.
    Attach(Mount),
    /// Takes away the topmost mount at the path.
    Detach(Mount),
}

/// The steps that lead a running container from `old` to `new`, or none where
/// only a new container can. `attached` holds the paths at which a mount was
/// attached since its create, on top of what it had there: never one grant on
/// top of another, as the lower one would come to light again.
pub(crate) fn steps(
    old: &MountSet,
    new: &MountSet,
    attached: &BTreeSet<String>,
) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    for mount in new.iter() {
        match old.at(&mount.path) {
            Some(there) if there == mount => {}
            Some(there) if there.is_granted() && mount.is_granted() => {
                // Only how long it lasts may change.
                if there.kind != mount.kind {
                    return None;
                }
            }
            Some(there) if there.is_granted() => steps.push(detach(there, new, attached)?),
            _ => steps.push(attach(mount, old)?),
        }
    }
    for gone in old.iter().filter(|mount| new.at(&mount.path).is_none()) {
        if !gone.is_granted() || new.is_any_below(&gone.path) {
            return None;
        }
        steps.push(Step::Detach(gone.clone()));
    }
    Some(steps)
}

/// Only a plain bind is attached; it would hide what is mounted below it. Nor
/// does a read-only one reach who holds something of a writable one.
fn attach(mount: &Mount, old: &MountSet) -> Option<Step> {
    let is_bind = |mount: &Mount| matches!(mount.kind, MountKind::Bind { .. });
    let is_plain = mount.is_granted() && is_bind(mount) && !old.is_any_below(&mount.path);
    let above = old.covering(&mount.path);
    let narrows = above.is_some_and(|above| is_bind(above) && above.is_writable());
    (is_plain && (mount.is_writable() || !narrows)).then(|| Step::Attach(mount.clone()))
}

/// What is below comes to light only where the container has it.
fn detach(above: &Mount, new: &MountSet, attached: &BTreeSet<String>) -> Option<Step> {
    let is_on_top = attached.contains(&above.path);
    (is_on_top && !new.is_any_below(&above.path)).then(|| Step::Detach(above.clone()))
}

impl MountSet {
    pub(crate) fn is_any_below(&self, path: &str) -> bool {
        self.iter().any(|mount| is_below(&mount.path, path))
    }

    /// The same mounts, each grant with what it lasts for by now.
    pub(crate) fn relabelled(&self, grants: &GrantSet) -> MountSet {
        let mut mounts: Vec<Mount> = self.iter().cloned().collect();
        for mount in mounts.iter_mut().filter(|mount| mount.is_granted()) {
            if let Some(grant) = grants.of(&mount.path) {
                mount.origin = grant.lasts.origin();
            }
        }
        MountSet::merge(mounts)
    }

    /// What a running container has after `step`; `below` is the set that its
    /// next container would have, for what a detached mount uncovers.
    pub(crate) fn after(&self, step: &Step, below: &MountSet) -> MountSet {
        let changed = match step {
            Step::Attach(mount) => Some(mount),
            Step::Detach(mount) => below.at(&mount.path),
        };
        let (Step::Attach(mount) | Step::Detach(mount)) = step;
        let others = self.iter().filter(|other| other.path != mount.path);
        MountSet::merge(others.chain(changed).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: FileId = FileId {
        device: 1,
        inode: 1,
    };

    fn grant(path: &str, access: Access, lasts: Lasts) -> Grant {
        Grant {
            path: path.to_owned(),
            kind: GrantKind::Directory(access),
            id: ID,
            lasts,
        }
    }

    fn set(grants: &[Grant]) -> GrantSet {
        let mut set = GrantSet::default();
        for grant in grants {
            set.insert(grant.clone());
        }
        set
    }

    /// A home with a base bind in it, and `grants`.
    fn mounts(grants: &[Grant]) -> MountSet {
        let mut layers = vec![
            Mount::tmpfs("/h", 1, Origin::Scratch),
            Mount::bind("/h/dev", "/h/dev", Access::ReadOnly, Origin::Base),
        ];
        layers.extend(set(grants).render_mounts(&[]));
        MountSet::merge(layers)
    }

    fn between(old: &[Grant], new: &[Grant], attached: &[&str]) -> Option<Vec<String>> {
        let attached = attached.iter().map(|path| (*path).to_owned()).collect();
        let steps = steps(&mounts(old), &mounts(new), &attached)?;
        let text = |step: &Step| match step {
            Step::Attach(mount) => format!("+{}", mount.path),
            Step::Detach(mount) => format!("-{}", mount.path),
        };
        Some(steps.iter().map(text).collect())
    }

    fn told(step: &str) -> Option<Vec<String>> {
        Some(vec![step.to_owned()])
    }

    const RO: Access = Access::ReadOnly;
    const RW: Access = Access::ReadWrite;

    #[test]
    fn session_has_the_last_word_over_the_workspace_file() {
        let held = set(&[
            grant("/h/a", RO, Lasts::Session),
            grant("/h/a", RW, Lasts::Persisted),
        ]);
        assert_eq!(held.of("/h/a").map(|grant| grant.kind.access()), Some(RO));
        let shown = MountSet::merge(held.render_mounts(&[]));
        assert_eq!(
            shown.at("/h/a").map(|mount| mount.origin),
            Some(Origin::Session)
        );
        let mut held = held;
        assert_eq!(held.remove("/h/a").len(), 2);
        assert_eq!(held.len(), 0);
    }

    #[test]
    fn a_second_grant_of_a_path_takes_the_place_of_the_first() {
        let held = set(&[
            grant("/h/a", RO, Lasts::Session),
            grant("/h/a", RW, Lasts::Session),
        ]);
        assert_eq!(held.len(), 1);
        assert_eq!(held.of("/h/a").map(|grant| grant.kind.access()), Some(RW));
    }

    #[test]
    fn a_read_only_grant_makes_submounts_read_only_and_a_writable_one_keeps_theirs() {
        let points =
            [("/h/a/x", false), ("/h/a/y", true), ("/h/ab", false)].map(|(path, read_only)| {
                MountPoint {
                    path: path.to_owned(),
                    read_only,
                }
            });
        let seen = |access| {
            let mounts = set(&[grant("/h/a", access, Lasts::Session)]).render_mounts(&points);
            let mounts = mounts
                .iter()
                .map(|mount| (mount.path.clone(), mount.is_writable()));
            mounts.collect::<Vec<_>>()
        };
        let of =
            |x, a| [("/h/a/x", x), ("/h/a/y", false), ("/h/a", a)].map(|(p, w)| (p.to_owned(), w));
        assert_eq!(seen(RO), of(false, false));
        assert_eq!(seen(RW), of(true, true));
    }

    #[test]
    fn a_new_path_is_attached_and_a_granted_one_detached() {
        let a = grant("/h/a", RO, Lasts::Session);
        assert_eq!(
            between(&[], std::slice::from_ref(&a), &[]),
            Some(vec!["+/h/a".to_owned()])
        );
        assert_eq!(between(&[a], &[], &[]), Some(vec!["-/h/a".to_owned()]));
        let below = grant("/h/dev/x", RW, Lasts::Session);
        assert_eq!(
            between(&[], &[below], &[]),
            Some(vec!["+/h/dev/x".to_owned()])
        );
    }

    #[test]
    fn what_would_hide_or_uncover_other_mounts_needs_a_new_container() {
        let (above, below) = (
            grant("/h/a", RO, Lasts::Session),
            grant("/h/a/b", RO, Lasts::Session),
        );
        let both = [above.clone(), below.clone()];
        assert_eq!(between(std::slice::from_ref(&below), &both, &[]), None);
        assert_eq!(between(&both, &[below], &[]), None);
        // The other way round nothing is hidden.
        assert_eq!(
            between(std::slice::from_ref(&above), &both, &[]),
            Some(vec!["+/h/a/b".to_owned()])
        );
    }

    #[test]
    fn what_was_attached_on_top_can_be_taken_off_and_nothing_else() {
        let over_base = [grant("/h/dev", RW, Lasts::Session)];
        assert_eq!(between(&[], &over_base, &[]), told("+/h/dev"));
        assert_eq!(between(&over_base, &[], &["/h/dev"]), told("-/h/dev"));
        // Created with the grant, it has no base mount at this path.
        assert_eq!(between(&over_base, &[], &[]), None);
    }

    #[test]
    fn nothing_writable_is_made_read_only_under_somebodys_hands() {
        let above = [grant("/h/a", RW, Lasts::Session)];
        let both = |access| [above[0].clone(), grant("/h/a/b", access, Lasts::Session)];
        assert_eq!(between(&above, &both(RO), &[]), None);
        assert_eq!(between(&above, &both(RW), &[]), told("+/h/a/b"));
    }

    #[test]
    fn one_grant_never_covers_another() {
        let (ro, rw) = (
            grant("/h/a", RO, Lasts::Session),
            grant("/h/a", RW, Lasts::Persisted),
        );
        for attached in [&[][..], &["/h/a"]] {
            let change = |old: &Grant, new: &Grant| {
                between(
                    std::slice::from_ref(old),
                    std::slice::from_ref(new),
                    attached,
                )
            };
            assert_eq!(change(&ro, &rw), None);
            assert_eq!(change(&rw, &ro), None);
            // How long it lasts is no matter of mounts.
            let stays = grant("/h/a", RO, Lasts::Persisted);
            assert_eq!(change(&ro, &stays), Some(Vec::new()));
        }
    }

    /// What a person expects: for each path the grant of the deepest directory
    /// above it, the session's before that of the file.
    fn naive(grants: &[Grant], path: &str) -> Option<bool> {
        let above = grants
            .iter()
            .filter(|grant| path == grant.path || path.starts_with(&format!("{}/", grant.path)));
        // Of equals the later one.
        let decides = above
            .enumerate()
            .max_by_key(|(at, grant)| (grant.path.len(), grant.lasts, *at));
        decides.map(|(_, grant)| grant.kind.access() == Access::ReadWrite)
    }

    fn any_grant() -> impl Strategy<Value = Grant> {
        let name = prop::sample::select(vec!["/a", "/b"]);
        (
            prop::collection::vec(name, 1..4),
            any::<bool>(),
            any::<bool>(),
        )
            .prop_map(|(parts, writes, stays)| {
                let access = if writes { RW } else { RO };
                let lasts = if stays {
                    Lasts::Persisted
                } else {
                    Lasts::Session
                };
                grant(&parts.concat(), access, lasts)
            })
    }

    proptest! {
        #[test]
        fn mounts_show_what_a_naive_model_says(grants in prop::collection::vec(any_grant(), 0..8)) {
            let mounts = MountSet::merge(set(&grants).render_mounts(&[]));
            for path in ["/a", "/b", "/a/a", "/a/b", "/a/b/a/b", "/b/b/b", "/ab"] {
                let shown = mounts.covering(path).map(Mount::is_writable);
                prop_assert_eq!(shown, naive(&grants, path), "{}", path);
            }
        }

        /// A container is played as the kernel has it: a stack of mounts for
        /// each path, of which the topmost is seen.
        #[test]
        fn what_is_seen_is_what_was_planned(
            sets in prop::collection::vec(prop::collection::vec(any_grant(), 0..4), 1..6),
        ) {
            let mut container = Container::create(&mounts(&[]));
            for grants in &sets {
                container.change_to(&mounts(grants), &set(grants));
                prop_assert_eq!(container.seen(), kinds(&mounts(grants)));
                prop_assert_eq!(&container.known, &mounts(grants));
            }
        }
    }

    /// The kind of what is on top at each path.
    type Kinds = std::collections::BTreeMap<String, MountKind>;

    fn kinds(mounts: &MountSet) -> Kinds {
        let kind = |mount: &Mount| (mount.path.clone(), mount.kind.clone());
        mounts.iter().map(kind).collect()
    }

    struct Container {
        stacks: std::collections::BTreeMap<String, Vec<MountKind>>,
        attached: BTreeSet<String>,
        /// What the control plane takes it for.
        known: MountSet,
    }

    impl Container {
        fn create(mounts: &MountSet) -> Container {
            let stack = |(path, kind)| (path, vec![kind]);
            Container {
                stacks: kinds(mounts).into_iter().map(stack).collect(),
                attached: BTreeSet::new(),
                known: mounts.clone(),
            }
        }

        fn change_to(&mut self, next: &MountSet, grants: &GrantSet) {
            let Some(steps) = steps(&self.known, next, &self.attached) else {
                *self = Container::create(next);
                return;
            };
            for step in &steps {
                match step {
                    Step::Attach(mount) => {
                        let stack = self.stacks.entry(mount.path.clone()).or_default();
                        stack.push(mount.kind.clone());
                        self.attached.insert(mount.path.clone());
                    }
                    Step::Detach(mount) => {
                        self.stacks.get_mut(&mount.path).unwrap().pop();
                        self.attached.remove(&mount.path);
                    }
                }
                self.known = self.known.after(step, next);
            }
            self.known = self.known.relabelled(grants);
        }

        fn seen(&self) -> Kinds {
            let top = |(path, stack): (&String, &Vec<MountKind>)| {
                Some((path.clone(), stack.last()?.clone()))
            };
            self.stacks.iter().filter_map(top).collect()
        }
    }
}
