//! Config and session state -> what is allowed. No I/O.

pub(crate) mod address;
pub(crate) mod decide;
pub(crate) mod egress;
pub(crate) mod masks;
pub(crate) mod mounts;
