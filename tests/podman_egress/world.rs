//! An internet of one server, what umwelt-install would have made, and places
//! that use both.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use serde_json::Value;
use sha2::Digest;

use crate::podman_common::sandbox::{CONFIG, Place};
use crate::podman_common::{Options, PATIENCE, applet, host, wait_for};

/// The server's name.
pub(crate) const NAME: &str = "a.example.org";
/// And those below it.
const WILD: &str = "*.sub.example.org";
const IMAGE: &str = "localhost/umwelt-egress-gw:latest";

/// Of the tests that run at once.
static SHARED: Mutex<Weak<Internet>> = Mutex::new(Weak::new());
/// Where nobody is.
const NOBODY: &str = "10.255.255.1";

/// A container that serves, on a network of its own.
pub(crate) struct Internet {
    dir: tempfile::TempDir,
    /// Empty where there is no container.
    name: String,
    pub(crate) address: String,
    /// Where umwelt's data is, if not in the place.
    data: Option<PathBuf>,
}

impl Internet {
    /// One that tests share.
    pub(crate) fn shared() -> Arc<Internet> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let internet = Arc::new(Internet::start_with(&[], &[]));
            *shared = Arc::downgrade(&internet);
            internet
        })
    }

    /// For places that nothing is fetched in: the server's address leads nowhere.
    pub(crate) fn nobody() -> Internet {
        Internet::certified(NOBODY, None)
    }

    fn certified(address: &str, data: Option<PathBuf>) -> Internet {
        let dir = tempfile::Builder::new()
            .prefix(&format!("tb-{}-", std::process::id()))
            .tempdir_in(host::home())
            .unwrap();
        let internet = Internet {
            dir,
            name: String::new(),
            address: address.to_owned(),
            data,
        };
        internet.make_certificates();
        internet
    }

    /// One that also has a git repository of 8 MiB, over https and ssh. sshd is
    /// none of the sandbox's programs, so the server uses those of the host.
    pub(crate) fn start_with_git() -> Internet {
        let sshd = Path::new("/usr/sbin/sshd");
        assert!(sshd.exists(), "{sshd:?} is needed: openssh-server");
        let more = ["--volume=/usr:/usr:ro", "--security-opt=label=disable"];
        Internet::start_with(&more, &["git"])
    }

    /// Root's stage of `tests/vm/egress.sh`, whose files are in `folder`.
    pub(crate) fn outside(folder: &Path) -> Internet {
        let internet = Internet::certified("", Some(folder.join("data")));
        for name in ["server.pem", "server.key"] {
            std::fs::copy(internet.path(name), folder.join(name)).unwrap();
        }
        wait_for("the server", PATIENCE, || {
            folder.join("serving").exists().then_some(())
        });
        internet
    }

    fn start_with(options: &[&str], words: &[&str]) -> Internet {
        // The last one may still be on its way out.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut internet = Internet::certified("", None);
        internet.name = format!("tb-egress-{}-{count}", std::process::id());
        if words.contains(&"git") {
            ssh_keygen(&internet.path("key"));
            ssh_keygen(&internet.path("host_key"));
        }
        std::fs::write(internet.path("server.py"), include_str!("server.py")).unwrap();
        host::podman(&["network", "create", "--disable-dns", &internet.name]);
        let volume = format!("--volume={}:/srv:ro", internet.dir.path().display());
        let network = format!("--network={}", internet.name);
        let container = format!("--name={}", internet.name);
        let label = ["--detach", "--rm", "--pull=never"];
        let last = ["umwelt:latest", "python3", "/srv/server.py"];
        let mut args = vec!["run"];
        args.extend(label);
        args.extend([&*volume, &network, &container]);
        args.extend(options);
        args.extend(last);
        args.extend(words);
        host::podman(&args);
        wait_for("the server", PATIENCE, || {
            internet.said().contains("ready").then_some(())
        });
        let format = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}";
        let address = host::podman(&["inspect", "--format", format, &internet.name]);
        internet.address = address.trim().to_owned();
        internet
    }

    /// What the server has printed.
    pub(crate) fn said(&self) -> String {
        host::podman(&["logs", &self.name])
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn make_certificates(&self) {
        let (params, key) = authority("test root");
        std::fs::write(
            self.path("root.pem"),
            params.self_signed(&key).unwrap().pem(),
        )
        .unwrap();
        let server_key = KeyPair::generate().unwrap();
        let server = CertificateParams::new(vec![NAME.to_owned(), WILD.to_owned()])
            .unwrap()
            .signed_by(&server_key, &Issuer::new(params, key))
            .unwrap();
        std::fs::write(self.path("server.pem"), server.pem()).unwrap();
        std::fs::write(self.path("server.key"), server_key.serialize_pem()).unwrap();
    }

    /// A place where egress is installed, and whose workspace asks for it with
    /// `rules` besides a name for the server, and is trusted.
    pub(crate) fn place(&self, rules: &str) -> Place {
        need_image();
        // The registries of the host are no matter here.
        let mut place = Place::new(Options {
            config: format!("{CONFIG}[egress]\nregistries = []\n"),
            ..Options::default()
        });
        let data = match &self.data {
            Some(data) => data.clone(),
            None => place.path().join("data"),
        };
        // umwelt's data, but podman's storage stays where it is.
        let storage = place.path().join("storage.conf");
        std::fs::write(&storage, storage_conf()).unwrap();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        place.options.env = vec![
            ("XDG_DATA_HOME", text(&data)),
            ("CONTAINERS_STORAGE_CONF", text(&storage)),
        ];
        self.install(&data.join("umwelt"));
        let address = &self.address;
        let hosts = match address.is_empty() {
            true => String::new(),
            false => format!("[[hosts]]\nname = \"{NAME}\"\naddress = \"{address}\"\n"),
        };
        let file = format!("[egress]\nenabled = true\n{rules}\n{hosts}");
        std::fs::write(place.workspace.join(".umwelt.toml"), file).unwrap();
        trust(&place);
        place
    }

    fn install(&self, data: &Path) {
        let egress = data.join("egress");
        for dir in [data, &egress] {
            std::fs::create_dir_all(dir).unwrap();
            std::fs::set_permissions(dir, Permissions::from_mode(0o700)).unwrap();
        }
        let (params, key) = authority("umwelt egress");
        let authority = params.self_signed(&key).unwrap().pem();
        let root = std::fs::read_to_string(self.path("root.pem")).unwrap();
        let record = serde_json::json!({"schema": 1, "version": "0", "nft": nft()});
        for (path, text) in [
            (egress.join("ca.pem"), authority.clone()),
            (egress.join("ca.key"), key.serialize_pem()),
            (egress.join("roots.pem"), root.clone()),
            (egress.join("bundle.pem"), root + &authority),
            (data.join("install.json"), record.to_string()),
        ] {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        }
    }
}

