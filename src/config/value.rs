//! Single values of a configuration file. Pure.

use std::path::{Component, Path, PathBuf};

/// `512m`, `4g`, `65536`: bytes, with the suffixes of podman (powers of 1024).
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size; write it like \"512m\" or \"4g\"");
    let lower = text.to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match lower.get(digits.len()..) {
        Some("" | "b") => 0,
        Some("k") => 10,
        Some("m") => 20,
        Some("g") => 30,
        Some("t") => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// An absolute path in normal form; a leading `$HOME` is expanded.
pub(crate) fn expand_path(text: &str, home: &Path) -> Result<PathBuf, String> {
    let path = match text.strip_prefix("$HOME") {
        Some("") => home.to_owned(),
        Some(rest) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
        _ if text.starts_with('$') => return Err(format!("{text:?}: only $HOME is expanded")),
        _ if text.starts_with('~') => return Err(format!("{text:?}: write $HOME in place of ~")),
        _ => PathBuf::from(text),
    };
    if !path.is_absolute() {
        return Err(format!("{text:?} is not an absolute path"));
    }
    if text.contains(['\n', '\0']) {
        return Err(format!("{text:?} contains a newline or NUL"));
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(format!("{text:?} contains \"..\""));
    }
    Ok(path.components().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_suffixes_of_podman() {
        assert_eq!(parse_size("65536"), Ok(65536));
        assert_eq!(parse_size("512m"), Ok(512 << 20));
        assert_eq!(parse_size("4G"), Ok(4 << 30));
        for wrong in ["", "m", "-1", "1.5g", "4gb", "99999999999g", "1 g", "é"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_home_is_expanded() {
        let home = Path::new("/home/u");
        assert_eq!(
            expand_path("$HOME/dev/", home).unwrap(),
            Path::new("/home/u/dev")
        );
        assert_eq!(expand_path("$HOME", home).unwrap(), home);
        assert_eq!(
            expand_path("/tmp//x/./y", home).unwrap(),
            Path::new("/tmp/x/y")
        );
        for wrong in [
            "~/x",
            "$XDG_DATA_HOME/x",
            "$HOMEx",
            "x",
            "",
            "/a/../b",
            "/a\nb",
        ] {
            assert!(expand_path(wrong, home).is_err(), "{wrong}");
        }
    }
}
