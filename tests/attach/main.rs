//! `umwelt-run --mount-helper` against a container in miniature: two user
//! namespaces, one in the other, as podman makes them, and a shell as pid 1.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod stage;

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use serde_json::{Value, json};

use crate::stage::Stage;

fn attach(path: &str, source: &Path, read_only: bool) -> Value {
    let metadata = fs::metadata(source).unwrap();
    json!({"attach": {
        "path": path, "source": source, "read_only": read_only, "is_file": metadata.is_file(),
        "device": metadata.dev(), "inode": metadata.ino(),
    }})
}

fn detach(path: &str, source: &Path, made_mount_point: bool) -> Value {
    let metadata = fs::metadata(source).unwrap();
    json!({"detach": {
        "path": path, "made_mount_point": made_mount_point,
        "device": metadata.dev(), "inode": metadata.ino(),
    }})
}

fn done(made_mount_point: bool) -> Value {
    json!({"done": {"made_mount_point": made_mount_point}})
}

fn assert_not_live(answer: &Value, words: &str) {
    let reason = answer["not_live"]["reason"].as_str();
    assert!(
        reason.is_some_and(|reason| reason.contains(words)),
        "{answer}"
    );
}

#[test]
fn directory_is_seen_and_written_and_goes_again() {
    let mut stage = Stage::new();
    let (source, path) = (stage.host_dir("granted"), stage.path("home/a/b"));
    let [answer] = stage.helper([attach(&path, &source, false)]);
    assert_eq!(answer, done(true));
    assert_eq!(stage.inside(&format!("cat {path}/file")), "granted\n");
    stage.inside(&format!("echo new >{path}/written"));
    assert_eq!(fs::read_to_string(source.join("written")).unwrap(), "new\n");
    let modes = stage.inside(&format!("stat -c '%a %u' {}", stage.path("home/a")));
    assert_eq!(modes, "755 0\n", "the user is 0 in this miniature");
    assert_eq!(
        stage.mount_options(&path).unwrap(),
        "rw,nosuid,nodev,relatime"
    );

    let [answer] = stage.helper([detach(&path, &source, true)]);
    assert_eq!(answer, done(false));
    assert_eq!(stage.mount_options(&path), None);
    assert_eq!(stage.inside(&format!("ls -A {}", stage.path("home/a"))), "");
    assert!(source.join("written").exists());
}

#[test]
fn read_only_directory_can_be_read_and_not_written() {
    let mut stage = Stage::new();
    let (source, path) = (stage.host_dir("granted"), stage.path("home/x"));
    let [answer] = stage.helper([attach(&path, &source, true)]);
    assert_eq!(answer, done(true));
    assert_eq!(stage.inside(&format!("cat {path}/file")), "granted\n");
    let said = stage.inside(&format!("echo new >{path}/written"));
    assert!(said.contains("Read-only file system"), "{said}");
    assert!(!source.join("written").exists());
}

#[test]
fn mount_of_the_runtime_is_given_the_flags_that_it_lacks() {
    let mut stage = Stage::new();
    let path = stage.path("home");
    let options = |stage: &Stage| stage.mount_options(&path).unwrap();
    assert_eq!(options(&stage), "rw,relatime", "the stage");
    let [answer] = stage.helper([json!({"restrict": {"path": path}})]);
    assert_eq!(answer, done(false));
    assert_eq!(options(&stage), "rw,nosuid,nodev,relatime");
    // No mount of its own, and not to be found.
    for other in ["home/none", "plain"] {
        let [answer] = stage.helper([json!({"restrict": {"path": stage.path(other)}})]);
        assert_not_live(&answer, "");
    }
}

#[test]
fn file_is_attached_alone() {
    let mut stage = Stage::new();
    let (source, path) = (
        stage.host_dir("granted").join("file"),
        stage.path("home/key"),
    );
    let [answer] = stage.helper([attach(&path, &source, true)]);
    assert_eq!(answer, done(true));
    assert_eq!(stage.inside(&format!("cat {path}")), "granted\n");
    let [answer] = stage.helper([detach(&path, &source, true)]);
    assert_eq!(answer, done(false));
    assert_eq!(stage.inside(&format!("ls -A {}", stage.path("home"))), "");
}

#[test]
fn writable_grant_lies_over_a_read_only_base_bind() {
    let mut stage = Stage::new();
    let source = stage.host_dir("base/project");
    let path = stage.path("base/project");
    let said = stage.inside(&format!("echo new >{path}/written"));
    assert!(said.contains("Read-only file system"), "the stage: {said}");
    let [answer] = stage.helper([attach(&path, &source, false)]);
    assert_eq!(answer, done(false));
    assert_eq!(stage.inside(&format!("echo new >{path}/written")), "");
    let [answer] = stage.helper([detach(&path, &source, false)]);
    assert_eq!(answer, done(false));
    let said = stage.inside(&format!("echo new >{path}/again"));
    assert!(said.contains("Read-only file system"), "{said}");
}

