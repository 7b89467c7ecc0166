//! Commands for nft, or what nft lists -> a table that can be compared,
//! digested and counted. Pure.
//!
//! Everything is compared, known or not; only what nft adds to each object of
//! its own accord is left out. So a listing of a later nft that says more is
//! refused, not misread.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::NftError;
use super::ruleset::{ALLOWED, DENIED};
use crate::digest::sha256;

type Object = Map<String, Value>;

/// A table without what changes while it works.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Table {
    tables: Vec<Object>,
    sets: BTreeMap<String, Object>,
    chains: BTreeMap<String, Object>,
    /// By chain, in their order.
    rules: BTreeMap<String, Vec<Object>>,
    /// Kinds of objects that a ruleset of ours does not have.
    others: Vec<Value>,
}

/// What the counting sets hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Counts {
    pub(crate) denied: Vec<Count>,
    pub(crate) allowed: Vec<Count>,
    /// All packets that were refused, also those that no set had room for.
    pub(crate) refused: u64,
}

/// Packets to one destination since an entry was made for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Count {
    pub(crate) address: IpAddr,
    /// As in the IP header: 6 is TCP, 17 UDP.
    pub(crate) protocol: u8,
    /// For ICMP (1 and 58) there are type and code in its place.
    pub(crate) port: u16,
    pub(crate) packets: u64,
    /// With their IP headers.
    pub(crate) bytes: u64,
}

impl Table {
    /// Reads commands or a listing: `{"nftables": [...]}`.
    pub(crate) fn parse(text: &[u8]) -> Result<Table, NftError> {
        let mut table = Table::default();
        for object in objects(text)? {
            table.take(object)?;
        }
        Ok(table)
    }

    fn take(&mut self, object: Value) -> Result<(), NftError> {
        let (kind, mut object) = content(object)?;
        object.remove("handle");
        match kind.as_str() {
            "metainfo" => {}
            "table" => self.tables.push(object),
            "set" => {
                normalise_set(&mut object);
                insert(&mut self.sets, object)?;
            }
            "chain" => insert(&mut self.chains, object)?,
            "rule" => {
                normalise_rule(&mut object);
                let chain = string(&object, "chain")?;
                self.rules.entry(chain).or_default().push(object);
            }
            _ => self.others.push(json!({ kind: object })),
        }
        Ok(())
    }

    /// Says where `found` is not what `self` asks for.
    pub(crate) fn expect(&self, found: &Table) -> Result<(), NftError> {
        match self.difference(found) {
            None => Ok(()),
            Some(what) => Err(NftError::Differs(what)),
        }
    }

    fn difference(&self, found: &Table) -> Option<String> {
        if self.tables != found.tables {
            return Some(match found.tables.as_slice() {
                [] => "there is no such table".to_owned(),
                tables => format!("the table is {}", list(tables)),
            });
        }
        different_entry("set", &self.sets, &found.sets)
            .or_else(|| different_entry("chain", &self.chains, &found.chains))
            .or_else(|| self.different_rule(found))
            .or_else(|| (self.others != found.others).then(|| "there are other objects".to_owned()))
    }

    fn different_rule(&self, found: &Table) -> Option<String> {
        let chains = self.rules.keys().chain(found.rules.keys());
        for chain in chains {
            let rules = |table: &Table| table.rules.get(chain).cloned().unwrap_or_default();
            let (asked, found) = (rules(self), rules(found));
            for number in 0..asked.len().max(found.len()) {
                let (asked, found) = (asked.get(number), found.get(number));
                if asked != found {
                    let found =
                        found.map_or_else(|| "missing".to_owned(), |rule| list(rule.get("expr")));
                    return Some(format!("rule {} of chain {chain:?} is {found}", number + 1));
                }
            }
        }
        None
    }

    /// SHA-256 over all of it, in hexadecimal digits.
    pub(crate) fn digest(&self) -> Result<String, NftError> {
        let text =
            serde_json::to_vec(self).map_err(|error| NftError::Listing(error.to_string()))?;
        Ok(sha256(&text))
    }
}

impl Counts {
    /// Reads the counting sets in a listing.
    pub(crate) fn parse(listing: &[u8]) -> Result<Counts, NftError> {
        let mut counts = Counts::default();
        for object in objects(listing)? {
            let (kind, object) = content(object)?;
            match kind.as_str() {
                "set" => {
                    let name = string(&object, "name")?;
                    if DENIED.contains(&name.as_str()) {
                        counts.denied.extend(elements(&object)?);
                    } else if name == ALLOWED {
                        counts.allowed.extend(elements(&object)?);
                    }
                }
                "rule" => counts.refused = counts.refused.saturating_add(refused(&object)),
                _ => {}
            }
        }
        counts.denied.sort_unstable();
        counts.allowed.sort_unstable();
        Ok(counts)
    }

