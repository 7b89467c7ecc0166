//! Facts about the host -> a verdict for each, with what to do. Pure.

use serde::Serialize;

use super::facts::{Facts, Mapping};
use super::packages::{Family, Package};
use crate::install::image::Standing;
use crate::podman::delegation::DelegationError;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Ok,
    /// Something works less well, or only a part of umwelt works.
    Warn,
    /// No sandbox can be started.
    Fail,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) verdict: Verdict,
    pub(super) evidence: String,
    /// A sentence, or commands, one a line.
    pub(super) fix: Option<String>,
    /// Whether the fix can be given to a shell.
    pub(super) is_command: bool,
}

impl Finding {
    pub(super) fn ok(check: &'static str, evidence: impl Into<String>) -> Finding {
        Finding {
            check,
            verdict: Verdict::Ok,
            evidence: evidence.into(),
            fix: None,
            is_command: false,
        }
    }

    pub(super) fn warn(check: &'static str, evidence: impl Into<String>) -> Finding {
        Finding {
            verdict: Verdict::Warn,
            ..Finding::ok(check, evidence)
        }
    }

    pub(super) fn fail(check: &'static str, evidence: impl Into<String>) -> Finding {
        Finding {
            verdict: Verdict::Fail,
            ..Finding::ok(check, evidence)
        }
    }

    pub(super) fn hint(mut self, fix: impl Into<String>) -> Finding {
        self.fix = Some(fix.into());
        self
    }

    fn install(self, family: Family, package: Package) -> Finding {
        match family.install(package) {
            Ok(command) => self.run(command),
            Err(words) => self.hint(words),
        }
    }

    /// One more line of the fix.
    fn and(mut self, line: &str) -> Finding {
        self.fix = self.fix.map(|fix| format!("{fix}\n{line}"));
        self
    }

    pub(super) fn run(mut self, fix: impl Into<String>) -> Finding {
        self.is_command = true;
        self.hint(fix)
    }
}

pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![user(facts), places(facts), podman(facts)];
    findings.extend(from_info(facts));
    findings.extend([
        kernel(&facts.kernel),
        delegated(facts),
        subids(facts),
        seccomp(facts),
        image(facts),
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
        Err(problem) => {
            let finding = Finding::fail("places", &problem.message);
            match &problem.hint {
                Some(hint) => finding.hint(hint),
                None => finding,
            }
        }
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
        Some(found) if found < [5, 0, 0] => Finding::warn(
            CHECK,
            format!("{evidence}: umwelt is made for podman 5, and tested with 5.4"),
        )
        .hint("install podman 5 or newer"),
        Some(found) => match hole("podman", found) {
            Some(hole) => Finding::warn(CHECK, format!("{evidence}: {hole}")).hint(UPDATE),
            None => Finding::ok(CHECK, evidence),
        },
        None => Finding::warn(CHECK, format!("{evidence}: the version is not understood")),
    }
}

/// What only podman knows.
fn from_info(facts: &Facts) -> Vec<Finding> {
    match &facts.info {
        Err(_) => Vec::new(),
        Ok(_) => vec![runtime(facts), network(facts)],
    }
}

fn runtime(facts: &Facts) -> Finding {
    const CHECK: &str = "runtime";
    let runtime = facts
        .info
        .as_ref()
        .map(|info| info.host.oci_runtime.clone());
    let runtime = runtime.unwrap_or_default();
    let version = runtime.version.lines().next().unwrap_or_default();
    let version = version.trim_start_matches(&runtime.name);
    let version = version
        .trim_start_matches([' ', ':'])
        .trim_start_matches("version ");
    let evidence = format!("{} {version}", runtime.name);
    let known = numbers(version);
    match (runtime.name.as_str(), known) {
        ("crun" | "runc", Some(found)) => match hole(&runtime.name, found) {
            Some(hole) => Finding::warn(CHECK, format!("{evidence}: {hole}")).hint(UPDATE),
            None => Finding::ok(CHECK, evidence),
        },
        _ => Finding::warn(CHECK, format!("{evidence}: umwelt is tested with crun"))
            .install(facts.family, Package::Crun),
    }
}

