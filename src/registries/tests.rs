//! Made-up hosts: a home, an `/etc`, tools as small scripts.

use super::*;
use crate::policy::egress::PathPattern;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

struct FakeHost {
    dir: tempfile::TempDir,
    host: Host,
}

impl FakeHost {
    fn new() -> FakeHost {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        for place in ["home", "bin", "etc", "w"] {
            std::fs::create_dir(base.join(place)).unwrap();
        }
        let host = Host {
            root: base.clone(),
            home: base.join("home"),
            writable: vec![base.join("w")],
            search_path: base.join("bin").into(),
            variables: BTreeMap::new(),
            tool_limit: Duration::from_secs(60),
            deadline: Instant::now() + Duration::from_secs(60),
        };
        FakeHost { dir, host }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.host.root.join(path)
    }

    fn file(&self, path: &str, text: &str) -> &FakeHost {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    fn link(&self, target: &str, path: &str) -> &FakeHost {
        std::fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(self.path(target), self.path(path)).unwrap();
        self
    }

    /// Written by another process: one of ours that has the file open for
    /// writing, and is copied by a fork of another test, makes it busy.
    fn tool(&self, name: &str, script: &str) -> &FakeHost {
        let path = self.path("bin").join(name);
        let mut writer = Command::new("/bin/sh")
            .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
            .arg(path)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let text = format!("#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n");
        let mut stdin = writer.stdin.take().unwrap();
        stdin.write_all(text.as_bytes()).unwrap();
        drop(stdin);
        assert!(writer.wait().unwrap().success());
        self
    }

    fn variable(&mut self, name: &str, value: &str) -> &FakeHost {
        self.host.variables.insert(name.into(), value.into());
        self
    }

    /// Rules as `host:port paths methods private`, and warnings.
    fn resolve(&self, tool: Registry) -> (Vec<String>, Vec<String>) {
        let resolved = resolve_on(&self.host, &[tool]);
        let origin = crate::policy::egress::RuleOrigin::Registry(tool.name().into());
        let rules = resolved.rules.iter().map(|rule| {
            assert_eq!(rule.origin, origin);
            assert!(rule.inspect);
            let paths: Vec<String> = rule.paths.iter().map(PathPattern::to_string).collect();
            let methods = rule.methods.as_ref().unwrap().join(",");
            let private = if rule.private { " private" } else { "" };
            format!(
                "{}:{} {} {methods}{private}",
                rule.host,
                rule.port,
                paths.join(" ")
            )
        });
        let base = self.dir.path().canonicalize().unwrap();
        let base = base.to_str().unwrap();
        let warnings = resolved.warnings.iter().map(|line| line.replace(base, ""));
        (rules.collect(), warnings.collect())
    }
}

fn unknown(warnings: &[String]) -> bool {
    let text = "cannot be told: add them as [[egress.https]] rules";
    warnings.iter().any(|warning| warning.contains(text))
}

#[test]
fn nothing_installed_and_nothing_configured_is_a_warning_and_no_guess() {
    let fake = FakeHost::new();
    for tool in Registry::ALL {
        let (rules, warnings) = fake.resolve(tool);
        assert!(rules.is_empty(), "{rules:?}");
        assert!(unknown(&warnings), "{warnings:?}");
        assert!(warnings[0].starts_with(&format!("registries: {tool}: ")));
    }
    let none = resolve(
        &[],
        Path::new("/home/u"),
        Path::new("/w"),
        &[],
        OsString::new(),
    );
    assert_eq!(none, Resolved::default());
}

#[test]
fn tools_say_what_is_built_into_them() {
    let fake = FakeHost::new();
    fake.tool("python3", "echo https://pip.example.org/simple\necho https://files.example.org")
        .tool("npm", "[ \"$*\" = 'config get registry' ] && echo https://npm.example.org/")
        .tool("go", "[ \"$GOTOOLCHAIN $*\" = 'local env GOPROXY GOSUMDB' ] && echo 'https://go.example.org,direct' && echo sum.example.org")
        .tool("ruby", "echo 'source https://gem.example.org/'\necho 'index gem.example.org index.example.org'\necho 'index other.example.org x.example.org'");
    let cases = [
        (
            Registry::Pip,
            vec![
                "pip.example.org:443 /* GET,HEAD",
                "files.example.org:443 /* GET,HEAD",
            ],
        ),
        (Registry::Npm, vec!["npm.example.org:443 /* GET,HEAD"]),
        (
            Registry::Go,
            vec![
                "go.example.org:443 /* GET,HEAD",
                "sum.example.org:443 /* GET,HEAD",
            ],
        ),
        (
            Registry::Gem,
            vec![
                "gem.example.org:443 /* GET,HEAD",
                "index.example.org:443 /* GET,HEAD",
            ],
        ),
    ];
    for (tool, expected) in cases {
        let (rules, warnings) = fake.resolve(tool);
        assert_eq!(rules, expected);
        assert!(warnings.is_empty(), "{warnings:?}");
    }
}

#[test]
fn hostile_tools_give_warnings_and_no_rules() {
    let scripts = [
        "yes https://evil.example.org",
        "printf '\\033[2Jhttps://evil.example.org\\n\\033]0;x\\007\\n'",
        "echo 'https://evil.example.org/ x'; exit 1",
        "echo ../../etc; echo '*.example.org'",
        "echo http://evil.example.org; echo http://evil.example.org",
        "printf '\\377\\376'",
        "exit 0",
    ];
    for script in scripts {
        let fake = FakeHost::new();
        for (tool, name) in [
            (Registry::Pip, "python3"),
            (Registry::Npm, "npm"),
            (Registry::Go, "go"),
            (Registry::Gem, "ruby"),
        ] {
            let (rules, warnings) = fake.tool(name, script).resolve(tool);
            assert!(rules.is_empty(), "{script}: {rules:?}");
            // Go may also answer with an empty value, which means "none".
            let may_be_silent = tool == Registry::Go && script == "exit 0";
            assert!(may_be_silent || !warnings.is_empty(), "{tool}: {script}");
            let shown = warnings.concat();
            assert!(!shown.chars().any(char::is_control), "{shown:?}");
        }
    }
}

#[test]
fn tool_that_hangs_is_given_up_and_the_others_still_answer() {
    let mut fake = FakeHost::new();
    // It would answer, but too late.
    fake.tool(
        "python3",
        "sleep 60; echo https://pip.example.org/simple; echo https://files.example.org",
    );
    fake.host.deadline = Instant::now() + Duration::from_millis(300);
    let (rules, warnings) = fake.resolve(Registry::Pip);
    assert!(rules.is_empty() && unknown(&warnings));
    assert!(
        warnings[0].contains("did not answer in time"),
        "{warnings:?}"
    );
    fake.file("home/.npmrc", "registry=https://npm.example.org\n");
    assert_eq!(fake.resolve(Registry::Npm).0.len(), 1);
}

#[test]
fn tools_see_nothing_of_the_environment_but_the_users_places() {
    let mut fake = FakeHost::new();
    fake.variable("XDG_CONFIG_HOME", "/x/config");
    fake.variable("API_KEY", "s3cret");
    let seen = fake.path("seen");
    let script = format!("{{ pwd; env; }} > '{}'", seen.display());
    fake.tool("npm", &script).resolve(Registry::Npm);
    let seen = std::fs::read_to_string(seen).unwrap();
    assert!(
        seen.starts_with("/\n") && seen.contains("XDG_CONFIG_HOME=/x/config\n"),
        "{seen}"
    );
    let names: Vec<&str> = seen
        .lines()
        .skip(1)
        .filter_map(|l| Some(l.split_once('=')?.0))
        .collect();
    // The last two are the shell's own.
    let allowed = [
        "HOME",
        "PATH",
        "LANG",
        "XDG_CONFIG_HOME",
        "npm_config_update_notifier",
        "npm_config_offline",
        "npm_config_logs_max",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
    ];
    assert!(names.iter().all(|name| allowed.contains(name)), "{names:?}");
}

#[test]
fn pip_reads_its_files_in_the_documented_order() {
    let mut fake = FakeHost::new();
    fake.file("etc/pip.conf", "[global]\nindex-url = https://weak.example.org/simple\nextra-index-url =\n    https://u:s3cret@extra.example.org/a/simple/\n    # a comment\n    https://more.example.org:8443/root/dev/+simple/\n")
        .file("home/.config/pip/pip.conf", "[global]\nIndex_URL: https://mirror.example.org/api/pypi/simple\ntrusted-host = mirror.example.org\n[install]\nfind-links = /srv/wheels https://wheels.example.org/x.html\n");
    let (rules, warnings) = fake.resolve(Registry::Pip);
    assert_eq!(
        rules,
        [
            "mirror.example.org:443 /api/pypi GET,HEAD private",
            "extra.example.org:443 /a GET,HEAD private",
            "more.example.org:8443 /root/dev GET,HEAD private",
            "wheels.example.org:443 /x.html GET,HEAD private",
        ]
    );
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].contains("\"trusted-host\" in \"/home/.config/pip/pip.conf\""));
    fake.variable("PIP_INDEX_URL", "https://env.example.org/simple");
    let (rules, _) = fake.resolve(Registry::Pip);
    assert!(rules.contains(&"env.example.org:443 /* GET,HEAD private".to_owned()));
    assert!(!rules.concat().contains("mirror"), "{rules:?}");
    fake.variable("PIP_CONFIG_FILE", "/dev/null");
    assert_eq!(fake.resolve(Registry::Pip).0.len(), 1);
}

