//! What nft lists, what is read back of it, and what the OCI runtime tells.

use serde_json::Value;

use super::inner::survives;
use crate::nft::hook::check_state;
use crate::nft::readback::{self, ReadBack};
use crate::nft::table::{Counts, Table};

pub(super) fn listing(input: &[u8]) {
    if let Ok(table) = Table::parse(input) {
        assert!(table.expect(&table).is_ok(), "a table is what it is");
        let digest = table.digest().expect("a digest");
        assert_eq!(digest.len(), 64);
        differs_from_less(input, &table);
    }
    if let Ok(counts) = Counts::parse(input) {
        let none = counts.since(&counts);
        assert!(none.denied.is_empty() && none.allowed.is_empty() && none.refused == 0);
        assert_eq!(counts.since(&Counts::default()).refused, counts.refused);
    }
    if let Some(found) = std::str::from_utf8(input)
        .ok()
        .and_then(|text| readback::parse(text).ok())
    {
        assert!(
            found
                .counts
                .denied
                .iter()
                .all(|count| found.counts.denied.contains(count))
        );
    }
    survives::<ReadBack>(input);
}

/// A listing without one of its objects is another table.
fn differs_from_less(input: &[u8], table: &Table) {
    let Ok(mut document) = serde_json::from_slice::<Value>(input) else {
        return;
    };
    let Some(objects) = document.get_mut("nftables").and_then(Value::as_array_mut) else {
        return;
    };
    let Some(last) = objects.pop() else {
        return;
    };
    if last.get("metainfo").is_some()
        || last.pointer("/add/metainfo").is_some()
        || last.pointer("/create/metainfo").is_some()
    {
        return;
    }
    let less = Table::parse(document.to_string().as_bytes()).expect("less is a table too");
    assert!(
        table.expect(&less).is_err() && less.expect(table).is_err(),
        "{last} makes no difference"
    );
}

pub(super) fn oci_state(input: &[u8]) {
    let taken = check_state(input).is_ok();
    // What is passed over need not be UTF-8, and serde takes a list for a struct.
    let Ok(Value::Object(state)) = serde_json::from_slice(input) else {
        return;
    };
    let text = |key: &str| state.get(key).and_then(Value::as_str);
    let is_creation = matches!(text("status"), Some("creating" | "created"));
    let is_whole = text("id").is_some() && text("ociVersion").is_some();
    assert!(!taken || (is_creation && is_whole));
}
