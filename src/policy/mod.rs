//! Config and session state -> what is allowed. No I/O.

pub(crate) mod mounts;
