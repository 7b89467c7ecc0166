//! `.umwelt.toml`, the file of a workspace -> what it asks for. Pure: whether
//! any of it counts is not decided here.

pub(crate) mod edit;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::config::ConfigError;
use crate::config::egress::{EgressConfig, Layer, RawEgress, RawHost, read_egress};
use crate::config::source::Source;
use crate::config::value::expand_path;

/// Most grants in a file, and in a sandbox: each is a mount of its own, and
/// podman's command line is limited.
pub(crate) const MAX_GRANTS: usize = 128;

/// Top keys of the base config that a workspace file does not have.
const BASE_KEYS: [&str; 11] = [
    "image",
    "session_prefix",
    "fallback_workspace",
    "inject_git_identity",
    "grant_roots",
    "resources",
    "shell",
    "scratch",
    "mounts",
    "mask",
    "worktrees",
];

/// What a workspace file asks for; the default asks for nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct WorkspaceFile {
    pub(crate) grants: Vec<PersistedGrant>,
    pub(crate) egress: EgressConfig,
}

/// A grant that outlives the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PersistedGrant {
    /// Absolute, in normal form; links in it are not resolved.
    pub(crate) path: PathBuf,
    pub(crate) mode: GrantMode,
    /// A single file, which can only be read.
    pub(crate) file: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GrantMode {
    Ro,
    Rw,
}

impl GrantMode {
    /// As it is written in the file and asked for by clients.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            GrantMode::Ro => "ro",
            GrantMode::Rw => "rw",
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    #[serde(default)]
    grants: Vec<Spanned<RawGrant>>,
    #[serde(default)]
    egress: RawEgress,
    #[serde(default)]
    hosts: Vec<RawHost>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGrant {
    path: Spanned<String>,
    mode: Spanned<GrantMode>,
    file: Option<Spanned<bool>>,
}

impl WorkspaceFile {
    /// `path` is for errors, `home` stands for `$HOME`.
    pub(crate) fn parse(
        path: &Path,
        text: &str,
        home: &Path,
    ) -> Result<WorkspaceFile, ConfigError> {
        let reader = Reader {
            source: Source { path, text },
            home,
        };
        reader.file(reader.raw()?)
    }

    /// Whether it makes no difference if this counts.
    pub(crate) fn asks_for_nothing(&self) -> bool {
        *self == WorkspaceFile::default()
    }
}

#[derive(Clone, Copy)]
struct Reader<'a> {
    source: Source<'a>,
    home: &'a Path,
}

impl Reader<'_> {
    fn raw(&self) -> Result<Raw, ConfigError> {
        toml::from_str(self.source.text).map_err(|error| of_base(self.source.syntax_error(&error)))
    }

    fn file(&self, raw: Raw) -> Result<WorkspaceFile, ConfigError> {
        let mut file = WorkspaceFile {
            egress: read_egress(self.source, raw.egress, raw.hosts, Layer::Workspace)?,
            ..WorkspaceFile::default()
        };
        for raw in raw.grants {
            let raw = raw.into_inner();
            let at = raw.path.span().start;
            let grant = self.grant(raw)?;
            if file.grants.iter().any(|other| other.path == grant.path) {
                let message = format!("{:?} is granted twice", grant.path);
                return Err(self.source.error(at, "grants.path", message));
            }
            if file.grants.len() >= MAX_GRANTS {
                let message = format!("there are more than {MAX_GRANTS} grants");
                return Err(self.source.error(at, "grants", message));
            }
            file.grants.push(grant);
        }
        Ok(file)
    }

    fn grant(&self, raw: RawGrant) -> Result<PersistedGrant, ConfigError> {
        let mode = *raw.mode.get_ref();
        let file = match raw.file {
            None => false,
            Some(file) => self.source.check("grants.file", file, |file| {
                if file && mode == GrantMode::Rw {
                    return Err("a single file can only be granted with mode = \"ro\"".to_owned());
                }
                Ok(file)
            })?,
        };
        let path = self.source.check("grants.path", raw.path, |text| {
            expand_path(&text, self.home)
        })?;
        Ok(PersistedGrant { path, mode, file })
    }
}

