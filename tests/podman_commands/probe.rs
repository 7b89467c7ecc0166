//! What `probe.py` finds inside, gathered once.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::Value;

use crate::{assert_exited, shared, text};

/// By the name of the probe: `ok`, the name of an errno, or what was found.
#[derive(Debug)]
pub(crate) struct Probes(BTreeMap<String, Value>);

impl Probes {
    pub(crate) fn of_shared_sandbox() -> Option<&'static Probes> {
        static PROBES: OnceLock<Option<Probes>> = OnceLock::new();
        PROBES.get_or_init(run).as_ref()
    }

    pub(crate) fn value(&self, name: &str) -> &Value {
        self.0
            .get(name)
            .unwrap_or_else(|| panic!("no probe {name:?}"))
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        text(self.value(name))
    }

    /// All probes whose names begin so, with what they gave.
    pub(crate) fn starting_with(&self, prefix: &str) -> Vec<(&str, &str)> {
        let with = self.0.iter().filter(|(name, _)| name.starts_with(prefix));
        with.map(|(name, value)| (name.as_str(), text(value)))
            .collect()
    }
}

fn run() -> Option<Probes> {
    let sandbox = shared()?;
    let mut client = sandbox.client();
    std::fs::write(
        sandbox.workspace().join("probe.py"),
        include_str!("probe.py"),
    )
    .unwrap();
    let result = client.shell("python3 probe.py >probe.json; echo $?; rm probe.py");
    assert_exited(&result, 0);
    assert_eq!(result["output"], "0\n", "{result}");
    let found = std::fs::read(sandbox.workspace().join("probe.json")).unwrap();
    Some(Probes(serde_json::from_slice(&found).unwrap()))
}