fn network(facts: &Facts) -> Finding {
    const CHECK: &str = "netavark";
    let host = facts.info.as_ref().map(|info| info.host.clone());
    let host = host.unwrap_or_default();
    let version = host.network_backend_info.unwrap_or_default().version;
    match host.network_backend.as_str() {
        "netavark" => Finding::ok(CHECK, version.trim_start_matches("netavark ").to_owned()),
        other => Finding::warn(
            CHECK,
            format!("podman uses {other:?}: sandboxes with a network need netavark"),
        )
        .install(facts.family, Package::Netavark),
    }
}

fn kernel(release: &str) -> Finding {
    const CHECK: &str = "kernel";
    match numbers(release) {
        Some(found) if found < [5, 14, 0] => {
            Finding::fail(CHECK, format!("{release}: it cannot kill a whole cgroup"))
                .hint("use Linux 5.14 or newer")
        }
        Some(found) => match hole("Linux", found) {
            Some(hole) => Finding::warn(CHECK, format!("{release}: {hole}")).hint(UPDATE),
            None => Finding::ok(CHECK, release),
        },
        None => Finding::warn(CHECK, format!("{release:?} is not understood")),
    }
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
        return Finding::fail(CHECK, format!("{evidence}: {ENOUGH} are needed")).run(format!(
            "sudo usermod --add-subuids {first}-{last} --add-subgids {first}-{last} {name}\npodman system migrate"
        ));
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

fn image(facts: &Facts) -> Finding {
    const CHECK: &str = "image";
    const BUILD: &str = "umwelt-install image";
    match &facts.image {
        Err(why) => Finding::fail(CHECK, why),
        Ok((name, Standing::Missing)) => {
            Finding::fail(CHECK, format!("{name} does not exist")).run(BUILD)
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
            .and("umwelt-install install");
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
    match (facts.is_installed, facts.is_on_path) {
        (false, _) => Finding::warn(CHECK, "not by umwelt-install").run("umwelt-install install"),
        (true, false) => Finding::warn(CHECK, format!("in {bin}, which is not on PATH"))
            .run(format!("export PATH=\"{bin}:$PATH\"")),
        (true, true) => Finding::ok(CHECK, format!("in {bin}")),
    }
}

const UPDATE: &str = "update it, unless your distribution has repaired this already";

/// From a version on, up to the one that repaired it: holes by which a
/// container reaches the host.
const HOLES: [(&str, [u64; 3], [u64; 3], &str); 7] = [
    ("podman", [0, 0, 0], [4, 9, 4], "CVE-2024-1753"),
    ("podman", [5, 0, 0], [5, 0, 1], "CVE-2024-1753"),
    ("runc", [0, 0, 0], [1, 1, 12], "CVE-2024-21626"),
    (
        "runc",
        [0, 0, 0],
        [1, 2, 8],
        "CVE-2025-31133, CVE-2025-52565 and CVE-2025-52881",
    ),
    (
        "runc",
        [1, 3, 0],
        [1, 3, 3],
        "CVE-2025-31133, CVE-2025-52565 and CVE-2025-52881",
    ),
    ("Linux", [5, 8, 0], [5, 15, 25], "CVE-2022-0847"),
    ("Linux", [5, 16, 0], [5, 16, 11], "CVE-2022-0847"),
];

pub(super) fn hole(program: &str, found: [u64; 3]) -> Option<String> {
    let (_, _, fixed, names) = HOLES
        .iter()
        .find(|(name, from, fixed, _)| *name == program && *from <= found && found < *fixed)?;
    let [major, minor, patch] = fixed;
    Some(format!(
        "it has {names}, repaired in {major}.{minor}.{patch}"
    ))
}

/// The first three numbers of a version.
pub(super) fn numbers(version: &str) -> Option<[u64; 3]> {
    let version = version.trim_start_matches('v');
    let mut parts = version.split(|c: char| !c.is_ascii_digit());
    let major = parts.next()?.parse().ok()?;
    let mut next = || parts.next().and_then(|part| part.parse().ok()).unwrap_or(0);
    Some([major, next(), next()])
}
