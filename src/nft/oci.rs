//! What podman is told of the hook: a file in a directory of hooks, and the
//! options that name the directories. Pure.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::NftError;
use crate::digest::sha256;

/// The name of the hook's file; podman reads what ends in `.json`. A later
/// directory wins over an earlier one that has a file of the same name, and
/// ours is the last.
pub(crate) const FILE_NAME: &str = "umwelt-nft.json";

/// What podman takes where nothing is configured (containers-common,
/// `DefaultHooksDirs`).
const DEFAULT: &str = "/usr/share/containers/oci/hooks.d";

/// Seconds after which the runtime kills the hook and gives the container up.
/// It needs a fraction of one; an emulated machine is slow.
const TIMEOUT: u32 = 30;

/// Everything that the hook of one sandbox is started with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HookFile<'a> {
    /// Our own executable.
    pub(crate) exe: &'a Path,
    /// The rendered ruleset, and where it was written.
    pub(crate) ruleset: &'a str,
    pub(crate) ruleset_file: &'a Path,
    /// The absolute path of nft.
    pub(crate) nft: &'a Path,
}

impl HookFile<'_> {
    pub(crate) fn options(&self) -> [OsString; 6] {
        [
            OsString::from("--ruleset"),
            self.ruleset_file.into(),
            OsString::from("--digest"),
            sha256(self.ruleset.as_bytes()).into(),
            OsString::from("--nft"),
            self.nft.into(),
        ]
    }
}

/// The content of the hook's file. It is for every container, as the directory
/// is named to podman for one container only.
pub(crate) fn hook_config(hook: &HookFile<'_>) -> Result<String, NftError> {
    let text = |word: OsString| {
        word.into_string()
            .map_err(|word| NftError::Ruleset(format!("{word:?} is not UTF-8")))
    };
    let mut args = vec!["umwelt-nft-hook".to_owned()];
    for word in hook.options() {
        args.push(text(word)?);
    }
    let config = json!({
        "version": "1.0.0",
        "hook": {
            "path": text(hook.exe.into())?,
            "args": args,
            // Nothing of podman's environment is needed.
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
            "timeout": TIMEOUT,
        },
        "when": { "always": true },
        "stages": ["createContainer"],
    });
    Ok(format!("{config:#}\n"))
}

/// `podman run --annotation=…`: crun writes there what hooks say, which would
/// be lost otherwise.
pub(crate) fn stderr_annotation(file: &Path) -> OsString {
    let mut option = OsString::from("--annotation=run.oci.hooks.stderr=");
    option.push(file);
    option
}

/// The options of podman, before `run`, that add `own` to the directories that
/// it would take hooks from anyway. Naming one replaces all others.
///
/// `settings` are the texts of the files of containers.conf(5) that podman
/// reads, in its order.
pub(crate) fn hooks_dir_args<'a>(
    own: &Path,
    settings: impl IntoIterator<Item = &'a str>,
) -> Result<Vec<OsString>, NftError> {
    let mut dirs = configured_dirs(settings)?;
    dirs.push(own.to_owned());
    let options = dirs.into_iter().map(|dir| {
        let mut option = OsString::from("--hooks-dir=");
        option.push(dir);
        option
    });
    Ok(options.collect())
}

