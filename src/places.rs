//! The user's places that decide over the sandbox, or over what is run on the
//! host. No workspace holds them; some are not shown to a sandbox either.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use crate::dirs::Dirs;

/// A directory or a file, which need not exist.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    pub(crate) what: &'static str,
    /// Reading it is enough to harm: umwelt's own, and podman's storage.
    pub(crate) is_secret: bool,
}

impl Place {
    /// Why the real path `path`, writable, would give this place away.
    pub(crate) fn refusal(&self, path: &Path) -> Option<String> {
        let stops = trail(&self.path);
        let what = self.what;
        if stops.last().is_some_and(|real| path.starts_with(real)) {
            return Some(format!("it lies in {what} {:?}", self.path));
        }
        // Whoever can change a link on the way decides where it leads.
        let inside = stops.iter().find(|stop| stop.starts_with(path))?;
        Some(if *inside == self.path {
            format!("it contains {what} {inside:?}")
        } else {
            format!("it contains {what}: {:?} leads to {inside:?}", self.path)
        })
    }
}

const PODMAN: &str = "podman's configuration";
const GIT: &str = "the user's git configuration (git runs programs that it names)";

/// All such places.
pub(crate) fn of_user(dirs: &Dirs) -> Vec<Place> {
    let home = real(&dirs.home);
    let storage = absolute_variable("XDG_DATA_HOME")
        .unwrap_or_else(|| home.join(".local/share"))
        .join("containers");
    let secret = [
        (dirs.config.clone(), "umwelt's configuration directory"),
        (dirs.state.clone(), "umwelt's state directory"),
        (dirs.data.clone(), "umwelt's data directory"),
        (dirs.runtime.clone(), "the runtime directory"),
        (storage, "podman's storage"),
    ];
    // What is written here is run, or believed, on the host.
    let near = |name| dirs.config.with_file_name(name);
    let mut believed = vec![
        (near("containers"), PODMAN),
        (near("systemd"), "the user's systemd units"),
        (
            dirs.data.with_file_name("systemd"),
            "the user's systemd units",
        ),
        (
            dirs.data.with_file_name("bash-completion"),
            "completions, which the user's shell runs",
        ),
        (
            dirs.data.with_file_name("fish"),
            "what the user's shell runs",
        ),
        (near("autostart"), "the desktop's autostart directory"),
        (home.join(".local/bin"), "the user's own programs"),
        (home.join("bin"), "the user's own programs"),
        (home.join(".local/lib/umwelt"), "umwelt's own program"),
        (home.join(".ssh"), "the user's ssh directory"),
        (home.join(".gnupg"), "the user's keys"),
    ];
    believed.extend(installed_bin(dirs).map(|bin| (bin, "umwelt's links, which clients start")));
    believed.extend(settings_files(dirs, &home));
    let place = |is_secret| {
        move |(path, what)| Place {
            path,
            what,
            is_secret,
        }
    };
    let secret = secret.into_iter().map(place(true));
    secret
        .chain(believed.into_iter().map(place(false)))
        .collect()
}

/// The directory of `umwelt-install install --prefix-bin`, as it has noted it.
fn installed_bin(dirs: &Dirs) -> Option<PathBuf> {
    let text = std::fs::read(dirs.data.join("install.json")).ok()?;
    let record: serde_json::Value = serde_json::from_slice(&text).ok()?;
    record.get("bin")?.as_str().map(PathBuf::from)
}

/// Files that people link from a directory that looks like any project. What
/// these files name in turn is not followed.
fn settings_files(dirs: &Dirs, home: &Path) -> Vec<(PathBuf, &'static str)> {
    let containers = dirs.config.with_file_name("containers");
    let mut files = vec![(dirs.base_config(), "umwelt's configuration")];
    for name in [
        "containers.conf",
        "storage.conf",
        "registries.conf",
        "policy.json",
        "mounts.conf",
    ] {
        files.push((containers.join(name), PODMAN));
    }
    for name in ["containers.conf.d", "registries.conf.d"] {
        let dir = containers.join(name);
        let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        files.extend(entries.map(|entry| (entry.path(), PODMAN)));
        files.push((dir, PODMAN));
    }
    for name in ["CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF"] {
        files.extend(absolute_variable(name).map(|path| (path, PODMAN)));
    }
    files.extend(absolute_variable("GIT_CONFIG_GLOBAL").map(|path| (path, GIT)));
    files.push((home.join(".gitconfig"), GIT));
    files.push((dirs.config.with_file_name("git").join("config"), GIT));
    files
}

