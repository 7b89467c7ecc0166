//! A path as a person gives it -> the real one. A link in a place that can be
//! writable inside a sandbox is refused by its name: an agent may have planted
//! it, and it would choose what the person shares, or removes.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use rustix::io::Errno;

use super::WorktreeError;
use crate::dirs::Dirs;
use crate::workspace;

/// As many as the kernel follows.
const MAX_LINKS: usize = 40;

/// Whoever opens what is returned follows no link, so it is what was judged.
pub(super) fn real_path(given: &Path, dirs: &Dirs) -> Result<PathBuf, WorktreeError> {
    let failed = |error: io::Error| WorktreeError::Path {
        path: given.to_owned(),
        reason: error.to_string(),
    };
    let expanded = workspace::expand_tilde(given, &dirs.home);
    let mut left = match expanded.is_absolute() {
        true => parts(&expanded),
        false => parts(&current_dir().map_err(failed)?.join(expanded)),
    };
    let (mut real, mut links) = (PathBuf::from("/"), 0);
    while let Some(part) = left.pop() {
        match part.as_encoded_bytes() {
            b"/" => real = PathBuf::from("/"),
            b"." => {}
            b".." => drop(real.pop()),
            _ => {
                let next = real.join(&part);
                let Some(target) = target_of(&next).map_err(failed)? else {
                    real = next;
                    continue;
                };
                if can_be_planted(&real, dirs) {
                    return Err(WorktreeError::Planted {
                        path: given.to_owned(),
                        link: next,
                        target,
                    });
                }
                links += 1;
                if links > MAX_LINKS {
                    return Err(failed(Errno::LOOP.into()));
                }
                left.append(&mut parts(&target));
            }
        }
    }
    Ok(real)
}

/// The last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev();
    parts.map(|part| part.as_os_str().to_owned()).collect()
}

/// None where it is no link.
fn target_of(path: &Path) -> io::Result<Option<PathBuf>> {
    match std::fs::read_link(path) {
        Ok(target) => Ok(Some(target)),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether there can be a sandbox that writes there, now or earlier. What must
/// be neither a workspace nor granted to write is out of reach, such as the home
/// directory itself, and so is what this user cannot write.
fn can_be_planted(dir: &Path, dirs: &Dirs) -> bool {
    let is_writable = |dir: &Path| match rustix::fs::access(dir, Access::WRITE_OK) {
        Err(Errno::ROFS) => false,
        // An agent is the owner, too, who can write after a chmod.
        Err(Errno::ACCESS | Errno::PERM) => is_own(dir),
        // What cannot be told is taken for the worse.
        Ok(()) | Err(_) => true,
    };
    let mut above = dir.ancestors();
    above.any(|dir| workspace::refusal(dir, dirs).is_none() && is_writable(dir))
}

fn is_own(dir: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    !dir.symlink_metadata().is_ok_and(|dir| dir.uid() != own)
}

/// By the name that the shell knows it by, where that is a name of it: a link
/// that a person went through counts as well.
fn current_dir() -> io::Result<PathBuf> {
    let real = std::env::current_dir()?;
    let shown = std::env::var_os("PWD").map(PathBuf::from);
    let shown = shown.filter(|path| path.is_absolute());
    let shown = shown.filter(|path| path.canonicalize().is_ok_and(|path| path == real));
    Ok(shown.unwrap_or(real))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn place() -> (tempfile::TempDir, PathBuf, Dirs) {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        let home = base.join("home");
        for dir in ["home/dev/p/sub", "home/secret/p", "home/.config/umwelt"] {
            std::fs::create_dir_all(base.join(dir)).unwrap();
        }
        let dirs = Dirs {
            config: home.join(".config/umwelt"),
            data: home.join(".local/share/umwelt"),
            state: home.join(".local/state/umwelt"),
            runtime: base.join("run"),
            home,
        };
        (temp, base, dirs)
    }

    #[test]
    fn a_path_without_links_is_what_it_says() {
        let (_temp, base, dirs) = place();
        let p = base.join("home/dev/p");
        for given in ["~/dev/p", "~/dev/./p/", "~/dev/p/sub/.."] {
            assert_eq!(real_path(Path::new(given), &dirs).unwrap(), p, "{given}");
        }
        assert_eq!(real_path(&p, &dirs).unwrap(), p);
        let error = real_path(&base.join("none"), &dirs).unwrap_err();
        assert!(matches!(error, WorktreeError::Path { .. }), "{error}");
    }

    #[test]
    fn a_link_that_an_agent_can_have_made_is_refused_by_its_name() {
        let (_temp, base, dirs) = place();
        let link = base.join("home/dev/p/link");
        symlink("../../secret/p", &link).unwrap();
        for given in ["~/dev/p/link", "~/dev/p/sub/../link/"] {
            match real_path(Path::new(given), &dirs).unwrap_err() {
                WorktreeError::Planted { link: named, .. } => assert_eq!(named, link),
                other => panic!("{other}"),
            }
        }
        // Also where the last part of the path is no link.
        symlink("../../secret", base.join("home/dev/p/above")).unwrap();
        assert!(real_path(Path::new("~/dev/p/above/p"), &dirs).is_err());
        // The owner can close what is writable, and open it again.
        for dir in ["home/dev/p/sub", "home/dev/p", "home/dev"] {
            std::fs::set_permissions(base.join(dir), Permissions::from_mode(0o555)).unwrap();
        }
        let refused = real_path(Path::new("~/dev/p/link"), &dirs);
        for dir in ["home/dev", "home/dev/p"] {
            std::fs::set_permissions(base.join(dir), Permissions::from_mode(0o755)).unwrap();
        }
        assert!(matches!(refused, Err(WorktreeError::Planted { .. })));
        // And behind a link that is fine.
        symlink("dev/p/link", base.join("home/to")).unwrap();
        assert!(real_path(Path::new("~/to"), &dirs).is_err());
    }

    #[test]
    fn a_link_where_no_sandbox_writes_is_followed() {
        let (_temp, base, dirs) = place();
        symlink("dev", base.join("home/work")).unwrap();
        symlink(base.join("home/dev/p"), dirs.config.join("p")).unwrap();
        for given in ["~/work/p", "~/.config/umwelt/p"] {
            let real = real_path(Path::new(given), &dirs).unwrap();
            assert_eq!(real, base.join("home/dev/p"), "{given}");
        }
        symlink("loop", base.join("home/loop")).unwrap();
        let error = real_path(Path::new("~/loop"), &dirs).unwrap_err();
        assert!(matches!(error, WorktreeError::Path { .. }), "{error}");
    }
}
