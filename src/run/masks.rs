//! Masks, and live sockets, as they stand on the host just before a container
//! is created. It looks and changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::config::mask::matches;
use crate::config::{Mask, MaskTarget};
use crate::dirs::Dirs;
use crate::places;
use crate::policy::masks::{Hidden, MaskFacts};
use crate::policy::mounts::{Cover, Mount, MountKind, MountSet};
use crate::run::preflight::PreflightError;

/// All bound sockets of this network namespace, whoever bound them.
const SOCKET_TABLE: &str = "/proc/net/unix";

/// The user's masks, and umwelt's own, which no configuration takes away.
pub(crate) fn all(configured: Vec<Mask>, dirs: &Dirs) -> Vec<Mask> {
    let own = [
        (&dirs.config, "umwelt: the configuration"),
        (&dirs.data, "umwelt: journals"),
        (&dirs.state, "umwelt: logs and saved outputs"),
    ];
    let own = own.map(|(path, reason)| Mask {
        target: MaskTarget::Path(path.clone()),
        reason: Some(reason.to_owned()),
    });
    configured.into_iter().chain(own).collect()
}

/// Whether `mask` hides all of `place`, a path without links that need not
/// exist yet.
pub(crate) fn hides(mask: &Mask, place: &Path) -> bool {
    match &mask.target {
        MaskTarget::Path(path) => place.starts_with(places::real(path)),
        MaskTarget::Pattern {
            parent,
            prefix,
            suffix,
        } => {
            let below = place.strip_prefix(places::real(parent)).ok();
            let name = below.and_then(|below| below.iter().next());
            name.is_some_and(|name| matches(name, prefix, suffix))
        }
    }
}

/// What is there to be hidden, and where the sources of the binds really are.
pub(crate) fn find(masks: &[Mask], mounts: &MountSet) -> Result<MaskFacts, PreflightError> {
    let mut hidden = BTreeMap::new();
    for mask in masks {
        for path in existing(&mask.target)? {
            match look(&path, mask.reason.as_deref()) {
                Ok(None) => {}
                Ok(Some(found)) => drop(hidden.insert(found.real.clone(), found)),
                Err(error) if is_shown(&path, mounts) => return Err(error),
                // The agent of another project may have made it.
                Err(error) => log::info!("{error}; it is in nothing that is shown"),
            }
        }
    }
    for path in socket_paths()?.into_iter().filter(|path| is_socket(path)) {
        match look(&path, Some("live socket of a program on the host")) {
            Ok(None) => {}
            Ok(Some(found)) => drop(hidden.entry(found.real.clone()).or_insert(found)),
            Err(error) if is_shown(&path, mounts) => return Err(error),
            // Anybody on the host can bind one with a name like this.
            Err(error) => log::info!("{error}; it is in nothing that is shown"),
        }
    }
    Ok(MaskFacts {
        hidden: hidden.into_values().collect(),
        real_sources: real_sources(mounts),
    })
}

/// Whether `path` lies in what a bind shows.
fn is_shown(path: &Path, mounts: &MountSet) -> bool {
    let real = places::real(path);
    let mut sources = mounts.iter().filter_map(Mount::source);
    sources.any(|source| real.starts_with(places::real(Path::new(source))))
}

/// The paths that a mask means at present.
fn existing(target: &MaskTarget) -> Result<Vec<PathBuf>, PreflightError> {
    let (parent, prefix, suffix) = match target {
        MaskTarget::Path(path) => return Ok(vec![path.clone()]),
        MaskTarget::Pattern {
            parent,
            prefix,
            suffix,
        } => (parent, prefix, suffix),
    };
    let entries = match std::fs::read_dir(parent) {
        Ok(entries) => entries,
        // Its names cannot be listed, but guessed: all of it goes.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Ok(vec![parent.clone()]);
        }
        Err(error) if is_absence(&error) => return Ok(Vec::new()),
        Err(error) => return Err(refused(parent, error.to_string())),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| refused(parent, error.to_string()))?;
        if matches(&entry.file_name(), prefix, suffix) {
            paths.push(entry.path());
        }
    }
    Ok(paths)
}

