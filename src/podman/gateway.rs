//! A gateway -> the arguments of `podman run`. Pure.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::config::Resources;
use crate::podman::argv::{
    FLOOR, LABEL_PREFIX, LABEL_ROLE, LABEL_SID, LABEL_WORKSPACE, render_caps, render_mount,
};
use crate::podman::delegation::Delegated;
use crate::podman::network::{Lan, Layout, NetworkNames, attachment};
use crate::policy::mounts::{Access, Mount, MountSet, Origin};

/// Made of the binary alone: there is no shell in it.
pub(crate) const IMAGE: &str = "localhost/umwelt-egress-gw:latest";
/// Its own memory, whatever the sandbox has; ten thousand inspected tunnels
/// take half of it.
pub(crate) const MEMORY: u64 = 512 << 20;
/// Threads count as processes.
const PIDS: u64 = 128;
const PROGRAM: &str = "/umwelt";
/// The gateway has no use for it.
const SHM: u64 = 64 << 10;
/// Two for each of ten thousand tunnels.
const DESCRIPTORS: u32 = 65536;

/// Everything that decides how a gateway is created.
#[derive(Debug, Clone)]
pub(crate) struct GatewaySpec {
    pub(crate) name: String,
    pub(crate) networks: NetworkNames,
    pub(crate) layout: Layout,
    pub(crate) lan: Lan,
    pub(crate) workspace: String,
    pub(crate) user: (u32, u32),
    pub(crate) passwd_entry: String,
    pub(crate) seccomp: String,
    pub(crate) selinux: bool,
    pub(crate) delegated: Delegated,
    pub(crate) cpus: u32,
    /// Where podman writes the id.
    pub(crate) cidfile: String,
    pub(crate) files: GatewayFiles,
    pub(crate) resolvers: Vec<IpAddr>,
}

/// What of the host the gateway sees.
#[derive(Debug, Clone)]
pub(crate) struct GatewayFiles {
    /// The running program, over that of the image: both ends of the policy
    /// file are of one version then.
    pub(crate) exe: PathBuf,
    /// The directory of the policy, because the file is replaced.
    pub(crate) policy: PathBuf,
    pub(crate) ca_cert: PathBuf,
    pub(crate) ca_key: PathBuf,
    pub(crate) roots: PathBuf,
    /// The directory of the audit, which is written.
    pub(crate) audit: PathBuf,
}

/// Names inside, in the directories of `GatewayFiles`.
pub(crate) const POLICY_FILE: &str = "policy.json";
pub(crate) const AUDIT_FILE: &str = "audit.jsonl";

impl GatewaySpec {
    /// The arguments after `podman`.
    pub(crate) fn render_argv(&self) -> Vec<OsString> {
        let (sid, networks) = (&self.networks.sid, &self.networks);
        let mut argv = vec!["run".to_owned()];
        argv.extend(FLOOR.map(str::to_owned));
        argv.push("--hostname=umwelt-gateway".to_owned());
        argv.push(format!("--ulimit=nofile={DESCRIPTORS}:{DESCRIPTORS}"));
        // Names are asked for at port 53, without a capability.
        argv.push("--sysctl=net.ipv4.ip_unprivileged_port_start=53".to_owned());
        argv.push(attachment(&networks.inner, self.lan.gateway));
        if self.layout == Layout::Internal {
            argv.push(format!("--network={}", networks.outer));
        }
        argv.push(format!("--name={}", self.name));
        argv.push(format!("--cidfile={}", self.cidfile));
        argv.push(format!("--label={LABEL_PREFIX}={}", networks.prefix));
        argv.push(format!("--label={LABEL_SID}={sid}"));
        argv.push(format!("--label={LABEL_ROLE}=gateway"));
        argv.push(format!("--label={LABEL_WORKSPACE}={}", self.workspace));
        argv.push(format!("--user={}:{}", self.user.0, self.user.1));
        argv.push(format!("--passwd-entry={}", self.passwd_entry));
        argv.push(format!("--security-opt=seccomp={}", self.seccomp));
        if self.selinux {
            argv.push("--security-opt=label=disable".to_owned());
        }
        let caps = Resources {
            memory: MEMORY,
            cpus: f64::from(self.cpus),
            pids_limit: PIDS,
        };
        argv.extend(render_caps(&caps, &self.delegated));
        let mounts = self.files.mounts();
        argv.extend(
            mounts
                .iter()
                .map(|mount| format!("--mount={}", render_mount(mount))),
        );
        argv.push("--workdir=/".to_owned());
        argv.push(format!("--entrypoint=[\"{PROGRAM}\",\"gateway\"]"));
        argv.push(IMAGE.to_owned());
        argv.extend(self.arguments());
        argv.into_iter().map(OsString::from).collect()
    }

