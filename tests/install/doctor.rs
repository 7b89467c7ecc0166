//! doctor, on a host that is broken in one way after the other. What is broken
//! about the host that the tests run on is not looked at here.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::stage::{Ended, Stage, is_root};

/// A host where podman is as it should be.
fn good() -> Stage {
    let stage = Stage::with_image();
    write_info(&stage, &info());
    stage.write("home/podman/run", "4242\n");
    for name in ["newuidmap", "newgidmap"] {
        stage.write_program(&format!("home/bin/{name}"), "#!/bin/sh\n");
    }
    stage
}

fn info() -> Value {
    let ids = json!([{"size": 1}, {"size": 65536}]);
    json!({
        "host": {
            "networkBackend": "netavark",
            "networkBackendInfo": {"version": "netavark 1.14.0"},
            "ociRuntime": {"name": "crun", "version": "crun version 1.28\ncommit: x"},
            "serviceIsRemote": false,
            "idMappings": {"uidmap": ids, "gidmap": ids},
        },
        "store": {"graphRoot": "/tmp"},
        "version": {"Version": "5.4.2"},
    })
}

fn write_info(stage: &Stage, info: &Value) {
    stage.write("home/podman/info.json", info.to_string());
}

/// Verdict, evidence and fix of each check.
fn examine(stage: &Stage, environment: &[(&str, &str)]) -> BTreeMap<String, Value> {
    let mut command = stage.install_command(&["doctor", "--json"]);
    command.env("XDG_RUNTIME_DIR", stage.path("run"));
    command.envs(environment.iter().copied());
    // The probes talk to podman as the one who calls.
    let ended = Ended::from(command.output().unwrap());
    assert!([Some(0), Some(1)].contains(&ended.code), "{ended:?}");
    let findings: Vec<Value> = serde_json::from_str(&ended.stdout).unwrap();
    let fails = findings.iter().any(|finding| finding["verdict"] == "fail");
    assert_eq!(fails, ended.code == Some(1), "{ended:?}");
    let named = findings.into_iter();
    named
        .map(|finding| (finding["check"].as_str().unwrap().to_owned(), finding))
        .collect()
}

fn fix_of(findings: &BTreeMap<String, Value>, check: &str) -> String {
    findings[check]["fix"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn verdict<'a>(findings: &'a BTreeMap<String, Value>, check: &str) -> &'a str {
    findings[check]["verdict"].as_str().unwrap()
}

#[test]
fn what_is_right_is_found_to_be_so() {
    let stage = good();
    let findings = examine(&stage, &[]);
    let own_id = rustix::process::geteuid().as_raw();
    for check in [
        "user", "places", "podman", "runtime", "netavark", "kernel", "subids", "image",
    ] {
        assert_eq!(verdict(&findings, check), "ok", "{:?}", findings[check]);
    }
    // The stand-in says 4242, whoever asks.
    let is_ours = own_id == 0 || own_id == 4242;
    assert_eq!(
        verdict(&findings, "keep-id") == "ok",
        is_ours,
        "{:?}",
        findings["keep-id"]
    );
    // Its container is none, so that no rules can be read back from it.
    assert_eq!(verdict(&findings, "hook"), "warn", "{:?}", findings["hook"]);
    let log = stage.podman_log();
    assert!(log.contains("--hooks-dir="), "{log}");
    assert!(log.contains("rm --force"), "{log}");
    // No trace of it is left.
    assert!(!stage.path("home/.local").exists());
}

#[test]
fn a_container_of_another_id_is_found() {
    let stage = good();
    stage.write("home/podman/run", "0\n");
    let findings = examine(&stage, &[]);
    assert_eq!(verdict(&findings, "keep-id"), "fail");
    assert!(
        findings["keep-id"]["evidence"]
            .as_str()
            .unwrap()
            .contains("\"0\" inside")
    );
}

