//! What is allowed -> the arguments of `podman run`. Pure.
//!
//! The floor lives in this file and nowhere else. No configuration reaches
//! the flags below except through the fields of `ContainerSpec`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::Ipv4Addr;

use crate::config::Resources;
use crate::podman::delegation::Delegated;
use crate::podman::network::attachment;
use crate::policy::mounts::{Access, Cover, Mount, MountKind, MountSet};
use crate::workspace::FileId;

/// Label keys. A container without them is not ours and is never touched.
pub(crate) const LABEL_PREFIX: &str = "umwelt.prefix";
pub(crate) const LABEL_SID: &str = "umwelt.sid";
pub(crate) const LABEL_WORKSPACE: &str = "umwelt.workspace";
/// On what belongs to a sandbox and is none.
pub(crate) const LABEL_ROLE: &str = "umwelt.role";

/// Everything that decides how one sandbox container is created.
#[derive(Debug, Clone)]
pub(crate) struct ContainerSpec {
    pub(crate) name: String,
    pub(crate) prefix: String,
    pub(crate) sid: String,
    pub(crate) workspace: String,
    pub(crate) image: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The line that names the user in the /etc/passwd inside.
    pub(crate) passwd_entry: String,
    /// The derived seccomp profile.
    pub(crate) seccomp: String,
    /// Whether SELinux is enforcing here: then labels would bar the mounts.
    pub(crate) selinux: bool,
    pub(crate) resources: Resources,
    /// The caps can be enforced.
    pub(crate) delegated: Delegated,
    pub(crate) network: Network,
    pub(crate) mounts: MountSet,
    /// What the sources of binds were when they were allowed, by path.
    pub(crate) sources: BTreeMap<String, FileId>,
    /// The path inside of the program that becomes pid 1.
    pub(crate) init: String,
    /// Where podman writes the id of the container as soon as it has one.
    pub(crate) cidfile: String,
}

/// What a sandbox is connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Network {
    /// Nothing: there is no interface but the loopback.
    None,
    /// The gateway, and what the rules of the hook let through.
    Egress(EgressNetwork),
}

/// The private network of one sandbox and its gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EgressNetwork {
    pub(crate) name: String,
    /// The sandbox's own.
    pub(crate) address: Ipv4Addr,
    /// Options of podman itself, which name the directories of hooks.
    pub(crate) hooks_dirs: Vec<OsString>,
    /// Where the runtime writes what the hook says.
    pub(crate) hook_stderr: OsString,
}

impl Network {
    fn options(&self) -> Vec<OsString> {
        match self {
            Network::None => vec!["--network=none".into()],
            Network::Egress(network) => vec![
                attachment(&network.name, network.address).into(),
                network.hook_stderr.clone(),
            ],
        }
    }
}

/// Flags that no configuration can change, each with its reason. The gateway
/// has the same ones.
pub(super) const FLOOR: [&str; 25] = [
    "--detach",
    "--rm",
    // A missing image is an error with a hint, not a download.
    "--pull=never",
    "--read-only",
    // podman's own writable places would have no size limit.
    "--read-only-tmpfs=false",
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
    // The host user's uid inside, never root.
    "--userns=keep-id",
    "--pid=private",
    "--ipc=private",
    "--uts=private",
    "--cgroupns=private",
    // podman would copy the host's proxy variables and /etc/hosts.
    "--http-proxy=false",
    "--no-hosts",
    // A VOLUME of the image would be writable storage without a limit.
    "--image-volume=ignore",
    "--log-driver=none",
    "--no-healthcheck",
    "--sdnotify=ignore",
    "--systemd=false",
    "--restart=no",
    // A containers.conf can turn these on.
    "--privileged=false",
    "--init=false",
    "--env-host=false",
    "--ulimit=core=0:0",
    // The control channel: descriptor 3.
    "--preserve-fds=1",
];

/// Of the sandbox alone.
const SANDBOX: [&str; 2] = [
    "--hostname=umwelt",
    // Descriptors on their way through sockets are counted for the user, on
    // the host too (unix(7), ETOOMANYREFS): fewer here than a host process has.
    "--ulimit=nofile=1024:16384",
];

impl ContainerSpec {
    /// The arguments after `podman`.
    pub(crate) fn render_argv(&self) -> Vec<OsString> {
        let mut argv = match &self.network {
            Network::None => Vec::new(),
            Network::Egress(network) => network.hooks_dirs.clone(),
        };
        argv.push("run".into());
        argv.extend(FLOOR.map(OsString::from));
        argv.extend(SANDBOX.map(OsString::from));
        argv.extend(self.network.options());
        argv.extend(self.options().into_iter().map(OsString::from));
        argv
    }