/// What stands at `path`, if anything does. What this user cannot reach, the
/// same user inside cannot reach either.
fn look(path: &Path, reason: Option<&str>) -> Result<Option<Hidden>, PreflightError> {
    let found = std::fs::canonicalize(path)
        .and_then(|real| std::fs::metadata(&real).map(|metadata| (real, metadata.is_dir())));
    let (real, is_dir) = match found {
        Ok(found) => found,
        Err(error) if is_absence(&error) || error.kind() == io::ErrorKind::PermissionDenied => {
            return Ok(None);
        }
        Err(error) => return Err(refused(path, error.to_string())),
    };
    let real = match real.into_os_string().into_string() {
        Ok(real) if !real.contains(['\n', '\r']) => real,
        Ok(real) => return Err(refused(path, format!("{real:?} contains a line break"))),
        Err(real) => return Err(refused(path, format!("{real:?} is not UTF-8"))),
    };
    let cover = if is_dir {
        Cover::Directory
    } else {
        Cover::File
    };
    Ok(Some(Hidden {
        real,
        cover,
        reason: reason.map(str::to_owned),
    }))
}

/// Nothing is there that could be seen by this path.
fn is_absence(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ELOOP)
        || matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
        )
}

fn refused(path: &Path, reason: String) -> PreflightError {
    PreflightError::Mask {
        path: path.to_owned(),
        reason,
    }
}

fn socket_paths() -> Result<BTreeSet<PathBuf>, PreflightError> {
    std::fs::read(SOCKET_TABLE)
        .map(|table| parse_socket_table(&table))
        .map_err(|error| refused(Path::new(SOCKET_TABLE), error.to_string()))
}

/// The absolute paths of `Num RefCount Protocol Flags Type St Inode Path`.
fn parse_socket_table(table: &[u8]) -> BTreeSet<PathBuf> {
    table
        .split(|byte| *byte == b'\n')
        .filter_map(|line| {
            // No field before the path contains a slash; inode numbers are
            // padded, so fields cannot be counted by single spaces.
            let at = line.windows(2).position(|pair| pair == b" /")?;
            let path = line.get(at + 1..)?;
            Some(PathBuf::from(OsString::from_vec(path.to_vec())))
        })
        .collect()
}

fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

