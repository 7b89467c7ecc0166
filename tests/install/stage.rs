//! A user of its own for each test, who is not root, with a stand-in for podman.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

/// Nobody has it; only root can become it.
const UID: u32 = 4242;
const PODMAN: &str = include_str!("podman.sh");

pub(crate) struct Stage {
    base: PathBuf,
    _dir: TempDir,
}

/// The program without what is for a debugger, which would be copied and
/// hashed again and again, where an ordinary user can start it.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<(PathBuf, TempDir)> = OnceLock::new();
    let (path, _) = PROGRAM.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("umwelt");
        let mut strip = Command::new("strip");
        strip.arg("-o").arg(&path).arg(env!("CARGO_BIN_EXE_umwelt"));
        if !strip.status().is_ok_and(|status| status.success()) {
            // By another process: see write_program.
            let mut copy = Command::new("cp");
            copy.arg(env!("CARGO_BIN_EXE_umwelt")).arg(&path);
            assert!(copy.status().unwrap().success());
        }
        let open = |path: &Path| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        open(&path);
        open(dir.path());
        (path, dir)
    });
    path
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl Stage {
    pub(crate) fn new() -> Stage {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let stage = Stage { base, _dir: dir };
        stage.set_mode(".", 0o755);
        for name in ["home", "home/bin", "run"] {
            stage.make_dir(name);
        }
        stage.set_mode("run", 0o700);
        stage.write_program("home/bin/podman", PODMAN);
        stage
    }

    /// One whose sandbox image is there already, so that none is built.
    pub(crate) fn with_image() -> Stage {
        let stage = Stage::new();
        stage.make_dir("home/podman");
        stage.make_dir("home/podman/images");
        stage.write("home/podman/images/umwelt_latest", "0123\n");
        stage
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.base.join(name)
    }

    pub(crate) fn own(&self, path: &Path) {
        if is_root() {
            std::os::unix::fs::lchown(path, Some(UID), Some(UID)).unwrap();
        }
    }

    pub(crate) fn make_dir(&self, name: &str) {
        std::fs::create_dir(self.path(name)).unwrap();
        self.own(&self.path(name));
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), text).unwrap();
        self.own(&self.path(name));
    }

    /// A shell writes it: while this process has it open for writing, a child that
    /// is forked by another test would keep it busy (ETXTBSY).
    pub(crate) fn write_program(&self, name: &str, text: &str) {
        let write = r#"printf %s "$1" >"$2" && chmod 755 "$2""#;
        let mut shell = Command::new("sh");
        shell.args(["-c", write, "sh", text]).arg(self.path(name));
        assert!(shell.status().unwrap().success());
        self.own(&self.path(name));
    }

    pub(crate) fn read(&self, name: &str) -> String {
        let path = self.path(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"))
    }

    pub(crate) fn set_mode(&self, name: &str, mode: u32) {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(self.path(name), mode).unwrap();
    }

    pub(crate) fn mode(&self, name: &str) -> u32 {
        let metadata = std::fs::symlink_metadata(self.path(name)).unwrap();
        metadata.permissions().mode() & 0o7777
    }

    /// As the user, in an environment of nothing but HOME and PATH; the rest
    /// follows from HOME.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        let path = format!("{}:/usr/bin:/bin", self.path("home/bin").display());
        command
            .env_clear()
            .env("HOME", self.path("home"))
            .env("PATH", path)
            .current_dir("/")
            .stdin(Stdio::null());
        if is_root() {
            command.uid(UID).gid(UID);
        }
        command
    }

    pub(crate) fn install_command(&self, args: &[&str]) -> Command {
        let mut command = self.command(program());
        command.arg("install").args(args);
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ended {
        self.install_command(args).output().unwrap().into()
    }

    /// The same, with success.
    pub(crate) fn done(&self, args: &[&str]) -> String {
        let ended = self.run(args);
        assert_eq!(ended.code, Some(0), "{args:?}: {ended:?}");
        assert_eq!(ended.stderr, "", "{args:?}");
        ended.stdout
    }

    pub(crate) fn program(&self) -> &'static Path {
        program()
    }

    /// What podman was called with since the last time.
    pub(crate) fn podman_log(&self) -> String {
        let path = self.path("home/podman/log");
        let log = std::fs::read_to_string(&path).unwrap_or_default();
        drop(std::fs::remove_file(path));
        log
    }

    /// Everything below a directory: kind, mode, and content.
    pub(crate) fn listing(&self, name: &str) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        list(&self.path(name), &mut found);
        found
    }

    pub(crate) fn record(&self) -> serde_json::Value {
        serde_json::from_str(&self.read("home/.local/share/umwelt/install.json")).unwrap()
    }
}

fn list(path: &Path, found: &mut BTreeMap<PathBuf, String>) {
    let metadata = std::fs::symlink_metadata(path).unwrap();
    let mut what = format!("{:o}", metadata.mode());
    if metadata.is_symlink() {
        what.push_str(&format!(" {:?}", std::fs::read_link(path).unwrap()));
    } else if metadata.is_file() {
        let bytes = std::fs::read(path).unwrap();
        what.push_str(&format!(" {} {:?}", bytes.len(), bytes.iter().take(64)));
    } else {
        for entry in std::fs::read_dir(path).unwrap() {
            list(&entry.unwrap().path(), found);
        }
    }
    found.insert(path.to_owned(), what);
}

#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Ended {
        Ended {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ended {
    /// Failed with all of these words, and without a panic.
    pub(crate) fn failed(&self, words: &[&str]) {
        assert_eq!(self.code, Some(1), "{self:?}");
        assert!(!self.stderr.contains("panicked"), "{self:?}");
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in {self:?}");
        }
    }
}
