//! The workspace file, as the control plane goes by it: what of it counted at
//! the start, what grants write into it, and the notice that goes with every
//! result as long as it holds something that does not count.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::config::egress::EgressConfig;
use crate::config::{PersistedGrant, WorkspaceFile};
use crate::egress::rules::RuleChange;
use crate::trust::{TrustError, TrustState, WorkspaceTrust, meaning};

/// Tells whether a file was changed: nobody can set the time of a change back.
type Stamp = Option<(u64, u64, i64, i64)>;

#[derive(Debug)]
pub(crate) struct StandingFile {
    trust: WorkspaceTrust,
    /// What counts in this control plane.
    counted: WorkspaceFile,
    notice: Option<String>,
    /// The notice is about something that the user has not accepted.
    is_untrusted: bool,
    /// The file and its record when they were looked at.
    seen: [Stamp; 2],
}

/// Most changes of what is allowed that one line holds.
const MAX_SHOWN: usize = 3;
const LATER: &str =
    "what was accepted of .umwelt.toml counts from the next start of the sandbox on";
const REMOVED: &str =
    ".umwelt.toml asks for nothing any more; what it granted holds until the sandbox ends";

impl StandingFile {
    pub(crate) fn load(trust: WorkspaceTrust) -> StandingFile {
        let seen = stamps(&trust);
        let settings = trust.load();
        let notice = settings.notice();
        StandingFile {
            is_untrusted: notice.is_some(),
            notice,
            counted: settings.file,
            seen,
            trust,
        }
    }

    pub(crate) fn counted(&self) -> &WorkspaceFile {
        &self.counted
    }

    pub(crate) fn grants(&self) -> &[PersistedGrant] {
        &self.counted.grants
    }

    /// One line for each result, until it is resolved. The files are read
    /// again only after a change of one of them.
    pub(crate) fn notice(&mut self) -> Option<&str> {
        let now = stamps(&self.trust);
        if now != self.seen {
            self.look(now);
        }
        self.notice.as_deref()
    }

    /// What the file says now, for the one who has just changed it.
    pub(crate) fn meaning(&self) -> String {
        let seen = match self.trust.comparison() {
            Ok(seen) => seen,
            Err(error) => return format!("it cannot be accepted: {error}"),
        };
        match seen.state {
            TrustState::Absent => "it asks for nothing".to_owned(),
            TrustState::Trusted => "it is what was accepted".to_owned(),
            TrustState::Untrusted(_) | TrustState::Broken(_) => {
                let shown = seen.changes.iter().take(MAX_SHOWN);
                let mut shown: Vec<&str> = shown.map(|change| change.text.as_str()).collect();
                if shown.is_empty() {
                    shown.push("changes nothing that is allowed");
                }
                if seen.changes.len() > MAX_SHOWN {
                    shown.push("and more");
                }
                let shown = shown.join(", ");
                format!("nothing of it counts until the user accepts it; then it {shown}")
            }
        }
    }

    /// Why nothing can be written into the file.
    pub(crate) fn obstacle(&mut self) -> Option<&str> {
        self.notice();
        self.notice.as_deref().filter(|_| self.is_untrusted)
    }

    fn look(&mut self, now: [Stamp; 2]) {
        let settings = self.trust.load();
        self.notice = settings.notice();
        self.is_untrusted = self.notice.is_some();
        let is_other = !meaning::changes(&self.counted, &settings.file).is_empty();
        if self.notice.is_none() && is_other {
            let why = match settings.state {
                TrustState::Absent => REMOVED,
                _ => LATER,
            };
            self.notice = Some(why.to_owned());
        }
        self.seen = now;
    }

    /// Whether the file says something else now.
    pub(crate) fn add(&mut self, grant: &PersistedGrant) -> Result<bool, TrustError> {
        let changed = self.trust.add_grant(grant)?;
        let mut held = self.counted.grants.iter_mut();
        match held.find(|held| held.path == grant.path) {
            Some(held) => *held = grant.clone(),
            None => self.counted.grants.push(grant.clone()),
        }
        self.written();
        Ok(changed)
    }

