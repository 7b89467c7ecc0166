//! podman: what is asked of it, and how it is called.

use std::fmt;

/// Why podman could not do what was asked.
#[derive(Debug)]
pub(crate) enum PodmanError {
    Placeholder,
}

impl PodmanError {
    pub(crate) fn hint(&self) -> Option<String> {
        None
    }
}

impl fmt::Display for PodmanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("podman")
    }
}
