//! The text of one configuration file, for errors that name file, line and
//! key. Pure.

use std::path::Path;

use toml::Spanned;

use crate::config::ConfigError;

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
        let at = error.span().map_or(0, |span| span.start);
        let message = error.message().trim().replace('\n', "; ");
        // serde does not tell the key of a value of the wrong type; it stands
        // before it on its line.
        let before = self.text.get(..at).unwrap_or_default();
        let line = before.rsplit('\n').next().unwrap_or_default();
        let key = line
            .split_once('=')
            .map(|(key, _)| format!("{}: ", key.trim()));
        ConfigError::Syntax {
            path: self.path.to_owned(),
            line: self.line(at),
            message: format!("{}{message}", key.unwrap_or_default()),
        }
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
