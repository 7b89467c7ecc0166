//! What was found out about a workspace's git worktrees -> mounts. Pure.
//!
//! A worktree keeps its files in the workspace, and its history in a *common
//! directory* elsewhere, where it has an *administrative directory* of its own.

use std::collections::BTreeSet;

use crate::config::CommonAccess;
use crate::policy::mounts::{Access, Mount, Origin};

/// A workspace that is a worktree, and that its repository names as such.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Linked {
    pub(crate) common: String,
    /// Below `worktrees` in the common directory.
    pub(crate) admin: String,
    /// What there is in them, of what matters here.
    pub(crate) common_names: BTreeSet<String>,
    pub(crate) admin_names: BTreeSet<String>,
    /// The repository has git read `config.worktree`.
    pub(crate) has_worktree_config: bool,
}

/// What git writes with every commit.
const WRITTEN: [&str; 4] = ["objects", "refs", "logs", "reftable"];
/// What git executes, or believes about other worktrees.
const COVERED: [&str; 6] = [
    "config",
    "config.worktree",
    "hooks",
    "info",
    "modules",
    "worktrees",
];
/// By these git finds its configuration from the administrative directory.
const ADMIN_COVERED: [&str; 3] = ["gitdir", "commondir", "config.worktree"];

/// All names that are asked for in the two directories.
pub(crate) fn names_of_interest() -> impl Iterator<Item = &'static str> {
    WRITTEN.into_iter().chain(COVERED).chain(ADMIN_COVERED)
}

/// Mounts under the paths that git uses, and what a person should know.
pub(crate) fn linked_mounts(linked: &Linked, access: CommonAccess) -> (Vec<Mount>, Vec<String>) {
    let mut notices = Vec::new();
    let is_whole = access == CommonAccess::Whole && can_be_whole(linked, &mut notices);
    let mut mounts = match is_whole {
        true => whole(linked),
        false => parts(linked, &mut notices),
    };
    mounts.push(bind(&linked.admin, admin_access(linked, &mut notices)));
    for name in ADMIN_COVERED {
        if linked.admin_names.contains(name) {
            let path = format!("{}/{name}", linked.admin);
            mounts.push(bind(&path, Access::ReadOnly));
        }
    }
    (mounts, notices)
}

fn parts(linked: &Linked, notices: &mut Vec<String>) -> Vec<Mount> {
    let mut mounts = vec![bind(&linked.common, Access::ReadOnly)];
    for name in WRITTEN {
        let path = format!("{}/{name}", linked.common);
        if linked.common_names.contains(name) {
            mounts.push(bind(&path, Access::ReadWrite));
        } else if name == "logs" {
            notices.push(format!(
                "commits fail here as long as the repository has no directory {path:?}; make it on the host, then start the sandbox anew"
            ));
        }
    }
    notices.push(format!(
        "this is a git worktree; of its repository {:?} only objects and refs can be changed here. \"Unable to create packed-refs.lock\" is a consequence and harmless in a commit; gc, and what deletes refs (branch -d, stash drop, the end of a rebase or cherry-pick), is for the host, or for worktrees.common = \"rw\"",
        linked.common
    ));
    mounts
}

/// A name that is missing could be created.
fn can_be_whole(linked: &Linked, notices: &mut Vec<String>) -> bool {
    let mut needed = vec!["config", "hooks"];
    if linked.has_worktree_config {
        needed.push("config.worktree");
    }
    let missing = needed
        .into_iter()
        .find(|name| !linked.common_names.contains(*name));
    if let Some(name) = missing {
        notices.push(format!(
            "worktrees.common = \"rw\" is not followed for {:?}: it has no {name:?} that could be kept from changes",
            linked.common
        ));
    }
    missing.is_none()
}

fn whole(linked: &Linked) -> Vec<Mount> {
    let covers = COVERED
        .into_iter()
        .filter(|name| linked.common_names.contains(*name))
        .map(|name| bind(&format!("{}/{name}", linked.common), Access::ReadOnly));
    std::iter::once(bind(&linked.common, Access::ReadWrite))
        .chain(covers)
        .collect()
}

