//! The text of a workspace file -> the same text with one grant more or less.
//! Pure. Nothing but the grant is touched: every other byte stays, so that
//! comments, order, line ends and alignment do too.

use std::ops::Range;
use std::path::Path;

use super::{PersistedGrant, RawGrant, Reader, WorkspaceFile};
use crate::config::source::Source;
use crate::config::value::expand_path;
use crate::config::{ConfigError, tables};

/// Adds a grant, or changes the one that there is for its path.
pub(crate) fn add_grant(
    path: &Path,
    text: &str,
    home: &Path,
    grant: &PersistedGrant,
) -> Result<String, ConfigError> {
    let reader = Reader {
        source: Source { path, text },
        home,
    };
    let mut wanted = reader.file(reader.raw()?)?;
    let known = wanted
        .grants
        .iter_mut()
        .find(|known| known.path == grant.path);
    let edited = match known {
        Some(known) => {
            *known = grant.clone();
            reader.change(grant)?
        }
        None => {
            wanted.grants.push(grant.clone());
            append(text, grant)
        }
    };
    reader.verified(edited, &wanted)
}

/// Takes a grant away; `None` where there is none for the path.
pub(crate) fn remove_grant(
    path: &Path,
    text: &str,
    home: &Path,
    granted: &Path,
) -> Result<Option<String>, ConfigError> {
    let reader = Reader {
        source: Source { path, text },
        home,
    };
    let mut wanted = reader.file(reader.raw()?)?;
    let Some(index) = wanted.grants.iter().position(|grant| grant.path == granted) else {
        return Ok(None);
    };
    wanted.grants.remove(index);
    let (header, raw) = reader.find(granted)?;
    let edited = tables::cut(text, header.start, raw.end());
    reader.verified(edited, &wanted).map(Some)
}

impl Reader<'_> {
    /// Where the table of a grant stands: its header, and what is in it.
    fn find(&self, granted: &Path) -> Result<(Range<usize>, RawGrant), ConfigError> {
        for raw in self.raw()?.grants {
            let header = raw.span();
            let raw = raw.into_inner();
            if expand_path(raw.path.get_ref(), self.home).as_deref() != Ok(granted) {
                continue;
            }
            let word = self.source.text.get(header.clone()).unwrap_or_default();
            if !word.starts_with("[[") {
                let message = "is an array in one line, which umwelt does not rewrite; \
                               write one [[grants]] table for each grant";
                let at = header.start;
                return Err(self.source.error(at, "grants", message.to_owned()));
            }
            return Ok((header, raw));
        }
        Err(self.no_way())
    }

    fn change(&self, grant: &PersistedGrant) -> Result<String, ConfigError> {
        let (_, raw) = self.find(&grant.path)?;
        let mode = quoted(grant.mode.as_str());
        let mut edits = vec![(raw.mode.span(), mode)];
        match &raw.file {
            Some(file) => edits.push((file.span(), grant.file.to_string())),
            None if grant.file => {
                let at = tables::end_of_line(self.source.text, raw.mode.span().end);
                edits.push((at..at, self.line_at(at, "file = true")));
            }
            None => {}
        }
        // From the end, so that the places before stay where they are.
        edits.sort_by_key(|(span, _)| std::cmp::Reverse(span.start));
        let mut edited = self.source.text.to_owned();
        for (span, value) in edits {
            if edited.get(span.clone()).is_none() {
                return Err(self.no_way());
            }
            edited.replace_range(span, &value);
        }
        Ok(edited)
    }

    /// A line more, behind the end of another one or of the text.
    fn line_at(&self, at: usize, line: &str) -> String {
        let text = self.source.text;
        let end = tables::line_end(text);
        let is_behind_line = text.get(..at).is_some_and(|before| before.ends_with('\n'));
        match is_behind_line {
            true => format!("{line}{end}"),
            false => format!("{end}{line}"),
        }
    }

    /// A file can be written in ways that nobody has thought of: what comes out
    /// must mean what was wanted.
    fn verified(&self, edited: String, wanted: &WorkspaceFile) -> Result<String, ConfigError> {
        match WorkspaceFile::parse(self.source.path, &edited, self.home) {
            Ok(file) if file == *wanted => Ok(edited),
            _ => Err(self.no_way()),
        }
    }

    fn no_way(&self) -> ConfigError {
        let message = "cannot be rewritten without changing something else; edit it by hand";
        self.source.error(0, "grants", message.to_owned())
    }
}

