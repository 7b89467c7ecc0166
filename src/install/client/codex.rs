//! The TOML of a person's settings -> the same with ours in it. Pure. Every
//! byte that is not replaced stays.

use std::ops::Range;

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

/// `text` with all of `wanted` in it. The error says why that cannot be done.
pub(super) fn merge(text: &str, wanted: &str) -> Result<String, String> {
    let before = read(text)?;
    let wanted = read(wanted)?;
    let mut plan = Plan {
        text,
        spans: DeTable::parse(text).map_err(|error| error.message().to_owned())?,
        edits: Vec::new(),
        appended: String::new(),
    };
    plan.table(&mut Vec::new(), &before, &wanted)?;
    let edited = plan.apply();
    let mut expected = before;
    merged(&mut expected, wanted);
    match read(&edited) {
        Ok(after) if after == expected => Ok(edited),
        _ => Err("it cannot be edited without changing something else".to_owned()),
    }
}

fn read(text: &str) -> Result<Table, String> {
    text.parse::<Table>().map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = before.unwrap_or_default().matches('\n').count() + 1;
        format!("line {line}: {}", error.message())
    })
}

fn merged(into: &mut Table, wanted: Table) {
    for (key, value) in wanted {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(into)), Value::Table(wanted)) => merged(into, wanted),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

struct Plan<'a> {
    text: &'a str,
    spans: Spanned<DeTable<'a>>,
    edits: Vec<(Range<usize>, String)>,
    /// Whole tables that are missing.
    appended: String,
}

impl Plan<'_> {
    fn table(
        &mut self,
        path: &mut Vec<String>,
        there: &Table,
        wanted: &Table,
    ) -> Result<(), String> {
        let mut missing = String::new();
        for (key, value) in wanted {
            path.push(key.clone());
            match (there.get(key), value) {
                (Some(Value::Table(there)), Value::Table(wanted)) => {
                    self.table(path, there, wanted)?;
                }
                (None, Value::Table(wanted)) => self.append(path, wanted)?,
                (None, value) => missing.push_str(&line(key, value)?),
                (Some(there), value) if there == value => {}
                (Some(_), Value::Table(_)) => {
                    return Err(format!("{:?} is not a table there", path.join(".")));
                }
                (Some(_), value) => {
                    let span = self.span(path)?;
                    self.edits.push((span, render(value)?));
                }
            }
            path.pop();
        }
        if !missing.is_empty() {
            let at = self.below_header(path)?;
            let begin = match at.1 {
                true => "",
                false => "\n",
            };
            self.edits.push((at.0..at.0, format!("{begin}{missing}")));
        }
        Ok(())
    }

    fn span(&self, path: &[String]) -> Result<Range<usize>, String> {
        let unclear = || format!("{:?} is not where it should be", path.join("."));
        let mut table = self.spans.get_ref();
        let mut span = None;
        for key in path {
            let value = table.get(key.as_str()).ok_or_else(unclear)?;
            span = Some(value.span());
            if let DeValue::Table(inner) = value.get_ref() {
                table = inner;
            }
        }
        span.ok_or_else(unclear)
    }

    /// Where a further line of a table can stand, and whether a line ends there.
    fn below_header(&self, path: &[String]) -> Result<(usize, bool), String> {
        let header = self.span(path)?;
        let rest = self.text.get(header.start..).unwrap_or_default();
        if !rest.starts_with('[') {
            return Err(format!(
                "[{}] is written in a way that is not edited here",
                path.join(".")
            ));
        }
        Ok(match rest.find('\n') {
            Some(len) => (header.start + len + 1, true),
            None => (self.text.len(), false),
        })
    }

    fn append(&mut self, path: &mut Vec<String>, wanted: &Table) -> Result<(), String> {
        let mut lines = String::new();
        for (key, value) in wanted.iter().filter(|(_, value)| !value.is_table()) {
            lines.push_str(&line(key, value)?);
        }
        if !lines.is_empty() {
            let header = format!("\n[{}]\n", path.join("."));
            self.appended.push_str(&header);
            self.appended.push_str(&lines);
        }
        for (key, value) in wanted {
            if let Value::Table(inner) = value {
                path.push(key.clone());
                self.append(path, inner)?;
                path.pop();
            }
        }
        Ok(())
    }

    fn apply(mut self) -> String {
        self.edits
            .sort_by_key(|(range, _)| std::cmp::Reverse(range.start));
        let line_end = match self.text.contains("\r\n") {
            true => "\r\n",
            false => "\n",
        };
        let mut out = self.text.to_owned();
        for (range, text) in self.edits {
            out.replace_range(range, &text.replace('\n', line_end));
        }
        let appended = self.appended.replace('\n', line_end);
        if !appended.is_empty() && !out.is_empty() && !out.ends_with('\n') {
            out.push_str(line_end);
        }
        out.push_str(match out.is_empty() {
            true => appended.trim_start(),
            false => &appended,
        });
        out
    }
}

