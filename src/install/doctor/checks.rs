//! Facts about the host -> a verdict for each, with what to do. Pure.

use super::facts::{Facts, Mapping};
use super::finding::Finding;
use super::holes::{self, By, numbers};
use super::packages::Package;
use crate::install::egress;
use crate::install::image::{self, Standing};
use crate::podman::PodmanError;
use crate::podman::delegation::DelegationError;

pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![user(facts), places(facts), config(facts), podman(facts)];
    findings.extend(from_info(facts));
    findings.extend([
        kernel(facts),
        delegated(facts),
        subids(facts),
        seccomp(facts),
        of_image(facts),
        nft(facts),
    ]);
    findings.extend(disks(facts));
    findings.push(installed(facts));
    findings
}

fn user(facts: &Facts) -> Finding {
    match facts.uid {
        0 => Finding::fail("user", "root, which umwelt refuses")
            .hint("run it as the user whose agent is to be confined"),
        uid => Finding::ok("user", format!("uid {uid}")),
    }
}

fn places(facts: &Facts) -> Finding {
    match &facts.places {
        Ok(()) => Finding::ok("places", "the XDG directories are usable"),
        Err(problem) => Finding::fail("places", &problem.message).way_out(problem),
    }
}

/// The message names file, line and key.
fn config(facts: &Facts) -> Finding {
    const CHECK: &str = "config";
    match &facts.config {
        Ok(Some(path)) => Finding::ok(CHECK, format!("{} is valid", path.display())),
        Ok(None) => Finding::ok(CHECK, "the default, as there is no file"),
        Err(problem) => Finding::fail(CHECK, &problem.message).way_out(problem),
    }
}

fn podman(facts: &Facts) -> Finding {
    const CHECK: &str = "podman";
    if let Some(remote) = &facts.remote {
        let evidence = format!("not local: {}", remote.reason);
        return Finding::fail(CHECK, evidence).hint(&remote.fix);
    }
    let Some(path) = &facts.podman else {
        return Finding::fail(CHECK, "was not found where only root, or you, can write")
            .install(facts.family, Package::Podman);
    };
    let info = match &facts.info {
        Ok(info) => info,
        Err(why) => return Finding::fail(CHECK, why).hint("see: podman info"),
    };
    if info.host.service_is_remote {
        return Finding::fail(CHECK, "it is a client of a remote podman")
            .hint("use podman on this very machine");
    }
    let version = &info.version.version;
    let evidence = format!("{version}, {}", path.display());
    match numbers(version) {
        Some(found) if found < [4, 3, 0] => {
            Finding::fail(CHECK, format!("{evidence}: too old")).hint("install podman 5 or newer")
        }
        Some(found) if ([4, 4, 0]..[5, 0, 0]).contains(&found) => Finding::warn(
            CHECK,
            format!("{evidence}: umwelt is tested with 4.3 and 5.4"),
        )
        .hint("install podman 5 or newer"),
        Some(found) => with_holes(facts, CHECK, ("podman", found), evidence),
        None => Finding::warn(CHECK, format!("{evidence}: the version is not understood")),
    }
}

/// What only podman knows.
fn from_info(facts: &Facts) -> Vec<Finding> {
    match &facts.info {
        Err(_) => Vec::new(),
        Ok(info) => vec![
            runtime(facts),
            network(facts),
            storage(&info.store.graph_driver_name),
        ],
    }
}

/// podman 4 takes vfs where no file says otherwise.
fn storage(driver: &str) -> Finding {
    const CHECK: &str = "storage";
    match driver {
        "vfs" => Finding::warn(CHECK, "vfs: every start of a sandbox copies the whole image")
            .hint("run: podman system reset (it removes all containers and images of podman), then put these two lines into ~/.config/containers/storage.conf, and build the image again: umwelt-install image\n[storage]\ndriver = \"overlay\""),
        "" => Finding::ok(CHECK, "podman does not tell its driver"),
        driver => Finding::ok(CHECK, driver),
    }
}

fn runtime(facts: &Facts) -> Finding {
    const CHECK: &str = "runtime";
    let runtime = facts
        .info
        .as_ref()
        .map(|info| info.host.oci_runtime.clone());
    let runtime = runtime.unwrap_or_default();
    let version = runtime.short_version();
    let evidence = format!("{} {version}", runtime.name);
    let known = numbers(version);
    match (runtime.name.as_str(), known) {
        (name @ ("crun" | "runc"), Some(found)) => {
            with_holes(facts, CHECK, (name, found), evidence)
        }
        _ => Finding::warn(CHECK, format!("{evidence}: umwelt is tested with crun"))
            .install(facts.family, Package::Crun),
    }
}