impl RawGrant {
    /// Where its last value ends.
    fn end(&self) -> usize {
        let file = self.file.as_ref().map(|file| file.span().end);
        [self.path.span().end, self.mode.span().end]
            .into_iter()
            .chain(file)
            .max()
            .unwrap_or(0)
    }
}

fn append(text: &str, grant: &PersistedGrant) -> String {
    let path = quoted(&grant.path.to_string_lossy());
    let mode = quoted(grant.mode.as_str());
    let mut lines = vec![
        "[[grants]]".to_owned(),
        format!("path = {path}"),
        format!("mode = {mode}"),
    ];
    if grant.file {
        lines.push("file = true".to_owned());
    }
    tables::append(text, &lines)
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c if crate::text::is_unsafe(c) => match c as u32 {
                code @ 0..=0xffff => out.push_str(&format!("\\u{code:04x}")),
                code => out.push_str(&format!("\\U{code:08x}")),
            },
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::GrantMode;
    use proptest::prelude::*;

    const FILE: &str = "/w/.umwelt.toml";

    fn parse(text: &str) -> WorkspaceFile {
        WorkspaceFile::parse(Path::new(FILE), text, Path::new("/h")).unwrap()
    }

    fn add(text: &str, path: &str, mode: GrantMode, file: bool) -> Result<String, String> {
        let grant = PersistedGrant {
            path: path.into(),
            mode,
            file,
        };
        add_grant(Path::new(FILE), text, Path::new("/h"), &grant).map_err(|error| error.to_string())
    }

    fn remove(text: &str, path: &str) -> Result<Option<String>, String> {
        remove_grant(Path::new(FILE), text, Path::new("/h"), Path::new(path))
            .map_err(|error| error.to_string())
    }

    const TEXT: &str = "# of the project\n\n  [[grants]] # first\npath = \"/a\" # why\n\
                        # between\nmode   =   'ro'   # careful\n# after\n\n\
                        [[ \"grants\" ]]\nmode = \"rw\"\npath = '$HOME/b'\n# end\n";

    #[test]
    fn grant_is_added_at_the_end() {
        assert_eq!(
            add("", "/a", GrantMode::Ro, true).unwrap(),
            "[[grants]]\npath = \"/a\"\nmode = \"ro\"\nfile = true\n"
        );
        let added = add(TEXT, "/c", GrantMode::Rw, false).unwrap();
        assert_eq!(
            added,
            format!("{TEXT}\n[[grants]]\npath = \"/c\"\nmode = \"rw\"\n")
        );
    }

    #[test]
    fn known_grant_is_changed_in_its_place() {
        let changed = add(TEXT, "/a", GrantMode::Ro, true).unwrap();
        let wanted = TEXT.replace("'ro'   # careful", "\"ro\"   # careful\nfile = true");
        assert_eq!(changed, wanted);
        let changed = add(&changed, "/a", GrantMode::Rw, false).unwrap();
        let wanted = wanted
            .replace("\"ro\" ", "\"rw\" ")
            .replace("true", "false");
        assert_eq!(changed, wanted);
    }

    #[test]
    fn removed_grant_leaves_the_comments_around_it() {
        assert_eq!(
            remove(TEXT, "/a").unwrap().unwrap(),
            "# of the project\n\n# after\n\n\
             [[ \"grants\" ]]\nmode = \"rw\"\npath = '$HOME/b'\n# end\n"
        );
        let both = remove(TEXT, "/h/b").unwrap().unwrap();
        let both = remove(&both, "/a").unwrap().unwrap();
        assert_eq!(both, "# of the project\n\n# after\n\n# end\n");
        assert_eq!(remove(TEXT, "/c").unwrap(), None);
    }

    #[test]
    fn windows_line_ends_and_byte_order_mark_stay() {
        let text = format!("\u{feff}{}", TEXT.replace('\n', "\r\n"));
        let added = add(&text, "/c", GrantMode::Rw, false).unwrap();
        assert!(added.starts_with(&text));
        assert!(!added.replace("\r\n", "").contains('\n'));
        assert_eq!(remove(&added, "/c").unwrap().unwrap(), text);
        let changed = add(&text, "/a", GrantMode::Ro, true).unwrap();
        assert!(!changed.replace("\r\n", "").contains('\n'));
    }

    #[test]
    fn grants_in_one_line_are_left_to_the_user() {
        let text = "grants = [{path = '/a', mode = 'ro'}]\n";
        for error in [
            remove(text, "/a").unwrap_err(),
            add(text, "/a", GrantMode::Rw, false).unwrap_err(),
        ] {
            assert!(error.contains("array in one line"), "{error}");
        }
        let error = add(text, "/b", GrantMode::Rw, false).unwrap_err();
        assert!(error.contains("by hand"), "{error}");
    }

    #[test]
    fn broken_text_is_not_rewritten() {
        for text in ["[[grants]]\n", "x = 1\n", "[[grants"] {
            assert!(add(text, "/a", GrantMode::Ro, false).is_err());
            assert!(remove(text, "/a").is_err());
        }
    }

    fn a_path() -> impl Strategy<Value = String> {
        // Short names meet often; the others hold what a string can hold.
        prop_oneof![
            "(/[ab]){1,2}",
            "(/[^/\\x00\\n.]{1,6}){1,3}"
                .prop_filter("no comment in it", |path| !path.contains("# ")),
        ]
    }

    fn an_entry() -> impl Strategy<Value = String> {
        let comment = "( # [a-z\"=\\[]{0,6})?";
        (a_path(), any::<bool>(), any::<bool>(), comment, "(# [a-z]{0,5}\n){0,2}").prop_map(
            |(path, rw, file_first, comment, above)| {
                let mode = if rw { "'rw'" } else { "\"ro\"" };
                let path = quoted(&path);
                let file = if file_first { "file=false\n" } else { "" };
                format!("{above}\n [[grants]]{comment}\n{file}mode = {mode}{comment}\n\n{above}path={path}{comment}\n")
            },
        )
    }

    fn a_file() -> impl Strategy<Value = String> {
        let whole = (
            prop::collection::vec(an_entry(), 0..4),
            "(# [a-z]{0,5}\n){0,2}",
            any::<bool>(),
            any::<bool>(),
        );
        let whole = whole.prop_map(|(entries, end, is_windows, ends)| {
            let mut text = format!("{}{end}", entries.concat());
            if !ends {
                text.truncate(text.trim_end_matches('\n').len());
            }
            if is_windows {
                text.replace('\n', "\r\n")
            } else {
                text
            }
        });
        whole.prop_filter("no path twice", |text| {
            WorkspaceFile::parse(Path::new(FILE), text, Path::new("/h")).is_ok()
        })
    }

    /// The comments in their order; the paths hold no `# `.
    fn comments(text: &str) -> Vec<&str> {
        let comments = text.lines().filter_map(|line| line.split_once("# "));
        comments.map(|(_, comment)| comment).collect()
    }

    proptest! {
        #[test]
        fn added_grant_is_there_and_all_else_as_before(
            text in a_file(), path in a_path(), rw: bool,
        ) {
            let mode = if rw { GrantMode::Rw } else { GrantMode::Ro };
            let added = add(&text, &path, mode, !rw).unwrap();
            let (before, after) = (parse(&text), parse(&added));
            let path = Path::new(&path);
            let others = |file: &WorkspaceFile| -> Vec<PersistedGrant> {
                file.grants.iter().filter(|grant| grant.path != path).cloned().collect()
            };
            prop_assert_eq!(others(&before), others(&after));
            let grant = PersistedGrant { path: path.to_owned(), mode, file: !rw };
            prop_assert!(after.grants.contains(&grant));
            prop_assert_eq!(comments(&text), comments(&added));
        }

        #[test]
        fn what_is_added_and_removed_leaves_no_trace(text in a_file(), path in a_path()) {
            prop_assume!(!parse(&text).grants.iter().any(|grant| grant.path == Path::new(&path)));
            let added = add(&text, &path, GrantMode::Rw, false).unwrap();
            prop_assert!(added.starts_with(&text));
            let removed = remove(&added, &path).unwrap().unwrap();
            prop_assert_eq!(removed.trim_end_matches(['\r', '\n']), text.trim_end_matches(['\r', '\n']));
            prop_assert_eq!(parse(&removed), parse(&text));
        }

        #[test]
        fn removing_takes_the_one_grant_and_no_comment_outside_of_it(text in a_file()) {
            let file = parse(&text);
            for (index, grant) in file.grants.iter().enumerate() {
                let removed = remove(&text, grant.path.to_str().unwrap()).unwrap().unwrap();
                let mut wanted = file.clone();
                wanted.grants.remove(index);
                prop_assert_eq!(parse(&removed), wanted);
                // What is gone is one piece.
                let same = text.bytes().zip(removed.bytes()).take_while(|(a, b)| a == b).count();
                prop_assert!(text.as_bytes().ends_with(&removed.as_bytes()[same..]));
            }
        }

        #[test]
        fn no_text_is_a_panic(text in "\\PC{0,30}", path in a_path()) {
            let _either = add(&text, &path, GrantMode::Ro, false);
            let _either = remove(&text, &path);
        }
    }
}
