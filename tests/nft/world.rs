//! The two namespaces of a test, and the hook in and around them.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, PidfdFlags};
use rustix::thread::LinkNameSpaceType;
use sha2::{Digest, Sha256};

/// The state of a container that is being created, as crun tells it.
pub(crate) const STATE: &str =
    r#"{"ociVersion":"1.0","id":"0123","pid":0,"root":"/r","bundle":"/b","status":"created"}"#;

/// The gateway, which is the other end of the cable.
pub(crate) const GATEWAY: &str = "192.0.2.1";
/// On the far side too, and the only direct target is its port 22.
pub(crate) const TARGET: &str = "203.0.113.7";
pub(crate) const SANDBOX: &str = "192.0.2.2";
pub(crate) const GATEWAY6: &str = "2001:db8::1";

pub(crate) struct World {
    pub(crate) sandbox: Holder,
    pub(crate) outside: Holder,
    folder: tempfile::TempDir,
}

/// A process that keeps namespaces alive. It ends with its stdin.
pub(crate) struct Holder(Child);

impl Holder {
    /// `words` start a shell in new namespaces.
    pub(crate) fn start(words: &[&str]) -> Holder {
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .args(["sh", "-c", "echo; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The line comes once it is in them.
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        assert_eq!(stdout.read_line(&mut line).unwrap(), 1, "{words:?}");
        Holder(child)
    }

    pub(crate) fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Runs something in a thread that is in this network.
    pub(crate) fn enter<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let network = File::open(format!("/proc/{}/ns/net", self.pid())).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let kind = Some(LinkNameSpaceType::Network);
                rustix::thread::move_into_link_name_space(network.as_fd(), kind).unwrap();
                act()
            });
            thread.join().unwrap()
        })
    }

    /// A program in this network, with the rights of the host's root.
    pub(crate) fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.pid(), "--net", "--"]);
        command.args(words).output().unwrap()
    }

    pub(crate) fn must(&self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let output = self.run(&words);
        assert!(output.status.success(), "{line}: {output:?}");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Why none of this can be done here.
fn obstacle() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root can enter network namespaces".to_owned());
    }
    if !Path::new(NFT).exists() {
        return Some("nft is missing; run: apt-get install nftables".to_owned());
    }
    let mut unshare = Command::new("unshare");
    let namespaces = unshare.args(["--user", "--map-root-user", "--net", "true"]);
    match namespaces.output() {
        Ok(output) if output.status.success() => None,
        other => Some(format!("no namespaces can be made here: {other:?}")),
    }
}

pub(crate) const NFT: &str = "/usr/sbin/nft";

impl World {
    /// `None` where it cannot be made, which is said.
    pub(crate) fn new() -> Option<World> {
        if let Some(obstacle) = obstacle() {
            let is_required = ["CI", "UMWELT_REQUIRE_NFT"].map(std::env::var_os);
            assert!(is_required.iter().all(Option::is_none), "{obstacle}");
            eprintln!("not tested: {obstacle}");
            return None;
        }
        let sandbox = Holder::start(&["unshare", "--user", "--map-root-user", "--net"]);
        // Owned by the same user namespace, as its peer is in podman.
        let outside = Holder::start(&[
            "nsenter",
            "--target",
            &sandbox.pid(),
            "--user",
            "--preserve-credentials",
            "unshare",
            "--net",
        ]);
        let world = World {
            sandbox,
            outside,
            folder: tempfile::tempdir().unwrap(),
        };
        world.connect();
        Some(world)
    }

