//! The JSON of a person's settings, with comments -> the same text with ours
//! in it. Pure. Every byte that is not replaced stays.

use std::ops::Range;

use serde_json::Value;

use super::jsonc::{Kind, Member, Node, Parser, parse};

/// What becomes of a list that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lists {
    Replace,
    /// What is missing is added.
    Extend,
}

/// `text` with all of `wanted` in it. The error says why that cannot be done.
pub(super) fn merge(text: &str, wanted: &str, lists: Lists) -> Result<String, String> {
    let text = &with_an_object(text);
    let (node, wanted) = (parse(text)?, parse(wanted)?);
    let mut plan = Plan {
        text,
        unit: unit(text, &node),
        line_end: if text.contains("\r\n") { "\r\n" } else { "\n" },
        lists,
        edits: Vec::new(),
    };
    plan.merge("the file", &node, &wanted)?;
    let edited = plan.apply();
    let expected = merged(node.to_value(), &wanted.to_value(), lists);
    match parse(&edited) {
        Ok(after) if after.to_value() == expected => Ok(edited),
        _ => Err("it cannot be edited without changing something else".to_owned()),
    }
}

/// Where there is nothing, or nothing but comments, an empty object follows.
fn with_an_object(text: &str) -> String {
    let mut parser = Parser::new(text);
    let is_blank = parser.skip().is_ok() && parser.peek().is_none();
    let mut text = text.to_owned();
    if is_blank {
        if !text.trim_start_matches('\u{feff}').is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str("{}\n");
    }
    text
}

/// What the result has to mean.
fn merged(mut into: Value, wanted: &Value, lists: Lists) -> Value {
    match (&mut into, wanted) {
        (Value::Object(into), Value::Object(wanted)) => {
            for (key, value) in wanted {
                let value = match into.remove(key) {
                    Some(old) => merged(old, value, lists),
                    None => value.clone(),
                };
                into.insert(key.clone(), value);
            }
        }
        (Value::Array(into), Value::Array(wanted)) if lists == Lists::Extend => {
            for value in wanted {
                if !into.contains(value) {
                    into.push(value.clone());
                }
            }
        }
        _ => return wanted.clone(),
    }
    into
}

/// How one level is indented.
fn unit(text: &str, root: &Node) -> String {
    let first = match &root.kind {
        Kind::Object(members) => members.first(),
        _ => None,
    };
    let indent = first.and_then(|member| indent_of(text, member.start));
    let indent = indent.filter(|indent| !indent.is_empty());
    indent.unwrap_or("  ").to_owned()
}

/// The blanks before `at`, if nothing else stands before it on its line.
fn indent_of(text: &str, at: usize) -> Option<&str> {
    let before = text.get(..at)?;
    let line = before.rsplit('\n').next()?;
    let is_first = before.contains('\n') && line.chars().all(|c| c == ' ' || c == '\t');
    is_first.then_some(line)
}

/// The blanks that begin the line of `at`.
fn line_indent(text: &str, at: usize) -> &str {
    let line = text.get(..at).unwrap_or_default().rsplit('\n').next();
    let line = line.unwrap_or_default();
    let len = line.len() - line.trim_start_matches([' ', '\t']).len();
    line.get(..len).unwrap_or_default()
}

#[derive(Debug)]
struct Plan<'a> {
    text: &'a str,
    unit: String,
    line_end: &'static str,
    lists: Lists,
    edits: Vec<(Range<usize>, String)>,
}

