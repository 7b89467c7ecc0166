//! The workspace's `.git`, and the repository that it names -> what of that
//! repository is mounted. It reads a few small files, never through a link,
//! and runs nothing.
//!
//! The agent can write `.git`; so nothing follows from it alone. The
//! repository must name the workspace too, and as the agent of another project
//! may have written that, a person must have accepted it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use crate::config::{CommonAccess, Config, Mask};
use crate::dirs::Dirs;
use crate::gitdir::{self, Directory, one_line, read_pointer};
use crate::policy::mounts::{Mount, MountKind, MountPoint};
use crate::policy::worktree::{self, Linked};
use crate::run::masks::hides;
use crate::sys::open;
use crate::text;
use crate::trust::repository;
use crate::workspace::{self, FileId, Workspace};

/// Longest configuration.
const MAX_CONFIG: u64 = 1 << 20;
/// Most worktrees elsewhere that are looked at.
const MAX_OTHERS: usize = 64;

/// What decides; the host itself is looked at for each container anew.
#[derive(Debug)]
pub(crate) struct Finder<'a> {
    workspace: &'a Workspace,
    access: CommonAccess,
    dirs: &'a Dirs,
}

#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) mounts: Vec<Mount>,
    /// What the sources of the mounts are.
    pub(crate) sources: BTreeMap<String, FileId>,
    /// One line each. The agent reads them: they do not tell what the host has
    /// at a path that it can choose.
    pub(crate) notices: Vec<String>,
    /// Git directories outside of `.git`, to be watched.
    pub(crate) git_dirs: Vec<PathBuf>,
}