#[test]
fn nothing_is_made_on_the_host_for_a_mount_point() {
    let mut stage = Stage::new();
    let source = stage.host_dir("granted");
    for missing in ["base/missing", "plain/missing/below"] {
        let path = stage.path(missing);
        let [answer] = stage.helper([attach(&path, &source, false)]);
        assert_not_live(&answer, "cannot be made there");
        assert!(!Path::new(&path).exists(), "{path}");
        assert_eq!(stage.mount_options(&path), None);
    }
}

#[test]
fn scratch_of_the_host_is_no_scratch_of_the_container() {
    let mut stage = Stage::new();
    // On the host's table, and bound as it is.
    let shared = Path::new("/dev/shm").join(format!("umwelt-{}", std::process::id()));
    let source = stage.host_dir("granted");
    let [answer] = stage.helper([attach(shared.to_str().unwrap(), &source, false)]);
    assert_not_live(&answer, "cannot be made there");
    assert!(!shared.exists());
}

#[test]
fn links_that_the_agent_has_planted_are_not_followed() {
    let mut stage = Stage::new();
    let source = stage.host_dir("granted");
    let base = stage.path("base/project");
    for planted in ["home/link", "home/link/below"] {
        stage.inside(&format!("ln -sfn {base} {}", stage.path("home/link")));
        let [answer] = stage.helper([attach(&stage.path(planted), &source, false)]);
        assert_not_live(&answer, "a symbolic link");
    }
    assert_eq!(stage.mount_options(&base), None);
}

#[test]
fn places_of_another_kind_are_left_alone() {
    let mut stage = Stage::new();
    let directory = stage.host_dir("granted");
    let file = directory.join("file");
    let (pipe, taken) = (stage.path("home/pipe"), stage.path("home/taken"));
    stage.inside(&format!("mkfifo {pipe}; mkdir {taken}"));
    let answers = stage.helper([
        attach(&pipe, &directory, false),
        attach(&pipe, &file, true),
        attach(&taken, &file, true),
        attach(&format!("{pipe}/below"), &directory, false),
    ]);
    for answer in &answers {
        assert_not_live(answer, "inside");
    }
    assert_eq!(stage.mount_options(&pipe), None);
    assert_eq!(stage.mount_options(&taken), None);
}

#[test]
fn what_was_made_for_a_mount_that_fails_is_removed() {
    let mut stage = Stage::new();
    let source = stage.host_dir("granted");
    let long = format!("{}/{}", stage.path("home/a/b"), "x".repeat(300));
    let [answer] = stage.helper([attach(&long, &source, false)]);
    assert_not_live(&answer, "cannot");
    assert_eq!(stage.inside(&format!("ls -A {}", stage.path("home"))), "");
}

#[test]
fn source_that_was_swapped_is_not_attached() {
    let mut stage = Stage::new();
    let (source, path) = (stage.host_dir("granted"), stage.path("home/x"));
    let request = attach(&path, &source, false);
    let other = stage.host_dir("other");
    fs::rename(&source, source.with_extension("old")).unwrap();
    let swap: [&dyn Fn(); 4] = [
        &|| {},
        &|| symlink(&other, &source).unwrap(),
        &|| {
            fs::remove_file(&source).unwrap();
            symlink(source.with_extension("old"), &source).unwrap();
        },
        &|| {
            fs::remove_file(&source).unwrap();
            fs::create_dir(&source).unwrap();
        },
    ];
    for swap in swap {
        swap();
        let [answer] = stage.helper([request.clone()]);
        let reason = answer["changed"]["reason"].as_str();
        assert!(
            reason.is_some_and(|reason| reason.contains("when it was granted")),
            "{answer}"
        );
        assert_eq!(stage.inside(&format!("ls -A {}", stage.path("home"))), "");
    }
}

#[test]
fn source_with_mounts_below_it_is_left_to_a_recreate() {
    let mut stage = Stage::new();
    let path = stage.path("home/x");
    // /dev/pts and the like are there on every machine.
    let [answer] = stage.helper([attach(&path, Path::new("/dev"), true)]);
    assert_not_live(&answer, "mounted below it on the host");
}

#[test]
fn mounts_inside_are_never_covered_nor_pulled_from_under_others() {
    let mut stage = Stage::new();
    let (outer, inner) = (stage.host_dir("outer"), stage.host_dir("inner"));
    let (above, below) = (stage.path("home/x"), stage.path("home/x/y"));
    stage.inside(&format!("mkdir -p {below}"));
    let [answer] = stage.helper([attach(&below, &inner, false)]);
    assert_eq!(answer, done(false));
    let [answer] = stage.helper([attach(&above, &outer, false)]);
    assert_not_live(&answer, "mounted below it");

    stage.inside(&format!("mount --bind {} {above}", outer.display()));
    stage.inside(&format!("mkdir {below}"));
    let [first, second] =
        stage.helper([attach(&below, &inner, false), detach(&above, &outer, false)]);
    assert_eq!(first, done(false));
    assert_not_live(&second, "mounted below it");
    assert_eq!(stage.inside(&format!("cat {below}/file")), "inner\n");
}

