//! TLS: the client's end, answered with certificates of our own authority, and
//! the upstream's end, verified against the host's roots.

pub(crate) mod authority;
pub(crate) mod hello;
pub(crate) mod leaf;
pub(crate) mod session;
pub(crate) mod upstream;