    /// Of the gateway itself.
    fn arguments(&self) -> Vec<String> {
        let mut arguments: Vec<String> = [
            "--supervised",
            "--ca-cert=/ca/ca.pem",
            "--ca-key=/ca/ca.key",
            "--roots=/ca/roots.pem",
        ]
        .map(str::to_owned)
        .into();
        arguments.push(format!("--policy=/policy/{POLICY_FILE}"));
        arguments.push(format!("--audit=/audit/{AUDIT_FILE}"));
        // Of this network only: the way out has no business here.
        arguments.push(format!("--listen={}", self.lan.gateway));
        arguments.push(format!("--threads={}", self.cpus));
        let resolvers = self.resolvers.iter();
        arguments.extend(resolvers.map(|address| format!("--resolver={address}")));
        arguments
    }
}

impl GatewayFiles {
    /// All that is mounted; it is read back when the gateway runs.
    pub(crate) fn mounts(&self) -> MountSet {
        let bind = |source: &Path, path: &str, access| {
            Mount::bind(path, &source.to_string_lossy(), access, Origin::Umwelt)
        };
        let read = |source, path| bind(source, path, Access::ReadOnly);
        MountSet::merge(vec![
            read(self.exe.as_path(), PROGRAM),
            read(&self.policy, "/policy"),
            read(&self.ca_cert, "/ca/ca.pem"),
            read(&self.ca_key, "/ca/ca.key"),
            read(&self.roots, "/ca/roots.pem"),
            bind(&self.audit, "/audit", Access::ReadWrite),
            // podman's own one would be a thousand times as large.
            Mount::tmpfs("/dev/shm", SHM, Origin::Umwelt),
        ])
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    pub(crate) fn spec(layout: Layout) -> GatewaySpec {
        GatewaySpec {
            name: "umwelt-egress-gw-0123abcd".into(),
            networks: NetworkNames {
                prefix: "umwelt".into(),
                sid: "0123abcd".into(),
                inner: "umwelt-egress-0123abcd".into(),
                outer: "umwelt-egress-out-0123abcd".into(),
            },
            layout,
            lan: Lan {
                gateway: Ipv4Addr::new(10, 89, 0, 2),
                sandbox: Ipv4Addr::new(10, 89, 0, 3),
            },
            workspace: "/w".into(),
            user: (1000, 1000),
            passwd_entry: "u:*:1000:1000::/home/u:/bin/sh".into(),
            seccomp: "/r/seccomp.json".into(),
            selinux: false,
            delegated: Delegated::for_test(),
            cpus: 4,
            cidfile: "/r/gateway.cid".into(),
            files: GatewayFiles {
                exe: "/home/u/.local/lib/umwelt/umwelt".into(),
                policy: "/r/policy".into(),
                ca_cert: "/d/egress/ca.pem".into(),
                ca_key: "/d/egress/ca.key".into(),
                roots: "/d/egress/roots.pem".into(),
                audit: "/d/egress/audit-0123abcd".into(),
            },
            resolvers: vec!["192.0.2.53".parse().unwrap()],
        }
    }

    fn argv(layout: Layout) -> Vec<String> {
        let words = spec(layout).render_argv().into_iter();
        words.map(|word| word.into_string().unwrap()).collect()
    }

    #[test]
    fn gateway_has_the_floor_of_the_sandbox() {
        let argv = argv(Layout::Internal);
        for flag in FLOOR {
            assert!(argv.contains(&flag.to_owned()), "{flag}");
        }
        assert!(argv.contains(&"--memory=536870912b".to_owned()));
        assert!(argv.contains(&"--pids-limit=128".to_owned()));
        assert!(argv.contains(&"--user=1000:1000".to_owned()));
    }

    #[test]
    fn gateway_listens_on_the_network_of_the_sandbox_only() {
        let networks = |layout| {
            let mut argv = argv(layout);
            argv.retain(|word| word.starts_with("--network"));
            argv
        };
        let inner = "--network=umwelt-egress-0123abcd:ip=10.89.0.2,mac=0a:75:0a:59:00:02";
        assert_eq!(
            networks(Layout::Internal),
            [inner, "--network=umwelt-egress-out-0123abcd"]
        );
        assert_eq!(networks(Layout::Routed), [inner]);
        let listens = |word: &&String| word.starts_with("--listen");
        let argv = argv(Layout::Internal);
        let listens: Vec<&String> = argv.iter().filter(listens).collect();
        assert_eq!(listens, ["--listen=10.89.0.2"]);
        assert!(!argv.iter().any(|word| word.starts_with("--publish")));
    }

    #[test]
    fn only_the_audit_can_be_written() {
        let argv = argv(Layout::Internal);
        let writable: Vec<&String> = argv
            .iter()
            .filter(|word| word.contains("rw=true"))
            .collect();
        assert_eq!(
            writable,
            [
                "--mount=type=bind,src=/d/egress/audit-0123abcd,dst=/audit,rw=true,bind-propagation=rprivate,nosuid,nodev"
            ]
        );
    }

    #[test]
    fn arguments_are_those_that_the_gateway_knows() {
        let argv = spec(Layout::Internal).render_argv();
        let image = argv.iter().position(|word| word == IMAGE).unwrap();
        let parsed = crate::gateway::tests::parse(argv[image + 1..].to_vec());
        assert!(parsed.is_ok(), "{parsed:?}");
    }
}
