//! What a person names -> the sandbox that is meant.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::api::client::Client;
use crate::api::launch;
use crate::config::{self, Config};
use crate::ctl::peer::{self, Presence};
use crate::ctl::{CLIENT, CtlError};
use crate::dirs::Dirs;
use crate::error::Error;
use crate::run::journal::{Entry, Journal};
use crate::run::preflight::PreflightError;
use crate::workspace::{self, Names, SessionId, Workspace, WorkspaceError};

/// Where the sandboxes of this user are found.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) dirs: Dirs,
    pub(super) prefix: String,
}

/// A sandbox that may or may not run, of a directory that may be gone.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) sid: SessionId,
    pub(super) names: Names,
    /// The word for messages: a path, or the session id.
    pub(super) shown: String,
}

impl Place {
    pub(super) fn load() -> Result<Place, Error> {
        let dirs = Dirs::from_env()?;
        dirs.check_runtime()?;
        let prefix = Config::load(&dirs)?.session_prefix;
        Ok(Place { dirs, prefix })
    }

    /// For looking and for ending: a slip in the base config must not take
    /// away the emergency stop.
    pub(super) fn load_despite_config() -> Result<Place, Error> {
        let dirs = Dirs::from_env()?;
        dirs.check_runtime()?;
        let (prefix, problem) = config::session_prefix(&dirs);
        if let Some(error) = problem {
            log::warn!("{error}; going on for the session_prefix {prefix:?}");
        }
        Ok(Place { dirs, prefix })
    }

    /// For looking at a sandbox and ending it. The workspace rule is not
    /// asked: nothing is started, and a directory that is gone is no obstacle.
    pub(super) fn target(&self, given: Option<&OsStr>) -> Result<Target, Error> {
        if let Some(sid) = as_sid(given) {
            return Ok(self.target_of(sid.clone(), sid.to_string()));
        }
        let given = Path::new(given.unwrap_or_else(|| OsStr::new(".")));
        let path = real_path(&workspace::expand_tilde(given, &self.dirs.home))?;
        match (Workspace::sid_of_path(&path), path.to_str()) {
            (Some(sid), Some(shown)) => Ok(self.target_of(sid, shown.to_owned())),
            _ => Err(WorkspaceError::NotUtf8(path).into()),
        }
    }

    pub(super) fn target_of(&self, sid: SessionId, shown: String) -> Target {
        Target {
            names: Names::new(&self.prefix, &sid, &self.dirs),
            sid,
            shown,
        }
    }

    /// In the journal of a sandbox, which need not run.
    pub(super) fn record(&self, target: &Target, entry: &Entry<'_>) {
        match crate::dirs::create_private(&self.dirs.data) {
            Ok(_) => Journal::new(target.names.journal.clone()).record(entry),
            Err(error) => log::warn!("not in the journal: {error}"),
        }
    }

    /// For working in a sandbox: connects, and starts one where a directory
    /// was named and none runs.
    pub(super) fn open(&self, given: Option<&OsStr>) -> Result<Client, Error> {
        if as_sid(given).is_some() {
            return self.target(given)?.connect();
        }
        let (workspace, _) = Workspace::select(given.map(Path::new), None, &self.dirs)?;
        let names = Names::new(&self.prefix, workspace.sid(), &self.dirs);
        let is_running = matches!(peer::presence(&names.socket)?, Presence::Listening(_));
        // umwelt-run would refuse too, after a lock and a log are there.
        if !is_running && rustix::process::geteuid().is_root() {
            return Err(PreflightError::Root.into());
        }
        Ok(launch::connect_or_launch(&workspace, &names, CLIENT)?.0)
    }
}

impl Target {
    /// Connects as a client that holds the sandbox; starts nothing.
    fn connect(&self) -> Result<Client, Error> {
        match peer::presence(&self.names.socket)? {
            Presence::Listening(_) => Ok(Client::connect(&self.names.socket, CLIENT, true)?.0),
            Presence::Absent | Presence::Dead => Err(self.not_running(false)),
        }
    }

    pub(super) fn not_running(&self, leftovers: bool) -> Error {
        CtlError::NotRunning {
            what: self.shown.clone(),
            leftovers,
        }
        .into()
    }
}

pub(super) fn as_sid(given: Option<&OsStr>) -> Option<SessionId> {
    SessionId::parse(given?.to_str()?)
}

/// The path with its links resolved, as far down as there is something to
/// resolve: what is gone keeps the name that was given.
fn real_path(given: &Path) -> Result<PathBuf, Error> {
    let absolute = std::path::absolute(given)
        .map_err(|error| Error::io(format!("resolve the workspace {given:?}"), error))?;
    let resolved = absolute.ancestors().find_map(|ancestor| {
        let gone = absolute.strip_prefix(ancestor).ok()?;
        let real = ancestor.canonicalize().ok()?;
        Some(if gone.as_os_str().is_empty() {
            real
        } else {
            real.join(gone)
        })
    });
    Ok(workspace::lexical(&resolved.unwrap_or(absolute)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(home: &Path) -> Place {
        Place {
            dirs: Dirs {
                home: home.to_owned(),
                config: home.join("c"),
                data: home.join("d"),
                state: home.join("s"),
                runtime: home.join("r"),
            },
            prefix: "umwelt".to_owned(),
        }
    }

    #[test]
    fn gone_directories_keep_their_session_id() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        let place = place(&base);
        std::fs::create_dir_all(base.join("real/p")).unwrap();
        std::os::unix::fs::symlink("real", base.join("link")).unwrap();
        let sid = |path: &str| place.target(Some(base.join(path).as_os_str())).unwrap().sid;
        let before = sid("real/p");
        assert_eq!(sid("link/p/"), before);
        std::fs::remove_dir(base.join("real/p")).unwrap();
        let by_home = place.target(Some(OsStr::new("~/link/p"))).unwrap();
        assert_eq!(by_home.sid, before);
        for path in ["real/p", "link/p", "link/x/../p/", "./real//p"] {
            assert_eq!(sid(path), before, "{path}");
        }
    }

    #[test]
    fn eight_hex_digits_are_a_session_id_and_with_a_slash_a_path() {
        let place = place(Path::new("/h"));
        let target = place.target(Some(OsStr::new("deadbeef"))).unwrap();
        assert_eq!(target.sid.as_str(), "deadbeef");
        assert_eq!(target.names.socket, Path::new("/h/r/umwelt-deadbeef.sock"));
        for path in ["./deadbeef", "DEADBEEF", "deadbee"] {
            let target = place.target(Some(OsStr::new(path))).unwrap();
            assert!(target.shown.starts_with('/'), "{path}");
        }
    }

    #[test]
    fn the_current_directory_stands_for_nothing_given() {
        let here = std::env::current_dir().unwrap().canonicalize().unwrap();
        let target = place(Path::new("/h")).target(None).unwrap();
        assert_eq!(Some(target.shown.as_str()), here.to_str());
    }
}
