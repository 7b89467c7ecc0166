//! Base mounts as a command sees them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::podman_common::{Options, Sandbox, host, sandbox::CONFIG, sandbox::Place};
use crate::{assert_exited, assert_next_command_works, notices, text};

/// The last entry for a mount point in the table inside: its options.
fn options(table: &str, point: &str) -> Vec<String> {
    let line = table
        .lines()
        .rev()
        .find(|line| line.split(' ').nth(4) == Some(point))
        .unwrap_or_else(|| panic!("{point} is not mounted:\n{table}"));
    let options = line.split(' ').nth(5).unwrap();
    options.split(',').map(str::to_owned).collect()
}

fn assert_has(options: &[String], wanted: &[&str]) {
    for option in wanted {
        assert!(
            options.iter().any(|have| have == option),
            "{option} in {options:?}"
        );
    }
}

#[test]
fn base_bind_is_read_only_and_a_tmpfs_has_its_size() {
    if !host::qualifies() {
        return;
    }
    let place = Place::new(Options {
        files: vec![
            ("base, with:odd/file", "from outside\n".to_owned()),
            (
                "base, with:odd/sub/script",
                "#!/bin/sh\necho ran\n".to_owned(),
            ),
            ("base, with:odd/nested/project/x", String::new()),
            ("not-granted/secret", "secret".to_owned()),
        ],
        workspace: "base, with:odd/nested/project".into(),
        ..Options::default()
    });
    let base = place.path().join("base, with:odd");
    let mounts = format!(
        "\n[[mounts]]\ntype = \"bind\"\npath = {base:?}\n\
         [[mounts]]\ntype = \"bind\"\npath = \"{missing}\"\n\
         [[mounts]]\ntype = \"tmpfs\"\npath = \"/tmp/tools\"\nsize = \"4m\"\n\
         [[mounts]]\ntype = \"tmpfs\"\npath = \"/made up/place\"\nsize = \"1m\"\n",
        missing = place.path().join("missing").display(),
    );
    let config = place.path().join("config/umwelt/umwelt.toml");
    std::fs::write(config, format!("{CONFIG}{mounts}")).unwrap();
    let script = base.join("sub/script");
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();

    let sandbox = Sandbox::start_at(place);
    let mut client = sandbox.client();
    let base = base.to_str().unwrap();
    let table = client.output("cat /proc/self/mountinfo");
    assert_has(
        &options(&table, &base.replace(' ', "\\040")),
        &["ro", "nosuid", "nodev"],
    );
    for point in ["/tmp/tools", "/made\\040up/place"] {
        assert_has(&options(&table, point), &["rw", "nosuid", "nodev"]);
    }
    assert_eq!(
        client.output(&format!("cat '{base}/file'")),
        "from outside\n"
    );
    assert_eq!(client.output(&format!("'{base}/sub/script'")), "ran\n");
    for attempt in [
        "echo x >file",
        "echo x >new",
        "rm file",
        "chmod 777 file",
        "mkdir sub/x",
        "mv nested x",
    ] {
        let result = client.shell(&format!("cd '{base}' && {attempt}"));
        assert!(
            text(&result["output"]).contains("Read-only file system"),
            "{attempt}: {result}"
        );
    }
    // The workspace below it is writable all the same.
    client.output("echo 1 >x && mkdir deeper && rm -r deeper");
    assert_exited(
        &client.shell(&format!(
            "ls {}/not-granted",
            sandbox.place.path().display()
        )),
        2,
    );

    let result = client.shell("head -c 16M /dev/zero >/tmp/tools/fill; stat -c %s /tmp/tools/fill");
    assert!(
        text(&result["output"]).ends_with(&format!("\n{}\n", 4 << 20)),
        "{result}"
    );
    assert!(notices(&result).contains("/tmp/tools is full"), "{result}");
    assert_list_is_right(&sandbox, base);
    assert_next_command_works(&mut client);
    sandbox.end_and_check();
}

fn assert_list_is_right(sandbox: &Sandbox, base: &str) {
    let mut client = sandbox.client();
    let list = client.call("list", serde_json::json!({})).unwrap();
    let mode = |path: &str| {
        let mounts = list["mounts"].as_array().unwrap();
        let entry = mounts.iter().find(|entry| entry["path"] == path);
        let entry = entry.unwrap_or_else(|| panic!("{path} in {list}"));
        (text(&entry["mode"]).to_owned(), entry["size"].clone())
    };
    assert_eq!(mode(base), ("ro".to_owned(), Value::Null));
    assert_eq!(
        mode("/tmp/tools"),
        ("tmpfs".to_owned(), Value::from(4 << 20))
    );
    assert_eq!(mode(sandbox.workspace().to_str().unwrap()).0, "rw");
    assert!(notices(&list).contains("missing"), "{list}");
}

/// A mount point with a file that was written outside. Only root can mount
/// something: `tests/vm/submount.sh` does, and runs these tests.
fn submount() -> Option<PathBuf> {
    let Some(point) = std::env::var_os("UMWELT_TEST_SUBMOUNT") else {
        eprintln!("skipped: UMWELT_TEST_SUBMOUNT names no mount point");
        return None;
    };
    let point = Path::new(&point).canonicalize().unwrap();
    std::fs::write(point.join("outside"), "text\n").expect("writable outside");
    Some(point)
}

/// podman's `ro` does not reach it by itself.
#[test]
fn what_is_mounted_below_a_base_bind_is_read_only_too() {
    let Some(point) = submount() else { return };
    let base = point.parent().unwrap();
    let config = format!("{CONFIG}\n[[mounts]]\ntype = \"bind\"\npath = {base:?}\n");
    let Some(sandbox) = Sandbox::start(Options {
        config,
        ..Options::default()
    }) else {
        return;
    };
    let mut client = sandbox.client();
    let point = point.display();
    assert_eq!(client.output(&format!("cat {point}/outside")), "text\n");
    for attempt in ["echo x >outside", "touch new", "rm outside", "mkdir new"] {
        let result = client.shell(&format!("cd {point} && {attempt}"));
        assert!(
            text(&result["output"]).contains("Read-only file system"),
            "{attempt}: {result}"
        );
    }
    let table = client.output("cat /proc/self/mountinfo");
    assert_has(
        &options(&table, &point.to_string()),
        &["ro", "nosuid", "nodev"],
    );
    sandbox.end_and_check();
}

#[test]
fn what_is_mounted_below_the_workspace_is_writable_but_plain() {
    let Some(point) = submount() else { return };
    let Some(sandbox) = Sandbox::start(Options {
        workspace: point.parent().unwrap().to_owned(),
        ..Options::default()
    }) else {
        return;
    };
    let mut client = sandbox.client();
    assert_eq!(client.output("cat mounted/outside"), "text\n");
    client.output("echo inside >mounted/inside");
    assert_eq!(std::fs::read(point.join("inside")).unwrap(), b"inside\n");
    let table = client.output("cat /proc/self/mountinfo");
    assert_has(
        &options(&table, &point.display().to_string()),
        &["rw", "nosuid", "nodev"],
    );
    sandbox.end_and_check();
}
