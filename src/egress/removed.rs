//! Rules that were taken away -> what was, and what still allows the same; a
//! rule that cannot be taken away -> where it stands.

use crate::config::egress::EgressConfig;
use crate::config::layers::{self, Layer, Setting};
use crate::config::load_file;
use crate::config::rule::HTTPS_PORT;
use crate::dirs::Dirs;
use crate::egress::refused::Refusals;
use crate::egress::rules::RuleChange;
use crate::policy::egress::{EgressPolicy, HostPattern, HttpsRule, PathPattern, RuleOrigin};
use crate::policy::egress_change::{ChangeError, OldRule, RuleKind};
use crate::trust::{FILE, network_meaning};

/// Most rules that are named one by one.
const MAX_TOLD: usize = 10;

/// `before` is the workspace's part, `policy` what holds after the change.
pub(crate) fn notices(
    change: &RuleChange,
    before: &EgressConfig,
    policy: &EgressPolicy,
) -> Vec<String> {
    let RuleChange::Remove(old) = change else {
        return Vec::new();
    };
    let https = before.https.iter().filter(|rule| old.is_meant_https(rule));
    let https: Vec<&HttpsRule> = https.collect();
    let tcp = before.tcp.iter().filter(|rule| old.is_meant_tcp(rule));
    let removed = https.iter().map(|rule| network_meaning::https(rule));
    let removed = removed.chain(tcp.map(network_meaning::tcp));
    let removed = removed.map(|words| format!("removed: {words}"));
    let left = still_allowing(old, &https, policy);
    let left = left.map(|words| format!("still allowed by: {words}"));
    removed.take(MAX_TOLD).chain(left.take(MAX_TOLD)).collect()
}

fn still_allowing<'a>(
    old: &'a OldRule,
    removed: &'a [&HttpsRule],
    policy: &'a EgressPolicy,
) -> impl Iterator<Item = String> + 'a {
    let refusals = Refusals::of(policy);
    let is_refused = move |rule: &HttpsRule| {
        let host = old.host.clone();
        let there = HttpsRule {
            host,
            ..rule.clone()
        };
        refusals.https(&there).is_some()
    };
    let is_left = move |rule: &&HttpsRule| {
        old.kind == RuleKind::Https
            && rule.port == old.port
            && rule.host.contains(&old.host)
            && removed.iter().any(|gone| overlap(rule, gone))
            && !is_refused(rule)
    };
    let https = policy.https.iter().filter(is_left);
    let https = https.map(|rule| words(rule, &old.host));
    let tcp = policy.tcp.iter().filter(|rule| old.is_meant_tcp(rule));
    https.chain(tcp.map(|rule| source(&rule.origin)))
}

/// Whether a request can be allowed by both, as far as paths go.
fn overlap(one: &HttpsRule, other: &HttpsRule) -> bool {
    let mut pairs = one
        .paths
        .iter()
        .flat_map(|one| other.paths.iter().map(move |other| (one, other)));
    !one.inspect
        || !other.inspect
        || pairs.any(|(one, other)| one.contains(other) || other.contains(one))
}

/// `registry pip, /* by GET, HEAD`
fn words(rule: &HttpsRule, asked: &HostPattern) -> String {
    let host = match rule.host == *asked {
        true => String::new(),
        false => format!("{} ", rule.host),
    };
    let paths: Vec<String> = rule.paths.iter().map(PathPattern::to_string).collect();
    let paths = match rule.inspect {
        true => paths.join(", "),
        false => "anything, not inspected".to_owned(),
    };
    let methods = rule.methods.as_ref();
    let methods = methods.map_or_else(String::new, |list| format!(" by {}", list.join(", ")));
    format!("{}, {host}{paths}{methods}", source(&rule.origin))
}

fn source(origin: &RuleOrigin) -> String {
    match origin {
        RuleOrigin::Base => "base config".to_owned(),
        RuleOrigin::Workspace => "workspace file".to_owned(),
        RuleOrigin::Registry(tool) => format!("registry {tool}"),
    }
}

/// What helps where a change is refused. Reads the base config.
pub(crate) fn hint(
    error: &ChangeError,
    change: &RuleChange,
    own: &EgressConfig,
    dirs: &Dirs,
) -> Option<String> {
    let (ChangeError::NotOfWorkspace(origin), RuleChange::Remove(old)) = (error, change) else {
        return error.hint();
    };
    let file = dirs.base_config();
    let text = load_file(&file).ok()?;
    let base = text.as_deref().map(|text| (file.as_path(), text));
    let settings = layers::settings(base, None, &dirs.home).ok()?;
    let file = format!("{:?}", file.to_string_lossy());
    match origin {
        RuleOrigin::Registry(tool) => Some(without_registry(tool, own, &settings, &file)),
        _ => {
            let rule = settings.iter().find(|one| is_rule(one, old))?;
            Some(format!(
                "take it out of {file}, line {}; it is for all projects",
                rule.line
            ))
        }
    }
}

