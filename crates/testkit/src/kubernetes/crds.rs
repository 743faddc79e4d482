//! The custom kinds that are written to, as small as an API server takes them: with the parts of their published schemas
//! that matter to a writer (what is required, which lists are one field, what has a status), and nothing of the rest.

use std::io;
use std::time::Duration;

use serde_json::{Value, json};

use super::KubeApi;

/// Between two looks whether a new kind is served.
const SERVED_LOOK: Duration = Duration::from_millis(50);

fn crd(group: &str, plural: &str, kind: &str, version: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.{group}"),
            // groups of the project itself are refused without it
            "annotations": { "api-approved.kubernetes.io": "unapproved, for tests" },
        },
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": { "plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List") },
            "versions": [{
                "name": version, "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "properties": {
                        "spec": spec,
                        "status": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                    },
                } },
            }],
        },
    })
}

fn open() -> Value {
    json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

fn http_route() -> Value {
    let backend = json!({
        "type": "object", "required": ["name"],
        "properties": {
            "group": { "type": "string", "default": "" }, "kind": { "type": "string", "default": "Service" },
            "name": { "type": "string" }, "namespace": { "type": "string" },
            "port": { "type": "integer" }, "weight": { "type": "integer", "default": 1 },
        },
    });
    let rule = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string" },
            "matches": { "type": "array", "items": open(), "x-kubernetes-list-type": "atomic" },
            "filters": { "type": "array", "items": open(), "x-kubernetes-list-type": "atomic" },
            "timeouts": open(),
            "backendRefs": { "type": "array", "maxItems": 16, "items": backend, "x-kubernetes-list-type": "atomic" },
        },
    });
    json!({
        "type": "object",
        "properties": {
            "hostnames": { "type": "array", "items": { "type": "string" }, "x-kubernetes-list-type": "atomic" },
            "parentRefs": { "type": "array", "items": open(), "x-kubernetes-list-type": "atomic" },
            "rules": { "type": "array", "minItems": 1, "maxItems": 16, "items": rule, "x-kubernetes-list-type": "atomic" },
        },
    })
}

fn pool() -> Value {
    let port = json!({
        "type": "object", "required": ["number"],
        "properties": { "number": { "type": "integer", "minimum": 1, "maximum": 65535 } },
    });
    let labels = json!({ "type": "object", "maxProperties": 64, "additionalProperties": { "type": "string" } });
    json!({
        "type": "object", "required": ["selector", "targetPorts", "endpointPickerRef"],
        "properties": {
            "selector": { "type": "object", "required": ["matchLabels"], "properties": { "matchLabels": labels } },
            "targetPorts": { "type": "array", "minItems": 1, "maxItems": 8, "items": port, "x-kubernetes-list-type": "atomic" },
            "endpointPickerRef": {
                "type": "object", "required": ["name"],
                "properties": {
                    "group": { "type": "string", "default": "" }, "kind": { "type": "string", "default": "Service" },
                    "name": { "type": "string" }, "port": port,
                    "failureMode": { "type": "string", "enum": ["FailOpen", "FailClose"], "default": "FailClose" },
                },
                "x-kubernetes-validations": [{
                    "rule": "self.kind != 'Service' || has(self.port)",
                    "message": "port is required when kind is 'Service' or unspecified (defaults to 'Service')",
                }],
            },
        },
    })
}

fn group() -> Value {
    let template = json!({
        "type": "object",
        "properties": { "metadata": open(), "spec": open() },
    });
    json!({
        "type": "object", "required": ["leaderWorkerTemplate"],
        "properties": {
            "replicas": { "type": "integer", "default": 1, "minimum": 0 },
            "startupPolicy": { "type": "string", "enum": ["LeaderCreated", "LeaderReady"], "default": "LeaderCreated" },
            "leaderWorkerTemplate": {
                "type": "object", "required": ["workerTemplate"],
                "properties": {
                    "size": { "type": "integer", "minimum": 1, "default": 1 },
                    "restartPolicy": {
                        "type": "string", "default": "RecreateGroupOnPodRestart",
                        "enum": ["Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"],
                    },
                    "leaderTemplate": template, "workerTemplate": template,
                },
            },
        },
    })
}

/// HTTPRoute, ReferenceGrant, InferencePool and LeaderWorkerSet.
#[must_use]
pub fn crds() -> Vec<Value> {
    vec![
        crd("gateway.networking.k8s.io", "httproutes", "HTTPRoute", "v1", &http_route()),
        crd("gateway.networking.k8s.io", "referencegrants", "ReferenceGrant", "v1beta1", &open()),
        crd("inference.networking.k8s.io", "inferencepools", "InferencePool", "v1", &pool()),
        crd("leaderworkerset.x-k8s.io", "leaderworkersets", "LeaderWorkerSet", "v1", &group()),
    ]
}

/// Makes all of [`crds`] and waits until they are served.
///
/// # Errors
/// The API server's.
pub async fn install_crds(api: &KubeApi) -> io::Result<()> {
    const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    for object in crds() {
        api.create(PATH, &object).await?;
    }
    for object in crds() {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let path = format!("{PATH}?fieldSelector=metadata.name={name}");
        api.until(&path, |_, one| {
            let conditions = one["status"]["conditions"].as_array();
            let is_established = |one: &Value| one["type"] == "Established" && one["status"] == "True";
            conditions.is_some_and(|conditions| conditions.iter().any(is_established))
        })
        .await?;
        // established is said a moment before it is served
        let (group, plural) = (&object["spec"]["group"], &object["spec"]["names"]["plural"]);
        let version = &object["spec"]["versions"][0]["name"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let path = format!("/apis/{}/{}/{}", text(group), text(version), text(plural));
        while api.ask(http::Method::GET, &path, "application/json", None).await?.0 != 200 {
            tokio::time::sleep(SERVED_LOOK).await;
        }
    }
    Ok(())
}
