//! Config and session state -> what is allowed. No I/O.

pub(crate) mod address;
pub(crate) mod decide;
pub(crate) mod egress;
#[allow(dead_code)]
pub(crate) mod egress_change;
#[allow(dead_code)]
pub(crate) mod egress_rules;
pub(crate) mod grants;
pub(crate) mod masks;
pub(crate) mod mounts;
#[allow(dead_code)]
pub(crate) mod url;
pub(crate) mod worktree;