fn absolute_variable(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os(name)?);
    path.is_absolute().then_some(path)
}

/// The path without links, as far as it exists.
pub(crate) fn real(path: &Path) -> PathBuf {
    trail(path).pop().unwrap_or_else(|| path.to_owned())
}

/// Where an absolute path leads, and every link that was passed on the way
/// there, found out in one walk.
pub(crate) fn follow(path: &Path) -> (PathBuf, Vec<PathBuf>) {
    let mut links = trail(path);
    let end = links.pop().unwrap_or_else(|| path.to_owned());
    (end, links)
}

/// Every link that is passed on the way of an absolute path, and its end. The
/// end need not exist: a link that dangles decides where a file is made.
fn trail(path: &Path) -> Vec<PathBuf> {
    /// As the kernel has it (path_resolution(7)).
    const MOST_LINKS: usize = 40;
    let mut links = Vec::new();
    let mut at = PathBuf::from("/");
    let mut left: Vec<OsString> = Vec::new();
    push_parts(&mut left, path);
    while let Some(part) = left.pop() {
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        match std::fs::read_link(&next) {
            Ok(target) if links.len() < MOST_LINKS => {
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                push_parts(&mut left, &target);
                links.push(next);
            }
            _ => at = next,
        }
    }
    links.push(at);
    links
}

/// The parts of `path` on top of the stack `left`, the first one uppermost.
fn push_parts(left: &mut Vec<OsString>, path: &Path) {
    let parts = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    left.extend(parts);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn trail_holds_each_link_and_an_end_that_need_not_exist() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().canonicalize().unwrap();
        std::fs::create_dir_all(dir.join("a/b")).unwrap();
        symlink("a/b", dir.join("link")).unwrap();
        symlink("../c/gone", dir.join("a/b/up")).unwrap();
        symlink(dir.join("link/up"), dir.join("first")).unwrap();
        let expected = ["first", "link", "a/b/up", "a/c/gone"].map(|name| dir.join(name));
        assert_eq!(trail(&dir.join("first")), expected);
        symlink("loop", dir.join("loop")).unwrap();
        assert!(trail(&dir.join("loop")).len() <= 41);
    }

    #[test]
    fn the_installed_program_belongs_to_no_agent() {
        let home = Path::new("/h/u");
        let places = of_user(&Dirs {
            home: home.to_owned(),
            config: home.join(".config/umwelt"),
            data: home.join(".local/share/umwelt"),
            state: home.join(".local/state/umwelt"),
            runtime: home.join("run"),
        });
        let refused = |path: &str| {
            let path = home.join(path);
            places.iter().any(|place| place.refusal(&path).is_some())
        };
        for path in [
            ".local/lib/umwelt",
            ".local/lib/umwelt/umwelt",
            ".local/lib",
        ] {
            assert!(refused(path), "{path}");
        }
        assert!(!refused(".local/lib/other"));
    }

    #[test]
    fn links_that_were_put_elsewhere_belong_to_no_agent() {
        let temp = tempfile::tempdir().unwrap();
        let home = temp.path().canonicalize().unwrap();
        let dirs = Dirs {
            config: home.join(".config/umwelt"),
            data: home.join(".local/share/umwelt"),
            state: home.join(".local/state/umwelt"),
            runtime: home.join("run"),
            home: home.clone(),
        };
        let is_refused = |path: &str| {
            let path = home.join(path);
            of_user(&dirs)
                .iter()
                .any(|place| place.refusal(&path).is_some())
        };
        assert!(!is_refused("tools/bin") && !is_refused("tools"));
        std::fs::create_dir_all(&dirs.data).unwrap();
        let record = serde_json::json!({"bin": home.join("tools/bin")});
        std::fs::write(dirs.data.join("install.json"), record.to_string()).unwrap();
        assert!(is_refused("tools/bin") && is_refused("tools"));
        assert!(!is_refused("tools/lib"));
    }

    #[test]
    fn paths_without_links_are_their_own_trail() {
        assert_eq!(real(Path::new("/no/such/../place")), Path::new("/no/place"));
    }
}
