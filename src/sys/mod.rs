//! The corner where the operating system is touched directly: the only
//! modules that may hold unsafe code.

pub(crate) mod cgroup;
pub(crate) mod fdpass;
pub(crate) mod inherit;
pub(crate) mod memory;
pub(crate) mod mount;
pub(crate) mod mountinfo;
pub(crate) mod namespace;
pub(crate) mod open;
pub(crate) mod process;
pub(crate) mod signal;
pub(crate) mod spawn;
pub(crate) mod terminal;
pub(crate) mod user;
