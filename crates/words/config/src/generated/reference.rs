//! The reference page: every key of every kind, made from the JSON Schema.

use std::fmt::Write;

use serde_json::Value;

use super::{examples, schema};
use crate::API_VERSION;
use crate::check::KINDS;

/// Types that are used in many places and explained once.
const SHARED: [&str; 3] = ["SecretRef", "Limits", "Timeouts"];

/// Makes the reference page, in Markdown.
#[must_use]
pub fn reference() -> String {
    let schema = schema();
    let mut page = String::new();
    let _ = write!(page, "{}", INTRODUCTION.replace("{API_VERSION}", API_VERSION));
    for kind in KINDS {
        let _ = writeln!(page, "- [{kind}](#{})", kind.to_ascii_lowercase());
    }
    let _ = writeln!(page, "- [Shared types](#shared-types)\n- [Quantities](#quantities)");
    for kind in KINDS {
        section(&mut page, kind, &schema);
    }
    page.push_str("\n## Shared types\n");
    for name in SHARED {
        let Some(definition) = definition(&schema, name) else { continue };
        let _ = writeln!(page, "\n### {name}\n\n{}\n", description(definition));
        table(&mut page, definition, &schema);
    }
    quantities(&mut page, &schema);
    page
}

const INTRODUCTION: &str = "<!-- Generated from the types by `cargo xtask generate`. Edit the comments there. -->
# Documents

What an operator writes: YAML, one document per thing, in one file or in a folder. Every document has the keys
`apiVersion: {API_VERSION}` (it may be left out after a file's first document), `kind`, `metadata: {name: NAME}` and
`spec`. Unknown keys are errors. `tidegate check DIR` says everything that is wrong, with file, line, path, value and a
hint. Secrets never stand in documents: `fromEnv` and `fromFile` say where they are. Paths are relative to the folder of
the document. For editors there is `docs/schema/tidegate.schema.json`; complete sites are in `examples/`.

";

fn definition<'s>(schema: &'s Value, name: &str) -> Option<&'s Value> {
    schema.get("$defs")?.get(name)
}

fn description(value: &Value) -> String {
    value.get("description").and_then(Value::as_str).unwrap_or_default().replace('\n', " ")
}

fn section(page: &mut String, kind: &str, schema: &Value) {
    let Some(definition) = definition(schema, kind) else { return };
    let _ = writeln!(page, "\n## {kind}\n\n{}\n", description(definition));
    table(page, definition, schema);
    if let Some(example) = example(kind) {
        let _ = writeln!(page, "\n```yaml\n{example}\n```");
    }
}

/// The first document of a kind among the examples, the full ones first.
fn example(kind: &str) -> Option<String> {
    let texts = examples().iter().filter(|(name, _)| name.starts_with("full/")).map(|(_, text)| *text);
    let documents = texts.flat_map(|text| text.split("\n---\n"));
    let is_kind = |document: &&str| document.lines().any(|line| line.strip_prefix("kind: ") == Some(kind));
    let document = documents.into_iter().find(is_kind)?;
    let lines: Vec<&str> = document.lines().filter(|line| !line.starts_with('#')).collect();
    Some(lines.join("\n").trim().to_owned())
}

fn table(page: &mut String, definition: &Value, schema: &Value) {
    page.push_str("| key | type | meaning |\n| --- | --- | --- |\n");
    rows(page, "", definition, schema);
}

/// One row for each key, keys of keys after it.
fn rows(page: &mut String, prefix: &str, definition: &Value, schema: &Value) {
    let Some(properties) = definition.get("properties").and_then(Value::as_object) else { return };
    let required: Vec<&str> =
        definition.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    for (key, property) in properties {
        let (shown, suffix, inner) = shape(property, schema);
        let path = format!("{prefix}{key}");
        let mark = if required.contains(&key.as_str()) { " **required**" } else { "" };
        let values = inner.map(values).unwrap_or_default();
        let meaning = format!("{}{values}", description(property)).replace('|', "\\|");
        let _ = writeln!(page, "| `{path}`{mark} | {shown} | {meaning} |");
        if let Some(inner) = inner {
            rows(page, &format!("{path}{suffix}."), inner, schema);
        }
    }
}

/// How a type is called, what its members' paths have between, and the definition that is explained in place.
fn shape<'s>(property: &'s Value, schema: &'s Value) -> (String, &'static str, Option<&'s Value>) {
    if let Some(name) = property.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next()) {
        let Some(target) = definition(schema, name) else { return (name.to_owned(), "", None) };
        if SHARED.contains(&name) {
            return (format!("[{name}](#{})", name.to_ascii_lowercase()), "", None);
        }
        if target.get("pattern").is_some() {
            return (format!("[{name}](#quantities)"), "", None);
        }
        if target.get("oneOf").is_some() || target.get("enum").is_some() {
            return ("one of".to_owned(), "", Some(target));
        }
        return ("mapping".to_owned(), "", Some(target));
    }
    if let Some(items) = property.get("items") {
        let (shown, _, inner) = shape(items, schema);
        return (format!("list of {shown}"), "[]", inner);
    }
    if let Some(values) = property.get("additionalProperties").filter(|values| values.is_object()) {
        let (shown, _, inner) = shape(values, schema);
        return (format!("mapping of {shown}"), ".NAME", inner);
    }
    let name = match property.get("type").and_then(Value::as_str) {
        Some("string") => "text",
        Some("integer") => "whole number",
        Some("number") => "number",
        Some("boolean") => "true or false",
        Some("object") => "mapping of anything",
        Some(other) => other,
        None => "anything",
    };
    (name.to_owned(), "", None)
}

/// The values of a choice, with what each means.
fn values(definition: &Value) -> String {
    let mut text = String::new();
    for value in definition.get("oneOf").and_then(Value::as_array).into_iter().flatten() {
        if let Some(name) = value.get("const").and_then(Value::as_str) {
            let _ = write!(text, "<br>`{name}`: {}", description(value));
        }
    }
    text
}

fn quantities(page: &mut String, schema: &Value) {
    page.push_str("\n## Quantities\n\n| type | how it is written |\n| --- | --- |\n");
    for (name, definition) in schema.get("$defs").and_then(Value::as_object).into_iter().flatten() {
        if definition.get("pattern").is_some() {
            let _ = writeln!(page, "| {name} | {} |", description(definition));
        }
    }
}