#[test]
fn a_remote_podman_is_found_in_each_way_to_set_one() {
    let stage = good();
    let findings = examine(&stage, &[("CONTAINER_HOST", "ssh://x")]);
    assert_eq!(verdict(&findings, "podman"), "fail");
    assert_eq!(findings["podman"]["fix"], "unset CONTAINER_HOST");
    // Nothing is started with it.
    assert_eq!(verdict(&findings, "keep-id"), "warn");
    let mut remote = info();
    remote["host"]["serviceIsRemote"] = true.into();
    write_info(&stage, &remote);
    assert_eq!(verdict(&examine(&stage, &[]), "podman"), "fail");
}

#[test]
fn podman_that_is_missing_broken_or_old_is_found() {
    let stage = good();
    let mut old = info();
    old["version"]["Version"] = "4.3.1".into();
    write_info(&stage, &old);
    let findings = examine(&stage, &[]);
    assert_eq!(verdict(&findings, "podman"), "warn");
    assert!(
        findings["podman"]["evidence"]
            .as_str()
            .unwrap()
            .starts_with("4.3.1")
    );
    old["host"]["ociRuntime"] = json!({"name": "runc", "version": "runc version 1.1.5"});
    old["host"]["networkBackend"] = "cni".into();
    write_info(&stage, &old);
    let findings = examine(&stage, &[]);
    assert!(
        findings["runtime"]["evidence"]
            .as_str()
            .unwrap()
            .contains("CVE-2024-21626")
    );
    assert_eq!(verdict(&findings, "netavark"), "warn");

    stage.write("home/podman/info.json", "{");
    assert_eq!(verdict(&examine(&stage, &[]), "podman"), "fail");
    stage.write("home/podman/broken", "");
    let findings = examine(&stage, &[]);
    assert_eq!(verdict(&findings, "podman"), "fail");
    assert_eq!(verdict(&findings, "image"), "fail");
    std::fs::remove_file(stage.path("home/bin/podman")).unwrap();
    let empty = stage.path("home/bin");
    let findings = examine(&stage, &[("PATH", empty.to_str().unwrap())]);
    assert_eq!(verdict(&findings, "podman"), "fail");
    assert!(
        findings["podman"]["fix"]
            .as_str()
            .unwrap()
            .contains("podman")
    );
}

#[test]
fn a_missing_image_and_missing_ids_are_found() {
    let stage = good();
    std::fs::remove_file(stage.path("home/podman/images/umwelt_latest")).unwrap();
    let findings = examine(&stage, &[]);
    assert_eq!(verdict(&findings, "image"), "fail");
    assert_eq!(findings["image"]["fix"], "umwelt-install image");
    assert_eq!(verdict(&findings, "keep-id"), "warn");
    let mut few = info();
    few["host"]["idMappings"] = json!({"uidmap": [{"size": 1}], "gidmap": [{"size": 1}]});
    write_info(&stage, &few);
    let findings = examine(&stage, &[]);
    assert_eq!(verdict(&findings, "subids"), "fail");
    let fix = findings["subids"]["fix"].as_str().unwrap();
    assert!(fix.contains("usermod --add-subuids"), "{fix}");
    assert!(fix.contains("podman system migrate"), "{fix}");
}

#[test]
fn a_mistake_in_the_configuration_is_found() {
    let stage = good();
    let findings = examine(&stage, &[]);
    assert_eq!(verdict(&findings, "config"), "ok");
    let told = findings["config"]["evidence"].as_str().unwrap();
    assert!(told.contains("default"), "{told}");
    for name in ["home/.config", "home/.config/umwelt"] {
        stage.make_dir(name);
    }
    let path = "home/.config/umwelt/umwelt.toml";
    stage.write(path, "image = \"umwelt:latest\"\n");
    let findings = examine(&stage, &[]);
    assert_eq!(verdict(&findings, "config"), "ok");
    let told = findings["config"]["evidence"].as_str().unwrap();
    assert!(told.ends_with("umwelt.toml is valid"), "{told}");
    stage.write(path, "[shell]\ntimeout_s = 9\nmax_timeout_s = 5\n");
    let findings = examine(&stage, &[]);
    assert_eq!(verdict(&findings, "config"), "fail");
    let told = findings["config"]["evidence"].as_str().unwrap();
    for words in [path, "line 2", "shell.timeout_s"] {
        assert!(told.contains(words), "{told}");
    }
    assert!(fix_of(&findings, "config").contains("man umwelt.toml"));
    // What depends on it is not tried.
    for check in ["image", "keep-id", "hook", "sandbox"] {
        assert_eq!(verdict(&findings, check), "warn", "{check}");
    }
}

