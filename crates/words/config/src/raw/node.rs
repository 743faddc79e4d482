//! The Node document.

use schemars::JsonSchema;
use serde::Deserialize;

use super::Class;
use super::site::Launcher;
use crate::quantity::{Bytes, Indices, Ports};

/// A GPU node. Optional: what is left out is read from NVML and sysfs.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "Node")]
pub(crate) struct Node {
    /// `HOST:PORT` of its agent.
    pub(crate) address: Option<String>,
    /// Whether NVML or this document decides what GPUs there are. Default nvml.
    pub(crate) facts: Option<Facts>,
    /// Its GPUs.
    #[schemars(with = "Gpus")]
    pub(crate) gpus: Option<Gpus>,
    /// Its host memory.
    pub(crate) host_memory: Option<Bytes>,
    /// How Pods get GPUs. Kubernetes only. Default plugin.
    pub(crate) gpu_sharing: Option<Sharing>,
    /// Its NUMA nodes.
    #[serde(default)]
    pub(crate) numa: Vec<Numa>,
    /// GPU groups, with the classes they are for.
    #[serde(default)]
    pub(crate) groups: Vec<Group>,
    /// Who starts engines here, instead of the Site's launcher.
    pub(crate) launcher: Option<Launcher>,
    /// Ports for engines here, instead of the Site's.
    pub(crate) engine_ports: Option<Ports>,
}

/// What decides which GPUs there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Facts {
    /// NVML; the document is compared with it.
    Nvml,
    /// The document: GPUs are booking units only, for tests and demonstrations.
    Document,
}

/// The GPUs of a node.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Gpus {
    /// How many, from 1 to 256.
    #[schemars(with = "u32", range(min = 1, max = 256))]
    pub(crate) count: Option<u32>,
    /// Product name.
    pub(crate) product: Option<String>,
    /// Memory of each.
    pub(crate) memory: Option<Bytes>,
}

/// How Pods get GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Sharing {
    /// By the device plugin.
    Plugin,
    /// By UUID, counted by Tidegate alone.
    Uuid,
}

/// One NUMA node.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Numa {
    /// Its number.
    #[schemars(with = "u32")]
    pub(crate) node: Option<u32>,
    /// Its GPUs.
    #[schemars(with = "Indices")]
    pub(crate) gpus: Option<Indices>,
    /// Its CPUs.
    #[schemars(with = "Indices")]
    pub(crate) cpus: Option<Indices>,
}

/// A named set of a node's GPUs.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Group {
    /// Its name, as `Deployment.spec.placement.group` uses it.
    #[schemars(with = "String")]
    pub(crate) name: Option<String>,
    /// Its GPUs.
    #[schemars(with = "Indices")]
    pub(crate) gpus: Option<Indices>,
    /// Classes it is for. Default all.
    #[serde(default)]
    pub(crate) classes: Vec<Class>,
    /// Kept free: only for elastic replicas, removed first at a switch, and for replicas of a failed GPU. Default
    /// false.
    pub(crate) keep_free: Option<bool>,
}
