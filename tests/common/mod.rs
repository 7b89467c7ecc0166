//! What the black-box tests share.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod home;
pub(crate) mod stand_in;