#[test]
fn pip_with_its_built_in_index_named_gets_the_host_of_its_files_too() {
    let fake = FakeHost::new();
    fake.tool(
        "python3",
        "echo https://pip.example.org/simple\necho https://files.example.org",
    )
    .file(
        "etc/pip.conf",
        "[global]\nindex-url = https://pip.example.org/simple\n",
    );
    let (rules, _) = fake.resolve(Registry::Pip);
    assert!(
        rules.contains(&"files.example.org:443 /* GET,HEAD".to_owned()),
        "{rules:?}"
    );
    fake.file(
        "etc/pip.conf",
        "[global]\nindex-url = https://a.example.org/simple\n",
    );
    assert!(!fake.resolve(Registry::Pip).0.concat().contains("files"));
    fake.file("etc/pip.conf", "[global]\nno-index = true\n");
    assert_eq!(fake.resolve(Registry::Pip), (Vec::new(), Vec::new()));
}

#[test]
fn npm_takes_scopes_and_the_strongest_registry() {
    let mut fake = FakeHost::new();
    fake.file("etc/npmrc", "registry = https://weak.example.org/\n")
        .file("home/.npmrc", "; x\nregistry=https://npm.example.org/repo/\n@a:registry=\"https://a.example.org\"\n@b:registry=https://${HOST}/\n//npm.example.org/:_authToken=s3cret\n@c:registry=http://192.0.2.9:4873/\n");
    let (rules, warnings) = fake.resolve(Registry::Npm);
    assert_eq!(
        rules,
        [
            "a.example.org:443 /* GET,HEAD private",
            "npm.example.org:443 /repo GET,HEAD private"
        ]
    );
    assert_eq!(warnings.len(), 2);
    assert!(
        warnings[0].contains("depends on a variable"),
        "{warnings:?}"
    );
    assert!(
        warnings[1].contains("\"http://192.0.2.9:4873/\" in"),
        "{warnings:?}"
    );
    assert!(warnings[1].contains("https only") && !warnings.concat().contains("s3cret"));
    fake.variable("NPM_CONFIG_REGISTRY", "https://env.example.org");
    assert!(
        fake.resolve(Registry::Npm)
            .0
            .contains(&"env.example.org:443 /* GET,HEAD private".to_owned())
    );
}

