//! `umwelt.toml`, the base configuration of a user.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::config::egress::{EgressConfig, Layer, RawEgress, RawHost, read_egress};
use crate::config::mask::{Mask, MaskTarget, check_reason};
use crate::config::source::Source;
use crate::config::value::{expand_path, parse_size};
use crate::config::worktrees::{self, RawWorktrees, Worktrees};
use crate::config::{ConfigError, file};
use crate::dirs::Dirs;

/// The shipped file: its values hold where the user has none.
pub(crate) const SHIPPED: &str = include_str!("../../share/umwelt.toml");

/// The effective base configuration.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Config {
    pub(crate) image: String,
    pub(crate) session_prefix: String,
    pub(crate) fallback_workspace: Option<PathBuf>,
    pub(crate) inject_git_identity: bool,
    pub(crate) resources: Resources,
    pub(crate) shell: ShellLimits,
    pub(crate) scratch: ScratchSizes,
    /// Only what lies in one of these can be granted.
    pub(crate) grant_roots: Vec<PathBuf>,
    pub(crate) mounts: Vec<BaseMount>,
    pub(crate) masks: Vec<Mask>,
    pub(crate) worktrees: Worktrees,
    /// Holds for workspaces that have the network enabled.
    pub(crate) egress: EgressConfig,
}

/// What all of a sandbox together may take. Also told to clients as it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Resources {
    /// Bytes.
    pub(crate) memory: u64,
    pub(crate) cpus: f64,
    pub(crate) pids_limit: u64,
}

/// Seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShellLimits {
    pub(crate) timeout_s: u64,
    pub(crate) max_timeout_s: u64,
}

/// Bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScratchSizes {
    pub(crate) home: u64,
    pub(crate) tmp: u64,
    pub(crate) shm: u64,
}

