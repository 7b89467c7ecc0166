//! What throwaway containers show, in an order in which each one needs what
//! was found before -> findings.

use super::facts::{Facts, Problem};
use super::finding::{Finding, Verdict};
use super::probe;
use super::throwaway::{Attacked, Throwaway};
use crate::config::Config;
use crate::dirs::Dirs;
use crate::egress::state::InstallState;
use crate::error::Error;
use crate::install::image::Standing;
use crate::install::layout::Layout;
use crate::install::{call, egress, interrupt};

/// Without these podman starts no container of ours.
const FOR_CONTAINERS: [&str; 5] = ["user", "config", "podman", "subids", "image"];
/// And without these umwelt starts none.
const FOR_SANDBOXES: [&str; 9] = [
    "user", "config", "podman", "subids", "image", "places", "kernel", "cgroups", "seccomp",
];
const NOT_TRIED: &str = "not tried, as something above is missing";

pub(super) fn all(layout: &Layout, facts: &Facts, found: &[Finding]) -> Vec<Finding> {
    let mut findings = match &facts.image {
        Ok((image, standing)) if *standing != Standing::Missing && fits(found, &FOR_CONTAINERS) => {
            let mut findings = vec![keep_id(image, facts.uid)];
            if interrupt::caught().is_none() {
                findings.push(hook(layout, image, facts));
            }
            findings
        }
        _ => vec![
            Finding::warn("keep-id", NOT_TRIED),
            Finding::warn("hook", NOT_TRIED),
        ],
    };
    if interrupt::caught().is_some() {
        return findings;
    }
    if fits(found, &FOR_SANDBOXES) && fits(&findings, &["keep-id"]) {
        findings.extend(sandboxes(facts));
    } else {
        findings.push(Finding::warn("sandbox", NOT_TRIED));
    }
    findings
}

fn fits(findings: &[Finding], needed: &[&str]) -> bool {
    let broken = |finding: &&Finding| finding.verdict == Verdict::Fail;
    let mut broken = findings.iter().filter(broken);
    !broken.any(|finding| needed.contains(&&*finding.check))
}

fn keep_id(image: &str, uid: u32) -> Finding {
    match probe::keep_id(image, uid) {
        Ok(evidence) => Finding::ok("keep-id", evidence),
        Err(why) => Finding::fail("keep-id", why).hint(format!(
            "see: podman run --rm --pull=never --userns=keep-id --network=none {image} id"
        )),
    }
}

fn hook(layout: &Layout, image: &str, facts: &Facts) -> Finding {
    match &facts.nft {
        None => Finding::warn("hook", "not tried, as there is no nft"),
        Some((nft, _)) => match probe::hook(layout, image, nft) {
            Ok(evidence) => Finding::ok("hook", evidence),
            // Sandboxes without a network need no hook.
            Err(why) => {
                Finding::warn("hook", why).hint("without it, no sandbox with a network is started")
            }
        },
    }
}

/// A sandbox without a network, then one with it.
fn sandboxes(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let loaded = Dirs::from_env().map_err(Error::Dirs);
    let loaded = loaded.and_then(|dirs| Ok((Config::load(&dirs)?, dirs)));
    let (config, dirs) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => return vec![broken("sandbox", &Problem::from(&error))],
    };
    let mut throwaway = match Throwaway::open(&dirs, &config) {
        Ok(throwaway) => throwaway,
        Err(problem) => return vec![broken("sandbox", &problem)],
    };
    match throwaway.attack() {
        Ok(attacked) => {
            let said = "one was started, read back and attacked from inside";
            findings.push(Finding::ok("sandbox", said));
            findings.extend(attacked.findings.iter().cloned());
        }
        Err(problem) => return vec![broken("sandbox", &problem)],
    }
    if facts.is_without_egress {
        findings.push(Finding::ok("egress", egress::LEFT_OUT));
    } else if interrupt::caught().is_none() {
        findings.extend(with_network(&mut throwaway, &dirs));
    }
    findings
}

