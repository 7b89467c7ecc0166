//! Config and session state -> what is allowed. No I/O.

// Used from the gateway on.
#[allow(dead_code)]
pub(crate) mod egress;
pub(crate) mod grants;
pub(crate) mod masks;
pub(crate) mod mounts;
pub(crate) mod worktree;
