//! The hook fails closed: whatever is wrong, it ends without success, and no
//! half of a ruleset is left.

use crate::world::{Holder, Hook, NFT, STATE, World, digest, golden, read_back, stderr};

/// Runs the hook after a change of what it is called with; returns what it
/// said. Nothing may be in place then.
fn said(world: &World, change: impl FnOnce(&mut Hook)) -> String {
    let mut hook = world.hook();
    change(&mut hook);
    let output = hook.run();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty());
    assert!(!world.has_table());
    stderr(&output)
}

#[track_caller]
fn assert_says(said: &str, expected: &str) {
    assert!(said.contains(expected), "{said}");
    let lines = said.lines().filter(|line| !line.starts_with("hint: "));
    assert_eq!(lines.count(), 1, "{said}");
}

#[test]
fn a_state_that_is_missing_half_or_of_a_running_container() {
    let Some(world) = World::new() else { return };
    for state in ["", &STATE[..40], &STATE.replace("created", "running")] {
        let said = said(&world, |hook| hook.state = state.to_owned());
        assert_says(&said, "the container's state on stdin");
    }
}

#[test]
fn an_nft_that_is_missing_or_does_not_do_its_work() {
    let Some(world) = World::new() else { return };
    let gone = said(&world, |hook| hook.nft = "/nonexistent/nft".to_owned());
    assert_says(&gone, "cannot start \"/nonexistent/nft\"");
    let no_program = golden("one-target.json").to_str().unwrap().to_owned();
    assert_says(&said(&world, |hook| hook.nft = no_program), "cannot start");
    let idle = world.stand_in("exit 0");
    assert_says(
        &said(&world, |hook| hook.nft = idle),
        "not understood as JSON of nft",
    );
    let killed = world.stand_in("kill -9 $$");
    assert_says(&said(&world, |hook| hook.nft = killed), "signal: 9");
    let failing = world.stand_in("exit 3");
    assert_says(&said(&world, |hook| hook.nft = failing), "exit status: 3");
}

#[test]
fn an_nft_that_applies_something_else() {
    let Some(world) = World::new() else { return };
    let other = golden("gateway-only.json");
    let script = format!(
        "case $3 in -) exec {NFT} -j -f {} ;; *) exec {NFT} \"$@\" ;; esac",
        other.to_str().unwrap()
    );
    let mut hook = world.hook();
    hook.nft = world.stand_in(&script);
    let output = hook.run();
    assert_eq!(output.status.code(), Some(1));
    assert_says(&stderr(&output), "set \"targets4\" is");
}

#[test]
fn a_ruleset_that_is_another_half_or_gone() {
    let Some(world) = World::new() else { return };
    let other = said(&world, |hook| hook.ruleset = golden("gateway-only.json"));
    assert_says(&other, "is not the one that was meant");
    let gone = said(&world, |hook| hook.ruleset = world.path("gone"));
    assert_says(&gone, "cannot be opened");
    let half = world.path("half");
    let text = std::fs::read(golden("one-target.json")).unwrap();
    std::fs::write(&half, &text[..text.len() / 2]).unwrap();
    let half_text = said(&world, |hook| {
        hook.digest = digest(&half);
        hook.ruleset.clone_from(&half);
    });
    assert_says(&half_text, "is none: not understood as JSON of nft");
}

#[test]
fn rules_of_which_one_is_invalid_are_not_applied_at_all() {
    let Some(world) = World::new() else { return };
    let text = std::fs::read_to_string(golden("one-target.json")).unwrap();
    let path = world.path("invalid");
    std::fs::write(
        &path,
        text.replace("\"admin-prohibited\"", "\"no-such-code\""),
    )
    .unwrap();
    let said = said(&world, |hook| {
        hook.digest = digest(&path);
        hook.ruleset.clone_from(&path);
    });
    assert_says(&said, "nft could not apply the ruleset");
}

#[test]
fn a_table_that_is_there_already() {
    let Some(world) = World::new() else { return };
    world.sandbox.must(&format!("{NFT} add table inet umwelt"));
    let output = world.hook().run();
    assert_eq!(output.status.code(), Some(1));
    assert_says(&stderr(&output), "nft could not apply the ruleset");
    world
        .sandbox
        .must(&format!("{NFT} delete table inet umwelt"));
    world.install();
}

#[test]
fn networks_that_are_not_the_containers() {
    let Some(world) = World::new() else { return };
    // Never the network of this machine: were the check to break, the rules
    // would be in force there.
    let places: [(&[&str], &str); 2] = [
        // As if the runtime ran it on the host.
        (
            &["unshare", "--net"],
            "there is no container around this process",
        ),
        // As with --network=host.
        (
            &["unshare", "--net", "unshare", "--user", "--map-root-user"],
            "it does not belong to the container",
        ),
    ];
    for (before, expected) in places {
        let before = before.iter().map(|word| (*word).to_owned()).collect();
        let output = Hook::new(before, &golden("one-target.json")).run();
        assert_eq!(output.status.code(), Some(1), "{expected}");
        assert_says(&stderr(&output), expected);
    }
    // A user namespace inside of the container's.
    let mut hook = world.hook();
    hook.before
        .extend(["unshare", "--user", "--map-root-user"].map(str::to_owned));
    let output = hook.run();
    assert_eq!(output.status.code(), Some(1));
    assert_says(&stderr(&output), "it does not belong to the container");
    assert!(!world.has_table());
}

#[test]
fn read_back_refuses_the_hosts_network_and_a_missing_pidfd() {
    let Some(_world) = World::new() else { return };
    let on_host = Holder::start(&["env"]);
    let ruleset = golden("one-target.json");
    let output = read_back(env!("CARGO_BIN_EXE_umwelt"), &[], &on_host, &ruleset);
    assert_eq!(output.status.code(), Some(1));
    assert_says(&stderr(&output), "it is the one of the host");
    let mut hook = std::process::Command::new(env!("CARGO_BIN_EXE_umwelt"));
    hook.args([
        "nft-hook",
        "--read-back",
        "--digest",
        "d",
        "--nft",
        NFT,
        "--ruleset",
    ]);
    let output = hook.arg(&ruleset).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_says(&stderr(&output), "descriptor 3");
}
