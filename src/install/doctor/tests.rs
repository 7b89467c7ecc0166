//! Each check, shown to fire by breaking the fact that it looks at.

use std::collections::BTreeSet;

use super::checks::*;
use super::facts::{Disk, Facts, Info, Kernel, Problem, Subids};
use super::finding::{Finding, Verdict};
use super::packages::Family;
use crate::install::image::Standing;
use crate::podman::delegation::DelegationError;
use crate::podman::local::Remote;

const INFO: &str = r#"{
    "host": {
        "networkBackend": "netavark",
        "networkBackendInfo": {"version": "netavark 1.14.0"},
        "ociRuntime": {"name": "crun", "version": "crun version 1.28\ncommit: x"},
        "serviceIsRemote": false,
        "idMappings": {"uidmap": [{"size": 1}, {"size": 65536}], "gidmap": [{"size": 65537}]}
    },
    "store": {"graphRoot": "/h/s", "graphDriverName": "overlay"},
    "version": {"Version": "5.4.2"}
}"#;

fn good() -> Facts {
    Facts {
        uid: 1000,
        user: "u".into(),
        family: Family::Debian,
        places: Ok(()),
        podman: Some("/usr/bin/podman".into()),
        remote: None,
        info: Ok(serde_json::from_str(INFO).unwrap()),
        kernel: kernel("6.12.1-amd64"),
        changelogs: Default::default(),
        delegation: Ok(()),
        subids: Subids {
            uids: 65_536,
            gids: 65_536,
            next_free: 165_536,
            has_programs: true,
        },
        seccomp: Ok(()),
        config: Ok(Some("/h/umwelt.toml".into())),
        image: Ok(("umwelt:latest".into(), Standing::Current)),
        nft: Some(("/usr/sbin/nft".into(), "nftables v1.1.3 (Name)".into())),
        missing_tools: vec![],
        disks: vec![Disk {
            what: "it",
            path: "/d".into(),
            free: Some(1 << 40),
        }],
        bin: "/h/bin".into(),
        is_on_path: true,
        is_installed: true,
        is_without_egress: false,
        broken_program: None,
    }
}

fn kernel(release: &str) -> Kernel {
    Kernel {
        release: release.into(),
        ..Kernel::default()
    }
}

fn find(facts: &Facts, check: &str) -> Finding {
    let found = all(facts)
        .into_iter()
        .find(|finding| finding.check == check);
    found.unwrap_or_else(|| panic!("no {check}"))
}

#[test]
fn a_good_host_has_nothing_to_repair() {
    for finding in all(&good()) {
        assert_eq!(finding.verdict, Verdict::Ok, "{finding:?}");
        assert_eq!(finding.fix, None);
        assert!(!finding.evidence.is_empty());
    }
    assert_eq!(find(&good(), "runtime").evidence, "crun 1.28");
    assert_eq!(find(&good(), "netavark").evidence, "1.14.0");
}

fn problem() -> Problem {
    Problem {
        message: "it is not".into(),
        hint: Some("do it".into()),
    }
}

fn info(change: impl Fn(&mut Info)) -> Result<Info, String> {
    let mut info = serde_json::from_str(INFO).unwrap();
    change(&mut info);
    Ok(info)
}