#[test]
fn a_runtime_directory_that_others_can_enter_is_found() {
    let stage = good();
    stage.set_mode("run", 0o755);
    let findings = examine(&stage, &[]);
    assert_eq!(verdict(&findings, "places"), "fail");
    assert!(
        findings["places"]["fix"]
            .as_str()
            .unwrap()
            .contains("chmod 700")
    );
}

#[test]
fn a_version_that_its_distribution_has_repaired_is_told_to_be_so() {
    let stage = good();
    let mut old = info();
    old["host"]["ociRuntime"] =
        json!({"name": "runc", "version": "runc version 1.1.5", "path": "/opt/runc"});
    write_info(&stage, &old);
    let findings = examine(&stage, &[]);
    let told = findings["runtime"]["evidence"].as_str().unwrap();
    for words in [
        "CVE-2024-21626",
        "CVE-2025-31133",
        "may be repaired by your distribution",
    ] {
        assert!(told.contains(words), "{told}");
    }
}

#[test]
fn nft_that_is_missing_or_old_is_found() {
    let stage = good();
    stage.write_program("home/bin/nft", "#!/bin/sh\necho 'nftables v1.0.2 (x)'\n");
    let findings = examine(&stage, &[]);
    assert_eq!(verdict(&findings, "nft"), "warn", "{:?}", findings["nft"]);
    assert!(
        findings["nft"]["evidence"]
            .as_str()
            .unwrap()
            .starts_with("v1.0.2")
    );
    stage.write_program("home/bin/nft", "#!/bin/sh\necho 'nftables v1.1.3 (x)'\n");
    assert_eq!(verdict(&examine(&stage, &[]), "nft"), "ok");
}

#[test]
fn an_installed_program_that_cannot_be_executed_is_found() {
    let stage = good();
    stage.done(&["install", "--no-image"]);
    assert_ne!(verdict(&examine(&stage, &[]), "installed"), "fail");
    stage.set_mode("home/.local/lib/umwelt/umwelt", 0o644);
    let findings = examine(&stage, &[]);
    assert_eq!(verdict(&findings, "installed"), "fail");
    assert_eq!(fix_of(&findings, "installed"), "umwelt-install install");
    // The hook is that program.
    let hook = findings["hook"]["evidence"].as_str().unwrap();
    assert_eq!(verdict(&findings, "hook"), "warn", "{hook}");
    stage.done(&["install", "--no-image"]);
    assert_ne!(verdict(&examine(&stage, &[]), "installed"), "fail");
}

#[test]
fn without_containers_it_is_quick() {
    let stage = good();
    let ended = stage.run(&["doctor", "--json", "--quick"]);
    assert!(!ended.stdout.contains("keep-id"), "{ended:?}");
    let log = stage.podman_log();
    assert!(!log.lines().any(|line| line.contains("run ")), "{log}");
}