    pub(crate) fn remove(&mut self, path: &Path) -> Result<bool, TrustError> {
        let changed = self.trust.remove_grant(path)?;
        self.counted.grants.retain(|held| held.path != path);
        self.written();
        Ok(changed)
    }

    /// Writes a rule for the network, or takes rules out.
    pub(crate) fn change_rules(
        &mut self,
        change: &RuleChange,
        after: &EgressConfig,
    ) -> Result<bool, TrustError> {
        let changed = self.trust.change_rules(change)?;
        self.counted.egress = after.clone();
        self.written();
        Ok(changed)
    }

    /// What was just written needs no notice, but others may have written too.
    fn written(&mut self) {
        self.seen = [None, None];
    }
}

fn stamps(trust: &WorkspaceTrust) -> [Stamp; 2] {
    let stamp = |path: &Path| {
        let found = path.symlink_metadata().ok()?;
        Some((found.dev(), found.ino(), found.ctime(), found.ctime_nsec()))
    };
    [stamp(&trust.path()), stamp(&trust.record_path())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::GrantMode;
    use crate::dirs::Dirs;
    use crate::workspace::Workspace;

    fn place() -> (tempfile::TempDir, Dirs, Workspace) {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("home/project")).unwrap();
        let home = root.join("home");
        let dirs = Dirs {
            config: home.join("config/umwelt"),
            data: home.join("data/umwelt"),
            state: home.join("state/umwelt"),
            runtime: root.join("run"),
            home,
        };
        let workspace = Workspace::resolve(&dirs.home.join("project"), &dirs).unwrap();
        (temp, dirs, workspace)
    }

    fn grant(path: &str) -> PersistedGrant {
        PersistedGrant {
            path: path.into(),
            mode: GrantMode::Ro,
            file: false,
        }
    }

    #[test]
    fn notice_comes_with_an_edit_and_goes_when_it_is_undone() {
        let (_temp, dirs, workspace) = place();
        let open = || WorkspaceTrust::new(&workspace, &dirs);
        let mut file = StandingFile::load(open());
        assert!(file.grants().is_empty() && file.notice().is_none());
        file.add(&grant("/srv/a")).unwrap();
        assert_eq!(file.notice(), None);
        let text = std::fs::read_to_string(open().path()).unwrap();
        std::fs::write(open().path(), text.replace("/srv/a", "/srv/b")).unwrap();
        assert!(file.notice().unwrap().contains("umwelt-ctl trust"));
        assert!(file.obstacle().is_some());
        assert_eq!(StandingFile::load(open()).grants(), []);
        std::fs::write(open().path(), &text).unwrap();
        assert_eq!(file.notice(), None);
        assert_eq!(StandingFile::load(open()).grants(), [grant("/srv/a")]);
    }

    #[test]
    fn grant_that_is_written_once_more_needs_no_notice_and_a_removed_file_one() {
        let (_temp, dirs, workspace) = place();
        let mut file = StandingFile::load(WorkspaceTrust::new(&workspace, &dirs));
        for path in ["/srv/a", "/srv/b", "/srv/a"] {
            file.add(&grant(path)).unwrap();
            assert_eq!(file.notice(), None);
        }
        std::fs::remove_file(workspace.path().join(".umwelt.toml")).unwrap();
        assert_eq!(file.notice(), Some(REMOVED));
        assert_eq!(file.obstacle(), None);
        file.add(&grant("/srv/b")).unwrap();
    }

    #[test]
    fn what_was_accepted_meanwhile_counts_from_the_next_start_on() {
        let (_temp, dirs, workspace) = place();
        let trust = WorkspaceTrust::new(&workspace, &dirs);
        let mut file = StandingFile::load(WorkspaceTrust::new(&workspace, &dirs));
        let text = "[[grants]]\npath = \"/srv/a\"\nmode = \"ro\"\n";
        std::fs::write(trust.path(), text).unwrap();
        assert!(file.notice().unwrap().contains("until the user accepts"));
        trust.accept(&trust.comparison().unwrap()).unwrap();
        assert_eq!(file.notice(), Some(LATER));
        assert!(file.grants().is_empty());
    }
}