/// Each check, broken in each way that it looks at.
#[test]
fn every_check_fires_when_what_it_checks_is_broken() {
    use Verdict::{Fail, Warn};
    type Break = fn(&mut Facts);
    let cases: [(&str, Verdict, Break, &str); 33] = [
        (
            "storage",
            Warn,
            |f| f.info = info(|i| i.store.graph_driver_name = "vfs".into()),
            "driver = \"overlay\"",
        ),
        (
            "netavark",
            Warn,
            |f| f.missing_tools = vec!["iptables"],
            "install slirp4netns iptables",
        ),
        ("user", Fail, |f| f.uid = 0, "as the user"),
        ("places", Fail, |f| f.places = Err(problem()), "do it"),
        ("config", Fail, |f| f.config = Err(problem()), "do it"),
        ("podman", Fail, |f| f.podman = None, "install podman"),
        ("podman", Fail, |f| f.info = Err("no".into()), "podman info"),
        (
            "podman",
            Fail,
            |f| {
                f.remote = Some(Remote {
                    reason: "CONTAINER_HOST is set".into(),
                    fix: "unset CONTAINER_HOST".into(),
                });
            },
            "unset CONTAINER_HOST",
        ),
        (
            "podman",
            Fail,
            |f| f.info = info(|i| i.host.service_is_remote = true),
            "this very",
        ),
        (
            "podman",
            Fail,
            |f| f.info = info(|i| i.version.version = "3.4.4".into()),
            "podman 5",
        ),
        (
            "podman",
            Warn,
            |f| f.info = info(|i| i.version.version = "4.9.3".into()),
            "podman 5",
        ),
        (
            "podman",
            Warn,
            |f| {
                f.image = Ok(("i".into(), Standing::Foreign));
                f.info = info(|i| i.version.version = "5.0.0".into());
            },
            "update",
        ),
        (
            "runtime",
            Warn,
            |f| f.info = info(|i| i.host.oci_runtime.name = "kata".into()),
            "crun",
        ),
        (
            "runtime",
            Warn,
            |f| {
                f.info = info(|i| {
                    i.host.oci_runtime.name = "runc".into();
                    i.host.oci_runtime.version = "runc version 1.1.5".into();
                });
            },
            "update",
        ),
        (
            "netavark",
            Warn,
            |f| f.info = info(|i| i.host.network_backend = "cni".into()),
            "netavark",
        ),
        ("kernel", Fail, |f| f.kernel = kernel("5.10.0-28"), "5.14"),
        ("kernel", Warn, |f| f.kernel = kernel("5.15.2"), "update"),
        ("kernel", Warn, |f| f.kernel = kernel("5.16.10"), "update"),
        (
            "cgroups",
            Fail,
            |f| f.delegation = Err(DelegationError::NotUnified),
            "unified",
        ),
        (
            "cgroups",
            Fail,
            |f| f.delegation = Err(DelegationError::NoCgroupKill),
            "5.14",
        ),
        (
            "cgroups",
            Fail,
            |f| {
                f.delegation = Err(DelegationError::Missing {
                    uid: 7,
                    missing: vec!["cpu".into()],
                    commands: vec!["sudo one".into(), "sudo two".into()],
                });
            },
            "sudo one\nsudo two",
        ),
        (
            "subids",
            Fail,
            |f| {
                f.subids.uids = 10;
                f.info = Err("no".into())
            },
            "165536-231071",
        ),
        ("subids", Fail, |f| f.subids.has_programs = false, "uidmap"),
        ("seccomp", Fail, |f| f.seccomp = Err(problem()), "install"),
        (
            "image",
            Fail,
            |f| f.image = Ok(("umwelt:latest".into(), Standing::Missing)),
            "umwelt-install image",
        ),
        (
            "image",
            Fail,
            |f| f.image = Ok(("i".into(), Standing::Missing)),
            "podman pull i; ",
        ),
        (
            "image",
            Warn,
            |f| f.image = Ok(("i".into(), Standing::Old)),
            "umwelt-install image",
        ),
        ("nft", Warn, |f| f.nft = None, "nftables"),
        (
            "disk",
            Fail,
            |f| f.disks[0].free = Some(1 << 20),
            "make room",
        ),
        (
            "disk",
            Warn,
            |f| f.disks[0].free = Some(1 << 30),
            "make room",
        ),
        ("installed", Warn, |f| f.is_on_path = false, "export PATH"),
        (
            "installed",
            Warn,
            |f| f.is_installed = false,
            "umwelt-install install",
        ),
        (
            "installed",
            Fail,
            |f| f.broken_program = Some("/h/umwelt".into()),
            "umwelt-install install",
        ),
    ];
    let broken: BTreeSet<_> = cases.iter().map(|case| case.0).collect();
    let checked: BTreeSet<_> = all(&good()).into_iter().map(|found| found.check).collect();
    assert!(broken.iter().eq(&checked), "{checked:?}");
    for (check, verdict, break_it, fix) in cases {
        let mut facts = good();
        break_it(&mut facts);
        let finding = find(&facts, check);
        assert_eq!(finding.verdict, verdict, "{finding:?}");
        let told = finding.fix.clone().unwrap_or_default();
        assert!(told.contains(fix), "{finding:?}");
        // And nothing else, where podman itself works.
        if facts.info.is_ok() {
            let others = all(&facts);
            let mut others = others.iter().filter(|other| other.check != check);
            assert!(others.all(|other| other.verdict == Verdict::Ok), "{check}");
        }
    }
}

#[test]
fn ids_from_elsewhere_than_the_files_are_seen() {
    let mut facts = good();
    facts.subids.uids = 0;
    assert_eq!(find(&facts, "subids").verdict, Verdict::Ok);
    facts.info = info(|i| i.host.id_mappings.uidmap = None);
    assert_eq!(find(&facts, "subids").verdict, Verdict::Fail);
}

#[test]
fn an_image_whose_name_is_not_known_is_not_looked_for() {
    let mut facts = good();
    facts.image = Err("\"/h/umwelt.toml\" line 1: no".into());
    assert_eq!(find(&facts, "image").verdict, Verdict::Fail);
    facts.config = Err(problem());
    let told = find(&facts, "image");
    assert_eq!(told.verdict, Verdict::Warn);
    assert!(told.evidence.contains("configuration"), "{told:?}");
    facts.config = Ok(None);
    assert!(find(&facts, "config").evidence.contains("default"));
}