    /// What is not fixed, and the image.
    fn options(&self) -> Vec<String> {
        let mut argv = Vec::new();
        argv.push(format!("--name={}", self.name));
        argv.push(format!("--cidfile={}", self.cidfile));
        argv.push(format!("--label={LABEL_PREFIX}={}", self.prefix));
        argv.push(format!("--label={LABEL_SID}={}", self.sid));
        argv.push(format!("--label={LABEL_WORKSPACE}={}", self.workspace));
        argv.push(format!("--user={}:{}", self.uid, self.gid));
        argv.push(format!("--passwd-entry={}", self.passwd_entry));
        argv.push(format!("--security-opt=seccomp={}", self.seccomp));
        if self.selinux {
            argv.push("--security-opt=label=disable".to_owned());
        }
        argv.extend(render_caps(&self.resources, &self.delegated));
        for mount in self.mounts.iter() {
            argv.push(format!("--mount={}", render_mount(mount)));
        }
        argv.push("--workdir=/".to_owned());
        argv.push(format!(
            "--entrypoint=[{}]",
            serde_json::Value::from(self.init.as_str())
        ));
        argv.push(self.image.clone());
        argv
    }
}

/// The resource caps. They need the proof that they can be enforced.
pub(super) fn render_caps(resources: &Resources, _proof: &Delegated) -> [String; 4] {
    [
        format!("--memory={}b", resources.memory),
        // The same value: no swap on top of the memory.
        format!("--memory-swap={}b", resources.memory),
        format!("--cpus={}", resources.cpus),
        format!("--pids-limit={}", resources.pids_limit),
    ]
}

/// One value of `--mount`: comma-separated fields, quoted as CSV, because a
/// path may hold commas and quotes.
pub(super) fn render_mount(mount: &Mount) -> String {
    let path = format!("dst={}", mount.path);
    let fields = match &mount.kind {
        MountKind::Bind { source, access } => {
            let access = match access {
                Access::ReadOnly => "ro=true",
                Access::ReadWrite => "rw=true",
            };
            vec![
                "type=bind".to_owned(),
                format!("src={source}"),
                path,
                access.to_owned(),
                "bind-propagation=rprivate".to_owned(),
            ]
        }
        MountKind::Tmpfs { size, private } => {
            let mode: &[&str] = if *private {
                &["tmpfs-mode=0700", "U=true"]
            } else {
                &["tmpfs-mode=1777"]
            };
            let mut fields = vec!["type=tmpfs".to_owned(), path, format!("tmpfs-size={size}")];
            fields.extend(mode.iter().map(|option| (*option).to_owned()));
            // podman copies what the image has there into the tmpfs otherwise.
            fields.extend(["exec".to_owned(), "notmpcopyup".to_owned()]);
            fields
        }
        MountKind::Mask { cover, .. } => render_cover(*cover, path),
    };
    let mut fields: Vec<String> = fields.iter().map(|field| quote_csv(field)).collect();
    fields.extend(["nosuid".to_owned(), "nodev".to_owned()]);
    fields.join(",")
}

/// Size in bytes of the tmpfs over a hidden directory, which stays empty.
pub(crate) const COVER_SIZE: u64 = 65536;

/// What is mounted over something hidden: nothing of it is left, and nothing
/// is made on the host.
fn render_cover(cover: Cover, path: String) -> Vec<String> {
    let fixed: &[&str] = match cover {
        // Without `notmpcopyup` podman may copy what is hidden into it.
        Cover::Directory => &["tmpfs-mode=0555", "ro=true", "noexec", "notmpcopyup"],
        Cover::File => &["src=/dev/null", "ro=true", "bind-propagation=rprivate"],
    };
    let mut fields = match cover {
        Cover::Directory => vec!["type=tmpfs".to_owned(), format!("tmpfs-size={COVER_SIZE}")],
        Cover::File => vec!["type=bind".to_owned()],
    };
    fields.push(path);
    fields.extend(fixed.iter().map(|field| (*field).to_owned()));
    fields
}