/// A base mount. A bind has no mode: it is always read-only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BaseMount {
    Bind { path: PathBuf },
    Tmpfs { path: PathBuf, size: u64 },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    image: Option<Spanned<String>>,
    session_prefix: Option<Spanned<String>>,
    fallback_workspace: Option<Spanned<String>>,
    inject_git_identity: Option<bool>,
    grant_roots: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    resources: RawResources,
    #[serde(default)]
    shell: RawShell,
    #[serde(default)]
    scratch: RawScratch,
    mounts: Option<Vec<RawMount>>,
    #[serde(default)]
    mask: Vec<RawMask>,
    #[serde(default)]
    worktrees: RawWorktrees,
    #[serde(default)]
    egress: RawEgress,
    #[serde(default)]
    hosts: Vec<RawHost>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawResources {
    memory: Option<Spanned<String>>,
    cpus: Option<Spanned<f64>>,
    pids_limit: Option<Spanned<u64>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawShell {
    timeout_s: Option<Spanned<u64>>,
    max_timeout_s: Option<Spanned<u64>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScratch {
    home: Option<Spanned<String>>,
    tmp: Option<Spanned<String>>,
    shm: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMount {
    #[serde(rename = "type")]
    kind: Spanned<MountKind>,
    path: Spanned<String>,
    size: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMask {
    path: Spanned<String>,
    reason: Option<Spanned<String>>,
    hide: Option<Spanned<bool>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum MountKind {
    Bind,
    Tmpfs,
}

impl Config {
    /// Reads the user's base config; without one, the shipped values hold.
    pub(crate) fn load(dirs: &Dirs) -> Result<Config, ConfigError> {
        let shipped = Config::shipped(&dirs.home)?;
        let path = dirs.base_config();
        match file::load(&path)? {
            None => Ok(shipped),
            Some(text) => Reader {
                path: &path,
                text: &text,
                home: &dirs.home,
            }
            .read(Some(shipped)),
        }
    }

    /// The masks at the end of the shipped file are read one by one: its whole
    /// document would leave half a megabyte of heap to every `umwelt-mcp`.
    fn shipped(home: &Path) -> Result<Config, ConfigError> {
        let mut parts = SHIPPED.split("\n[[mask]]\n");
        let reader = |text| Reader {
            path: Path::new("share/umwelt.toml"),
            text,
            home,
        };
        let mut config = reader(parts.next().unwrap_or_default()).read(None)?;
        for text in parts {
            let reader = reader(text);
            let raw = toml::from_str(text).map_err(|error| reader.syntax_error(&error))?;
            config.masks = reader.masks(vec![raw], config.masks)?;
        }
        Ok(config)
    }
}

/// One file on its way to a `Config`, for errors that name file, line and key.
pub(super) struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    pub(super) home: &'a Path,
}

impl Reader<'_> {
    /// `base` holds the value of each key that the file leaves out, except the
    /// mounts of the shipped file: a user's file lists all it wants. The masks
    /// of both hold.
    fn read(&self, base: Option<Config>) -> Result<Config, ConfigError> {
        let raw: Raw = toml::from_str(self.text).map_err(|error| self.syntax_error(&error))?;
        let masks = base.as_ref().map(|b| b.masks.clone()).unwrap_or_default();
        let base = base.as_ref();
        let config = Config {
            image: self.value(
                "image",
                raw.image,
                base.map(|b| b.image.clone()),
                check_image,
            )?,
            session_prefix: self.value(
                "session_prefix",
                raw.session_prefix,
                base.map(|b| b.session_prefix.clone()),
                check_prefix,
            )?,
            fallback_workspace: raw
                .fallback_workspace
                .map(|raw| {
                    self.check("fallback_workspace", raw, |text| {
                        expand_path(&text, self.home)
                    })
                })
                .transpose()?,
            inject_git_identity: raw
                .inject_git_identity
                .or_else(|| base.map(|b| b.inject_git_identity))
                .unwrap_or(true),
            resources: self.resources(raw.resources, base.map(|b| &b.resources))?,
            shell: self.shell(raw.shell, base.map(|b| &b.shell))?,
            scratch: self.scratch(raw.scratch, base.map(|b| &b.scratch))?,
            grant_roots: self.grant_roots(raw.grant_roots, base)?,
            mounts: raw
                .mounts
                .unwrap_or_default()
                .into_iter()
                .map(|raw| self.mount(raw))
                .collect::<Result<_, _>>()?,
            masks: self.masks(raw.mask, masks)?,
            worktrees: worktrees::read(self, raw.worktrees, base.map(|b| &b.worktrees))?,
            egress: read_egress(self.source(), raw.egress, raw.hosts, Layer::Base)?
                .or_shipped(base.map(|b| &b.egress)),
        };
        Ok(config)
    }

    fn resources(
        &self,
        raw: RawResources,
        base: Option<&Resources>,
    ) -> Result<Resources, ConfigError> {
        Ok(Resources {
            memory: self.value(
                "resources.memory",
                raw.memory,
                base.map(|b| b.memory),
                |text| size_within(&text, "64m", "1024t"),
            )?,
            cpus: self.value(
                "resources.cpus",
                raw.cpus,
                base.map(|b| b.cpus),
                |cpus: f64| {
                    (cpus.is_finite() && (0.01..=4096.0).contains(&cpus))
                        .then_some(cpus)
                        .ok_or_else(|| format!("{cpus} is not between 0.01 and 4096"))
                },
            )?,
            pids_limit: self.value(
                "resources.pids_limit",
                raw.pids_limit,
                base.map(|b| b.pids_limit),
                |limit| within(limit, 16, 4 << 20, "processes"),
            )?,
        })
    }

    fn shell(&self, raw: RawShell, base: Option<&ShellLimits>) -> Result<ShellLimits, ConfigError> {
        let seconds = |limit| within(limit, 1, 7 * 24 * 3600, "seconds");
        let max_timeout_s = self.value(
            "shell.max_timeout_s",
            raw.max_timeout_s,
            base.map(|b| b.max_timeout_s),
            seconds,
        )?;
        let timeout_s = self.value(
            "shell.timeout_s",
            raw.timeout_s,
            base.map(|b| b.timeout_s),
            |limit| {
                if limit > max_timeout_s {
                    return Err(format!(
                        "{limit} is more than shell.max_timeout_s, {max_timeout_s}"
                    ));
                }
                seconds(limit)
            },
        )?;
        Ok(ShellLimits {
            timeout_s: timeout_s.min(max_timeout_s),
            max_timeout_s,
        })
    }

    fn scratch(
        &self,
        raw: RawScratch,
        base: Option<&ScratchSizes>,
    ) -> Result<ScratchSizes, ConfigError> {
        let size = |text: String| size_within(&text, "1m", "1024t");
        Ok(ScratchSizes {
            home: self.value("scratch.home", raw.home, base.map(|b| b.home), size)?,
            tmp: self.value("scratch.tmp", raw.tmp, base.map(|b| b.tmp), size)?,
            shm: self.value("scratch.shm", raw.shm, base.map(|b| b.shm), size)?,
        })
    }

    fn grant_roots(
        &self,
        raw: Option<Vec<Spanned<String>>>,
        base: Option<&Config>,
    ) -> Result<Vec<PathBuf>, ConfigError> {
        let Some(raw) = raw else {
            return Ok(base.map(|b| b.grant_roots.clone()).unwrap_or_default());
        };
        raw.into_iter()
            .map(|raw| self.check("grant_roots", raw, |text| expand_path(&text, self.home)))
            .collect()
    }

    fn mount(&self, raw: RawMount) -> Result<BaseMount, ConfigError> {
        let at = raw.path.span().start;
        let path = self.check("mounts.path", raw.path, |text| {
            let path = expand_path(&text, self.home)?;
            check_mount_path(&path)?;
            Ok(path)
        })?;
        match (*raw.kind.get_ref(), raw.size) {
            (MountKind::Bind, None) => Ok(BaseMount::Bind { path }),
            (MountKind::Bind, Some(size)) => Err(self.error(
                size.span().start,
                "mounts.size",
                "a bind mount has no size".to_owned(),
            )),
            (MountKind::Tmpfs, Some(size)) => {
                let size = self.check("mounts.size", size, |text| {
                    size_within(&text, "4k", "1024t")
                })?;
                Ok(BaseMount::Tmpfs { path, size })
            }
            (MountKind::Tmpfs, None) => {
                Err(self.error(at, "mounts.size", "a tmpfs needs a size".to_owned()))
            }
        }
    }

    /// The masks of `base` and those of the file. For the same path the later
    /// one counts; `hide = false` takes one away.
    fn masks(&self, raw: Vec<RawMask>, base: Vec<Mask>) -> Result<Vec<Mask>, ConfigError> {
        let mut masks = base;
        for raw in raw {
            let at = raw.path.span().start;
            let target = self.check("mask.path", raw.path, |text| {
                MaskTarget::parse(expand_path(&text, self.home)?)
            })?;
            let reason = raw
                .reason
                .map(|reason| self.check("mask.reason", reason, check_reason))
                .transpose()?;
            let known = masks.iter().position(|mask| mask.target == target);
            match (raw.hide.is_none_or(Spanned::into_inner), known) {
                (true, Some(known)) => {
                    masks.remove(known);
                    masks.push(Mask { target, reason });
                }
                (true, None) => masks.push(Mask { target, reason }),
                (false, Some(known)) => drop(masks.remove(known)),
                (false, None) => {
                    let message = "no mask has this path: there is nothing to take away";
                    return Err(self.error(at, "mask.hide", message.to_owned()));
                }
            }
        }
        Ok(masks)
    }

    fn value<T, U>(
        &self,
        key: &str,
        raw: Option<Spanned<T>>,
        base: Option<U>,
        check: impl FnOnce(T) -> Result<U, String>,
    ) -> Result<U, ConfigError> {
        match (raw, base) {
            (Some(raw), _) => self.check(key, raw, check),
            (None, Some(base)) => Ok(base),
            (None, None) => Err(self.error(0, key, "is missing".to_owned())),
        }
    }

    pub(super) fn check<T, U>(
        &self,
        key: &str,
        raw: Spanned<T>,
        check: impl FnOnce(T) -> Result<U, String>,
    ) -> Result<U, ConfigError> {
        self.source().check(key, raw, check)
    }

    fn syntax_error(&self, error: &toml::de::Error) -> ConfigError {
        self.source().syntax_error(error)
    }

    fn error(&self, at: usize, key: &str, message: String) -> ConfigError {
        self.source().error(at, key, message)
    }

    fn source(&self) -> Source<'_> {
        Source {
            path: self.path,
            text: self.text,
        }
    }
}

fn within(value: u64, min: u64, max: u64, unit: &str) -> Result<u64, String> {
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(format!("{value} is not between {min} and {max} {unit}"))
    }
}

/// In the words of the file: nobody writes sizes in bytes.
fn size_within(text: &str, min: &str, max: &str) -> Result<u64, String> {
    let size = parse_size(text)?;
    if (parse_size(min)?..=parse_size(max)?).contains(&size) {
        Ok(size)
    } else {
        Err(format!("{text:?} is not between {min:?} and {max:?}"))
    }
}

/// An image reference goes to podman as one argument; it must not be an option.
fn check_image(image: String) -> Result<String, String> {
    let ok = !image.is_empty()
        && image.len() <= 256
        && image
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-._/:@".contains(&b))
        && image.starts_with(|c: char| c.is_ascii_alphanumeric());
    if ok {
        Ok(image)
    } else {
        Err(format!("{image:?} is not an image reference"))
    }
}

/// Short, because the socket path that holds it is limited to 107 bytes.
pub(super) fn check_prefix(prefix: String) -> Result<String, String> {
    let ok = (1..=24).contains(&prefix.len())
        && prefix
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && prefix.starts_with(|c: char| c.is_ascii_lowercase());
    if ok {
        Ok(prefix)
    } else {
        Err(format!(
            "{prefix:?} must be 1 to 24 lower-case letters, digits or \"-\", a letter first"
        ))
    }
}

/// Mounts may not replace what the sandbox itself stands on.
fn check_mount_path(path: &Path) -> Result<(), String> {
    const RESERVED: [&str; 12] = [
        "/proc", "/sys", "/dev", "/run", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64",
        "/libx32", "/etc",
    ];
    if path == Path::new("/") || RESERVED.iter().any(|reserved| path.starts_with(reserved)) {
        return Err(format!(
            "{path:?} cannot be mounted over the sandbox's own system"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod document;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::egress::Registry;

    fn read(text: &str) -> Result<Config, String> {
        let home = Path::new("/home/u");
        let shipped = Config::shipped(home).unwrap();
        Reader {
            path: Path::new("/c/umwelt.toml"),
            text,
            home,
        }
        .read(Some(shipped))
        .map_err(|error| error.to_string())
    }

    #[test]
    fn shipped_file_is_complete() {
        let config = read("").unwrap();
        assert_eq!(config.image, "umwelt:latest");
        assert_eq!(config.resources.memory, 4 << 30);
        assert_eq!(config.shell.timeout_s, 120);
    }

    #[test]
    fn empty_file_has_no_base_mounts_and_keeps_the_caps() {
        let config = read("[resources]\ncpus = 1.5\n").unwrap();
        assert!(config.mounts.is_empty());
        assert_eq!(config.resources.cpus, 1.5);
        assert_eq!(config.resources.pids_limit, 1024);
    }

    #[test]
    fn mounts_are_read_and_home_is_expanded() {
        let config = read("[[mounts]]\ntype='bind'\npath='$HOME/x'\n[[mounts]]\ntype='tmpfs'\npath='/scratch'\nsize='1m'\n").unwrap();
        assert_eq!(
            config.mounts,
            [
                BaseMount::Bind {
                    path: "/home/u/x".into()
                },
                BaseMount::Tmpfs {
                    path: "/scratch".into(),
                    size: 1 << 20
                }
            ]
        );
    }

    #[test]
    fn masks_are_added_to_the_shipped_ones_and_can_be_taken_away() {
        let shipped = read("").unwrap().masks;
        assert!(shipped.len() > 50);
        assert!(shipped.iter().all(|mask| mask.reason.is_some()));
        let text = "[[mask]]\npath='/x/*.key'\n[[mask]]\npath='$HOME/.ssh'\nhide=false\n";
        let masks = read(text).unwrap().masks;
        assert_eq!(masks.len(), shipped.len());
        let ssh = MaskTarget::Path("/home/u/.ssh".into());
        assert!(shipped.iter().any(|mask| mask.target == ssh));
        assert!(!masks.iter().any(|mask| mask.target == ssh));
        assert_eq!(
            masks.last().unwrap().target,
            MaskTarget::parse("/x/*.key".into()).unwrap()
        );
    }

    #[test]
    fn egress_rules_are_the_users_own_and_switches_have_shipped_values() {
        let shipped = read("").unwrap().egress;
        assert!(shipped.https.is_empty() && !shipped.enabled);
        assert_eq!(shipped.registries, Some(vec![Registry::Pip]));
        let text = "[egress]\nregistries = []\n[[egress.tcp]]\nhost = 'a.example.org'\nport = 1\n[[hosts]]\nname = 'a.example.org'\naddress = '192.0.2.1'\n";
        let own = read(text).unwrap().egress;
        assert_eq!(own.registries, Some(Vec::new()));
        assert_eq!(own.verify_at_start, Some(false));
        assert_eq!((own.tcp.len(), own.hosts.len()), (1, 1));
    }

    #[test]
    fn shipped_text_as_the_users_file_changes_nothing() {
        assert_eq!(read(SHIPPED).unwrap().masks, read("").unwrap().masks);
        assert!(read(SHIPPED).unwrap().mounts.contains(&BaseMount::Bind {
            path: "/home/u/.config".into()
        }));
    }

    #[test]
    fn errors_name_file_line_and_key() {
        let cases = [
            (
                "\nimage = 3\n",
                "\"/c/umwelt.toml\" line 2: image: must be a text in quotes, not 3",
            ),
            (
                "imagee = 'x'\n",
                "line 1: there is no key \"imagee\" here; the keys are: image,",
            ),
            (
                "[resources]\nmemory = '4q'\n",
                "line 2: resources.memory: \"4q\" is not a size",
            ),
            (
                "[resources]\nmemory = '1m'\n",
                "line 2: resources.memory: \"1m\" is not between \"64m\" and \"1024t\"",
            ),
            (
                "[resources]\nnetwork = 'host'\n",
                "line 2: resources: there is no key \"network\"",
            ),
            (
                "[shell]\ntimeout_s = 9\nmax_timeout_s = 5\n",
                "line 2: shell.timeout_s: 9 is more than",
            ),
            ("session_prefix = 'A b'\n", "line 1: session_prefix:"),
            ("image = '--privileged'\n", "line 1: image:"),
            (
                "[[mounts]]\ntype='bind'\npath='/x'\nmode='rw'\n",
                "line 4: mounts: there is no key \"mode\" here; the keys are: type, path, size",
            ),
            (
                "[shell]\ntimeout_s = \"9\"\n",
                "line 2: shell.timeout_s: must be a whole number, 0 or more, not \"9\"",
            ),
            (
                "[shell]\ntimeout_s = -9\n",
                "line 2: shell.timeout_s: must be a whole number, 0 or more, not -9",
            ),
            (
                "[shell]\ntimeout_s = 9m\n",
                "line 2: timeout_s: this is not TOML: ",
            ),
            (
                "[[shell]]\ntimeout_s = 9\n",
                "line 1: shell: must be one table: write [shell] above it",
            ),
            (
                "[[mounts]]\ntype='bend'\npath='/x'\n",
                "line 2: mounts.type: \"bend\" is none of: bind, tmpfs",
            ),
            (
                "[[mounts]]\ntype=1\npath='/x'\n",
                "line 2: mounts.type: must be a text in quotes, not 1",
            ),
            (
                "[scratch]\ntmp = 64\n",
                "line 2: scratch.tmp: must be a text in quotes, not 64",
            ),
            (
                "[scratch]\ntmp = '2048t'\n",
                "line 2: scratch.tmp: \"2048t\" is not between \"1m\" and \"1024t\"",
            ),
            (
                "[[mounts]]\ntype='bind'\npath='/usr/lib'\n",
                "line 3: mounts.path:",
            ),
            (
                "[[mounts]]\ntype='tmpfs'\npath='/x'\n",
                "line 3: mounts.size: a tmpfs needs a size",
            ),
            ("[[mask]]\npath='x'\n", "line 2: mask.path: \"x\" is not an"),
            ("[[mask]]\npath='$HOME/*/x'\n", "line 2: mask.path:"),
            (
                "[[mask]]\nreason='x'\n",
                "line 1: mask: the key \"path\" is missing",
            ),
            ("[[mask]]\npath='/x'\nreason='a\u{7}b'\n", "line 3: "),
            (
                "[[mask]]\npath='/x'\nreason=''\n",
                "line 3: mask.reason: must be one line",
            ),
            (
                "\n[[mask]]\npath='/x'\nhide=false\n",
                "line 3: mask.hide: no mask has this path",
            ),
            (
                "[[mask]]\npath='/x'\nmode='rw'\n",
                "mask: there is no key \"mode\"",
            ),
            (
                "[mask]\npath='/x'\n",
                "line 1: mask: must be a list of tables: write [[mask]] above",
            ),
            (
                "image = 'a'\nimage = 'b'\n",
                "line 2: image stands there twice",
            ),
            ("[egress]\nenabled = true\n", "line 2: egress.enabled: "),
            ("[resources]\ncpus = nan\n", "resources.cpus"),
        ];
        for (text, expected) in cases {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text:?} gave {error:?}");
        }
    }
}