fn real_sources(mounts: &MountSet) -> BTreeMap<String, String> {
    let mut real_sources = BTreeMap::new();
    for mount in mounts.iter() {
        // A source that cannot be resolved is left to podman, which says why.
        if let MountKind::Bind { source, .. } = &mount.kind
            && let Ok(real) = std::fs::canonicalize(source)
            && let Some(real) = real.to_str()
            && real != source
        {
            real_sources.insert(source.clone(), real.to_owned());
        }
    }
    real_sources
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::mounts::{Access, Mount, Origin};
    use std::os::unix::fs::symlink;
    use std::os::unix::net::{UnixListener, UnixStream};

    fn mask(path: &Path) -> Mask {
        Mask {
            target: MaskTarget::parse(path.to_owned()).unwrap(),
            reason: Some("why".to_owned()),
        }
    }

    /// Real paths below `dir` of what is hidden.
    fn found(dir: &Path, masks: &[Mask]) -> Vec<(String, Cover)> {
        let facts = find(masks, &MountSet::merge(Vec::new())).unwrap();
        let below = |hidden: &Hidden| {
            let path = Path::new(&hidden.real).strip_prefix(dir).ok()?;
            Some((path.to_str()?.to_owned(), hidden.cover))
        };
        facts.hidden.iter().filter_map(below).collect()
    }

    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        (dir, path)
    }

    #[test]
    fn links_lead_to_what_is_hidden_and_absent_paths_to_nothing() {
        let (_dir, dir) = place();
        std::fs::create_dir_all(dir.join("dot/aws")).unwrap();
        std::fs::write(dir.join("file"), "").unwrap();
        symlink("dot/aws", dir.join(".aws")).unwrap();
        symlink("gone", dir.join("dangling")).unwrap();
        symlink("loop", dir.join("loop")).unwrap();
        let masks = [".aws", "file", "dangling", "loop", "no/such", "file/below"]
            .map(|name| mask(&dir.join(name)));
        assert_eq!(
            found(&dir, &masks),
            [
                ("dot/aws".to_owned(), Cover::Directory),
                ("file".to_owned(), Cover::File)
            ]
        );
    }

    #[test]
    fn patterns_hide_each_match_and_nothing_else() {
        let (_dir, dir) = place();
        for name in ["id_a", "id_b.pub", "config", "xid_a"] {
            std::fs::write(dir.join(name), "").unwrap();
        }
        let masks = [mask(&dir.join("id_*")), mask(&dir.join("no/such*"))];
        let names: Vec<String> = found(&dir, &masks)
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names, ["id_a", "id_b.pub"]);
    }

    #[test]
    fn names_that_podman_could_misread_are_refused_where_they_are_shown() {
        let (_dir, dir) = place();
        std::fs::write(dir.join("key\nx"), "").unwrap();
        let masks = [mask(&dir.join("key*"))];
        let path = dir.to_str().unwrap();
        let bind = Mount::bind(path, path, Access::ReadOnly, Origin::Base);
        find(&masks, &MountSet::default()).unwrap();
        let error = find(&masks, &MountSet::merge(vec![bind])).unwrap_err();
        assert!(error.to_string().contains("line break"), "{error}");
    }

    #[test]
    fn live_sockets_are_found_and_dead_ones_are_not() {
        let (_dir, dir) = place();
        let _live = UnixListener::bind(dir.join("live one")).unwrap();
        drop(UnixListener::bind(dir.join("dead")).unwrap());
        // A child that another test forks has it too, for a moment.
        while UnixStream::connect(dir.join("dead")).is_ok() {}
        assert_eq!(found(&dir, &[]), [("live one".to_owned(), Cover::File)]);
    }

    #[test]
    fn socket_with_an_odd_name_matters_only_where_it_is_shown() {
        use std::os::unix::ffi::OsStrExt;
        let (_dir, dir) = place();
        let (shown, other) = (dir.join("shown"), dir.join("other"));
        let name = std::ffi::OsStr::from_bytes(b"x\xff");
        let bind =
            |to: &Path| Mount::bind("/m", to.to_str().unwrap(), Access::ReadOnly, Origin::Base);
        for place in [&shown, &other] {
            std::fs::create_dir(place).unwrap();
        }
        let _socket = UnixListener::bind(other.join(name)).unwrap();
        find(&[], &MountSet::merge(vec![bind(&shown)])).unwrap();
        let error = find(&[], &MountSet::merge(vec![bind(&other)])).unwrap_err();
        assert!(error.to_string().contains("not UTF-8"), "{error}");
        find(&[], &MountSet::merge(vec![bind(&dir)])).unwrap_err();
    }

    #[test]
    fn sources_behind_links_are_resolved() {
        let (_dir, dir) = place();
        std::fs::create_dir(dir.join("real")).unwrap();
        symlink("real", dir.join("link")).unwrap();
        let (link, real) = (dir.join("link"), dir.join("real"));
        let (link, real) = (link.to_str().unwrap(), real.to_str().unwrap());
        let bind = |path| Mount::bind(path, path, Access::ReadOnly, Origin::Base);
        let facts = find(&[], &MountSet::merge(vec![bind(link), bind(real)])).unwrap();
        assert_eq!(
            facts.real_sources,
            BTreeMap::from([(link.to_owned(), real.to_owned())])
        );
    }
}
