//! A replica as it is ordered, in words of no Kubernetes kind.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::fault::Fault;
use crate::names::{LABEL_MAX, object_name};

/// Most nodes of one replica.
pub const NODES_MAX: usize = 16;
/// Most bytes of an order as JSON: it is kept as an annotation, all of which share 256 KiB.
pub const ORDER_BYTES_MAX: usize = 96 * 1_024;
/// Longest time that an engine may take until it answers its health check, in seconds.
pub const STARTUP_SECONDS_MAX: u32 = 86_400;

/// One replica to be run. Kept with its object, so that a later controller knows what it sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaOrder {
    /// Its id: no other replica ever had it.
    pub instance: String,
    /// The deployment it serves.
    pub deployment: String,
    /// Which replica of it.
    pub index: u32,
    /// Fingerprint of what it is started from.
    pub revision: u64,
    /// The generation that started it.
    pub generation: u64,
    /// What it has of each node; the first one has the leader.
    pub parts: Vec<PartOrder>,
    /// How its containers get GPUs.
    pub sharing: Sharing,
    /// The image, by digest.
    pub image: String,
    /// What the leader runs.
    pub leader: ContainerCommand,
    /// What the workers of a replica over several nodes run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<ContainerCommand>,
    /// Environment of all.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Where it listens.
    pub port: u16,
    /// The node's folder of models, mounted read-only at the same place; `None`: it needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<String>,
    /// The node's folder for what the engine compiles, mounted writable at the same place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compiled: Option<String>,
    /// Thousandths of a CPU, requested and at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_milli: Option<u64>,
    /// Bytes of host memory, requested and at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The resource that stands for RDMA, for a replica over several nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<String>,
    /// Path that answers 2xx when the engine serves.
    pub health_path: String,
    /// Seconds that it may take to get there.
    pub startup_seconds: u32,
    /// Seconds between the first signal and the last when nobody says another time: above the drain and the stop.
    pub grace_seconds: u32,
    /// Whatever whoever ordered it wants to read again; not interpreted here.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub note: serde_json::Value,
}

/// What a replica has of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartOrder {
    /// The node's name in Kubernetes.
    pub node: String,
    /// Number of its GPUs.
    pub gpus: u32,
    /// Their UUIDs, where Tidegate gives them out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uuids: Vec<String>,
    /// Whether these are all the GPUs of the node.
    #[serde(default)]
    pub is_whole: bool,
}

/// How containers get GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// By the device plugin, which chooses.
    Plugin,
    /// By UUID, without asking the scheduler: the node is tainted for us.
    Uuid,
}

/// What a container runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerCommand {
    /// The program and its first arguments; empty: the image's own.
    pub command: Vec<String>,
    /// Arguments behind it.
    pub args: Vec<String>,
}

impl ReplicaOrder {
    /// The name of its object and, with something behind, of its Pods.
    #[must_use]
    pub fn object_name(&self) -> String {
        object_name(&self.instance)
    }

    /// Whether it is one group of Pods on several nodes.
    #[must_use]
    pub const fn is_group(&self) -> bool {
        self.parts.len() > 1
    }

    /// Number of its Pods.
    #[must_use]
    pub const fn pods(&self) -> usize {
        self.parts.len()
    }

    /// Whether it can be rendered at all.
    ///
    /// # Errors
    /// [`Fault::Order`], with what to change.
    pub fn check(&self) -> Result<(), Fault> {
        let refuse = |text: String| Err(Fault::Order(text.into()));
        if self.parts.is_empty() || self.parts.len() > NODES_MAX {
            return refuse(format!("a replica has 1 to {NODES_MAX} nodes, not {}", self.parts.len()));
        }
        if self.image.is_empty() {
            return refuse(format!("deployment {} needs engines.NAME.image to run as a Pod", self.deployment));
        }
        if self.deployment.is_empty() || self.deployment.len() > LABEL_MAX {
            return refuse(format!("a deployment's name has 1 to {LABEL_MAX} bytes"));
        }
        if self.port == 0 || self.startup_seconds == 0 || self.startup_seconds > STARTUP_SECONDS_MAX {
            return refuse(format!("a port above 0 and 1 to {STARTUP_SECONDS_MAX} seconds to start are needed"));
        }
        if self.is_group() && self.worker.is_none() {
            return refuse(format!("deployment {} spans nodes, and its engine cannot", self.deployment));
        }
        for folder in [&self.models, &self.compiled].into_iter().flatten() {
            if !folder.starts_with('/') || folder.split('/').any(|part| part == "..") {
                return refuse(format!("{folder} has to be an absolute path without .. to be mounted"));
            }
        }
        self.check_gpus()?;
        match serde_json::to_vec(self).map(|json| json.len()) {
            Ok(length) if length <= ORDER_BYTES_MAX => Ok(()),
            _ => refuse(format!("the command and environment have more than {ORDER_BYTES_MAX} bytes")),
        }
    }

    fn check_gpus(&self) -> Result<(), Fault> {
        let refuse = |text: &str| Err(Fault::Order(text.into()));
        let workers = self.parts.get(1..).unwrap_or_default();
        if workers.iter().any(|part| part.gpus != workers[0].gpus) {
            return refuse("all workers of a replica have the same number of GPUs: they share one template");
        }
        if self.sharing == Sharing::Plugin {
            return Ok(());
        }
        if self.parts.iter().any(|part| !part.is_whole && part.uuids.len() as u64 != u64::from(part.gpus)) {
            return refuse("gpuSharing uuid needs the UUID of every GPU: is the node's agent up, with NVML");
        }
        if workers.len() > 1 && !workers.iter().all(|part| part.is_whole) {
            return refuse("with gpuSharing uuid, a replica over three nodes or more takes whole nodes");
        }
        Ok(())
    }
}
