//! The text of one configuration file, for errors that name file, line and
//! key. Pure.

use std::path::Path;

use toml::Spanned;

use crate::config::{ConfigError, wording};

#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

impl Source<'_> {
    /// A value that passed `check`, or an error that names `key`.
    pub(super) fn check<T, U>(
        &self,
        key: &str,
        raw: Spanned<T>,
        check: impl FnOnce(T) -> Result<U, String>,
    ) -> Result<U, ConfigError> {
        let at = raw.span().start;
        check(raw.into_inner()).map_err(|message| self.error(at, key, message))
    }

    pub(super) fn syntax_error(&self, error: &toml::de::Error) -> ConfigError {
        let span = error.span().unwrap_or_default();
        let at = span.start;
        let key = key_of(error).unwrap_or_else(|| self.key_before(at));
        let written = self.text.get(span).unwrap_or_default();
        let message = wording::plain(error.message(), &key, written);
        ConfigError::Syntax {
            path: self.path.to_owned(),
            line: self.line(at),
            message: match key.is_empty() {
                true => message,
                false => format!("{key}: {message}"),
            },
        }
    }

    /// The word before the `=` on the line of a value.
    fn key_before(&self, at: usize) -> String {
        let before = self.text.get(..at).unwrap_or_default();
        let line = before.rsplit('\n').next().unwrap_or_default();
        let key = line.split_once('=').map(|(key, _)| key.trim().to_owned());
        key.unwrap_or_default()
    }

    pub(super) fn error(&self, at: usize, key: &str, message: String) -> ConfigError {
        ConfigError::Value {
            path: self.path.to_owned(),
            line: self.line(at),
            key: key.to_owned(),
            message,
        }
    }

    pub(super) fn line(&self, at: usize) -> usize {
        self.text
            .bytes()
            .take(at)
            .filter(|byte| *byte == b'\n')
            .count()
            + 1
    }
}

/// The path of the key, which an error tells only where it has no text to show.
fn key_of(error: &toml::de::Error) -> Option<String> {
    let mut error = error.clone();
    error.set_input(None);
    let shown = error.to_string();
    let last = shown.lines().last()?.strip_prefix("in `")?;
    last.strip_suffix('`').map(str::to_owned)
}
