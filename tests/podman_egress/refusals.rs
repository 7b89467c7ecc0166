//! A sandbox that cannot have the network that it asks for is not started.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::podman_common::{host, sandbox::Place};
use crate::world::{Internet, networks, trust};

/// What umwelt-run says; it must fail with exit code 1, and leave nothing.
pub(crate) fn refusal(place: &Place) -> String {
    let before = place.log().len();
    let status = place.spawn().wait().unwrap();
    let said = place.log()[before..].to_owned();
    assert_eq!(status.code(), Some(1), "{said}");
    place.assert_nothing_left();
    assert!(networks(place).is_empty(), "{said}");
    said
}

fn write_program(path: &Path, script: &str) {
    std::fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn incomplete_installation_is_named_with_the_command_that_completes_it() {
    if !host::qualifies() {
        return;
    }
    let internet = Internet::start("refusals");
    let place = internet.place("");
    let data = place.path().join("data/umwelt");
    for name in [
        "install.json",
        "egress/ca.pem",
        "egress/ca.key",
        "egress/bundle.pem",
        "egress/roots.pem",
    ] {
        let (path, aside) = (data.join(name), data.join("aside"));
        std::fs::rename(&path, &aside).unwrap();
        let said = refusal(&place);
        assert!(
            said.contains(name) && said.contains("umwelt-install install"),
            "{said}"
        );
        std::fs::rename(&aside, &path).unwrap();
    }
    // Another authority's certificate: the gateway finds out.
    let path = data.join("egress/ca.pem");
    std::fs::copy(data.join("egress/roots.pem"), &path).unwrap();
    let said = refusal(&place);
    assert!(said.contains("the gateway did not come up"), "{said}");
    assert!(said.contains("umwelt-install install"), "{said}");
}

#[test]
fn rules_that_are_not_in_force_are_no_sandbox() {
    if !host::qualifies() {
        return;
    }
    let internet = Internet::start("hook");
    let place = internet.place("");
    let record = place.path().join("data/umwelt/install.json");
    // Open to all: nft is started without the right to pass private folders.
    let public = tempfile::tempdir().unwrap();
    std::fs::set_permissions(public.path(), Permissions::from_mode(0o755)).unwrap();
    let nft = public.path().join("nft");
    let text = serde_json::json!({"schema": 1, "nft": nft}).to_string();
    std::fs::write(&record, text).unwrap();
    for (script, words) in [
        ("echo 'Error: broken' >&2; exit 1", "Error: broken"),
        ("exit 0", "not understood"),
    ] {
        write_program(&nft, script);
        let said = refusal(&place);
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn tcp_rule_without_an_address_is_refused_at_the_start() {
    if !host::qualifies() {
        return;
    }
    let internet = Internet::start("targets");
    let place = internet.place("[[egress.tcp]]\nhost = \"none.example.org\"\nport = 22\n");
    let said = refusal(&place);
    assert!(
        said.contains("none.example.org") && said.contains("no IPv4 address"),
        "{said}"
    );
    let text = std::fs::read_to_string(place.workspace.join(".umwelt.toml")).unwrap();
    let private = text.replace("none.example.org", "a.example.org");
    std::fs::write(place.workspace.join(".umwelt.toml"), private).unwrap();
    trust(&place);
    let said = refusal(&place);
    assert!(said.contains("private = true"), "{said}");
}
