//! The host's default seccomp profile -> a tighter one. Pure.
//!
//! The profile is derived at each start, not shipped: an update of the host's
//! profile reaches the sandbox, and calls are only ever taken away from it.

use serde_json::{Value, json};

/// Calls that the agent's commands do not need and that kernels keep getting
/// attacked through, or that lead out of the sandbox's own namespaces.
const DENIED: [&str; 27] = [
    "add_key",
    "bpf",
    "fanotify_init",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "keyctl",
    "lookup_dcookie",
    "modify_ldt",
    "mount",
    "mount_setattr",
    "move_mount",
    "name_to_handle_at",
    "open_by_handle_at",
    "open_tree",
    "perf_event_open",
    "pivot_root",
    "request_key",
    "setns",
    "syslog",
    "umount",
    "umount2",
    "userfaultfd",
];
/// The one-call form of all socket calls on 32-bit architectures: its
/// arguments are in memory, where a filter cannot see the address family.
const SOCKETCALL: &str = "socketcall";

const CLONE_NEWUSER: u64 = 0x1000_0000;
const EPERM: u64 = 1;
const ENOSYS: u64 = 38;
const AF_UNIX: u64 = 1;
const AF_INET: u64 = 2;
const AF_INET6: u64 = 10;
const AF_NETLINK: u64 = 16;
const NETLINK_ROUTE: u64 = 0;
const SOCK_STREAM: u64 = 1;
const SOCK_DGRAM: u64 = 2;
/// The rest of the argument holds `SOCK_CLOEXEC` and the like.
const SOCK_TYPE_MASK: u64 = 0xf;
const IPPROTO_ICMP: u64 = 1;
const IPPROTO_TCP: u64 = 6;
const IPPROTO_UDP: u64 = 17;
const IPPROTO_ICMPV6: u64 = 58;

/// Takes calls away from `profile` (the JSON of containers/common). An error
/// says what about the profile is not understood: then nothing may start.
pub(crate) fn tighten(mut profile: Value) -> Result<Value, String> {
    let default_denies =
        profile.get("defaultAction").and_then(Value::as_str) == Some("SCMP_ACT_ERRNO");
    if !default_denies {
        return Err("its default action is not SCMP_ACT_ERRNO".to_owned());
    }
    let default_errno = profile
        .get("defaultErrnoRet")
        .and_then(Value::as_u64)
        .unwrap_or(EPERM);
    let Some(rules) = profile.get_mut("syscalls").and_then(Value::as_array_mut) else {
        return Err("it has no list \"syscalls\"".to_owned());
    };
    let mut ours = DENIED.to_vec();
    ours.extend([
        SOCKETCALL,
        "clone",
        "clone3",
        "unshare",
        "socket",
        "socketpair",
        "prlimit64",
    ]);
    for rule in rules.iter_mut() {
        remove_names(rule, &ours)?;
    }
    rules.retain(|rule| {
        rule.get("names")
            .and_then(Value::as_array)
            .is_some_and(|names| !names.is_empty())
    });
    // A rule whose action equals the default one is skipped by the runtime.
    let mut deny = |names: &[&str], errno: u64, args: Value| {
        rules.push(
            json!({"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": errno, "args": args}),
        );
    };
    deny(&DENIED, EPERM, json!([]));
    // This one must not be skipped: libseccomp would derive rules for it from
    // those for `socket`, and the allowing ones among them would hold.
    let unlike_default = if default_errno == EPERM {
        ENOSYS
    } else {
        EPERM
    };
    deny(&[SOCKETCALL], unlike_default, json!([]));
    // libc falls back to clone, whose flags a filter can read.
    deny(&["clone3"], ENOSYS, json!([]));
    deny(&["prlimit64"], EPERM, json!([not_equal(0, 0)]));
    deny(
        &["clone", "unshare"],
        EPERM,
        json!([masked(0, CLONE_NEWUSER, CLONE_NEWUSER)]),
    );
    // Limits of another process of the same user, such as pid 1, are not for
    // commands to set: the call is left for the caller itself.
    rules.push(allow("prlimit64", json!([equal(0, 0)])));
    // Other families get the profile's default error.
    rules.push(allow("socket", json!([equal(0, AF_UNIX)])));
    // Streams, datagrams and ping; the kernel loads a module for any other.
    for (family, ping) in [(AF_INET, IPPROTO_ICMP), (AF_INET6, IPPROTO_ICMPV6)] {
        for (kind, protocol) in [
            (SOCK_STREAM, 0),
            (SOCK_STREAM, IPPROTO_TCP),
            (SOCK_DGRAM, 0),
            (SOCK_DGRAM, IPPROTO_UDP),
            (SOCK_DGRAM, ping),
        ] {
            let kind = masked(1, SOCK_TYPE_MASK, kind);
            rules.push(allow(
                "socket",
                json!([equal(0, family), kind, equal(2, protocol)]),
            ));
        }
    }
    rules.push(allow(
        "socket",
        json!([equal(0, AF_NETLINK), equal(2, NETLINK_ROUTE)]),
    ));
    rules.push(allow("socketpair", json!([equal(0, AF_UNIX)])));
    for name in ["clone", "unshare"] {
        rules.push(allow(name, json!([masked(0, CLONE_NEWUSER, 0)])));
    }
    Ok(profile)
}