#[test]
fn mount_in_use_stays_and_its_user_is_named() {
    let mut stage = Stage::new();
    let (source, path) = (stage.host_dir("granted"), stage.path("home/x"));
    stage.helper([attach(&path, &source, false)]);
    let request = detach(&path, &source, true);
    for (hold, let_go, user) in [
        (format!("cd {path}"), "cd /", "1 (sh ".to_owned()),
        (
            format!("exec 7<{path}/file"),
            "exec 7<&-",
            "1 (sh ".to_owned(),
        ),
        (
            format!("cp /bin/sleep {path}; {path}/sleep 1000 & read -r _ <{path}/file"),
            "kill $!; wait",
            format!("({path}/sleep 1000)"),
        ),
    ] {
        stage.inside(&hold);
        if hold.contains("sleep") {
            stage::wait_for_process(&format!("{path}/sleep"));
        }
        let [answer] = stage.helper([request.clone()]);
        assert_not_live(&answer, "in use by: ");
        assert_not_live(&answer, &user);
        assert!(stage.mount_options(&path).is_some());
        stage.inside(let_go);
    }
    let [answer] = stage.helper([request]);
    assert_eq!(answer, done(false));
}

#[test]
fn only_what_is_named_is_detached() {
    let mut stage = Stage::new();
    let (source, other) = (stage.host_dir("granted"), stage.host_dir("other"));
    let (path, base) = (stage.path("home/x"), stage.path("base"));
    stage.helper([attach(&path, &source, false)]);
    let below = source.join("below");
    fs::create_dir(&below).unwrap();
    let answers = stage.helper([
        detach(&path, &other, false),
        detach(&stage.path("home"), &source, false),
        detach(&format!("{path}/below"), &below, false),
    ]);
    for answer in &answers {
        assert_not_live(answer, "not what is mounted");
    }
    let [answer] = stage.helper([detach(&format!("{path}/no"), &source, false)]);
    assert_not_live(&answer, "cannot be opened");
    assert!(stage.mount_options(&path).is_some());
    assert!(stage.mount_options(&base).is_some());
    // One that was there from the start.
    let [answer] = stage.helper([detach(&base, Path::new(&base), false)]);
    assert_eq!(answer, done(false));
    assert_eq!(stage.mount_options(&base), None);
}

#[test]
fn mount_whose_parent_was_renamed_is_not_reported_as_gone() {
    let mut stage = Stage::new();
    let (source, path) = (stage.host_dir("granted"), stage.path("home/a/x"));
    stage.helper([attach(&path, &source, false)]);
    let (old, new) = (stage.path("home/a"), stage.path("home/b"));
    stage.inside(&format!("mv {old} {new}; mkdir -p {path}"));
    let [answer] = stage.helper([detach(&path, &source, true)]);
    assert_not_live(&answer, "not what is mounted");
}

#[test]
fn several_operations_are_answered_in_order() {
    let mut stage = Stage::new();
    let (source, path) = (stage.host_dir("granted"), stage.path("home/x"));
    let answers = stage.helper([
        attach(&path, &source, true),
        attach(&path, &source, false),
        detach(&path, &source, false),
    ]);
    assert_eq!(answers, [done(true), done(false), done(false)]);
    assert_eq!(
        stage.mount_options(&path).unwrap(),
        "ro,nosuid,nodev,relatime"
    );
}

#[test]
fn paths_that_are_not_plain_are_refused() {
    let mut stage = Stage::new();
    let source = stage.host_dir("granted");
    let home = stage.path("home");
    for path in [
        "/".to_owned(),
        String::new(),
        "home".to_owned(),
        format!("{home}/../base/project"),
        format!("{home}/"),
        format!("{home}//x"),
        format!("{home}/./x"),
        format!("{home}/x\0y"),
    ] {
        let [answer] = stage.helper([attach(&path, &source, false)]);
        assert_not_live(&answer, "not a plain path");
    }
}

#[test]
fn container_that_has_ended_is_not_touched() {
    let mut stage = Stage::new();
    let (source, path) = (stage.host_dir("granted"), stage.path("home/x"));
    stage.end();
    let [answer] = stage.helper([attach(&path, &source, false)]);
    assert_not_live(&answer, "has ended");
}

#[test]
fn request_that_cannot_be_read_is_an_error() {
    let mut stage = Stage::new();
    for request in [
        "",
        "{}",
        "{\"operations\":[],\"more\":1}",
        "{\"operations\":[{\"x\":1}]}",
    ] {
        let output = stage.helper_raw(request);
        assert_eq!(output.status.code(), Some(1), "{request}");
        assert!(output.stdout.is_empty());
    }
}