fn network(facts: &Facts) -> Finding {
    const CHECK: &str = "netavark";
    let host = facts.info.as_ref().map(|info| info.host.clone());
    let host = host.unwrap_or_default();
    let version = host.network_backend_info.unwrap_or_default().version;
    let version = match version.trim_start_matches("netavark ") {
        "" => "of an unknown version",
        version => version,
    };
    match host.network_backend.as_str() {
        "netavark" if !facts.missing_tools.is_empty() => Finding::warn(
            CHECK,
            format!(
                "{version}: sandboxes with a network need {} here",
                facts.missing_tools.join(" and ")
            ),
        )
        .install(facts.family, Package::NetworkTools),
        "netavark" => Finding::ok(CHECK, version.to_owned()),
        other => Finding::warn(
            CHECK,
            format!("podman uses {other:?}: sandboxes with a network need netavark"),
        )
        .install(facts.family, Package::Netavark),
    }
}

fn kernel(facts: &Facts) -> Finding {
    const CHECK: &str = "kernel";
    let release = &facts.kernel.release;
    match facts.kernel.version() {
        Some(found) if found < [5, 14, 0] => {
            Finding::fail(CHECK, format!("{release}: it cannot kill a whole cgroup"))
                .hint("use Linux 5.14 or newer")
        }
        Some(found @ [major, minor, patch]) => {
            let version = format!("{major}.{minor}.{patch}");
            let evidence = match release.starts_with(&version) {
                true => release.clone(),
                false => format!("{release}, made from {version}"),
            };
            with_holes(facts, CHECK, ("Linux", found), evidence)
        }
        None => Finding::warn(CHECK, format!("{release:?} is not understood")),
    }
}

/// The version, with the holes that it has, unless its package tells that they
/// are repaired.
fn with_holes(
    facts: &Facts,
    check: &'static str,
    (program, found): (&str, [u64; 3]),
    evidence: String,
) -> Finding {
    let changelog = facts.changelogs.get(program);
    let is_trusted = matches!(&facts.image, Ok((_, Standing::Current | Standing::Old)));
    let mut open = holes::of(program, found);
    open.retain(|hole| !changelog.is_some_and(|text| hole.is_named_in(text)));
    open.retain(|hole| hole.by == By::Command || !is_trusted);
    let Some(last) = open.iter().max_by_key(|hole| hole.fixed) else {
        return Finding::ok(check, evidence);
    };
    let names: Vec<&str> = open.iter().map(|hole| hole.names).collect();
    let [major, minor, patch] = last.fixed;
    let by = match open.iter().all(|hole| hole.by == By::Image) {
        true => ", for those who make the image",
        false => "",
    };
    let known = match changelog {
        Some(_) => "the changelog of its package does not name them",
        None => "may be repaired by your distribution without another number",
    };
    let names = names.join(", ");
    Finding::warn(
        check,
        format!("{evidence}: {names}{by}; repaired in {major}.{minor}.{patch}; {known}"),
    )
    .hint("update it, unless your distribution says that this is repaired")
}

fn delegated(facts: &Facts) -> Finding {
    const CHECK: &str = "cgroups";
    match &facts.delegation {
        Ok(()) => Finding::ok(CHECK, "version 2, with cpu, memory and pids delegated"),
        Err(error) => {
            let finding = Finding::fail(CHECK, error.to_string());
            match error {
                DelegationError::Missing { .. } => finding.run(error.hint()),
                DelegationError::NoUserManager { uid, .. } => {
                    finding.run(format!("sudo loginctl enable-linger {uid}"))
                }
                _ => finding.hint(error.hint()),
            }
        }
    }
}

