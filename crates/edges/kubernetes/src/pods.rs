//! What is read of objects and Pods when they arrive: small, checked, and free of the client library's types.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DynamicObject;

use crate::fault::{Fault, bounded};
use crate::names::{ENDED, GENERATION, INSTANCE, MODEL, ORDER, PODS};
use crate::order::{ORDER_BYTES_MAX, ReplicaOrder};
use crate::render::{Marks, Wanted};
use crate::trouble::{self, Trouble};

/// The label that a LeaderWorkerSet puts on its Pods: the leader has 0.
const WORKER_INDEX: &str = "leaderworkerset.sigs.k8s.io/worker-index";

/// The object of a replica.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Object {
    pub(crate) order: ReplicaOrder,
    pub(crate) generation: u64,
    pub(crate) wanted: Wanted,
    /// Whether its controller has taken note of what it wants.
    pub(crate) is_settled: bool,
    pub(crate) marks: Marks,
    pub(crate) trouble: Option<Trouble>,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) created_at: Option<Timestamp>,
}

/// The generation that an object was last written by; `None`: it says none, or something that is no number.
pub(crate) fn generation_of(meta: &ObjectMeta) -> Option<u64> {
    annotation(meta, GENERATION)?.parse().ok()
}

pub(crate) fn annotation<'a>(meta: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(name).map(String::as_str)
}

pub(crate) fn label<'a>(meta: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    meta.labels.as_ref()?.get(name).map(String::as_str)
}

impl Object {
    pub(crate) fn of_deployment(object: &Deployment) -> Result<Self, Fault> {
        let replicas = object.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        let mut read = Self::read("Deployment", &object.metadata, i64::from(replicas), trouble::of_deployment(object))?;
        let observed = object.status.as_ref().and_then(|status| status.observed_generation);
        read.is_settled = observed >= object.metadata.generation;
        Ok(read)
    }

    pub(crate) fn of_group(object: &DynamicObject) -> Result<Self, Fault> {
        let replicas = object.data.pointer("/spec/replicas").and_then(serde_json::Value::as_i64).unwrap_or(1);
        Self::read("LeaderWorkerSet", &object.metadata, replicas, None)
    }

    fn read(kind: &str, meta: &ObjectMeta, replicas: i64, trouble: Option<Trouble>) -> Result<Self, Fault> {
        let name = meta.name.as_deref().unwrap_or_default();
        let foreign = |why: &str| Fault::Foreign { what: format!("{kind} {name}").into(), why: bounded(why) };
        let text = annotation(meta, ORDER).ok_or_else(|| foreign("it does not say what it was made from"))?;
        if text.len() > ORDER_BYTES_MAX {
            return Err(foreign("what it was made from is too long"));
        }
        let order: ReplicaOrder = serde_json::from_str(text).map_err(|error| foreign(&error.to_string()))?;
        order.check().map_err(|fault| foreign(&fault.to_string()))?;
        if order.object_name() != name {
            return Err(foreign("it was made from the order of another instance"));
        }
        Ok(Self {
            generation: generation_of(meta).ok_or_else(|| foreign("it does not say its generation"))?,
            wanted: if replicas > 0 && meta.deletion_timestamp.is_none() { Wanted::Up } else { Wanted::Down },
            is_settled: true,
            marks: Marks {
                pods: annotation(meta, PODS).map(str::to_owned),
                ended: annotation(meta, ENDED).map(|text| bounded(text).to_string()),
            },
            trouble,
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
            created_at: meta.creation_timestamp.as_ref().map(|time| time.0),
            order,
        })
    }
}

/// One Pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodFacts {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) instance: String,
    pub(crate) node: Option<String>,
    pub(crate) ip: Option<String>,
    pub(crate) is_leader: bool,
    pub(crate) is_running: bool,
    /// Whether it is over: its owner makes another one, again and again.
    pub(crate) is_over: bool,
    pub(crate) is_ready: bool,
    pub(crate) pool: Option<String>,
    pub(crate) trouble: Option<Trouble>,
    pub(crate) created_at: Option<Timestamp>,
    pub(crate) scheduled_at: Option<Timestamp>,
    pub(crate) started_at: Option<Timestamp>,
}

impl PodFacts {
    pub(crate) fn of(pod: &Pod) -> Self {
        let (meta, status) = (&pod.metadata, pod.status.as_ref());
        let conditions = || status.iter().flat_map(|status| status.conditions.iter().flatten());
        let condition = |name: &str| conditions().find(|one| one.type_ == name && one.status == "True");
        let containers = || status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        let running = |one: &k8s_openapi::api::core::v1::ContainerStatus| {
            one.state.as_ref().and_then(|state| state.running.clone())
        };
        Self {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            instance: label(meta, INSTANCE).unwrap_or_default().to_owned(),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
            ip: status.and_then(|status| status.pod_ip.clone()),
            is_leader: label(meta, WORKER_INDEX).is_none_or(|index| index == "0"),
            is_running: containers().next().is_some() && containers().all(|one| running(one).is_some()),
            is_over: status.is_some_and(|status| matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"))),
            is_ready: condition("Ready").is_some(),
            pool: label(meta, MODEL).map(str::to_owned),
            trouble: trouble::of_pod(pod),
            created_at: meta.creation_timestamp.as_ref().map(|time| time.0),
            scheduled_at: condition("PodScheduled")
                .and_then(|one| one.last_transition_time.as_ref())
                .map(|time| time.0),
            started_at: containers().filter_map(running).filter_map(|state| state.started_at).map(|time| time.0).min(),
        }
    }
}

/// Whether a node's kubelet has not been heard of for so long that the cluster gave it up.
pub(crate) fn is_lost(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "Unknown")
}
