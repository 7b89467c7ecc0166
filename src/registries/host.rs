//! The host as far as the agent cannot write it: files, variables, tools.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::config;
use crate::registries::program;

/// How long one tool may take, and all of them together.
const TOOL_LIMIT: Duration = Duration::from_secs(5);
const TOTAL_LIMIT: Duration = Duration::from_secs(10);
/// Most entries of a directory that are looked at.
const MAX_LISTED: usize = 1_000;
/// Links that are followed before a path is given up.
const MAX_LINKS: usize = 64;

/// What tools are told of the environment, besides `PATH`.
const PASSED_ON: [&str; 6] = [
    "XDG_CONFIG_HOME",
    "XDG_CONFIG_DIRS",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
    "XDG_CACHE_HOME",
    "XDG_RUNTIME_DIR",
];

#[derive(Debug)]
pub(super) struct Host {
    /// Above `etc`: `/`, but in tests.
    pub(super) root: PathBuf,
    pub(super) home: PathBuf,
    /// Real paths of what the agent can write.
    pub(super) writable: Vec<PathBuf>,
    pub(super) search_path: OsString,
    pub(super) variables: BTreeMap<String, String>,
    pub(super) tool_limit: Duration,
    pub(super) deadline: Instant,
}

/// Why a tool did not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ToolError {
    Missing,
    Failed(String),
}

impl Host {
    pub(super) fn new(
        home: &Path,
        workspace: &Path,
        writable: &[PathBuf],
        search_path: OsString,
    ) -> Host {
        let writable = writable.iter().map(PathBuf::as_path);
        let mut places = Vec::new();
        for place in writable.chain([workspace]) {
            places.extend(std::fs::canonicalize(place));
            places.push(place.to_owned());
        }
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(_, value)| !value.is_empty());
        Host {
            root: PathBuf::from("/"),
            home: home.to_owned(),
            writable: places,
            search_path,
            variables: variables.collect(),
            tool_limit: TOOL_LIMIT,
            deadline: Instant::now() + TOTAL_LIMIT,
        }
    }

    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// An absolute path in a variable; a relative one would depend on where
    /// umwelt was started.
    pub(super) fn place(&self, name: &str) -> Option<PathBuf> {
        let path = PathBuf::from(self.variable(name)?);
        path.is_absolute().then_some(path)
    }

    /// A file of the system.
    pub(super) fn system(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub(super) fn config_home(&self) -> PathBuf {
        self.place("XDG_CONFIG_HOME")
            .unwrap_or_else(|| self.home.join(".config"))
    }

    /// The text of a file; none where there is no file. An error is a reason
    /// for the user.
    pub(super) fn read(&self, path: &Path) -> Result<Option<String>, String> {
        if self.is_writable(path) {
            return Err(format!("{path:?} does not count: the agent can write it"));
        }
        match std::fs::metadata(path) {
            Err(error) if is_absent(&error) => Ok(None),
            _ => config::load_file(path).map_err(|error| error.to_string()),
        }
    }

    /// The entries of a directory by name; none where it cannot be listed.
    pub(super) fn list(&self, path: &Path) -> Vec<PathBuf> {
        if self.is_writable(path) {
            return Vec::new();
        }
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.take(MAX_LISTED).map(|e| e.path()).collect();
        paths.sort();
        paths
    }

    /// Whether the agent can change what stands at `path`, or where it leads.
    fn is_writable(&self, path: &Path) -> bool {
        let is_inside = |path: &Path| self.writable.iter().any(|place| path.starts_with(place));
        let mut paths = vec![path.to_owned()];
        let mut links = 0;
        while let Some(path) = paths.pop() {
            if is_inside(&path) || std::fs::canonicalize(&path).is_ok_and(|real| is_inside(&real)) {
                return true;
            }
            for part in path.ancestors() {
                if let (Ok(target), Some(above)) = (std::fs::read_link(part), part.parent()) {
                    links += 1;
                    paths.push(above.join(target));
                }
            }
            if links > MAX_LINKS {
                return true;
            }
        }
        false
    }

    /// What a tool prints when it is called with `args`, in `/`, with nothing
    /// of the environment but the places of the user's files and `more`.
    pub(super) fn run(
        &self,
        tool: &str,
        args: &[&str],
        more: &[(&str, &str)],
    ) -> Result<String, ToolError> {
        let entries: Vec<PathBuf> = std::env::split_paths(&self.search_path)
            .filter(|entry| entry.is_absolute() && !self.is_writable(entry))
            .collect();
        let is_program = |path: &PathBuf| {
            let metadata = std::fs::metadata(path);
            metadata.is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
                && !self.is_writable(path)
        };
        let mut paths = entries.iter().map(|entry| entry.join(tool));
        let program = paths.find(is_program).ok_or(ToolError::Missing)?;
        let mut command = Command::new(program);
        command
            .args(args)
            .env_clear()
            .current_dir("/")
            .env("HOME", &self.home)
            .env("PATH", std::env::join_paths(entries).unwrap_or_default())
            .env("LANG", "C.UTF-8");
        for name in PASSED_ON {
            if let Some(value) = self.variable(name) {
                command.env(name, value);
            }
        }
        command.envs(more.iter().copied());
        let deadline = self.deadline.min(Instant::now() + self.tool_limit);
        program::output(command, deadline).map_err(ToolError::Failed)
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

impl ToolError {
    /// For a warning: what is the matter with this tool.
    pub(super) fn explain(&self, tool: &str) -> String {
        match self {
            ToolError::Missing => format!("nothing is configured and {tool:?} is not installed"),
            ToolError::Failed(why) => format!("nothing is configured and {tool:?} {why}"),
        }
    }
}