impl Drop for Internet {
    fn drop(&mut self) {
        if self.name.is_empty() {
            return;
        }
        for args in [
            &["rm", "--force", "--ignore", "--time=0", &self.name][..],
            &["network", "rm", "--force", &self.name],
        ] {
            drop(Command::new("podman").args(args).output());
        }
    }
}

pub(crate) fn trust(place: &Place) {
    let mut command = place.applet("umwelt-ctl");
    let output = command
        .args(["trust", "--yes"])
        .arg(&place.workspace)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Names of the networks of a place.
pub(crate) fn networks(place: &Place) -> Vec<String> {
    let filter = format!("label=umwelt.sid={}", place.sid());
    let names = host::podman(&["network", "ls", "--quiet", "--filter", &filter]);
    names.lines().map(str::to_owned).collect()
}

/// The entries of the audit.
pub(crate) fn audit(place: &Place) -> Vec<Value> {
    let is_data = |pair: &&(&str, String)| pair.0 == "XDG_DATA_HOME";
    let data = &place.options.env.iter().find(is_data).unwrap().1;
    let file = format!("umwelt/egress/audit-{}/audit.jsonl", place.name());
    let text = std::fs::read_to_string(Path::new(data).join(file)).unwrap();
    // The last one may be written right now.
    let entries = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .map(|line| serde_json::from_str(line).expect("JSON"));
    entries.collect()
}

/// Host pid of the gateway.
pub(crate) fn gateway_pid(place: &Place) -> Option<u32> {
    let name = format!("umwelt-test-egress-gw-{}", place.sid());
    let mut command = Command::new("podman");
    command.args(["inspect", "--format", "{{.State.Pid}}", &name]);
    let output = command.output().unwrap();
    let pid = String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .ok()?;
    (output.status.success() && pid != 0).then_some(pid)
}

fn ssh_keygen(path: &Path) {
    let mut command = Command::new("ssh-keygen");
    command
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(path);
    assert!(command.status().unwrap().success());
}

fn nft() -> &'static str {
    let known = ["/usr/sbin/nft", "/usr/bin/nft", "/sbin/nft"];
    let found = known.into_iter().find(|path| Path::new(path).exists());
    found.expect("nftables")
}

fn storage_conf() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let info = host::podman(&["info", "--format", "json"]);
        let info: Value = serde_json::from_str(&info).unwrap();
        let store = &info["store"];
        format!(
            "[storage]\ndriver = {}\ngraphroot = {root}\nrootless_storage_path = {root}\nrunroot = {}\n",
            store["graphDriverName"],
            store["runRoot"],
            root = store["graphRoot"],
        )
    })
}

/// The image of the gateway, as umwelt-install makes it.
fn need_image() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        let exists = Command::new("podman")
            .args(["image", "exists", IMAGE])
            .status();
        if exists.unwrap().success() {
            return;
        }
        let program = applet("umwelt").get_program().to_owned();
        let dir = tempfile::tempdir().unwrap();
        std::fs::copy(program, dir.path().join("umwelt")).unwrap();
        let tar = Command::new("tar")
            .args(["-c", "umwelt"])
            .current_dir(dir.path())
            .output()
            .unwrap();
        let mut import = Command::new("podman")
            .args(["import", "--quiet", "-", IMAGE])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        import.stdin.take().unwrap().write_all(&tar.stdout).unwrap();
        assert!(import.wait().unwrap().success());
    });
}

/// As umwelt names it: after the key.
fn authority(prefix: &str) -> (CertificateParams, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let digest = sha2::Sha256::digest(key.subject_public_key_info());
    let id: String = digest
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, format!("{prefix} {id}"));
    let mut params = CertificateParams::default();
    params.distinguished_name = name;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (params, key)
}
