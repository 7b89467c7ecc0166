//! Where the parts of an installation are.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use crate::dirs::Dirs;
use crate::error::Error;
use crate::install::record::{self, Record};
use crate::install::unit;

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
    /// `bin` is where links are wanted, if not in the usual place.
    pub(super) fn load(bin: Option<&OsStr>) -> Result<Layout, Error> {
        // No part of an installation lies in the runtime directory.
        let layout = Layout::new(Dirs::from_env_with_runtime(Path::new("/nonexistent"))?);
        match bin.map(Path::new) {
            None => Ok(layout),
            Some(bin) if bin.is_absolute() => Ok(Layout {
                bin: bin.to_owned(),
                ..layout
            }),
            Some(bin) => Err(Error::Usage(format!(
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
