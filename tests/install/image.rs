//! image: by podman build, else from packages.

use crate::stage::Stage;

/// A stand-in for mmdebstrap: makes the file that it is asked for.
const MMDEBSTRAP: &str = "#!/bin/sh\necho \"$*\" >\"$HOME/mmdebstrap.log\"\nfor last; do :; done\necho root >\"$last\"\n";

fn add_mmdebstrap(stage: &Stage) {
    stage.write_program("home/bin/mmdebstrap", MMDEBSTRAP);
}

#[test]
fn the_image_is_built_with_what_was_asked_for() {
    let stage = Stage::new();
    stage.write("home/more.txt", "# for scripts\nnodejs\nnpm # too\n");
    let more = stage.path("home/more.txt");
    stage.done(&[
        "image",
        "--with-build",
        "--packages",
        more.to_str().unwrap(),
    ]);
    let log = stage.podman_log();
    assert!(log.contains("build --tag umwelt:latest"), "{log}");
    assert!(log.contains("--build-arg WITH_BUILD=1"), "{log}");
    assert!(
        log.contains("--build-arg EXTRA_PACKAGES=nodejs npm"),
        "{log}"
    );
    let context = stage.read("home/podman/context");
    assert_eq!(
        context,
        "Containerfile\nmmdebstrap.sh\npackages-build.txt\npackages.txt\n"
    );
    let image = &stage.record()["sandbox_image"];
    assert_eq!(image["packages"], serde_json::json!(["nodejs", "npm"]));
    assert_eq!(image["with_build"], true);
    assert!(!stage.path("home/.local/share/umwelt/image-recipe").exists());
}

#[test]
fn without_a_registry_it_is_made_from_packages() {
    let stage = Stage::new();
    add_mmdebstrap(&stage);
    stage.make_dir("home/podman");
    stage.write("home/podman/no-registry", "");
    let ended = stage.run(&["install"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("podman build failed"), "{ended:?}");
    assert!(ended.stdout.contains("built: umwelt:latest"), "{ended:?}");
    let log = stage.read("home/mmdebstrap.log");
    assert!(log.contains("ripgrep"), "{log}");
    assert_eq!(stage.run(&["status"]).code, Some(0));
    let said = stage.done(&["install"]);
    assert!(said.contains("image     is so already"), "{said}");
    // And goes with the rest, as it was built here.
    stage.done(&["remove"]);
    assert!(!stage.path("home/podman/images/umwelt_latest").exists());
}

#[test]
fn packages_alone_leave_podman_build_out() {
    let stage = Stage::new();
    add_mmdebstrap(&stage);
    stage.done(&["image", "--from-packages"]);
    assert!(!stage.podman_log().contains("build"));
}

#[test]
fn where_no_way_works_each_is_told() {
    let stage = Stage::new();
    stage.make_dir("home/podman");
    stage.write("home/podman/no-registry", "");
    // In front of a real one that this host may have.
    stage.write_program("home/bin/mmdebstrap", "#!/bin/sh\nexit 3\n");
    let ended = stage.run(&["image"]);
    ended.failed(&["podman build failed", "mmdebstrap", "hint: "]);
    assert!(!stage.path("home/.local/share/umwelt/image-recipe").exists());
}

#[test]
fn an_image_of_another_recipe_is_old() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    stage.write(
        "home/podman/images/umwelt_latest",
        "0123 umwelt.recipe 0000\n",
    );
    let ended = stage.run(&["status"]);
    let line = ended.stdout.lines().find(|line| line.starts_with("image"));
    assert!(line.unwrap().contains("stale"), "{ended:?}");
    assert!(
        line.unwrap().ends_with("-> umwelt-install image"),
        "{ended:?}"
    );
    assert!(
        stage
            .done(&["install"])
            .contains("renew it with: umwelt-install image")
    );
    stage.run(&["image"]);
    assert_eq!(stage.run(&["status"]).code, Some(0));
}

#[test]
fn words_that_are_no_packages_are_refused_before_anything_is_built() {
    let stage = Stage::new();
    stage.write("home/more.txt", "nodejs\n--eval=$(id)\n");
    let more = stage.path("home/more.txt");
    let ended = stage.run(&["image", "--packages", more.to_str().unwrap()]);
    ended.failed(&["--eval=$(id)"]);
    stage
        .run(&["image", "--packages", "/no/such/file"])
        .failed(&["/no/such/file"]);
    assert_eq!(stage.podman_log(), "");
}

#[test]
fn a_root_file_system_can_be_brought_along() {
    let stage = Stage::new();
    stage.write("home/root.tar", "a root file system");
    let file = stage.path("home/root.tar");
    let file = file.to_str().unwrap();
    let said = stage.done(&["install", "--no-egress", "--image-from", file]);
    assert!(said.contains("imported: umwelt:latest"), "{said}");
    assert_eq!(stage.read("home/podman/imported.tar"), "a root file system");
    assert!(!stage.podman_log().contains("build"));
    assert_eq!(stage.record()["sandbox_image"]["recipe_sha256"], "");
    // What is there stays.
    let said = stage.done(&["install", "--no-egress", "--image-from", file]);
    assert!(said.contains("made by other means: kept"), "{said}");
    assert!(!stage.podman_log().contains("import"));
    // Asked for by its own command, it is imported anew.
    stage.write("home/root.tar", "another one");
    stage.done(&["image", "--from", file]);
    assert_eq!(stage.read("home/podman/imported.tar"), "another one");
    // And goes with the rest, as it came with it.
    stage.done(&["remove"]);
    assert!(!stage.path("home/podman/images/umwelt_latest").exists());
}

#[test]
fn what_cannot_be_imported_is_named() {
    let stage = Stage::new();
    let image = |words: &[&str]| stage.run(&[&["image", "--from"], words].concat());
    image(&["/no/such/file"]).failed(&["cannot read \"/no/such/file\""]);
    image(&["/"]).failed(&["no regular file"]);
    for option in [&["--with-build"][..], &["--from-packages"]] {
        let ended = image(&[&["/etc/passwd"], option].concat());
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains("--from"), "{ended:?}");
    }
    assert!(!stage.podman_log().contains("import"));
}