    /// What came since `earlier`. An entry that counts less than it did had
    /// been forgotten in between, and was made anew.
    pub(crate) fn since(&self, earlier: &Counts) -> Counts {
        Counts {
            denied: grown(&self.denied, &earlier.denied),
            allowed: grown(&self.allowed, &earlier.allowed),
            refused: self.refused.saturating_sub(earlier.refused),
        }
    }
}

fn grown(now: &[Count], earlier: &[Count]) -> Vec<Count> {
    let key = |count: &Count| (count.address, count.protocol, count.port);
    let before: BTreeMap<_, &Count> = earlier.iter().map(|count| (key(count), count)).collect();
    let grown = now.iter().filter_map(|count| {
        let (packets, bytes) = match before.get(&key(count)) {
            Some(before) if before.packets <= count.packets && before.bytes <= count.bytes => {
                (count.packets - before.packets, count.bytes - before.bytes)
            }
            _ => (count.packets, count.bytes),
        };
        (packets > 0).then(|| Count {
            packets,
            bytes,
            ..count.clone()
        })
    });
    grown.collect()
}

// ---- objects ----

fn unreadable<T>(why: impl Into<String>) -> Result<T, NftError> {
    Err(NftError::Listing(why.into()))
}

fn objects(text: &[u8]) -> Result<Vec<Value>, NftError> {
    #[derive(Deserialize)]
    struct Document {
        nftables: Vec<Value>,
    }
    match serde_json::from_slice::<Document>(text) {
        Ok(document) => Ok(document.nftables),
        Err(error) => unreadable(error.to_string()),
    }
}

/// The kind and the content of an object, also of one that is to be made.
fn content(object: Value) -> Result<(String, Object), NftError> {
    let (kind, content) = single(object)?;
    if kind == "add" || kind == "create" {
        return match single(content)? {
            (kind, Value::Object(content)) => Ok((kind, content)),
            (kind, _) => unreadable(format!("{kind:?} is no object")),
        };
    }
    match content {
        Value::Object(content) => Ok((kind, content)),
        _ => unreadable(format!("{kind:?} is no object")),
    }
}

fn single(object: Value) -> Result<(String, Value), NftError> {
    let Value::Object(object) = object else {
        return unreadable("an entry is no object");
    };
    let mut entries = object.into_iter();
    match (entries.next(), entries.next()) {
        (Some(entry), None) => Ok(entry),
        _ => unreadable("an entry has not exactly one key"),
    }
}

fn string(object: &Object, key: &str) -> Result<String, NftError> {
    match object.get(key).and_then(Value::as_str) {
        Some(text) => Ok(text.to_owned()),
        None => unreadable(format!("an object has no {key:?}")),
    }
}

fn insert(objects: &mut BTreeMap<String, Object>, object: Object) -> Result<(), NftError> {
    let name = string(&object, "name")?;
    match objects.insert(name.clone(), object) {
        None => Ok(()),
        Some(_) => unreadable(format!("{name:?} is there twice")),
    }
}

/// The elements of a set that rules fill come and go; those of another set are
/// what it is, in any order.
fn normalise_set(set: &mut Object) {
    if set.contains_key("timeout") {
        set.remove("elem");
    }
    if let Some(Value::Array(elements)) = set.get_mut("elem") {
        elements.sort_by_key(Value::to_string);
    }
    // One flag may be listed by itself, and "dynamic" is left out by an nft
    // before 1.0.7, which does not take it either.
    if let Some(flags) = set.get_mut("flags") {
        if flags.is_string() {
            *flags = Value::Array(vec![flags.take()]);
        }
        if let Some(flags) = flags.as_array_mut() {
            flags.retain(|flag| flag != "dynamic");
        }
    }
    reset_counters(set.get_mut("stmt"));
}

fn normalise_rule(rule: &mut Object) {
    reset_counters(rule.get_mut("expr"));
}

fn reset_counters(statements: Option<&mut Value>) {
    let statements = statements.and_then(Value::as_array_mut);
    for statement in statements.into_iter().flatten() {
        if let Some(counter) = statement.get_mut("counter") {
            *counter = Value::Null;
        }
    }
}

