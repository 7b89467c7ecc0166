//! Masks in a real sandbox: what they hide, by every way that leads there, and
//! that nothing of it changes the host. Where podman cannot run, nothing is
//! tested.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

mod podman_common;

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use podman_common::sandbox::{CONFIG, Place};
use podman_common::{Client, Options, PATIENCE, Sandbox, host, wait_for};
use serde_json::{Value, json};

/// In every file that no sandbox may show.
const SECRET: &str = "secret-7d0e";
const SHIPPED: &str = include_str!("../share/umwelt.toml");

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn secret(path: &Path) {
    write(path, SECRET);
}

fn configure(place: &Place, text: &str) {
    write(&place.path().join("config/umwelt/umwelt.toml"), text);
}

fn mask(path: &Path) -> String {
    format!("[[mask]]\npath = {path:?}\nreason = \"a test\"\n")
}

fn bind(path: &Path) -> String {
    format!("[[mounts]]\ntype = \"bind\"\npath = {path:?}\n")
}

/// Inode, mode and size of everything in `dir`, but for what umwelt writes,
/// and podman's cache.
fn listing(dir: &Path) -> BTreeMap<PathBuf, (u64, u32, u64)> {
    let mut found = BTreeMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let own = ["log", "state", ".cache"];
            if own.iter().any(|name| path.ends_with(name)) {
                continue;
            }
            let metadata = path.symlink_metadata().unwrap();
            if metadata.is_dir() {
                left.push(path.clone());
            }
            // The size of a directory depends on its history.
            let size = if metadata.is_dir() {
                0
            } else {
                metadata.size()
            };
            found.insert(path, (metadata.ino(), metadata.mode(), size));
        }
    }
    found
}

/// Files inside, below `dir`, that can be read and hold the secret.
fn showing_secrets(client: &mut Client, dir: &Path) -> Vec<String> {
    let result = client.shell(&format!("grep -rlaI -D skip {SECRET} {dir:?} 2>/dev/null"));
    let output = result["output"].as_str().unwrap();
    output.lines().map(str::to_owned).collect()
}

fn assert_fails(client: &mut Client, command: &str) {
    let result = client.shell(command);
    assert_ne!(result["code"], 0, "{command}: {result}");
    let output = result["output"].as_str().unwrap();
    assert!(!output.contains(SECRET), "{command}: {result}");
}

/// A tree with something to hide in every place, and a workspace in it.
fn tree() -> Place {
    let place = Place::new(Options {
        workspace: "base/project".into(),
        asked: Some("alias".into()),
        ..Options::default()
    });
    let base = place.path().join("base");
    for path in [
        "dir/key",
        "dir/deep/er/key",
        "file",
        "target/key",
        "keys/id_a",
        "keys/id_b",
        "part/hidden",
        "project/.env",
        "project/sub/token",
        "odd, \"name\"/key",
    ] {
        secret(&base.join(path));
    }
    write(&base.join("keys/config"), "seen\n");
    write(&base.join("part/shown/file"), "seen\n");
    write(&base.join("project/code"), "seen\n");
    symlink("base/project", place.path().join("alias")).unwrap();
    symlink("base/target", place.path().join("link")).unwrap();
    let masks = [
        "base/dir",
        "base/file",
        "link",
        "base/keys/id_*",
        "base/part",
        "base/project/.env",
        "base/project/sub/token",
        "base/odd, \"name\"",
        "base/absent",
        "base/absent/below",
    ];
    let masks: String = masks
        .iter()
        .map(|path| mask(&place.path().join(path)))
        .collect();
    let binds = bind(place.path()) + &bind(&base.join("part/shown"));
    configure(&place, &format!("{CONFIG}{binds}{masks}"));
    place
}

