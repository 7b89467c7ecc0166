//! The systemd unit: in place with an installation, and gone with it.

use crate::stage::Stage;

const UNIT: &str = "home/.local/share/systemd/user/umwelt-run@.service";
const WANTS: &str = "home/.config/systemd/user/default.target.wants";

/// As `systemctl --user enable` does.
fn enable(stage: &Stage, instance: &str) {
    for name in [
        "home/.config/systemd",
        "home/.config/systemd/user",
        "home/.config/systemd/user/default.target.wants",
    ] {
        if !stage.path(name).exists() {
            stage.make_dir(name);
        }
    }
    let link = stage.path(WANTS).join(instance);
    std::os::unix::fs::symlink(stage.path(UNIT), &link).unwrap();
    stage.own(&link);
}

#[test]
fn the_unit_is_installed_renewed_and_kept_when_it_was_edited() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    let shipped = stage.read(UNIT);
    assert_eq!(
        shipped,
        include_str!("../../share/systemd/umwelt-run@.service")
    );
    assert_eq!(stage.mode(UNIT), 0o644);
    let said = stage.done(&["install"]);
    assert!(said.contains("unit      is so already"), "{said}");

    stage.write(UNIT, "# mine\n");
    let said = stage.done(&["install"]);
    assert!(said.contains("unit      kept, as it was edited"), "{said}");
    assert_eq!(stage.read(UNIT), "# mine\n");
    let said = stage.done(&["status"]);
    assert!(said.contains("service, edited"), "{said}");
    let said = stage.done(&["remove"]);
    assert!(said.contains("unit      kept, as it was edited"), "{said}");
    assert_eq!(stage.read(UNIT), "# mine\n");
}

#[test]
fn a_unit_of_an_earlier_version_is_renewed() {
    use sha2::{Digest, Sha256};
    let stage = Stage::with_image();
    stage.done(&["install"]);
    let shipped = stage.read(UNIT);
    let old = "# of an earlier version\n";
    let digest = Sha256::digest(old.as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut record = stage.record();
    record["unit_sha256"] = hex.into();
    stage.write("home/.local/share/umwelt/install.json", record.to_string());
    stage.write(UNIT, old);
    let ended = stage.run(&["status"]);
    assert!(ended.stdout.contains("as an earlier version"), "{ended:?}");
    let said = stage.done(&["install"]);
    assert!(said.contains("unit      renewed"), "{said}");
    assert_eq!(stage.read(UNIT), shipped);
}

/// One from before there was a unit.
#[test]
fn an_older_installation_gets_the_unit() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    let mut record = stage.record();
    record.as_object_mut().unwrap().remove("unit_sha256");
    stage.write("home/.local/share/umwelt/install.json", record.to_string());
    std::fs::remove_file(stage.path(UNIT)).unwrap();
    assert_eq!(stage.run(&["status"]).code, Some(1));
    let said = stage.done(&["install"]);
    assert!(said.contains("unit      written to"), "{said}");
    assert_eq!(stage.run(&["status"]).code, Some(0));
}

#[test]
fn remove_takes_the_links_of_enabled_instances_along() {
    let stage = Stage::with_image();
    stage.make_dir("home/.config");
    let before = stage.listing("home");
    stage.done(&["install"]);
    enable(&stage, "umwelt-run@home-u-a.service");
    enable(&stage, "umwelt-run@home-u-b.service");
    let said = stage.done(&["remove"]);
    assert!(said.contains("2 disabled"), "{said}");
    let mut after = stage.listing("home");
    after.retain(|path, _| !path.ends_with("log") && !path.ends_with("imported.tar"));
    assert_eq!(after, before);
}

#[test]
fn links_and_units_of_others_stay() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    enable(&stage, "umwelt-run@home-u-a.service");
    let other = stage.path(WANTS).join("other.service");
    std::os::unix::fs::symlink("/usr/lib/systemd/user/other.service", &other).unwrap();
    stage.done(&["remove"]);
    assert!(other.is_symlink());
    assert!(
        !stage
            .path(WANTS)
            .join("umwelt-run@home-u-a.service")
            .is_symlink()
    );

    // A link in its place leads to what the user has elsewhere.
    let stage = Stage::with_image();
    for name in [
        "home/.local",
        "home/.local/share",
        "home/.local/share/systemd",
        "home/.local/share/systemd/user",
    ] {
        stage.make_dir(name);
    }
    stage.write("home/mine.service", "# mine\n");
    std::os::unix::fs::symlink("../../../../mine.service", stage.path(UNIT)).unwrap();
    stage.done(&["install"]);
    stage.done(&["remove"]);
    assert!(stage.path(UNIT).is_symlink());
    assert_eq!(stage.read("home/mine.service"), "# mine\n");
}