/// Our keys are bare ones.
fn line(key: &str, value: &Value) -> Result<String, String> {
    Ok(format!("{key} = {}\n", render(value)?))
}

fn render(value: &Value) -> Result<String, String> {
    match value {
        // Its escapes are those of a basic string.
        Value::String(text) => Ok(serde_json::Value::from(text.as_str()).to_string()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Boolean(word) => Ok(word.to_string()),
        other => Err(format!("{} cannot be written", other.type_str())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WANTED: &str = "[mcp_servers.u]\ncommand = \"/x\"\nlimit = 30\n\n[mcp_servers.u.tools.shell]\nmode = \"approve\"\n";

    #[test]
    fn nothing_becomes_what_is_wanted_and_stays_so() {
        let once = merge("", WANTED).unwrap();
        assert_eq!(once, WANTED);
        assert_eq!(merge(&once, WANTED).unwrap(), once);
    }

    #[test]
    fn comments_and_all_else_stay() {
        let text = "# mine\nmodel = \"m\" # best\n\n[mcp_servers.other]\ncommand = \"o\"";
        let edited = merge(text, WANTED).unwrap();
        assert_eq!(edited, format!("{text}\n\n{WANTED}"));
    }

    #[test]
    fn values_are_changed_where_they_are_and_missing_ones_put_below_the_header() {
        let text = "[mcp_servers.u] # ours\ncommand = \"/old\" # why\n[z]\na = 1\n";
        let edited = merge(text, WANTED).unwrap();
        let expected = "[mcp_servers.u] # ours\nlimit = 30\ncommand = \"/x\" # why\n[z]\na = 1\n\n[mcp_servers.u.tools.shell]\nmode = \"approve\"\n";
        assert_eq!(edited, expected);
    }

    #[test]
    fn windows_line_ends_stay() {
        let edited = merge("a = 1\r\nb = \"\"\"\r\nx\"\"\"\r\n", WANTED).unwrap();
        assert_eq!(edited.matches('\n').count(), edited.matches("\r\n").count());
    }

    proptest! {
        #[test]
        fn hostile_text_is_refused_or_edited(text in "[\\[\\]{}\"'=.#mcp_serv u1\n]{0,40}") {
            if let Ok(edited) = merge(&text, WANTED) {
                // Whatever was there is there still.
                prop_assert_eq!(merge(&edited, WANTED).unwrap(), edited.clone());
                prop_assert!(edited.len() >= text.len());
            }
        }
    }

    #[test]
    fn what_cannot_be_edited_is_refused() {
        for text in [
            "a = ",
            "mcp_servers = 1\n",
            "mcp_servers = { u = { command = \"/x\" } }\n",
            "mcp_servers.u.command = \"/x\"\n",
            "[[mcp_servers]]\nx = 1\n",
        ] {
            assert!(merge(text, WANTED).is_err(), "{text}");
        }
    }
}
