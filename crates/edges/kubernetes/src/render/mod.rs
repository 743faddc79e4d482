//! A replica as a Deployment, or as a LeaderWorkerSet when it spans nodes: exactly the fields that we own, as they are
//! applied.
//!
//! One object for one instance, with one replica: a Deployment that scaled could neither pin a replica to its GPUs nor
//! say which of its Pods has proven itself. It is never updated in place: another revision is another instance.

mod pod;

use serde_json::{Value, json};

use crate::fault::Fault;
use crate::names::{DEPLOYMENT, GENERATION, INSTANCE, MANAGED_BY, MANAGER, ORDER, label_value};
use crate::order::ReplicaOrder;

/// API version of LeaderWorkerSets.
pub(crate) const GROUP_API: &str = "leaderworkerset.x-k8s.io/v1";
/// Their kind.
pub(crate) const GROUP_KIND: &str = "LeaderWorkerSet";

/// How many replicas an object has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// It runs.
    Up,
    /// It is ended; what remains is its record.
    Down,
}

/// Annotations that are not part of the order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// See [`crate::names::PODS`].
    pub(crate) pods: Option<String>,
    /// See [`crate::names::ENDED`].
    pub(crate) ended: Option<String>,
}

/// The object of a replica.
///
/// # Errors
/// [`Fault::Order`].
pub(crate) fn render(
    order: &ReplicaOrder,
    namespace: &str,
    generation: u64,
    wanted: Wanted,
    marks: &Marks,
) -> Result<Value, Fault> {
    order.check()?;
    let json_order = serde_json::to_string(order).map_err(|error| Fault::Order(error.to_string().into()))?;
    let mut annotations = json!({ GENERATION: generation.to_string(), ORDER: json_order });
    if let Some(pods) = &marks.pods {
        annotations[crate::names::PODS] = json!(pods);
    }
    if let Some(ended) = &marks.ended {
        annotations[crate::names::ENDED] = json!(ended);
    }
    let metadata = json!({
        "name": order.object_name(),
        "namespace": namespace,
        "labels": labels(order),
        "annotations": annotations,
    });
    let replicas = match wanted {
        Wanted::Up => 1,
        Wanted::Down => 0,
    };
    Ok(if order.is_group() { group(order, &metadata, replicas) } else { single(order, &metadata, replicas) })
}

/// Labels of the object and of its Pods; never [`crate::names::MODEL`], which a Pod has to earn.
fn labels(order: &ReplicaOrder) -> Value {
    json!({
        MANAGED_BY: MANAGER,
        DEPLOYMENT: order.deployment,
        INSTANCE: label_value(&order.instance),
    })
}

fn single(order: &ReplicaOrder, metadata: &Value, replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": replicas,
            // never two Pods of one instance: they would want the same GPUs
            "strategy": { "type": "Recreate" },
            "revisionHistoryLimit": 0,
            // how long it may take is the controller's to judge, by what was measured
            "progressDeadlineSeconds": i32::MAX,
            "selector": { "matchLabels": { INSTANCE: label_value(&order.instance) } },
            "template": {
                "metadata": { "labels": labels(order) },
                "spec": pod::spec(order, pod::Role::Only),
            },
        },
    })
}

fn group(order: &ReplicaOrder, metadata: &Value, replicas: u32) -> Value {
    json!({
        "apiVersion": GROUP_API,
        "kind": GROUP_KIND,
        "metadata": metadata,
        "spec": {
            "replicas": replicas,
            "startupPolicy": "LeaderCreated",
            "leaderWorkerTemplate": {
                "size": order.pods(),
                // the default starts the group over while images are still pulled
                "restartPolicy": "RecreateGroupAfterStart",
                "leaderTemplate": {
                    "metadata": { "labels": labels(order) },
                    "spec": pod::spec(order, pod::Role::Leader),
                },
                "workerTemplate": {
                    "metadata": { "labels": labels(order) },
                    "spec": pod::spec(order, pod::Role::Worker),
                },
            },
        },
    })
}