fn different_entry(
    kind: &str,
    asked: &BTreeMap<String, Object>,
    found: &BTreeMap<String, Object>,
) -> Option<String> {
    let mut names = asked.keys().chain(found.keys());
    let name = names.find(|name| asked.get(*name) != found.get(*name))?;
    let found = found.get(name).map_or_else(|| "missing".to_owned(), list);
    Some(format!("{kind} {name:?} is {found}"))
}

/// A short form for a message.
fn list(value: impl Serialize) -> String {
    const LONGEST: usize = 300;
    let mut text = serde_json::to_string(&value).unwrap_or_default();
    if let Some((end, _)) = text.char_indices().nth(LONGEST) {
        text.truncate(end);
        text.push('…');
    }
    text
}

// ---- counters ----

fn elements(set: &Object) -> Result<Vec<Count>, NftError> {
    let elements = set.get("elem").and_then(Value::as_array);
    let elements = elements.into_iter().flatten();
    elements
        .map(|element| match count(element) {
            Some(count) => Ok(count),
            None => unreadable(format!("an element is {}", list(element))),
        })
        .collect()
}

/// `{"elem": {"val": {"concat": [address, protocol, port]}, "counter": …}}`
fn count(element: &Value) -> Option<Count> {
    let element = element.get("elem")?;
    let [address, protocol, port] = element.get("val")?.get("concat")?.as_array()?.as_slice()
    else {
        return None;
    };
    Some(Count {
        address: address.as_str()?.parse().ok()?,
        protocol: u8::try_from(protocol.as_u64()?).ok()?,
        port: u16::try_from(port.as_u64()?).ok()?,
        packets: counter(element, "packets")?,
        bytes: counter(element, "bytes")?,
    })
}

fn counter(counted: &Value, key: &str) -> Option<u64> {
    counted.get("counter")?.get(key)?.as_u64()
}

