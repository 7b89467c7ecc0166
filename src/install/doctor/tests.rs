//! Each check, shown to fire by breaking the fact that it looks at.

use super::checks::*;
use super::facts::Facts;
use super::facts::{Disk, Info, Problem, Subids};
use super::packages::Family;
use crate::install::image::Standing;
use crate::podman::delegation::DelegationError;
use crate::podman::local::Remote;

const INFO: &str = r#"{
    "host": {
        "networkBackend": "netavark",
        "networkBackendInfo": {"version": "netavark 1.14.0"},
        "ociRuntime": {"name": "crun", "version": "crun version 1.21\ncommit: x"},
        "serviceIsRemote": false,
        "idMappings": {"uidmap": [{"size": 1}, {"size": 65536}], "gidmap": [{"size": 65537}]}
    },
    "store": {"graphRoot": "/h/s"},
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
        kernel: "6.12.1-amd64".into(),
        delegation: Ok(()),
        subids: Subids {
            uids: 65_536,
            gids: 65_536,
            next_free: 165_536,
            has_programs: true,
        },
        seccomp: Ok(()),
        image: Ok(("umwelt:latest".into(), Standing::Current)),
        nft: Some(("/usr/sbin/nft".into(), "nftables v1.1.3 (Name)".into())),
        disks: vec![Disk {
            what: "it",
            path: "/d".into(),
            free: Some(1 << 40),
        }],
        bin: "/h/bin".into(),
        is_on_path: true,
        is_installed: true,
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
    assert_eq!(find(&good(), "runtime").evidence, "crun 1.21");
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
    let cases: [(&str, Verdict, Break, &str); 27] = [
        ("user", Fail, |f| f.uid = 0, "as the user"),
        ("places", Fail, |f| f.places = Err(problem()), "do it"),
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
            |f| f.info = info(|i| i.version.version = "4.3.1".into()),
            "podman 5",
        ),
        (
            "podman",
            Warn,
            |f| f.info = info(|i| i.version.version = "5.0.0".into()),
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
        ("kernel", Fail, |f| f.kernel = "5.10.0-28".into(), "5.14"),
        ("kernel", Warn, |f| f.kernel = "5.15.2".into(), "update"),
        ("kernel", Warn, |f| f.kernel = "5.16.10".into(), "update"),
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
            |f| f.image = Ok(("i".into(), Standing::Missing)),
            "umwelt-install image",
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
    ];
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
fn fixes_are_those_of_the_distribution() {
    let mut facts = good();
    facts.nft = None;
    for (family, fix) in [
        (
            Family::Suse,
            "sudo zypper install nftables\numwelt-install install",
        ),
        (Family::Other, "install nftables\numwelt-install install"),
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
fn versions_are_three_numbers() {
    for (text, expected) in [
        ("5.4.2", Some([5, 4, 2])),
        ("v1.1.3", Some([1, 1, 3])),
        ("1.21", Some([1, 21, 0])),
        ("6.12.1-amd64", Some([6, 12, 1])),
        ("5.0.0-dev", Some([5, 0, 0])),
        ("", None),
        ("x", None),
    ] {
        assert_eq!(numbers(text), expected, "{text}");
    }
}

#[test]
fn holes_end_where_they_were_repaired() {
    for (program, found, has) in [
        ("runc", [1, 1, 11], true),
        ("runc", [1, 1, 15], true),
        ("runc", [1, 2, 8], false),
        ("runc", [1, 3, 1], true),
        ("runc", [1, 3, 3], false),
        ("crun", [1, 0, 0], false),
        ("Linux", [5, 15, 25], false),
        ("Linux", [5, 16, 3], true),
        ("Linux", [6, 1, 0], false),
    ] {
        assert_eq!(hole(program, found).is_some(), has, "{program} {found:?}");
    }
}
