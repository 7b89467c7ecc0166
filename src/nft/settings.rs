//! The files of containers.conf(5) that podman reads, in its order.

use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::NftError;

/// Most bytes that are read of one file.
const LIMIT: u64 = 1 << 20;

/// Their texts, for `oci::hooks_dir_args`. `config_home` is `~/.config`, or what
/// `XDG_CONFIG_HOME` says; `only` is `CONTAINERS_CONF`, as podman gets it.
pub(crate) fn load(config_home: &Path, only: Option<OsString>) -> Result<Vec<String>, NftError> {
    let files = match only.filter(|path| !path.is_empty()) {
        Some(only) => vec![PathBuf::from(only)],
        None => files_in(&[
            Path::new("/usr/share/containers"),
            Path::new("/etc/containers"),
            &config_home.join("containers"),
        ]),
    };
    let texts = files.into_iter().filter_map(|path| match read(&path) {
        Ok(text) => Some(Ok(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(Err(NftError::File {
            why: format!("cannot be read: {error}"),
            path,
        })),
    });
    texts.collect()
}

/// In each directory the file itself, then the parts beside it by name.
fn files_in(dirs: &[&Path]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for dir in dirs {
        files.push(dir.join("containers.conf"));
        for sub in ["containers.conf.d", "containers.rootless.conf.d"] {
            let entries = std::fs::read_dir(dir.join(sub)).into_iter().flatten();
            let mut parts: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
            parts.retain(|part| {
                part.extension()
                    .is_some_and(|extension| extension == "conf")
            });
            parts.sort();
            files.extend(parts);
        }
    }
    files
}

fn read(path: &Path) -> io::Result<String> {
    // Opening a FIFO would wait for ever.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    file.take(LIMIT).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn parts_come_after_the_file_beside_them_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let (system, user) = (folder.path().join("etc"), folder.path().join("user"));
        write(&system.join("containers.conf.d/20.conf"), "");
        write(&system.join("containers.conf.d/10.conf"), "");
        write(&system.join("containers.conf.d/README"), "");
        let files = files_in(&[&system, &user]);
        let expected = [
            system.join("containers.conf"),
            system.join("containers.conf.d/10.conf"),
            system.join("containers.conf.d/20.conf"),
            user.join("containers.conf"),
        ];
        assert_eq!(files, expected);
    }

    #[test]
    fn one_file_can_take_the_place_of_all() {
        let folder = tempfile::tempdir().unwrap();
        let only = folder.path().join("only.conf");
        write(&only, "[engine]\n");
        let texts = load(folder.path(), Some(only.clone().into())).unwrap();
        assert_eq!(texts, ["[engine]\n"]);
        std::fs::remove_file(&only).unwrap();
        assert_eq!(load(folder.path(), Some(only.into())).unwrap(), [""; 0]);
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let user = folder.path().join("containers/containers.conf");
        write(&user, "[engine]\n");
        assert!(
            load(folder.path(), None)
                .unwrap()
                .contains(&"[engine]\n".to_owned())
        );
        std::fs::write(&user, [0xff]).unwrap();
        assert!(load(folder.path(), None).is_err());
        assert!(load(folder.path(), Some("/dev/null".into())).is_err());
    }
}