impl<'a> Finder<'a> {
    pub(crate) fn new(workspace: &'a Workspace, config: &Config, dirs: &'a Dirs) -> Finder<'a> {
        Finder {
            workspace,
            access: config.worktrees.common,
            dirs,
        }
    }

    /// Never an error: without these mounts only git does not work inside.
    pub(crate) fn find(&self, masks: &[Mask], mount_points: &[MountPoint]) -> Found {
        let dot_git = self.workspace.path().join(".git");
        let mut found = match gitdir::file_type(&dot_git) {
            Ok(FileType::Directory) => self.find_others(&dot_git.join("worktrees"), masks),
            Ok(FileType::RegularFile) => self.find_linked(&dot_git, masks, mount_points),
            _ => Found::default(),
        };
        if let Err(reason) = found.record_sources() {
            log::warn!("git will not work inside: {reason}");
            found = Found {
                notices: vec![unconfirmed(&dot_git)],
                ..Found::default()
            };
        }
        found
    }

    fn find_linked(&self, dot_git: &Path, masks: &[Mask], mount_points: &[MountPoint]) -> Found {
        let refused = |reason: String| {
            log::warn!("git will not work inside: {dot_git:?}: {reason}");
            Found {
                notices: vec![unconfirmed(dot_git)],
                ..Found::default()
            }
        };
        let admin = match read_pointer(dot_git, "gitdir: ") {
            Ok(admin) => admin,
            Err(reason) => return refused(reason),
        };
        if admin.starts_with(self.workspace.path()) {
            // All of it is in the workspace, and so is whatever it names.
            return Found {
                git_dirs: vec![admin],
                ..Found::default()
            };
        }
        let confirmed = match admin.parent().and_then(Path::parent) {
            // Before anything in it is looked at.
            Some(common) => self.check_place(common, masks, mount_points),
            None => Ok(()),
        };
        match confirmed.and_then(|()| confirm(&admin, dot_git)) {
            Err(reason) => refused(reason),
            Ok(linked) if !self.is_accepted(&linked) => Found {
                notices: vec![self.unaccepted()],
                ..Found::default()
            },
            Ok(linked) => {
                let (mounts, notices) = worktree::linked_mounts(&linked, self.access);
                // What cannot be written inside is changed by the host only.
                let common = match self.access {
                    CommonAccess::Parts => None,
                    CommonAccess::Whole => Some(PathBuf::from(linked.common)),
                };
                Found {
                    mounts,
                    notices,
                    git_dirs: std::iter::once(admin).chain(common).collect(),
                    ..Found::default()
                }
            }
        }
    }

    fn is_accepted(&self, linked: &Linked) -> bool {
        let common = Path::new(&linked.common);
        repository::is_accepted(self.dirs, self.workspace.path(), common)
    }

    /// The command stands first, as a long line may be cut.
    fn unaccepted(&self) -> String {
        let workspace = text::shell_word(self.workspace.as_str());
        format!(
            "git does not work here until the user accepts, on the host, with: umwelt-ctl wt accept {workspace} (this is a worktree of a repository elsewhere)"
        )
    }

    /// Whether all of the directory may be shown, and parts of it be written.
    fn check_place(
        &self,
        common: &Path,
        masks: &[Mask],
        mount_points: &[MountPoint],
    ) -> Result<(), String> {
        if let Some(reason) = workspace::refusal(common, self.dirs) {
            return Err(format!("{common:?} cannot be mounted: {reason}"));
        }
        if self.workspace.path().starts_with(common) {
            return Err(format!("{common:?} contains the workspace"));
        }
        if masks.iter().any(|mask| hides(mask, common)) {
            return Err(format!("a mask hides {common:?}"));
        }
        let mut points = mount_points.iter().map(|point| &point.path);
        match points.find(|point| Path::new(point).starts_with(common)) {
            Some(point) => Err(format!("something is mounted in it, at {point:?}")),
            None => Ok(()),
        }
    }

    /// Worktrees of the workspace's own repository that lie elsewhere.
    fn find_others(&self, worktrees: &Path, masks: &[Mask]) -> Found {
        let Ok(worktrees) = Directory::open(worktrees) else {
            return Found::default();
        };
        let names = worktrees.names().into_iter().flatten();
        let mut files: Vec<String> = names
            .take(MAX_OTHERS)
            .filter_map(|name| {
                let admin = worktrees.dir(name);
                let file = admin.and_then(|admin| self.other(&admin, masks));
                file.ok().flatten()
            })
            .collect();
        files.sort();
        Found {
            mounts: worktree::pointer_mounts(&files),
            ..Found::default()
        }
    }

    /// The `.git` file that belongs to an administrative directory. The agent
    /// can write that directory, so the file must say the very same: then
    /// nothing is shown that is not known inside.
    fn other(&self, admin: &Directory, masks: &[Mask]) -> Result<Option<String>, String> {
        let dot_git = admin.read_pointer("gitdir")?;
        let top = dot_git.parent().unwrap_or(&dot_git);
        let is_seen_inside = dot_git.starts_with(self.workspace.path());
        let is_refused = workspace::refusal(top, self.dirs).is_some()
            || masks.iter().any(|mask| hides(mask, &dot_git));
        if is_seen_inside || is_refused || !dot_git.ends_with(".git") {
            return Ok(None);
        }
        if read_pointer(&dot_git, "gitdir: ")? != admin.path() {
            return Ok(None);
        }
        one_line(&dot_git).map(Some)
    }
}

impl Found {
    /// Verification compares these with what is mounted in the end.
    fn record_sources(&mut self) -> Result<(), String> {
        for mount in &self.mounts {
            if let MountKind::Bind { source, .. } = &mount.kind {
                let metadata = open::absolute(Path::new(source), OFlags::PATH)
                    .map_err(Into::into)
                    .and_then(|fd| File::from(fd).metadata())
                    .map_err(|error| format!("{source:?}: {error}"))?;
                let id = FileId::from_metadata(&metadata);
                self.sources.insert(source.clone(), id);
            }
        }
        Ok(())
    }
}