/// `[engine] hooks_dir`: a later file replaces what an earlier one says, unless
/// one of them so far had `{append = true}` in its list.
fn configured_dirs<'a>(
    settings: impl IntoIterator<Item = &'a str>,
) -> Result<Vec<PathBuf>, NftError> {
    let unclear = |why: String| NftError::Ruleset(format!("[engine] hooks_dir is unclear: {why}"));
    let mut dirs = vec![PathBuf::from(DEFAULT)];
    let mut appends = false;
    for text in settings {
        let table: toml::Table = text
            .parse()
            .map_err(|error: toml::de::Error| unclear(error.message().to_owned()))?;
        let Some(list) = table
            .get("engine")
            .and_then(|engine| engine.get("hooks_dir"))
        else {
            continue;
        };
        let list = list
            .as_array()
            .ok_or_else(|| unclear("it is no list".to_owned()))?;
        let mut named = Vec::new();
        for entry in list {
            if let Some(dir) = entry.as_str() {
                named.push(PathBuf::from(dir));
            } else if let Some(append) = entry.get("append").and_then(toml::Value::as_bool) {
                appends = append;
            } else {
                return Err(unclear(format!("it has the entry {entry:?}")));
            }
        }
        if !appends {
            dirs.clear();
        }
        dirs.extend(named);
    }
    Ok(dirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook<'a>(ruleset: &'a str) -> HookFile<'a> {
        HookFile {
            exe: Path::new("/home/u/.local/lib/umwelt/umwelt"),
            ruleset,
            ruleset_file: Path::new("/run/user/1000/umwelt-0123abcd/nft.json"),
            nft: Path::new("/usr/sbin/nft"),
        }
    }

    #[test]
    fn the_hook_file_says_which_ruleset_is_meant() {
        let config = hook_config(&hook("abc")).unwrap();
        let config: serde_json::Value = serde_json::from_str(&config).unwrap();
        assert_eq!(config["hook"]["path"], "/home/u/.local/lib/umwelt/umwelt");
        assert_eq!(
            config["hook"]["args"],
            json!([
                "umwelt-nft-hook",
                "--ruleset",
                "/run/user/1000/umwelt-0123abcd/nft.json",
                "--digest",
                "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
                "--nft",
                "/usr/sbin/nft",
            ])
        );
        assert_eq!(config["hook"]["timeout"], 30);
        assert_eq!(config["when"], json!({ "always": true }));
        assert_eq!(config["stages"], json!(["createContainer"]));
    }

    fn args(settings: &[&str]) -> Vec<String> {
        let args = hooks_dir_args(Path::new("/own"), settings.iter().copied()).unwrap();
        args.into_iter()
            .map(|arg| arg.into_string().unwrap())
            .collect()
    }

    #[test]
    fn the_default_directory_stays_and_ours_is_last() {
        let expected = [
            "--hooks-dir=/usr/share/containers/oci/hooks.d",
            "--hooks-dir=/own",
        ];
        assert_eq!(args(&[]), expected);
        assert_eq!(
            args(&["[engine]\nruntime = 'crun'\n", "[network]\n"]),
            expected
        );
    }

    #[test]
    fn configured_directories_replace_or_append_as_in_podman() {
        let a = "[engine]\nhooks_dir = ['/a', '/b']\n";
        assert_eq!(
            args(&[a]),
            ["--hooks-dir=/a", "--hooks-dir=/b", "--hooks-dir=/own"]
        );
        let c = "[engine]\nhooks_dir = ['/c']\n";
        assert_eq!(args(&[a, c]), ["--hooks-dir=/c", "--hooks-dir=/own"]);
        let append = "[engine]\nhooks_dir = ['/d', {append = true}]\n";
        let all = ["--hooks-dir=/c", "--hooks-dir=/d", "--hooks-dir=/own"];
        assert_eq!(args(&[a, c, append]), all);
        // Once asked for, it holds for the files to come.
        let all = [
            "--hooks-dir=/usr/share/containers/oci/hooks.d",
            "--hooks-dir=/d",
            "--hooks-dir=/c",
            "--hooks-dir=/own",
        ];
        assert_eq!(args(&[append, c]), all);
        assert_eq!(args(&["[engine]\nhooks_dir = []\n"]), ["--hooks-dir=/own"]);
    }

    #[test]
    fn settings_that_are_not_understood_are_refused() {
        for text in [
            "[engine",
            "[engine]\nhooks_dir = '/a'\n",
            "[engine]\nhooks_dir = [1]\n",
        ] {
            assert!(hooks_dir_args(Path::new("/own"), [text]).is_err(), "{text}");
        }
    }
}
