//! The XDG places that umwelt uses, created 0700 and checked to be ours.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Places and identity of the user; every path is absolute.
#[derive(Debug, Clone)]
pub(crate) struct Dirs {
    pub(crate) home: PathBuf,
    /// `$XDG_CONFIG_HOME/umwelt`: the base config.
    pub(crate) config: PathBuf,
    /// `$XDG_DATA_HOME/umwelt`: journals.
    pub(crate) data: PathBuf,
    /// `$XDG_STATE_HOME/umwelt`: logs, saved outputs.
    pub(crate) state: PathBuf,
    /// `$XDG_RUNTIME_DIR` itself: sockets and locks.
    pub(crate) runtime: PathBuf,
}

#[derive(Debug)]
pub(crate) enum DirsError {
    Unset(&'static str),
    NotAbsolute(&'static str, OsString),
    Create(PathBuf, io::Error),
    Stat(PathBuf, io::Error),
    NotADirectory(PathBuf),
    NotOurs {
        path: PathBuf,
        owner: u32,
    },
    TooOpen {
        path: PathBuf,
        mode: u32,
    },
    /// The place that `XDG_RUNTIME_DIR` names.
    Runtime(Box<DirsError>),
}

const RUNTIME: &str = "take the usual one with: unset XDG_RUNTIME_DIR; or set it to a directory of yours that is closed to others, as in: export XDG_RUNTIME_DIR=/run/user/$(id -u)";

impl DirsError {
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            DirsError::Unset("XDG_RUNTIME_DIR") => Some(
                "log in through a systemd session, or run: loginctl enable-linger; export XDG_RUNTIME_DIR=/run/user/$(id -u)"
                    .to_owned(),
            ),
            DirsError::Runtime(error) => Some(match error.hint() {
                Some(hint) => hint,
                None => RUNTIME.to_owned(),
            }),
            DirsError::NotAbsolute("XDG_RUNTIME_DIR", _) => Some(RUNTIME.to_owned()),
            DirsError::Unset(name) => Some(format!("set {name} to an absolute path")),
            DirsError::NotAbsolute(name, _) => Some(format!("set {name} to an absolute path")),
            DirsError::TooOpen { path, .. } => Some(format!("run: chmod 700 '{}'", path.display())),
            _ => None,
        }
    }
}

impl fmt::Display for DirsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DirsError::Unset(name) => write!(f, "{name} is not set"),
            DirsError::NotAbsolute(name, value) => {
                write!(f, "{name} is not an absolute path: {value:?}")
            }
            DirsError::Create(path, error) => {
                write!(f, "cannot create directory {path:?}: {error}")
            }
            DirsError::Stat(path, error) => write!(f, "cannot look at {path:?}: {error}"),
            DirsError::NotADirectory(path) => write!(f, "{path:?} is not a directory"),
            DirsError::Runtime(error) => write!(f, "XDG_RUNTIME_DIR cannot be used: {error}"),
            DirsError::NotOurs { path, owner } => {
                write!(f, "{path:?} belongs to uid {owner}, not to us")
            }
            DirsError::TooOpen { path, mode } => {
                write!(
                    f,
                    "{path:?} has mode {mode:03o}: others could reach what is in it"
                )
            }
        }
    }
}

impl std::error::Error for DirsError {}

impl Dirs {
    /// Reads the places from the environment; creates nothing.
    pub(crate) fn from_env() -> Result<Dirs, DirsError> {
        Dirs::from_lookup(|name| match std::env::var_os(name) {
            None if name == "XDG_RUNTIME_DIR" => usual_runtime().map(OsString::from),
            value => value,
        })
    }

    /// For what needs no runtime directory: `fallback` stands in where there
    /// is none.
    pub(crate) fn from_env_with_runtime(fallback: &Path) -> Result<Dirs, DirsError> {
        Dirs::from_lookup(|name| match std::env::var_os(name) {
            None if name == "XDG_RUNTIME_DIR" => Some(
                usual_runtime()
                    .unwrap_or_else(|| fallback.to_owned())
                    .into(),
            ),
            value => value,
        })
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Dirs, DirsError> {
        let place = |name: &'static str| match lookup(name).filter(|value| !value.is_empty()) {
            Some(value) if Path::new(&value).is_absolute() => Ok(Some(PathBuf::from(value))),
            Some(value) => Err(DirsError::NotAbsolute(name, value)),
            None => Ok(None),
        };
        let home = place("HOME")?.ok_or(DirsError::Unset("HOME"))?;
        let under = |name, fallback: &str| -> Result<PathBuf, DirsError> {
            Ok(place(name)?
                .unwrap_or_else(|| home.join(fallback))
                .join("umwelt"))
        };
        Ok(Dirs {
            config: under("XDG_CONFIG_HOME", ".config")?,
            data: under("XDG_DATA_HOME", ".local/share")?,
            state: under("XDG_STATE_HOME", ".local/state")?,
            runtime: place("XDG_RUNTIME_DIR")?.ok_or(DirsError::Unset("XDG_RUNTIME_DIR"))?,
            home,
        })
    }

