//! The directory that a sandbox belongs to, and every name derived from it.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, Stat};

use crate::digest::sha256;
use crate::dirs::Dirs;
use crate::places;
use crate::sys::open;

/// First 8 hex digits of the SHA-256 of the workspace's real path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionId(String);

impl SessionId {
    fn from_path(path: &str) -> SessionId {
        let mut digest = sha256(path.as_bytes());
        digest.truncate(8);
        SessionId(digest)
    }

    /// A session id as a person types it.
    pub(crate) fn parse(text: &str) -> Option<SessionId> {
        (text.len() == 8 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
            .then(|| SessionId(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Tells a file apart from whatever is put in its place later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl FileId {
    pub(crate) fn of(stat: &Stat) -> FileId {
        FileId {
            device: stat.st_dev,
            inode: stat.st_ino,
        }
    }

    pub(crate) fn from_metadata(metadata: &std::fs::Metadata) -> FileId {
        FileId {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

/// A workspace that passed the rule: an existing directory, by its real path.
#[derive(Debug, Clone)]
pub(crate) struct Workspace {
    /// Canonical, UTF-8, without a newline.
    path: String,
    /// The absolute path that the client used, where it leads through a link.
    alias: Option<String>,
    sid: SessionId,
    id: FileId,
}

impl Workspace {
    pub(crate) fn path(&self) -> &Path {
        Path::new(&self.path)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.path
    }

    pub(crate) fn alias(&self) -> Option<&str> {
        self.alias.as_deref()
    }

    pub(crate) fn sid(&self) -> &SessionId {
        &self.sid
    }

    /// What the directory was when it passed the rule.
    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    /// Applies the workspace rule to `path` as given by a person or a client.
    pub(crate) fn resolve(path: &Path, dirs: &Dirs) -> Result<Workspace, WorkspaceError> {
        let given = std::path::absolute(expand_tilde(path, &dirs.home))
            .map_err(|error| WorkspaceError::Gone(path.to_owned(), error))?;
        let real = std::fs::canonicalize(&given)
            .map_err(|error| WorkspaceError::Gone(given.clone(), error))?;
        if !real.is_dir() {
            return Err(WorkspaceError::NotADirectory(real));
        }
        let shared = is_shared(&real).map_err(|error| WorkspaceError::Gone(real.clone(), error))?;
        let shared = shared.then(|| "it is shared with other users".to_owned());
        if let Some(reason) = shared.or_else(|| refusal(&real, dirs)) {
            return Err(WorkspaceError::Refused { path: real, reason });
        }
        let path = checked_text(&real)?;
        let id = identify(&real).map_err(|error| WorkspaceError::Gone(real.clone(), error))?;
        let alias = lexical(&given);
        let alias = if alias == real {
            None
        } else {
            alias_of(&alias, &real, dirs)
        };
        Ok(Workspace {
            sid: SessionId::from_path(&path),
            id,
            path,
            alias,
        })
    }

    /// The workspace that a program was asked for: `--workspace DIR`, else the
    /// current directory, else (where that one is refused) the fallback of the
    /// base config. The second value tells about the fallback.
    pub(crate) fn select(
        asked: Option<&Path>,
        fallback: Option<&Path>,
        dirs: &Dirs,
    ) -> Result<(Workspace, Option<String>), WorkspaceError> {
        if let Some(path) = asked {
            return Ok((Workspace::resolve(path, dirs)?, None));
        }
        let refused = match current_dir().and_then(|path| Workspace::resolve(&path, dirs)) {
            Ok(workspace) => return Ok((workspace, None)),
            Err(error) => error,
        };
        let Some(fallback) = fallback else {
            return Err(refused);
        };
        let workspace = Workspace::resolve(fallback, dirs)?;
        let notice = format!(
            "{refused}; using the fallback workspace {:?} instead",
            workspace.path
        );
        Ok((workspace, Some(notice)))
    }

    /// A workspace known by its path only, which need not exist any more:
    /// for stopping and listing what is left of it.
    pub(crate) fn sid_of_path(path: &Path) -> Option<SessionId> {
        path.to_str().map(SessionId::from_path)
    }
}

/// `~` and `~/…` mean the home directory, as a shell has it that was not asked:
/// agents, settings of clients and quotes bring them here.
pub(crate) fn expand_tilde(path: &Path, home: &Path) -> PathBuf {
    match path.strip_prefix("~") {
        Ok(rest) => home.join(rest),
        Err(_) => path.to_owned(),
    }
}

/// The current directory by the name that the shell knows it by (`$PWD` keeps
/// a link that getcwd(2) resolves), where both are the same directory.
fn current_dir() -> Result<PathBuf, WorkspaceError> {
    let real =
        std::env::current_dir().map_err(|error| WorkspaceError::Gone(PathBuf::from("."), error))?;
    match std::env::var_os("PWD").map(PathBuf::from) {
        Some(shown)
            if shown.is_absolute()
                && std::fs::canonicalize(&shown).is_ok_and(|path| path == real) =>
        {
            Ok(shown)
        }
        _ => Ok(real),
    }
}

/// Places like /tmp (sticky, for everybody) hold the sockets and files of
/// every program of the host.
fn is_shared(path: &Path) -> io::Result<bool> {
    Ok(std::fs::metadata(path)?.mode() & 0o1002 == 0o1002)
}

/// Looks at the directory itself: a link that has taken the place of one of
/// the path's components since it was resolved is refused.
fn identify(real: &Path) -> io::Result<FileId> {
    let dir = open::absolute(real, OFlags::PATH | OFlags::DIRECTORY)?;
    Ok(FileId::of(&rustix::fs::fstat(dir)?))
}

/// An alias is a convenience: one that cannot be mounted safely is left out.
fn alias_of(alias: &Path, real: &Path, dirs: &Dirs) -> Option<String> {
    let same = std::fs::canonicalize(alias).is_ok_and(|resolved| resolved == real);
    if !same || refusal(alias, dirs).is_some() {
        return None;
    }
    checked_text(alias).ok()
}

/// The path without `.`, `..` and double slashes, links left alone.
pub(crate) fn lexical(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                out.pop();
            }
            std::path::Component::CurDir => {}
            part => out.push(part),
        }
    }
    out
}

fn checked_text(path: &Path) -> Result<String, WorkspaceError> {
    match path.to_str() {
        Some(text) if text.contains('\n') => Err(WorkspaceError::Newline(path.to_owned())),
        Some(text) => Ok(text.to_owned()),
        None => Err(WorkspaceError::NotUtf8(path.to_owned())),
    }
}

/// Places whose whole tree belongs to the system.
const SYSTEM_TREES: [&str; 8] = [
    "/usr", "/etc", "/bin", "/sbin", "/boot", "/proc", "/sys", "/dev",
];
/// Trees under /var that belong to the system; the rest of /var is fine.
const VAR_TREES: [&str; 6] = ["lib", "run", "log", "cache", "spool", "lock"];

/// Why the (absolute, resolved) path cannot be a workspace, nor writable
/// inside one's sandbox, if it cannot.
pub(crate) fn refusal(path: &Path, dirs: &Dirs) -> Option<String> {
    let places = places::of_user(dirs);
    let mut given_away = places.iter().filter_map(|place| place.refusal(path));
    system_refusal(path, dirs).or_else(|| given_away.next())
}

/// Why the path is not even shown: the home itself, and what is the system's.
pub(crate) fn system_refusal(path: &Path, dirs: &Dirs) -> Option<String> {
    if path == Path::new("/") {
        return Some("it is the root of the file system".to_owned());
    }
    let home = places::real(&dirs.home);
    if path == home || path == dirs.home {
        return Some("it is the home directory itself".to_owned());
    }
    if home.starts_with(path) {
        return Some(format!("it contains the home directory {home:?}"));
    }
    if let Some(tree) = system_tree(path)
        && !(path.starts_with(&home) && home.starts_with(&tree))
    {
        return Some(format!("it lies in {tree:?}, which belongs to the system"));
    }
    None
}

fn system_tree(path: &Path) -> Option<PathBuf> {
    let mut parts = path.components().skip(1).map(|part| part.as_os_str());
    let top = parts.next()?;
    let tree = Path::new("/").join(top);
    if SYSTEM_TREES.iter().any(|system| tree == Path::new(system))
        || top == OsStr::new("root")
        || top == OsStr::new("run")
        || ["lib", "lib32", "lib64", "libx32", "libo32"]
            .iter()
            .any(|lib| top == OsStr::new(lib))
    {
        return Some(tree);
    }
    if top == OsStr::new("var") {
        return match parts.next() {
            None => Some(tree),
            Some(second) if VAR_TREES.iter().any(|name| second == OsStr::new(name)) => {
                Some(tree.join(second))
            }
            Some(_) => None,
        };
    }
    None
}

#[derive(Debug)]
pub(crate) enum WorkspaceError {
    Gone(PathBuf, io::Error),
    NotADirectory(PathBuf),
    Refused { path: PathBuf, reason: String },
    Newline(PathBuf),
    NotUtf8(PathBuf),
}

impl WorkspaceError {
    /// `command` is the one that says it, and each is told otherwise what to use.
    pub(crate) fn hint_of(&self, command: &str) -> String {
        let words = match command {
            "umwelt-run" => {
                return "name a project directory: umwelt-run --workspace DIR; or fallback_workspace in umwelt.toml"
                    .to_owned();
            }
            "umwelt-ctl" | "umwelt-ctl exec" => "umwelt-ctl exec DIR -- CMD".to_owned(),
            "umwelt-ctl grant" | "umwelt-ctl revoke" => format!("{command} DIR PATH"),
            "umwelt-ctl wt" => {
                return "name a project directory; see: umwelt-ctl wt --help".to_owned();
            }
            _ if command.starts_with("umwelt-ctl ") => format!("{command} DIR"),
            _ => return self.hint(),
        };
        format!("name a project directory, as in: {words}")
    }

    pub(crate) fn hint(&self) -> String {
        "start in a project directory, or name one: --workspace DIR where a client starts umwelt-mcp, or fallback_workspace in umwelt.toml".to_owned()
    }
}

impl fmt::Display for WorkspaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkspaceError::Gone(path, error) => {
                write!(f, "cannot use {path:?} as workspace: {error}")
            }
            WorkspaceError::NotADirectory(path) => {
                write!(f, "cannot use {path:?} as workspace: it is not a directory")
            }
            WorkspaceError::Refused { path, reason } => {
                write!(f, "cannot use {path:?} as workspace: {reason}")
            }
            WorkspaceError::Newline(path) => {
                write!(
                    f,
                    "cannot use {path:?} as workspace: its path contains a newline"
                )
            }
            WorkspaceError::NotUtf8(path) => {
                write!(f, "cannot use {path:?} as workspace: its path is not UTF-8")
            }
        }
    }
}

impl std::error::Error for WorkspaceError {}

/// The names that one sandbox goes by.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    pub(crate) container: String,
    pub(crate) gateway: String,
    /// Of the sandbox and its gateway.
    pub(crate) network: String,
    /// Of the gateway alone, where the other one is internal.
    pub(crate) way_out: String,
    pub(crate) socket: PathBuf,
    pub(crate) lock: PathBuf,
    /// Files that podman reads at create, in the runtime directory.
    pub(crate) runtime: PathBuf,
    /// Saved outputs and the log of this sandbox.
    pub(crate) state: PathBuf,
    pub(crate) journal: PathBuf,
    /// The directory in which the gateway records what was asked for.
    pub(crate) audit: PathBuf,
}

impl Names {
    pub(crate) fn new(prefix: &str, sid: &SessionId, dirs: &Dirs) -> Names {
        let container = format!("{prefix}-{sid}");
        Names {
            socket: dirs.runtime.join(format!("{container}.sock")),
            lock: dirs.runtime.join(format!("{container}.lock")),
            runtime: dirs.runtime.join(&container),
            state: dirs.state.join(&container),
            journal: dirs.data.join(format!("journal-{container}.jsonl")),
            audit: dirs.data.join("egress").join(format!("audit-{container}")),
            gateway: format!("{prefix}-egress-gw-{sid}"),
            network: format!("{prefix}-egress-{sid}"),
            way_out: format!("{prefix}-egress-out-{sid}"),
            container,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirs(home: &Path) -> Dirs {
        Dirs {
            home: home.to_owned(),
            config: home.join(".config/umwelt"),
            data: home.join(".local/share/umwelt"),
            state: home.join(".local/state/umwelt"),
            runtime: PathBuf::from("/run/user/1000"),
        }
    }

    fn refused(path: &str) -> bool {
        refusal(Path::new(path), &dirs(Path::new("/home/u"))).is_some()
    }

    #[test]
    fn session_id_is_the_start_of_sha256() {
        assert_eq!(SessionId::from_path("abc").as_str(), "ba7816bf");
    }

    #[test]
    fn system_places_are_refused() {
        for path in [
            "/",
            "/usr",
            "/usr/src/p",
            "/etc/p",
            "/bin",
            "/sbin/x",
            "/lib",
            "/lib64/x",
            "/libx32",
            "/boot/x",
            "/proc/1",
            "/sys/fs",
            "/dev/shm",
            "/run/user/1000/p",
            "/root/p",
            "/var",
            "/var/lib/p",
            "/var/run/p",
            "/var/log",
            "/var/cache/p",
            "/var/spool/p",
            "/var/lock",
        ] {
            assert!(refused(path), "{path} should be refused");
        }
    }

    #[test]
    fn project_places_are_fine() {
        for path in [
            "/home/u/p",
            "/var/home/u/p",
            "/var/tmp/p",
            "/opt/p",
            "/srv/p",
            "/tmp/p",
            "/mnt/usr/p",
            "/home/u/.config/nvim",
            "/variable/lib",
            "/home/u2/x",
        ] {
            assert!(!refused(path), "{path} should be accepted");
        }
    }

    #[test]
    fn home_and_what_holds_umwelt_are_refused() {
        for path in [
            "/home/u",
            "/home",
            "/home/u/.config/umwelt",
            "/home/u/.config/umwelt/x",
            "/home/u/.config",
            "/home/u/.local",
            "/home/u/.local/state/umwelt",
            "/home/u/.ssh",
            "/home/u/.local/bin",
            "/home/u/bin",
            "/home/u/.config/git",
            "/home/u/.config/systemd/user",
            "/home/u/.local/share/systemd/user",
            "/home/u/.local/share/containers/storage",
        ] {
            assert!(refused(path), "{path} should be refused");
        }
    }

    #[test]
    fn directories_with_linked_settings_are_refused() {
        let temp = tempfile::tempdir().unwrap();
        let home = temp.path().canonicalize().unwrap();
        let dotfiles = home.join("dotfiles");
        for dir in [
            "dotfiles",
            "p",
            ".config/umwelt",
            ".config/git",
            ".config/containers/containers.conf.d",
        ] {
            std::fs::create_dir_all(home.join(dir)).unwrap();
        }
        let resolve = |name: &str| Workspace::resolve(&home.join(name), &dirs(&home));
        assert!(resolve("dotfiles").is_ok());
        for (link, reason) in [
            (".config/umwelt/umwelt.toml", "umwelt's configuration"),
            (".config/containers/storage.conf", "podman's configuration"),
            (
                ".config/containers/containers.conf.d/x.conf",
                "podman's configuration",
            ),
            (".gitconfig", "git runs programs that it names"),
            (".config/git/config", "git runs programs that it names"),
        ] {
            std::fs::write(dotfiles.join("file"), "").unwrap();
            std::os::unix::fs::symlink(dotfiles.join("file"), home.join(link)).unwrap();
            let error = resolve("dotfiles").unwrap_err().to_string();
            assert!(error.contains(reason), "{link}: {error}");
            assert!(resolve("p").is_ok());
            // A link that dangles decides where the file is made.
            std::fs::remove_file(dotfiles.join("file")).unwrap();
            assert!(resolve("dotfiles").is_err(), "{link}");
            // And whoever can change a link on the way need not hold the end.
            std::os::unix::fs::symlink("../p/file", dotfiles.join("file")).unwrap();
            assert!(resolve("dotfiles").is_err(), "{link}");
            assert!(resolve("p").is_err(), "{link}");
            std::fs::remove_file(dotfiles.join("file")).unwrap();
            std::fs::remove_file(home.join(link)).unwrap();
        }
    }

    #[test]
    fn root_with_its_own_home_may_have_projects_there() {
        let dirs = dirs(Path::new("/root"));
        assert!(refusal(Path::new("/root/p"), &dirs).is_none());
        assert!(refusal(Path::new("/root"), &dirs).is_some());
    }

    #[test]
    fn symlinked_workspace_has_one_identity_and_an_alias() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        std::fs::create_dir(base.join("real")).unwrap();
        std::os::unix::fs::symlink(base.join("real"), base.join("link")).unwrap();
        let home = dirs(Path::new("/home/u"));
        let direct = Workspace::resolve(&base.join("real"), &home).unwrap();
        let linked = Workspace::resolve(&base.join("./link/"), &home).unwrap();
        assert_eq!(direct.sid(), linked.sid());
        assert_eq!(direct.alias(), None);
        assert_eq!(linked.alias(), base.join("link").to_str());
    }

    #[test]
    fn directory_shared_with_others_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let temp = tempfile::tempdir().unwrap();
        let home = dirs(Path::new("/home/u"));
        assert!(Workspace::resolve(temp.path(), &home).is_ok());
        std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
        let error = Workspace::resolve(temp.path(), &home).unwrap_err();
        assert!(error.to_string().contains("shared with other users"));
    }

    #[test]
    fn newline_not_utf8_and_gone_are_named() {
        use std::os::unix::ffi::OsStrExt;
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        let home = dirs(Path::new("/home/u"));
        let newline = base.join("a\nb");
        let bytes = base.join(OsStr::from_bytes(b"a\xff"));
        std::fs::create_dir(&newline).unwrap();
        std::fs::create_dir(&bytes).unwrap();
        assert!(matches!(
            Workspace::resolve(&newline, &home),
            Err(WorkspaceError::Newline(_))
        ));
        assert!(matches!(
            Workspace::resolve(&bytes, &home),
            Err(WorkspaceError::NotUtf8(_))
        ));
        assert!(matches!(
            Workspace::resolve(&base.join("gone"), &home),
            Err(WorkspaceError::Gone(..))
        ));
    }
}
