//! Config and session state -> what is allowed. No I/O.

pub(crate) mod masks;
pub(crate) mod mounts;
