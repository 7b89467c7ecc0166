//! Where the parts of an installation are.

use std::path::{Component, Path, PathBuf};

use crate::dirs::Dirs;
use crate::error::Error;
use crate::install::record::{self, Record};
use crate::install::unit;
use crate::workspace::expand_tilde;

#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) dirs: Dirs,
    /// The program, once for all its names.
    pub(super) program: PathBuf,
    /// The shipped base configuration, to compare an own one with.
    pub(super) shipped_config: PathBuf,
    /// The links.
    pub(super) bin: PathBuf,
    /// The systemd unit, where units of what is installed in a home are.
    pub(super) unit: PathBuf,
    pub(super) egress: PathBuf,
    pub(super) record: PathBuf,
    pub(super) lock: PathBuf,
}

impl Layout {
    pub(super) fn load() -> Result<Layout, Error> {
        // No part of an installation lies in the runtime directory.
        let dirs = Dirs::from_env_with_runtime(Path::new("/nonexistent"))?;
        Ok(Layout::new(dirs))
    }

    /// With the links where they are wanted.
    pub(super) fn with_bin(self, bin: PathBuf) -> Result<Layout, Error> {
        match bin.is_absolute() {
            true => Ok(Layout { bin, ..self }),
            false => Err(Error::usage(format!(
                "--prefix-bin needs an absolute path, not {bin:?}"
            ))),
        }
    }

    pub(super) fn new(dirs: Dirs) -> Layout {
        let lib = dirs.home.join(".local/lib/umwelt");
        Layout {
            program: lib.join("umwelt"),
            shipped_config: lib.join("umwelt.toml"),
            bin: dirs.home.join(".local/bin"),
            unit: dirs
                .data
                .with_file_name("systemd")
                .join("user")
                .join(unit::FILE_NAME),
            egress: dirs.data.join("egress"),
            record: dirs.data.join(record::FILE_NAME),
            lock: dirs.data.join("install.lock"),
            dirs,
        }
    }

    /// With the links where they were made.
    pub(super) fn with_recorded(mut self, record: Option<&Record>) -> Layout {
        if let Some(bin) = record.and_then(|record| record.bin.clone()) {
            self.bin = bin;
        }
        self
    }

    pub(super) fn authority_certificate(&self) -> PathBuf {
        self.egress.join("ca.pem")
    }

    pub(super) fn authority_key(&self) -> PathBuf {
        self.egress.join("ca.key")
    }

    /// The roots of the host, and our authority: what sandboxes trust.
    pub(super) fn bundle(&self) -> PathBuf {
        self.egress.join("bundle.pem")
    }

    /// The roots of the host alone: what the gateway trusts.
    pub(super) fn roots(&self) -> PathBuf {
        self.egress.join("roots.pem")
    }
}

/// The path that a person means. A shell expands a tilde only where it stands
/// bare: not in quotes, and not after `--option=`.
pub(super) fn meant(named: &Path, home: &Path) -> Result<PathBuf, Error> {
    let first = named.components().next().unwrap_or(Component::CurDir);
    let first = first.as_os_str().as_encoded_bytes();
    if first.len() > 1 && first.starts_with(b"~") {
        return Err(Error::usage(format!(
            "{named:?}: of another user's home the whole path is needed; a file of this name is ./{}",
            named.display()
        )));
    }
    Ok(expand_tilde(named, home))
}

/// The way from the directory `from` to `to`, both absolute and without links.
pub(super) fn relative(from: &Path, to: &Path) -> PathBuf {
    let shared = from
        .components()
        .zip(to.components())
        .take_while(|(a, b)| a == b)
        .count();
    let up = from.components().skip(shared).map(|_| Component::ParentDir);
    up.chain(to.components().skip(shared)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tilde_that_no_shell_has_expanded_is_the_home() {
        let meant = |named: &str| meant(Path::new(named), Path::new("/h"));
        for (named, path) in [
            ("~/.config/x", "/h/.config/x"),
            ("~", "/h"),
            ("./~/x", "./~/x"),
            ("/a/~/x", "/a/~/x"),
            ("a/~", "a/~"),
        ] {
            assert_eq!(meant(named).unwrap(), Path::new(path));
        }
        for named in ["~other/x", "~x"] {
            assert!(meant(named).unwrap_err().to_string().contains("./~"));
        }
    }

    #[test]
    fn ways_lead_up_and_down() {
        for (from, to, way) in [
            ("/h/.local/bin", "/h/.local/lib/u/u", "../lib/u/u"),
            ("/opt/bin", "/h/u", "../../h/u"),
            ("/h", "/h/a/b", "a/b"),
        ] {
            assert_eq!(relative(Path::new(from), Path::new(to)), Path::new(way));
        }
    }
}