#[test]
fn cargo_follows_replaced_sources_and_finds_the_host_of_the_crates() {
    let fake = FakeHost::new();
    let cache = "home/.cargo/registry/index";
    fake.file("home/.cargo/config.toml", "[source.crates-io]\nreplace-with = 'a'\n[source.a]\nreplace-with = 'mirror'\n[source.mirror]\nregistry = 'sparse+https://u:s3cret@mirror.example.org/crates/'\n[registries.own]\nindex = 'https://git.example.org/team/index.git'\n[registries.ssh]\nindex = 'ssh://git@git.example.org/x'\n")
        .file(&format!("{cache}/mirror.example.org-0123456789abcdef/config.json"), "{\"dl\": \"https://dl.example.org/c/{crate}/{version}\", \"api\": null}");
    let (rules, warnings) = fake.resolve(Registry::Cargo);
    assert_eq!(
        rules,
        [
            "git.example.org:443 /team/index.git/info/refs /team/index.git/git-upload-pack GET,HEAD,POST private",
            "mirror.example.org:443 /crates GET,HEAD private",
            "dl.example.org:443 /c GET,HEAD private",
        ]
    );
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(
        warnings[0].contains("host of the crates of \"https://git.example.org/team/index.git\"")
    );
    assert!(
        warnings[1].contains("\"ssh://git.example.org/x\" in"),
        "{warnings:?}"
    );
    fake.file(
        "home/.cargo/config.toml",
        "[source.crates-io]\nreplace-with = 'v'\n[source.v]\ndirectory = '/vendor'\n",
    );
    assert_eq!(fake.resolve(Registry::Cargo), (Vec::new(), Vec::new()));
    fake.file(
        "home/.cargo/config.toml",
        "[source.crates-io]\nreplace-with = 'gone'\n",
    );
    assert!(unknown(&fake.resolve(Registry::Cargo).1));
    fake.file(
        "home/.cargo/config.toml",
        "[source.a]\nreplace-with = 'crates-io'\n[source.crates-io]\nreplace-with = 'a'\n",
    );
    assert!(fake.resolve(Registry::Cargo).0.is_empty());
}