fn admin_access(linked: &Linked, notices: &mut Vec<String>) -> Access {
    if !linked.has_worktree_config || linked.admin_names.contains("config.worktree") {
        return Access::ReadWrite;
    }
    notices.push(format!(
        "git can only read here: the repository uses extensions.worktreeConfig, and without {:?} any could be planted; make an empty one on the host, then start the sandbox anew",
        format!("{}/config.worktree", linked.admin)
    ));
    Access::ReadOnly
}

/// The `.git` files of worktrees that lie elsewhere. git inside would take a
/// worktree whose file it cannot see for abandoned, and remove what the common
/// directory has of it.
pub(crate) fn pointer_mounts(files: &[String]) -> Vec<Mount> {
    let files = files.iter();
    files.map(|file| bind(file, Access::ReadOnly)).collect()
}

fn bind(path: &str, access: Access) -> Mount {
    Mount::bind(path, path, access, Origin::Worktree)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::mounts::{MountKind, MountSet};

    fn linked(common: &[&str], admin: &[&str]) -> Linked {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Linked {
            common: "/r/.git".to_owned(),
            admin: "/r/.git/worktrees/w".to_owned(),
            common_names: names(common),
            admin_names: names(admin),
            has_worktree_config: false,
        }
    }

    const COMMON: [&str; 7] = [
        "objects",
        "refs",
        "logs",
        "config",
        "hooks",
        "info",
        "worktrees",
    ];
    const ADMIN: [&str; 2] = ["gitdir", "commondir"];

    fn shown(linked: &Linked, access: CommonAccess) -> (Vec<String>, Vec<String>) {
        let (mounts, notices) = linked_mounts(linked, access);
        let set = MountSet::merge(mounts);
        let line = |mount: &Mount| {
            let mode = if mount.is_writable() { "rw" } else { "ro" };
            assert!(matches!(&mount.kind, MountKind::Bind { source, .. } if *source == mount.path));
            format!("{mode} {}", mount.path.trim_start_matches("/r/.git"))
        };
        (set.iter().map(line).collect(), notices)
    }

    #[test]
    fn parts_are_writable_in_a_read_only_repository() {
        let (mounts, _) = shown(&linked(&COMMON, &ADMIN), CommonAccess::Parts);
        assert_eq!(
            mounts,
            [
                "ro ",
                "rw /logs",
                "rw /objects",
                "rw /refs",
                "rw /worktrees/w",
                "ro /worktrees/w/commondir",
                "ro /worktrees/w/gitdir"
            ]
        );
    }

    #[test]
    fn the_whole_is_writable_but_for_what_git_executes() {
        let (mounts, notices) = shown(&linked(&COMMON, &ADMIN), CommonAccess::Whole);
        assert_eq!(
            mounts,
            [
                "rw ",
                "ro /config",
                "ro /hooks",
                "ro /info",
                "ro /worktrees",
                "rw /worktrees/w",
                "ro /worktrees/w/commondir",
                "ro /worktrees/w/gitdir"
            ]
        );
        assert_eq!(notices, Vec::<String>::new());
    }

    #[test]
    fn what_could_be_planted_keeps_the_whole_read_only() {
        for missing in ["hooks", "config"] {
            let names: Vec<&str> = COMMON.into_iter().filter(|name| *name != missing).collect();
            let (mounts, notices) = shown(&linked(&names, &ADMIN), CommonAccess::Whole);
            assert_eq!(mounts[0], "ro ");
            assert!(notices[0].contains(missing), "{notices:?}");
        }
        let mut uses_it = linked(&COMMON, &ADMIN);
        uses_it.has_worktree_config = true;
        let (mounts, notices) = shown(&uses_it, CommonAccess::Whole);
        assert_eq!(mounts[0], "ro ");
        assert!(mounts.contains(&"ro /worktrees/w".to_owned()));
        assert!(
            notices
                .iter()
                .any(|notice| notice.contains("config.worktree"))
        );
        uses_it.admin_names.insert("config.worktree".to_owned());
        let (mounts, _) = shown(&uses_it, CommonAccess::Parts);
        assert!(mounts.contains(&"rw /worktrees/w".to_owned()));
        assert!(mounts.contains(&"ro /worktrees/w/config.worktree".to_owned()));
    }

    #[test]
    fn a_repository_without_logs_is_told_of() {
        let (_, notices) = shown(&linked(&["objects", "refs"], &ADMIN), CommonAccess::Parts);
        assert!(notices[0].contains("\"/r/.git/logs\""), "{notices:?}");
    }
}
