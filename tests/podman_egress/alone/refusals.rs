//! A sandbox that cannot have the network that it asks for is not started.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::podman_common::{Sandbox, host, sandbox::Place};
use crate::world::{Internet, networks, trust};

const INSTALL: &str = "umwelt-install install";

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
    let internet = Internet::nobody();
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
        assert!(said.contains(name) && said.contains(INSTALL), "{said}");
        std::fs::rename(&aside, &path).unwrap();
    }
    let key = data.join("egress/ca.key");
    std::fs::set_permissions(&key, Permissions::from_mode(0o000)).unwrap();
    let said = refusal(&place);
    assert!(said.contains("ca.key") && said.contains(INSTALL), "{said}");
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    let record = data.join("install.json");
    let good = std::fs::read(&record).unwrap();
    std::fs::write(&record, r#"{"schema": 1, "nft": "/nowhere/nft"}"#).unwrap();
    let said = refusal(&place);
    assert!(
        said.contains("/nowhere/nft") && said.contains(INSTALL),
        "{said}"
    );
    std::fs::write(&record, good).unwrap();
    // Another authority's certificate: the gateway finds out.
    let path = data.join("egress/ca.pem");
    std::fs::copy(data.join("egress/roots.pem"), &path).unwrap();
    let said = refusal(&place);
    assert!(said.contains("the gateway did not come up"), "{said}");
    assert!(said.contains(INSTALL), "{said}");
}

/// A podman that is asked for something else than umwelt asks for, so that it
/// fails as it does where that is so.
const WRAPPER: &str = r#"here=$(dirname "$(dirname "$0")")
PATH=${PATH//"$here/bin:"/}
case $(cat "$here/broken") in
    image) set -- "${@/umwelt-egress-gw:latest/umwelt-egress-none:latest}" ;;
    network) [[ "$1 $2" != "network create" ]] || set -- "$@" --driver=nowhere ;;
    hook)
        for word; do
            [[ $word != --hooks-dir=/run/* ]] ||
                sed -i "s|\"path\": .*|\"path\": \"$(cat "$here/program")\",|" "${word#*=}"/umwelt-nft.json
        done ;;
esac
exec podman "$@""#;

#[test]
fn what_podman_cannot_make_is_named_with_the_command_that_makes_it() {
    if !host::qualifies() {
        return;
    }
    let internet = Internet::nobody();
    let mut place = internet.place("");
    let path = |name: &str| place.path().join(name);
    std::fs::create_dir(path("bin")).unwrap();
    std::fs::write(path("bin/podman"), format!("#!/bin/bash\n{WRAPPER}\n")).unwrap();
    std::fs::set_permissions(path("bin/podman"), Permissions::from_mode(0o755)).unwrap();
    std::fs::write(path("file"), "no program").unwrap();
    let (file, bin) = (path("file"), path("bin"));
    let search = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    place.options.env.push(("PATH", search));
    let nowhere = Path::new("/nowhere/umwelt");
    for (broken, program, words) in [
        ("image", nowhere, "umwelt-egress-gw:latest\" does not exist"),
        ("network", nowhere, "nowhere"),
        // podman says nothing of a hook that is gone, and starts the container.
        ("hook", nowhere, "rules are not in force"),
        ("hook", &file, "rules could not be put in force"),
    ] {
        std::fs::write(place.path().join("broken"), broken).unwrap();
        let text = program.to_str().unwrap();
        std::fs::write(place.path().join("program"), text).unwrap();
        let said = refusal(&place);
        assert!(said.contains(words) && said.contains(INSTALL), "{said}");
    }
    // Without all this the same place starts.
    std::fs::write(place.path().join("broken"), "nothing").unwrap();
    Sandbox::start_at(place).end_and_check();
}

#[test]
fn rules_that_are_not_in_force_are_no_sandbox() {
    if !host::qualifies() {
        return;
    }
    let internet = Internet::nobody();
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
    let internet = Internet::nobody();
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