    /// The base config file.
    pub(crate) fn base_config(&self) -> PathBuf {
        self.config.join("umwelt.toml")
    }

    /// Checks that the runtime directory is a directory of ours that nobody
    /// else can enter: whoever can reach the socket commands the sandbox.
    pub(crate) fn check_runtime(&self) -> Result<(), DirsError> {
        check_private(&self.runtime).map_err(|error| DirsError::Runtime(Box::new(error)))
    }
}

/// Where logind puts the runtime directory, if it is there and private. The
/// official MCP libraries start a server without `XDG_RUNTIME_DIR`; podman
/// looks in the same place then.
pub(crate) fn usual_runtime() -> Option<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let path = PathBuf::from(format!("/run/user/{uid}"));
    check_private(&path).is_ok().then_some(path)
}

/// Creates `path` and its missing parents with mode 0700 and checks it.
pub(crate) fn create_private(path: &Path) -> Result<(), DirsError> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| DirsError::Create(path.to_owned(), error))?;
    check_private(path)
}

pub(crate) fn check_private(path: &Path) -> Result<(), DirsError> {
    let metadata =
        std::fs::metadata(path).map_err(|error| DirsError::Stat(path.to_owned(), error))?;
    if !metadata.is_dir() {
        return Err(DirsError::NotADirectory(path.to_owned()));
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(DirsError::NotOurs {
            path: path.to_owned(),
            owner: metadata.uid(),
        });
    }
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(DirsError::TooOpen {
            path: path.to_owned(),
            mode,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(pairs: &'static [(&'static str, &'static str)]) -> impl Fn(&str) -> Option<OsString> {
        move |name| {
            pairs
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
        }
    }

    #[test]
    fn defaults_follow_home() {
        let dirs = Dirs::from_lookup(lookup(&[
            ("HOME", "/home/u"),
            ("XDG_RUNTIME_DIR", "/run/user/1"),
        ]))
        .unwrap();
        assert_eq!(
            dirs.base_config(),
            Path::new("/home/u/.config/umwelt/umwelt.toml")
        );
        assert_eq!(dirs.data, Path::new("/home/u/.local/share/umwelt"));
        assert_eq!(dirs.state, Path::new("/home/u/.local/state/umwelt"));
    }

    #[test]
    fn missing_runtime_dir_is_named() {
        let error = Dirs::from_lookup(lookup(&[("HOME", "/home/u")])).unwrap_err();
        assert_eq!(error.to_string(), "XDG_RUNTIME_DIR is not set");
        assert!(error.hint().is_some());
    }

    #[test]
    fn runtime_dir_that_cannot_be_used_is_told_by_its_name() {
        use std::os::unix::fs::PermissionsExt;
        let temp = tempfile::tempdir().unwrap();
        let (open, file) = (temp.path().join("open"), temp.path().join("file"));
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(&file, "").unwrap();
        let check = |runtime: &Path| {
            let dirs = Dirs {
                runtime: runtime.to_owned(),
                ..Dirs::from_lookup(lookup(&[("HOME", "/h"), ("XDG_RUNTIME_DIR", "/r")])).unwrap()
            };
            dirs.check_runtime().map_err(|error| {
                assert!(
                    error
                        .to_string()
                        .starts_with("XDG_RUNTIME_DIR cannot be used: ")
                );
                error.hint().unwrap()
            })
        };
        assert!(check(&open).unwrap_err().contains("chmod 700"));
        for path in [&file, &temp.path().join("none")] {
            assert!(check(path).unwrap_err().contains("unset XDG_RUNTIME_DIR"));
        }
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o700)).unwrap();
        assert!(check(&open).is_ok());
    }

    #[test]
    fn relative_place_is_refused() {
        let error = Dirs::from_lookup(lookup(&[("HOME", "home/u")])).unwrap_err();
        assert!(matches!(error, DirsError::NotAbsolute("HOME", _)));
    }

    #[test]
    fn open_directory_is_refused_and_private_one_passes() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("a/b");
        create_private(&place).unwrap();
        std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o750)).unwrap();
        assert!(matches!(
            check_private(&place),
            Err(DirsError::TooOpen { mode: 0o750, .. })
        ));
    }
}