#[test]
fn masked_paths_are_hidden_whatever_way_leads_there() {
    if !host::qualifies() {
        return;
    }
    let place = tree();
    let base = place.path().join("base");
    let sockets = [base.join("live"), base.join("project/live")];
    let _listeners = sockets
        .each_ref()
        .map(|path| UnixListener::bind(path).unwrap());
    let before = listing(place.path());
    let sandbox = Sandbox::start_at(place);
    let place = &sandbox.place;
    let mut client = sandbox.client();

    assert_eq!(showing_secrets(&mut client, place.path()), [""; 0]);
    let shown = format!("cd {base:?} && cat keys/config part/shown/file project/code");
    assert_eq!(client.output(&shown), "seen\nseen\nseen\n");
    assert_eq!(client.output(&format!("ls -A {base:?}/dir | wc -l")), "0\n");
    let ways = [
        "base/dir/key",
        "base/part/../dir/key",
        "base/part/hidden",
        "link/key",
        "base/target/key",
        "base/keys/id_a",
        "alias/.env",
        "alias/sub/token",
        "base/project/.env",
        "base/odd, \"name\"/key",
        "config/umwelt/umwelt.toml",
    ];
    for way in ways.map(|way| place.path().join(way)) {
        assert_fails(&mut client, &format!("cat {way:?}"));
        assert_fails(&mut client, &format!("cat /proc/self/root{way:?}"));
    }
    for attempt in [
        "rm -f .env",
        "mv .env x",
        "ln .env x && cat x",
        "echo x >.env",
        "rmdir ../dir",
        "touch ../dir/x",
        "touch ../part/x",
        "umount .env",
        // The cover goes along.
        "mv sub moved && cat moved/token; r=$?; mv moved sub; exit $r",
    ] {
        assert_fails(&mut client, attempt);
    }
    for socket in &sockets {
        let connect = format!("import socket; socket.socket(socket.AF_UNIX).connect({socket:?})");
        assert_fails(&mut client, &format!("python3 -c '{connect}'"));
    }
    assert_list_names_them(&mut client, place.path());
    assert_eq!(listing(place.path()), before);

    recreated_after_changes(&sandbox, &before);
    sandbox.end_and_check();
}

fn assert_list_names_them(client: &mut Client, place: &Path) {
    let list = client.call("list", json!({})).unwrap();
    let mounts = list["mounts"].as_array().unwrap();
    let entry = |path: &str| {
        let path = place.join(path);
        mounts
            .iter()
            .find(|entry| Some(entry["path"].as_str().unwrap()) == path.to_str())
    };
    for path in ["base/dir", "base/target", "base/keys/id_a", "alias/.env"] {
        let entry = entry(path).unwrap_or_else(|| panic!("{path} in {list}"));
        let told = (&entry["mode"], &entry["source"], &entry["reason"]);
        let expected = json!(["masked", "base", "a test"]);
        assert_eq!(told, (&expected[0], &expected[1], &expected[2]), "{path}");
    }
    assert!(entry("base/absent").is_none(), "{list}");
    assert_eq!(entry("base/part/shown").unwrap()["mode"], "ro");
    assert!(
        entry("base/live").unwrap()["reason"]
            .to_string()
            .contains("socket")
    );
}

