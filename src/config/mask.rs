//! `[[mask]]`: host paths that no sandbox sees. Pure.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A path to hide, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mask {
    pub(crate) target: MaskTarget,
    pub(crate) reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MaskTarget {
    Path(PathBuf),
    /// Whatever in `parent` has a name of the form `prefix*suffix`. Unlike in
    /// a shell, the `*` also stands for a leading dot.
    Pattern {
        parent: PathBuf,
        prefix: String,
        suffix: String,
    },
}

impl MaskTarget {
    /// From an absolute path in normal form: one `*` in the last component
    /// makes it a pattern, and no other `*` is allowed.
    pub(crate) fn parse(path: PathBuf) -> Result<MaskTarget, String> {
        if path == Path::new("/") {
            return Err("\"/\" cannot be hidden".to_owned());
        }
        let name = path.file_name().and_then(OsStr::to_str);
        let parent = path.parent().map(Path::to_owned).unwrap_or_default();
        let pattern = name.and_then(|name| name.split_once('*'));
        let more = pattern.is_some_and(|(_, suffix)| suffix.contains('*'));
        if more || parent.as_os_str().as_encoded_bytes().contains(&b'*') {
            return Err(format!(
                "{path:?}: a \"*\" can stand once, in the last component"
            ));
        }
        Ok(match pattern {
            None => MaskTarget::Path(path),
            Some((prefix, suffix)) => MaskTarget::Pattern {
                prefix: prefix.to_owned(),
                suffix: suffix.to_owned(),
                parent,
            },
        })
    }
}

/// Whether `name` has the form `prefix*suffix`.
pub(crate) fn matches(name: &OsStr, prefix: &str, suffix: &str) -> bool {
    let name = name.as_encoded_bytes();
    name.len() >= prefix.len() + suffix.len()
        && name.starts_with(prefix.as_bytes())
        && name.ends_with(suffix.as_bytes())
}

/// One line of plain text.
pub(crate) fn check_reason(reason: String) -> Result<String, String> {
    let length = reason.chars().count();
    if (1..=200).contains(&length) && !reason.chars().any(char::is_control) {
        Ok(reason)
    } else {
        Err("must be one line of 1 to 200 characters".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_in_the_last_component_makes_a_pattern() {
        let pattern = MaskTarget::parse("/h/.ssh/id_*.pem".into()).unwrap();
        let expected = MaskTarget::Pattern {
            parent: "/h/.ssh".into(),
            prefix: "id_".into(),
            suffix: ".pem".into(),
        };
        assert_eq!(pattern, expected);
        let plain = MaskTarget::parse("/h/.netrc".into()).unwrap();
        assert_eq!(plain, MaskTarget::Path("/h/.netrc".into()));
    }

    #[test]
    fn other_stars_and_the_root_are_refused() {
        for wrong in ["/", "/h/*/x", "/h/**", "/h/a*b*"] {
            assert!(MaskTarget::parse(wrong.into()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn prefix_and_suffix_do_not_overlap() {
        let matches = |name: &str| matches(OsStr::new(name), "aa", "a");
        assert!(matches("aaa") && matches("aa.a") && !matches("aa") && !matches("baa"));
    }
}
