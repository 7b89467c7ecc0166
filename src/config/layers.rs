//! The texts of the configuration files -> each key that holds, its value, and
//! the file and line that say so. Pure.
//!
//! The texts are read here once more, as they are written: what they mean, and
//! whether they are right, is told by the types beside this file.

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use crate::config::source::Source;
use crate::config::value::expand_path;
use crate::config::{ConfigError, SHIPPED};

/// Where a value stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Layer {
    /// The file that comes with umwelt.
    Shipped,
    /// The user's base config.
    Base,
    /// The workspace file, as it was accepted.
    Workspace,
}

/// A key, or one table of a list, with its value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Setting {
    pub(crate) key: String,
    pub(crate) value: Value,
    pub(crate) layer: Layer,
    pub(crate) line: usize,
}

/// All that holds. `base` and `workspace` are files with their texts, where
/// there are such files.
pub(crate) fn settings(
    base: Option<(&Path, &str)>,
    workspace: Option<(&Path, &str)>,
    home: &Path,
) -> Result<Vec<Setting>, ConfigError> {
    let shipped = read(Layer::Shipped, Path::new("share/umwelt.toml"), SHIPPED)?;
    let mut settings = match base {
        None => shipped,
        Some((path, text)) => override_with(shipped, read(Layer::Base, path, text)?, home),
    };
    if let Some((path, text)) = workspace {
        // It adds to the base config, and changes nothing of it.
        settings.extend(read(Layer::Workspace, path, text)?);
    }
    Ok(settings)
}

/// The user's file beside the shipped one: a single value takes the place of
/// the shipped one, masks are added up, and the mounts are the user's alone.
fn override_with(shipped: Vec<Setting>, own: Vec<Setting>, home: &Path) -> Vec<Setting> {
    let path = |setting: &Setting| {
        let path = setting.value.get("path")?.as_str()?;
        expand_path(path, home).ok()
    };
    let is_replaced = |setting: &Setting| match setting.key.as_str() {
        "mounts" => true,
        "mask" => own.iter().any(|other| {
            other.key == "mask" && other.value != setting.value && path(other) == path(setting)
        }),
        key => own.iter().any(|other| other.key == key),
    };
    let mut kept = shipped;
    kept.retain(|setting| !is_replaced(setting));
    // What takes a mask away is none.
    let is_mask = |setting: &&Setting| setting.value.get("hide") != Some(&Value::Bool(false));
    let repeats: BTreeSet<_> = kept
        .iter()
        .filter(|setting| setting.key == "mask")
        .map(|setting| setting.value.to_string())
        .collect();
    // A copy of the shipped file says the same once more.
    let is_new =
        |setting: &&Setting| setting.key != "mask" || !repeats.contains(&setting.value.to_string());
    let own: Vec<_> = own.iter().filter(is_mask).filter(is_new).cloned().collect();
    kept.extend(own);
    kept
}

fn read(layer: Layer, path: &Path, text: &str) -> Result<Vec<Setting>, ConfigError> {
    let source = Source { path, text };
    let table = DeTable::parse(text).map_err(|error| source.syntax_error(&error))?;
    let mut settings = Vec::new();
    walk("", table.get_ref(), &mut |key, at, value| {
        settings.push(Setting {
            key,
            value: plain(value),
            layer,
            line: source.line(at),
        });
    });
    settings.sort_by_key(|setting| setting.line);
    Ok(settings)
}

type Visit<'a> = dyn FnMut(String, usize, &Spanned<DeValue<'_>>) + 'a;

/// Visits each value with its dotted key, and each table of a list.
fn walk(above: &str, table: &DeTable<'_>, visit: &mut Visit<'_>) {
    for (key, value) in table {
        let name = match above {
            "" => key.get_ref().to_string(),
            above => format!("{above}.{}", key.get_ref()),
        };
        match value.get_ref() {
            DeValue::Table(table) => walk(&name, table, visit),
            DeValue::Array(items) if items.iter().any(|item| item.get_ref().is_table()) => {
                for item in items {
                    visit(name.clone(), item.span().start, item);
                }
            }
            _ => visit(name, key.span().start, value),
        }
    }
}

fn plain(value: &Spanned<DeValue<'_>>) -> Value {
    let value = ValueDeserializer::from(value.clone());
    // A number that JSON does not have (inf, nan) is refused by the types.
    Value::deserialize(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(base: Option<&str>, workspace: Option<&str>) -> Vec<Setting> {
        let base = base.map(|text| (Path::new("/c/umwelt.toml"), text));
        let workspace = workspace.map(|text| (Path::new("/w/.umwelt.toml"), text));
        settings(base, workspace, Path::new("/h")).unwrap()
    }

    fn of<'a>(settings: &'a [Setting], key: &str) -> Vec<&'a Setting> {
        settings.iter().filter(|one| one.key == key).collect()
    }

    #[test]
    fn value_of_the_base_config_takes_the_place_of_the_shipped_one() {
        let shipped = all(None, None);
        assert_eq!(of(&shipped, "image")[0].layer, Layer::Shipped);
        let own = all(Some("\nimage = 'a:1'\n[resources]\ncpus = 1.5\n"), None);
        let [image] = of(&own, "image")[..] else {
            panic!("{own:?}")
        };
        assert_eq!((&image.value, image.layer), (&"a:1".into(), Layer::Base));
        assert_eq!(image.line, 2);
        assert_eq!(of(&own, "resources.cpus")[0].line, 4);
        assert_eq!(of(&own, "resources.memory")[0].layer, Layer::Shipped);
    }

    #[test]
    fn lists_are_told_entry_by_entry() {
        let shipped = all(None, None);
        let masks = of(&shipped, "mask").len();
        let text = "[[mask]]\npath = '/h/.ssh'\nhide = false\n\n[[mask]]\npath = '/x/*.key'\n";
        let own = all(Some(text), None);
        assert_eq!(of(&own, "mask").len(), masks);
        let mine = of(&own, "mask")
            .into_iter()
            .filter(|mask| mask.layer == Layer::Base);
        let mine: Vec<_> = mine.map(|mask| (mask.line, &mask.value)).collect();
        assert_eq!(mine, [(5, &serde_json::json!({"path": "/x/*.key"}))]);
        assert!(!of(&shipped, "mounts").is_empty());
        assert!(of(&own, "mounts").is_empty());
    }

    #[test]
    fn copy_of_the_shipped_file_repeats_no_mask() {
        let masks = |settings: &[Setting]| {
            let masks = of(settings, "mask");
            assert!(masks.iter().all(|mask| mask.layer == Layer::Shipped));
            masks.len()
        };
        assert_eq!(masks(&all(Some(SHIPPED), None)), masks(&all(None, None)));
    }

    #[test]
    fn workspace_adds_to_the_base_config() {
        let text = "[egress]\nenabled = true\nregistries = ['npm']\n[[egress.tcp]]\nhost = 'a.example.org'\nport = 22\n";
        let settings = all(Some("[egress]\nregistries = ['pip']\n"), Some(text));
        let registries: Vec<_> = of(&settings, "egress.registries");
        let layers: Vec<_> = registries.iter().map(|one| one.layer).collect();
        assert_eq!(layers, [Layer::Base, Layer::Workspace]);
        let tcp = of(&settings, "egress.tcp")[0];
        assert_eq!((tcp.line, &tcp.value["port"]), (4, &22.into()));
    }
}