/// What has come is hidden in the next container, and what has gone is not
/// made again.
fn recreated_after_changes(sandbox: &Sandbox, before: &BTreeMap<PathBuf, (u64, u32, u64)>) {
    let base = sandbox.place.path().join("base");
    secret(&base.join("absent/below"));
    std::fs::remove_file(base.join("project/.env")).unwrap();
    std::fs::remove_file(base.join("file")).unwrap();
    let changed = listing(sandbox.place.path());
    assert_ne!(&changed, before);
    let first = sandbox.init_pid();
    let pid = rustix::process::Pid::from_raw(first.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    wait_for("the next container", PATIENCE, || {
        let status = sandbox.status();
        let next = status["init_pid"]
            .as_u64()
            .is_some_and(|pid| pid != u64::from(first));
        (status["state"] == "ready" && next).then_some(())
    });
    let mut client = sandbox.client();
    assert_eq!(showing_secrets(&mut client, sandbox.place.path()), [""; 0]);
    assert_fails(&mut client, "ls .env ../file");
    assert_eq!(listing(sandbox.place.path()), changed);
}

/// The shipped text, in a home that has all the places that it names. The
/// whole home is bound, so that nothing but the masks hides them.
#[test]
fn shipped_masks_hide_what_they_name_in_a_home() {
    if !host::qualifies() {
        return;
    }
    let place = Place::new(Options {
        workspace: "home/dev/project".into(),
        ..Options::default()
    });
    let home = place.path().join("home");
    // The user's own home cannot be bound: another directory stands for it.
    let text = SHIPPED
        .replace(
            "session_prefix = \"umwelt\"",
            "session_prefix = \"umwelt-test\"",
        )
        .replace("$HOME", home.to_str().unwrap());
    configure(&place, &format!("{text}\n{}", bind(&home)));

    let masked = SHIPPED.split("[[mask]]").skip(1).map(|entry| {
        let path = entry.split('"').nth(1).unwrap();
        home.join(path.strip_prefix("$HOME/").unwrap().replace('*', "-x"))
    });
    let masked: Vec<PathBuf> = masked.collect();
    assert!(masked.len() > 50);
    for (index, path) in masked.iter().enumerate() {
        // Files and directories in turn.
        secret(
            &path
                .join(["", "below/file"][index % 2])
                .components()
                .collect::<PathBuf>(),
        );
    }
    for seen in [
        ".config/git/config",
        ".config/nvim/init.lua",
        ".gitconfig",
        "dev/x",
    ] {
        write(&home.join(seen), "seen\n");
    }
    let before = listing(place.path());

    let sandbox = Sandbox::start_at(place);
    let mut client = sandbox.client();
    assert_eq!(showing_secrets(&mut client, &home), [""; 0]);
    let shown = format!("cd {home:?} && cat .config/nvim/init.lua .gitconfig dev/x");
    assert_eq!(client.output(&shown), "seen\nseen\nseen\n");
    assert_fails(&mut client, &format!("touch {home:?}/.config/x"));
    let list = client.call("list", json!({})).unwrap();
    for path in &masked {
        let mounts = list["mounts"].as_array().unwrap();
        let entry = mounts
            .iter()
            .find(|entry| entry["path"] == path.to_str().unwrap());
        let entry = entry.unwrap_or_else(|| panic!("{path:?} in {list}"));
        assert_eq!(entry["mode"], "masked", "{entry}");
        assert_ne!(entry["reason"], Value::Null, "{entry}");
    }
    assert_eq!(listing(sandbox.place.path()), before);
    sandbox.end_and_check();
}

/// A podman before the real one that changes the arguments of `run` by `edit`,
/// a sed script with a line for each of them. What `umwelt-run` said.
fn start_with_edited_podman(edit: &str) -> String {
    let mut place = tree();
    let real = std::env::var("PATH")
        .unwrap()
        .split(':')
        .map(|dir| Path::new(dir).join("podman"))
        .find(|path| path.exists())
        .expect("podman");
    let wrapper = place.path().join("bin/podman");
    let script = format!(
        "#!/bin/bash\n\
         if [[ $1 == run ]]; then\n\
         mapfile -t args < <(printf '%s\\n' \"$@\" | sed -E '{edit}')\n\
         set -- \"${{args[@]}}\"\n\
         fi\n\
         exec {real:?} \"$@\"\n"
    );
    write(&wrapper, &script);
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!(
        "{}:{}",
        place.path().join("bin").display(),
        std::env::var("PATH").unwrap()
    );
    place.options.env.push(("PATH", path));
    let mut child = place.spawn();
    let status = wait_for("the end of umwelt-run", 3 * PATIENCE, || {
        child.try_wait().unwrap()
    });
    assert_eq!(status.code(), Some(1), "{}", place.log());
    place.assert_nothing_left();
    place.log()
}

#[test]
fn start_fails_when_podman_does_not_mask() {
    if !host::qualifies() {
        return;
    }
    for (edit, expected) in [
        ("/type=tmpfs.*base.dir,/d", "is not hidden"),
        ("/dst=[^,]*base.file,/d", "is not hidden"),
        // Another empty place, but not the cover that was asked for.
        (
            "s/tmpfs-size=65536(.*base.dir,)/tmpfs-size=131072\\1/",
            "is not hidden",
        ),
        ("/base.dir,/s/,ro=true//", "is covered, but not read-only"),
        ("s/,notmpcopyup//", "is not empty: it shows"),
    ] {
        let log = start_with_edited_podman(edit);
        assert!(log.contains("masks: "), "{edit}: {log}");
        assert!(log.contains(expected), "{edit}: {log}");
    }
}