/// Of a key that stands in the wrong one of the two files, where it belongs.
fn of_base(error: ConfigError) -> ConfigError {
    let is_of_base = |message: &str| {
        let unknown = |key| message.starts_with(&format!("there is no key {key:?} here"));
        BASE_KEYS.into_iter().any(unknown)
    };
    match error {
        ConfigError::Syntax {
            path,
            line,
            message,
        } if is_of_base(&message) => ConfigError::Syntax {
            message: format!("{message}; this key belongs to ~/.config/umwelt/umwelt.toml"),
            path,
            line,
        },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<WorkspaceFile, String> {
        WorkspaceFile::parse(Path::new("/w/.umwelt.toml"), text, Path::new("/home/u"))
            .map_err(|error| error.to_string())
    }

    fn grant(path: &str, mode: GrantMode, file: bool) -> PersistedGrant {
        PersistedGrant {
            path: path.into(),
            mode,
            file,
        }
    }

    #[test]
    fn grants_are_read_in_their_order() {
        let file = parse(
            "# mine\n[[grants]]\npath = \"$HOME/b\"\nmode = \"rw\"\n\n\
             [[grants]]\npath = \"/a//x/\"\nmode = \"ro\"\nfile = true\n",
        )
        .unwrap();
        let wanted = [
            grant("/home/u/b", GrantMode::Rw, false),
            grant("/a/x", GrantMode::Ro, true),
        ];
        assert_eq!(file.grants, wanted);
    }

    #[test]
    fn nothing_is_asked_for_by_nothing_and_by_comments() {
        for text in ["", "\n", "# a\n", "\u{feff}# a\r\n", "grants = []\n"] {
            assert!(parse(text).unwrap().asks_for_nothing(), "{text:?}");
        }
        let file = parse("[[grants]]\npath = \"/a\"\nmode = \"ro\"\n").unwrap();
        assert!(!file.asks_for_nothing());
    }

    #[test]
    fn network_is_asked_for_beside_the_grants() {
        let text = "[egress]\nenabled = true\n[[egress.https]]\nhost = 'a.example.org'\n[[hosts]]\nname = 'a.example.org'\naddress = '192.0.2.1'\n";
        let file = parse(text).unwrap();
        assert!(file.egress.enabled && !file.asks_for_nothing());
        assert_eq!((file.egress.https.len(), file.egress.hosts.len()), (1, 1));
        assert!(
            parse("[egress]\nenabled = false\n")
                .unwrap()
                .asks_for_nothing()
        );
    }

    #[test]
    fn keys_of_the_base_config_are_told_where_they_belong() {
        let belongs = "; this key belongs to ~/.config/umwelt/umwelt.toml";
        for text in ["[resources]\ncpus = 1\n", "image = \"x\"\n", "[[mounts]]\n"] {
            let message = parse(text).unwrap_err();
            assert!(message.ends_with(belongs), "{message}");
        }
        for text in ["[grant]\n", "[egress]\nimage = 1\n"] {
            let message = parse(text).unwrap_err();
            assert!(!message.ends_with(belongs), "{message}");
        }
        // Each of them is one there.
        let shipped = crate::config::SHIPPED;
        for key in BASE_KEYS {
            let marks = [format!("{key} ="), format!("[{key}]"), format!("[[{key}]]")];
            assert!(marks.iter().any(|mark| shipped.contains(mark)), "{key}");
        }
    }

    #[test]
    fn byte_order_mark_and_windows_line_ends_are_no_obstacle() {
        let file = parse("\u{feff}[[grants]]\r\npath = \"/a\"\r\nmode = \"ro\"\r\n").unwrap();
        assert_eq!(file.grants, [grant("/a", GrantMode::Ro, false)]);
    }

    #[test]
    fn whatever_is_not_in_the_schema_is_refused_with_line_and_key() {
        let entry = |rest: &str| format!("[[grants]]\npath = \"/a\"\nmode = \"ro\"\n{rest}");
        for (text, wanted) in [
            (
                entry("\n[egress]\nenable = true\n"),
                "line 6: egress: there is no key \"enable\" here; the keys are: enabled,",
            ),
            (
                "[[hosts]]\n".to_owned(),
                "line 1: hosts: the key \"name\" is missing",
            ),
            (
                "image = \"x\"\n".to_owned(),
                "line 1: there is no key \"image\" here; the keys are: grants, egress, hosts",
            ),
            (
                entry("size = 1\n"),
                "line 4: grants: there is no key \"size\"",
            ),
            (
                entry("file = 1\n"),
                "line 4: grants.file: must be true or false, not 1",
            ),
            (entry("mode = \"rw\"\n"), "line 4: mode stands there twice"),
            (
                entry("[[grants]]\npath = \"/a/\"\nmode = \"rw\"\n"),
                "line 5: grants.path: \"/a\" is granted twice",
            ),
            (
                "[[grants]]\npath = \"/a\"\nmode = \"wr\"\n".to_owned(),
                "line 3: grants.mode: \"wr\" is none of: ro, rw",
            ),
            (
                "[[grants]]\npath = \"/a\"\nmode = \"rw\"\nfile = true\n".to_owned(),
                "line 4: grants.file: a single file",
            ),
            (
                "[[grants]]\npath = \"a\"\nmode = \"ro\"\n".to_owned(),
                "line 2: grants.path: \"a\" is not an absolute path",
            ),
            (
                "[[grants]]\npath = \"/a/../b\"\nmode = \"ro\"\n".to_owned(),
                "contains \"..\"",
            ),
            (
                "[[grants]]\npath = 1\nmode = \"ro\"\n".to_owned(),
                "line 2: grants.path: must be a text in quotes, not 1",
            ),
            (
                "[[grants]]\nmode = \"ro\"\n".to_owned(),
                "line 1: grants: the key \"path\" is missing",
            ),
            (
                "[[grants]]\npath = \"/a\"\n".to_owned(),
                "line 1: grants: the key \"mode\" is missing",
            ),
            (
                "grants = 1\n".to_owned(),
                "line 1: grants: must be a list in brackets, not 1",
            ),
            (
                "[grants]\npath = \"/a\"\nmode = \"ro\"\n".to_owned(),
                "line 1: grants: must be a list of tables: write [[grants]] above",
            ),
            ("[[grants]]\npath = \"/a\n".to_owned(), "line 2"),
            ("\0".to_owned(), "line 1"),
        ] {
            let message = parse(&text).unwrap_err();
            assert!(message.contains(wanted), "{text:?}: {message}");
            assert!(
                message.starts_with("\"/w/.umwelt.toml\" line "),
                "{message}"
            );
        }
    }
}