/// The repository's side of it.
fn confirm(admin: &Path, dot_git: &Path) -> Result<Linked, String> {
    let gitdir::Linked { common, admin, .. } = gitdir::linked_by(admin, dot_git)?;
    Ok(Linked {
        common: one_line(common.path())?,
        admin: one_line(admin.path())?,
        common_names: names_there(&common)?,
        admin_names: names_there(&admin)?,
        has_worktree_config: uses_worktree_config(&common)?,
    })
}

fn unconfirmed(dot_git: &Path) -> String {
    format!(
        "git does not work here: {dot_git:?} does not lead to a repository that names this workspace as its worktree and that may be mounted; the log of umwelt-run says why"
    )
}

fn names_there(dir: &Directory) -> Result<BTreeSet<String>, String> {
    let mut names = BTreeSet::new();
    for name in worktree::names_of_interest() {
        match open::beneath(dir, name, OFlags::PATH) {
            Ok(_) => drop(names.insert(name.to_owned())),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(format!("{:?}: {error}", dir.path().join(name))),
        }
    }
    Ok(names)
}

/// By the name alone, which git reads in this very file or not at all.
fn uses_worktree_config(common: &Directory) -> Result<bool, String> {
    let text = common.read("config", MAX_CONFIG)?.to_ascii_lowercase();
    let key = b"worktreeconfig";
    Ok(text.windows(key.len()).any(|window| window == key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MaskTarget;
    use crate::policy::mounts::Access;
    use rustix::fs::Mode;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// A repository `r` with the worktree `w`, as git lays them out.
    struct Place {
        _temp: tempfile::TempDir,
        base: PathBuf,
    }

    impl Place {
        fn new() -> Place {
            let temp = tempfile::tempdir().unwrap();
            let base = temp.path().canonicalize().unwrap();
            let place = Place { _temp: temp, base };
            for dir in ["w", "home", "r/.git/objects", "r/.git/refs", "r/.git/logs"] {
                std::fs::create_dir_all(place.path(dir)).unwrap();
            }
            place.write("r/.git/HEAD", "ref: refs/heads/main\n");
            place.write("r/.git/config", "[core]\n");
            place.link("r/.git", "w");
            place
        }

        /// Makes `w` a worktree of the repository by the name of `name`.
        fn link(&self, common: &str, name: &str) {
            let admin = format!("{common}/worktrees/{name}");
            std::fs::create_dir_all(self.path(&admin)).unwrap();
            let admin = self.path(&admin);
            self.write("w/.git", &format!("gitdir: {}\n", admin.display()));
            let dot_git = self.path("w/.git");
            std::fs::write(admin.join("gitdir"), format!("{}\n", dot_git.display())).unwrap();
            std::fs::write(admin.join("commondir"), "../..\n").unwrap();
        }

        fn path(&self, name: &str) -> PathBuf {
            self.base.join(name)
        }

        fn write(&self, name: &str, text: &str) {
            std::fs::write(self.path(name), text).unwrap();
        }

        /// What a person does with `umwelt-ctl wt accept`.
        fn accept(&self, common: &str) {
            let (workspace, common) = (self.path("w"), self.path(common));
            // Where there is no such directory, nothing is accepted.
            drop(repository::accept(&self.dirs(), &workspace, &common));
        }

        fn dirs(&self) -> Dirs {
            Dirs {
                home: self.path("home"),
                config: self.path("home/c"),
                data: self.path("home/d"),
                state: self.path("home/s"),
                runtime: self.path("home/r"),
            }
        }

        fn find(&self) -> Found {
            self.accept("r/.git");
            self.find_in("w", &self.dirs(), &[], &[])
        }

        fn find_in(
            &self,
            workspace: &str,
            dirs: &Dirs,
            masks: &[Mask],
            points: &[MountPoint],
        ) -> Found {
            let workspace = Workspace::resolve(&self.path(workspace), &self.dirs()).unwrap();
            let finder = Finder {
                workspace: &workspace,
                access: CommonAccess::Parts,
                dirs,
            };
            finder.find(masks, points)
        }

        fn assert_refused(&self, why: &str) {
            let found = self.find();
            assert!(found.mounts.is_empty(), "{why}: {found:?}");
            assert_eq!(found.notices.len(), 1, "{why}");
            assert!(found.notices[0].starts_with("git does not work here"));
        }
    }

    fn shown(found: &Found, base: &Path) -> Vec<String> {
        let line = |mount: &Mount| {
            let mode = if mount.is_writable() { "rw" } else { "ro" };
            let path = Path::new(&mount.path).strip_prefix(base).unwrap();
            format!("{mode} {}", path.display())
        };
        found.mounts.iter().map(line).collect()
    }

    #[test]
    fn a_repository_that_nobody_accepted_is_not_mounted() {
        let place = Place::new();
        let found = place.find_in("w", &place.dirs(), &[], &[]);
        assert!(found.mounts.is_empty(), "{found:?}");
        assert!(found.notices[0].contains("umwelt-ctl wt accept"));
        assert!(!place.find().mounts.is_empty());
    }

    #[test]
    fn a_worktree_gets_what_git_needs_of_its_repository() {
        let place = Place::new();
        let expected = [
            "ro r/.git",
            "rw r/.git/objects",
            "rw r/.git/refs",
            "rw r/.git/logs",
            "rw r/.git/worktrees/w",
            "ro r/.git/worktrees/w/gitdir",
            "ro r/.git/worktrees/w/commondir",
        ];
        let found = place.find();
        assert_eq!(shown(&found, &place.base), expected);
        assert_eq!(found.sources.len(), expected.len());
        // As git writes them with worktree.useRelativePaths.
        place.write("w/.git", "gitdir: ../r/.git/worktrees/w\n");
        place.write("r/.git/worktrees/w/gitdir", "../../../../w/.git\n");
        assert_eq!(shown(&place.find(), &place.base), expected);
    }

    #[test]
    fn a_git_file_that_the_repository_does_not_confirm_mounts_nothing() {
        let place = Place::new();
        for pointer in [
            "/etc",
            "/",
            "/proc/self/root",
            "../r/.git",
            "..",
            "",
            "\0",
            "a\nb",
        ] {
            place.write("w/.git", &format!("gitdir: {pointer}\n"));
            place.assert_refused(pointer);
        }
        place.write("w/.git", "no pointer\n");
        place.assert_refused("no pointer");
        place.write("w/.git", &"x".repeat(5000));
        place.assert_refused("long");
        // Another worktree's, which names another place.
        place.link("r/.git", "w");
        place.write("r/.git/worktrees/w/gitdir", "/elsewhere/.git\n");
        place.assert_refused("of another");
        place.link("r/.git", "w");
        place.write("r/.git/worktrees/w/commondir", "/etc\n");
        place.assert_refused("another common directory");
        place.link("r/.git", "w");
        assert!(!place.find().mounts.is_empty());
    }

    #[test]
    fn no_link_is_followed_anywhere() {
        for name in [
            "r/.git",
            "r/.git/objects",
            "r/.git/config",
            "r/.git/worktrees",
            "r/.git/worktrees/w",
            "r/.git/worktrees/w/gitdir",
            "r/.git/logs",
        ] {
            let place = Place::new();
            std::fs::rename(place.path(name), place.path("moved")).unwrap();
            symlink(place.path("moved"), place.path(name)).unwrap();
            place.assert_refused(name);
        }
        let place = Place::new();
        std::fs::rename(place.path("w/.git"), place.path("w/git")).unwrap();
        symlink("git", place.path("w/.git")).unwrap();
        assert!(place.find().mounts.is_empty());
    }

    #[test]
    fn a_fifo_does_not_keep_it_waiting() {
        for name in ["w/.git", "r/.git/worktrees/w/gitdir", "r/.git/config"] {
            let place = Place::new();
            std::fs::remove_file(place.path(name)).unwrap();
            let mode = Mode::from_raw_mode(0o600);
            let path = place.path(name);
            rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, mode, 0).unwrap();
            assert!(place.find().mounts.is_empty(), "{name}");
        }
    }

    #[test]
    fn what_everybody_can_write_is_not_believed() {
        for name in ["r/.git", "r/.git/worktrees/w/gitdir"] {
            let place = Place::new();
            let open = std::fs::Permissions::from_mode(0o777);
            std::fs::set_permissions(place.path(name), open).unwrap();
            place.assert_refused(name);
        }
    }

    #[test]
    fn places_that_are_no_workspace_are_no_repository_either() {
        let place = Place::new();
        let mut dirs = place.dirs();
        dirs.state = place.path("r");
        assert!(place.find_in("w", &dirs, &[], &[]).mounts.is_empty());
        let dirs = place.dirs();
        let point = MountPoint {
            path: format!("{}/objects", place.path("r/.git").display()),
            read_only: false,
        };
        assert!(place.find_in("w", &dirs, &[], &[point]).mounts.is_empty());
        let mask = Mask {
            target: MaskTarget::parse(place.path("r")).unwrap(),
            reason: None,
        };
        assert!(place.find_in("w", &dirs, &[mask], &[]).mounts.is_empty());
        assert!(!place.find().mounts.is_empty());
    }

    #[test]
    fn a_git_directory_in_the_workspace_needs_no_mount() {
        let place = Place::new();
        place.write("w/.git", "gitdir: ./.bare\n");
        let found = place.find();
        assert!(found.mounts.is_empty() && found.notices.is_empty());
        assert_eq!(found.git_dirs, [place.path("w/.bare")]);
    }

    #[test]
    fn worktrees_elsewhere_are_seen_to_be_there() {
        let place = Place::new();
        let expected = ["ro w/.git"];
        assert_eq!(
            shown(&place.find_in("r", &place.dirs(), &[], &[]), &place.base),
            expected
        );
        for (name, pointer) in [
            ("inside", "r/x/.git"),
            ("gone", "no/such/.git"),
            ("secret", "home/secret"),
            ("other", "home/.git"),
            ("state", "home/s/.git"),
        ] {
            let admin = place.path("r/.git/worktrees").join(name);
            std::fs::create_dir_all(&admin).unwrap();
            let file = place.path(pointer);
            std::fs::write(admin.join("gitdir"), file.to_str().unwrap()).unwrap();
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            let text = match name {
                "gone" => continue,
                "other" => "gitdir: /another/.git/worktrees/x\n".to_owned(),
                _ => format!("gitdir: {}\n", admin.display()),
            };
            std::fs::write(file, text).unwrap();
        }
        symlink("w", place.path("r/.git/worktrees/link")).unwrap();
        let found = place.find_in("r", &place.dirs(), &[], &[]);
        assert_eq!(shown(&found, &place.base), expected);
        assert!(found.notices.is_empty());
        // A whole directory behind a link is left alone.
        std::fs::rename(place.path("r/.git/worktrees"), place.path("moved")).unwrap();
        symlink(place.path("moved"), place.path("r/.git/worktrees")).unwrap();
        assert!(
            place
                .find_in("r", &place.dirs(), &[], &[])
                .mounts
                .is_empty()
        );
    }

    #[test]
    fn notices_do_not_tell_what_the_host_has() {
        let place = Place::new();
        let mut notices = Vec::new();
        for pointer in [place.path("home"), place.path("no/such")] {
            place.write("w/.git", &format!("gitdir: {}\n", pointer.display()));
            notices.push(place.find().notices);
        }
        assert_eq!(notices[0], notices[1]);
    }

    #[test]
    fn the_extension_is_found_in_any_spelling() {
        let place = Place::new();
        place.write("r/.git/config", "[Extensions]\n\tWorkTreeConfig\n");
        let found = place.find();
        let admin = found.mounts.iter().find(|mount| mount.path.ends_with("/w"));
        let kind = &admin.unwrap().kind;
        assert!(
            matches!(kind, MountKind::Bind { access, .. } if *access == Access::ReadOnly),
            "{kind:?}"
        );
    }
}
