//! What is made from the types.

use std::path::Path;

use serde_json::Value;
use tidegate_config::{Source, check, examples, generated_files, reference, schema};

#[test]
fn every_example_site_checks_without_a_word() {
    for site in ["minimal/", "full/"] {
        let files = examples().iter().filter(|(name, _)| name.starts_with(site));
        let sources: Vec<Source> = files.map(|(name, text)| Source::new(*name, *text)).collect();
        assert!(!sources.is_empty());
        let checked = check(&sources);
        let said: Vec<String> = checked.diagnostics.iter().map(tidegate_config::Diagnostic::render).collect();
        assert!(said.is_empty(), "{}", said.join("\n"));
        assert!(checked.site.is_some());
    }
}

#[test]
fn every_folder_of_examples_in_the_repository_checks() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples");
    let Ok(sites) = std::fs::read_dir(&folder) else { return };
    for site in sites {
        let site = site.unwrap().path();
        let mut sources = Vec::new();
        let mut folders = vec![site.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|ending| ending == "yaml") {
                    sources
                        .push(Source::new(path.strip_prefix(folder_of(&site)).unwrap(), std::fs::read(&path).unwrap()));
                }
            }
        }
        let said: Vec<String> = check(&sources).diagnostics.iter().map(tidegate_config::Diagnostic::render).collect();
        assert!(said.is_empty(), "{}: {}", site.display(), said.join("\n"));
    }
}

fn folder_of(site: &Path) -> &Path {
    site.parent().unwrap()
}

#[test]
fn the_schema_refers_to_nothing_that_it_does_not_define() {
    fn references<'v>(value: &'v Value, found: &mut Vec<&'v str>) {
        match value {
            Value::Object(object) => {
                found.extend(object.get("$ref").and_then(Value::as_str));
                object.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    let schema = schema();
    let mut found = Vec::new();
    references(&schema, &mut found);
    assert!(found.len() > 50);
    for reference in found {
        let name = reference.strip_prefix("#/$defs/").unwrap();
        assert!(schema["$defs"].get(name).is_some(), "{name}");
    }
    assert_eq!(schema["oneOf"].as_array().unwrap().len(), 9);
    assert_eq!(schema["$defs"]["Model"]["required"], serde_json::json!(["engine"]));
    assert_eq!(schema["$defs"]["Team"]["additionalProperties"], false);
    assert!(!schema.to_string().contains("\"null\""), "a key is left out, not null");
}

#[test]
fn the_reference_page_explains_every_key_of_every_kind() {
    let page = reference();
    for (name, definition) in schema()["$defs"].as_object().unwrap() {
        for (key, property) in definition.get("properties").and_then(Value::as_object).into_iter().flatten() {
            assert!(page.contains(&format!("{key}`")), "{name}.{key}");
            let is_explained = property.get("description").is_some();
            assert!(is_explained, "{name}.{key} has no comment");
        }
    }
}

#[test]
fn generated_files_are_the_same_each_time_and_stand_at_their_places() {
    let files = generated_files();
    assert_eq!(files, generated_files());
    let paths: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
    assert!(paths.contains(&"docs/schema/tidegate.schema.json"));
    assert!(paths.contains(&"docs/reference/documents.md"));
    assert!(paths.contains(&"examples/full/site.yaml"));
    assert!(files.iter().all(|(_, content)| content.ends_with('\n') && !content.contains("\r")));
}
