//! What a check has found: a verdict, what it is based on, and the way out.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::facts::Problem;
use super::packages::{Family, Package};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Ok,
    /// Something works less well, or only a part of umwelt works.
    Warn,
    /// No sandbox can be started, or one does not hold.
    Fail,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Finding {
    pub(super) check: Cow<'static, str>,
    pub(super) verdict: Verdict,
    pub(super) evidence: String,
    /// A sentence, or commands, one a line.
    pub(super) fix: Option<String>,
    /// Whether the fix can be given to a shell.
    pub(super) is_command: bool,
}

impl Finding {
    pub(super) fn ok(check: &'static str, evidence: impl Into<String>) -> Finding {
        Finding {
            check: check.into(),
            verdict: Verdict::Ok,
            evidence: evidence.into(),
            fix: None,
            is_command: false,
        }
    }

    pub(super) fn warn(check: &'static str, evidence: impl Into<String>) -> Finding {
        Finding {
            verdict: Verdict::Warn,
            ..Finding::ok(check, evidence)
        }
    }

    pub(super) fn fail(check: &'static str, evidence: impl Into<String>) -> Finding {
        Finding {
            verdict: Verdict::Fail,
            ..Finding::ok(check, evidence)
        }
    }

    pub(super) fn hint(mut self, fix: impl Into<String>) -> Finding {
        self.fix = Some(fix.into());
        self
    }

    pub(super) fn way_out(self, problem: &Problem) -> Finding {
        match &problem.hint {
            Some(hint) => self.hint(hint),
            None => self,
        }
    }

    pub(super) fn install(self, family: Family, package: Package) -> Finding {
        match family.install(package) {
            Ok(command) => self.run(command),
            Err(words) => self.hint(words),
        }
    }

    /// One more line of the fix.
    pub(super) fn and(mut self, line: &str) -> Finding {
        self.fix = self.fix.map(|fix| format!("{fix}\n{line}"));
        self
    }

    pub(super) fn run(mut self, fix: impl Into<String>) -> Finding {
        self.is_command = true;
        self.hint(fix)
    }
}
