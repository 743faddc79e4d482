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

/// As much of JSON Schema as ours uses; the paths of what it refuses.
fn refused_by(schema: &Value, root: &Value, value: &Value, path: &str) -> Vec<String> {
    let mut refused = Vec::new();
    if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
        refused.extend(refused_by(&root["$defs"][name.strip_prefix("#/$defs/").unwrap()], root, value, path));
    }
    if let Some(choices) = schema.get("oneOf").and_then(Value::as_array) {
        let fits = |choice: &&Value| refused_by(choice, root, value, path).is_empty();
        if choices.iter().filter(fits).count() != 1 {
            refused.push(format!("{path}: none or several of {}", choices.len()));
        }
    }
    let is_type = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        _ => false,
    };
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => vec![],
    };
    if !types.is_empty() && !types.iter().any(|name| is_type(name)) {
        refused.push(format!("{path}: {value} is no {}", types.join(" or ")));
    }
    if schema.get("const").is_some_and(|only| only != value)
        || schema.get("enum").and_then(Value::as_array).is_some_and(|values| !values.contains(value))
    {
        refused.push(format!("{path}: {value}"));
    }
    let number = value.as_f64();
    let beyond = |key: &str, is_beyond: fn(f64, f64) -> bool| {
        schema.get(key).and_then(Value::as_f64).zip(number).is_some_and(|(bound, number)| is_beyond(number, bound))
    };
    if beyond("minimum", |number, bound| number < bound) || beyond("maximum", |number, bound| number > bound) {
        refused.push(format!("{path}: {value} is out of range"));
    }
    for item in value.as_array().into_iter().flatten().filter(|_| schema.get("items").is_some()) {
        refused.extend(refused_by(&schema["items"], root, item, &format!("{path}[]")));
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        let path = format!("{path}.{key}");
        match (schema.get("properties").and_then(|properties| properties.get(key)), schema.get("additionalProperties"))
        {
            (Some(property), _) => refused.extend(refused_by(property, root, value, &path)),
            (None, Some(Value::Bool(false))) => refused.push(format!("{path}: unknown key")),
            (None, Some(values)) => refused.extend(refused_by(values, root, value, &path)),
            (None, None) => {}
        }
    }
    for key in schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
        if value.as_object().is_some_and(|object| !object.contains_key(key)) {
            refused.push(format!("{path}.{key}: missing"));
        }
    }
    refused
}

fn refused(text: &str) -> Vec<String> {
    let schema = schema();
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    let kinds = schema["oneOf"].as_array().unwrap();
    documents
        .iter()
        .flat_map(|document| {
            let of_kind = kinds.iter().find(|kind| kind["properties"]["kind"]["const"] == document["kind"]).unwrap();
            let mut refused = refused_by(of_kind, &schema, document, "");
            if refused.is_empty() {
                refused = refused_by(&schema, &schema, document, "");
            }
            refused
        })
        .collect()
}

#[test]
fn an_editor_with_the_schema_finds_no_fault_in_the_examples() {
    for (name, text) in examples() {
        assert_eq!(refused(text), [""; 0], "{name}");
    }
    assert_eq!(refused(include_str!("../data/design.yaml")), [""; 0]);
}

#[test]
fn an_editor_with_the_schema_finds_what_needs_no_second_document() {
    let text = "kind: Deployment\nmetadata: {name: f}\nspec: {modle: m, parallel: {tp: 3}, launch: {replicas: 5000}, kind: embeddings, memory: {weights: 280}}";
    let found = refused(text);
    for part in [
        ".spec.modle: unknown key",
        ".spec.model: missing",
        ".spec.parallel.tp: 3",
        ".spec.launch.replicas: 5000 is out of range",
        ".spec.kind: none or several of 5",
        ".spec.memory.weights: 280 is no string",
    ] {
        assert!(found.iter().any(|fault| fault.starts_with(part)), "{part} in {found:?}");
    }
}