#[test]
fn cargo_without_configuration_is_known_by_the_cache_of_its_own_index() {
    let fake = FakeHost::new();
    let cache = "home/.cargo/registry/index";
    fake.file(
        &format!("{cache}/evil.example.org-0123456789abcdef/config.json"),
        "{\"dl\": \"https://evil.example.org\"}",
    );
    assert_eq!(fake.resolve(Registry::Cargo).0.len(), 0);
    fake.file(
        &format!("{cache}/index.example.org-1949cf8c6b5b557f/config.json"),
        "{\"dl\": \"https://dl.example.org/crates\"}",
    );
    let (rules, warnings) = fake.resolve(Registry::Cargo);
    assert_eq!(
        rules,
        [
            "dl.example.org:443 /crates GET,HEAD",
            "index.example.org:443 /* GET,HEAD"
        ]
    );
    assert!(warnings.is_empty(), "{warnings:?}");
    fake.file("home/.cargo/config.toml", "[registries]\ntoken = \"s3cret");
    let (rules, warnings) = fake.resolve(Registry::Cargo);
    assert!(
        rules.is_empty() && !warnings.concat().contains("s3cret"),
        "{warnings:?}"
    );
}

#[test]
fn go_takes_the_environment_then_its_own_file() {
    let mut fake = FakeHost::new();
    fake.file("home/.config/go/env", "GOPROXY=https://go.example.org/mod|https://b.example.org,direct\nGOSUMDB=sum.example.org+k+AAA https://sums.example.org/db\n");
    let (rules, warnings) = fake.resolve(Registry::Go);
    assert_eq!(
        rules,
        [
            "go.example.org:443 /mod GET,HEAD private",
            "b.example.org:443 /* GET,HEAD private",
            "sums.example.org:443 /db GET,HEAD private",
        ]
    );
    assert!(warnings.is_empty(), "{warnings:?}");
    fake.variable("GOPROXY", "direct");
    fake.variable("GOSUMDB", "off");
    let (rules, warnings) = fake.resolve(Registry::Go);
    assert!(
        rules.is_empty() && warnings[0].contains("names no proxy"),
        "{warnings:?}"
    );
}

