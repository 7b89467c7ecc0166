//! Rules that have been changed are found by reading back.

use std::io::ErrorKind;

use crate::network::{Services, at, connect};
use crate::world::{NFT, TARGET, World, stderr};

/// What is said after nft commands have changed the table.
fn said_after(commands: &str) -> Option<String> {
    let world = World::new()?;
    world.install();
    let output = world.read_back();
    assert!(output.status.success(), "{output:?}");
    let output = world.sandbox.run(&[NFT, commands]);
    assert!(output.status.success(), "{commands}: {output:?}");
    let output = world.read_back();
    assert_eq!(output.status.code(), Some(1), "{commands}");
    assert!(output.stdout.is_empty(), "{commands}");
    Some(stderr(&output))
}

fn assert_found(commands: &str, expected: &str) {
    let Some(said) = said_after(commands) else {
        return;
    };
    assert!(said.contains(expected), "{commands}: {said}");
}

#[test]
fn an_added_rule_is_found() {
    assert_found(
        "insert rule inet umwelt output accept",
        "rule 1 of chain \"output\"",
    );
    assert_found(
        "add rule inet umwelt input tcp dport 22 accept",
        "rule 3 of chain \"input\"",
    );
}

#[test]
fn missing_rules_are_found() {
    assert_found(
        "flush chain inet umwelt output",
        "rule 1 of chain \"output\" is missing",
    );
    assert_found(
        "flush chain inet umwelt input",
        "rule 1 of chain \"input\" is missing",
    );
}

#[test]
fn a_changed_policy_is_found() {
    assert_found(
        "chain inet umwelt output { policy accept; }",
        "chain \"output\"",
    );
    assert_found(
        "chain inet umwelt forward { policy accept; }",
        "chain \"forward\"",
    );
}

#[test]
fn a_changed_target_is_found() {
    let add = "add element inet umwelt targets4 { 203.0.113.8 . 22 }";
    assert_found(add, "set \"targets4\"");
    let delete = "delete element inet umwelt targets4 { 203.0.113.7 . 22 }";
    assert_found(delete, "set \"targets4\"");
}

#[test]
fn a_table_that_sleeps_or_is_gone_is_found() {
    assert_found("add table inet umwelt { flags dormant; }", "the table is");
    assert_found("delete table inet umwelt", "nft could not list the table");
}

#[test]
fn another_chain_or_object_in_the_table_is_found() {
    assert_found("add chain inet umwelt extra", "chain \"extra\"");
    assert_found("add counter inet umwelt extra", "other objects");
}

#[test]
fn a_second_table_that_accepts_opens_nothing() {
    let Some(world) = World::new() else { return };
    let _services = Services::start(&world.outside, &[at(TARGET, 22), at(TARGET, 23)], &[]);
    world.install();
    // Before and after our chain: a drop is final wherever it falls.
    for (name, priority) in [("before", -100), ("after", 100)] {
        let chain = format!(
            "add table inet {name}; add chain inet {name} c {{ type filter hook output priority {priority}; policy accept; }}; add rule inet {name} c accept"
        );
        let output = world.sandbox.run(&[NFT, &chain]);
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(connect(&world.sandbox, at(TARGET, 22)), Ok(()));
    let refused = Err(ErrorKind::ConnectionRefused);
    assert_eq!(connect(&world.sandbox, at(TARGET, 23)), refused);
    assert!(world.read_back().status.success());
}
