//! Grants and revokes in a real sandbox: what becomes visible and what does
//! not, by each rule both ways. Where podman cannot run, nothing is tested.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

#[path = "../podman_common/mod.rs"]
mod podman_common;
#[path = "../podman_lifecycle/wrapper.rs"]
#[allow(dead_code)]
mod wrapper;

mod changes;
mod live;
mod persisted;
mod rules;
mod sequences;

use std::path::{Path, PathBuf};

use podman_common::sandbox::{CONFIG, Place};
use podman_common::{Client, Options, Sandbox};
use serde_json::{Value, json};

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// A place whose base config begins with `first`.
fn place(first: impl Fn(&Path) -> String) -> Place {
    let place = Place::new(Options::default());
    let config = format!("{}{CONFIG}", first(place.path()));
    write(&place.path().join("config/umwelt/umwelt.toml"), &config);
    place
}

/// A place where `base` is shown to every sandbox.
fn place_with_base() -> Place {
    let place = Place::new(Options::default());
    let base = place.path().join("base");
    let config = format!("{CONFIG}[[mounts]]\ntype = \"bind\"\npath = {base:?}\n");
    write(&place.path().join("config/umwelt/umwelt.toml"), &config);
    place
}

/// With one mask over `place/MASKED`.
const MASKED: &str = "masked/secret";

fn masked_place() -> Place {
    let place = Place::new(Options::default());
    let mask = place.path().join(MASKED);
    write(&mask.join("key"), "secret\n");
    let config = format!("{CONFIG}[[mask]]\npath = {mask:?}\n");
    write(&place.path().join("config/umwelt/umwelt.toml"), &config);
    place
}

fn grant(client: &mut Client, path: &Path, mode: &str) -> Result<Value, Value> {
    client.call("grant", json!({"path": path, "mode": mode}))
}

fn granted(client: &mut Client, path: &Path, mode: &str) -> Value {
    grant(client, path, mode).unwrap_or_else(|error| panic!("{path:?} {mode}: {error}"))
}

fn granted_file(client: &mut Client, path: &Path) -> Value {
    let params = json!({"path": path, "mode": "ro", "file": true});
    client
        .call("grant", params)
        .unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

fn revoked(client: &mut Client, path: &Path) -> Value {
    client
        .call("revoke", json!({"path": path}))
        .unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

/// What the refusal says.
fn refusal(answer: Result<Value, Value>) -> String {
    let error = answer.expect_err("a refusal");
    assert_eq!(error["kind"], "refused", "{error}");
    error["message"].as_str().unwrap().to_owned()
}

fn fails(client: &mut Client, command: &str) {
    let result = client.shell(command);
    assert_ne!(result["code"], 0, "{command}: {result}");
}

/// The mode and the source of a path, as `list` has it.
fn listed(client: &mut Client, path: &Path) -> Option<(String, String)> {
    let list = client.call("list", json!({})).unwrap();
    let mounts = list["mounts"].as_array().unwrap();
    let entry = mounts
        .iter()
        .find(|mount| mount["path"].as_str() == path.to_str())?;
    let text = |key: &str| entry[key].as_str().unwrap().to_owned();
    Some((text("mode"), text("source")))
}

fn is(mode: &str, source: &str) -> Option<(String, String)> {
    Some((mode.to_owned(), source.to_owned()))
}

fn start(place: Place) -> (Sandbox, Client, PathBuf) {
    let path = place.path().canonicalize().unwrap();
    let sandbox = Sandbox::start_at(place);
    let client = sandbox.client();
    (sandbox, client, path)
}
