//! The packets between the control plane and pid 1. What is understood is
//! written and understood the same.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

use crate::init::wire::{FromInit, ToInit, parse};

pub(super) fn init(input: &[u8]) {
    match parse(input) {
        Ok(order) => assert_eq!(parse(&written(&order)), Ok(order)),
        // An order that cannot be read is answered with the id that it has.
        Err(unreadable) => {
            assert_eq!(serde_json::from_slice::<ToInit>(input).is_ok(), false);
            assert!(
                unreadable.id.is_none()
                    || input.starts_with(b"{")
                    || input[0].is_ascii_whitespace()
            );
        }
    }
    survives::<FromInit>(input);
}

pub(super) fn survives<T: Serialize + DeserializeOwned + PartialEq + Debug>(input: &[u8]) {
    if let Ok(value) = serde_json::from_slice::<T>(input) {
        let again: T = serde_json::from_slice(&written(&value)).expect("it reads back");
        assert_eq!(again, value);
    }
}

pub(super) fn written(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("it can be written")
}
