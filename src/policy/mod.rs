//! Config and session state -> what is allowed. No I/O.

pub(crate) mod address;
pub(crate) mod decide;
pub(crate) mod egress;
pub(crate) mod egress_change;
pub(crate) mod egress_rules;
pub(crate) mod grants;
pub(crate) mod masks;
pub(crate) mod mounts;
pub(crate) mod url;
pub(crate) mod worktree;
