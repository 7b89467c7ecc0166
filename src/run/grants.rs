//! A path that somebody asked for -> a grant, or why it cannot be one. It
//! looks at the host and changes nothing.
//!
//! A person decides on the path as it was asked for, so no link that commands
//! inside can change may lie on the way.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, OFlags};

use crate::api::{ApiError, ErrorKind, Grant as Asked, GrantMode};
use crate::config::{Config, MAX_GRANTS, Mask, MaskTarget, PersistedGrant};
use crate::dirs::Dirs;
use crate::places;
use crate::policy::grants::{Grant, GrantKind, GrantSet, Lasts};
use crate::policy::masks::MaskFacts;
use crate::policy::mounts::{Access, MountSet};
use crate::run::control_plane::Context;
use crate::run::{masks, preflight};
use crate::sys::open;
use crate::workspace::{self, FileId};

const MAX_PATH: usize = 4096;

/// Why a path is not granted.
#[derive(Debug)]
pub(crate) enum GrantError {
    NotAPath(String),
    Gone(PathBuf, io::Error),
    /// What stands there is not what was asked for.
    Kind {
        path: PathBuf,
        what: &'static str,
    },
    WritableFile(PathBuf),
    OutsideRoots {
        path: PathBuf,
        roots: Vec<PathBuf>,
    },
    /// A place that no sandbox may have, or may write.
    Refused {
        path: PathBuf,
        reason: String,
    },
    /// Commands inside decide where the path leads.
    Link {
        link: PathBuf,
        leads_to: PathBuf,
    },
    InWorkspace(PathBuf),
    Masked {
        path: PathBuf,
        mask: PathBuf,
    },
    /// Persisted grants hold real paths.
    NotReal {
        path: PathBuf,
        leads_to: PathBuf,
    },
    /// Something else has taken its place.
    Changed(PathBuf),
    TooMany,
}

impl fmt::Display for GrantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GrantError::NotAPath(why) => write!(f, "this is not a path to grant: {why}"),
            GrantError::Gone(path, error) => write!(f, "{path:?} cannot be granted: {error}"),
            GrantError::Kind { path, what } => {
                write!(f, "{path:?} cannot be granted: it is {what}")
            }
            GrantError::WritableFile(path) => {
                write!(f, "the file {path:?} can only be granted for reading")
            }
            GrantError::OutsideRoots { path, roots } => {
                write!(
                    f,
                    "{path:?}, with its links resolved, lies outside of what can be granted: {roots:?}"
                )
            }
            GrantError::Refused { path, reason } => {
                write!(f, "{path:?} is never granted: {reason}")
            }
            GrantError::Link { link, leads_to } => write!(
                f,
                "the path leads through {link:?}, a link that commands inside can change, to {leads_to:?}"
            ),
            GrantError::InWorkspace(path) => {
                write!(
                    f,
                    "{path:?} lies in the workspace, which is there and writable"
                )
            }
            GrantError::Masked { path, mask } if path == mask => {
                write!(f, "{path:?} is not granted: it has to stay hidden")
            }
            GrantError::Masked { path, mask } => {
                write!(f, "{path:?} is not granted: {mask:?} has to stay hidden")
            }
            GrantError::NotReal { path, leads_to } => {
                write!(f, "{path:?} leads through a link to {leads_to:?}")
            }
            GrantError::Changed(path) => {
                write!(f, "{path:?} is no longer what it was when it was granted")
            }
            GrantError::TooMany => write!(f, "there are {MAX_GRANTS} grants already"),
        }
    }
}

impl std::error::Error for GrantError {}

impl GrantError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            GrantError::NotAPath(_) | GrantError::Gone(..) => {
                "name a directory or a file of the host by its absolute path".to_owned()
            }
            GrantError::Kind { .. } => {
                "a directory is granted as it is, a single file with \"file\": true (--file); nothing else can be".to_owned()
            }
            GrantError::WritableFile(_) => "grant the directory that holds it".to_owned(),
            GrantError::OutsideRoots { .. } => {
                "the person who owns this machine can widen grant_roots in umwelt.toml".to_owned()
            }
            GrantError::Link { leads_to, .. } | GrantError::NotReal { leads_to, .. } => {
                format!("if that is what is wanted, ask for {leads_to:?}")
            }
            GrantError::Masked { path, mask } if mask.starts_with(path) && mask != path => {
                "grant a directory that does not hold it, or for reading only".to_owned()
            }
            GrantError::Masked { .. } => {
                "it is hidden on purpose; where it is needed, a person can grant one single file of it with: umwelt-ctl grant --file".to_owned()
            }
            GrantError::Changed(_) => "grant it again".to_owned(),
            GrantError::TooMany => "revoke what is no longer needed".to_owned(),
            GrantError::Refused { .. } | GrantError::InWorkspace(_) => return None,
        })
    }
}

impl From<&GrantError> for ApiError {
    fn from(error: &GrantError) -> ApiError {
        let reply = ApiError::new(ErrorKind::Refused, error.to_string());
        match error.hint() {
            Some(hint) => reply.with_hint(hint),
            None => reply,
        }
    }
}