#[test]
fn programs_and_ids_that_are_both_missing_are_repaired_together() {
    let mut facts = good();
    facts.subids = Subids {
        uids: 0,
        has_programs: false,
        ..facts.subids
    };
    facts.info = Err("no".into());
    let told = find(&facts, "subids");
    let fix = told.fix.unwrap();
    let lines: Vec<_> = fix.lines().collect();
    assert_eq!(lines.first(), Some(&"sudo apt-get install uidmap"));
    assert!(lines[1].starts_with("sudo usermod --add-subuids 165536-231071 "));
    assert_eq!(lines.last(), Some(&"podman system migrate"));
    assert!(told.is_command);
    facts.family = Family::Other;
    let told = find(&facts, "subids");
    assert!(
        told.fix
            .unwrap()
            .starts_with("# install uidmap\nsudo usermod ")
    );
    assert!(told.is_command);
}

#[test]
fn what_no_command_repairs_is_a_comment() {
    let fixes = super::render_commands(&[
        Finding::ok("a", "fine").hint("n"),
        Finding::warn("b", "x\ny").hint("do this\nand that"),
        Finding::fail("c", "z"),
        Finding::fail("d", "w").run("run-me"),
    ]);
    let lines: Vec<_> = fixes.lines().collect();
    assert_eq!(lines.len(), 6, "{fixes}");
    assert!(lines[0].starts_with("# b: x"), "{fixes}");
    let rest = ["#   do this", "#   and that", "# c: z", "# d: w", "run-me"];
    assert_eq!(lines[1..], rest);
}

#[test]
fn fixes_are_those_of_the_distribution() {
    let mut facts = good();
    facts.nft = None;
    for (family, fix) in [
        (
            Family::Suse,
            "sudo zypper install nftables\numwelt-install install --egress",
        ),
        (
            Family::Other,
            "install nftables\numwelt-install install --egress",
        ),
    ] {
        facts.family = family;
        let finding = find(&facts, "nft");
        assert_eq!(finding.fix.as_deref(), Some(fix));
        // Words for a person are no command for a shell.
        assert_eq!(finding.is_command, family != Family::Other);
    }
}

#[test]
fn an_old_nft_is_told() {
    let mut facts = good();
    for said in ["nftables v1.0.2 (x)", "", "nonsense"] {
        facts.nft = Some(("/n".into(), said.into()));
        assert_eq!(find(&facts, "nft").verdict, Verdict::Warn, "{said}");
    }
}

#[test]
fn what_a_distribution_has_repaired_is_no_hole() {
    let mut facts = good();
    facts.info = info(|i| {
        i.host.oci_runtime.name = "runc".into();
        i.host.oci_runtime.version = "runc version 1.1.11".into();
    });
    let told = find(&facts, "runtime");
    assert_eq!(told.verdict, Verdict::Warn);
    for words in [
        "CVE-2024-21626",
        "CVE-2025-31133",
        "1.2.8",
        "by your distribution",
    ] {
        assert!(told.evidence.contains(words), "{told:?}");
    }
    let mut changelog = "runc (1.1.11-2) fix CVE-2024-21626".to_owned();
    facts.changelogs.insert("runc".into(), changelog.clone());
    let told = find(&facts, "runtime").evidence;
    assert!(!told.contains("CVE-2024-21626"), "{told}");
    assert!(told.contains("does not name them"), "{told}");
    changelog.push_str(" CVE-2025-31133 CVE-2025-52565 CVE-2025-52881");
    facts.changelogs.insert("runc".into(), changelog);
    assert_eq!(find(&facts, "runtime").verdict, Verdict::Ok);
}

#[test]
fn holes_for_those_who_make_images_count_where_others_made_it() {
    let mut facts = good();
    facts.info = info(|i| i.version.version = "5.2.0".into());
    assert_eq!(find(&facts, "podman").verdict, Verdict::Ok);
    facts.image = Ok(("i".into(), Standing::Foreign));
    let told = find(&facts, "podman");
    assert_eq!(told.verdict, Verdict::Warn);
    assert!(
        told.evidence.contains("for those who make the image"),
        "{told:?}"
    );
}

#[test]
fn a_kernel_is_judged_by_what_it_was_made_from() {
    let mut facts = good();
    facts.kernel = kernel("6.1.0-9-amd64");
    assert_eq!(find(&facts, "kernel").verdict, Verdict::Warn);
    facts.kernel.build = "#1 SMP Debian 6.1.38-1 (2023-07-14)".into();
    let told = find(&facts, "kernel");
    assert_eq!(told.verdict, Verdict::Ok);
    assert_eq!(told.evidence, "6.1.0-9-amd64, made from 6.1.38");
}

#[test]
fn words_of_our_own_programs_are_message_and_hint() {
    let told = Problem::told(
        "umwelt-ctl: warn: x\numwelt-ctl: no: such thing\nhint: do it\nhint: again\n",
    );
    assert_eq!(told.message, "no: such thing");
    assert_eq!(told.hint.as_deref(), Some("do it\nagain"));
    assert_eq!(Problem::told("").message, "nothing is told");
}
