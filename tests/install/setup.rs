//! install and status: what is made, and that it is made once.

use crate::stage::Stage;

const LINKS: [&str; 7] = [
    "umwelt-mcp",
    "umwelt-run",
    "umwelt-ctl",
    "umwelt-nft-hook",
    "umwelt-install",
    "umwelt-init",
    "umwelt-gateway",
];

#[test]
fn a_first_install_puts_everything_in_place() {
    let stage = Stage::with_image();
    let said = stage.done(&["install"]);
    for step in [
        "program", "links", "config", "unit", "ca", "bundle", "nft", "gateway", "image",
    ] {
        assert!(
            said.lines().any(|line| line.starts_with(step)),
            "{step}: {said}"
        );
    }
    for link in LINKS {
        let path = stage.path("home/.local/bin").join(link);
        let target = std::fs::read_link(&path).unwrap();
        assert_eq!(target.to_str(), Some("../lib/umwelt/umwelt"));
        let mut command = stage.command(&path);
        let output = command.arg("--version").output().unwrap();
        assert!(output.stdout.starts_with(link.as_bytes()), "{link}");
    }
    let data = "home/.local/share/umwelt";
    for (name, mode) in [
        ("", 0o700),
        ("install.json", 0o600),
        ("egress", 0o700),
        ("egress/ca.key", 0o600),
        ("egress/ca.pem", 0o644),
        ("egress/roots.pem", 0o644),
        ("egress/bundle.pem", 0o644),
    ] {
        assert_eq!(stage.mode(&format!("{data}/{name}")), mode, "{name}");
    }
    let certificate = stage.read(&format!("{data}/egress/ca.pem"));
    let bundle = stage.read(&format!("{data}/egress/bundle.pem"));
    assert!(bundle.ends_with(&certificate));
    assert!(bundle.len() > certificate.len());
    assert!(!bundle.contains("PRIVATE"));
    // The installed program sees what was installed as it is.
    let installed = stage.path("home/.local/bin/umwelt-install");
    let output = stage.command(installed).arg("status").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn the_gateway_image_holds_the_program_and_nothing_else() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    let mut tar = std::process::Command::new("tar");
    tar.arg("-tvf").arg(stage.path("home/podman/imported.tar"));
    let listed = String::from_utf8(tar.output().unwrap().stdout).unwrap();
    assert_eq!(listed.lines().count(), 1, "{listed}");
    assert!(
        listed.starts_with("-rwxr-xr-x 0/0") && listed.ends_with(" umwelt\n"),
        "{listed}"
    );
    let log = stage.podman_log();
    assert!(
        log.contains("ENTRYPOINT [\"/umwelt\", \"gateway\"]"),
        "{log}"
    );
    let record = stage.record();
    assert_eq!(
        record["gateway_image"]["program_sha256"],
        record["program"]["sha256"]
    );
    assert_eq!(record["gateway_image"]["id"].as_str().unwrap().len(), 64);
}

#[test]
fn a_second_install_changes_nothing_and_says_so() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    stage.podman_log();
    let mut before = stage.listing("home");
    let said = stage.done(&["install"]);
    let steps = said.lines().filter(|line| !line.starts_with(' '));
    for line in steps {
        let known = ["already", "nft", "made by other means"];
        assert!(known.iter().any(|word| line.contains(word)), "{line}");
    }
    let mut after = stage.listing("home");
    // The time in the record, and the calls of podman.
    for listing in [&mut before, &mut after] {
        listing.retain(|path, _| !path.ends_with("install.json") && !path.ends_with("log"));
    }
    assert_eq!(before, after);
    assert!(!stage.podman_log().contains("import"));
}

