//! From the options to a connection with the control plane. It may take a
//! minute, so it happens on a thread of its own.

use std::io;
use std::path::{Path, PathBuf};

use crate::api::client::Parts;
use crate::api::launch::connect_or_launch;
use crate::api::{ApiError, ErrorKind, State};
use crate::config::Config;
use crate::dirs::Dirs;
use crate::error::Error;
use crate::workspace::{Names, Workspace};

/// Which sandbox this server is for.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) workspace: Workspace,
    names: Names,
    /// Why it is not the directory that was asked for.
    pub(crate) notice: Option<String>,
}

/// A connection that is ready for use.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) parts: Parts,
    pub(crate) state: State,
    pub(crate) notice: Option<String>,
}

impl Place {
    pub(crate) fn find(asked: Option<&Path>) -> Result<Place, ApiError> {
        Place::find_or_error(asked).map_err(|error| ApiError::from(&error))
    }

    fn find_or_error(asked: Option<&Path>) -> Result<Place, Error> {
        let dirs = Dirs::from_env()?;
        dirs.check_runtime()?;
        let config = Config::load(&dirs)?;
        let fallback = config.fallback_workspace.as_deref();
        let (workspace, notice) = Workspace::select(asked, fallback, &dirs)?;
        let names = Names::new(&config.session_prefix, workspace.sid(), &dirs);
        Ok(Place {
            workspace,
            names,
            notice,
        })
    }
}

/// Starts an attempt; `done` is called on its thread. Each attempt looks at
/// everything anew, so that a repaired configuration counts.
pub(crate) fn spawn(
    asked: Option<PathBuf>,
    client: String,
    done: impl FnOnce(Result<Started, ApiError>) + Send + 'static,
) -> io::Result<()> {
    let attempt = move || {
        let place = Place::find(asked.as_deref())?;
        let (client, reply) = connect_or_launch(&place.workspace, &place.names, &client)?;
        let parts = client.into_parts();
        parts.socket.set_nonblocking(true).map_err(|error| {
            let message = format!("cannot set up the connection: {error}");
            ApiError::new(ErrorKind::Unreachable, message)
        })?;
        Ok(Started {
            parts,
            state: reply.state,
            notice: place.notice,
        })
    };
    std::thread::Builder::new()
        .name("start".to_owned())
        .spawn(move || done(attempt()))
        .map(drop)
}
