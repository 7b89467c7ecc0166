//! The networks of a sandbox with egress -> the arguments of podman, and what
//! podman says of them -> addresses. Pure.
//!
//! The sandbox and its gateway are on one network of their own. Without direct
//! targets it is internal, so that there is no way out of it but the gateway,
//! which is on a second network too.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::Ipv4Addr;

use serde::Deserialize;

use crate::podman::argv::{LABEL_PREFIX, LABEL_SID};

/// Whose networks these are, and what they are called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NetworkNames {
    pub(crate) prefix: String,
    pub(crate) sid: String,
    /// Of the sandbox and the gateway.
    pub(crate) inner: String,
    /// Of the gateway alone.
    pub(crate) outer: String,
}

/// How the networks are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Two: the inner one leads nowhere.
    Internal,
    /// One, for direct targets: it leads out, and the rules of the hook are
    /// what holds the sandbox back.
    Routed,
}

/// The addresses on the inner network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lan {
    pub(crate) gateway: Ipv4Addr,
    pub(crate) sandbox: Ipv4Addr,
}

/// The value of `--network` for a container with a fixed address. Its hardware
/// address is fixed with it: one that comes again would not be found for as
/// long as its neighbour remembers the former one.
pub(crate) fn attachment(network: &str, address: Ipv4Addr) -> String {
    let [a, b, c, d] = address.octets();
    format!("--network={network}:ip={address},mac=0a:75:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

/// Whether podman has made no network because there is one of that name. It
/// has an option to ignore that only since 4.4.
pub(crate) fn is_there(why: &str) -> bool {
    why.ends_with("network already exists")
}

/// What was found in place of the networks that were asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// Somebody else's network has our name.
    Foreign(String),
    /// One of ours, of an earlier life, and of another layout.
    Stale,
    /// podman's words are not understood.
    Unclear(String),
}

impl NetworkNames {
    /// In the order in which they are made.
    pub(crate) fn all(&self, layout: Layout) -> Vec<&str> {
        match layout {
            Layout::Internal => vec![&self.inner, &self.outer],
            Layout::Routed => vec![&self.inner],
        }
    }

    /// Makes one of them. That it [`is_there`] already is no error: it is
    /// looked at like a new one.
    pub(crate) fn create_args(&self, name: &str, layout: Layout) -> Vec<OsString> {
        let mut args: Vec<String> = ["network", "create", "--driver=bridge"]
            .map(str::to_owned)
            .into();
        // Its name server would answer for the whole world.
        args.push("--disable-dns".to_owned());
        // No way to the networks of other containers.
        args.push("--opt=isolate=true".to_owned());
        args.push(format!("--label={LABEL_PREFIX}={}", self.prefix));
        args.push(format!("--label={LABEL_SID}={}", self.sid));
        if layout == Layout::Internal && name == self.inner {
            args.push("--internal".to_owned());
        }
        args.push(name.to_owned());
        args.into_iter().map(OsString::from).collect()
    }

    /// For [`NetworkNames::parse`].
    pub(crate) fn inspect_args(&self, layout: Layout) -> Vec<OsString> {
        let command = ["network", "inspect"].into_iter();
        command
            .chain(self.all(layout))
            .map(OsString::from)
            .collect()
    }

    /// Whether the networks are what was asked for, and their addresses.
    pub(crate) fn parse(&self, output: &str, layout: Layout) -> Result<Lan, Unfit> {
        let found: Vec<Inspected> =
            serde_json::from_str(output).map_err(|error| Unfit::Unclear(error.to_string()))?;
        let find = |name: &str| {
            let network = found.iter().find(|network| network.name == name);
            network.ok_or_else(|| Unfit::Unclear(format!("nothing is said of {name:?}")))
        };
        for name in self.all(layout) {
            if !self.is_ours(find(name)?) {
                return Err(Unfit::Foreign(name.to_owned()));
            }
        }
        for name in self.all(layout) {
            let network = find(name)?;
            let internal = layout == Layout::Internal && name == self.inner;
            if !network.is_as_asked(internal) {
                return Err(Unfit::Stale);
            }
        }
        let inner = find(&self.inner)?;
        inner
            .lan()
            .ok_or_else(|| Unfit::Unclear(format!("no room for two in {:?}", inner.subnets)))
    }

    fn is_ours(&self, network: &Inspected) -> bool {
        let label = |key: &str| network.labels.get(key).map(String::as_str);
        label(LABEL_PREFIX) == Some(&self.prefix) && label(LABEL_SID) == Some(&self.sid)
    }
}

/// What `podman network inspect` says of one network, as far as it matters.
#[derive(Debug, Deserialize)]
struct Inspected {
    name: String,
    driver: String,
    #[serde(default)]
    subnets: Vec<Subnet>,
    #[serde(default)]
    ipv6_enabled: bool,
    #[serde(default)]
    internal: bool,
    #[serde(default)]
    dns_enabled: bool,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    options: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct Subnet {
    subnet: String,
    gateway: Option<Ipv4Addr>,
}

impl Inspected {
    fn is_as_asked(&self, internal: bool) -> bool {
        let isolate = self.options.get("isolate").map(String::as_str);
        self.driver == "bridge"
            && self.internal == internal
            && !self.dns_enabled
            && !self.ipv6_enabled
            && isolate == Some("true")
    }

    /// Two fixed addresses, so that neither gets the other's when it comes
    /// again. The host's end of the network has one too.
    fn lan(&self) -> Option<Lan> {
        let [subnet] = self.subnets.as_slice() else {
            return None;
        };
        let (base, length) = subnet.subnet.split_once('/')?;
        let base = u32::from(base.parse::<Ipv4Addr>().ok()?);
        let size = 1_u32.checked_shl(32_u32.checked_sub(length.parse().ok()?)?)?;
        // The last one is for broadcasts.
        let mut free = (1..size.saturating_sub(1))
            .filter_map(|offset| base.checked_add(offset))
            .map(Ipv4Addr::from)
            .filter(|address| Some(*address) != subnet.gateway);
        Some(Lan {
            gateway: free.next()?,
            sandbox: free.next()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> NetworkNames {
        NetworkNames {
            prefix: "umwelt".into(),
            sid: "0123abcd".into(),
            inner: "umwelt-egress-0123abcd".into(),
            outer: "umwelt-egress-out-0123abcd".into(),
        }
    }

    fn words(args: Vec<OsString>) -> Vec<String> {
        args.into_iter()
            .map(|word| word.into_string().unwrap())
            .collect()
    }

    fn inspected(name: &str, internal: bool, subnet: &str) -> serde_json::Value {
        serde_json::json!({
            "name": name, "id": "x", "driver": "bridge", "network_interface": "podman1",
            "subnets": [{"subnet": subnet, "gateway": "10.89.0.1"}],
            "ipv6_enabled": false, "internal": internal, "dns_enabled": false,
            "labels": {"umwelt.prefix": "umwelt", "umwelt.sid": "0123abcd"},
            "options": {"isolate": "true"}, "ipam_options": {"driver": "host-local"},
        })
    }

    fn pair() -> serde_json::Value {
        serde_json::json!([
            inspected("umwelt-egress-0123abcd", true, "10.89.0.0/24"),
            inspected("umwelt-egress-out-0123abcd", false, "10.89.1.0/24"),
        ])
    }

    fn parse(value: &serde_json::Value) -> Result<Lan, Unfit> {
        names().parse(&value.to_string(), Layout::Internal)
    }

    #[test]
    fn only_the_network_of_the_sandbox_is_internal_and_none_has_names() {
        let (names, is_internal) = (names(), "--internal".to_owned());
        for (name, layout, internal) in [
            (&names.inner, Layout::Internal, true),
            (&names.outer, Layout::Internal, false),
            (&names.inner, Layout::Routed, false),
        ] {
            let words = words(names.create_args(name, layout));
            assert_eq!(words.contains(&is_internal), internal, "{words:?}");
            assert!(words.contains(&"--disable-dns".to_owned()));
            assert!(words.contains(&"--label=umwelt.sid=0123abcd".to_owned()));
            assert_eq!(words.last(), Some(name));
        }
    }

    #[test]
    fn network_that_is_there_is_told_from_other_failures() {
        let said =
            "Error: network name umwelt-egress-0123abcd already used: network already exists";
        assert!(is_there(said));
        assert!(!is_there(
            "Error: could not find free subnet from subnet pools"
        ));
        assert!(!is_there(""));
    }

    /// podman 4.3 gives the host no address on an internal one.
    #[test]
    fn host_may_have_no_address_on_the_inner_network() {
        let mut old = pair();
        old[0]["subnets"] = serde_json::json!([{"subnet": "10.89.0.0/24"}]);
        let lan = parse(&old).unwrap();
        assert_eq!(lan.gateway, Ipv4Addr::new(10, 89, 0, 1));
        assert_eq!(lan.sandbox, Ipv4Addr::new(10, 89, 0, 2));
    }

    #[test]
    fn addresses_leave_out_that_of_the_host() {
        let lan = parse(&pair()).unwrap();
        assert_eq!(lan.gateway, Ipv4Addr::new(10, 89, 0, 2));
        assert_eq!(lan.sandbox, Ipv4Addr::new(10, 89, 0, 3));
        let mut other = pair();
        other[0]["subnets"][0]["gateway"] = "10.89.0.2".into();
        let lan = parse(&other).unwrap();
        assert_eq!(lan.gateway, Ipv4Addr::new(10, 89, 0, 1));
        assert_eq!(lan.sandbox, Ipv4Addr::new(10, 89, 0, 3));
    }

    #[test]
    fn hardware_address_follows_from_the_address() {
        assert_eq!(
            attachment("n", Ipv4Addr::new(10, 89, 0, 2)),
            "--network=n:ip=10.89.0.2,mac=0a:75:0a:59:00:02"
        );
    }

    #[test]
    fn network_without_our_labels_is_left_alone() {
        for label in ["umwelt.prefix", "umwelt.sid"] {
            let mut foreign = pair();
            foreign[1]["labels"][label] = "other".into();
            let name = "umwelt-egress-out-0123abcd".to_owned();
            assert_eq!(parse(&foreign), Err(Unfit::Foreign(name)));
        }
    }

    #[test]
    fn network_of_another_layout_is_not_used() {
        for (key, value) in [
            ("internal", false.into()),
            ("dns_enabled", true.into()),
            ("ipv6_enabled", true.into()),
            ("driver", "macvlan".into()),
            ("options", serde_json::json!({})),
        ] {
            let mut stale = pair();
            stale[0][key] = value;
            assert_eq!(parse(&stale), Err(Unfit::Stale), "{key}");
        }
        let routed = names().parse(&pair().to_string(), Layout::Routed);
        assert_eq!(routed, Err(Unfit::Stale));
    }

    #[test]
    fn what_is_not_understood_is_no_network() {
        let mut small = pair();
        small[0]["subnets"][0]["subnet"] = "10.89.0.0/30".into();
        let mut none = pair();
        none[0]["subnets"] = serde_json::json!([]);
        let mut short = pair();
        short.as_array_mut().unwrap().pop();
        let mut wrong = pair();
        wrong[0]["subnets"][0]["subnet"] = "10.89.0.0/33".into();
        let values = [small, none, short, wrong].map(|value| value.to_string());
        for text in values.iter().map(String::as_str).chain(["", "{}"]) {
            let parsed = names().parse(text, Layout::Internal);
            assert!(matches!(parsed, Err(Unfit::Unclear(_))), "{text}");
        }
    }
}
