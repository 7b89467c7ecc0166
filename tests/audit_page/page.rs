//! An audit, and the page that umwelt-ctl makes of it.

use std::fmt::Write as _;
use std::path::PathBuf;

use sha2::{Digest, Sha256};

use crate::common::home::Home;

/// 2026-01-01 00:00:00, in UTC.
pub(crate) const START: u32 = 1_767_225_600;

pub(crate) struct Page {
    home: Home,
}

/// What the records have in common.
pub(crate) fn record(seconds: u32, rest: &str) -> String {
    let ts = START + seconds;
    format!("{{\"type\":\"umwelt-egress\",\"ts\":{ts}.25,\"workspace\":\"0123abcd\",{rest}}}\n")
}

pub(crate) fn request(seconds: u32, host: &str, path: &str, rest: &str) -> String {
    let target = format!(
        "\"kind\":\"https\",\"method\":\"GET\",\"host\":\"{host}\",\"port\":443,\"path\":\"{path}\""
    );
    record(seconds, &format!("{target},{rest}"))
}

pub(crate) const ALLOWED: &str =
    "\"verdict\":\"allow\",\"status\":200,\"up\":100,\"down\":2048,\"ms\":7";
pub(crate) const DENIED: &str =
    "\"verdict\":\"deny\",\"why\":\"no rule for this host allows the path\",\"status\":403";

impl Page {
    pub(crate) fn of(records: &str) -> Page {
        let home = Home::new();
        let digest = Sha256::digest(home.workspace().to_str().unwrap().as_bytes());
        let mut sid = String::new();
        for byte in digest.iter().take(4) {
            write!(sid, "{byte:02x}").unwrap();
        }
        let audit = home
            .path("data/umwelt/egress")
            .join(format!("audit-umwelt-{sid}"));
        std::fs::create_dir_all(&audit).unwrap();
        std::fs::write(audit.join("audit.jsonl"), records).unwrap();
        let page = Page { home };
        let mut command = page.home.command("umwelt-ctl");
        command.args(["audit", "--html"]).arg(page.file());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        page
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.home.path("page.html")
    }

    pub(crate) fn text(&self) -> String {
        std::fs::read_to_string(self.file()).unwrap()
    }

    /// A page that holds copies of this one, of these widths, in which a script
    /// looks at the layout. What it has seen is written into the outer body.
    pub(crate) fn measured(&self, widths: &[u32]) -> PathBuf {
        let text = self.text();
        let (before, rest) = text
            .split_once("<meta http-equiv=\"Content-Security-Policy\"")
            .unwrap();
        let (_, after) = rest.split_once('>').unwrap();
        let inner = self.home.path("inner.html");
        std::fs::write(inner, format!("{before}{after}{MEASURE}")).unwrap();
        let outer = self.home.path("outer.html");
        let mut frames = OUTER.to_owned();
        for width in widths {
            write!(
                frames,
                "<iframe src=\"inner.html\" width=\"{width}\"></iframe>"
            )
            .unwrap();
        }
        std::fs::write(&outer, frames).unwrap();
        outer
    }
}

/// A window cannot be as narrow as a page can.
const OUTER: &str = "<!DOCTYPE html><style>iframe { border: 0; height: 900px }</style>
<body data-seen=\"\">
<script>onmessage = event => document.body.dataset.seen += event.data + ';'</script>";

/// The widths of window and document, what reaches beyond the right edge or out
/// of its own box, and the title, unless something has become markup. There is
/// no policy here that would keep a script from running.
const MEASURE: &str = "<script>
const wide = document.documentElement.clientWidth;
const beyond = [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > wide + 0.5
    || (e.clientWidth > 0 && e.scrollWidth > e.clientWidth && getComputedStyle(e).display != 'inline'));
const names = beyond.map(e => e.tagName + '.' + e.className).join(' ');
const foreign = document.querySelectorAll('img, script + script, [onload], [onerror]').length;
const title = foreign ? 'markup' : document.title.split(' ')[0];
parent.postMessage(`${wide} ${document.documentElement.scrollWidth} [${names}] ${title}`, '*');
</script>";
