//! The flags of every bind mount, onto one that podman has made without them.
//! Nothing is taken from it, so that it needs no undoing.

use std::os::fd::AsFd;

use crate::attach::namespaces::Container;
use crate::attach::place::PathInside;
use crate::attach::{Obstacle, Restrict};
use crate::sys::mount;

pub(super) fn restrict(container: &Container, wanted: &Restrict) -> Result<(), Obstacle> {
    let path = PathInside::parse(&wanted.path)?;
    container.step_in()?;
    let seen = path
        .open(container.root())
        .map_err(|error| path.not_found(error))?;
    mount::restrict(seen.as_fd(), false).map_err(|error| {
        let path = path.as_str();
        Obstacle::failed(
            format_args!("the flags of the mount at {path:?} cannot be set"),
            error,
        )
    })
}