fn subids(facts: &Facts) -> Finding {
    const CHECK: &str = "subids";
    /// A whole range of ids, as images use them.
    const ENOUGH: u64 = 65_536;
    let subids = &facts.subids;
    let mapped = facts.info.as_ref().map(|info| {
        let mappings = &info.host.id_mappings;
        total(mappings.uidmap.as_deref()).min(total(mappings.gidmap.as_deref()))
    });
    // Other sources than the two files are seen by what podman has got.
    let has_ids = subids.uids.min(subids.gids) >= ENOUGH || mapped.is_ok_and(|ids| ids > ENOUGH);
    let evidence = format!(
        "{} user and {} group ids of your own",
        subids.uids, subids.gids
    );
    if !has_ids {
        let (first, name) = (subids.next_free, &facts.user);
        let last = first + ENOUGH - 1;
        let add = format!(
            "sudo usermod --add-subuids {first}-{last} --add-subgids {first}-{last} {name}"
        );
        let programs = facts.family.install(Package::Uidmap);
        let programs = programs.unwrap_or_else(|words| format!("# {words}"));
        let programs = Some(programs).filter(|_| !subids.has_programs);
        let lines = programs
            .into_iter()
            .chain([add, "podman system migrate".into()]);
        return Finding::fail(CHECK, format!("{evidence}: {ENOUGH} are needed"))
            .run(Vec::from_iter(lines).join("\n"));
    }
    match subids.has_programs {
        true => Finding::ok(CHECK, evidence),
        false => Finding::fail(CHECK, "newuidmap and newgidmap are missing")
            .install(facts.family, Package::Uidmap),
    }
}

fn total(mappings: Option<&[Mapping]>) -> u64 {
    mappings
        .unwrap_or_default()
        .iter()
        .map(|one| one.size)
        .sum()
}

fn seccomp(facts: &Facts) -> Finding {
    match &facts.seccomp {
        Ok(()) => Finding::ok("seccomp", "the host's profile can be tightened"),
        Err(problem) => {
            Finding::fail("seccomp", &problem.message).install(facts.family, Package::Seccomp)
        }
    }
}

fn of_image(facts: &Facts) -> Finding {
    const CHECK: &str = "image";
    const BUILD: &str = "umwelt-install image";
    match &facts.image {
        // What its name is, is not known.
        Err(_) if facts.config.is_err() => {
            Finding::warn(CHECK, "not looked for, as the configuration is not valid")
        }
        Err(why) => Finding::fail(CHECK, why),
        Ok((name, Standing::Missing)) => {
            let finding = Finding::fail(CHECK, format!("{name} does not exist"));
            match image::is_ours(name) {
                true => finding.run(BUILD),
                false => finding.hint(PodmanError::foreign_image_hint(name)),
            }
        }
        Ok((name, Standing::Old)) => {
            Finding::warn(CHECK, format!("{name} is older than its recipe")).run(BUILD)
        }
        Ok((name, Standing::Current | Standing::Foreign)) => Finding::ok(CHECK, name),
    }
}

fn nft(facts: &Facts) -> Finding {
    const CHECK: &str = "nft";
    let Some((path, said)) = &facts.nft else {
        return Finding::warn(CHECK, "not found: sandboxes with a network need it")
            .install(facts.family, Package::Nftables)
            .and(egress::PUT_IN);
    };
    let version = said.split_whitespace().find(|word| numbers(word).is_some());
    let version = version.unwrap_or("of an unknown version");
    let evidence = format!("{version}, {}", path.display());
    match numbers(version) {
        Some(found) if found >= [1, 0, 6] => Finding::ok(CHECK, evidence),
        _ => Finding::warn(
            CHECK,
            format!("{evidence}: sandboxes with a network need 1.0.6 or later"),
        ),
    }
}

fn disks(facts: &Facts) -> Vec<Finding> {
    const LITTLE: u64 = 2 << 30;
    const NOTHING: u64 = 64 << 20;
    let disks = facts.disks.iter().map(|disk| {
        let path = disk.path.display();
        let Some(free) = disk.free else {
            return Finding::warn("disk", format!("the room at {path} cannot be told"));
        };
        let free_text = crate::ctl::output::render_size(free);
        let evidence = format!("{free_text} free for {}: {path}", disk.what);
        match free {
            0..NOTHING => Finding::fail("disk", evidence).hint("make room"),
            NOTHING..LITTLE => Finding::warn("disk", evidence)
                .hint("make room; podman system prune removes what no container uses"),
            _ => Finding::ok("disk", evidence),
        }
    });
    disks.collect()
}

fn installed(facts: &Facts) -> Finding {
    const CHECK: &str = "installed";
    let bin = facts.bin.display();
    if let Some(program) = &facts.broken_program {
        let program = program.display();
        return Finding::fail(CHECK, format!("{program} cannot be executed"))
            .run("umwelt-install install");
    }
    match (facts.is_installed, facts.is_on_path) {
        (false, _) => Finding::warn(CHECK, "not by umwelt-install").run("umwelt-install install"),
        (true, false) => Finding::warn(CHECK, format!("in {bin}, which is not on PATH"))
            .run(format!("export PATH=\"{bin}:$PATH\"")),
        (true, true) => Finding::ok(CHECK, format!("in {bin}")),
    }
}
