//! A settings file that somebody names -> the directory around it that can be a
//! workspace, if there is one. What runs in the sandbox can write there, and
//! the client runs on the host what its settings name.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::known;
use crate::dirs::Dirs;
use crate::places;
use crate::workspace::refusal;

/// Where a settings file lies, by what an agent can do there.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Around {
    /// No workspace holds it.
    User,
    /// The user's own, led by a link into a directory that can be a workspace.
    Linked(PathBuf),
    /// In a directory that can be a workspace.
    Workspace(PathBuf),
}

/// `named` is absolute.
pub(super) fn around(named: &Path, dirs: &Dirs) -> Around {
    // A link is judged by where it stands: clients find their settings by it.
    let entry = match (named.parent(), named.file_name()) {
        (Some(dir), Some(name)) => places::real(dir).join(name),
        _ => places::real(named),
    };
    let is_known = known::all(&dirs.home, near(dirs)).any(|known| known == named);
    if !is_known && let Some(dir) = holding(&entry, dirs) {
        return Around::Workspace(dir);
    }
    match holding(&places::real(named), dirs) {
        Some(dir) => Around::Linked(dir),
        None => Around::User,
    }
}

/// `$XDG_CONFIG_HOME`.
fn near(dirs: &Dirs) -> &Path {
    dirs.config.parent().unwrap_or(&dirs.config)
}

/// The nearest directory of a path without links that can be a workspace.
fn holding(file: &Path, dirs: &Dirs) -> Option<PathBuf> {
    let (home, config) = (places::real(&dirs.home), places::real(near(dirs)));
    let is_known = known::all(&home, &config).any(|known| known == file);
    let around: Vec<&Path> = file
        .ancestors()
        .skip(1)
        .filter(|dir| refusal(dir, dirs).is_none())
        .collect();
    let is_project = around.iter().any(|dir| dir.join(".git").exists());
    let is_of_project = is_project || file.file_name() == Some(OsStr::new(".mcp.json"));
    if is_known || (is_hidden(file, &home, &config) && !is_of_project) {
        return None;
    }
    // Rather the project than its directory ".vscode".
    let is_plain = |dir: &&&Path| !is_dotted(dir.file_name());
    let nearest = around.iter().find(is_plain).or_else(|| around.first());
    nearest.map(|dir| dir.to_path_buf())
}

/// In a directory where programs keep settings. Below these two they keep much
/// else, checkouts of projects too.
fn is_hidden(file: &Path, home: &Path, config: &Path) -> bool {
    const MIXED: [&str; 2] = [".local", ".cache"];
    if file.starts_with(config) {
        return true;
    }
    let below = file.strip_prefix(home).ok();
    let first = below.and_then(|below| below.iter().next());
    is_dotted(first) && !MIXED.iter().any(|mixed| first == Some(OsStr::new(mixed)))
}

fn is_dotted(name: Option<&OsStr>) -> bool {
    name.is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn home() -> (tempfile::TempDir, Dirs) {
        let temp = tempfile::tempdir().unwrap();
        let home = temp.path().canonicalize().unwrap().join("home");
        for dir in [
            ".config/nvim/.git",
            ".config/opencode",
            ".claude/.git",
            ".codex/worktrees/p/.git",
            "p/.vscode",
        ] {
            std::fs::create_dir_all(home.join(dir)).unwrap();
        }
        let dirs = Dirs {
            config: home.join(".config/umwelt"),
            data: home.join(".local/share/umwelt"),
            state: home.join(".local/state/umwelt"),
            runtime: home.join("run/umwelt"),
            home,
        };
        (temp, dirs)
    }

    #[test]
    fn files_of_a_project_are_told_from_those_of_the_user() {
        let (_temp, dirs) = home();
        let at = |name: &str| around(&dirs.home.join(name), &dirs);
        for name in [
            ".mcp.json",
            ".claude.json",
            ".claude/settings.json",
            ".claude-work/settings.json",
            ".codex/config.toml",
            ".config/opencode/opencode.jsonc",
            ".config/Code/User/profiles/x/mcp.json",
            ".config/other/mcp.json",
            "settings.json",
        ] {
            assert_eq!(at(name), Around::User, "{name}");
        }
        for (name, dir) in [
            ("p/.mcp.json", "p"),
            ("p/.vscode/mcp.json", "p"),
            ("p/new/.claude/settings.json", "p/new"),
            ("p/opencode.json", "p"),
            ("p/../p/x.json", "p"),
            (".config/../p/x.json", "p"),
            (".config/nvim/.mcp.json", ".config/nvim"),
            (".config/nvim/opencode.json", ".config/nvim"),
            (
                ".codex/worktrees/p/.codex/config.toml",
                ".codex/worktrees/p",
            ),
            (".local/src/p/mcp.json", ".local/src/p"),
            (".x/p/.mcp.json", ".x/p"),
        ] {
            let dir = Around::Workspace(dirs.home.join(dir));
            assert_eq!(at(name), dir, "{name}");
        }
        assert_eq!(around(Path::new("/etc/x.json"), &dirs), Around::User);
    }

    #[test]
    fn link_of_the_user_is_followed_and_told_and_a_linked_project_is_a_project() {
        let (_temp, dirs) = home();
        let home = &dirs.home;
        std::fs::create_dir(home.join("dotfiles")).unwrap();
        symlink("dotfiles/x", home.join(".claude.json")).unwrap();
        symlink("../dotfiles", home.join(".config/zed")).unwrap();
        symlink("p", home.join("link")).unwrap();
        symlink(home.join(".claude.json"), home.join("p/x.json")).unwrap();
        let linked = Around::Linked(home.join("dotfiles"));
        assert_eq!(around(&home.join(".claude.json"), &dirs), linked);
        assert_eq!(
            around(&home.join(".config/zed/settings.json"), &dirs),
            linked
        );
        let project = Around::Workspace(home.join("p"));
        for name in ["link/.mcp.json", "link/.vscode/mcp.json", "p/x.json"] {
            assert_eq!(around(&home.join(name), &dirs), project, "{name}");
        }
    }
}