/// The packets that a rule has counted, which only those do that refuse.
fn refused(rule: &Object) -> u64 {
    let statements = rule.get("expr").and_then(Value::as_array);
    let packets = |statement| counter(statement, "packets");
    let counted = statements.into_iter().flatten().filter_map(packets);
    counted.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::golden;

    /// What two versions of nft list of the ruleset in `targets.json`, in use.
    const LISTINGS: [&str; 2] = ["listing-1.0.6.json", "listing-1.1.3.json"];

    fn asked() -> Table {
        Table::parse(golden::read("targets.json").as_bytes()).unwrap()
    }

    fn listed(listing: &str) -> Table {
        Table::parse(listing.as_bytes()).unwrap()
    }

    /// What is said of a listing where `old`, which is there, is `new`.
    fn said_of(old: &str, new: &str) -> String {
        let listing = golden::read(LISTINGS[1]);
        assert!(listing.contains(old), "{old}");
        let found = listed(&listing.replacen(old, new, 1));
        asked().expect(&found).unwrap_err().to_string()
    }

    #[test]
    fn what_nft_lists_is_what_was_asked_for() {
        for name in LISTINGS {
            let found = listed(&golden::read(name));
            asked().expect(&found).unwrap();
            assert_eq!(found.digest().unwrap(), asked().digest().unwrap(), "{name}");
        }
    }

    #[test]
    fn the_digest_tells_rulesets_apart() {
        let other = listed(&golden::read("one-target.json"));
        assert_eq!(other.digest().unwrap().len(), 64);
        assert_ne!(other.digest().unwrap(), asked().digest().unwrap());
    }

    #[test]
    fn a_changed_policy_or_priority_is_found() {
        let said = said_of(r#""policy": "drop""#, r#""policy": "accept""#);
        assert!(said.contains("chain \"input\" is"), "{said}");
        let said = said_of(r#""prio": 0"#, r#""prio": 10"#);
        assert!(said.contains("chain \"input\" is"), "{said}");
    }

    #[test]
    fn a_changed_missing_or_added_rule_is_found() {
        let said = said_of(r#""right": 3128"#, r#""right": 22"#);
        assert!(said.contains("rule 6 of chain \"output\" is"), "{said}");
        let listing = golden::read(LISTINGS[1]);
        let is_rule = |line: &&str| line.contains(r#""rule":"#);
        let last = listing.lines().rfind(is_rule).unwrap();
        let separator = ",\n";
        let said = said_of(&format!("{separator}{last}"), "");
        assert!(
            said.contains("rule 6 of chain \"refuse\" is missing"),
            "{said}"
        );
        let said = said_of(last, &format!("{last}{separator}{last}"));
        assert!(said.contains("rule 7 of chain \"refuse\" is"), "{said}");
        // A rule that moved has changed.
        let first = listing.lines().find(is_rule).unwrap();
        let first = first.trim_end_matches(',');
        let said = said_of(first, &last.replace("refuse", "input"));
        assert!(said.contains("rule 1 of chain \"input\" is"), "{said}");
    }

    #[test]
    fn a_changed_set_is_found() {
        for (old, new) in [
            (r#""size": 4096"#, r#""size": 65535"#),
            (r#"["203.0.113.7", 22]"#, r#"["203.0.113.7", 23]"#),
            (r#""timeout": 3600"#, r#""timeout": 36"#),
            (r#"[{"counter": null}]"#, "[]"),
        ] {
            let said = said_of(old, new);
            assert!(said.contains("set \""), "{old}: {said}");
        }
    }

    #[test]
    fn a_table_that_sleeps_is_another_table() {
        let said = said_of(
            r#""name": "umwelt""#,
            r#""flags": "dormant", "name": "umwelt""#,
        );
        assert!(said.contains("dormant"), "{said}");
        let said = asked().expect(&Table::default()).unwrap_err().to_string();
        assert!(said.contains("there is no such table"), "{said}");
    }

    #[test]
    fn other_objects_and_chains_are_found() {
        let object = r#"{"flowtable": {"family": "inet", "name": "f", "table": "umwelt"}}"#;
        let start = "{\"nftables\": [";
        let said = said_of(start, &format!("{start}{object}, "));
        assert!(said.contains("other objects"), "{said}");
        let chain = r#"{"chain": {"family": "inet", "name": "nat", "table": "umwelt"}}"#;
        let said = said_of(start, &format!("{start}{chain}, "));
        assert!(said.contains("chain \"nat\" is"), "{said}");
    }

    #[test]
    fn counters_are_read() {
        for name in LISTINGS {
            let counts = Counts::parse(golden::read(name).as_bytes()).unwrap();
            let found: Vec<String> = counts
                .denied
                .iter()
                .map(|count| {
                    format!(
                        "{} {} {} {}",
                        count.address, count.protocol, count.port, count.packets
                    )
                })
                .collect();
            assert_eq!(
                found,
                [
                    "192.0.2.5 1 2048 1",
                    "192.0.2.5 6 80 1",
                    "192.0.2.5 17 99 1"
                ],
                "{name}"
            );
            assert_eq!(counts.allowed, []);
            assert!(counts.refused >= 3, "{name}");
        }
    }

    #[test]
    fn later_counts_are_told_as_growth() {
        let count = |port, packets| Count {
            address: "203.0.113.7".parse().unwrap(),
            protocol: 6,
            port,
            packets,
            bytes: packets * 60,
        };
        let counts = |denied: &[Count], refused| Counts {
            denied: denied.to_vec(),
            allowed: Vec::new(),
            refused,
        };
        let earlier = counts(&[count(1, 5), count(2, 5), count(3, 5)], 15);
        let now = counts(&[count(1, 7), count(2, 5), count(3, 1), count(4, 2)], 20);
        let expected = counts(&[count(1, 2), count(3, 1), count(4, 2)], 5);
        assert_eq!(now.since(&earlier), expected);
        assert_eq!(now.since(&Counts::default()), now);
    }

    #[test]
    fn what_is_no_listing_is_refused() {
        for text in [
            "",
            "[]",
            "{}",
            r#"{"nftables": [1]}"#,
            r#"{"nftables": [{}]}"#,
            r#"{"nftables": [{"add": {"rule": 1}}]}"#,
            r#"{"nftables": [{"rule": {}}]}"#,
            r#"{"nftables": [{"set": {}}]}"#,
            r#"{"nftables": [{"chain": {"name": "a"}}, {"chain": {"name": "a"}}]}"#,
        ] {
            assert!(Table::parse(text.as_bytes()).is_err(), "{text}");
        }
        let half = &golden::read(LISTINGS[0]).into_bytes()[..900];
        assert!(Table::parse(half).is_err());
        let odd = r#"{"nftables": [{"set": {"name": "denied4", "elem": ["192.0.2.1"]}}]}"#;
        assert!(Counts::parse(odd.as_bytes()).is_err());
    }

    #[test]
    fn counters_at_their_end_are_added_up_without_a_panic() {
        let rule = json!({"rule": {"chain": "out", "expr": [
            {"counter": {"packets": u64::MAX}}, {"counter": {"packets": 2}},
        ]}});
        let listing = json!({ "nftables": [rule] }).to_string();
        let counts = Counts::parse(listing.as_bytes()).unwrap();
        assert_eq!(counts.refused, u64::MAX);
    }
}