impl Plan<'_> {
    fn merge(&mut self, name: &str, node: &Node, wanted: &Node) -> Result<(), String> {
        match (&node.kind, &wanted.kind) {
            (Kind::Object(members), Kind::Object(want)) => {
                let mut missing = Vec::new();
                for member in want {
                    match node.find(&member.key) {
                        Some(there) => {
                            self.merge(&format!("{:?}", member.key), there, &member.value)?;
                        }
                        None => missing.push(member),
                    }
                }
                let last = members.last().map(|member| member.value.range.end);
                let first = members.first().map(|member| member.start);
                let base = self.inner_indent(node, first);
                let texts = missing
                    .iter()
                    .map(|member| self.render_member(member, &base));
                self.insert(node, last, &base, &texts.collect::<Vec<_>>());
            }
            (Kind::Array(items), Kind::Array(want)) if self.lists == Lists::Extend => {
                let there: Vec<Value> = items.iter().map(Node::to_value).collect();
                let missing = want.iter().filter(|item| !there.contains(&item.to_value()));
                let last = items.last().map(|item| item.range.end);
                let base = self.inner_indent(node, items.first().map(|item| item.range.start));
                let texts = missing.map(|item| self.render(item, &base));
                self.insert(node, last, &base, &texts.collect::<Vec<_>>());
            }
            (Kind::Object(_), _) => {
                return Err(format!("{name} is an object there, and should be none"));
            }
            (_, Kind::Object(_)) => {
                return Err(format!("{name} is not what it should be there, an object"));
            }
            _ if node.to_value() == wanted.to_value() => {}
            _ => {
                let base = line_indent(self.text, node.range.start).to_owned();
                self.edits
                    .push((node.range.clone(), self.render(wanted, &base)));
            }
        }
        Ok(())
    }

    fn inner_indent(&self, node: &Node, first: Option<usize>) -> String {
        let beside = first.and_then(|first| indent_of(self.text, first));
        let own = || format!("{}{}", line_indent(self.text, node.range.start), self.unit);
        beside.map_or_else(own, str::to_owned)
    }

    /// Adds parts behind the one that ends at `last`, and behind a comment on
    /// its line, which belongs to it.
    fn insert(&mut self, node: &Node, last: Option<usize>, base: &str, parts: &[String]) {
        if parts.is_empty() {
            return;
        }
        let line_end = self.line_end;
        let inside = self.text.get(node.range.clone()).unwrap_or_default();
        let separator = format!(",{line_end}{base}");
        let parts_text = parts.join(&separator);
        let Some(last) = last else {
            let outer = line_indent(self.text, node.range.start);
            let close = match inside.contains('\n') {
                true => String::new(),
                false => format!("{line_end}{outer}"),
            };
            let at = node.range.start + 1;
            let text = format!("{line_end}{base}{parts_text}{close}");
            self.edits.push((at..at, text));
            return;
        };
        if !inside.contains('\n') {
            self.edits
                .push((last..last, format!(", {}", parts.join(", "))));
            return;
        }
        let (has_comma, behind) = self.behind(last, node.range.end);
        if !has_comma {
            self.edits.push((last..last, ",".to_owned()));
        }
        let text = format!("{line_end}{base}{parts_text}");
        self.edits.push((behind..behind, text));
    }

    /// Whether a comma follows, and where the line of `last` ends, or what
    /// stands on it and belongs to it.
    fn behind(&self, last: usize, end: usize) -> (bool, usize) {
        let mut parser = Parser {
            text: self.text,
            at: last,
        };
        // It has been parsed before: comments have their ends.
        let has_comma = parser.skip().is_ok() && parser.peek() == Some(b',');
        let mut at = if has_comma { parser.at + 1 } else { last };
        loop {
            let rest = self.text.get(at..end).unwrap_or_default();
            let trimmed = rest.trim_start_matches([' ', '\t']);
            let start = at + (rest.len() - trimmed.len());
            if trimmed.starts_with("//") {
                let line = trimmed.split(['\n', '\r']).next().unwrap_or_default();
                return (has_comma, start + line.len());
            }
            match trimmed.find("*/") {
                Some(len) if trimmed.starts_with("/*") => at = start + len + 2,
                _ => return (has_comma, at),
            }
        }
    }

    fn render_member(&self, member: &Member, base: &str) -> String {
        let key = Value::String(member.key.clone());
        format!("{key}: {}", self.render(&member.value, base))
    }

    fn render(&self, node: &Node, base: &str) -> String {
        match &node.kind {
            Kind::Scalar(value) => value.to_string(),
            Kind::Array(items) => {
                let items: Vec<_> = items.iter().map(|item| self.render(item, base)).collect();
                format!("[{}]", items.join(", "))
            }
            Kind::Object(members) if members.is_empty() => "{}".to_owned(),
            Kind::Object(members) => {
                let (inner, end) = (format!("{base}{}", self.unit), self.line_end);
                let members = members
                    .iter()
                    .map(|member| self.render_member(member, &inner));
                let members: Vec<_> = members.collect();
                let separator = format!(",{end}{inner}");
                format!("{{{end}{inner}{}{end}{base}}}", members.join(&separator))
            }
        }
    }

    fn apply(mut self) -> String {
        // From the end, so that the places before stay where they are. What
        // goes in at one place keeps its order.
        self.edits.reverse();
        self.edits
            .sort_by_key(|(range, _)| std::cmp::Reverse(range.start));
        let mut out = self.text.to_owned();
        for (range, text) in self.edits {
            out.replace_range(range, &text);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WANTED: &str = r#"{"mcp": {"u": {"command": ["/x"], "on": true}}, "p": {"a": "ask"}}"#;

    #[test]
    fn nothing_becomes_what_is_wanted_and_stays_so() {
        for text in [
            "",
            "\n",
            "{}",
            "{ }\n",
            "{\n}\n",
            "{\n  // none\n}\n",
            "// none",
            "\u{feff}/* none */\r\n",
        ] {
            let once = merge(text, WANTED, Lists::Replace).unwrap();
            assert_eq!(
                parse(&once).unwrap().to_value(),
                parse(WANTED).unwrap().to_value()
            );
            assert!(once.contains("none") == text.contains("none"));
            assert!(once.starts_with('\u{feff}') == text.starts_with('\u{feff}'));
            assert_eq!(merge(&once, WANTED, Lists::Replace).unwrap(), once);
        }
        let fresh = merge("", WANTED, Lists::Replace).unwrap();
        let expected = "{\n  \"mcp\": {\n    \"u\": {\n      \"command\": [\"/x\"],\n      \"on\": true\n    }\n  },\n  \"p\": {\n    \"a\": \"ask\"\n  }\n}\n";
        assert_eq!(fresh, expected);
    }

    #[test]
    fn comments_order_and_layout_stay() {
        let text = "{\n\t// theme\n\t\"theme\": \"dark\",\n\t\"mcp\": {\n\t\t\"other\": {\"command\": [\"o\"]}, // mine\n\t\t// and a last word\n\t},\n\t\"p\": {\"a\": \"allow\"} // why\n}\n";
        let expected = "{\n\t// theme\n\t\"theme\": \"dark\",\n\t\"mcp\": {\n\t\t\"other\": {\"command\": [\"o\"]}, // mine\n\t\t\"u\": {\n\t\t\t\"command\": [\"/x\"],\n\t\t\t\"on\": true\n\t\t}\n\t\t// and a last word\n\t},\n\t\"p\": {\"a\": \"ask\"} // why\n}\n";
        assert_eq!(merge(text, WANTED, Lists::Replace).unwrap(), expected);
    }

    #[test]
    fn a_comment_behind_the_last_value_stays_with_it() {
        let text = "{\r\n  \"a\": 1 // one\r\n}\r\n";
        let expected = "{\r\n  \"a\": 1, // one\r\n  \"b\": 2\r\n}\r\n";
        assert_eq!(merge(text, "{\"b\": 2}", Lists::Replace).unwrap(), expected);
    }

    #[test]
    fn lists_are_replaced_or_extended() {
        let text = "{\"l\": [\"a\", \"b\"]}";
        let wanted = "{\"l\": [\"b\", \"c\"]}";
        let replaced = merge(text, wanted, Lists::Replace).unwrap();
        assert_eq!(replaced, "{\"l\": [\"b\", \"c\"]}");
        let extended = merge(text, wanted, Lists::Extend).unwrap();
        assert_eq!(extended, "{\"l\": [\"a\", \"b\", \"c\"]}");
    }

    #[test]
    fn what_is_no_object_where_one_is_needed_is_refused() {
        for text in [
            "[]",
            "1",
            "{\"mcp\": []}",
            "{\"p\": \"allow\"}",
            "{\"p\": {\"a\": {}}}",
        ] {
            let error = merge(text, WANTED, Lists::Replace).unwrap_err();
            assert!(error.contains("an object"), "{text}: {error}");
        }
    }

    #[test]
    fn of_two_members_with_one_key_the_one_that_counts_is_changed() {
        let edited = merge("{\"a\": 1, \"a\": 2}", "{\"a\": 3}", Lists::Replace).unwrap();
        assert_eq!(edited, "{\"a\": 1, \"a\": 3}");
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-c\"\\\\/ é]{0,4}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-c]", inner, 0..3)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    /// Objects in objects, without lists.
    fn objects() -> impl Strategy<Value = Value> {
        let leaf = any::<bool>().prop_map(Value::from);
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop::collection::btree_map("[a-c]", inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect()))
        })
    }

    proptest! {
        #[test]
        fn hostile_text_is_refused_or_read(text in "[\\[\\]{}\",:/*a1\\\\ \n]{0,40}") {
            drop(parse(&text));
            drop(merge(&text, WANTED, Lists::Extend));
        }

        #[test]
        fn merging_means_what_it_should(into in any_value(), wanted in any_value(), pretty: bool) {
            let text = match pretty {
                true => format!("{into:#}"),
                false => into.to_string(),
            };
            if let Ok(edited) = merge(&text, &wanted.to_string(), Lists::Replace) {
                let after = parse(&edited).unwrap().to_value();
                prop_assert_eq!(after, merged(into, &wanted, Lists::Replace));
            }
        }

        #[test]
        fn comments_outside_of_replaced_lists_stay(into in objects(), wanted in objects()) {
            let pretty = format!("{into:#}");
            let commented: String = pretty.lines().map(|line| format!("{line} // @\n")).collect();
            if let Ok(edited) = merge(&commented, &wanted.to_string(), Lists::Replace) {
                prop_assert_eq!(edited.matches('@').count(), pretty.lines().count());
            }
        }
    }
}