fn quote_csv(field: &str) -> String {
    if field.contains(['"', ',', '\n', '\r']) || field.starts_with(' ') {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::mounts::Origin;

    fn spec(mounts: Vec<Mount>) -> ContainerSpec {
        ContainerSpec {
            name: "umwelt-0123abcd".into(),
            prefix: "umwelt".into(),
            sid: "0123abcd".into(),
            workspace: "/w".into(),
            image: "umwelt:latest".into(),
            uid: 1000,
            gid: 1000,
            passwd_entry: "u:*:1000:1000::/home/u:/bin/sh".into(),
            seccomp: "/run/user/1000/umwelt-0123abcd/seccomp.json".into(),
            selinux: false,
            resources: Resources {
                memory: 1 << 30,
                cpus: 1.5,
                pids_limit: 64,
            },
            delegated: Delegated::for_test(),
            network: Network::None,
            mounts: MountSet::merge(mounts),
            sources: BTreeMap::new(),
            init: "/run/umwelt/umwelt-init".into(),
            cidfile: "/run/user/1000/umwelt-0123abcd/cid".into(),
        }
    }

    fn argv(spec: &ContainerSpec) -> Vec<String> {
        spec.render_argv()
            .into_iter()
            .map(|word| word.into_string().unwrap())
            .collect()
    }

    #[test]
    fn floor_is_always_there_and_image_is_last() {
        let argv = argv(&spec(vec![]));
        for flag in FLOOR.iter().chain(&SANDBOX) {
            assert!(argv.contains(&(*flag).to_owned()), "{flag}");
        }
        assert!(argv.contains(&"--memory=1073741824b".to_owned()));
        assert!(argv.contains(&"--memory-swap=1073741824b".to_owned()));
        assert!(argv.contains(&"--cpus=1.5".to_owned()));
        assert_eq!(argv.last().unwrap(), "umwelt:latest");
        assert!(!argv.iter().any(|word| word.contains("label=disable")));
    }

    #[test]
    fn sandbox_is_on_no_network_or_on_the_one_with_its_gateway() {
        let mut spec = spec(vec![]);
        let networks = |spec: &ContainerSpec| {
            let mut argv = argv(spec);
            argv.retain(|word| word.starts_with("--network"));
            argv
        };
        assert_eq!(networks(&spec), ["--network=none"]);
        spec.network = Network::Egress(EgressNetwork {
            name: "umwelt-egress-0123abcd".into(),
            address: Ipv4Addr::new(10, 89, 0, 3),
            hooks_dirs: vec!["--hooks-dir=/a".into(), "--hooks-dir=/own".into()],
            hook_stderr: "--annotation=run.oci.hooks.stderr=/r/said".into(),
        });
        assert_eq!(
            networks(&spec),
            ["--network=umwelt-egress-0123abcd:ip=10.89.0.3,mac=0a:75:0a:59:00:03"]
        );
        let argv = argv(&spec);
        // Options of podman itself, and so before the command.
        assert_eq!(argv[..3], ["--hooks-dir=/a", "--hooks-dir=/own", "run"]);
        assert!(argv.contains(&"--annotation=run.oci.hooks.stderr=/r/said".to_owned()));
    }

    #[test]
    fn what_a_containers_conf_can_turn_on_is_turned_off() {
        let argv = argv(&spec(vec![]));
        for name in ["privileged", "init", "env-host", "http-proxy"] {
            assert!(argv.contains(&format!("--{name}=false")), "{name}");
        }
    }

    #[test]
    fn selinux_hosts_get_the_label_exception_only_there() {
        let mut spec = spec(vec![]);
        spec.selinux = true;
        assert!(argv(&spec).contains(&"--security-opt=label=disable".to_owned()));
    }

    #[test]
    fn paths_with_csv_characters_are_quoted() {
        let mount = Mount::bind(
            "/w/a,\"b\" c",
            "/w/a,\"b\" c",
            Access::ReadWrite,
            Origin::Workspace,
        );
        assert_eq!(
            render_mount(&mount),
            r#"type=bind,"src=/w/a,""b"" c","dst=/w/a,""b"" c",rw=true,bind-propagation=rprivate,nosuid,nodev"#
        );
    }

    #[test]
    fn masks_are_read_only_and_never_copy_up() {
        let mask = |cover| Mount {
            path: "/h/a,b".into(),
            kind: MountKind::Mask {
                cover,
                reason: Some("never shown to podman".into()),
            },
            origin: Origin::Base,
        };
        assert_eq!(
            render_mount(&mask(Cover::Directory)),
            r#"type=tmpfs,tmpfs-size=65536,"dst=/h/a,b",tmpfs-mode=0555,ro=true,noexec,notmpcopyup,nosuid,nodev"#
        );
        assert_eq!(
            render_mount(&mask(Cover::File)),
            r#"type=bind,"dst=/h/a,b",src=/dev/null,ro=true,bind-propagation=rprivate,nosuid,nodev"#
        );
    }

    #[test]
    fn tmpfs_never_copies_up() {
        let mount = Mount::tmpfs("/tmp", 4096, Origin::Scratch);
        assert!(render_mount(&mount).contains("notmpcopyup"));
    }
}