fn remove_names(rule: &mut Value, taken: &[&str]) -> Result<(), String> {
    if let Some(single) = rule.get("name").and_then(Value::as_str) {
        return Err(format!("it has a rule in an old form, for {single:?}"));
    }
    let Some(names) = rule.get_mut("names").and_then(Value::as_array_mut) else {
        return Err("it has a rule without \"names\"".to_owned());
    };
    names.retain(|name| name.as_str().is_some_and(|name| !taken.contains(&name)));
    Ok(())
}

fn allow(name: &str, args: Value) -> Value {
    json!({"names": [name], "action": "SCMP_ACT_ALLOW", "args": args})
}

fn equal(index: u32, value: u64) -> Value {
    json!({"index": index, "value": value, "valueTwo": 0, "op": "SCMP_CMP_EQ"})
}

fn not_equal(index: u32, value: u64) -> Value {
    json!({"index": index, "value": value, "valueTwo": 0, "op": "SCMP_CMP_NE"})
}

/// `argument & mask == value`, in the order of fields of seccomp_rule_add(3).
fn masked(index: u32, mask: u64, value: u64) -> Value {
    json!({"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Value {
        json!({
            "defaultAction": "SCMP_ACT_ERRNO",
            "defaultErrnoRet": 38,
            "syscalls": [
                {"names": ["read", "clone", "clone3", "unshare", "setns", "mount", "socketcall", "socketpair", "syslog", "fanotify_init"], "action": "SCMP_ACT_ALLOW", "args": []},
                {"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": []},
                {"names": ["bpf"], "action": "SCMP_ACT_ALLOW", "args": [], "includes": {"caps": ["CAP_BPF"]}},
                {"names": ["keyctl"], "action": "SCMP_ACT_LOG", "args": []},
            ]
        })
    }

    /// The rules for one call, without their names.
    fn rules_for(profile: &Value, name: &str) -> Vec<(String, Value)> {
        let rules = profile["syscalls"].as_array().unwrap();
        rules
            .iter()
            .filter(|rule| rule["names"].as_array().unwrap().iter().any(|n| n == name))
            .map(|rule| {
                (
                    rule["action"].as_str().unwrap().to_owned(),
                    rule["args"].clone(),
                )
            })
            .collect()
    }

    #[test]
    fn taken_calls_are_denied_whatever_the_profile_said() {
        let tight = tighten(profile()).unwrap();
        for name in DENIED.iter().chain(&[SOCKETCALL]) {
            assert_eq!(
                rules_for(&tight, name),
                [("SCMP_ACT_ERRNO".to_owned(), json!([]))],
                "{name}"
            );
        }
        assert_eq!(rules_for(&tight, "read").len(), 1);
    }

    #[test]
    fn clone_is_allowed_only_without_a_new_user_namespace() {
        let tight = tighten(profile()).unwrap();
        for name in ["clone", "unshare"] {
            let rules = rules_for(&tight, name);
            assert!(rules.contains(&(
                "SCMP_ACT_ALLOW".to_owned(),
                json!([masked(0, 0x1000_0000, 0)])
            )));
            assert!(rules.contains(&(
                "SCMP_ACT_ERRNO".to_owned(),
                json!([masked(0, 0x1000_0000, 0x1000_0000)])
            )));
            assert_eq!(rules.len(), 2);
        }
    }

    /// The errno of the one rule for a call.
    fn errno_for(profile: &Value, name: &str) -> u64 {
        let rules = profile["syscalls"].as_array().unwrap();
        let rule = rules.iter().find(|rule| rule["names"] == json!([name]));
        rule.unwrap()["errnoRet"].as_u64().unwrap()
    }

    #[test]
    fn socketcall_never_has_the_default_answer_and_clone3_is_never_known() {
        for (default, expected) in [(json!(38), 1), (json!(1), 38), (Value::Null, 38)] {
            let mut profile = profile();
            profile["defaultErrnoRet"] = default;
            let tight = tighten(profile).unwrap();
            assert_eq!(errno_for(&tight, SOCKETCALL), expected);
            assert_eq!(errno_for(&tight, "clone3"), 38);
        }
    }

    #[test]
    fn limits_can_be_set_for_the_caller_only() {
        let rules = rules_for(&tighten(profile()).unwrap(), "prlimit64");
        assert!(rules.contains(&("SCMP_ACT_ALLOW".to_owned(), json!([equal(0, 0)]))));
        assert!(rules.contains(&("SCMP_ACT_ERRNO".to_owned(), json!([not_equal(0, 0)]))));
        assert_eq!(rules.len(), 2);
    }

    #[test]
    fn sockets_are_allowed_by_family() {
        let rules = rules_for(&tighten(profile()).unwrap(), "socket");
        assert_eq!(rules.len(), 12);
        assert!(rules.iter().all(
            |(action, args)| action == "SCMP_ACT_ALLOW" && !args.as_array().unwrap().is_empty()
        ));
    }

    #[test]
    fn pairs_of_sockets_are_of_the_unix_family() {
        let rules = rules_for(&tighten(profile()).unwrap(), "socketpair");
        assert_eq!(
            rules,
            [("SCMP_ACT_ALLOW".to_owned(), json!([equal(0, AF_UNIX)]))]
        );
    }

    #[test]
    fn profiles_that_are_not_understood_are_refused() {
        assert!(tighten(json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": []})).is_err());
        assert!(tighten(json!({"defaultAction": "SCMP_ACT_ERRNO"})).is_err());
        assert!(tighten(json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"name": "bpf", "action": "SCMP_ACT_ALLOW"}]})).is_err());
        assert!(tighten(json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"action": "SCMP_ACT_ALLOW"}]})).is_err());
        assert!(tighten(json!([])).is_err());
    }
}