    fn connect(&self) {
        let peer = self.outside.pid();
        let cable = format!("ip link add eth0 type veth peer name eth0 netns {peer}");
        self.sandbox.must(&cable);
        for (side, addresses) in [
            (&self.sandbox, &[SANDBOX, "2001:db8::2"][..]),
            (&self.outside, &[GATEWAY, TARGET, GATEWAY6]),
        ] {
            for address in addresses {
                let (length, nodad) = match *address {
                    TARGET => ("32", ""),
                    other if other.contains(':') => ("64", " nodad"),
                    _ => ("24", ""),
                };
                side.must(&format!("ip addr add {address}/{length} dev eth0{nodad}"));
            }
            side.must("ip link set lo up");
            side.must("ip link set eth0 up");
        }
        self.sandbox
            .must(&format!("ip route add default via {GATEWAY}"));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Lets other users in.
    pub(crate) fn open_folder(&self) {
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(self.folder.path(), open).unwrap();
    }

    /// A program in place of nft. A shell writes it: see the unit tests.
    pub(crate) fn stand_in(&self, script: &str) -> String {
        let path = self.path("nft");
        let write = r#"printf '#!/bin/sh\n%s\n' "$1" >"$2" && chmod 755 "$2""#;
        let mut shell = Command::new("sh");
        shell.args(["-c", write, "sh", script]).arg(&path);
        assert!(shell.status().unwrap().success());
        path.to_str().unwrap().to_owned()
    }

    /// The hook as the runtime starts it.
    pub(crate) fn hook(&self) -> Hook {
        let words = ["--target", &self.sandbox.pid(), "--user", "--net"];
        let mut words: Vec<String> = words.map(str::to_owned).to_vec();
        words.insert(0, "nsenter".to_owned());
        words.extend(["--preserve-credentials".to_owned(), "--".to_owned()]);
        Hook::new(words, &golden("one-target.json"))
    }

    pub(crate) fn install(&self) {
        let output = self.hook().run();
        assert!(output.status.success(), "{output:?}");
    }

    pub(crate) fn has_table(&self) -> bool {
        let list = [NFT, "list", "table", "inet", "umwelt"];
        self.sandbox.run(&list).status.success()
    }

    pub(crate) fn read_back(&self) -> Output {
        let ruleset = golden("one-target.json");
        read_back(env!("CARGO_BIN_EXE_umwelt"), &[], &self.sandbox, &ruleset)
    }
}

/// What the hook is called with; a test changes some of it.
pub(crate) struct Hook {
    /// Before the program, such as `nsenter …`.
    pub(crate) before: Vec<String>,
    pub(crate) ruleset: PathBuf,
    pub(crate) digest: String,
    pub(crate) nft: String,
    pub(crate) state: String,
}

impl Hook {
    pub(crate) fn new(before: Vec<String>, ruleset: &Path) -> Hook {
        Hook {
            before,
            ruleset: ruleset.to_owned(),
            digest: digest(ruleset),
            nft: NFT.to_owned(),
            state: STATE.to_owned(),
        }
    }

    pub(crate) fn run(&self) -> Output {
        let mut words = self.before.clone();
        words.push(env!("CARGO_BIN_EXE_umwelt").to_owned());
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .arg("nft-hook")
            .arg("--ruleset")
            .arg(&self.ruleset)
            .args(["--digest", &self.digest, "--nft", &self.nft])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // It may have given up before it read anything.
        drop(stdin.write_all(self.state.as_bytes()));
        drop(stdin);
        child.wait_with_output().unwrap()
    }
}

/// `umwelt-nft-hook --read-back` with the pidfd of a holder, as the host's
/// root or as what the words before the program make of it.
pub(crate) fn read_back(exe: &str, before: &[&str], holder: &Holder, ruleset: &Path) -> Output {
    let pid = Pid::from_child(&holder.0);
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
    let mut words = before.to_vec();
    words.extend([exe, "nft-hook", "--read-back", "--ruleset"]);
    Command::new("sh")
        .args(["-c", r#"exec "$@" 3<&0 </dev/null"#, "sh"])
        .args(words)
        .arg(ruleset)
        .args(["--digest", &digest(ruleset), "--nft", NFT])
        .stdin(Stdio::from(pidfd))
        .output()
        .unwrap()
}

pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/nft")
        .join(name)
}

pub(crate) fn digest(path: &Path) -> String {
    let digest = Sha256::digest(std::fs::read(path).unwrap());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}
