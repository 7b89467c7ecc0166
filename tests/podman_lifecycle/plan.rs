//! What `umwelt-ctl plan` says, beside what a start makes.

use serde_json::{Value, json};

use crate::podman_common::host;
use crate::podman_common::sandbox::Place;
use crate::run::Run;
use crate::traces::{assert_gone, traces};
use crate::wrapper::place_with;

fn plan(place: &Place) -> Value {
    let mut command = place.applet("umwelt-ctl");
    let output = command.args(["plan", "--json"]).arg(place.asked()).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn plan_is_what_podman_is_called_with_and_leaves_no_trace() {
    if !host::qualifies() {
        return;
    }
    let record = r#"*) printf '%s\0' "$word" >>"$here/called"; keep "$word" ;;"#;
    let place = place_with("run", record);
    let planned = plan(&place);
    assert_eq!(traces(&place), Vec::<String>::new());
    assert!(!place.path().join("state").exists());
    assert!(!place.path().join("called").exists());

    let mut run = Run::ready(&place);
    let called = std::fs::read_to_string(place.path().join("called")).unwrap();
    let called: Vec<&str> = called.split_terminator('\0').collect();
    assert_eq!(planned["argv"][0], "podman");
    assert_eq!(
        json!(planned["argv"].as_array().unwrap()[1..]),
        json!(called)
    );
    let list = run.client().call("list", json!({})).unwrap();
    for key in ["workspace", "mounts", "resources", "network"] {
        assert_eq!(planned[key], list[key], "{key}");
    }
    // It is the same while the sandbox runs, which goes on.
    assert_eq!(plan(&place)["argv"], planned["argv"]);
    assert_eq!(run.client().output("echo works"), "works\n");
    run.stop();
    assert_gone(&place);
}
