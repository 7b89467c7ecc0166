//! The base config -> `session_prefix` alone, for what must work whatever else
//! stands in the file.

use std::path::Path;

use crate::config::base::{Config, check_prefix};
use crate::config::{ConfigError, file};
use crate::dirs::Dirs;

const KEY: &str = "session_prefix";
/// What the shipped file says.
const DEFAULT: &str = "umwelt";

/// The prefix, as far as the file can be read, and what is wrong with the file.
pub(crate) fn session_prefix(dirs: &Dirs) -> (String, Option<ConfigError>) {
    match Config::load(dirs) {
        Ok(config) => (config.session_prefix, None),
        Err(error) => (written(&dirs.base_config()), Some(error)),
    }
}

fn written(path: &Path) -> String {
    let text = file::load(path).ok().flatten().unwrap_or_default();
    in_text(&text).unwrap_or_else(|| DEFAULT.to_owned())
}

/// Of a text that is not TOML, the line alone that has the key.
fn in_text(text: &str) -> Option<String> {
    let of = |text: &str| {
        let table: toml::Table = toml::from_str(text).ok()?;
        let prefix = table.get(KEY)?.as_str()?.to_owned();
        check_prefix(prefix).ok()
    };
    let above_tables = || {
        let lines = text.lines().map(str::trim);
        lines.take_while(|line| !line.starts_with('['))
    };
    let mut lines = above_tables().filter(|line| line.starts_with(KEY));
    of(text).or_else(|| of(lines.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_is_read_from_a_file_that_is_wrong_elsewhere() {
        for text in [
            "session_prefix = \"mine\"\n[resources]\nmemry = \"4g\"\n",
            "image = \n  session_prefix = 'mine' # me\n[resources]\n",
            "session_prefix = \"mine\"\n[resources\n",
        ] {
            assert_eq!(in_text(text).as_deref(), Some("mine"), "{text}");
        }
        for text in [
            "image = \n",
            "session_prefix = \"Mine\"\n",
            "session_prefix = 1\n",
            "image = \n[x]\nsession_prefix = \"mine\"\n",
        ] {
            assert_eq!(in_text(text), None, "{text}");
        }
    }

    #[test]
    fn default_is_that_of_the_shipped_file() {
        let shipped = crate::config::SHIPPED;
        assert_eq!(in_text(shipped).as_deref(), Some(DEFAULT));
    }
}
