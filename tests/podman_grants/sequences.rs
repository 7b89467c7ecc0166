//! Grants after grants, and what is seen in the end.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::json;

use crate::podman_common::{Options, host, sandbox::Place};
use crate::{fails, grant, granted, is, listed, masked_place, refusal, revoked, start, write};

#[test]
fn second_grant_of_a_path_leaves_nothing_of_the_first() {
    if !host::qualifies() {
        return;
    }
    let place = masked_place();
    write(&place.path().join("a/file"), "seen\n");
    let (sandbox, mut client, dir) = start(place);
    let a = dir.join("a");
    granted(&mut client, &a, "rw");
    // Now the container was created with it.
    granted(&mut client, &dir.join("masked"), "ro");
    granted(&mut client, &a, "ro");
    assert_eq!(client.output(&format!("cat {a:?}/file")), "seen\n");
    fails(&mut client, &format!("touch {a:?}/made"));
    revoked(&mut client, &a);
    fails(&mut client, &format!("cat {a:?}/file"));
    fails(&mut client, &format!("test -w {a:?}/file"));
    sandbox.end_and_check();
}

#[test]
fn grant_that_is_persisted_later_stays_where_it_is() {
    if !host::qualifies() {
        return;
    }
    let place = Place::new(Options::default());
    write(&place.path().join("a/file"), "seen\n");
    let (sandbox, mut client, dir) = start(place);
    let a = dir.join("a");
    granted(&mut client, &a, "rw");
    let reply = granted(&mut client, &a, "rw");
    assert_eq!(reply["applied"], "unchanged", "{reply}");
    let notices = reply["notices"].to_string();
    assert!(notices.contains("\"already granted\""), "{reply}");
    let reply = client
        .call("grant", json!({"path": a, "mode": "rw", "persist": true}))
        .unwrap();
    assert_eq!(reply["applied"], "unchanged", "{reply}");
    assert_eq!(reply["persisted"], true, "{reply}");
    assert_eq!(listed(&mut client, &a), is("rw", "persisted"));
    client.output(&format!("touch {a:?}/made"));
    revoked(&mut client, &a);
    fails(&mut client, &format!("cat {a:?}/file"));
    sandbox.end_and_check();
}

#[test]
fn revoke_and_grant_in_one_turn_are_not_taken_for_one() {
    if !host::qualifies() {
        return;
    }
    let place = Place::new(Options::default());
    write(&place.path().join("a/b/file"), "seen\n");
    let (sandbox, mut client, dir) = start(place);
    let (a, b) = (dir.join("a"), dir.join("a/b"));
    granted(&mut client, &a, "ro");
    let first = client.send("revoke", json!({"path": a}));
    let second = client.send("grant", json!({"path": b, "mode": "ro"}));
    client.answer(first).unwrap();
    client.answer(second).unwrap();
    assert_eq!(client.output(&format!("cat {b:?}/file")), "seen\n");
    assert_eq!(listed(&mut client, &a), None);
    assert_eq!(listed(&mut client, &b), is("ro", "session"));
    // Taken back at once, it is granted and gone.
    let first = client.send("grant", json!({"path": a, "mode": "ro"}));
    let second = client.send("revoke", json!({"path": a}));
    client.answer(first).unwrap();
    client.answer(second).unwrap();
    assert_eq!(listed(&mut client, &a), None);
    sandbox.end_and_check();
}

#[test]
fn what_was_made_anew_on_the_host_is_seen_after_a_new_grant() {
    if !host::qualifies() {
        return;
    }
    let place = Place::new(Options::default());
    write(&place.path().join("a/file"), "old\n");
    let (sandbox, mut client, dir) = start(place);
    let a = dir.join("a");
    granted(&mut client, &a, "ro");
    std::fs::rename(&a, dir.join("aside")).unwrap();
    write(&a.join("file"), "new\n");
    granted(&mut client, &a, "ro");
    assert_eq!(client.output(&format!("cat {a:?}/file")), "new\n");
    sandbox.end_and_check();
}

#[test]
fn grant_of_the_file_that_does_not_hold_can_be_revoked() {
    if !host::qualifies() {
        return;
    }
    let place = Place::new(Options::default());
    write(&place.path().join("a/file"), "seen\n");
    let (sandbox, mut client, dir) = start(place);
    let a = dir.join("a");
    client
        .call("grant", json!({"path": a, "mode": "ro", "persist": true}))
        .unwrap();
    let place = sandbox.end_and_keep();
    std::fs::remove_dir_all(&a).unwrap();
    let sandbox = crate::Sandbox::start_at(place);
    let mut client = sandbox.client();
    assert_eq!(listed(&mut client, &a), None);
    let reply = revoked(&mut client, &a);
    assert_eq!(reply["persisted"], true, "{reply}");
    let text = std::fs::read_to_string(sandbox.workspace().join(".umwelt.toml")).unwrap();
    assert!(!text.contains("grants"), "{text}");
    sandbox.end_and_check();
}

#[test]
fn directory_that_turns_into_a_link_while_it_is_judged_is_not_followed() {
    if !host::qualifies() {
        return;
    }
    let place = Place::new(Options::default());
    write(&place.path().join("secret/key"), "secret\n");
    let (sandbox, mut client, dir) = start(place);
    let (path, link) = (
        sandbox.workspace().join("x"),
        sandbox.workspace().join("link"),
    );
    std::fs::create_dir(&path).unwrap();
    symlink(dir.join("secret"), &link).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                renameat_with(CWD, &path, CWD, &link, RenameFlags::EXCHANGE).unwrap();
            }
        });
        for _ in 0..200 {
            drop(refusal(grant(&mut client, &path, "ro")));
        }
        stop.store(true, Ordering::Relaxed);
    });
    fails(&mut client, &format!("cat {:?}/key", dir.join("secret")));
    sandbox.end_and_check();
}

#[test]
fn what_is_run_on_the_host_cannot_be_granted_for_writing() {
    if !host::qualifies() {
        return;
    }
    let mut options = Options::default();
    let programs = host::home().join(format!("tb-{}-programs/bin", std::process::id()));
    std::fs::create_dir_all(&programs).unwrap();
    let path = format!("{}:/usr/bin:/bin", programs.display());
    options.env.push(("PATH", path));
    let (sandbox, mut client, _) = start(Place::new(options));
    let own = std::fs::read_link(format!("/proc/{}/exe", sandbox.pid)).unwrap();
    let above: PathBuf = programs.parent().unwrap().to_owned();
    for (path, why) in [
        (own.parent().unwrap(), "umwelt's own program"),
        (&programs, "entry of PATH"),
        (&above, "entry of PATH"),
    ] {
        let said = refusal(grant(&mut client, path, "rw"));
        assert!(said.contains(why), "{path:?}: {said}");
    }
    granted(&mut client, &programs, "ro");
    sandbox.end_and_check();
    std::fs::remove_dir_all(above).unwrap();
}
