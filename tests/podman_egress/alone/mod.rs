//! With an internet of their own, or with none. Tests run in the order of their
//! names: those of the other modules follow each other, and share one.

mod git;
mod leftovers;
pub(crate) mod refusals;
mod sealed;
