//! What can be granted, and what cannot.

use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use serde_json::json;

use crate::podman_common::{Options, host, sandbox::Place};
use crate::{
    MASKED, fails, grant, granted, granted_file, is, listed, masked_place, place, refusal, revoked,
    start, write,
};

#[test]
fn directory_can_be_read_or_written_as_granted_and_is_gone_after_revoke() {
    if !host::qualifies() {
        return;
    }
    let place = Place::new(Options::default());
    let (ro, rw) = (place.path().join("a, \"b\": c"), place.path().join("rw"));
    write(&ro.join("file"), "seen\n");
    write(&rw.join("file"), "seen\n");
    let (sandbox, mut client, _) = start(place);
    for dir in [&ro, &rw] {
        fails(&mut client, &format!("ls {dir:?}"));
    }

    let reply = granted(&mut client, &ro, "ro");
    assert_eq!(reply["mode"], "ro", "{reply}");
    granted(&mut client, &rw, "rw");
    assert_eq!(
        client.output(&format!("cat {ro:?}/file {rw:?}/file")),
        "seen\nseen\n"
    );
    for attempt in ["touch", "rm -f", "chmod 777", "mkdir"] {
        fails(&mut client, &format!("{attempt} {ro:?}/file"));
        fails(&mut client, &format!("{attempt} {ro:?}"));
    }
    fails(&mut client, &format!("mount -o remount,rw {ro:?}"));
    client.output(&format!("echo made >{rw:?}/made"));
    let made = rw.join("made");
    assert_eq!(std::fs::read_to_string(&made).unwrap(), "made\n");
    assert_eq!(made.metadata().unwrap().uid(), host::uid());
    assert_eq!(listed(&mut client, &ro), is("ro", "session"));
    assert_eq!(listed(&mut client, &rw), is("rw", "session"));

    for dir in [&ro, &rw] {
        let reply = revoked(&mut client, dir);
        assert_ne!(reply["mode"], "ro", "{reply}");
        fails(&mut client, &format!("cat {dir:?}/file"));
        assert_eq!(listed(&mut client, dir), None);
    }
    assert_eq!(std::fs::read_to_string(&made).unwrap(), "made\n");
    sandbox.end_and_check();
}

#[test]
fn single_file_is_shown_alone_and_read_only() {
    if !host::qualifies() {
        return;
    }
    let place = masked_place();
    let key = place.path().join(MASKED).join("key");
    let (sandbox, mut client, _) = start(place);
    // The mask above hides all but what was granted by its name.
    let reply = granted_file(&mut client, &key);
    assert_eq!(reply["mode"], "ro", "{reply}");
    assert_eq!(client.output(&format!("cat {key:?}")), "secret\n");
    fails(&mut client, &format!("echo x >{key:?}"));
    fails(&mut client, &format!("rm -f {key:?}"));
    let others = format!("ls -A {:?}", key.parent().unwrap());
    assert_eq!(client.output(&others), "key\n");
    revoked(&mut client, &key);
    fails(&mut client, &format!("cat {key:?}"));
    sandbox.end_and_check();
}

#[test]
fn deeper_grants_decide_on_what_is_below_them() {
    if !host::qualifies() {
        return;
    }
    let place = crate::place_with_base();
    for name in ["base/x/y/file", "tree/x/y/file"] {
        write(&place.path().join(name), "seen\n");
    }
    let (sandbox, mut client, dir) = start(place);
    let (base, tree) = (dir.join("base"), dir.join("tree"));
    let writes = |client: &mut crate::Client, path: &Path| {
        client.shell(&format!("touch {path:?}/probe"))["code"] == 0
    };

    // Writable below what the base config shows.
    assert!(!writes(&mut client, &base.join("x")));
    granted(&mut client, &base.join("x"), "rw");
    assert!(writes(&mut client, &base.join("x/y")) && !writes(&mut client, &base));
    // Read-only below that.
    granted(&mut client, &base.join("x/y"), "ro");
    assert!(writes(&mut client, &base.join("x")) && !writes(&mut client, &base.join("x/y")));
    // What is above is granted last, and hides nothing.
    granted(&mut client, &tree.join("x/y"), "rw");
    granted(&mut client, &tree.join("x"), "ro");
    granted(&mut client, &tree, "rw");
    for (path, expected) in [("", true), ("x", false), ("x/y", true)] {
        assert_eq!(writes(&mut client, &tree.join(path)), expected, "{path}");
    }
    revoked(&mut client, &tree.join("x"));
    assert!(writes(&mut client, &tree.join("x")));
    // The base mount comes to light again.
    granted(&mut client, &base, "rw");
    assert!(writes(&mut client, &base));
    revoked(&mut client, &base);
    assert!(!writes(&mut client, &base) && writes(&mut client, &base.join("x")));
    sandbox.end_and_check();
}