#[test]
fn what_is_half_or_missing_is_seen_and_repaired() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    let data = "home/.local/share/umwelt";
    let break_one: [(&str, &dyn Fn(), &str); 10] = [
        (
            "program",
            &|| stage.write("home/.local/lib/umwelt/umwelt", "half"),
            "stale",
        ),
        (
            "program",
            &|| remove(&stage, "home/.local/lib/umwelt/umwelt"),
            "missing",
        ),
        (
            "links",
            &|| remove(&stage, "home/.local/bin/umwelt-ctl"),
            "missing",
        ),
        (
            "config",
            &|| remove(&stage, "home/.config/umwelt/umwelt.toml"),
            "missing",
        ),
        (
            "ca",
            &|| remove(&stage, &format!("{data}/egress/ca.pem")),
            "missing",
        ),
        (
            "ca",
            &|| remove(&stage, &format!("{data}/egress/ca.key")),
            "stale",
        ),
        (
            "ca",
            &|| stage.set_mode(&format!("{data}/egress/ca.key"), 0o644),
            "stale",
        ),
        (
            "bundle",
            &|| stage.write(&format!("{data}/egress/bundle.pem"), "x"),
            "stale",
        ),
        (
            "gateway",
            &|| remove(&stage, "home/podman/images/umwelt-egress-gw_latest"),
            "missing",
        ),
        (
            "record",
            &|| stage.write(&format!("{data}/install.json"), "{\"sch"),
            "stale",
        ),
    ];
    for (part, break_it, state) in break_one {
        break_it();
        let ended = stage.run(&["status"]);
        assert_eq!(ended.code, Some(1), "{part}");
        let line = ended.stdout.lines().find(|line| line.starts_with(part));
        let line = line.unwrap_or_else(|| panic!("{part}: {ended:?}"));
        assert!(line.contains(state), "{line}");
        assert!(line.ends_with("-> umwelt-install install"), "{line}");
        stage.done(&["install"]);
        let ended = stage.run(&["status"]);
        assert_eq!(ended.code, Some(0), "{part}: {ended:?}");
    }
}

fn remove(stage: &Stage, name: &str) {
    std::fs::remove_file(stage.path(name)).unwrap();
}

#[test]
fn a_file_of_another_is_never_overwritten() {
    let stage = Stage::with_image();
    for name in ["home/.local", "home/.local/bin"] {
        stage.make_dir(name);
    }
    stage.write("home/.local/bin/umwelt-ctl", "mine");
    let ended = stage.run(&["install"]);
    ended.failed(&["umwelt-ctl\"", "left alone", "hint: ", "--prefix-bin"]);
    assert_eq!(stage.read("home/.local/bin/umwelt-ctl"), "mine");
    // Not one of the others is made either.
    assert_eq!(
        std::fs::read_dir(stage.path("home/.local/bin"))
            .unwrap()
            .count(),
        1
    );
    std::fs::remove_file(stage.path("home/.local/bin/umwelt-ctl")).unwrap();
    let link = stage.path("home/.local/bin/umwelt-run");
    std::os::unix::fs::symlink("/usr/bin/env", &link).unwrap();
    stage.run(&["install"]).failed(&["umwelt-run\""]);
    assert_eq!(
        std::fs::read_link(&link).unwrap().to_str(),
        Some("/usr/bin/env")
    );
}

