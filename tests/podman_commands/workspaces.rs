//! Workspaces of every name: inside and outside are the same files.

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use crate::assert_exited;
use crate::podman_common::{Options, Sandbox, host, sandbox::Place};

/// A sandbox in a workspace of this name, and all that must hold in it.
fn check(workspace: &str) {
    if !host::qualifies() {
        return;
    }
    let sandbox = Sandbox::start_at(Place::new(Options {
        workspace: workspace.into(),
        ..Options::default()
    }));
    check_files(&sandbox, sandbox.workspace());
    sandbox.end_and_check();
}

/// Files made on either side are the same on the other, at this path.
fn check_files(sandbox: &Sandbox, path: &Path) {
    let mut client = sandbox.client();
    let shown = path.to_str().unwrap();
    std::fs::write(path.join("outside"), "made outside\n").unwrap();
    // The path goes in as it is: whatever it holds, the shell sees a variable.
    let quoted = shown.replace('\'', r"'\''");
    let output = client.output(&format!(
        "cd -- '{quoted}' && cat outside && echo made inside >inside"
    ));
    assert_eq!(output, "made outside\n", "{shown:?}");
    let inside = path.join("inside");
    assert_eq!(
        std::fs::read(&inside).unwrap(),
        b"made inside\n",
        "{shown:?}"
    );
    let metadata = inside.metadata().unwrap();
    assert_eq!(metadata.uid(), host::uid());
    let ids = client.output(&format!("stat -c '%d %i' '{quoted}/inside'"));
    assert_eq!(
        ids,
        format!("{} {}\n", metadata.dev(), metadata.ino()),
        "{shown:?}"
    );
    assert_eq!(client.output("cat outside"), "made outside\n");
    let hex = client.output("printf %s \"$(pwd -P; echo .)\" | od -An -v -tx1 | tr -d ' \\n'");
    let wanted = format!("{}\n.", sandbox.workspace().display());
    let wanted: String = wanted.bytes().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, wanted, "{shown:?}");
    let status = sandbox.status();
    assert_eq!(status["workspace"], sandbox.workspace().to_str().unwrap());
}

#[test]
fn names_with_spaces_commas_colons_and_quotes() {
    check(" a b,c:d=e;f/quo\"te'd/`$HOME` \"x,y\"=z ");
}

#[test]
fn names_with_backslash_percent_dash_glob_and_other_scripts() {
    check("-dash/back\\slash\\n\\040/100%s%n/*?[x]{y}~#!&|<>()/naïve-漢字-🎉/--rm");
}

#[test]
fn names_of_the_greatest_length() {
    let name = "n".repeat(255);
    check(&format!("{name}/{}", "é".repeat(127)));
}

#[test]
fn names_with_control_characters_are_taken_or_refused_as_a_whole() {
    check("tab\tand\u{1b}[31mescape\r");
    if !host::qualifies() {
        return;
    }
    let place = Place::new(Options {
        workspace: "new\nline".into(),
        ..Options::default()
    });
    let output = place
        .command()
        .arg("--workspace")
        .arg(place.asked())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("newline"),
        "{output:?}"
    );
}

#[test]
fn workspace_under_tmp_is_not_hidden_by_the_scratch_space() {
    let dir = tempfile::Builder::new()
        .prefix("tb-ws,")
        .tempdir_in("/tmp")
        .unwrap();
    let beside = tempfile::tempdir_in("/tmp").unwrap();
    let workspace = dir.path().join("project");
    let Some(sandbox) = Sandbox::start(Options {
        workspace: workspace.clone(),
        ..Options::default()
    }) else {
        return;
    };
    check_files(&sandbox, &workspace);
    let mut client = sandbox.client();
    assert_exited(
        &client.shell(&format!("test -e {}", beside.path().display())),
        1,
    );
    client.output("touch /tmp/scratch");
    assert!(!Path::new("/tmp/scratch").exists());
    sandbox.end_and_check();
}

#[test]
fn workspace_behind_a_link_is_seen_at_both_paths() {
    if !host::qualifies() {
        return;
    }
    let place = Place::new(Options {
        workspace: "real dir/project".into(),
        asked: Some(PathBuf::from("li,nk/project")),
        ..Options::default()
    });
    symlink("real dir", place.path().join("li,nk")).unwrap();
    let sandbox = Sandbox::start_at(place);
    check_files(&sandbox, sandbox.workspace());
    let alias = sandbox
        .place
        .path()
        .canonicalize()
        .unwrap()
        .join("li,nk/project");
    check_files(&sandbox, &alias);
    let mut client = sandbox.client();
    client.output(&format!("echo both >'{}/both'", alias.display()));
    assert_eq!(client.output("cat both"), "both\n");
    sandbox.end_and_check();
}

#[test]
fn link_to_the_workspace_itself_is_seen_too() {
    if !host::qualifies() {
        return;
    }
    let place = Place::new(Options {
        workspace: "deep/er/project".into(),
        asked: Some(PathBuf::from("link")),
        ..Options::default()
    });
    symlink("deep/er/project", place.path().join("link")).unwrap();
    let sandbox = Sandbox::start_at(place);
    let alias = sandbox.place.path().canonicalize().unwrap().join("link");
    check_files(&sandbox, &alias);
    sandbox.end_and_check();
}
