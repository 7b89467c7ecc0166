//! The corner where the operating system is touched directly: the only
//! modules that may hold unsafe code.

pub(crate) mod fdpass;
pub(crate) mod terminal;