/// What decides on a grant. It needs no sandbox.
#[derive(Debug)]
pub(crate) struct Judge<'a> {
    /// With umwelt's own masks.
    pub(crate) config: &'a Config,
    pub(crate) dirs: &'a Dirs,
    /// Without links.
    pub(crate) workspace: &'a Path,
    pub(crate) exe: &'a Path,
    /// Where podman and git are looked for.
    pub(crate) search_path: &'a OsStr,
    /// Directories in which commands could write at some time.
    pub(crate) was_writable: &'a BTreeSet<String>,
}

impl Context {
    pub(crate) fn judging(&self) -> Judge<'_> {
        Judge {
            config: &self.config,
            dirs: &self.dirs,
            workspace: self.workspace.path(),
            exe: &self.exe,
            search_path: &self.search_path,
            was_writable: &self.was_writable,
        }
    }
}

impl Judge<'_> {
    /// Judges what a client asks for, by the rules and by what is `held`.
    pub(crate) fn judge(&self, asked: &Asked, held: &GrantSet) -> Result<Grant, GrantError> {
        let path = self.asked_path(&asked.path)?;
        // In one walk: between two, a directory could become a link.
        let (real, links) = places::follow(&path);
        // First: what lies elsewhere on the host is nobody's business, and
        // neither is where it leads.
        self.check_roots(&real, &links, &path)?;
        self.check_links(&links, &real)?;
        let wanted = kind_of(asked.mode, asked.file, &real)?;
        let lasts = match asked.persist {
            true => Lasts::Persisted,
            false => Lasts::Session,
        };
        let grant = self.judge_real(real, wanted, lasts)?;
        if held.len() >= MAX_GRANTS && held.of(&grant.path).is_none() {
            return Err(GrantError::TooMany);
        }
        Ok(grant)
    }

    /// Judges a grant of the workspace file. Its path was a real one when it
    /// was written there: a link on the way means that it was changed since.
    pub(crate) fn judge_persisted(&self, asked: &PersistedGrant) -> Result<Grant, GrantError> {
        let path = asked.path.clone();
        let (real, links) = places::follow(&path);
        self.check_roots(&real, &links, &path)?;
        if real != path {
            return Err(GrantError::NotReal {
                path,
                leads_to: real,
            });
        }
        let wanted = kind_of(asked.mode, asked.file, &real)?;
        self.judge_real(real, wanted, Lasts::Persisted)
    }

    fn judge_real(
        &self,
        real: PathBuf,
        kind: GrantKind,
        lasts: Lasts,
    ) -> Result<Grant, GrantError> {
        let (id, found) = identify(&real).map_err(|error| GrantError::Gone(real.clone(), error))?;
        check_kind(&real, kind, found)?;
        self.check_place(&real, kind)?;
        self.check_masks(&real, kind)?;
        let path = match real.into_os_string().into_string() {
            Ok(path) => path,
            Err(path) => return Err(GrantError::NotAPath(format!("{path:?} is not UTF-8"))),
        };
        if path.contains(['\n', '\r']) {
            return Err(GrantError::NotAPath(format!("{path:?} has a line break")));
        }
        Ok(Grant {
            path,
            kind,
            id,
            lasts,
        })
    }

    /// The absolute path that is meant, links left alone.
    pub(crate) fn asked_path(&self, text: &str) -> Result<PathBuf, GrantError> {
        if text.is_empty() || text.len() > MAX_PATH || text.contains(['\0', '\n', '\r']) {
            let why = "it must be one line of 1 to 4096 bytes".to_owned();
            return Err(GrantError::NotAPath(why));
        }
        let path = workspace::expand_tilde(Path::new(text), &self.dirs.home);
        Ok(workspace::lexical(&self.workspace.join(path)))
    }

    /// What a single file that is granted by its name is hidden for otherwise.
    pub(crate) fn lifted_mask(&self, grant: &Grant) -> Option<String> {
        if grant.kind != GrantKind::File {
            return None;
        }
        let facts = masks::find(&self.config.masks, &MountSet::default()).ok()?;
        let mut hidden = facts.hidden.iter();
        let mask = hidden.find(|hidden| Path::new(&grant.path).starts_with(&hidden.real))?;
        let reason = mask.reason.as_deref().unwrap_or("no reason is given");
        Some(format!("this file is hidden by a mask: {reason}"))
    }

    fn check_links(&self, links: &[PathBuf], real: &Path) -> Result<(), GrantError> {
        let writable = self.was_writable;
        let changeable = |link: &&PathBuf| writable.iter().any(|dir| link.starts_with(dir));
        match links.iter().find(changeable) {
            None => Ok(()),
            Some(link) => Err(GrantError::Link {
                link: link.clone(),
                leads_to: real.to_owned(),
            }),
        }
    }

    /// The links of processes lead to whatever they have open.
    fn check_roots(&self, real: &Path, links: &[PathBuf], asked: &Path) -> Result<(), GrantError> {
        let roots = &self.config.grant_roots;
        let is_below = |root: &PathBuf| real.starts_with(places::real(root));
        if roots.iter().any(is_below) && !links.iter().any(|link| link.starts_with("/proc")) {
            return Ok(());
        }
        Err(GrantError::OutsideRoots {
            path: asked.to_owned(),
            roots: roots.clone(),
        })
    }

    fn check_place(&self, real: &Path, kind: GrantKind) -> Result<(), GrantError> {
        if real.starts_with(self.workspace) {
            return Err(GrantError::InWorkspace(real.to_owned()));
        }
        let refusal = match kind.access() {
            Access::ReadWrite => {
                workspace::refusal(real, self.dirs).or_else(|| self.program_refusal(real))
            }
            Access::ReadOnly => workspace::system_refusal(real, self.dirs)
                .or_else(|| preflight::bind_refusal(real, &self.config.masks, self.dirs)),
        };
        match refusal {
            None => Ok(()),
            Some(reason) => Err(GrantError::Refused {
                path: real.to_owned(),
                reason,
            }),
        }
    }

    /// Why writing in `real` would change what is run on the host.
    fn program_refusal(&self, real: &Path) -> Option<String> {
        if self.exe.starts_with(real) {
            return Some(format!("it contains umwelt's own program {:?}", self.exe));
        }
        let mut entries = std::env::split_paths(self.search_path);
        let entry = entries.find(|entry| entry.starts_with(real) || real.starts_with(entry))?;
        Some(format!(
            "podman and git are looked for in {entry:?}, an entry of PATH"
        ))
    }

    /// Nothing that is hidden is shown by a directory, and nothing writable
    /// holds a place where a secret may be put later. A single file that is
    /// named is what it is about.
    fn check_masks(&self, real: &Path, kind: GrantKind) -> Result<(), GrantError> {
        let GrantKind::Directory(access) = kind else {
            return Ok(());
        };
        let facts = masks::find(&self.config.masks, &MountSet::default());
        let facts = facts.map_err(|error| GrantError::Refused {
            path: real.to_owned(),
            reason: error.to_string(),
        })?;
        let masked = |mask: PathBuf| GrantError::Masked {
            path: real.to_owned(),
            mask,
        };
        if let Some(above) = hidden_above(&facts, real) {
            return Err(masked(above));
        }
        if access == Access::ReadOnly {
            return Ok(());
        }
        let named = self.config.masks.iter().map(place_of);
        let found = facts
            .hidden
            .iter()
            .map(|hidden| PathBuf::from(&hidden.real));
        match named.chain(found).find(|place| place.starts_with(real)) {
            None => Ok(()),
            Some(below) => Err(masked(below)),
        }
    }
}