fn broken(check: &'static str, problem: &Problem) -> Finding {
    Finding::fail(check, format!("it is not started: {}", problem.message)).way_out(problem)
}

fn with_network(throwaway: &mut Throwaway, dirs: &Dirs) -> Vec<Finding> {
    if let Some(why) = not_installed(dirs) {
        return vec![Finding::warn("egress", why).run(egress::PUT_IN)];
    }
    match throwaway
        .ask_for_network()
        .and_then(|()| throwaway.attack())
    {
        Ok(attacked) => of_network(&attacked),
        Err(problem) => vec![without_network(&problem)],
    }
}

/// Those without one are not touched by it.
fn without_network(problem: &Problem) -> Finding {
    Finding {
        verdict: Verdict::Warn,
        ..broken("egress", problem)
    }
}

fn not_installed(dirs: &Dirs) -> Option<String> {
    if let Err(error) = InstallState::load(dirs) {
        return Some(error.to_string());
    }
    match call::find_image(egress::GATEWAY_IMAGE, egress::PROGRAM_LABEL) {
        Ok(Some(_)) => None,
        Ok(None) => Some(format!("{} does not exist", egress::GATEWAY_IMAGE)),
        Err(error) => Some(error.to_string()),
    }
}

/// The seal as well, of which only the leaks are told a second time.
fn of_network(attacked: &Attacked) -> Vec<Finding> {
    let said = "a sandbox with a network was started, and its rules were read back";
    let mut findings = vec![Finding::ok("egress", said)];
    let is_news =
        |finding: &&Finding| !finding.check.starts_with("seal-") || finding.verdict != Verdict::Ok;
    findings.extend(attacked.findings.iter().filter(is_news).cloned());
    findings.push(match attacked.gateway {
        Some(gateway) => neighbour(probe::neighbour(gateway)),
        None => Finding::warn(
            "egress-networks",
            "not tried: the gateway's address is not known",
        ),
    });
    findings
}

fn neighbour(said: Result<String, String>) -> Finding {
    const CHECK: &str = "egress-networks";
    match said {
        Ok(said) if said == "reached" => Finding::fail(
            CHECK,
            "a container on another network reaches the gateway of this sandbox",
        )
        .hint("give no project a network here; podman does not keep its networks apart"),
        Ok(said) => Finding::ok(
            CHECK,
            format!("the gateway is reached on its network, and {said} from another one"),
        ),
        Err(why) => Finding::warn(CHECK, format!("not tried: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_not_reached_passes() {
        let verdict = |said: Result<&str, &str>| {
            let said = said.map(str::to_owned).map_err(str::to_owned);
            neighbour(said).verdict
        };
        assert_eq!(verdict(Ok("reached")), Verdict::Fail);
        assert_eq!(verdict(Ok("not reached: timed out")), Verdict::Ok);
        assert_eq!(verdict(Err("no podman")), Verdict::Warn);
    }

    #[test]
    fn a_sandbox_that_is_not_started_is_told_with_its_way_out() {
        let problem = Problem::new("no room").hint("make some");
        for (found, verdict) in [
            (broken("sandbox", &problem), Verdict::Fail),
            (without_network(&problem), Verdict::Warn),
        ] {
            assert_eq!(found.verdict, verdict);
            assert_eq!(found.evidence, "it is not started: no room");
            assert_eq!(found.fix.as_deref(), Some("make some"));
        }
    }

    #[test]
    fn a_network_that_was_not_installed_is_told_so() {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| dir.path().join(name);
        let dirs = Dirs {
            home: place(""),
            config: place("c"),
            data: place("d"),
            state: place("s"),
            runtime: place("r"),
        };
        assert!(not_installed(&dirs).is_some());
    }

    #[test]
    fn what_is_broken_keeps_from_trying_what_needs_it() {
        let found = [Finding::fail("cgroups", ""), Finding::warn("podman", "")];
        assert!(fits(&found, &FOR_CONTAINERS));
        assert!(!fits(&found, &FOR_SANDBOXES));
    }
}