fn is_rule(setting: &Setting, old: &OldRule) -> bool {
    let value = &setting.value;
    let host = value["host"].as_str().and_then(|host| host.parse().ok());
    let port = match value["port"].as_i64() {
        Some(port) => u16::try_from(port).ok(),
        None => Some(HTTPS_PORT),
    };
    let kind = match setting.key.as_str() {
        "egress.https" => RuleKind::Https,
        "egress.tcp" => RuleKind::Tcp,
        _ => return false,
    };
    (kind, host.as_ref(), port) == (old.kind, Some(&old.host), Some(old.port))
}

/// Both files can name the tool.
fn without_registry(tool: &str, own: &EgressConfig, settings: &[Setting], file: &str) -> String {
    let mut lines = Vec::new();
    let mut of_base = settings.iter().filter(|one| one.key == "egress.registries");
    let names = |one: &&Setting| {
        let list = one.value.as_array();
        list.is_some_and(|list| list.iter().any(|name| name == tool))
    };
    match of_base.find(names) {
        Some(one) if one.layer == Layer::Base => lines.push(format!(
            "take {tool:?} out of registries in {file}, line {}",
            one.line
        )),
        Some(_) => lines.push(format!(
            "{tool:?} is a registry that umwelt ships; for none, write registries = [] below [egress] in {file}"
        )),
        None => {}
    }
    let own = own.registries.iter().flatten();
    if own.map(|tool| tool.name()).any(|name| name == tool) {
        lines.push(format!("take {tool:?} out of registries in {FILE}"));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::egress::testing::{read_base, read_workspace};
    use crate::policy::egress_change;
    use crate::policy::egress_rules::merge;

    fn told(base: &str, own: &str, old: OldRule) -> Vec<String> {
        let (base, own) = (read_base(base).unwrap(), read_workspace(own).unwrap());
        let policy = |own: &EgressConfig| merge("x", &base, own, Vec::new()).unwrap();
        let after = egress_change::remove(&policy(&own), &own, &old).unwrap();
        notices(&RuleChange::Remove(old), &own, &policy(&after))
    }

    fn https(host: &str, paths: Option<&str>) -> OldRule {
        OldRule::parse(RuleKind::Https, host, None, paths).unwrap()
    }

    const OWN: &str = "[[egress.https]]\nhost='a.example.org'\npaths=['/a']\n\
        [[egress.https]]\nhost='a.example.org'\npaths=['/b']\n";

    #[test]
    fn what_went_and_what_still_allows_some_of_it_are_told() {
        let base = "[[egress.https]]\nhost='*.example.org'\npaths=['/a/b']\nmethods=['GET']\n\
            [[egress.https]]\nhost='a.example.org'\nport=444\n";
        assert_eq!(
            told(base, OWN, https("a.example.org", Some("/a"))),
            [
                "removed: https://a.example.org/a",
                "still allowed by: base config, *.example.org /a/b by GET",
            ]
        );
        let both = told(base, OWN, https("a.example.org", None));
        assert_eq!(both.len(), 3, "{both:?}");
        let tunnel = "[[egress.https]]\nhost='a.example.org'\ninspect=false\n";
        assert_eq!(
            told(tunnel, OWN, https("a.example.org", Some("/a")))[1],
            "still allowed by: base config, anything, not inspected"
        );
    }

    #[test]
    fn what_is_refused_at_its_address_allows_nothing_any_more() {
        let base = "[[egress.https]]\nhost='*.example.org'\n\
            [[hosts]]\nname='a.example.org'\naddress='10.0.0.5'\n";
        assert_eq!(told(base, OWN, https("a.example.org", None)).len(), 2);
        let private = base.replacen("org'\n", "org'\nprivate=true\n", 1);
        assert_eq!(told(&private, OWN, https("a.example.org", None)).len(), 3);
    }

    #[test]
    fn tcp_rule_of_the_base_config_stays() {
        let rule = "[[egress.tcp]]\nhost='a.example.org'\nport=22\n";
        let old = || OldRule::parse(RuleKind::Tcp, "a.example.org", Some(22), None).unwrap();
        assert_eq!(told("", rule, old()), ["removed: tcp://a.example.org:22"]);
        let with_both = told(rule, rule, old());
        assert_eq!(with_both[1], "still allowed by: base config");
    }
}