#[test]
fn links_can_be_elsewhere_and_move() {
    let stage = Stage::with_image();
    stage.make_dir("other");
    let other = stage.path("other");
    let other = other.to_str().unwrap();
    stage.done(&["install"]);
    stage.done(&["install", "--prefix-bin", other]);
    assert!(!stage.path("home/.local/bin/umwelt-ctl").is_symlink());
    let output = stage
        .command(stage.path("other/umwelt-ctl"))
        .arg("-V")
        .output();
    assert!(output.unwrap().status.success());
    // Without the option they stay where they are.
    stage.done(&["install"]);
    assert!(stage.path("other/umwelt-ctl").is_symlink());
    assert!(!stage.path("home/.local/bin/umwelt-ctl").is_symlink());
    let ended = stage.run(&["install", "--prefix-bin", "bin"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
}

#[test]
fn an_image_is_not_both_brought_along_and_left_out() {
    let stage = Stage::new();
    let ended = stage.run(&["install", "--no-image", "--image-from", "x.tar"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let words = "the options \"--no-image\" and \"--image-from\" exclude each other";
    assert!(ended.stderr.contains(words), "{ended:?}");
    assert!(!stage.path("home/.local").exists());
}

#[test]
fn before_an_installation_nothing_was_looked_for_in_vain() {
    let stage = Stage::new();
    let ended = stage.run(&["status"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    for (part, words) in [
        ("nft ", "missing   not looked for yet"),
        ("bundle ", "missing   not made yet"),
    ] {
        let line = ended.stdout.lines().find(|line| line.starts_with(part));
        let line = line.unwrap_or_else(|| panic!("{part}: {ended:?}"));
        let words: Vec<_> = words.split_whitespace().collect();
        let told: Vec<_> = line.split_whitespace().skip(1).collect();
        assert!(told.starts_with(&words), "{line}");
    }
}

#[test]
fn an_edited_configuration_is_kept_and_an_old_one_renewed() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    let config = "home/.config/umwelt/umwelt.toml";
    let shipped = stage.read(config);
    stage.write(config, "image = \"mine\"\n");
    let said = stage.done(&["install"]);
    assert!(said.contains("kept, as it was edited"), "{said}");
    assert!(!said.contains("newer"), "{said}");
    assert_eq!(stage.read(config), "image = \"mine\"\n");

    // As if an earlier version had shipped another one, and nobody had edited it.
    let old = "# of an earlier version\n";
    stage.write(config, old);
    set_recorded_config(&stage, old);
    let said = stage.done(&["install"]);
    assert!(said.contains("renewed"), "{said}");
    assert_eq!(stage.read(config), shipped);

    // And the same, edited.
    set_recorded_config(&stage, old);
    stage.write(config, "# mine\n");
    for _ in 0..2 {
        let said = stage.done(&["install"]);
        assert!(said.contains("the shipped one is newer: diff "), "{said}");
        assert_eq!(stage.read(config), "# mine\n");
    }
    assert_eq!(stage.read("home/.local/lib/umwelt/umwelt.toml"), shipped);
}

#[test]
fn mistake_in_the_configuration_is_part_of_the_status() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    stage.write("home/.config/umwelt/umwelt.toml", "image = 3\n");
    let ended = stage.run(&["status"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    for word in ["umwelt.toml", "invalid", "line 1", "correct it"] {
        assert!(ended.stdout.contains(word), "no {word:?} in {ended:?}");
    }
    let ended = stage.run(&["install", "--no-image"]);
    let line = ended.stdout.lines().find(|line| line.starts_with("config"));
    for word in [
        "kept, as it was edited, but not valid",
        "umwelt.toml",
        "line 1",
    ] {
        assert!(line.unwrap().contains(word), "no {word:?} in {ended:?}");
    }
    stage.write(
        "home/.config/umwelt/umwelt.toml",
        "image = \"umwelt:latest\"\n",
    );
    let said = stage.done(&["status"]);
    assert!(said.contains("umwelt.toml, edited"), "{said}");
}

fn set_recorded_config(stage: &Stage, text: &str) {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(text.as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut record = stage.record();
    record["config_sha256"] = hex.into();
    stage.write("home/.local/share/umwelt/install.json", record.to_string());
}

#[test]
fn a_dotfile_link_is_the_users() {
    let stage = Stage::with_image();
    for name in ["home/.config", "home/.config/umwelt", "home/dotfiles"] {
        stage.make_dir(name);
    }
    let link = stage.path("home/.config/umwelt/umwelt.toml");
    stage.write("home/dotfiles/umwelt.toml", "");
    std::os::unix::fs::symlink("../../dotfiles/umwelt.toml", &link).unwrap();
    let said = stage.done(&["install"]);
    assert!(said.contains("kept, as it was edited"), "{said}");
    assert!(link.is_symlink());
}

#[test]
fn an_installation_can_do_without_a_network() {
    let stage = Stage::with_image();
    stage.done(&["install", "--no-egress", "--no-image"]);
    assert!(!stage.path("home/.local/share/umwelt/egress").exists());
    assert_eq!(stage.podman_log(), "");
}

#[test]
fn what_was_left_out_stays_out_until_it_is_asked_for() {
    let stage = Stage::with_image();
    let egress = stage.path("home/.local/share/umwelt/egress");
    let row = || {
        let ended = stage.run(&["status"]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let mut lines = ended.stdout.lines();
        let row = lines.find(|line| line.starts_with("egress"));
        row.map(str::to_owned)
    };
    stage.done(&["install", "--no-egress"]);
    let said = stage.done(&["install"]);
    assert!(
        said.contains("left out, as --no-egress asked for"),
        "{said}"
    );
    assert!(!egress.exists());
    let left_out = row().unwrap();
    assert!(left_out.contains(" left out "), "{left_out}");
    assert!(
        left_out.ends_with("-> umwelt-install install --egress"),
        "{left_out}"
    );
    let json: serde_json::Value = serde_json::from_str(&stage.done(&["status", "--json"])).unwrap();
    let parts = json["parts"].as_array().unwrap();
    let named = |name: &str| parts.iter().find(|part| part["name"] == name);
    assert_eq!(named("egress").unwrap()["state"], "left_out");
    assert_eq!(named("gateway"), None);

    stage.done(&["install", "--egress"]);
    assert!(egress.join("ca.pem").exists());
    assert_eq!(row(), None);
    stage.done(&["install"]);
    assert_eq!(row(), None);
    let ended = stage.run(&["install", "--egress", "--no-egress"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
}

#[test]
fn images_are_unknown_where_podman_cannot_be_asked() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    let states = |environment: &[(&str, &str)]| {
        let mut command = stage.install_command(&["status", "--json"]);
        command.envs(environment.iter().copied());
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let parts = report["parts"].as_array().unwrap().clone();
        let not_ok = parts.into_iter().filter(|part| part["state"] != "ok");
        let shown = not_ok.map(|part| {
            let text = |key: &str| part[key].as_str().unwrap().to_owned();
            let told = [text("name"), text("state"), text("fix")];
            (told.join(" "), text("detail"))
        });
        shown.collect::<Vec<_>>()
    };
    let of_each = ["gateway", "image"].map(|name| format!("{name} unknown umwelt-install doctor"));
    stage.write("home/podman/broken", "");
    let found = states(&[]);
    assert!(found.iter().map(|(told, _)| told).eq(&of_each), "{found:?}");
    std::fs::remove_file(stage.path("home/bin/podman")).unwrap();
    let empty = stage.path("home/bin");
    let found = states(&[("PATH", empty.to_str().unwrap())]);
    for (told, detail) in &found {
        let is_links = told.starts_with("links");
        assert!(is_links || of_each.contains(told), "{told}");
        assert!(is_links || detail == "podman was not found", "{detail}");
    }
    assert_eq!(found.len(), 2, "{found:?}");
}

#[test]
fn a_rotated_authority_is_another_one_with_its_bundle() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    let read = |name: &str| stage.read(&format!("home/.local/share/umwelt/egress/{name}"));
    let (certificate, key) = (read("ca.pem"), read("ca.key"));
    let said = stage.done(&["ca", "rotate"]);
    assert!(said.contains("keep the former one"), "{said}");
    assert_ne!(read("ca.pem"), certificate);
    assert_ne!(read("ca.key"), key);
    assert!(read("bundle.pem").ends_with(&read("ca.pem")));
    assert!(!read("bundle.pem").contains(&certificate));
    assert_eq!(stage.run(&["status"]).code, Some(0));
    assert_eq!(stage.run(&["ca", "renew"]).code, Some(2));
    assert_eq!(stage.run(&["ca"]).code, Some(2));
}

#[test]
fn help_is_a_subcommand_too() {
    let stage = Stage::new();
    let all = stage.done(&["help"]);
    assert_eq!(all, stage.done(&["--help"]));
    assert!(all.contains("\n  help "), "{all}");
    assert_eq!(
        stage.done(&["help", "remove"]),
        stage.done(&["remove", "--help"])
    );
    for words in [
        &["help", "emacs"][..],
        &["help", "--x"],
        &["help", "status", "image"],
        &["emacs"],
    ] {
        let ended = stage.run(words);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(!ended.stderr.is_empty());
    }
}

/// It is not umwelt's to make.
#[test]
fn an_image_of_the_users_own_that_is_missing_is_told_so() {
    let stage = Stage::with_image();
    stage.done(&["install"]);
    stage.write("home/.config/umwelt/umwelt.toml", "image = \"mine\"\n");
    let ended = stage.run(&["status"]);
    assert_eq!(ended.code, Some(1));
    let line = ended.stdout.lines().find(|line| line.starts_with("image"));
    assert!(line.unwrap().contains("yours to make"), "{ended:?}");
    assert!(!line.unwrap().contains("->"), "{ended:?}");
}

#[test]
fn status_is_there_for_programs_too() {
    let stage = Stage::with_image();
    let ended = stage.run(&["status", "--json"]);
    assert_eq!(ended.code, Some(1));
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    let program = &report["parts"][0];
    assert_eq!(program["name"], "program");
    assert_eq!(program["state"], "missing");
    assert_eq!(program["fix"], "umwelt-install install");
    stage.done(&["install"]);
    let report: serde_json::Value =
        serde_json::from_str(&stage.done(&["status", "--json"])).unwrap();
    let parts = report["parts"].as_array().unwrap();
    assert!(parts.iter().all(|part| part["state"] == "ok"), "{report}");
}