#[test]
fn what_the_rules_forbid_is_refused_each_with_its_reason() {
    if !host::qualifies() {
        return;
    }
    let place = place(|path| format!("grant_roots = [{:?}, \"/etc\"]\n", path.join(".")));
    let dir = place.path().canonicalize().unwrap();
    for name in ["file", "dir/file", "project/sub/file", "config/x/file"] {
        write(&dir.join(name), "x");
    }
    let pipe = dir.join("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    std::fs::create_dir(dir.join("live")).unwrap();
    let _listener = UnixListener::bind(dir.join("live/socket")).unwrap();
    symlink(&dir, dir.join("project/link")).unwrap();
    let (sandbox, mut client, _) = start(place);

    let home = host::home();
    let cases: Vec<(String, &str, bool, &str)> = [
        ("/", "ro", false, "outside"),
        ("/etc", "ro", false, "belongs to the system"),
        ("/usr/share", "ro", false, "outside"),
        (home.to_str().unwrap(), "ro", false, "outside"),
        ("missing", "ro", false, "No such file"),
        ("file", "ro", false, "a file"),
        ("file", "rw", true, "only be granted for reading"),
        ("dir", "ro", true, "a directory"),
        ("pipe", "ro", true, "a named pipe"),
        ("live/socket", "ro", true, "a socket"),
        ("live", "rw", false, "stay hidden"),
        ("project", "rw", false, "lies in the workspace"),
        ("project/sub", "ro", false, "lies in the workspace"),
        ("config/umwelt", "ro", false, "umwelt's configuration"),
        (
            "config/umwelt/umwelt.toml",
            "ro",
            true,
            "umwelt's configuration",
        ),
        ("config", "rw", false, "umwelt's configuration"),
        (
            "project/link/dir",
            "ro",
            false,
            "a link that commands inside can change",
        ),
        (
            "dir/../project/link/dir",
            "ro",
            false,
            "a link that commands inside can change",
        ),
        ("a\nb", "ro", false, "one line"),
    ]
    .into_iter()
    .map(|(path, mode, file, why)| {
        let is_whole = path.starts_with('/');
        let path = if is_whole {
            path.to_owned()
        } else {
            format!("{}/{path}", dir.display())
        };
        (path, mode, file, why)
    })
    .collect();
    let before = client.call("list", json!({})).unwrap();
    for (path, mode, file, why) in cases {
        let params = json!({"path": path, "mode": mode, "file": file});
        let said = refusal(client.call("grant", params));
        assert!(said.contains(why), "{path} {mode} {file}: {said}");
    }
    let after = client.call("list", json!({})).unwrap();
    assert_eq!(before["mounts"], after["mounts"]);
    // The rules are not all there is: the same words, and it works.
    granted(&mut client, &dir.join("dir"), "rw");
    granted(&mut client, &dir.join("live"), "ro");
    // Read-only even the whole place, without what is umwelt's in it.
    granted(&mut client, &dir, "ro");
    assert_eq!(client.output(&format!("cat {dir:?}/file")), "x");
    fails(
        &mut client,
        &format!("cat {dir:?}/config/umwelt/umwelt.toml"),
    );
    let connect = format!(
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect({:?})'",
        dir.join("live/socket")
    );
    fails(&mut client, &connect);
    sandbox.end_and_check();
}

#[test]
fn links_of_the_host_are_followed_and_the_answer_says_where() {
    if !host::qualifies() {
        return;
    }
    let place = Place::new(Options::default());
    write(&place.path().join("real/file"), "seen\n");
    symlink("real", place.path().join("link")).unwrap();
    let (sandbox, mut client, dir) = start(place);
    let reply = granted(&mut client, &dir.join("link"), "ro");
    assert_eq!(reply["path"].as_str(), dir.join("real").to_str(), "{reply}");
    assert_eq!(
        client.output(&format!("cat {:?}/file", dir.join("real"))),
        "seen\n"
    );
    // Taken back by either name.
    revoked(&mut client, &dir.join("link"));
    fails(&mut client, &format!("ls {:?}", dir.join("real")));
    sandbox.end_and_check();
}

#[test]
fn mask_stays_in_what_is_granted_above_it() {
    if !host::qualifies() {
        return;
    }
    let place = masked_place();
    write(&place.path().join("masked/open"), "seen\n");
    let (sandbox, mut client, dir) = start(place);
    let above = dir.join("masked");
    let said = refusal(grant(&mut client, &above, "rw"));
    assert!(said.contains("stay hidden"), "{said}");
    let said = refusal(grant(&mut client, &dir.join(MASKED), "ro"));
    assert!(said.contains("stay hidden"), "{said}");
    granted(&mut client, &above, "ro");
    assert_eq!(
        client.output(&format!("cat {above:?}/open; ls -A {above:?}/secret")),
        "seen\n"
    );
    fails(&mut client, &format!("cat {above:?}/secret/key"));
    sandbox.end_and_check();
}
