//! Drives the real umwelt-ctl against a stand-in control plane and podman.

#[path = "../common/control_plane.rs"]
mod control_plane;
mod exec;
mod home;
mod shell;
mod status;
mod stop;
