//! The JSON Schema of documents, for editors: completion, descriptions, and the errors that need no second document.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::API_VERSION;
use crate::raw;

/// Makes the JSON Schema (draft 2020-12) of all documents.
#[must_use]
pub fn schema() -> Value {
    let mut generator = SchemaSettings::draft2020_12().for_deserialize().into_generator();
    let kinds = [
        ("Site", generator.subschema_for::<raw::site::Site>()),
        ("Node", generator.subschema_for::<raw::node::Node>()),
        ("Reservation", generator.subschema_for::<raw::reservation::Reservation>()),
        ("Model", generator.subschema_for::<raw::model::Model>()),
        ("Deployment", generator.subschema_for::<raw::deployment::Deployment>()),
        ("Alias", generator.subschema_for::<raw::alias::Alias>()),
        ("Schedule", generator.subschema_for::<raw::schedule::Schedule>()),
        ("Team", generator.subschema_for::<raw::team::Team>()),
        ("ModelProductionProfile", generator.subschema_for::<raw::profile::ModelProductionProfile>()),
    ];
    let metadata = generator.subschema_for::<raw::Metadata>().to_value();
    let definitions = generator.take_definitions(true);
    let one_of: Vec<Value> =
        kinds.into_iter().map(|(kind, spec)| document(kind, &metadata, &spec.to_value(), &definitions)).collect();
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tidegate document",
        "description": "One document. `apiVersion` may be left out after a file's first document.",
        "oneOf": one_of,
        "$defs": definitions,
    });
    tidy(&mut schema);
    schema
}

fn document(kind: &str, metadata: &Value, spec: &Value, definitions: &Map<String, Value>) -> Value {
    let mut required = vec!["kind", "metadata"];
    if definitions.get(kind).and_then(|spec| spec.get("required")).is_some() {
        required.push("spec");
    }
    json!({
        "title": kind,
        "type": "object",
        "properties": {
            "apiVersion": {"const": API_VERSION},
            "kind": {"const": kind},
            "metadata": metadata,
            "spec": spec,
        },
        "required": required,
        "additionalProperties": false,
    })
}

/// Takes out what only says that a key may be absent or null: it may, and nobody writes it.
fn tidy(value: &mut Value) {
    match value {
        Value::Object(object) => {
            if object
                .get("default")
                .is_some_and(|default| default.is_null() || *default == json!([]) || *default == json!({}))
            {
                object.remove("default");
            }
            if let Some(Value::Array(types)) = object.get_mut("type") {
                types.retain(|name| name != "null");
                if let [only] = types.as_slice() {
                    let only = only.clone();
                    object.insert("type".to_owned(), only);
                }
            }
            without_null(object);
            object.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// `anyOf: [X, null]` is X.
fn without_null(object: &mut Map<String, Value>) {
    let Some(Value::Array(choices)) = object.get("anyOf") else { return };
    let rest: Vec<Value> =
        choices.iter().filter(|choice| choice.get("type") != Some(&json!("null"))).cloned().collect();
    if let ([Value::Object(only)], true) = (rest.as_slice(), rest.len() < choices.len()) {
        object.remove("anyOf");
        for (key, value) in only {
            object.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
}