/// Whether what stands at the path is still what was granted.
pub(crate) fn check_unchanged(grant: &Grant) -> Result<(), GrantError> {
    let path = Path::new(&grant.path);
    match identify(path) {
        Ok((id, _)) if id == grant.id => Ok(()),
        Ok(_) => Err(GrantError::Changed(path.to_owned())),
        Err(error) => Err(GrantError::Gone(path.to_owned(), error)),
    }
}

fn kind_of(mode: GrantMode, file: bool, real: &Path) -> Result<GrantKind, GrantError> {
    match (mode, file) {
        (GrantMode::Rw, true) => Err(GrantError::WritableFile(real.to_owned())),
        (GrantMode::Ro, true) => Ok(GrantKind::File),
        (GrantMode::Ro, false) => Ok(GrantKind::Directory(Access::ReadOnly)),
        (GrantMode::Rw, false) => Ok(GrantKind::Directory(Access::ReadWrite)),
    }
}

fn check_kind(path: &Path, wanted: GrantKind, found: FileType) -> Result<(), GrantError> {
    let what = match (wanted, found) {
        (GrantKind::Directory(_), FileType::Directory) => return Ok(()),
        (GrantKind::File, FileType::RegularFile) => return Ok(()),
        (GrantKind::File, FileType::Directory) => "a directory",
        (GrantKind::Directory(_), FileType::RegularFile) => "a file",
        (_, FileType::Socket) => "a socket",
        (_, FileType::Fifo) => "a named pipe",
        _ => "a device",
    };
    Err(GrantError::Kind {
        path: path.to_owned(),
        what,
    })
}

/// Looks at the thing itself: a link that has taken the place of one of the
/// path's components since it was resolved is refused.
pub(crate) fn identify(real: &Path) -> io::Result<(FileId, FileType)> {
    let opened = open::absolute(real, OFlags::PATH | OFlags::NOFOLLOW)?;
    let stat = rustix::fs::fstat(&opened)?;
    Ok((FileId::of(&stat), FileType::from_raw_mode(stat.st_mode)))
}

fn hidden_above(facts: &MaskFacts, real: &Path) -> Option<PathBuf> {
    let mut hidden = facts.hidden.iter();
    let above = hidden.find(|hidden| real.starts_with(&hidden.real))?;
    Some(PathBuf::from(&above.real))
}

/// Where a mask hides something, whether or not there is anything now.
fn place_of(mask: &Mask) -> PathBuf {
    match &mask.target {
        MaskTarget::Path(path) => places::real(path),
        MaskTarget::Pattern { parent, prefix, .. } => {
            places::real(parent).join(format!("{prefix}*"))
        }
    }
}
