//! HTTP/1.1 on both sides: heads, bodies, and who is meant. Pure.

pub(crate) mod authority;
pub(crate) mod body;
pub(crate) mod fields;
pub(crate) mod head;
pub(crate) mod rewrite;