/// Whatever it waits for: podman comes to its end, and what it has made goes.
#[test]
fn an_interrupted_doctor_leaves_nothing() {
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let stage = good();
        let before = stage.listing("home");
        // It tells that it has begun, and waits for a word.
        stage.write("home/podman/wait", "");
        let made = std::process::Command::new("mkfifo")
            .args([
                stage.path("home/podman/begun"),
                stage.path("home/podman/go"),
            ])
            .status();
        assert!(made.unwrap().success());
        for name in ["begun", "go"] {
            stage.own(&stage.path(&format!("home/podman/{name}")));
        }
        let mut command = stage.install_command(&["doctor", "--json"]);
        command.stdout(std::process::Stdio::piped());
        command.stderr(std::process::Stdio::piped());
        let child = command.spawn().unwrap();
        assert_eq!(stage.read("home/podman/begun"), "begun\n");
        let pid = rustix::process::Pid::from_child(&child);
        let signal = match signal {
            "INT" => rustix::process::Signal::INT,
            "TERM" => rustix::process::Signal::TERM,
            _ => rustix::process::Signal::HUP,
        };
        rustix::process::kill_process(pid, signal).unwrap();
        stage.write("home/podman/go", "");
        let ended = Ended::from(child.wait_with_output().unwrap());
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert_eq!(ended.stdout, "", "{ended:?}");
        assert!(ended.stderr.contains("nothing is left behind"), "{ended:?}");
        // The one that ran has ended; no other one is begun.
        let log = stage.podman_log();
        let runs = log.lines().filter(|line| line.contains("run --"));
        assert_eq!(runs.count(), 1, "{log}");
        for name in ["begun", "go", "wait"] {
            std::fs::remove_file(stage.path(&format!("home/podman/{name}"))).unwrap();
        }
        assert_eq!(stage.listing("home"), before);
    }
}

/// In no sandbox, everything is open: each attack gets through, and is told.
#[test]
fn attacks_get_through_where_nothing_is_sealed() {
    if !is_root() {
        eprintln!("skipped: only root can have the rights that a sandbox takes away");
        return;
    }
    let stage = Stage::new();
    stage.write("home/secret", "x");
    let task = json!({"attack": {
        "uid": 4242, "gid": 4242, "memory": 1 << 20, "pids": 4, "network": false,
        "socket": stage.path("home/secret"), "hidden": [stage.path("home/secret")],
    }});
    let mut command = std::process::Command::new("unshare");
    command
        .args(["--mount", "--uts", "--ipc", "--net", "--pid", "--fork"])
        .arg(stage.program())
        .args(["install", "doctor", "--from-inside", &task.to_string()])
        .stdin(std::process::Stdio::null());
    let ended = Ended::from(command.output().unwrap());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let verdict = |check: &str| {
        let findings = report["findings"].as_array().unwrap();
        let found = findings.iter().find(|finding| finding["check"] == check);
        found.unwrap()["verdict"].as_str().unwrap().to_owned()
    };
    for check in [
        "seal-user",
        "seal-capabilities",
        "seal-privileges",
        "seal-root",
        "seal-limits",
        "seal-namespaces",
        "seal-home",
        "seal-socket",
        "seal-setuid",
    ] {
        assert_eq!(verdict(check), "fail", "{report}");
    }
    assert_eq!(stage.run(&["doctor", "--from-inside", "{"]).code, Some(2));
}

#[test]
fn repairs_are_printed_as_commands_and_nothing_else() {
    let stage = Stage::new();
    let ended = stage.run(&["doctor", "--fix-commands"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let mut check = std::process::Command::new("sh");
    check.args(["-n", "-c", &ended.stdout]);
    assert!(check.status().unwrap().success(), "{ended:?}");
    let commands = ended.stdout.lines().filter(|line| !line.starts_with('#'));
    for line in commands {
        let known = [
            "sudo ",
            "umwelt-install ",
            "podman system migrate",
            "export ",
        ];
        assert!(known.iter().any(|word| line.starts_with(word)), "{line}");
    }
    assert!(ended.stdout.contains("umwelt-install image"), "{ended:?}");
    // Nothing has been done.
    assert!(!stage.path("home/.local").exists());
    assert_eq!(
        stage.run(&["doctor", "--json", "--fix-commands"]).code,
        Some(2)
    );
}

#[test]
fn a_person_sees_a_table_and_the_fixes_below() {
    let stage = Stage::new();
    let ended = stage.run(&["doctor"]);
    assert!(ended.stdout.starts_with("CHECK"), "{ended:?}");
    assert!(
        ended
            .stdout
            .contains("\nfix for image:\n  umwelt-install image\n"),
        "{ended:?}"
    );
    assert!(!ended.stdout.contains('\u{1b}'));
}