#[test]
fn apt_tells_of_each_source_that_cannot_be_used() {
    let fake = FakeHost::new();
    fake.file("etc/apt/sources.list", "deb http://deb.example.org/debian stable main\ndeb cdrom:[x]/ stable main\n")
        .file("etc/apt/sources.list.d/a.sources", "Types: deb\nURIs: https://a.example.org/debian/ mirror+https://list.example.org/m mirror+file:/etc/apt/m.txt\nSuites: x\n")
        .file("etc/apt/sources.list.d/b.list.save", "deb https://no.example.org x y\n")
        .file("etc/apt/m.txt", "# x\nhttps://m1.example.org/debian priority:1\nhttp://m2.example.org/debian\n");
    let (rules, warnings) = fake.resolve(Registry::Apt);
    assert_eq!(
        rules,
        [
            "a.example.org:443 /debian GET,HEAD private",
            "list.example.org:443 /m GET,HEAD private",
            "m1.example.org:443 /debian GET,HEAD private",
        ]
    );
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(warnings[0].contains("\"http://deb.example.org/debian\" in \"/etc/apt/sources.list\""));
    assert!(
        warnings[1].contains("is a list of mirrors")
            && warnings[2].contains("http://m2.example.org")
    );
}

#[test]
fn gem_takes_the_last_file_with_sources_and_the_mirrors_of_bundler() {
    let fake = FakeHost::new();
    fake.file("etc/gemrc", ":sources:\n- https://weak.example.org\n")
        .file("home/.gemrc", "---\n:sources:\n- https://u:s3cret@gem.example.org/repo/\n")
        .file("home/.bundle/config", "---\nBUNDLE_MIRROR__HTTPS://X__EXAMPLE__ORG/: \"https://mirror.example.org/\"\nBUNDLE_MIRROR__HTTPS://X__EXAMPLE__ORG/__FALLBACK_TIMEOUT: \"3\"\nBUNDLE_JOBS: \"4\"\n");
    let (rules, warnings) = fake.resolve(Registry::Gem);
    assert_eq!(
        rules,
        [
            "mirror.example.org:443 /* GET,HEAD private",
            "gem.example.org:443 /repo GET,HEAD private"
        ]
    );
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn what_is_configured_is_told_to_the_tools_inside_without_credentials() {
    let mut fake = FakeHost::new();
    fake.file(
        "etc/pip.conf",
        "[global]\nindex-url = https://u:s3cret@pip.example.org/a/simple?x\nextra-index-url = https://b.example.org/simple https://c.example.org/ http://d.example.org\n",
    )
    .file("home/.npmrc", "registry=https://u:s3cret@npm.example.org/a/\n@x:registry=https://x.example.org\n")
    .file("home/.config/go/env", "GOPROXY=https://go.example.org|direct\nGOSUMDB=off\n");
    let tools = [Registry::Pip, Registry::Npm, Registry::Go];
    let expected = [
        ("PIP_INDEX_URL", "https://pip.example.org/a/simple"),
        (
            "PIP_EXTRA_INDEX_URL",
            "https://b.example.org/simple https://c.example.org/",
        ),
        ("NPM_CONFIG_REGISTRY", "https://npm.example.org/a/"),
        ("GOPROXY", "https://go.example.org|direct"),
        ("GOSUMDB", "off"),
    ]
    .map(|(name, value)| (name, value.to_owned()));
    assert_eq!(resolve_on(&fake.host, &tools).variables, expected);
    fake.variable("GOPROXY", "https://u:s3cret@go.example.org");
    let resolved = resolve_on(&fake.host, &[Registry::Go]);
    assert_eq!(resolved.variables, [("GOSUMDB", "off".to_owned())]);
    assert!(!format!("{resolved:?}").contains("s3cret"));
}

#[test]
fn what_the_agent_can_write_counts_for_nothing() {
    let mut fake = FakeHost::new();
    fake.file(
        "w/pip.conf",
        "[global]\nindex-url = https://evil.example.org/simple\n",
    )
    .file("w/npmrc", "registry=https://evil.example.org/\n")
    .file(
        "w/env",
        "GOPROXY=https://evil.example.org\nGOSUMDB=evil.example.org\n",
    )
    .file(
        "w/cargo/config.toml",
        "[registries.x]\nindex = 'sparse+https://evil.example.org/'\n",
    )
    .file("w/gemrc", ":sources:\n- https://evil.example.org\n")
    .file("w/a.list", "deb https://evil.example.org x y\n")
    .file(
        "outside",
        "[global]\nindex-url = https://evil.example.org/simple\n",
    )
    .link("w/pip.conf", "home/.config/pip/pip.conf")
    .link("w/npmrc", "home/.npmrc")
    .link("w/a.list", "etc/apt/sources.list.d/a.list")
    .link("w/gemrc", "home/.gemrc")
    // Two links, the middle one in the workspace.
    .link("outside", "w/chain")
    .link("w/chain", "home/.pip/pip.conf");
    let inside = |path: &str| fake.path(path).display().to_string();
    let (goenv, cargo) = (inside("w/env"), inside("w/cargo"));
    fake.variable("GOENV", &goenv);
    fake.variable("CARGO_HOME", &cargo);
    for tool in ["python3", "npm", "go", "ruby"] {
        // It reads the same files, so it must not be asked.
        fake.tool(tool, "echo https://evil.example.org; echo evil.example.org; echo source https://evil.example.org");
    }
    for tool in Registry::ALL {
        let (rules, warnings) = fake.resolve(tool);
        assert!(rules.is_empty(), "{tool}: {rules:?}");
        assert!(
            warnings.concat().contains("the agent can write it"),
            "{warnings:?}"
        );
    }
}

#[test]
fn tool_in_the_workspace_is_not_run() {
    let mut fake = FakeHost::new();
    fake.tool("npm", "echo https://npm.example.org");
    assert_eq!(fake.resolve(Registry::Npm).0.len(), 1);
    std::fs::rename(fake.path("bin/npm"), fake.path("w/npm")).unwrap();
    let is_missing = |fake: &FakeHost| {
        let (rules, warnings) = fake.resolve(Registry::Npm);
        rules.is_empty() && warnings.concat().contains("\"npm\" is not installed")
    };
    // By a link, and by an entry of the path.
    fake.link("w/npm", "bin/npm");
    assert!(is_missing(&fake));
    fake.host.search_path = fake.path("w").into();
    assert!(is_missing(&fake));
}

#[test]
fn places_of_the_real_host_are_real_paths_and_include_the_workspace() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    std::fs::create_dir(base.join("w")).unwrap();
    std::os::unix::fs::symlink(base.join("w"), base.join("alias")).unwrap();
    std::fs::write(base.join("w/x"), "x").unwrap();
    std::fs::write(base.join("y"), "y").unwrap();
    let host = Host::new(&base, &base.join("alias"), &[], OsString::new());
    assert!(host.read(&base.join("w/x")).is_err());
    assert!(host.read(&base.join("alias/x")).is_err());
    assert_eq!(host.read(&base.join("y")), Ok(Some("y".to_owned())));
    assert_eq!(host.read(&base.join("none")), Ok(None));
    let host = Host::new(&base, &base.join("w"), &[base.join("y")], OsString::new());
    assert!(host.read(&base.join("y")).is_err());
}
