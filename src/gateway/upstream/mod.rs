//! The way to servers: names resolved and addresses judged, connections
//! opened, verified and kept for the next request.

pub(crate) mod dial;
pub(crate) mod link;
pub(crate) mod pool;
