//! The environment of commands: fixed, the same for each, nothing of it taken
//! from the environment of the host. Pure.

/// Who git says it is, from the user's global configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct GitIdentity {
    entries: Vec<(String, String)>,
}

/// Arguments of a git that reads nothing but the user's global configuration.
pub(crate) const GIT_ARGS: [&str; 5] = [
    "config",
    "--global",
    "--null",
    "--get-regexp",
    r"^(user\.(name|email)|core\.hookspath)$",
];

impl GitIdentity {
    /// Reads the output of git with [`GIT_ARGS`]: `key LF value NUL`, repeated.
    pub(crate) fn parse(output: &str, home: &str) -> GitIdentity {
        let entries = output.split('\0').filter_map(|entry| {
            let (key, value) = entry.split_once('\n')?;
            let value = match value.strip_prefix("~/") {
                Some(rest) if key == "core.hookspath" => format!("{home}/{rest}"),
                _ => value.to_owned(),
            };
            Some((key.trim().to_owned(), value))
        });
        GitIdentity {
            entries: entries.collect(),
        }
    }
}

/// What the environment depends on.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    pub(crate) home: String,
    pub(crate) user: String,
    pub(crate) shell: &'static str,
    pub(crate) git: GitIdentity,
    /// By which the gateway is found.
    pub(crate) network: Vec<(String, String)>,
}

/// All variables of a command; `term` is `dumb` but on a terminal.
pub(crate) fn variables(setting: &Setting, term: &str) -> Vec<(String, String)> {
    let home = &setting.home;
    let mut variables: Vec<(String, String)> = [
        (
            "PATH",
            format!(
                "{home}/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
            )
            .as_str(),
        ),
        ("HOME", home),
        ("USER", &setting.user),
        ("LOGNAME", &setting.user),
        ("SHELL", setting.shell),
        ("TERM", term),
        ("LANG", "C.UTF-8"),
        ("TMPDIR", "/tmp"),
        ("PAGER", "cat"),
        ("GIT_PAGER", "cat"),
        ("MANPAGER", "cat"),
        ("SYSTEMD_PAGER", "cat"),
        ("GIT_TERMINAL_PROMPT", "0"),
        // Says to programs that they run under an agent's sandbox.
        ("UMWELT", "1"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec();
    variables.extend(setting.network.iter().cloned());
    let entries = &setting.git.entries;
    if !entries.is_empty() {
        variables.push(("GIT_CONFIG_COUNT".to_owned(), entries.len().to_string()));
    }
    for (index, (key, value)) in entries.iter().enumerate() {
        variables.push((format!("GIT_CONFIG_KEY_{index}"), key.clone()));
        variables.push((format!("GIT_CONFIG_VALUE_{index}"), value.clone()));
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_identity_is_handed_over_by_count() {
        let git = GitIdentity::parse(
            "user.name\nA B\0user.email\na@b.example\0core.hookspath\n~/.githooks\0",
            "/home/u",
        );
        let setting = Setting {
            home: "/home/u".into(),
            user: "u".into(),
            shell: "/bin/sh",
            git,
            network: Vec::new(),
        };
        let variables = variables(&setting, "dumb");
        let value = |name: &str| {
            variables
                .iter()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.as_str())
        };
        assert_eq!(value("GIT_CONFIG_COUNT"), Some("3"));
        assert_eq!(value("GIT_CONFIG_VALUE_0"), Some("A B"));
        assert_eq!(value("GIT_CONFIG_VALUE_2"), Some("/home/u/.githooks"));
        assert_eq!(value("TERM"), Some("dumb"));
    }

    #[test]
    fn no_identity_means_no_git_variables() {
        let setting = Setting {
            home: "/h".into(),
            user: "u".into(),
            shell: "/bin/sh",
            git: GitIdentity::parse("", "/h"),
            network: Vec::new(),
        };
        assert!(
            !variables(&setting, "dumb")
                .iter()
                .any(|(name, _)| name.starts_with("GIT_CONFIG"))
        );
    }
}
